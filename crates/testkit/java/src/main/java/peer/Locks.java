package peer;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.util.List;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** The kinds of locks: all are RLocks. */
final class Locks {
    private Locks() {}

    static Object run(RedissonClient client, Request request) throws Exception {
        String operation = request.text();
        RLock lock = get(client, request.command(), request.texts());
        switch (operation) {
            case "lock" -> {
                if (request.hasMore()) {
                    lock.lock(request.number(), MILLISECONDS);
                } else {
                    lock.lock();
                }
                return Commands.VOID;
            }
            case "lockInterruptibly" -> {
                lock.lockInterruptibly();
                return Commands.VOID;
            }
            case "tryLock" -> {
                return tryLock(lock, request);
            }
            case "unlock" -> {
                lock.unlock();
                return Commands.VOID;
            }
            case "forceUnlock" -> {
                return lock.forceUnlock();
            }
            case "isLocked" -> {
                return lock.isLocked();
            }
            case "isHeldByCurrentThread" -> {
                return lock.isHeldByCurrentThread();
            }
            case "getHoldCount" -> {
                return lock.getHoldCount();
            }
            case "remainTimeToLive" -> {
                return lock.remainTimeToLive();
            }
            case "getToken" -> {
                return Newer.call(lock, "getToken");
            }
            case "lockAndGetToken" -> {
                return request.hasMore()
                        ? Newer.call(lock, operation, request.number(), MILLISECONDS)
                        : Newer.call(lock, operation);
            }
            case "tryLockAndGetToken" -> {
                return tryLockAndGetToken(lock, request);
            }
            default -> throw Commands.unknown(request, operation);
        }
    }

    static RLock get(RedissonClient client, String kind, List<String> names) throws Exception {
        if (kind.equals("multi")) {
            return client.getMultiLock(names.stream().map(client::getLock).toArray(RLock[]::new));
        }
        if (names.size() != 1) {
            throw new IllegalArgumentException(kind + " takes one name, not " + names);
        }
        String name = names.get(0);
        return switch (kind) {
            case "lock" -> client.getLock(name);
            case "fair" -> client.getFairLock(name);
            case "read" -> client.getReadWriteLock(name).readLock();
            case "write" -> client.getReadWriteLock(name).writeLock();
            case "spin" -> (RLock) Newer.call(client, "getSpinLock", name);
            case "fenced" -> (RLock) Newer.call(client, "getFencedLock", name);
            case "nonReentrant" -> (RLock) Newer.call(client, "getNonReentrantLock", name);
            case "nonReentrantFair" -> (RLock) Newer.call(client, "getNonReentrantFairLock", name);
            default -> throw new IllegalArgumentException("unknown: " + kind);
        };
    }

    private static boolean tryLock(RLock lock, Request request) throws InterruptedException {
        if (!request.hasMore()) {
            return lock.tryLock();
        }
        long wait = request.number();
        return request.hasMore()
                ? lock.tryLock(wait, request.number(), MILLISECONDS)
                : lock.tryLock(wait, MILLISECONDS);
    }

    private static Object tryLockAndGetToken(RLock lock, Request request) throws Exception {
        String method = "tryLockAndGetToken";
        if (!request.hasMore()) {
            return Newer.call(lock, method);
        }
        long wait = request.number();
        return request.hasMore()
                ? Newer.call(lock, method, wait, request.number(), MILLISECONDS)
                : Newer.call(lock, method, wait, MILLISECONDS);
    }
}

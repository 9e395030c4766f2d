package peer;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;

/** RPermitExpirableSemaphore: permits with an id and a lease. */
final class Permits {
    private Permits() {}

    static Object run(RedissonClient client, Request request) throws Exception {
        String operation = request.text();
        RPermitExpirableSemaphore permits = client.getPermitExpirableSemaphore(request.text());
        switch (operation) {
            case "trySetPermits" -> {
                return permits.trySetPermits(request.count());
            }
            case "setPermits" -> Newer.call(permits, operation, request.count());
            case "addPermits" -> permits.addPermits(request.count());
            case "acquire" -> {
                return request.hasMore()
                        ? permits.acquire(request.number(), MILLISECONDS)
                        : permits.acquire();
            }
            case "acquireMany" -> {
                int count = request.count();
                return request.hasMore()
                        ? Newer.call(permits, "acquire", count, request.number(), MILLISECONDS)
                        : Newer.call(permits, "acquire", count);
            }
            case "tryAcquire" -> {
                return tryAcquire(permits, request);
            }
            case "tryAcquireMany" -> {
                int count = request.count();
                return request.hasMore()
                        ? Newer.call(permits, "tryAcquire", count, request.number(),
                                request.number(), MILLISECONDS)
                        : Newer.call(permits, "tryAcquire", count);
            }
            case "release" -> permits.release(request.text());
            case "releaseMany" -> Newer.call(permits, "release", request.texts());
            case "tryRelease" -> {
                return permits.tryRelease(request.text());
            }
            case "tryReleaseMany" -> {
                return Newer.call(permits, "tryRelease", request.texts());
            }
            case "updateLeaseTime" -> {
                return permits.updateLeaseTime(request.text(), request.number(), MILLISECONDS);
            }
            case "availablePermits" -> {
                return permits.availablePermits();
            }
            case "getLeaseTime" -> {
                return Newer.call(permits, operation, request.text());
            }
            case "getPermits", "acquiredPermits" -> {
                return Newer.call(permits, operation);
            }
            case "delete" -> {
                return permits.delete();
            }
            default -> throw Commands.unknown(request, operation);
        }
        return Commands.VOID;
    }

    private static String tryAcquire(RPermitExpirableSemaphore permits, Request request)
            throws InterruptedException {
        if (!request.hasMore()) {
            return permits.tryAcquire();
        }
        long wait = request.number();
        return request.hasMore()
                ? permits.tryAcquire(wait, request.number(), MILLISECONDS)
                : permits.tryAcquire(wait, MILLISECONDS);
    }
}

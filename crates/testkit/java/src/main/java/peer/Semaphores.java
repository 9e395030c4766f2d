package peer;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/** RSemaphore: a number. */
final class Semaphores {
    private Semaphores() {}

    static Object run(RedissonClient client, Request request) throws Exception {
        String operation = request.text();
        RSemaphore semaphore = client.getSemaphore(request.text());
        switch (operation) {
            case "trySetPermits" -> {
                return semaphore.trySetPermits(request.count());
            }
            case "addPermits" -> semaphore.addPermits(request.count());
            case "acquire" -> semaphore.acquire(request.count());
            case "tryAcquire" -> {
                int permits = request.count();
                return request.hasMore()
                        ? semaphore.tryAcquire(permits, request.number(), MILLISECONDS)
                        : semaphore.tryAcquire(permits);
            }
            case "release" -> semaphore.release(request.count());
            case "releaseIfExists" -> {
                return Newer.call(semaphore, operation, request.count());
            }
            case "drainPermits" -> {
                return semaphore.drainPermits();
            }
            case "availablePermits" -> {
                return semaphore.availablePermits();
            }
            case "delete" -> {
                return semaphore.delete();
            }
            default -> throw Commands.unknown(request, operation);
        }
        return Commands.VOID;
    }
}

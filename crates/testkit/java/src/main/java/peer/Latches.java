package peer;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import org.redisson.api.RCountDownLatch;
import org.redisson.api.RedissonClient;

/** RCountDownLatch. */
final class Latches {
    private Latches() {}

    static Object run(RedissonClient client, Request request) throws Exception {
        String operation = request.text();
        RCountDownLatch latch = client.getCountDownLatch(request.text());
        switch (operation) {
            case "trySetCount" -> {
                return latch.trySetCount(request.number());
            }
            case "countDown" -> latch.countDown();
            case "getCount" -> {
                return latch.getCount();
            }
            case "await" -> {
                if (request.hasMore()) {
                    return latch.await(request.number(), MILLISECONDS);
                }
                latch.await();
            }
            case "delete" -> {
                return latch.delete();
            }
            default -> throw Commands.unknown(request, operation);
        }
        return Commands.VOID;
    }
}

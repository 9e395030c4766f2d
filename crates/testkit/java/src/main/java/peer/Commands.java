package peer;

import java.util.List;
import org.redisson.api.RedissonClient;

/** Runs a command on the thread that calls. */
final class Commands {
    /** What a command answers that returns nothing. */
    static final List<Object> VOID = List.of();

    private final RedissonClient client;

    Commands(RedissonClient client) {
        this.client = client;
    }

    /** A value, a collection of values, null, or {@link #VOID}. */
    Object run(Request request) throws Exception {
        Object result = perform(request);
        request.end();
        return result;
    }

    private Object perform(Request request) throws Exception {
        return switch (request.command()) {
            case "id" -> client.getId();
            case "threadId" -> Thread.currentThread().getId();
            case "semaphore" -> Semaphores.run(client, request);
            case "permits" -> Permits.run(client, request);
            case "latch" -> Latches.run(client, request);
            case "stress" -> Stress.run(client, request);
            default -> Locks.run(client, request);
        };
    }

    static IllegalArgumentException unknown(Request request, String operation) {
        return new IllegalArgumentException("unknown: " + request.command() + " " + operation);
    }
}

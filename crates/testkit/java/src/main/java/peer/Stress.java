package peer;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/**
 * {@code stress KIND NAME COUNTER ROUNDS THREADS}: each thread does so many rounds of reading and
 * writing back, one higher, a counter that only the lock guards. Answers the rounds done in all and
 * the longest wait for the lock, in milliseconds.
 */
final class Stress {
    private Stress() {}

    static List<Object> run(RedissonClient client, Request request) throws Exception {
        Entry entry = entry(client, request.text(), request.texts());
        RBucket<String> counter = client.getBucket(request.text(), StringCodec.INSTANCE);
        int rounds = request.count();
        int threads = request.count();

        List<Callable<Long>> tasks = new ArrayList<>();
        for (int thread = 0; thread < threads; thread++) {
            tasks.add(() -> rounds(entry, counter, rounds));
        }
        // Real threads of their own: two tasks on one thread would share its ownership.
        ExecutorService executor = Executors.newFixedThreadPool(threads);
        try {
            long longest = 0;
            for (Future<Long> task : executor.invokeAll(tasks)) {
                longest = Math.max(longest, task.get());
            }
            return List.of((long) rounds * threads, longest / 1_000_000);
        } finally {
            executor.shutdown();
        }
    }

    private static long rounds(Entry entry, RBucket<String> counter, int rounds) throws Exception {
        long longest = 0;
        for (int round = 0; round < rounds; round++) {
            long start = System.nanoTime();
            Exit exit = entry.enter();
            longest = Math.max(longest, System.nanoTime() - start);
            try {
                String value = counter.get();
                counter.set(String.valueOf(value == null ? 1 : Long.parseLong(value) + 1));
            } finally {
                exit.leave();
            }
        }
        return longest;
    }

    private interface Entry {
        Exit enter() throws Exception;
    }

    private interface Exit {
        void leave() throws Exception;
    }

    private static Entry entry(RedissonClient client, String kind, List<String> names)
            throws Exception {
        switch (kind) {
            case "semaphore" -> {
                RSemaphore semaphore = client.getSemaphore(names.get(0));
                return () -> {
                    semaphore.acquire();
                    return semaphore::release;
                };
            }
            case "permits" -> {
                RPermitExpirableSemaphore permits =
                        client.getPermitExpirableSemaphore(names.get(0));
                return () -> {
                    String id = permits.acquire();
                    return () -> permits.release(id);
                };
            }
            default -> {
                RLock lock = Locks.get(client, kind, names);
                return () -> {
                    lock.lock();
                    return lock::unlock;
                };
            }
        }
    }
}

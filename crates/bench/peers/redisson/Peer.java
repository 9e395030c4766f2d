package peer;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.AtomicReference;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson as a contender: {@code Peer URL LEASE_MS}. The protocol: ../README.md. */
public final class Peer {
    private static final int KEEPERS = 64;
    /** Counters a cache line apart. */
    private static final int STRIDE = 16;

    private final String url;
    private final long lease;
    private final RedissonClient client;
    private Crew crew;
    private RLock held;
    private Keepers keepers;

    private Peer(String url, long lease) {
        this.url = url;
        this.lease = lease;
        this.client = connect(url, lease);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "error");
        Peer peer = new Peer(arguments[0], Long.parseLong(arguments[1]));
        String version = Redisson.class.getPackage().getImplementationVersion();
        say(answers, "ready " + version + " (Java " + System.getProperty("java.version") + ")");
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String answer;
            try {
                answer = "ok " + peer.obey(line.trim().split(" +"));
            } catch (Exception e) {
                answer = "error " + e;
            }
            say(answers, answer);
        }
        Runtime.getRuntime().halt(0);
    }

    private static void say(PrintStream answers, String line) {
        answers.println(line.trim());
        answers.flush();
    }

    /**
     * The defaults, but for subscriptions: a waiter of a fair lock has one of its own, and the
     * defaults (50 connections of 5) suffice for 250 of them. The documentation says to raise these.
     * On replicated servers a lock waits until a replica has it, by default.
     */
    private static RedissonClient connect(String url, long lease) {
        Config config = new Config();
        config.setLockWatchdogTimeout(lease);
        String replicated = "redis+replicated://";
        if (url.startsWith(replicated)) {
            var servers = config.useReplicatedServers().setSubscriptionsPerConnection(50);
            for (String host : url.substring(replicated.length()).split(",")) {
                servers.addNodeAddress("redis://" + host);
            }
        } else {
            config.useSingleServer().setAddress(url).setSubscriptionsPerConnection(50);
        }
        return Redisson.create(config);
    }

    private String obey(String[] words) throws Exception {
        switch (words[0]) {
            case "start":
                crew = new Crew(words[1], words[2], Integer.parseInt(words[3]));
                return "";
            case "count":
                return crew.counts();
            case "stop":
                return crew.stop();
            case "acquire":
                held = client.getLock(words[1]);
                held.lock();
                return Long.toString(System.nanoTime());
            case "release": {
                long start = System.nanoTime();
                held.unlock();
                return Long.toString(start);
            }
            case "wait": {
                RLock lock = client.getLock(words[1]);
                lock.lock();
                long acquired = System.nanoTime();
                lock.unlock();
                return Long.toString(acquired);
            }
            case "keep":
                keepers = new Keepers(words[1], Integer.parseInt(words[2]));
                return words[2];
            case "unkeep":
                keepers.release();
                return "";
            case "connect": {
                long start = System.nanoTime();
                RedissonClient other = connect(url, lease);
                RLock lock = other.getLock(words[1]);
                lock.lock();
                long span = System.nanoTime() - start;
                lock.unlock();
                other.shutdown();
                return Long.toString(span);
            }
            default:
                throw new IllegalArgumentException("unknown command " + words[0]);
        }
    }

    /** Threads at work: in Redisson the owner of a lock is a thread. */
    private final class Crew {
        private final AtomicLongArray counts;
        private final List<Thread> threads = new ArrayList<>();
        private final AtomicReference<Throwable> failure = new AtomicReference<>();
        private volatile boolean stopped;

        Crew(String work, String name, int workers) {
            counts = new AtomicLongArray(workers * STRIDE);
            for (int worker = 0; worker < workers; worker++) {
                int number = worker;
                Cycle cycle = cycle(work, name, number);
                Thread thread = new Thread(() -> run(cycle, number));
                thread.setDaemon(true);
                threads.add(thread);
            }
            threads.forEach(Thread::start);
        }

        private void run(Cycle cycle, int number) {
            try {
                for (long turn = 0; !stopped; turn++) {
                    RLock lock = cycle.next(turn);
                    lock.lock();
                    lock.unlock();
                    counts.incrementAndGet(number * STRIDE);
                }
            } catch (Throwable e) {
                failure.compareAndSet(null, e);
            }
        }

        String counts() {
            if (failure.get() != null) {
                throw new IllegalStateException(failure.get());
            }
            StringBuilder answer = new StringBuilder(Long.toString(System.nanoTime()));
            for (int worker = 0; worker < threads.size(); worker++) {
                answer.append(' ').append(counts.get(worker * STRIDE));
            }
            return answer.toString();
        }

        String stop() throws InterruptedException {
            stopped = true;
            for (Thread thread : threads) {
                thread.join();
            }
            return counts();
        }
    }

    /** The lock for a turn. */
    private interface Cycle {
        RLock next(long turn);
    }

    private Cycle cycle(String work, String name, int number) {
        switch (work) {
            case "own": {
                RLock lock = client.getLock(String.format("%s:%06d", name, number));
                return turn -> lock;
            }
            case "one": {
                RLock lock = client.getLock(name);
                return turn -> lock;
            }
            case "fair": {
                RLock lock = client.getFairLock(name);
                return turn -> lock;
            }
            default: {
                long reads = Long.parseLong(work.substring("rw".length()));
                RLock read = client.getReadWriteLock(name).readLock();
                RLock write = client.getReadWriteLock(name).writeLock();
                long seed = (number + 1) * 0x9E3779B97F4A7C15L;
                return turn -> {
                    long mixed = (seed ^ turn) * 0xBF58476D1CE4E5B9L;
                    mixed = (mixed ^ (mixed >>> 31)) * 0x94D049BB133111EBL;
                    return (mixed >>> 33) % 100 < reads ? read : write;
                };
            }
        }
    }

    /** Threads that hold many locks and do nothing else. */
    private final class Keepers {
        private final List<Thread> threads = new ArrayList<>();
        private final CountDownLatch free = new CountDownLatch(1);
        private final AtomicReference<Throwable> failure = new AtomicReference<>();

        Keepers(String name, int count) throws InterruptedException {
            CountDownLatch held = new CountDownLatch(KEEPERS);
            for (int keeper = 0; keeper < KEEPERS; keeper++) {
                int first = keeper;
                Thread thread = new Thread(() -> keep(name, first, count, held));
                thread.setDaemon(true);
                thread.start();
                threads.add(thread);
            }
            held.await();
            check();
        }

        private void check() {
            if (failure.get() != null) {
                throw new IllegalStateException(failure.get());
            }
        }

        private void keep(String name, int first, int count, CountDownLatch held) {
            List<RLock> locks = new ArrayList<>();
            try {
                for (int number = first; number < count; number += KEEPERS) {
                    RLock lock = client.getLock(String.format("%s:%06d", name, number));
                    lock.lock();
                    locks.add(lock);
                }
                held.countDown();
                free.await();
                locks.forEach(RLock::unlock);
            } catch (Throwable e) {
                failure.compareAndSet(null, e);
                held.countDown();
            }
        }

        void release() throws InterruptedException {
            free.countDown();
            for (Thread thread : threads) {
                thread.join();
            }
            check();
        }
    }
}

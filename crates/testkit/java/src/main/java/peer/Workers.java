package peer;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/**
 * Threads by name. Redisson's owner is the thread, so a worker is one thread as long as the process
 * lives. Only the thread that reads the input uses this.
 */
final class Workers {
    private final Map<String, Worker> workers = new HashMap<>();

    void run(String name, Runnable task) {
        workers.computeIfAbsent(name, Worker::new).tasks.add(task);
    }

    /** Whether there is such a worker. */
    boolean interrupt(String name) {
        Worker worker = workers.get(name);
        if (worker != null) {
            worker.thread.interrupt();
        }
        return worker != null;
    }

    private static final class Worker {
        private final BlockingQueue<Runnable> tasks = new LinkedBlockingQueue<>();
        private final Thread thread;

        Worker(String name) {
            thread = new Thread(this::work, name);
            thread.setDaemon(true);
            thread.start();
        }

        private void work() {
            while (true) {
                try {
                    tasks.take().run();
                } catch (InterruptedException e) {
                    // It came when the worker was idle: too late to interrupt anything.
                }
            }
        }
    }
}

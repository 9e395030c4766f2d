package peer;

/** When a command began and ended, by a monotonic clock; and the wall clock when it ended. */
record Timing(long startNanos, long endNanos, long wallMillis) {
    static Timing start() {
        return new Timing(System.nanoTime(), 0, 0);
    }

    Timing end() {
        return new Timing(startNanos, System.nanoTime(), System.currentTimeMillis());
    }
}

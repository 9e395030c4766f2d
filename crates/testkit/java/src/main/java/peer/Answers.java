package peer;

import java.io.PrintStream;
import java.util.Collection;
import java.util.List;
import java.util.stream.Collectors;

/** Writes answers, a line each, from whichever thread has one. */
final class Answers {
    private final PrintStream output;

    Answers(PrintStream output) {
        this.output = output;
    }

    /** The result is {@link Commands#VOID}, a value, null, or a collection of values. */
    void ok(String id, Timing timing, Object result) {
        write(id, timing, "ok", values(result).stream()
                .map(value -> " " + Words.encode(String.valueOf(value)))
                .collect(Collectors.joining()));
    }

    void error(String id, Timing timing, Throwable error) {
        StringBuilder text = new StringBuilder(shown(error));
        for (Throwable e = error.getCause(); e != null; e = e.getCause()) {
            text.append("; caused by ").append(shown(e));
        }
        write(id, timing, "err", " " + text);
    }

    private static String shown(Throwable error) {
        String message = String.valueOf(error.getMessage()).replaceAll("\\p{Cntrl}+", " ");
        return error.getClass().getName() + ": " + message;
    }

    private static Collection<?> values(Object result) {
        if (result instanceof Collection<?> several) {
            return several;
        }
        return List.of(result == null ? "null" : result);
    }

    private void write(String id, Timing timing, String outcome, String rest) {
        String line = id + " " + timing.startNanos() + " " + timing.endNanos() + " "
                + timing.wallMillis() + " " + outcome + rest + "\n";
        synchronized (output) {
            output.print(line);
            output.flush();
        }
    }
}

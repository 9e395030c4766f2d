package peer;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;

/** Reads commands and hands them to workers; ends when its input does. The protocol: README.md. */
public final class Main {
    private Main() {}

    public static void main(String[] arguments) {
        Answers answers = new Answers(new PrintStream(System.out, false, StandardCharsets.UTF_8));
        // Whatever a library prints must not look like an answer.
        System.setOut(new PrintStream(System.err, true, StandardCharsets.UTF_8));
        Timing start = Timing.start();
        try {
            Options options = Options.parse(arguments);
            RedissonClient client = options.connect();
            answers.ok(Request.GREETING, start.end(), greeting());
            serve(new Workers(), new Commands(client), answers);
        } catch (Exception e) {
            answers.error(Request.GREETING, start.end(), e);
            Runtime.getRuntime().halt(1);
        }
        // At once: a client that shut down in order would not be a process that died.
        Runtime.getRuntime().halt(0);
    }

    private static List<Object> greeting() {
        Package redisson = Redisson.class.getPackage();
        return List.of(redisson.getImplementationVersion(), System.getProperty("java.version"));
    }

    private static void serve(Workers workers, Commands commands, Answers answers)
            throws IOException {
        BufferedReader input =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Request request;
            try {
                request = Request.parse(line);
            } catch (IllegalArgumentException e) {
                answers.error(Request.UNKNOWN, Timing.start().end(), e);
                continue;
            }
            switch (request.command()) {
                case "quit" -> {
                    answers.ok(request.id(), Timing.start().end(), Commands.VOID);
                    return;
                }
                // Here and not on a worker: nothing may come between the question and the clock.
                case "clock" -> answers.ok(request.id(), Timing.start().end(), Commands.VOID);
                case "interrupt" -> {
                    boolean known = workers.interrupt(request.worker());
                    answers.ok(request.id(), Timing.start().end(), known);
                }
                default -> workers.run(request.worker(), () -> run(request, commands, answers));
            }
        }
    }

    private static void run(Request request, Commands commands, Answers answers) {
        Timing timing = Timing.start();
        try {
            Object result = commands.run(request);
            answers.ok(request.id(), timing.end(), result);
        } catch (Throwable e) {
            answers.error(request.id(), timing.end(), e);
        }
    }
}

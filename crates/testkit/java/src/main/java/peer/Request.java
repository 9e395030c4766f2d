package peer;

import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.List;
import java.util.stream.Collectors;

/** One line of input: {@code id worker command [arguments]}; the arguments are taken in order. */
record Request(String id, String worker, String command, Deque<String> arguments) {
    /** The answer to being started. */
    static final String GREETING = "0";
    /** The answer to a line that is no command. */
    static final String UNKNOWN = "-";

    static Request parse(String line) {
        Deque<String> words = new ArrayDeque<>(Arrays.asList(line.strip().split(" +")));
        if (words.size() < 3) {
            throw new IllegalArgumentException("not a command: " + line);
        }
        return new Request(words.poll(), Words.decode(words.poll()), words.poll(), words);
    }

    boolean hasMore() {
        return !arguments.isEmpty();
    }

    String text() {
        return Words.decode(word());
    }

    /** Several texts in one word: encoded one by one and joined by commas. */
    List<String> texts() {
        return Arrays.stream(word().split(",")).map(Words::decode).collect(Collectors.toList());
    }

    int count() {
        return Integer.parseInt(word());
    }

    long number() {
        return Long.parseLong(word());
    }

    /** What is left over was meant to do something. */
    void end() {
        if (hasMore()) {
            throw new IllegalArgumentException(command + " does not take " + arguments);
        }
    }

    private String word() {
        String word = arguments.poll();
        if (word == null) {
            throw new IllegalArgumentException(command + " needs one more argument");
        }
        return word;
    }
}

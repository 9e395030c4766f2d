package peer;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;

/** A text as one word of a line: percent-encoded UTF-8, everything but unreserved characters. */
final class Words {
    private Words() {}

    static String encode(String text) {
        StringBuilder word = new StringBuilder();
        for (byte b : text.getBytes(StandardCharsets.UTF_8)) {
            if (b > 0 && isUnreserved((char) b)) {
                word.append((char) b);
            } else {
                word.append(String.format("%%%02X", b & 0xff));
            }
        }
        return word.toString();
    }

    static String decode(String word) {
        byte[] raw = word.getBytes(StandardCharsets.UTF_8);
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        for (int i = 0; i < raw.length; i++) {
            if (raw[i] != '%') {
                text.write(raw[i]);
            } else if (i + 2 < raw.length) {
                text.write(hex(raw[i + 1], word) << 4 | hex(raw[i + 2], word));
                i += 2;
            } else {
                throw new IllegalArgumentException("an escape is cut off: " + word);
            }
        }
        return text.toString(StandardCharsets.UTF_8);
    }

    private static int hex(byte digit, String word) {
        int value = Character.digit(digit, 16);
        if (value < 0) {
            throw new IllegalArgumentException("not an escape: " + word);
        }
        return value;
    }

    private static boolean isUnreserved(char c) {
        return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
                || c == '-' || c == '.' || c == '_' || c == '~';
    }
}

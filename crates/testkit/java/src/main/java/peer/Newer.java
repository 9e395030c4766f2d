package peer;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.stream.Stream;

/** Calls what the oldest Redisson does not have, so that one source tree serves all versions. */
final class Newer {
    private Newer() {}

    static Object call(Object target, String method, Object... arguments) throws Exception {
        try {
            return find(target, method, arguments).invoke(target, arguments);
        } catch (InvocationTargetException e) {
            if (e.getCause() instanceof Exception cause) {
                throw cause;
            }
            throw e;
        }
    }

    private static Method find(Object target, String name, Object[] arguments) {
        // Through the interface where there is one: the class may not be public.
        Stream<Class<?>> types = Stream.concat(
                Arrays.stream(target.getClass().getInterfaces()), Stream.of(target.getClass()));
        return types.flatMap(type -> Arrays.stream(type.getMethods()))
                .filter(method -> method.getName().equals(name))
                .filter(method -> accepts(method.getParameterTypes(), arguments))
                .findFirst()
                .orElseThrow(() -> new Missing(target, name));
    }

    private static boolean accepts(Class<?>[] types, Object[] arguments) {
        if (types.length != arguments.length) {
            return false;
        }
        for (int i = 0; i < types.length; i++) {
            Class<?> type = types[i];
            boolean fits = type == int.class ? arguments[i] instanceof Integer
                    : type == long.class ? arguments[i] instanceof Long
                    : type.isInstance(arguments[i]);
            if (!fits) {
                return false;
            }
        }
        return true;
    }
}

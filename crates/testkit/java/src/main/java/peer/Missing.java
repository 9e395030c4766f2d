package peer;

/** What was asked for is not in this version of Redisson. */
final class Missing extends RuntimeException {
    private static final long serialVersionUID = 1;

    Missing(Object target, String method) {
        super(target.getClass().getSimpleName() + " has no " + method);
    }
}

package peers;

import java.util.concurrent.Callable;

/**
 * The threads that look for events of connections: in 5.x each takes up to 3 s to see that it is to end, and whoever
 * shuts a client or a server down waits for it.
 */
final class EventThreads {
    private static final long PERIOD_MILLIS = 50;

    private EventThreads() {
    }

    /** Does what shuts something down while those that have nothing to do are woken. */
    static <T> T awake(Callable<T> work) throws Exception {
        Thread waker = keepAwake();
        try {
            return work.call();
        } finally {
            waker.interrupt();
        }
    }

    /** Wakes those that have nothing to do until the thread is interrupted. */
    static Thread keepAwake() {
        Thread waker = new Thread(() -> {
            while (true) {
                Thread.getAllStackTraces().forEach((thread, stack) -> {
                    if (thread.getName().equals("NettyEventExecutor") && isIdle(stack)) {
                        thread.interrupt();
                    }
                });
                try {
                    Thread.sleep(PERIOD_MILLIS);
                } catch (InterruptedException e) {
                    return;
                }
            }
        }, "event-thread-waker");
        waker.setDaemon(true);
        waker.start();
        return waker;
    }

    /** Whether it waits for the next event, and does not look after one. */
    private static boolean isIdle(StackTraceElement[] stack) {
        for (int frame = 1; frame < stack.length; frame++) {
            if (stack[frame].getClassName().endsWith("NettyEventExecutor")) {
                return stack[frame - 1].getMethodName().equals("poll");
            }
        }
        return false;
    }
}

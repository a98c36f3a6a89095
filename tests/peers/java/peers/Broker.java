package peers;

import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;

/**
 * Apache's broker, without the waits that are none of a test's business: it registers again when it is told to, and the
 * threads that look for events of its connections end at once when it does.
 */
public final class Broker {
    private static final long PERIOD_MILLIS = 100;

    private Broker() {
    }

    /** What {@code BrokerStartup.main} does. */
    public static void main(String[] arguments) {
        BrokerController broker = BrokerStartup.createBrokerController(arguments);
        Runtime.getRuntime().addShutdownHook(new Thread(Broker::wakeEventThreads, "wake-event-threads"));
        BrokerStartup.start(broker);
        Guard.onInput = () -> new Thread(() -> broker.registerBrokerAll(true, false, true), "register").start();
    }

    /** Each of them takes up to 3 s to see that it is to end, one after the other. */
    private static void wakeEventThreads() {
        Thread waker = new Thread(() -> {
            while (true) {
                Thread.getAllStackTraces().keySet().stream()
                    .filter(thread -> thread.getName().equals("NettyEventExecutor"))
                    .forEach(Thread::interrupt);
                try {
                    Thread.sleep(PERIOD_MILLIS);
                } catch (InterruptedException e) {
                    return;
                }
            }
        }, "event-thread-waker");
        waker.setDaemon(true);
        waker.start();
    }
}

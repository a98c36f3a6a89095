package peers;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.common.ServiceThread;

/**
 * Apache's broker, without the waits that are none of a test's business: it registers again when it is told to, the
 * threads that look for events of its connections end at once when it does, and one that turns in a busy loop does not.
 */
public final class Broker {
    private static final long PERIOD_MILLIS = 100;

    private Broker() {
    }

    /** What {@code BrokerStartup.main} does. */
    public static void main(String[] arguments) throws ReflectiveOperationException {
        BrokerController broker = BrokerStartup.createBrokerController(arguments);
        writeOpsAtRest(broker);
        Runtime.getRuntime().addShutdownHook(new Thread(EventThreads::keepAwake, "wake-event-threads"));
        BrokerStartup.start(broker);
        Guard.onInput = () -> new Thread(() -> broker.registerBrokerAll(true, false, true), "register").start();
    }

    /**
     * 5.x notes the ends of transactions together. Once there was one its thread never waits again, and takes a core;
     * here what it does is done ten times a second. 4.9 notes each at once.
     */
    private static void writeOpsAtRest(BrokerController broker) throws ReflectiveOperationException {
        Object transactions = broker.getTransactionalMessageService();
        Method write;
        Field thread;
        try {
            write = transactions.getClass().getMethod("batchSendOpMessage");
            thread = transactions.getClass().getDeclaredField("transactionalOpBatchService");
        } catch (NoSuchMethodException | NoSuchFieldException e) {
            return;
        }
        thread.setAccessible(true);
        ((ServiceThread) thread.get(transactions)).shutdown();
        Thread writer = new Thread(() -> {
            try {
                while (true) {
                    write.invoke(transactions);
                    Thread.sleep(PERIOD_MILLIS);
                }
            } catch (InterruptedException | ReflectiveOperationException e) {
                throw new IllegalStateException(e);
            }
        }, "op-writer");
        writer.setDaemon(true);
        writer.start();
    }
}

package org.apache.rocketmq.test.base;

import java.lang.reflect.Proxy;
import java.util.Map;
import java.util.Properties;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.mockito.Mockito;

/** A broker of another process in the place of one in this JVM: what tests look up in its parts is asked of it. */
final class RemoteBroker extends BrokerController {
    /** What its own constructors set is not the broker's. */
    static volatile boolean testsRun = false;

    private final String address;
    private final DefaultMQAdminExt admin;
    private final MessageStore store;
    private final TopicConfigManager topics;
    private final ConsumerOffsetManager offsets;

    RemoteBroker(String cluster, String name, String address, DefaultMQAdminExt admin) {
        super(settings(cluster, name, address, admin), new NettyServerConfig(), new NettyClientConfig(), stored(address, admin));
        this.address = address;
        this.admin = admin;
        this.store = (MessageStore) Proxy.newProxyInstance(
            MessageStore.class.getClassLoader(), new Class<?>[] {MessageStore.class}, (proxy, method, arguments) -> {
                switch (method.getName()) {
                    case "getMaxOffsetInQueue":
                        return offsets((String) arguments[0], (int) arguments[1]).getMaxOffset();
                    case "getMinOffsetInQueue":
                        return offsets((String) arguments[0], (int) arguments[1]).getMinOffset();
                    case "dispatchBehindBytes":
                        return Long.parseLong(admin.fetchBrokerRuntimeStats(address).getTable().get("dispatchBehindBytes"));
                    default:
                        throw new UnsupportedOperationException("of a broker in another process: " + method);
                }
            });
        this.topics = new TopicConfigManager(this) {
            @Override
            public TopicConfig selectTopicConfig(String topic) {
                try {
                    return admin.examineTopicConfig(address, topic);
                } catch (Exception missing) {
                    return null;
                }
            }

            @Override
            public void updateTopicConfig(TopicConfig topic) {
                try {
                    admin.createAndUpdateTopicConfig(address, topic);
                } catch (Exception failed) {
                    throw new IllegalStateException(failed);
                }
            }
        };
        this.offsets = new ConsumerOffsetManager(this) {
            @Override
            public long queryOffset(String group, String topic, int queueId) {
                try {
                    MessageQueue queue = new MessageQueue(topic, name, queueId);
                    return admin.examineConsumeStats(address, group, topic, 10_000).getOffsetTable().get(queue)
                        .getConsumerOffset();
                } catch (Exception failed) {
                    throw new IllegalStateException(failed);
                }
            }
        };
    }

    /** Settings whose change is a request to the broker (25). */
    private static BrokerConfig settings(String cluster, String name, String address, DefaultMQAdminExt admin) {
        BrokerConfig settings = new BrokerConfig();
        settings.setBrokerClusterName(cluster);
        settings.setBrokerName(name);
        settings.setBrokerIP1(address.split(":")[0]);
        settings.setListenPort(Integer.parseInt(address.split(":")[1]));
        return passingOn(settings, address, admin);
    }

    private static MessageStoreConfig stored(String address, DefaultMQAdminExt admin) {
        MessageStoreConfig settings = new MessageStoreConfig();
        settings.setStorePathRootDir(System.getProperty("user.home") + "/store");
        return passingOn(settings, address, admin);
    }

    @SuppressWarnings("unchecked")
    private static <T> T passingOn(T settings, String address, DefaultMQAdminExt admin) {
        return (T) Mockito.mock(settings.getClass(), Mockito.withSettings().stubOnly().spiedInstance(settings).defaultAnswer(call -> {
            Object answer = call.callRealMethod();
            String method = call.getMethod().getName();
            if (testsRun && method.startsWith("set") && call.getArguments().length == 1) {
                Properties change = new Properties();
                String property = Character.toLowerCase(method.charAt(3)) + method.substring(4);
                change.put(property, String.valueOf((Object) call.getArgument(0)));
                admin.updateBrokerConfig(address, change);
            }
            return answer;
        }));
    }

    private TopicOffset offsets(String topic, int queueId) throws Exception {
        Map<MessageQueue, TopicOffset> found = admin.examineTopicStats(address, topic).getOffsetTable();
        return found.entrySet().stream().filter(each -> each.getKey().getQueueId() == queueId).findFirst().orElseThrow()
            .getValue();
    }

    @Override
    public String getBrokerAddr() {
        return address;
    }

    @Override
    public MessageStore getMessageStore() {
        return store;
    }

    @Override
    public TopicConfigManager getTopicConfigManager() {
        return topics == null ? super.getTopicConfigManager() : topics;
    }

    @Override
    public ConsumerOffsetManager getConsumerOffsetManager() {
        return offsets == null ? super.getConsumerOffsetManager() : offsets;
    }

    @Override
    public synchronized void registerBrokerAll(boolean checkOrderConfig, boolean oneway, boolean forceRegister) {
        // It registers by itself.
    }
}

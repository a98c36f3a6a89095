package org.apache.rocketmq.test.base;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.test.client.rmq.RMQAsyncSendProducer;
import org.apache.rocketmq.test.client.rmq.RMQNormalConsumer;
import org.apache.rocketmq.test.client.rmq.RMQNormalProducer;
import org.apache.rocketmq.test.client.rmq.RMQTransactionalProducer;
import org.apache.rocketmq.test.factory.ConsumerFactory;
import org.apache.rocketmq.test.listener.AbstractListener;
import org.apache.rocketmq.test.util.MQAdminTestUtils;
import org.apache.rocketmq.test.util.MQRandomUtils;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * What the integration tests of Apache RocketMQ derive from, with the names and signatures of theirs: it takes the
 * brokers that the name server of the property peers.namesrv knows, where theirs starts some in its own JVM.
 */
public class BaseConf {
    public static final String NAMESRV_ADDR = System.getProperty("peers.namesrv");
    protected static final String CLUSTER_NAME;
    protected static final String BROKER1_NAME;
    protected static final String BROKER2_NAME;
    protected static final String BROKER3_NAME;
    protected static final int BROKER_NUM = 3;
    protected static final int WAIT_TIME = 5;
    protected static final int CONSUME_TIME = 2 * 60 * 1000;
    protected static final int QUEUE_NUMBERS = 8;

    protected static NamesrvController namesrvController;
    protected static BrokerController brokerController1;
    protected static BrokerController brokerController2;
    protected static BrokerController brokerController3;
    protected static List<BrokerController> brokerControllerList;
    protected static Map<String, BrokerController> brokerControllerMap = new LinkedHashMap<>();
    protected static List<Object> mqClients = new ArrayList<>();
    protected static boolean debug = false;

    static {
        try {
            DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);
            admin.setNamesrvAddr(NAMESRV_ADDR);
            admin.setInstanceName("peers");
            admin.start();
            ClusterInfo cluster = admin.examineBrokerClusterInfo();
            for (BrokerData broker : new TreeMap<>(cluster.getBrokerAddrTable()).values()) {
                brokerControllerMap.put(broker.getBrokerName(), new RemoteBroker(
                    broker.getCluster(), broker.getBrokerName(), broker.getBrokerAddrs().get(0L), admin));
            }
            brokerControllerList = new ArrayList<>(brokerControllerMap.values());
            brokerController1 = brokerControllerList.get(0);
            brokerController2 = brokerControllerList.get(1);
            brokerController3 = brokerControllerList.get(2);
            CLUSTER_NAME = brokerController1.getBrokerConfig().getBrokerClusterName();
            BROKER1_NAME = brokerController1.getBrokerConfig().getBrokerName();
            BROKER2_NAME = brokerController2.getBrokerConfig().getBrokerName();
            BROKER3_NAME = brokerController3.getBrokerConfig().getBrokerName();
            IntegrationTestBase.initMQAdmin(NAMESRV_ADDR);
            RemoteBroker.testsRun = true;
        } catch (Exception failed) {
            throw new ExceptionInInitializerError(failed);
        }
    }

    public static void waitBrokerRegistered(String nsAddr, String clusterName, int expectedBrokerNum) {
        // All are there before the tests begin.
    }

    public boolean awaitDispatchMs(long timeMs) throws Exception {
        long deadline = System.currentTimeMillis() + timeMs;
        while (brokerControllerList.stream().anyMatch(each -> each.getMessageStore().dispatchBehindBytes() != 0)) {
            if (System.currentTimeMillis() > deadline) {
                return false;
            }
            Thread.sleep(100);
        }
        return true;
    }

    public static String initTopic() {
        return initTopicWithName(MQRandomUtils.getRandomTopic());
    }

    public static String initTopic(TopicMessageType type) {
        return initTopicWithName(MQRandomUtils.getRandomTopic(), type);
    }

    public static String initTopicWithName(String topic) {
        return made(topic, IntegrationTestBase.initTopic(topic, NAMESRV_ADDR, CLUSTER_NAME, CQType.SimpleCQ));
    }

    public static String initTopicWithName(String topic, TopicMessageType type) {
        return made(topic, IntegrationTestBase.initTopic(topic, NAMESRV_ADDR, CLUSTER_NAME, type));
    }

    public static String initTopicOnSampleTopicBroker(String sample) {
        return initTopicOnSampleTopicBroker(MQRandomUtils.getRandomTopic(), sample);
    }

    public static String initTopicOnSampleTopicBroker(String sample, TopicMessageType type) {
        return initTopicOnSampleTopicBroker(MQRandomUtils.getRandomTopic(), sample, type);
    }

    public static String initTopicOnSampleTopicBroker(String topic, String sample) {
        return made(topic, IntegrationTestBase.initTopic(topic, NAMESRV_ADDR, sample, CQType.SimpleCQ));
    }

    public static String initTopicOnSampleTopicBroker(String topic, String sample, TopicMessageType type) {
        return made(topic, IntegrationTestBase.initTopic(topic, NAMESRV_ADDR, sample, type));
    }

    private static String made(String topic, boolean isMade) {
        if (!isMade) {
            throw new AssertionError("topic " + topic + " could not be made");
        }
        return topic;
    }

    public static String initConsumerGroup() {
        return initConsumerGroup(MQRandomUtils.getRandomConsumerGroup());
    }

    public static String initConsumerGroup(String group) {
        SubscriptionGroupConfig settings = new SubscriptionGroupConfig();
        settings.setGroupName(group);
        return initConsumerGroup(settings);
    }

    public static String initConsumerGroup(SubscriptionGroupConfig group) {
        MQAdminTestUtils.createSub(NAMESRV_ADDR, CLUSTER_NAME, group);
        return group.getGroupName();
    }

    public static DefaultMQAdminExt getAdmin(String nsAddr) {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(3_000);
        admin.setNamesrvAddr(nsAddr);
        admin.setPollNameServerInterval(100);
        return kept(admin);
    }

    public static RMQNormalProducer getProducer(String nsAddr, String topic) {
        return getProducer(nsAddr, topic, false);
    }

    public static RMQNormalProducer getProducer(String nsAddr, String topic, boolean useTLS) {
        return kept(new RMQNormalProducer(nsAddr, topic, useTLS));
    }

    public static RMQNormalProducer getProducer(String nsAddr, String topic, String group, String instance) {
        return kept(new RMQNormalProducer(nsAddr, topic, group, instance));
    }

    public static RMQTransactionalProducer getTransactionalProducer(
        String nsAddr, String topic, TransactionListener listener) {
        return kept(new RMQTransactionalProducer(nsAddr, topic, false, listener));
    }

    public static RMQAsyncSendProducer getAsyncProducer(String nsAddr, String topic) {
        return kept(new RMQAsyncSendProducer(nsAddr, topic));
    }

    public static RMQNormalConsumer getConsumer(String nsAddr, String topic, String tags, AbstractListener listener) {
        return getConsumer(nsAddr, topic, tags, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
        String nsAddr, String topic, String tags, AbstractListener listener, boolean useTLS) {
        return getConsumer(nsAddr, initConsumerGroup(), topic, tags, listener, useTLS);
    }

    public static RMQNormalConsumer getConsumer(
        String nsAddr, String group, String topic, String tags, AbstractListener listener) {
        return getConsumer(nsAddr, group, topic, tags, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
        String nsAddr, String group, String topic, String tags, AbstractListener listener, boolean useTLS) {
        return kept(ConsumerFactory.getRMQNormalConsumer(nsAddr, group, topic, tags, listener, useTLS));
    }

    private static <T> T kept(T client) {
        mqClients.add(client);
        return client;
    }

    public static Set<String> getBrokers() {
        return new TreeSet<>(brokerControllerMap.keySet());
    }

    public static void shutdown() {
        List<Object> clients = new ArrayList<>(mqClients);
        mqClients.clear();
        shutdown(clients);
    }

    public static void shutdown(List<Object> clients) {
        for (Object client : clients) {
            try {
                client.getClass().getMethod("shutdown").invoke(client);
            } catch (ReflectiveOperationException failed) {
                throw new AssertionError(failed);
            }
        }
    }
}

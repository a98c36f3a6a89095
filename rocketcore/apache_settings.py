"""Settings of Apache RocketMQ's servers that ours do not have: without effect, refused, or misspelt.

The names are those that the setters of ``BrokerConfig``, ``MessageStoreConfig``, ``AuthConfig``, ``NamesrvConfig``,
``ControllerConfig``, ``NettyServerConfig`` and ``NettyClientConfig`` stand for (4.9.7 and 5.5.0), and four that
examples of configuration files give though no setter takes them (``storePathConsumeQueue`` …). The original passes over
a name that it does not know, and over what we do not do it would not: one that asks for protection ends the start here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Literal

from rocketcore.config_file import ENVIRONMENT_PREFIX, BadSetting, property_names

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["APACHE", "PROTECTION", "asks_for_nothing", "check_settings", "protective_variables"]

logger = logging.getLogger(__name__)

_ACCESS: Final = "access control, which this server does not have: it would serve everybody"
_COPIES: Final = "copies on other brokers, which this broker does not make: messages are on its own disk only"
_OFF: Final = ("", "false")
_ONE: Final = ("", "1")

PROTECTION: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "aclEnable": (_OFF, _ACCESS),
    "authenticationEnabled": (_OFF, _ACCESS),
    "authorizationEnabled": (_OFF, _ACCESS),
    "brokerRole": (("", "async_master"), _COPIES),
    "enableDLegerCommitLog": (_OFF, _COPIES),
    "duplicationEnable": (_OFF, _COPIES),
    "totalReplicas": (_ONE, _COPIES),
    "inSyncReplicas": (_ONE, _COPIES),
    "minInSyncReplicas": (_ONE, _COPIES),
    "allAckInSyncStateSet": (_OFF, _COPIES),
    "enableControllerMode": (_OFF, "a new master by election, which this broker does not take part in"),
    "enableControllerInNamesrv": (_OFF, "a controller in the name server, which this name server does not have"),
}
"""Name → the values, in lower case, that ask for nothing, and what the others ask for."""

_BROKER: Final = """
abortFile accessMessageInMemoryHotRatio accessMessageInMemoryMaxRatio accountStatsEnable
accountStatsPrintZeroValues ackMessageThreadPoolNums ackThreadPoolQueueCapacity aclCacheExpiredSecond
aclCacheMaxNum aclCacheRefreshSecond aclEnable adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity
allAckInSyncStateSet allowRecallWhenBrokerNotWriteable appendAckAsync appendCkAsync appendTopicForTimerDeleteKey
asyncLearner asyncSendEnable authConfigPath authenticationEnabled authenticationMetadataProvider
authenticationProvider authenticationStrategy authenticationWhitelist authorizationEnabled
authorizationMetadataProvider authorizationProvider authorizationStrategy authorizationWhitelist
autoCreateSubscriptionGroup autoCreateTopicEnable autoDeleteUnusedStats autoMessageVersionOnTopicLen
batchDispatchRequestThreadPoolNums bindAddress bitMapLengthConsumeQueueExt
bottomMostCompressionTypeForConsumeQueueStore broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond
brokerClusterName brokerConfigPath brokerElectionPriority brokerFastFailureEnable brokerHeartbeatInterval
brokerIP1 brokerIP2 brokerId brokerName brokerNotActiveTimeoutMillis brokerPermission brokerRole brokerTopicEnable
cgColdReadThreshold channelExpiredTimeout channelNotActiveInterval checkCRCOnRecover checkCommitLogOffsetOnRecover
checkSyncStateSetPeriod cleanFileForciblyEnable cleanOfflineBrokerInterval cleanResourceInterval
cleanRocksDBDirtyCQIntervalMin cleanSwapedMapInterval clearRetryTopicWhenDeleteTopic clientAsyncSemaphoreValue
clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout
clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity clientOnewaySemaphoreValue
clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads clusterName
clusterTopicEnable coldCtrStrategyEnable coldDataFlowControlEnable coldDataScanEnable combineAssignOffsetCQType
combineCQEnableCheckSelf combineCQLoadingCQTypes combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType
combineCQUseRocksdbForLmq commercialBaseCount commercialBigCount commercialEnable commercialSizePerMsg
commercialTimerCount commercialTransCount commitCommitLogLeastPages commitCommitLogThoroughInterval
commitIntervalCommitLog commitLogForceSwapMapInterval commitLogRecoverMaxNum commitLogSwapMapInterval
commitLogSwapMapReserveFileNum compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal
compactionThreadNum compatibleWithOldNameSrv compressedRegister configBlackList configManagerVersion configName
connectTimeoutMillis consumerFallbehindThreshold consumerManageThreadPoolNums
consumerManagerThreadPoolQueueCapacity consumerOffsetUpdateVersionStep controllerAddr
controllerHeartBeatTimeoutMills correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval
dataReadAheadEnable debugLockEnable defaultMessageRequestMode defaultPopShareQueueNum defaultQueryMaxNum
defaultTopicQueueNums delayOffsetUpdateVersionStep deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval
deleteFileBatchMax deleteWhen destroyMapedFileIntervalForcibly disableCallbackExecutor
disableConsumeIfConsumerReadSlowly disableNettyWorkerGroup disappearTimeAfterStart diskFallRecorded
diskMaxUsedSpaceRatio diskSpaceCleanForciblyRatio diskSpaceWarningLevelRatio dispatchCqCacheNum dispatchCqThreads
dispatchFromSenderThread duplicationEnable enableAcceleratedRecovery enableAsyncReput enableAutoInSyncReplicas
enableBatchPush enableBroadcastOffsetStore enableBuildConsumeQueueConcurrently enableCalcFilterBitMap
enableCleanExpiredOffset enableCompaction enableConnectionMetrics enableConsumeQueueExt enableControllerMode
enableCreateSysGroup enableDLegerCommitLog enableDetailStat enableFastChannelEventProcess enableLagAndDlqMetrics
enableLiteEventMode enableLitePopLog enableLmq enableLmqQuota enableLmqStats
enableLogConsumeQueueRepeatedlyBuildWhenRecover enableMessageStoreMetrics enableMixedMessageType
enableMultiDispatch enableNetWorkFlowControl enableNotifyAfterPopOrderLockRelease
enableNotifyBeforePopCalculateLag enablePopBatchAck enablePopBufferMerge enablePopLog enablePopMessageThreshold
enablePopMetrics enablePropertyFilter enableReconnectForGoAway enableRegisterProducer enableRemoteEscape
enableRemotingMetrics enableRequestMetrics enableRetryTopicV2 enableRocksDBLog enableRunningFlagsInFlush
enableScheduleAsyncDeliver enableScheduleMessageStats enableShutdownGracefully enableSingleTopicRegister
enableSkipLongAwaitingAck enableSlaveActingMaster enableSplitMetadata enableSplitRegistration enableStatsMetrics
enableTransactionMetrics enabledAppendPropCRC endTransactionPoolQueueCapacity endTransactionThreadPoolNums
estimateAccumulation expectConsumerNumUseFilter fastFailIfNoBufferInStorePool fetchControllerAddrByDnsLookup
fetchNameSrvAddrByDnsLookup fetchNamesrvAddrByAddressServer fetchNamesrvAddrInterval fileReservedTime
filterDataCleanTimeSpan filterServerNums filterSupportRetry flushCommitLogLeastPages
flushCommitLogThoroughInterval flushCommitLogTimed flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval
flushConsumerOffsetHistoryInterval flushConsumerOffsetInterval flushDelayOffsetInterval flushDiskType
flushIntervalCommitLog flushIntervalConsumeQueue flushLeastPagesWhenWarmMapedFile forceRegister forceVerifyPropCRC
forwardTimeout globalColdReadThreshold haFlowControlEnable haHousekeepingInterval haListenPort haMasterAddress
haMaxGapNotInSync haMaxTimeSlaveNotCatchup haSendHeartbeatInterval haSlaveFallbehindMax haTransferBatchSize
heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity highSpeedMode inBrokerContainer inSyncReplicas
indexFileReadEnable indexFileWriteEnable indexRocksDBEnable initAuthenticationUser initPopOffsetByCheckMsgInMem
innerClientAuthenticationCredentials isolateLogEnable iteratorWhenUseRocksdbConsumeQueue listenPort
liteEventCheckInterval liteEventFullDispatchDelayTime liteEventFullDispatchDelayTimeForWildcardGroup
liteLagCountMetricsEnable liteLagLatencyCollectEnable liteLagLatencyMetricsEnable liteLagLatencyTopK
litePullMessageEnable litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity liteSubscriptionCheckInterval
liteSubscriptionCheckTimeoutMills liteTtlCheckInterval loadBalancePollNameServerInterval
loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity lockInStrictMode
logicQueueForceSwapMapInterval logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum
logicalDiskSpaceCleanForciblyThreshold longPollingEnable mappedFileSizeCommitLog mappedFileSizeConsumeQueue
mappedFileSizeConsumeQueueExt mappedFileSizeTimerLog mappedFileSwapEnable mapperFileSizeBatchConsumeQueue
maxAsyncPutMessageRequests maxBatchDeleteFilesNum maxChecksumRange maxClientEventCount maxConsumeQueueScan
maxDelayTime maxErrorRateOfBloomFilter maxFilterMessageSize maxHaTransferByteInSecond maxHashSlotNum maxIndexNum
maxLiteSubscriptionCount maxLmqConsumeQueueNum maxMessageFilterNumForNotification maxMessageSize maxMsgsNumBatch
maxOffsetMapSize maxPopPollingSize maxReconnectIntervalTimeSeconds maxRecoveryCommitlogFiles
maxRocksDBIndexQueryDays maxSlaveResendLength maxStatsIdleTimeInMinutes maxTopicLength
maxTransferBytesOnMessageInDisk maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInDisk
maxTransferCountOnMessageInMemory memTableFlushIntervalMs messageDelayLevel messageIndexEnable messageIndexSafe
messageStorePlugIn metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
metricLoggingExporterIntervalInMills metricsExportBatchMaxDataPoints metricsExporterType metricsGrpcExporterHeader
metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit metricsPromExporterHost
metricsPromExporterPort migrateAuthFromV1Enabled minInSyncReplicas minLiteTTl msgTraceTopicName namesrvAddr
notifyConsumerIdsChangedEnable offsetCheckInSlave osPageCacheBusyTimeOutMills persistConsumerOffsetIncrementally
popCkMaxBufferSize popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit
popConsumerKVServiceEnable popConsumerKVServiceInit popConsumerKVServiceLog popFromRetryProbability
popFromRetryProbabilityForPriority popInflightMessageThreshold popLongPollingForceNotifyInterval
popPollingMapExpireTimeSeconds popPollingMapSize popPollingSize popResponseReturnActualRetryTopic
popReviveConcurrency popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead popReviveSkipIfGroupAbsent
preferredLeaderId printChannelGroups printChannelGroupsMinNum priorityOrderAsc processReplyMessageThreadPoolNums
pullBatchMaxMessageCount pullMessageThreadPoolNums pullThreadPoolQueueCapacity putConsumeQueueDataByFileChannel
putMessageFutureThreadPoolNums putMessageTimeout putMsgIndexHightWater putThreadPoolQueueCapacity
queryMessageThreadPoolNums queryThreadPoolQueueCapacity readOnlyCommitLogStorePaths readUnCommitted
realTimeNotifyConsumerChange realTimePersistRocksDBConfig recallMessageEnable recheckReputOffsetFromCq
recoverConcurrently recoverThreadPoolNums redeleteHangedFileInterval regionId registerBrokerTimeoutMills
registerNameServerPeriod rejectPullConsumerEnable rejectTransactionMessage replicasPerDiskPartition
replyThreadPoolQueueCapacity retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs reviveInterval reviveMaxSlow
reviveQueueNum reviveScanTime rocketmqHome rocksdbCQDoubleWriteEnable rocksdbCompressionType
rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold sampleCountThreshold sampleSteps scanAvailableNameSrv
scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked searchBcqByCacheEnable
sendHeartbeatTimeoutMillis sendMessageThreadPoolNums sendThreadPoolQueueCapacity serverAsyncSemaphoreValue
serverCallbackExecutorThreads serverChannelMaxIdleTimeSeconds serverLoadBalancerEnable
serverNettyWorkerGroupEnable serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads
serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads sharedByteBufferNum
shortPollingTimeMills shutdownWaitTimeSeconds skipPreOnline skipWhenCKRePutReachMaxTimes slaveReadEnable
slaveTimeout socksProxyConfig spinLockCollisionRetreatOptimalDegree splitMetadataSize splitRegistrationSize
startAcceptSendRequestTimeStamp statRocksDBCQIntervalSec statefulAuthenticationCacheExpiredSecond
statefulAuthenticationCacheMaxNum statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum
storeCheckpoint storePathBrokerIdentity storePathCommitLog storePathConsumeQueue storePathDLedgerCommitLog
storePathEpochFile storePathIndex storePathRootDir storeReplyMessageEnable storeType subscriptionExpiredTimeout
syncBrokerMemberGroupPeriod syncBrokerMetadataPeriod syncControllerMetadataPeriod syncFlushTimeout
syncFromLastFile syncMasterFlushOffsetWhenStartup timerColdDataCheckIntervalMs timerCongestNumEachSlot
timerEnableCheckMetrics timerEnableRetryUntilSuccess timerFlushIntervalMs timerGetMessageThreadNum
timerInterceptDelayLevel timerMaxDelaySec timerMetricSmallThreshold timerPrecisionMs timerProgressLogIntervalMs
timerPutMessageThreadNum timerRecallToTimeWheelEnable timerRecallToTimelineEnable timerReputServiceCorePoolSize
timerReputServiceMaxPoolSize timerReputServiceQueueCapacity timerRocksDBEnable timerRocksDBPrecisionMs
timerRocksDBRollIntervalHours timerRocksDBRollMaxTps timerRocksDBRollRangeHours timerRocksDBStopScan
timerRocksDBTimeExpiredMaxTps timerRollWindowSlot timerSkipUnknownError timerStopEnqueue timerWheelEnable
timerWheelSnapshotFlush timerWheelSnapshotIntervalMs topicQueueLockNum totalReplicas traceOn traceTopicEnable
transRocksDBEnable transWriteOriginTransHalfEnable transactionCheckInterval transactionCheckMax
transactionCheckRocksdbCoreThreads transactionCheckRocksdbMaxThreads transactionCheckRocksdbQueueCapacity
transactionMetricFlushInterval transactionOpBatchInterval transactionOpMsgMaxSize transactionTimeOut
transferMsgByHeap transientStorePoolEnable transientStorePoolSize travelCqFileNumWhenGetMessage
updateNameServerAddrPeriod useABSLock useEpollNativeSelector useMessageFilterForNotification usePIDColdCtrStrategy
useReentrantLockWhenPutMessage useSeparateRetryQueue useSeparateStorePathForRocksdbCQ useServerSideResetOffset
useSingleRocksDBForAllConfigs useStaticSubscription useTLS userCacheExpiredSecond userCacheMaxNum
userCacheRefreshSecond validateSystemTopicWhenUpdateTopic waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue
waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue
waitTimeMillsInTransactionQueue wakeCommitWhenPutMessage wakeFlushWhenPutMessage warmMapedFileEnable
writeBufferHighWaterMark writeBufferLowWaterMark writeWithoutMmap
"""

_NAMESRV: Final = """
bindAddress channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientOnewaySemaphoreValue
clientPooledByteBufAllocatorEnable clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity
clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads clusterTest configBlackList configStorePath
connectTimeoutMillis controllerDLegerGroup controllerDLegerPeers controllerDLegerSelfId
controllerRequestThreadPoolQueueCapacity controllerStorePath controllerThreadPoolNums controllerType
defaultThreadPoolNums defaultThreadPoolQueueCapacity deleteTopicWithBrokerRegistration disableCallbackExecutor
disableNettyWorkerGroup electMasterMaxRetryCount enableAllTopicList enableControllerInNamesrv
enableElectUncleanMaster enableReconnectForGoAway enableShutdownGracefully enableTopicList kvConfigPath listenPort
mappedFileSize maxReconnectIntervalTimeSeconds metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
metricLoggingExporterIntervalInMills metricsExporterType metricsGrpcExporterHeader metricsGrpcExporterTarget
metricsInDelta metricsLabel metricsPromExporterHost metricsPromExporterPort needWaitForService
notifyBrokerRoleChanged notifyMinBrokerIdChanged orderMessageEnable processReadEvent productEnvName
returnOrderTopicConfigToBroker rocketmqHome scanAvailableNameSrv scanInactiveMasterInterval
scanNotActiveBrokerInterval serverAsyncSemaphoreValue serverCallbackExecutorThreads
serverChannelMaxIdleTimeSeconds serverNettyWorkerGroupEnable serverOnewaySemaphoreValue
serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog serverSocketRcvBufSize
serverSocketSndBufSize serverWorkerThreads shutdownWaitTimeSeconds socksProxyConfig supportActingMaster
unRegisterBrokerQueueCapacity useEpollNativeSelector useTLS waitSecondsForService writeBufferHighWaterMark
writeBufferLowWaterMark
"""

APACHE: Final = {"broker": frozenset(_BROKER.split()), "name server": frozenset(_NAMESRV.split())}
"""By server, the names that its program of Apache's knows."""


def check_settings(
    server: Literal["broker", "name server"],
    properties: Mapping[str, str],
    classes: Iterable[type[DataclassInstance]],
    where: Callable[[str], str] = lambda name: "",
) -> None:
    """Refuse what asks for protection that is not there; log what has no effect (INFO) and what nobody knows (WARN).

    classes  declare the settings that have an effect
    where    says where a setting was found
    raises   BadSetting
    """
    declared = {name for cls in classes for name in property_names(cls)}
    without_effect = []
    for name, value in properties.items():
        if name in declared:
            continue
        if not name.isascii() or not name.isprintable():
            raise BadSetting(name, repr(value), "no setting has such a name")
        if name in PROTECTION:
            if not asks_for_nothing(name, value):
                raise BadSetting(name, value.strip(), f"asks for {PROTECTION[name][1]}")
        elif name in APACHE[server]:
            without_effect.append(name)
        elif any(word in name.lower() for word in ("acl", "auth")) and value.strip().lower() not in _OFF:
            raise BadSetting(name, value.strip(), f"no setting has such a name, and it seems to ask for {_ACCESS}")
        else:
            _warn_of_unknown(server, name, {*declared, *APACHE[server], *PROTECTION}, where(name))
    if without_effect:
        logger.info("settings of Apache RocketMQ without effect here names=%s", ",".join(sorted(without_effect)))


def asks_for_nothing(name: str, value: str) -> bool:
    """Tell whether a setting of ``PROTECTION`` has a value with which it asks for none."""
    return value.strip().lower() in PROTECTION[name][0]


def protective_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment's variables that ask for protection, ``ROCKETCORE_ACL_ENABLE`` …: variable → setting."""
    names = {name.lower(): name for name in PROTECTION}
    found = {}
    for variable in os.environ if environ is None else environ:
        if variable.startswith(ENVIRONMENT_PREFIX):
            name = names.get(variable.removeprefix(ENVIRONMENT_PREFIX).replace("_", "").lower())
            if name is not None:
                found[variable] = name
    return found


def _warn_of_unknown(server: str, name: str, known: Iterable[str], where: str) -> None:
    from difflib import get_close_matches

    close = get_close_matches(name, sorted(known), 1, 0.75)
    nearest = f" nearest={close[0]}" if close else ""
    logger.warning("no %s has such a setting, ignored name=%s%s where=%s", server, name, nearest, where)


FROM_THE_NEXT_START_ON: Final = "from the next start on"
WITHOUT_EFFECT_HERE: Final = "without effect here"
"""How our brokers begin to say, in the remark to a change of settings (25), which of them do not count at once."""
NEXT_START_KEY: Final = "rcNextStart"
"""Ours: among the settings of a broker (26) those that it has from its next start on, as JSON; not there for none."""

"""What a broker tells of itself in GET_BROKER_RUNTIME_INFO (Java: ``AdminBrokerProcessor.prepareRuntimeInfo``, 5.5.0).

All values are text. Thread pool figures are 0 because requests are served on one event loop and never queue, and so is
the buffer of the dispatch; of transient buffers there are as many as RocketMQ says where they are off. The names stay,
because ``mqadmin clusterList`` and the Dashboard read them.
"""

from __future__ import annotations

import json
from collections.abc import Hashable

from rocketcore.broker.context import BrokerContext
from rocketcore.broker.later.delay import DelayService
from rocketcore.broker.later.timer import TimerService
from rocketcore.broker.state.discord import told
from rocketcore.broker.stats import Totals
from rocketcore.broker.store import MessageStore, StoreConfig
from rocketcore.broker.store.log.record_head import RecordHead
from rocketcore.broker.transactions.service import TransactionService
from rocketcore.codes import CURRENT_VERSION, Version
from rocketcore.config_file import changed_properties
from rocketcore.disk import used_ratio
from rocketcore.message import INT32_MAX

_POOLS = ("send", "pull", "query", "litePull", "ack")
_RATES = {
    "putTps": "put_messages",
    "getFoundTps": "get_found",
    "getMissTps": "get_missed",
    "getTransferredTps": "get_messages",
    "getTransferedTps": "get_messages",
}


class RuntimeInfo:
    """Collects the figures of one broker."""

    def __init__(
        self,
        context: BrokerContext,
        store_config: StoreConfig,
        delay: DelayService,
        timer: TimerService,
        transactions: TransactionService,
    ) -> None:
        self._context = context
        self._store_config = store_config
        self._delay = delay
        self._timer = timer
        self._transactions = transactions
        self._changed: tuple[object, str] = (None, "")

    async def table(self) -> dict[str, str]:
        """Name → value of everything that is known."""
        return {
            **self._process(),
            "changedSettings": self._changed_settings(),
            **self._traffic(),
            **await self._store(),
            **self._trouble(),
            **self._delays(),
            **self._pools(),
        }

    def _process(self) -> dict[str, str]:
        context = self._context
        seconds = max(0, context.clock.time_millis() - context.started_millis) // 1000
        days, seconds = divmod(seconds, 86_400)
        hours, seconds = divmod(seconds, 3_600)
        minutes, seconds = divmod(seconds, 60)
        return {
            "bootTimestamp": str(context.started_millis),
            "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]",
            "brokerVersionDesc": Version(CURRENT_VERSION).name,
            "brokerVersion": str(CURRENT_VERSION),
            "brokerActive": "true",
            "startAcceptSendRequestTimeStamp": str(context.config.start_accept_send_request_time_stamp),
        }

    def _changed_settings(self) -> str:
        """Settings that have another value than their default, as JSON: name → default; a name of ours."""
        config = self._context.config
        if self._changed[0] is not config:  # a live change makes another one
            changed = changed_properties(config, self._store_config)
            self._changed = config, json.dumps(changed, separators=(",", ":"))
        return self._changed[1]

    def _traffic(self) -> dict[str, str]:
        stats = self._context.stats
        totals = stats.totals
        yesterday, today = stats.midnights
        average = totals.put_bytes / totals.put_messages if totals.put_messages else 0.0
        return {
            **{name: stats.rates(counter) for name, counter in _RATES.items()},
            "getTotalTps": _sum_rates(stats.rates("get_found"), stats.rates("get_missed")),
            "putMessageTimesTotal": str(totals.put_messages),
            "putMessageSizeTotal": str(totals.put_bytes),
            "putMessageAverageSize": str(round(average, 3)),
            "putMessageFailedTimes": str(totals.put_failures),
            "putMessageEntireTimeMax": str(round(stats.put_times.longest * 1000)),
            "putMessageDistributeTime": str(stats.put_times),
            "putLatency50": f"{stats.put_times.quantile(0.5) * 1000:.2f}",
            "putLatency99": f"{stats.put_times.quantile(0.99) * 1000:.2f}",
            "putLatency999": f"{stats.put_times.quantile(0.999) * 1000:.2f}",
            "getMessageEntireTimeMax": str(totals.longest_get_millis),
            **_day_totals("msgPutTotal", yesterday, today, totals, "put_messages"),
            **_day_totals("msgGetTotal", yesterday, today, totals, "get_messages"),
        }

    async def _store(self) -> dict[str, str]:
        import shutil

        store, config = self._context.store, self._store_config
        log = shutil.disk_usage(config.commit_log_folder)
        ratio = str(round(used_ratio(config.commit_log_folder), 4))
        return {
            "commitLogMinOffset": str(store.min_physical_offset),
            "commitLogMaxOffset": str(store.max_physical_offset),
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{config.commit_log_folder}": ratio,
            "consumeQueueDiskRatio": str(round(used_ratio(config.root), 4)),
            "commitLogDirCapacity": f"Total : {_gibibytes(log.total)}, Free : {_gibibytes(log.free)}.",
            "dispatchBehindBytes": str(store.stats.dispatch_behind),
            "dispatchMaxBuffer": "0",
            "remainHowManyDataToCommit": str(store.max_physical_offset - store.durable_offset),
            "remainHowManyDataToFlush": str(store.max_physical_offset - store.synced_offset),
            "remainTransientStoreBufferNumbs": str(INT32_MAX),
            "pageCacheLockTimeMills": "0",
            "earliestMessageTimeStamp": str(await earliest_time(store, self)),
        }

    def _trouble(self) -> dict[str, str]:
        """What is wrong with groups, and what the store found wrong since the start; names of ours, in
        docs/faults.md.
        """
        store = self._context.store
        discord = self._context.consumers.discord
        return {
            "brokerOfSameName": self._context.rival(),
            "unlikeGroups": json.dumps(told(discord.unlike), ensure_ascii=False),
            "sharedClientIds": json.dumps(told(discord.shared), ensure_ascii=False),
            "damagedMessages": str(store.stats.damaged_records),
            "damagedLogBytes": str(store.recovery.damaged_bytes),
            "tornLogBytes": str(store.recovery.torn_bytes),
            "logReadErrors": str(store.stats.read_errors),
            "coldLogReads": str(store.reads.cold_reads),
            "logReadTimeouts": str(store.reads.timeouts),
            "repairedConsumeQueues": str(store.stats.repaired_queues),
            "arrivalListenerErrors": str(store.stats.listener_errors),
            "deletedLogBytes": str(store.stats.deleted_bytes),
            "indexBehindBytes": str(store.index.behind),
            "indexErrors": str(store.index.errors),
            "damagedIndexFiles": str(store.index.files.damaged),
        }

    def _delays(self) -> dict[str, str]:
        offsets = {
            f"scheduleMessageOffset_{level}": f"{position},{end}"
            for level, (position, end) in self._delay.positions().items()
        }
        timer = self._timer
        half = self._transactions.undecided()
        return {
            **offsets,
            **({} if half is None else {"halfMessages": str(half)}),
            "scheduleMessageSkipped": str(self._delay.skipped),
            "timerReadBehind": str(timer.behind() // 1000),
            "timerOffsetBehind": "0",
            "timerCongestNum": str(len(timer)),
            "timerEnqueueTps": self._context.stats.rate("timer_enqueued"),
            "timerDequeueTps": self._context.stats.rate("timer_dequeued"),
            "timerSkipped": str(timer.skipped),
            "timerRecalled": str(timer.recalled),
        }

    def _pools(self) -> dict[str, str]:
        result = {}
        for pool in _POOLS:
            result[f"{pool}ThreadPoolQueueSize"] = "0"
            result[f"{pool}ThreadPoolQueueCapacity"] = "0"
            result[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        result["EndTransactionQueueSize"] = result["EndTransactionThreadPoolQueueCapacity"] = "0"
        return result


async def earliest_time(store: MessageStore, owner: Hashable) -> int:
    """Return the store time of the oldest message; −1 for an empty store."""
    head = RecordHead.read(await store.reads.read(owner, store.lookup, store.min_physical_offset))
    return -1 if head is None else head.store_timestamp


def _sum_rates(first: str, second: str) -> str:
    return " ".join(str(round(float(a) + float(b), 3)) for a, b in zip(first.split(), second.split(), strict=True))


def _day_totals(name: str, yesterday: Totals, today: Totals, now: Totals, counter: str) -> dict[str, str]:
    return {
        f"{name}YesterdayMorning": str(getattr(yesterday, counter)),
        f"{name}TodayMorning": str(getattr(today, counter)),
        f"{name}TodayNow": str(getattr(now, counter)),
    }


def _gibibytes(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"

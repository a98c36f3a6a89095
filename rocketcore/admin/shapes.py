"""Rows of JSON values under snake_case keys: what ``rocket -o json`` prints, and what the console answers.

Times are RFC 3339 in UTC, sizes bytes, durations seconds; what is not known is None.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from rocketcore.admin.group_troubles import GroupCondition, Trouble, troubles
from rocketcore.admin.timestamps import timestamp
from rocketcore.codes import DLQ_TOPIC_PREFIX, MASTER_ID, REPLY_TOPIC_SUFFIX, RETRY_TOPIC_PREFIX, Permission
from rocketcore.naming import is_system_group, is_system_topic

if TYPE_CHECKING:
    from rocketcore.admin.clients import ConnectedProducer
    from rocketcore.admin.cluster import BrokerStatus
    from rocketcore.admin.groups import GroupDescription, GroupMember, QueueProgress
    from rocketcore.admin.history import GroupState
    from rocketcore.admin.offsets import OffsetMove, ResetPlan
    from rocketcore.message import ReceivedMessage
    from rocketcore.message_queue import MessageQueue
    from rocketcore.protocol.bodies.client import ConsumeMessageDirectlyResult, ConsumerRunningInfo
    from rocketcore.protocol.bodies.group import SubscriptionGroupConfig
    from rocketcore.protocol.bodies.route import TopicRouteData
    from rocketcore.protocol.bodies.stats import TopicOffset
    from rocketcore.protocol.trace import Trace

__all__ = [
    "CONSUMED",
    "broker_figures",
    "broker_row",
    "dead_letter_row",
    "directly_row",
    "group_document",
    "group_row",
    "lag_of",
    "latest_rate",
    "longest_wait",
    "member_row",
    "message_object",
    "move_row",
    "permission_text",
    "producer_row",
    "progress_row",
    "queue_row",
    "route_rows",
    "running_document",
    "state_row",
    "subscription_rows",
    "topic_kind",
    "trace_row",
    "whole",
]

_ORIGIN: Final = "DLQ_ORIGIN_TOPIC"


# Topics


def topic_kind(topic: str, own: Collection[str]) -> str:
    """Return normal, system, retry or dlq; ``own`` are the names of clusters and brokers, which name topics too."""
    if topic.startswith(RETRY_TOPIC_PREFIX):
        return "retry"
    if topic.startswith(DLQ_TOPIC_PREFIX):
        return "dlq"
    reply = topic.endswith(REPLY_TOPIC_SUFFIX) and topic.removesuffix(REPLY_TOPIC_SUFFIX) in own
    if is_system_topic(topic) or topic in own or reply:
        return "system"
    return "normal"


def permission_text(perm: int) -> str:
    """Return ``rw``, ``r``, ``w`` or ``none``."""
    return f"{'r' if perm & Permission.READ else ''}{'w' if perm & Permission.WRITE else ''}" or "none"


def queue_row(queue: MessageQueue, bounds: TopicOffset) -> dict[str, Any]:
    """Return one queue of a topic."""
    return {
        "topic": queue.topic,
        "broker": queue.broker,
        "queue_id": queue.queue_id,
        "min_offset": bounds.min_offset,
        "max_offset": bounds.max_offset,
        "messages": bounds.max_offset - bounds.min_offset,
        "last_stored_at": timestamp(bounds.last_update_timestamp),
    }


def route_rows(topic: str, route: TopicRouteData) -> list[dict[str, Any]]:
    """Return a row a broker that serves a topic."""
    brokers = {data.broker_name: data for data in route.broker_datas}
    rows = []
    for queues in sorted(route.queue_datas, key=lambda each: str(each.broker_name)):
        broker = brokers.get(queues.broker_name)
        addresses = {} if broker is None else broker.broker_addrs
        rows.append(
            {
                "topic": topic,
                "cluster": None if broker is None else broker.cluster,
                "broker": queues.broker_name,
                "master": addresses.get(MASTER_ID),
                "slaves": [address for broker_id, address in sorted(addresses.items()) if broker_id != MASTER_ID],
                "perm": permission_text(queues.perm),
                "read_queues": queues.read_queue_nums,
                "write_queues": queues.write_queue_nums,
                "zone": None if broker is None else broker.zone_name,
                "order_conf": route.order_topic_conf or None,
            }
        )
    return rows


# Messages


def message_object(message: ReceivedMessage) -> dict[str, Any]:
    """Return a message as JSON values; the body is ``body`` where it is UTF-8 text, else ``body_base64``."""
    value: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.queue.broker,
        "queue_id": message.queue.queue_id,
        "offset": message.offset,
        "msg_id": message.msg_id,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "born_at": timestamp(message.born_timestamp),
        "stored_at": timestamp(message.store_timestamp),
        "reconsume_times": message.reconsume_times,
    }
    try:
        value["body"] = message.text()
    except UnicodeDecodeError:
        value["body_base64"] = base64.b64encode(message.body).decode()
    return value


def dead_letter_row(message: ReceivedMessage, redriven: int) -> dict[str, Any]:
    """Return a dead letter; ``topic`` is where it was sent to."""
    from rocketcore.message import RETRY_TOPIC  # who has a message has loaded it; a list of topics needs none

    origin = message.properties.get(_ORIGIN) or message.properties.get(RETRY_TOPIC)
    return {**message_object(message), "topic": origin, "redriven": message.offset < redriven}


CONSUMED: Final = ("CR_SUCCESS", "CR_COMMIT")
"""Results of a direct consumption after which the message is done with."""


def directly_row(
    message: ReceivedMessage, group: str, client_id: str, result: ConsumeMessageDirectlyResult
) -> dict[str, Any]:
    """Return what came of a message that one consumer was given directly."""
    return {
        "msg_id": message.msg_id,
        "group": group,
        "client_id": client_id,
        "result": None if result.consume_result is None else result.consume_result.name,
        "remark": result.remark,
        "seconds": result.spent_time_mills / 1000,
        "ordered": result.order,
    }


def state_row(each: GroupState) -> dict[str, Any]:
    """Return how far a group is with a message."""
    return {
        "group": each.group,
        "state": each.state.value,
        "group_offset": each.group_offset,
        "failed": each.failed,
        "members": each.members,
    }


_TRACED: Final = {
    "Pub": "sent",
    "SubBefore": "handed out",
    "SubAfter": "consumed",
    "EndTransaction": "transaction ended",
    "Recall": "taken back",
}


def trace_row(trace: Trace) -> dict[str, Any]:
    """Return what is shown of a record; what its kind does not say is unknown."""

    def said(name: str) -> Any:
        return getattr(trace, name, None)

    return {
        "at": timestamp(said("timestamp")),
        "event": _TRACED[trace.NAME],
        "group": said("group"),
        "topic": said("topic"),
        "success": said("success"),
        "seconds": None if said("cost_millis") is None else said("cost_millis") / 1000,
        "retry_times": said("retry_times"),
        "state": said("state"),
        "broker_address": said("store_host"),
        "client": said("client_host"),
        "request_id": said("request_id"),
        "keys": (said("keys") or "").split(),
        "msg_id": trace.msg_id,
    }


# Groups


def lag_of(rows: Iterable[QueueProgress]) -> int | None:
    """Return how many messages wait in queues together; None where that is unknown for one, or there is none."""
    lags = [row.lag for row in rows]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known and len(known) == len(lags) else None


def group_row(group: str, config: SubscriptionGroupConfig) -> dict[str, Any]:
    """Return a group of a list."""
    return {
        "group": group,
        "kind": "system" if is_system_group(group) else "normal",
        "consume_enabled": config.consume_enable,
        "broadcast_enabled": config.consume_broadcast_enable,
        "orderly": config.consume_message_orderly,
        "max_retries": config.retry_max_times,
        "retry_queues": config.retry_queue_nums,
    }


def progress_row(row: QueueProgress) -> dict[str, Any]:
    """Return where a group is in a queue."""
    return {
        "topic": row.queue.topic,
        "broker": row.queue.broker,
        "queue_id": row.queue.queue_id,
        "broker_offset": row.broker_offset,
        "group_offset": row.group_offset,
        "lag": row.lag,
        "lag_seconds": row.waiting,
        "consumed_at": timestamp(row.consumed_at),
    }


def longest_wait(rows: Iterable[QueueProgress]) -> float | None:
    """Return for how long the message that waits longest has waited; None where that is unknown for a queue."""
    waiting = [row.waiting for row in rows]
    known = [seconds for seconds in waiting if seconds is not None]
    return max(known) if known and len(known) == len(waiting) else None


def member_row(member: GroupMember) -> dict[str, Any]:
    """Return a member of a group."""
    return {
        "client_id": member.client_id,
        "address": member.address,
        "language": member.language,
        "version": member.release,
        "brokers": list(member.brokers),
    }


def running_document(group: str, client_id: str, info: ConsumerRunningInfo) -> dict[str, Any]:
    """Return what a consumer says of itself; of queues those that it pulls and those that it pops."""
    queues = [
        {
            "topic": queue.topic,
            "broker": queue.broker,
            "queue_id": queue.queue_id,
            "group_offset": each.commit_offset,
            "cached_messages": each.cached_msg_count,
            "locked": each.locked,
            "dropped": each.dropped,
            "pulled_at": timestamp(each.last_pull_timestamp),
            "consumed_at": timestamp(each.last_consume_timestamp),
        }
        for queue, each in sorted(info.mq_table.items())
    ]
    rates = [
        {
            "topic": topic,
            "pull_tps": round(each.pull_tps, 2),
            "consumed_tps": round(each.consume_ok_tps, 2),
            "failed_tps": round(each.consume_failed_tps, 2),
            "failed_last_hour": each.consume_failed_msgs,
            "consume_seconds": each.consume_rt / 1000,
        }
        for topic, each in sorted(info.status_table.items())
    ]
    return {
        "group": group,
        "client_id": client_id,
        "queues": queues,
        "popped_queues": [f"{queue.topic} {queue.broker}/{queue.queue_id}" for queue in sorted(info.mq_pop_table)],
        "rates": rates,
        "properties": dict(sorted(info.properties.items())),
        "stack": info.jstack,
    }


def producer_row(each: ConnectedProducer) -> dict[str, Any]:
    """Return a connected producer."""
    row = {"kind": "producer", "group": each.group, **member_row(each.client)}
    return {**row, "seen_at": timestamp(each.seen_at)}


def subscription_rows(found: GroupDescription) -> list[dict[str, Any]]:
    """Return what the members of a group want."""
    return [
        {"topic": topic, "expression_type": each.expression_type, "expression": each.sub_string}
        for topic, each in found.subscriptions.items()
    ]


def group_document(found: GroupDescription, dead_letters: int | None = None) -> dict[str, Any]:
    """Return a group with what is wrong with it, its members, subscriptions and queues."""
    config = next(iter(found.configs.values()), None)
    state = GroupCondition(
        group=found.group,
        members=len(found.members),
        lag=lag_of(found.progress),
        dead_letters=dead_letters,
        unlike=found.unlike,
        shared=found.shared,
        queues=found.progress,
        unanswered=tuple(found.unanswered),
    )
    return {
        "group": found.group,
        "state": "online" if found.members else "offline",
        "brokers": list(found.configs),
        "consume_type": found.consume_type,
        "message_model": found.message_model,
        "starts_from": found.consume_from_where,
        "consume_enabled": None if config is None else config.consume_enable,
        "orderly": None if config is None else config.consume_message_orderly,
        "max_retries": None if config is None else config.retry_max_times,
        "lag": lag_of(found.progress),
        "lag_seconds": longest_wait(found.progress),
        "dead_letters": dead_letters,
        "troubles": [trouble_row(each) for each in troubles(state)],
        "members": [member_row(member) for member in found.members],
        "subscriptions": subscription_rows(found),
        "queues": [progress_row(row) for row in found.progress],
    }


def trouble_row(each: Trouble) -> dict[str, Any]:
    """Return one thing that is wrong with a group."""
    return {"check": each.check, "state": each.state, "detail": each.detail, "hint": each.hint}


def move_row(plan: ResetPlan, move: OffsetMove) -> dict[str, Any]:
    """Return what a reset does in a queue."""
    return {
        "group": plan.group,
        "topic": plan.topic,
        "broker": move.queue.broker,
        "queue_id": move.queue.queue_id,
        "before": move.before,
        "after": move.after,
        "lag": move.max_offset - move.after,
    }


# Brokers


def broker_row(member: BrokerStatus, permission: int | None = None) -> dict[str, Any]:
    """Return what is known of a broker; messages a second are those of the last 10 seconds.

    permission  what producers and consumers may do at it, as a name server tells them; None where that is not known
    """
    runtime = member.runtime or {}
    return {
        "cluster": member.cluster,
        "broker": member.broker,
        "broker_id": member.broker_id,
        "role": "master" if member.broker_id == MASTER_ID else "slave",
        "address": member.address,
        "zone": member.zone,
        "state": _state(member, permission),
        "version": runtime.get("brokerVersionDesc", "").removeprefix("V").replace("_", ".") or None,
        "topics": member.topic_count,
        "in_tps": latest_rate(runtime.get("putTps")),
        # 4.9 spells it wrong, 5.5 right, and those between say both.
        "out_tps": latest_rate(runtime.get("getTransferredTps") or runtime.get("getTransferedTps")),
        "started_at": timestamp(whole(runtime.get("bootTimestamp"))),
        "error": None if member.error is None else str(member.error),
    }


def broker_figures(runtime: Mapping[str, str]) -> dict[str, Any]:
    """Return what a broker counts and how full it is."""
    return {
        "messages_in_today": _since_midnight(runtime, "msgPut"),
        "messages_out_today": _since_midnight(runtime, "msgGet"),
        "log_bytes": _difference(runtime, "commitLogMaxOffset", "commitLogMinOffset"),
        "disk_ratio": _ratio(runtime, "commitLogDiskRatio"),
    }


def _state(member: BrokerStatus, permission: int | None) -> str:
    if member.error is None:
        return "up" if permission is None or permission & Permission.WRITE else "drained"
    return "refuses" if member.alive else "unreachable"


def latest_rate(figures: str | None) -> float | None:
    """Return the first of three rates, which are over 10 seconds, a minute and ten minutes."""
    try:
        rate = float((figures or "").split()[0])
    except (IndexError, ValueError):
        return None
    return round(rate, 2) if isfinite(rate) else None


def whole(figure: str | None) -> int | None:
    """Return a number that a broker says as text; None where it says none."""
    return int(figure) if figure is not None and figure.isdecimal() and len(figure) < 20 else None


def _ratio(runtime: Mapping[str, str], name: str) -> float | None:
    """Return a part of a whole; a broker that cannot tell says -1, or NaN."""
    try:
        ratio = float(runtime[name])
    except (KeyError, ValueError):
        return None
    return ratio if 0 <= ratio <= 1 else None


def _difference(runtime: Mapping[str, str], end: str, start: str) -> int | None:
    last, first = whole(runtime.get(end)), whole(runtime.get(start))
    return None if last is None or first is None else last - first


def _since_midnight(runtime: Mapping[str, str], counter: str) -> int | None:
    return _difference(runtime, f"{counter}TotalTodayNow", f"{counter}TotalTodayMorning")

"""Consumer group configurations."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from rocketcore.protocol.bodies.base import Body, Int, body, wire
from rocketcore.protocol.bodies.topic import DataVersion


class GroupRetryPolicyType(Enum):
    """Kinds of retry intervals [5.x]."""

    EXPONENTIAL = 0
    CUSTOMIZED = 1


@body
class CustomizedRetryPolicy(Body):
    """Intervals by attempt, milliseconds [5.x]."""

    next_intervals: list[int] = field(default_factory=list, metadata=wire("next"))


@body
class ExponentialRetryPolicy(Body):
    """Growing intervals, milliseconds [5.x]."""

    initial: int = 5000
    max: int = 7_200_000
    multiplier: int = 2


@body
class GroupRetryPolicy(Body):
    """When a failed message comes again [5.x]."""

    type: GroupRetryPolicyType | None = GroupRetryPolicyType.CUSTOMIZED
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None


@body
class SimpleSubscriptionData(Body):
    """One subscription that a group is bound to [5.x]."""

    topic: str = ""
    expression_type: str = "TAG"
    expression: str = "*"
    version: int = 0


@body
class SubscriptionGroupConfig(Body):
    """A consumer group on a broker (200, 201, 352)."""

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int = 1
    retry_max_times: Int = 16
    group_retry_policy: GroupRetryPolicy = field(default_factory=GroupRetryPolicy)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int = 0
    consume_timeout_minute: Int = 15
    subscription_data_set: list[SimpleSubscriptionData] | None = None
    attributes: dict[str, str] = field(default_factory=dict)


@body
class SubscriptionGroupWrapper(Body):
    """All groups of a broker (201), also its subscriptionGroup.json."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    forbidden_table: dict[str, dict[str, int]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


@body
class SubscriptionGroupList(Body):
    """Body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225) [5.3.1]."""

    group_config_list: list[SubscriptionGroupConfig] | None = None


@body
class GroupForbidden(Body):
    """Answer to UPDATE_AND_GET_GROUP_FORBIDDEN (353) [5.x]."""

    topic: str = ""
    group: str = ""
    readable: bool | None = None

"""Headers of POP consumption [5.x]."""

from __future__ import annotations

from rocketcore.protocol.schema import Header, Long, TopicHeader, wire


class PopMessageRequestHeader(TopicHeader):
    """POP_MESSAGE (200050)."""

    consumer_group: str
    topic: str
    queue_id: int = wire(absent=0)
    max_msg_nums: int = wire(absent=0)
    invisible_time: Long = wire(absent=0)
    poll_time: Long = wire(absent=0)
    born_time: Long = wire(absent=0)
    init_mode: int = wire(absent=0)
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopMessageResponseHeader(Header):
    """Answer to POP_MESSAGE (200050)."""

    pop_time: Long = wire(absent=0)
    invisible_time: Long = wire(absent=0)
    revive_qid: int = wire(absent=0)
    rest_num: Long = wire(absent=0)
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequestHeader(TopicHeader):
    """ACK_MESSAGE (200051)."""

    consumer_group: str = wire(absent="")
    topic: str
    queue_id: int
    extra_info: str
    offset: Long
    lite_topic: str | None = None


class ChangeInvisibleTimeRequestHeader(TopicHeader):
    """CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    consumer_group: str = wire(absent="")
    topic: str
    queue_id: int
    extra_info: str
    offset: Long
    invisible_time: Long
    lite_topic: str | None = None
    suspend: bool = False


class ChangeInvisibleTimeResponseHeader(Header):
    """Answer to CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    pop_time: Long = wire(absent=0)
    invisible_time: Long = wire(absent=0)
    revive_qid: int = wire(absent=0)


class PeekMessageRequestHeader(TopicHeader):
    """PEEK_MESSAGE (200052)."""

    topic: str
    queue_id: int = wire(absent=0)
    max_msg_nums: int = wire(absent=0)
    consumer_group: str


class NotificationRequestHeader(TopicHeader):
    """NOTIFICATION (200054)."""

    consumer_group: str
    topic: str
    queue_id: int = wire(absent=0)
    poll_time: Long = wire(absent=0)
    born_time: Long = wire(absent=0)
    order: bool = False
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class NotificationResponseHeader(Header):
    """Answer to NOTIFICATION (200054)."""

    has_msg: bool = wire(absent=False)
    polling_full: bool = False


class PollingInfoRequestHeader(TopicHeader):
    """POLLING_INFO (200055)."""

    consumer_group: str
    topic: str
    queue_id: int = wire(absent=0)


class PollingInfoResponseHeader(Header):
    """Answer to POLLING_INFO (200055)."""

    polling_num: int = wire(absent=0)

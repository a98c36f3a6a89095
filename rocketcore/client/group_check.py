"""Whether the members of a consumer group agree, as one of them sees it: a broker is asked now and then.

RocketMQ shares the queues of a topic out among all members of a group, whatever each subscribes to, and by client id:
members of unlike subscriptions get a part of their messages, and two of one client id both get the same.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from rocketcore.codes import RETRY_TOPIC_PREFIX, RequestCode
from rocketcore.errors import RocketError
from rocketcore.naming import is_system_group
from rocketcore.protocol.bodies.client import ConsumerConnection
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.admin import GetConsumerConnectionListRequestHeader
from rocketcore.warning import warn

if TYPE_CHECKING:
    from rocketcore.client.subscriber import Subscriber

__all__ = ["FIRST_CHECK", "GroupCheck"]

logger = logging.getLogger(__name__)

FIRST_CHECK: Final = 5.0


class GroupCheck:
    """Asks a broker about the group of a member; what is wrong is a warning when it begins."""

    def __init__(self, consumer: Subscriber) -> None:
        self._consumer = consumer
        self._told: set[str] = set()

    async def look(self) -> None:
        """Ask once; a broker that does not say is no concern of a member."""
        consumer = self._consumer
        topics = sorted(consumer.topics() - {consumer.retry_topic})
        if not topics or is_system_group(consumer.group) or consumer.instance.routes.find(topics[0]) is None:
            return
        header = GetConsumerConnectionListRequestHeader(consumer_group=consumer.group)

        async def ask(address: str, timeout: float) -> RemotingCommand:
            request = RemotingCommand.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
            return await consumer.instance.remoting.invoke(address, request, timeout)

        try:
            address, answer = await consumer.instance.ask_any_broker(topics[0], ask, consumer.config.timeout)
            answer.raise_for_code(address, "GET_CONSUMER_CONNECTION_LIST")
            self._judge(ConsumerConnection.decode(answer.body))
        except RocketError as error:
            logger.debug("group not looked at group=%s error=%s", consumer.group, error)

    def _judge(self, seen: ConsumerConnection) -> None:
        own = self._consumer.client_id
        twice = [each.client_addr for each in seen.connection_set if each.client_id == own]
        self._tell(
            "another member of the group has the client id of this one, each handles what the other does: leave"
            " instance_name out, or give each its own",
            f"client_id={own} addresses={', '.join(twice)}" if len(twice) > 1 else "",
        )
        wanted = {each.topic: each.sub_string for each in self._consumer.subscriptions()}
        others = {topic: each.sub_string for topic, each in seen.subscription_table.items()}
        differ = sorted(
            topic
            for topic in wanted.keys() | others.keys()
            if not topic.startswith(RETRY_TOPIC_PREFIX) and wanted.get(topic) != others.get(topic)
        )
        self._tell(
            "members of the group subscribe to different things, each gets a part of its messages: give them groups of"
            " their own",
            f"topics={', '.join(differ)}" if differ and len(seen.connection_set) > 1 else "",
        )

    def _tell(self, text: str, what: str) -> None:
        if not what:
            self._told.discard(text)
        elif text not in self._told:
            self._told.add(text)
            warn(logger, "%s group=%s %s", text, self._consumer.group, what)

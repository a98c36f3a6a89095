"""Having the store give disk back: codes 306, 316, 329 (Java: ``AdminBrokerProcessor``, 5.5.0)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from rocketcore.broker.context import BrokerContext
from rocketcore.codes import RequestCode
from rocketcore.naming import is_system_topic
from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route

__all__ = ["CleaningProcessor"]

logger = logging.getLogger(__name__)


class CleaningProcessor:
    """Deletes what retention would, at any hour, and what belongs to no topic any more."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    def routes(self) -> Iterable[Route]:
        code, right = RequestCode, Right
        return (
            Route(code.CLEAN_EXPIRED_CONSUMEQUEUE, self.clean_queues, None, right.DELETE),
            Route(code.CLEAN_UNUSED_TOPIC, self.clean_topics, None, right.DELETE),
            Route(code.DELETE_EXPIRED_COMMITLOG, self.clean_log, None, right.DELETE),
        )

    def clean_log(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Have the files deleted that are older than ``fileReservedTime``; the answer does not wait for that."""
        logger.info("old files of the log are deleted by=%s", channel.remote_address)
        self._context.store.delete_expired()
        return RemotingCommand.response(request)

    async def clean_queues(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Delete the files of queues that only lead to where the log is no more.

        The last file of a queue stays, as it tells the next offset. RocketMQ deletes that too: the next message of a
        queue whose messages are all gone has offset 0 there.
        """
        logger.info("old files of queues are deleted by=%s", channel.remote_address)
        await self._context.store.delete_expired_units()
        return RemotingCommand.response(request)

    async def clean_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Delete the queues of topics without settings, but not those of the system."""
        context = self._context
        topics, store = context.topics, context.store
        unused = sorted(
            topic
            for topic in {topic for topic, _ in store.queues()}
            if topics.find(topic) is None and not is_system_topic(topic) and topic not in topics.system_topics
        )
        logger.info("unused topics are deleted by=%s topics=%s", channel.remote_address, unused)
        await asyncio.gather(*(store.delete_topic(topic) for topic in unused))
        return RemotingCommand.response(request)

"""The blocking ``SimpleConsumer``: the asyncio one on an event loop on a daemon thread."""

from __future__ import annotations

from rocketcore.client.blocking import blocking
from rocketcore.client.simple import SimpleConsumer as AsyncSimpleConsumer
from rocketcore.client.sync import HostedConsumer
from rocketcore.client.tracebacks import edge
from rocketcore.message import ReceivedMessage

__all__ = ["SimpleConsumer"]


class SimpleConsumer(HostedConsumer[AsyncSimpleConsumer]):
    """Takes messages as a member of a group, and acknowledges each (POP, 5.x brokers and ours); thread-safe.

    ``invisible`` seconds after it was received a message that is not acknowledged is for any member again; its
    ``change_invisible`` prolongs that.

    namesrv  as in ``Producer``
    config   settings as one object; or its fields as keyword arguments, see ``ConsumerConfig``
    """

    _kind = AsyncSimpleConsumer

    subscribe = blocking(AsyncSimpleConsumer.subscribe)
    unsubscribe = blocking(AsyncSimpleConsumer.unsubscribe)
    flush = blocking(AsyncSimpleConsumer.flush)

    @edge
    def receive(self, max_messages: int = 16, timeout: float = 10.0) -> list[ReceivedMessage]:
        """Return messages, waiting for the first at most ``timeout`` seconds; an empty list when none came.

        Each is invisible to the rest of the group for ``invisible`` seconds: ``ack()`` it in that time.

        raises  ConfigError without a subscription; a broker's refusal, with no message to return
        """
        received: list[ReceivedMessage] = []
        try:
            return self._run(self._consumer.receive_into(received, max_messages, timeout))
        except BaseException:
            # a Ctrl-C while, or just after, the loop took messages: nobody has seen them
            self._call_later(self._consumer.put_back, received)
            raise

    def _in_child(self) -> None:
        super()._in_child()
        if self._forked:
            self._consumer.forked()

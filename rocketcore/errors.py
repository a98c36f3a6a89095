"""Every exception a user of rocketcore can meet, as one tree.

``RocketError`` is the root. Class attributes drive what a caller does next: ``retriable`` (another attempt, possibly at
another broker, may succeed) and ``refresh_route`` (ask the name server again first). A ``BrokerError`` class registers
its response code when it is defined, so that a reply's code finds its class in one look-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from rocketcore.codes import ResponseCode
from rocketcore.printable import printable


class RocketError(Exception):
    """Root of all errors raised by rocketcore. Its text is one printable line, safe for a terminal, though parts of it
    may come from a peer."""

    retriable: ClassVar[bool] = False
    refresh_route: ClassVar[bool] = False

    def __str__(self) -> str:
        return printable(self._text())

    def _text(self) -> str:
        """Return what the error says, as it came."""
        return super().__str__()


class ConfigError(RocketError, ValueError):
    """Wrong use, found before anything was sent."""


class ProtocolError(RocketError):
    """A frame or a body broke the rules of the protocol."""


class LocalProtocolError(ProtocolError):
    """This process tried to send something that the protocol does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol does not allow; its connection is closed."""


class DecodeError(RemoteProtocolError):
    """Bytes that do not decode: why, and at which byte of the input."""

    def __init__(self, reason: str, position: int = -1) -> None:
        super().__init__(reason, position)
        self.reason = reason
        self.position = position

    def _text(self) -> str:
        return self.reason if self.position < 0 else f"{self.reason} (at byte {self.position})"


class FrameTooLarge(DecodeError):
    """A frame claims more bytes than the limit."""


class BadMagic(DecodeError):
    """A stored message does not begin with a known magic code."""


class BadChecksum(DecodeError):
    """A body does not have the CRC-32 that its message carries."""


class TransportError(RocketError):
    """The connection failed, not the request."""

    retriable = True


class ConnectError(TransportError):
    """No connection could be made."""

    refresh_route = True


class ConnectionLost(TransportError):
    """The connection closed while requests were outstanding."""

    refresh_route = True


class RequestTimeout(TransportError):
    """No answer within the deadline; the request may have been carried out."""


class Overloaded(TransportError):
    """A local limit was reached: requests in flight, bytes buffered, or permits."""


_BROKER_ERRORS: dict[int, type[BrokerError]] = {}


class BrokerError(RocketError):
    """A server answered with a code that is not a success.

    ``code`` is the response code, ``remark`` the server's text, ``address`` the server, ``request`` what was asked.
    """

    response_code: ClassVar[int | None] = None

    def __init__(self, code: int, remark: str | None, address: str = "", request: str = "") -> None:
        super().__init__(code, remark, address, request)
        self.code = code
        self.remark = remark or ""
        self.address = address
        self.request = request

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        code = cls.__dict__.get("response_code")
        if code is None:
            return
        if code in _BROKER_ERRORS:
            raise TypeError(f"response code {code} already belongs to {_BROKER_ERRORS[code].__name__}")
        _BROKER_ERRORS[code] = cls

    @staticmethod
    def of(code: int, remark: str | None, address: str = "", request: str = "") -> BrokerError:
        """Return the error for a response code; a plain ``BrokerError`` where no class is registered."""
        return _BROKER_ERRORS.get(code, BrokerError)(code, remark, address, request)

    @property
    def code_name(self) -> str:
        """Name of the response code, or ``CODE_n`` where it has none."""
        try:
            return ResponseCode(self.code).name
        except ValueError:
            return f"CODE_{self.code}"

    def _text(self) -> str:
        asked = f"{self.request} at {self.address}" if self.request and self.address else self.request or self.address
        what = f"{self.code_name} ({self.code}): {' '.join(self.remark.split())}"
        for part, switch in _SWITCHES:
            if part in self.remark:
                what += f"; {switch}=true in the broker's settings has it do so"
        return f"{asked}: {what}" if asked else what


_SWITCHES: Final = (("does not support consumer to filter message by SQL92", "enablePropertyFilter"),)
"""Part of the text of brokers, ours and Apache's, that do not do something unless told to → the setting that tells."""


class BrokerSystemError(BrokerError):
    """SYSTEM_ERROR (1): the request failed inside the server."""

    response_code = ResponseCode.SYSTEM_ERROR
    retriable = True


class SystemBusy(BrokerError):
    """SYSTEM_BUSY (2): the server refused the request to protect itself; nothing was stored."""

    response_code = ResponseCode.SYSTEM_BUSY
    retriable = True


class RequestNotSupported(BrokerError):
    """REQUEST_CODE_NOT_SUPPORTED (3): the server does not know this request."""

    response_code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class MessageRefused(BrokerError):
    """MESSAGE_ILLEGAL (13): the broker refused the message's body, properties or name."""

    response_code = ResponseCode.MESSAGE_ILLEGAL


class ServiceNotAvailable(BrokerError):
    """SERVICE_NOT_AVAILABLE (14): the store takes no messages (disk full, read-only, shutting down, slave)."""

    response_code = ResponseCode.SERVICE_NOT_AVAILABLE
    retriable = True


class NoPermission(BrokerError):
    """NO_PERMISSION (16): the topic, the group or the broker does not allow it."""

    response_code = ResponseCode.NO_PERMISSION
    retriable = True


class TopicNotExist(BrokerError):
    """TOPIC_NOT_EXIST (17): the server has no such topic."""

    response_code = ResponseCode.TOPIC_NOT_EXIST
    retriable = True
    refresh_route = True


class QueryNotFound(BrokerError):
    """QUERY_NOT_FOUND (22): nothing matches the question."""

    response_code = ResponseCode.QUERY_NOT_FOUND


class SubscriptionParseFailed(BrokerError):
    """SUBSCRIPTION_PARSE_FAILED (23): the filter expression does not compile."""

    response_code = ResponseCode.SUBSCRIPTION_PARSE_FAILED


class SubscriptionNotExist(BrokerError):
    """SUBSCRIPTION_NOT_EXIST (24): the broker does not know this consumer's subscription yet."""

    response_code = ResponseCode.SUBSCRIPTION_NOT_EXIST
    retriable = True


class SubscriptionNotLatest(BrokerError):
    """SUBSCRIPTION_NOT_LATEST (25): the broker's copy of the subscription is older than the consumer's."""

    response_code = ResponseCode.SUBSCRIPTION_NOT_LATEST
    retriable = True


class GroupNotExist(BrokerError):
    """SUBSCRIPTION_GROUP_NOT_EXIST (26): the broker has no such consumer group."""

    response_code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


class InvalidParameter(BrokerError):
    """INVALID_PARAMETER (29): a field of the request has a value that is not allowed."""

    response_code = ResponseCode.INVALID_PARAMETER


class NotInCurrentUnit(BrokerError):
    """NOT_IN_CURRENT_UNIT (205)."""

    response_code = ResponseCode.NOT_IN_CURRENT_UNIT
    retriable = True


class NoBuyerId(BrokerError):
    """NO_BUYER_ID (204)."""

    response_code = ResponseCode.NO_BUYER_ID
    retriable = True


class ConsumerNotOnline(BrokerError):
    """CONSUMER_NOT_ONLINE (206): the group has no connected consumer."""

    response_code = ResponseCode.CONSUMER_NOT_ONLINE


class FlowControl(BrokerError):
    """FLOW_CONTROL (215): pull again a little later."""

    response_code = ResponseCode.FLOW_CONTROL
    retriable = True


class GoAway(BrokerError):
    """GO_AWAY (1500): the server is shutting down; ask again over a new connection."""

    response_code = ResponseCode.GO_AWAY
    retriable = True
    refresh_route = True


class ClientError(RocketError):
    """The client itself cannot do what you asked; the brokers play no part."""


class RouteNotFound(ClientError):
    """No name server knows a broker that serves the topic."""

    refresh_route = True


class NotWritable(RouteNotFound):
    """The topic is there, and all its brokers are read-only, or it is so on all of them."""


class NoBrokerRegistered(RouteNotFound):
    """The name servers know no broker at all: they have just started, or no broker has."""

    retriable = True


class MessageIllegal(ClientError):
    """The message breaks a rule that the client checks before sending."""


class ClientClosed(ClientError):
    """The client was closed."""


class PlanOutdated(ClientError):
    """What a plan was made of has changed since; nothing was changed."""


class OffsetsMoved(PlanOutdated):
    """A group has moved since its reset was planned; nothing was changed."""


class ForkedClient(ClientError):
    """The client belongs to the parent process; make a new one after ``fork()``."""


class TransactionAborted(ClientError):
    """The half message of a transaction was not stored as safely as asked; it was rolled back, no work was begun."""

    retriable = True


class PartlyDone(ClientError):
    """Some servers made a change and others did not.

    ``done`` are the addresses that made it, ``failed`` the others, each with its error. A change that ended in
    RequestTimeout may have been done all the same. The call may be repeated: no change of administration does more when
    made twice.
    """

    def __init__(self, request: str, done: Iterable[str], failed: Mapping[str, RocketError]) -> None:
        self.request = request
        self.done = tuple(done)
        self.failed = dict(failed)
        super().__init__(request, self.done, self.failed)

    def _text(self) -> str:
        errors = "; ".join(str(error) for error in self.failed.values())
        return f"{self.request}: done at {', '.join(self.done)}, not at {', '.join(self.failed)} ({errors})"


class PartlySent(PartlyDone):
    """Some batches of a ``send_batch`` are stored and others are not; to call it again sends the stored ones twice.

    ``done`` and ``failed`` name the batches by topic; ``results`` is the BatchResult of the stored batches,
    ``unsent`` has the messages of the others, in their order. A batch that ended in RequestTimeout may be stored.
    """

    def __init__(
        self, done: Iterable[str], failed: Mapping[str, RocketError], results: Any, unsent: Iterable[Any]
    ) -> None:
        super().__init__("send_batch()", done, failed)
        self.results = results
        self.unsent = tuple(unsent)

    def __reduce__(self) -> tuple[type[PartlySent], tuple[object, ...]]:
        return type(self), (self.done, self.failed, self.results, self.unsent)

    def _text(self) -> str:
        errors = "; ".join(str(error) for error in self.failed.values())
        return f"send_batch(): stored in {', '.join(self.done)}, not in {', '.join(self.failed)} ({errors})"


class TopicExists(ClientError):
    """The topic that was to be created is there, on ``brokers``; nothing was changed."""

    def __init__(self, topic: str, brokers: Iterable[str]) -> None:
        self.topic = topic
        self.brokers = tuple(brokers)
        super().__init__(topic, self.brokers)

    def _text(self) -> str:
        return (
            f"topic {self.topic!r} is on {', '.join(self.brokers)}: nothing was changed"
            " (update_topic changes it, create_topic(…, exist_ok=True) leaves it as it is)"
        )


class GroupExists(ClientError):
    """The consumer group that was to be created is there, on ``brokers``; nothing was changed."""

    def __init__(self, group: str, brokers: Iterable[str]) -> None:
        self.group = group
        self.brokers = tuple(brokers)
        super().__init__(group, self.brokers)

    def _text(self) -> str:
        return (
            f"group {self.group!r} is on {', '.join(self.brokers)}: nothing was changed"
            " (update_group changes it, create_group(…, exist_ok=True) leaves it as it is)"
        )


class SendsFailed(ClientError):
    """Messages that ``send_nowait`` took were not sent, and no one has asked their futures.

    ``count`` is how many, ``first`` what the first of them failed with.
    """

    def __init__(self, count: int, first: BaseException) -> None:
        super().__init__(count, first)
        self.count = count
        self.first = first

    def _text(self) -> str:
        return f"{self.count} message{'' if self.count == 1 else 's'} of send_nowait not sent, the first: {self.first}"


class InvisibleTimeOver(ClientError):
    """The message was not acknowledged in time: its broker delivers it again, and takes no word of it any more."""


class AcksFailed(ClientError):
    """Acknowledgements of a ``SimpleConsumer``, or changes of invisible times, that no broker took.

    Those messages are delivered again. ``count`` is how many, ``first`` what the first of them failed with.
    """

    def __init__(self, count: int, first: BaseException) -> None:
        super().__init__(count, first)
        self.count = count
        self.first = first

    def _text(self) -> str:
        return f"{self.count} message{'' if self.count == 1 else 's'} not acknowledged, the first: {self.first}"


class StoreError(RocketError):
    """The message store failed."""


class StoreCorrupted(StoreError):
    """A store file holds what it must not; the text names the file and the position."""


class StoreFull(StoreError):
    """The disk is full, or so full that the store takes no more."""


class StoreLocked(StoreError):
    """Another process uses the store folder."""


class OffsetOutOfRange(StoreError):
    """A queue offset outside the queue's bounds."""

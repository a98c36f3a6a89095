"""RocketMQ for Python: clients, name server, broker and command line in one package.

The names here are the blocking ones; ``rocketcore.aio`` has the same for asyncio. Nothing is imported, computed or
started before a name is used (PEP 562).
"""

from __future__ import annotations

import logging as _logging
from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocketcore import aio
    from rocketcore.admin.client import Admin
    from rocketcore.client.arrow import read_arrow
    from rocketcore.client.config import ConsumerConfig, ProducerConfig
    from rocketcore.client.future import SendFuture
    from rocketcore.client.sync import PullConsumer, PushConsumer
    from rocketcore.client.sync_producer import Producer
    from rocketcore.client.sync_simple import SimpleConsumer
    from rocketcore.errors import (
        AcksFailed,
        BrokerError,
        ClientClosed,
        ClientError,
        ConfigError,
        ForkedClient,
        GroupExists,
        InvisibleTimeOver,
        MessageIllegal,
        Overloaded,
        PartlyDone,
        PartlySent,
        RequestTimeout,
        RocketError,
        RouteNotFound,
        SendsFailed,
        TopicExists,
        TopicNotExist,
        TransactionAborted,
        TransportError,
    )
    from rocketcore.local import LocalCluster
    from rocketcore.message import (
        BatchResult,
        ConsumeResult,
        Message,
        MessageQueue,
        ReceivedMessage,
        ReplyFuture,
        RetryLater,
        SendResult,
        SendStatus,
        TransactionState,
    )
    from rocketcore.transport.tls.settings import TlsConfig

_MODULES = {
    "AcksFailed": "errors",
    "Admin": "admin.client",
    "BatchResult": "send_result",
    "BrokerError": "errors",
    "ClientClosed": "errors",
    "ClientError": "errors",
    "ConfigError": "errors",
    "ConsumeResult": "message",
    "ConsumerConfig": "client.config",
    "ForkedClient": "errors",
    "GroupExists": "errors",
    "InvisibleTimeOver": "errors",
    "LocalCluster": "local",
    "Message": "message",
    "MessageIllegal": "errors",
    "MessageQueue": "message",
    "Overloaded": "errors",
    "PartlyDone": "errors",
    "PartlySent": "errors",
    "Producer": "client.sync_producer",
    "ProducerConfig": "client.config",
    "PullConsumer": "client.sync",
    "PushConsumer": "client.sync",
    "ReceivedMessage": "message",
    "ReplyFuture": "send_result",
    "RequestTimeout": "errors",
    "RetryLater": "message",
    "RocketError": "errors",
    "RouteNotFound": "errors",
    "SendFuture": "client.future",
    "SendResult": "send_result",
    "SendStatus": "send_result",
    "SendsFailed": "errors",
    "SimpleConsumer": "client.sync_simple",
    "TlsConfig": "transport.tls.settings",
    "TopicExists": "errors",
    "TopicNotExist": "errors",
    "TransactionAborted": "errors",
    "TransactionState": "message",
    "TransportError": "errors",
    "read_arrow": "client.arrow",
}

__all__ = [
    "AcksFailed",
    "Admin",
    "BatchResult",
    "BrokerError",
    "ClientClosed",
    "ClientError",
    "ConfigError",
    "ConsumeResult",
    "ConsumerConfig",
    "ForkedClient",
    "GroupExists",
    "InvisibleTimeOver",
    "LocalCluster",
    "Message",
    "MessageIllegal",
    "MessageQueue",
    "Overloaded",
    "PartlyDone",
    "PartlySent",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "ReplyFuture",
    "RequestTimeout",
    "RetryLater",
    "RocketError",
    "RouteNotFound",
    "SendFuture",
    "SendResult",
    "SendStatus",
    "SendsFailed",
    "SimpleConsumer",
    "TlsConfig",
    "TopicExists",
    "TopicNotExist",
    "TransactionAborted",
    "TransactionState",
    "TransportError",
    "__version__",
    "aio",
    "read_arrow",
]

__version__ = "0.1.0"

_logging.getLogger(__name__).addHandler(_logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name == "aio":
        return _import_module("rocketcore.aio")
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

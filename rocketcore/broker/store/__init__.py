"""The message store: commit log, consume queues, recovery. It knows files and messages, not requests."""

from rocketcore.errors import ConfigError

try:
    import rocketcore._fast.mapped  # noqa: F401 - whether it is there
except ModuleNotFoundError:
    raise ConfigError(
        "this build of rocketcore has no kernels for brokers: they need Linux and a build without ROCKETCORE_PORTABLE"
    ) from None

from rocketcore.broker.store.config import FlushDiskType, StoreConfig
from rocketcore.broker.store.index.index_query import IndexQuery, QueryResult
from rocketcore.broker.store.log.pages import Cold
from rocketcore.broker.store.message_store import MessageStore
from rocketcore.broker.store.reading.reader import MAX_RECORDS
from rocketcore.broker.store.values import GetResult, GetStatus, PutResult, PutRows, PutStatus, StoredMessage

__all__ = [
    "MAX_RECORDS",
    "Cold",
    "FlushDiskType",
    "GetResult",
    "GetStatus",
    "IndexQuery",
    "MessageStore",
    "PutResult",
    "PutRows",
    "PutStatus",
    "QueryResult",
    "StoreConfig",
    "StoredMessage",
]

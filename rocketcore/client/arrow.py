"""Topics as Arrow tables: ``read_arrow`` reads them, ``send_arrow`` fills them; no Python object per row.

Public as ``rocketcore.read_arrow`` and as the method ``send_arrow`` of both producers. Needs pyarrow and numpy (extra
``arrow``).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from rocketcore.client.attempts import Retries
from rocketcore.client.config import ClientConfig, NameServers, name_server_list
from rocketcore.client.instance import ClientInstance
from rocketcore.client.loop_client import LoopClient
from rocketcore.client.sender import Sender
from rocketcore.errors import ConfigError
from rocketcore.filter import SUBSCRIBE_ALL
from rocketcore.transport.tls.settings import TlsOption

try:
    import numpy  # noqa: F401 - the columns below are made with it
    import pyarrow as pa
except ImportError as error:
    raise ConfigError(f"Arrow tables need {error.name}: pip install 'rocketcore[arrow]'") from error

from rocketcore.client.arrow_batches import DEFAULT_COLUMNS
from rocketcore.client.arrow_delivery import BATCH_BYTES
from rocketcore.client.arrow_ranges import find_ranges
from rocketcore.client.arrow_reader import RangeReader, ReadSettings
from rocketcore.client.arrow_sender import RecordBatchSender, SendSettings, SendSummary

__all__ = ["SendSummary", "read_arrow", "send_arrow"]

_PARTITION_BITS = 32
_READ_THE_REST = "on_damage='skip' reads the others"


def read_arrow(
    namesrv: NameServers = None,
    *,
    topic: str,
    start: Literal["first", "last"] | datetime = "first",
    end: Literal["first", "last"] | datetime = "last",
    columns: Sequence[str] = DEFAULT_COLUMNS,
    tag: str = SUBSCRIBE_ALL,
    on_damage: Literal["raise", "skip"] = "raise",
    timeout: float = 10.0,
    tls: TlsOption = False,
) -> pa.Table:
    """Read a topic as a table, one row a message.

    namesrv     as for ``Producer``
    start, end  in each queue: "first", "last" (after the message that is last now), or the store time to begin at
    columns     topic, brokerName, queueId, queueOffset, msgId, tags, keys, body, bornTimestamp, storeTimestamp; on
                request also properties, bornHost, storeHost, flag, sysFlag, reconsumeTimes, commitLogOffset, storeSize
    tag         tag expression, for example ``a || b``
    on_damage   for a message with a wrong checksum, or whose body does not decompress: "raise", or "skip" it, with a
                warning that names queue and offset
    timeout     seconds for one request
    tls         as for ``Producer``
    returns     pyarrow.Table in the order of the queues; times are timestamp[us, UTC], body is binary
    raises      RouteNotFound, OffsetOutOfRange when messages disappear meanwhile, DecodeError for a damaged message,
                ConfigError for a wrong argument
    """
    if isinstance(start, datetime) and isinstance(end, datetime) and start.timestamp() > end.timestamp():
        raise ConfigError(f"start lies behind end: {start} and {end}")
    if on_damage not in ("raise", "skip"):
        raise ConfigError(f"on_damage must be 'raise' or 'skip', got {on_damage!r}")
    config = ClientConfig(namesrv=name_server_list(namesrv), timeout=timeout, tls=tls)
    settings = ReadSettings(
        columns=tuple(columns),
        tags=tag,
        if_damaged=_READ_THE_REST if on_damage == "raise" else None,
        timeout=timeout,
        fetch_timeout=3 * timeout,
    )
    # Pulls go on in the client's thread while this one decodes.
    with LoopClient(config) as client:
        reader = client.run(_reader(client.instance, topic, start, end, settings))
        return pa.Table.from_batches(reader.record_batches(client.run), settings.schema)


async def _reader(
    instance: ClientInstance,
    topic: str,
    start: Literal["first", "last"] | datetime,
    end: Literal["first", "last"] | datetime,
    settings: ReadSettings,
) -> RangeReader:
    route = await instance.route(topic)
    retries = Retries(settings.fetch_timeout, instance.clock)
    ranges = await find_ranges(instance, route.subscribe, start, end, retries, settings.timeout)
    return RangeReader(instance, ranges, settings)


async def send_arrow(
    producer: Sender,
    topic: str,
    record_batch: pa.RecordBatch | pa.Table,
    *,
    body: str,
    keys: str | None = None,
    tag: str | None = None,
    properties: str | None = None,
    message_group: str | None = None,
) -> SendSummary:
    """Send each row of a record batch, or of a table, as a message of a topic.

    body           name of the column with the bodies: binary or string, no nulls
    keys           of the column with the keys: string, whole number, or list of them
    tag            of the column with the tags
    properties     of the column with further properties: map<string, string>
    message_group  of the column with the groups: rows of one group go to one queue, in order
    record_batch   of a file that somebody else wrote it is to be checked, with its ``validate(full=True)``; here only
                   the ends of its columns are (pyarrow.ArrowInvalid)
    returns        SendSummary, after every row is stored
    raises         ConfigError for a column that is missing or has the wrong type, MessageIllegal naming the row that no
                   broker takes (the rows before it may be sent), and what ``Producer.send_batch`` raises
    """
    names = {"body": body, "keys": keys, "tags": tag, "properties": properties, "shardingKey": message_group}
    wanted = {role: name for role, name in names.items() if name is not None}
    missing = [name for name in wanted.values() if name not in record_batch.schema.names]
    if missing:
        raise ConfigError(f"no column {missing[0]!r}; the columns are {', '.join(record_batch.schema.names)}")
    config = producer.config
    settings = SendSettings(
        topic=topic,
        write_id=secrets.randbits(64),
        partition=secrets.randbits(_PARTITION_BITS),
        ordered=message_group is not None,
        timeout=config.timeout,
        delivery_timeout=config.timeout * (1 + config.retries),
        batch_bytes=min(BATCH_BYTES, config.max_message_bytes),
    )
    sender = RecordBatchSender(producer, settings)
    batches = [record_batch] if isinstance(record_batch, pa.RecordBatch) else record_batch.to_batches()
    try:
        for batch in batches:
            await sender.send(pa.RecordBatch.from_arrays([batch[name] for name in wanted.values()], list(wanted)))
        return await sender.finish()
    finally:
        await sender.abandon()

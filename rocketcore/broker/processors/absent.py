"""What tools ask of parts that this broker has none of: copies (907), the flow control of cold reads (2001 to 2004), a
store of its own for what was popped (200056).

A question is answered as by a broker without them. Thresholds of cold reads are kept until the next start and shown,
and how the log is read ahead is kept as the setting dataReadAheadEnable: nothing here obeys either, as messages that
are not in memory are read by threads of their own, which hold up nobody.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

from rocketcore.broker.context import BrokerContext
from rocketcore.broker.state.live_settings import LiveSettings
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.config_file import parse_properties
from rocketcore.errors import BrokerError
from rocketcore.naming import is_legal_group
from rocketcore.protocol.bodies.replication import HARuntimeInfo
from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route

_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,18}")
_MOST_GROUPS: Final = 10_000
"""Groups with a threshold of their own."""
_READ_AHEAD: Final = {"0": "true", "1": "false"}
"""By mode, MADV_NORMAL and MADV_RANDOM, what ``dataReadAheadEnable`` becomes."""
_COLD_READS: Final = {"cgColdReadThreshold": 3 << 20, "globalColdReadThreshold": 100 << 20, "globalAcc": 0}
"""RocketMQ's defaults."""


class AbsentProcessor:
    """Answers for what is not there."""

    def __init__(self, context: BrokerContext, live: LiveSettings) -> None:
        self._context = context
        self._live = live
        self._thresholds: dict[str, int] = {}

    def routes(self) -> Iterable[Route]:
        code, right = RequestCode, Right
        return (
            Route(code.GET_BROKER_HA_STATUS, self.ha_status, None, right.GET),
            Route(code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, self.set_thresholds, None, right.UPDATE),
            Route(code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, self.remove_threshold, None, right.UPDATE),
            Route(code.GET_COLD_DATA_FLOW_CTR_INFO, self.cold_reads, None, right.GET),
            Route(code.SET_COMMITLOG_READ_MODE, self.set_read_ahead, None, right.UPDATE),
            Route(code.POP_ROLLBACK, self.bring_back_popped, None, right.UPDATE),
        )

    def ha_status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """A master without slaves."""
        info = HARuntimeInfo(master=True, master_commit_log_max_offset=self._context.store.max_physical_offset)
        return RemotingCommand.response(request, body=info.encode())

    def bring_back_popped(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Say that what was popped is in the log: it is nowhere else, as on Apache's without RocksDB."""
        return RemotingCommand.response(request)

    def cold_reads(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """The thresholds, and that nobody reads what is cold."""
        told = {"runtimeTable": {}, "configTable": self._thresholds, **_COLD_READS}
        return RemotingCommand.response(request, body=json.dumps(told).encode())

    def set_thresholds(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Take the bytes that groups may read from disk in a period; what is no number is passed over."""
        changes = {}
        for group, text in parse_properties(request.body.decode(errors="replace")).items():
            if is_legal_group(group) and _NUMBER.fullmatch(text.strip()):
                changes[group] = int(text)
        if len(self._thresholds.keys() | changes) > _MOST_GROUPS:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, f"more than {_MOST_GROUPS} groups with a threshold")
        self._thresholds |= changes
        return RemotingCommand.response(request)

    def remove_threshold(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        self._thresholds.pop(request.body.decode(errors="replace"), None)
        return RemotingCommand.response(request)

    async def set_read_ahead(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        mode = (request.ext_fields or {}).get("READ_AHEAD_MODE", "")
        if not _NUMBER.fullmatch(mode):
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, "set commitlog readahead mode failed")
        if mode not in _READ_AHEAD:
            raise BrokerError.of(ResponseCode.INVALID_PARAMETER, "set commitlog readahead mode param value error")
        context, live = self._context, self._live
        live.change(context.config, context.store.config, {"dataReadAheadEnable": _READ_AHEAD[mode]})
        context.writer.save(live.file, live.encode)
        await context.writer.flushed()
        return RemotingCommand.response(request, remark=f"set commitlog readahead mode success, mode: {mode}")

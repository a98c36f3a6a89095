"""What tools ask of parts that this broker has none of: copies (907), the flow control of cold reads (2001 to 2004).

A question is answered as by a broker without them. A change is refused: the answer 0 says that something was done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from rocketcore.broker.context import BrokerContext
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.errors import BrokerError
from rocketcore.protocol.bodies.replication import HARuntimeInfo
from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route

_NO_COLD_READS = (
    "messages that are not in memory are read by threads of their own, which hold up nobody: there is no flow control "
    "of cold reads, and no read-ahead, to be changed"
)
_COLD_READS = {
    "runtimeTable": {},
    "configTable": {},
    "cgColdReadThreshold": 0,
    "globalColdReadThreshold": 0,
    "globalAcc": 0,
}


class AbsentProcessor:
    """Answers for what is not there."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    def routes(self) -> Iterable[Route]:
        code, right = RequestCode, Right
        return (
            Route(code.GET_BROKER_HA_STATUS, self.ha_status, None, right.GET),
            Route(code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, self.refuse_cold_reads, None, right.UPDATE),
            Route(code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, self.refuse_cold_reads, None, right.UPDATE),
            Route(code.GET_COLD_DATA_FLOW_CTR_INFO, self.cold_reads, None, right.GET),
            Route(code.SET_COMMITLOG_READ_MODE, self.refuse_cold_reads, None, right.UPDATE),
        )

    def ha_status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """A master without slaves."""
        info = HARuntimeInfo(master=True, master_commit_log_max_offset=self._context.store.max_physical_offset)
        return RemotingCommand.response(request, body=info.encode())

    def cold_reads(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(request, body=json.dumps(_COLD_READS).encode())

    def refuse_cold_reads(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        raise BrokerError.of(ResponseCode.NO_PERMISSION, _NO_COLD_READS)

"""A name server and broker in one that says what a test wants it to: of one topic ``T`` with one queue."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any, Self

from rocketcore._fast.record import encode_stored
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.protocol.command import RemotingCommand
from rocketcore.transport.routes import Route
from rocketcore.transport.server.server import RemotingServer

__all__ = ["LyingBroker", "Pull", "record"]

Pull = Callable[[int, int], tuple[int, bytes]]
"""Takes the offset asked for and the number of messages; returns the offset to go on at, and the records; may wait."""

_HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
_MILLIS = 1_700_000_000_000


def record(queue_offset: int, body: bytes = b"x", *, topic: bytes = b"T", sys_flag: int = 0) -> bytes:
    """Return a message as brokers send it."""
    return encode_stored(
        topic=topic, queue_id=0, flag=0, queue_offset=queue_offset, physical_offset=queue_offset * 100,
        sys_flag=sys_flag, born_timestamp=_MILLIS, born_host=_HOST, store_timestamp=_MILLIS, store_host=_HOST,
        reconsume_times=0, prepared_offset=0, body=body, properties=b"",
    )  # fmt: skip


class LyingBroker:
    """Serves in a thread of its own from the beginning of the context to its end.

    end  offset of the queue's end
    """

    def __init__(self, pull: Pull, end: int) -> None:
        self.address = ""
        self._pull = pull
        self._end = end
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _run(self) -> None:
        server = RemotingServer(name="lying")
        codes = (
            RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_TOPIC_STATS_INFO,
            RequestCode.PULL_MESSAGE, RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET, RequestCode.HEART_BEAT,
            RequestCode.UNREGISTER_CLIENT, RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        )  # fmt: skip
        server.add_routes([Route(code, self._answer, header_limit=1 << 16, body_limit=1 << 20) for code in codes])
        await server.start()
        self.address = server.address
        self._ready.set()
        await self._stop.wait()
        await server.stop()

    async def _answer(self, _: object, request: RemotingCommand) -> RemotingCommand:
        answer, fields = RemotingCommand.response(request), request.ext_fields or {}
        body: dict[str, Any] | None = None
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            queues = {"brokerName": "b", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1, "topicSysFlag": 0}
            broker = {"brokerName": "b", "cluster": "c", "brokerAddrs": {"0": self.address}}
            body = {"brokerDatas": [broker], "queueDatas": [queues], "filterServerTable": {}}
        elif request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            broker = {"brokerName": "b", "cluster": "c", "brokerAddrs": {"0": self.address}}
            body = {"brokerAddrTable": {"b": broker}, "clusterAddrTable": {"c": ["b"]}}
        elif request.code == RequestCode.GET_TOPIC_STATS_INFO:
            limits = f'{{"lastUpdateTimestamp":1,"maxOffset":{self._end},"minOffset":0}}'
            table = f'{{"offsetTable":{{{{"brokerName":"b","queueId":0,"topic":"T"}}:{limits}}}}}'
            answer.body = table.encode()
        elif request.code == RequestCode.GET_MAX_OFFSET:
            answer.ext_fields = {"offset": str(self._end)}
        elif request.code == RequestCode.GET_MIN_OFFSET:
            answer.ext_fields = {"offset": "0"}
        elif request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            answer.code = ResponseCode.QUERY_NOT_FOUND
        elif request.code == RequestCode.PULL_MESSAGE:
            offset, count = int(fields["queueOffset"]), int(fields["maxMsgNums"])
            following, records = await asyncio.to_thread(self._pull, offset, count)
            answer.ext_fields = {
                "suggestWhichBrokerId": "0", "nextBeginOffset": str(following),
                "minOffset": "0", "maxOffset": str(self._end),
            }  # fmt: skip
            answer.body = records
        if body is not None:
            answer.body = json.dumps(body).encode()
        return answer

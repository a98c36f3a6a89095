"""A page of the log that the disk does not give any more: an error of the pulls that need it, and of nothing else."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

from rocketcore.broker.record import RecordReader
from rocketcore.codes import RequestCode, ResponseCode
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.message import PullMessageRequestHeader
from rocketcore.transport.client import RemotingClient
from tests.fixtures.processes import Processes
from tests.integration.test_broker_kill import QUEUES, TIMEOUT, send_request

PAGE = os.sysconf("SC_PAGESIZE")
COUNT = 60 * QUEUES


def pull_request(queue_offset: int) -> RemotingCommand:
    header = PullMessageRequestHeader(
        consumer_group="g",
        topic="T",
        queue_id=0,
        queue_offset=queue_offset,
        max_msg_nums=32,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription="*",
    )
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, header)


def test_a_broker_lives_on_when_its_log_cannot_be_read(processes: Processes, tmp_path: Path) -> None:
    store = tmp_path / "store"
    broker = processes.broker("127.0.0.1:1", store=store)
    log = store / "commitlog" / f"{0:020d}"

    async def run() -> None:
        async with RemotingClient() as client:

            async def ask(request: RemotingCommand) -> RemotingCommand:
                return await client.invoke(broker.address, request, TIMEOUT)

            async def pull(queue_offset: int) -> tuple[int, list[int]]:
                answer = await ask(pull_request(queue_offset))
                return answer.code, [int(record.message.body) for record in RecordReader(100).read(answer.body)]

            for number in range(COUNT):
                assert (await ask(send_request(number))).code == ResponseCode.SUCCESS
            assert await pull(0) == (ResponseCode.SUCCESS, list(range(0, 32 * QUEUES, QUEUES)))
            size = log.stat().st_size
            os.truncate(log, PAGE)
            code, readable = await pull(0)
            assert code == ResponseCode.SUCCESS
            assert readable == list(range(0, len(readable) * QUEUES, QUEUES))
            answer = await ask(pull_request(len(readable)))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert re.search(rf"the page at byte \d+ cannot be read: '{re.escape(str(log))}'", str(answer.remark))
            # The same connection, the same queue, a place that can be read again.
            os.truncate(log, size)
            assert (await ask(send_request(COUNT))).code == ResponseCode.SUCCESS
            assert await pull(COUNT // QUEUES) == (ResponseCode.SUCCESS, [COUNT])

    asyncio.run(run())
    assert broker.process.poll() is None

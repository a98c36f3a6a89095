"""Children of a process that has used clients and a LocalCluster: they end as any process does, and spoil nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import rocketcore as rmq
from rocketcore.local import LocalCluster

pytestmark = pytest.mark.timeout(120)

ENDINGS = {"returns": 0, "sys.exit": 0, "sys.exit(3)": 3, "raises": 1, "os._exit": 0, "closes": 0}
"""How a child ends, and its exit code."""

PROGRAM = """
    import asyncio, json, os, signal, sys, threading, time
    import rocketcore as rmq
    from rocketcore import aio

    namesrv, topic, group = sys.argv[1:4]
    endings = sys.argv[4:]

    producer = rmq.Producer(namesrv, group=group)
    producer.send_nowait(topic, b"x").result(30)
    traced = rmq.Producer(namesrv, group=group, trace=True)
    traced.send(topic, b"x")
    pull = rmq.PullConsumer(namesrv, group=group + "-pull", start_from="first")
    pull.subscribe(topic)
    pull.poll(5.0)
    push = rmq.PushConsumer(namesrv, group=group + "-push")
    push.subscribe(topic, handler=lambda message: None)
    push.start()
    simple = rmq.SimpleConsumer(namesrv, group=group + "-simple")
    simple.subscribe(topic)
    simple.receive(1, 0.1)
    async def main():
        async with aio.Producer(namesrv, group=group + "-aio") as of_loop:
            await of_loop.send(topic, b"x")
    asyncio.run(main())
    clients = [producer, traced, pull, push, simple]

    def end(how):
        if how == "sys.exit": sys.exit()
        if how == "sys.exit(3)": sys.exit(3)
        if how == "os._exit": os._exit(0)
        if how == "raises": raise RuntimeError("of the child")
        if how == "closes":
            for client in clients: client.close()

    statuses = {}
    for how in endings:
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            sys.stderr = open(os.devnull, "w")
            end(how)
            sys.exit() if how == "closes" else None
            break
        statuses[how] = os.waitpid(pid, 0)[1]
    else:
        deadline = time.monotonic() + 10  # a thread that has ended is seen for a moment longer
        while (native := len(os.listdir("/proc/self/task")) - threading.active_count()) and time.monotonic() < deadline:
            time.sleep(0.01)
        for client in clients: client.close()
        print(json.dumps([statuses, native]))
"""


def test_a_child_ends_as_any_process(cluster: LocalCluster, make_topic, group: str) -> None:  # type: ignore[no-untyped-def]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), cluster.namesrv, make_topic(), group, *ENDINGS],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    statuses, native = json.loads(done.stdout)
    assert {how: os.waitstatus_to_exitcode(status) for how, status in statuses.items()} == ENDINGS
    assert native == 0, "threads that Python does not know, as libuv's pool has"


@pytest.mark.parametrize("in_process", [True, False])
def test_a_child_leaves_the_cluster_to_its_parent(in_process: bool, tmp_path: Path) -> None:
    with LocalCluster(in_process=in_process) as cluster:
        with rmq.Admin(cluster.namesrv) as admin:
            admin.create_topic("T", 1)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with rmq.Producer(cluster.namesrv, group="child") as producer:
                    producer.send("T", b"from the child")
                for call in (cluster.check, cluster.stop_broker, cluster.start_broker):
                    try:
                        call()
                    except rmq.ForkedClient:
                        continue
                    os._exit(2)
                cluster.__exit__(None, None, None)
                cluster.stop()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        cluster.check()
        with rmq.Producer(cluster.namesrv, group="parent") as producer:
            assert producer.send("T", b"from the parent").offset == 1
        store = cluster.store
        assert store.is_dir()
    assert not store.exists()


CHILDREN = """
    import concurrent.futures, multiprocessing, sys
    import rocketcore as rmq

    how, executor, namesrv, topic, group = sys.argv[1:6]
    inherited = None

    def work(fails=False):
        producer = inherited or rmq.Producer(namesrv, group=group, linger=0.5)
        for number in range(10):
            producer.send_nowait(topic, str(number))
        globals()["kept"] = producer
        if fails:
            raise RuntimeError("of the child")

    if __name__ == "__main__":
        if how == "inherits":
            inherited = rmq.Producer(namesrv, group=group, linger=0.5)
            inherited.send_nowait(topic, b"parent").result(30)
        context = multiprocessing.get_context("fork" if how == "inherits" else how)
        if executor == "pool":
            with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
                pool.submit(work).result(30)
        else:
            process = context.Process(target=work, args=(executor == "fails",))
            process.start()
            process.join(30)
            assert process.exitcode == (executor == "fails"), process.exitcode
"""


@pytest.mark.parametrize("executor", ["process", "fails", "pool"])
@pytest.mark.parametrize("how", ["fork", "inherits", "forkserver", "spawn"])
def test_children_of_multiprocessing_send_what_they_were_given(
    cluster: LocalCluster, make_topic: Callable[..., str], group: str, tmp_path: Path, how: str, executor: str
) -> None:
    topic = make_topic(queues=1)
    program = tmp_path / "children.py"  # spawn and forkserver import it
    program.write_text(textwrap.dedent(CHILDREN))
    command = [sys.executable, str(program), how, executor, cluster.namesrv, topic, group]
    subprocess.run(command, check=True, timeout=60, stderr=subprocess.DEVNULL)
    with rmq.Admin(cluster.namesrv) as admin:
        stored = sum(each.max_offset - each.min_offset for each in admin.topic_stats(topic).values())
    assert stored == 10 + (how == "inherits")

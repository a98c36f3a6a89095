"""Members of one group that disagree, as one of them says; without waiting for its next look."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rocketcore.client.group_check import GroupCheck
from rocketcore.client.pull import PullConsumer
from rocketcore.local import LocalCluster

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("same_topic", "instance_name", "tag", "told"),
    [
        (True, "", None, []),
        (True, "", "a", ["members of the group subscribe to different things"]),
        (False, "", None, ["members of the group subscribe to different things"]),
        (True, "app", None, ["another member of the group has the client id of this one"]),
    ],
)
def test_what_a_member_says_of_its_group(
    same_topic: bool,
    instance_name: str,
    tag: str | None,
    told: list[str],
    cluster: LocalCluster,
    make_topic: Callable[..., str],
    group: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        topic = make_topic()
        first = PullConsumer(cluster.namesrv, group=group, instance_name=instance_name)
        second = PullConsumer(cluster.namesrv, group=group, instance_name=instance_name)
        await first.subscribe(topic)
        await second.subscribe(topic if same_topic else make_topic(), tag=tag)
        async with first, second:
            check = GroupCheck(first)
            for _ in range(3):
                await check.look()

    asyncio.run(main())
    texts = [record.getMessage() for record in caplog.records if record.name == "rocketcore.client.group_check"]
    assert [text.partition(",")[0] for text in texts] == told

"""Subscriptions as brokers see them: the newest version counts, so each change has a higher one."""

from __future__ import annotations

import pytest

from rocketcore.client.config import ConsumerConfig
from rocketcore.client.subscriber import Subscriber
from rocketcore.service import ManualClock


@pytest.mark.parametrize("step", [-3600, -0.001, 0, 3600])
def test_each_change_has_a_higher_version_whatever_the_clock_does(step: float) -> None:
    clock = ManualClock()
    subscriber = Subscriber(ConsumerConfig(group="g"), clock)
    versions = []
    for topic, tag in [("T", "a"), ("T", "b"), ("U", "a"), ("T", "c")]:
        assert subscriber.add_subscription(topic, tag, None)
        found = subscriber.find_subscription(topic)
        assert found is not None
        versions.append(found.sub_version)
        clock.set_wall(clock.time_millis() + round(step * 1000))
    assert versions == sorted(set(versions))
    assert versions[0] == ManualClock().time_millis()

"""Chosen dead letters: what became of each, and how far redrives are then."""

from __future__ import annotations

from dataclasses import replace

import rocketcore as rmq
from rocketcore.admin.client import Admin
from rocketcore.local import LocalCluster
from rocketcore.message_queue import MessageQueue


def test_each_has_its_outcome_and_the_mark_moves_over_those_without_a_gap(cluster: LocalCluster, group: str) -> None:
    topic = f"%DLQ%{group}"
    queue = MessageQueue(topic, "broker-a", 0)
    with Admin(cluster.namesrv) as admin:
        admin.create_group(group)
        admin.create_topic(topic, 1)
        with rmq.Producer(cluster.namesrv, group="redrive-tests") as producer:
            for number in range(4):
                producer.send(topic, str(number).encode(), queue=queue)
        letters = admin.dead_letters(queue, 0)

        def redriven() -> int:
            return next(each.redriven for each in admin.dead_letter_queues(group) if each.queue == queue)

        assert [each.state for each in admin.redrive_each(group, [letters[1]])] == ["done"]
        assert redriven() == 0
        assert [each.state for each in admin.redrive_each(group, [letters[0], letters[2]])] == ["done", "done"]
        assert redriven() == 1  # the one before is not known to have been redriven in an earlier call
        assert admin.redrive_each(group, []) == []
        nowhere = replace(letters[3], physical_offset=1 << 40)
        [failed] = admin.redrive_each(group, [nowhere])
        assert (failed.state, failed.message) == ("failed", nowhere)
        assert failed.error is not None
        admin.timeout = 1e-9
        [late] = admin.redrive_each(group, [letters[3]])
        assert late.state in ("failed", "unknown")
        admin.timeout = 5.0
        assert redriven() == 1

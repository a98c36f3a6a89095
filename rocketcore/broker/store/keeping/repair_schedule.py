"""Repairs of queues while the store runs: which are under way, and what came of them (``queue_repair`` is one of them).

They run on the save thread between its saves, and write under the save lock.
"""

from __future__ import annotations

from rocketcore.broker.store.keeping.queue_saver import QueueSaver
from rocketcore.broker.store.log.commit_log import CommitLog
from rocketcore.broker.store.queues.consume_queue import ConsumeQueue
from rocketcore.broker.store.queues.queue_repair import Damage, Repair
from rocketcore.broker.store.writing.committer import Committer

__all__ = ["QueueRepairs"]


class QueueRepairs:
    """Loop thread only, except what ``Repair`` does.

    repaired  repairs done since the start; lost: messages of those queues that the log does not hold any more
    """

    def __init__(self, log: CommitLog, committer: Committer, saver: QueueSaver, levels: tuple[int, ...]) -> None:
        self.repaired = 0
        self.lost = 0
        self._log = log
        self._committer = committer
        self._saver = saver
        self._queues = saver.queues
        self._levels = levels
        self._under_way: set[ConsumeQueue] = set()

    def begin(self, queue: ConsumeQueue, queue_offset: int) -> str:
        """Have a queue that is damaged at an offset repaired from the log; says what is done."""
        if self._committer.read_only_reason is not None:
            return f"it is not repaired: {self._committer.read_only_reason}"
        if queue not in self._under_way:
            self._under_way.add(queue)
            self._saver.do(self._repair(queue, queue_offset))
        return "it is repaired from the log, ask again"

    def repairs(self, topic: str, queue_id: int) -> bool:
        """Whether a queue that was found damaged is being repaired; it is to be read again after that."""
        queue = self._queues.find(topic, queue_id)
        return queue is not None and queue in self._under_way

    def are_under_way(self, queue: ConsumeQueue | None = None) -> bool:
        """Whether a queue is being repaired; None: any."""
        return bool(self._under_way) if queue is None else queue in self._under_way

    async def _repair(self, queue: ConsumeQueue, queue_offset: int) -> None:
        saver = self._saver
        try:
            # One that does not run: the damage was found by a start that failed before it came to us.
            if not saver.runs or queue_offset >= queue.saved:
                return
            following = queue.first_unsaved()
            damage = Damage(
                queue,
                queue_offset,
                queue.min_offset,
                queue.saved,
                following if following >= 0 else self._committer.durable_offset,
                max(self._log.min_offset, saver.notes.deleted.end(queue.topic)),
            )
            repair = Repair(self._log, self._queues.files, self._levels, damage)
            while not await saver.run(repair.step):
                pass
            async with saver.lock:
                # The files of a topic that was deleted meanwhile are gone, or those of a new one of its name.
                is_there = self._queues.find(queue.topic, queue.queue_id) is queue
                if self._committer.read_only_reason is not None or not is_there:
                    return
                await saver.run(repair.write)
                self._queues.files.forget(queue.topic)
                self.repaired += 1
                self.lost += repair.lost
        except Exception as error:
            saver.failed(error)
        finally:
            self._under_way.discard(queue)

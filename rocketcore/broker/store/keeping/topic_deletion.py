"""Deletion of topics (Java: ``DefaultMessageStore.deleteTopics``).

A topic is forgotten at once, that is noted, and only then do the files of its queues go: a crash in between must not
bring the topic back. A start removes what such a crash left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set
from functools import partial

from rocketcore.broker.store.keeping.queue_saver import QueueSaver
from rocketcore.broker.store.log.commit_log import CommitLog
from rocketcore.broker.store.notes.queue_bounds import unpack_rows
from rocketcore.broker.store.writing.dispatch import Dispatcher
from rocketcore.errors import StoreError

__all__ = ["TopicDeletion"]

logger = logging.getLogger(__name__)


class TopicDeletion:
    """Loop thread only, except the removal of files.

    anything_waits  returns whether messages wait in the log that may be for any topic
    """

    def __init__(
        self, log: CommitLog, dispatcher: Dispatcher, saver: QueueSaver, anything_waits: Callable[[], bool]
    ) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self._saver = saver
        self._queues = saver.queues
        self._deleted = saver.notes.deleted
        self._anything_waits = anything_waits

    def remove_left(self) -> None:
        """At a start: remove the files of deleted topics that a crash left behind the note of the deletion."""
        try:
            left = self._deleted.before.keys() & set(self._queues.files.topics())
        except OSError as error:
            logger.error("folders of deleted topics not looked for reason=%s", error)
            return
        for topic in left:
            self._remove_files(topic, self._kept_folders(topic))

    def delete(self, topic: str) -> asyncio.Future[None]:
        """Forget a topic and its queues at once; its messages stay in the log. A new topic of the name starts at 0.

        Of a topic without queues it is noted, too, while messages wait that may be for it: they must not bring it back.

        returns  a future that is done when the deletion is durable: from then on no crash brings the topic back
        raises   StoreError when too many are noted, and nothing has changed then; from the future, when it could not be
                 noted: deleting the topic again tries that again
        """
        if topic in self._queues or self._anything_waits():
            if self._deleted.is_full and topic not in self._deleted.before:
                raise StoreError(
                    f"topic {topic} is not deleted: {len(self._deleted.before)} deleted topics are remembered, each "
                    "until the files of the log went that may hold messages of it"
                )
            removed = self._queues.remove(topic)
            if removed is not None:
                self._dispatcher.forget(removed)
                self._queues.files.forget(topic)
            self._deleted.add(topic, self._log.end_offset)
            self._saver.notes.grew({topic})
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._saver.do(self._note(topic, told, self._deleted.changes))
        return told

    async def _note(self, topic: str, told: asyncio.Future[None], changes: int) -> None:
        """Note the first ``changes`` of the table, others may come meanwhile; then remove the files of the topic."""
        saver, deleted = self._saver, self._deleted
        async with saver.lock:
            reason = await saver.save_under_lock() if deleted.noted_changes < changes else None
            if deleted.noted_changes < changes:
                if not told.done():
                    told.set_exception(StoreError(f"the deletion of topic {topic} is not durable: {reason}"))
                return
            if not told.done():
                told.set_result(None)
            await saver.run(partial(self._remove_files, topic, self._kept_folders(topic)))

    def _kept_folders(self, topic: str) -> set[str]:
        """Names of the folders of queues that a new topic of the name has: they are its own by now."""
        return {str(queue_id) for queue_id in unpack_rows(self._queues.rows(topic))}

    def _remove_files(self, topic: str, kept: Set[str]) -> None:
        try:
            self._queues.files.remove_topic(topic, kept)
        except OSError as error:
            logger.error("files of a deleted topic not removed topic=%s reason=%s", topic, error)

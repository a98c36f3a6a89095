"""How far the log belongs to topics that were deleted: the file ``deletedtopics``, and the table behind it.

The log keeps the messages of a deleted topic, and a start that builds queues from the log must leave them out.
``queuebounds`` has the table too, but that file is no more than a note: it may be lost or damaged with nothing but time
to pay, and must not bring topics back. So there are two copies, and a start believes whatever either says.

RocketMQ ignores the file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from rocketcore.broker.store.file_system import FileSystem
from rocketcore.broker.store.notes.small_file import replace_durably, with_crc, without_crc

__all__ = ["DeletedTopics"]

logger = logging.getLogger(__name__)

_MOST_NAMES = 100_000


class DeletedTopics:
    """Topic → the end of the log when it was deleted; loop thread only, except ``write``.

    changes        of the table that a note has to tell, since the start; noted_changes: those that one has told
    """

    def __init__(self, root: Path, files: FileSystem) -> None:
        self.before: dict[str, int] = {}
        self.changes = self.noted_changes = 0
        self._path = root / "deletedtopics"
        self._files = files

    def read(self, noted: Mapping[str, int]) -> None:
        """Take over what the file says, and what ``queuebounds`` noted.

        raises  OSError when nothing is noted there and the file cannot be read: topics would come back for good. It may
                be read the next time; without it a start goes on
        """
        self.before = {}
        try:
            self.before = _decode(self._files.read_file(self._path))
        except FileNotFoundError:
            pass
        except ValueError as error:
            self.changes += 1  # so that the next save writes it anew
            logger.error("table of deleted topics damaged path=%s reason=%s", self._path, error)
        except OSError as error:
            if not noted:
                error.filename = str(self._path)
                raise
            logger.error("table of deleted topics not readable path=%s reason=%s", self._path, error)
        for topic, end_offset in noted.items():
            self.before[topic] = max(end_offset, self.before.get(topic, 0))

    @staticmethod
    def fault(content: bytes) -> str:
        """Return why the content of the file is not one that was written, an empty text where it is."""
        try:
            _decode(content)
        except ValueError as error:
            return str(error)
        return ""

    @property
    def is_full(self) -> bool:
        """Whether so many are noted that no other is added: whoever may delete topics makes them, too."""
        return len(self.before) >= _MOST_NAMES

    def add(self, topic: str, end_offset: int) -> None:
        """What the log holds of a topic before ``end_offset`` belongs to no queue."""
        self.before[topic] = end_offset
        self.changes += 1

    def end(self, topic: str) -> int:
        """Return the end of the log when a topic was deleted, 0 where it was not."""
        return self.before.get(topic, 0)

    def covers(self, topic: str, physical_offset: int) -> bool:
        """Whether a topic was deleted after a message for it was stored at ``physical_offset``."""
        return physical_offset < self.end(topic)

    @property
    def has_news(self) -> bool:
        """Whether a change is not noted yet."""
        return self.changes != self.noted_changes

    def cut_at(self, end_offset: int) -> bool:
        """Note where the log ends: what comes there is new, whatever was noted. Returns whether that changed a topic.

        A deletion is noted with the end of what was put, which a crash may take back.
        """
        cut = {topic: min(end, end_offset) for topic, end in self.before.items()}
        changed, self.before = cut != self.before, cut
        return changed

    def forget_before(self, start: int) -> None:
        """Drop what concerns only the log before ``start``, which is gone."""
        self.before = {topic: end for topic, end in self.before.items() if end > start}

    def write(self, table: Mapping[str, int]) -> None:
        """Make a copy of the table durable; on the save thread. Raises OSError."""
        text = json.dumps(dict(table), separators=(",", ":"), sort_keys=True).encode()
        replace_durably(self._path, with_crc(text), self._files)


def _decode(content: bytes) -> dict[str, int]:
    """raises  ValueError"""
    line = without_crc(content)
    try:
        return {str(topic): int(end_offset) for topic, end_offset in json.loads(line).items()}
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError("it is of another version") from error

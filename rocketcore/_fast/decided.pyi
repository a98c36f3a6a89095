from typing import Any, Protocol

class _Header(Protocol):
    consumer_group: str
    topic: str
    queue_id: int

class _Tally(Protocol):
    is_noted: bool
    def __getitem__(self, queue_id: int, /) -> list[int]: ...

class _Offsets(Protocol):
    @property
    def resets(self) -> dict[str, Any]: ...
    def place(self, group: str, topic: str) -> str: ...
    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> bool: ...
    def note_pull(self, group: str, topic: str, queue_id: int, next_offset: int) -> dict[int, int]: ...

class _Stats(Protocol):
    def gets(self, group: str, topic: str) -> _Tally: ...

class Decided:
    header: Any
    wanted: Any
    def __init__(
        self,
        header: _Header,
        wanted: object,
        offsets: _Offsets,
        stats: _Stats,
        commits: bool,
        subscriptions: dict[str, Any] | None,
    ) -> None: ...
    def holds(self) -> bool: ...
    def note(self, commit_offset: int, next_offset: int, messages: int, size: int) -> None: ...

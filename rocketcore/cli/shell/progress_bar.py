"""A bar on stderr for work whose end is known: on a terminal only, and not with ``--quiet``."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from rocketcore.cli.shell.options import current

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["ProgressBar"]


class ProgressBar(AbstractContextManager["ProgressBar"]):
    """Shows how many messages of how many are done, and how long the rest will take.

    total  None: unknown
    done   what earlier runs did
    """

    def __init__(self, title: str, total: int | None, done: int = 0) -> None:
        self._progress: Progress | None = None
        if current().quiet or not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True, emoji=False, markup=False, highlight=False),
            transient=True,
        )
        self._task = self._progress.add_task(title, total=total, completed=done)

    def __enter__(self) -> ProgressBar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, done: int) -> None:
        """Show that so many messages are done."""
        if self._progress is not None:
            self._progress.update(self._task, completed=done)

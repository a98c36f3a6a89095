"""Logs in a file that is opened anew at SIGHUP, as who rotates it (logrotate) wants."""

from __future__ import annotations

import logging
from pathlib import Path

__all__ = ["LogFile", "reopen_logs"]

logger = logging.getLogger(__name__)


class LogFile(logging.FileHandler):
    """Appends to a file; several processes may, a line is one write.

    raises  OSError where it cannot be opened
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")

    def reopen(self) -> None:
        """Go on in what has the name now; where that cannot be opened, in what was open."""
        try:
            opened = self._open()
        except OSError as error:
            logger.warning("log file kept path=%s reason=%s", self.baseFilename, error.strerror)
            return
        self.acquire()
        try:
            before, self.stream = self.stream, opened
        finally:
            self.release()
        if before is not None:
            before.close()
        logger.info("log file opened again path=%s", self.baseFilename)


def reopen_logs() -> None:
    """Open the log file again, where there is one: all that a server reads again at SIGHUP."""
    files = [handler for handler in logging.getLogger().handlers if isinstance(handler, LogFile)]
    for file in files:
        file.reopen()
    if not files:
        logger.info("SIGHUP ignored: there is nothing to read again")

"""Warnings that are seen without any logging configured: the package's NullHandler would hide them from who needs them
most.
"""

from __future__ import annotations

import logging
import sys

__all__ = ["warn"]


def warn(logger: logging.Logger, text: str, *arguments: object, traceback: bool = False) -> None:
    """Log a warning; where nobody has configured logging, have it printed all the same.

    traceback  with that of the exception that is being handled
    """
    logger.warning(text, *arguments, exc_info=traceback)
    if logging.lastResort is not None and logger.isEnabledFor(logging.WARNING) and not _someone_listens(logger):
        cause = sys.exc_info() if traceback else None
        record = logger.makeRecord(logger.name, logging.WARNING, __file__, 0, text, arguments, cause)
        logging.lastResort.handle(record)


def _someone_listens(logger: logging.Logger) -> bool:
    node: logging.Logger | None = logger
    while node is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in node.handlers):
            return True
        node = node.parent if node.propagate else None
    return False

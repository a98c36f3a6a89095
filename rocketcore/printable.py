"""Texts that came from somebody else, made fit to be shown: in a terminal, in a log, in a file of lines.

A name from the network may hold a line break, which makes a second line of a log; escape sequences, which a terminal
obeys; and characters that turn the direction of writing, which make one name look like another.
"""

from __future__ import annotations

import copy
import logging
import os
import re
from typing import Any, Final

__all__ = ["JsonFormatter", "LineFormatter", "error_text", "is_printable", "printable", "printable_json", "shortened"]

_UNSEEN: Final = r"\x7f-\x9f\u2028\u2029\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff"
"""What does something to a terminal, turns the direction of writing, or is no character; C0 aside."""
# Compiled when a text first needs them: the two took every command a hundredth of its start.
_CONTROLS: Final = rf"[\x00-\x1f{_UNSEEN}]"
_UNSEEN_IN_JSON: Final = rf"[{_UNSEEN}]"

FIELD_CHARACTERS: Final = 256
"""Of one value in a line of a log."""
LINE_CHARACTERS: Final = 8192


def printable(text: str) -> str:
    """Return a text in one line that does nothing to a terminal: control characters as escapes."""
    return re.sub(_CONTROLS, lambda found: found[0].encode("unicode_escape").decode(), text)


def error_text(error: BaseException) -> str:
    """Return what an error says, in one line: of one of the system's the file and the reason, without its number."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{os.fsdecode(error.filename)}: {error.strerror}"
    return " ".join(text.split()) or type(error).__name__


def printable_json(text: str) -> str:
    """Return a JSON document with escapes for all that does something to a terminal: it stands in strings only."""
    if text.isascii() and "\x7f" not in text:  # a megabyte is searched in microseconds, not in 10 ms
        return text
    return re.sub(_UNSEEN_IN_JSON, lambda found: f"\\u{ord(found[0]):04x}", text)


def is_printable(text: str) -> bool:
    """Tell whether a text can be shown as it is."""
    return text.isprintable() or re.search(_CONTROLS, text) is None


def shortened(text: str, characters: int) -> str:
    """Return a text, cut where it is longer, with the number of characters that are missing."""
    return text if len(text) <= characters else f"{text[:characters]}… ({len(text) - characters} more)"


class LineFormatter(logging.Formatter):
    """Writes one line a record, whatever its values hold; lines of a traceback are indented below it."""

    def format(self, record: logging.LogRecord) -> str:
        line = copy.copy(record)
        if isinstance(record.args, tuple):
            line.args = tuple(map(_shortened_value, record.args))
        line.msg, line.args = printable(shortened(line.getMessage(), LINE_CHARACTERS)), None
        line.exc_text = None  # what another formatter left there
        return super().format(line)

    def formatException(self, ei: Any) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


class JsonFormatter(LineFormatter):
    """Writes a record as one JSON object on a line: time (RFC 3339, UTC), level, logger, message; server, traceback."""

    def __init__(self, server: str = "") -> None:
        super().__init__()
        self._server = server

    def format(self, record: logging.LogRecord) -> str:
        import json
        from datetime import UTC, datetime

        text, _, traceback = super().format(record).partition("\n")
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        said = {"time": time, "level": record.levelname, "logger": record.name, "server": self._server, "message": text}
        return json.dumps({key: value for key, value in (said | {"traceback": traceback}).items() if value})


def _shortened_value(value: object) -> object:
    return shortened(value, FIELD_CHARACTERS) if isinstance(value, str) else value


def _indented(lines: str) -> str:
    return "\n".join("  " + printable(line) for line in lines.split("\n"))

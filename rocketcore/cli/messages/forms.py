"""Messages on the command line: an object for programs, a line for people, and formats of the user's own."""

from __future__ import annotations

import re
from collections.abc import Callable

from rocketcore.admin.shapes import message_object
from rocketcore.cli.shell.render import timestamp
from rocketcore.message import ReceivedMessage
from rocketcore.printable import printable

__all__ = ["FORMAT_HELP", "compile_format", "message_line", "message_object"]

FORMAT_HELP = (
    "Print each message in this format. The message: %i id, %g tag, %k keys, %s body, %S body size, %T store time, "
    "%p properties. Its position: %t topic, %b broker, %q queue, %o offset. Also %% for a percent sign, \\n, \\t."
)


def message_line(message: ReceivedMessage) -> str:
    """Return a message as one line: where it lies, what it is called, its body."""
    named = [f"tag={message.tag}"] if message.tag else []
    named += [f"keys={','.join(message.keys)}"] if message.keys else []
    where = f"{message.topic} {message.queue.broker}/{message.queue.queue_id}@{message.offset}"
    return printable("  ".join([where, *named, _text(message)]))


def _text(message: ReceivedMessage) -> str:
    return message.body.decode("utf-8", "replace")


_FIELDS: dict[str, Callable[[ReceivedMessage], object]] = {
    "t": lambda message: message.topic,
    "b": lambda message: message.queue.broker,
    "q": lambda message: message.queue.queue_id,
    "o": lambda message: message.offset,
    "i": lambda message: message.msg_id,
    "g": lambda message: message.tag or "",
    "k": lambda message: " ".join(message.keys),
    "s": _text,
    "S": lambda message: len(message.body),
    "T": lambda message: timestamp(message.store_timestamp),
    "p": lambda message: ",".join(f"{name}={value}" for name, value in message.properties.items()),
    "%": lambda message: "%",
}
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}
_PART = re.compile(r"%(.)|\\(.)", re.DOTALL)


def compile_format(text: str) -> Callable[[ReceivedMessage], str]:
    """Return the function that a format means; raises ValueError naming what it does not know."""
    unknown = [match[0] for match in _PART.finditer(text) if match[1] and match[1] not in _FIELDS]
    if unknown:
        raise ValueError(f"{unknown[0]} is unknown")

    def show(message: ReceivedMessage) -> str:
        def part(match: re.Match[str]) -> str:
            return str(_FIELDS[match[1]](message)) if match[1] else _ESCAPES.get(match[2], match[2])

        return _PART.sub(part, text)

    return show

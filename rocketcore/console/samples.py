"""One message as a command for a shell, and as a program: what the page that sends it offers to copy."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

__all__ = ["by_python", "by_shell"]


def by_shell(
    servers: str, topic: str, body: str, tag: str, keys: Sequence[str], properties: Mapping[str, str]
) -> str | None:
    """Return the ``rocket produce`` that sends a message; None for one that no argument and no line can be."""
    words = ["rocket", "produce", "--namesrv", servers]
    words += ["-t", tag] if tag else []
    for key in keys:
        words += ["-k", key]
    for name, value in properties.items():
        words += ["-H", f"{name}={value}"]
    words += ["--", topic]
    if not body.startswith("@") and body != "-":
        return shlex.join([*words, body])
    # As an argument that would be the name of a file, or standard input, of which each line is a message.
    return None if "\n" in body else f"printf '%s\\n' {shlex.quote(body)} | {shlex.join([*words, '-'])}"


def by_python(servers: str, topic: str, body: str, tag: str, keys: Sequence[str], properties: Mapping[str, str]) -> str:
    """Return the program that sends a message."""
    given = [repr(topic), repr(body)]
    given += [f"tag={tag!r}"] if tag else []
    given += [f"keys={list(keys)!r}"] if keys else []
    given += [f"properties={dict(properties)!r}"] if properties else []
    return (
        "import rocketcore as rmq\n\n"
        f"with rmq.Producer({servers!r}, group='my-producer') as producer:\n"
        f"    producer.send({', '.join(given)})"
    )

"""Logs as JSON: one object a line, whatever a record holds."""

from __future__ import annotations

import json
import logging
import sys

from rocketcore.printable import JsonFormatter


def record(message: str, *arguments: object, error: bool = False) -> logging.LogRecord:
    info = None
    if error:
        try:
            raise ValueError("bad\nvalue")
        except ValueError:
            info = sys.exc_info()
    made = logging.LogRecord("rocketcore.x", logging.INFO, "f", 1, message, arguments, info)
    made.created = 1_700_000_000.25
    return made


def test_a_record_is_an_object_on_one_line() -> None:
    line = JsonFormatter().format(record("topic created topic=%s", 'a"b\n\x1b[31m'))
    assert "\n" not in line
    said = json.loads(line)
    assert {name: said[name] for name in ("time", "level", "logger")} == {
        "time": "2023-11-14T22:13:20.250Z", "level": "INFO", "logger": "rocketcore.x"
    }  # fmt: skip
    assert said["message"].startswith('topic created topic=a"b')
    assert "\x1b" not in said["message"]
    assert set(said) == {"time", "level", "logger", "message"}


def test_a_shard_and_a_traceback() -> None:
    line = JsonFormatter("broker-a-1").format(record("failed", error=True))
    assert "\n" not in line
    said = json.loads(line)
    assert said["server"] == "broker-a-1"
    assert "ValueError" in said["traceback"]

"""The fuzz targets, a module each that holds ``TARGET``."""

from __future__ import annotations

import importlib
from typing import Final

from tests.fuzz.target import Target

NAMES: Final = (
    "frame",
    "header_json",
    "header_binary",
    "requests",
    "ready_answers",
    "pull_answers",
    "properties",
    "stored_message",
    "batch",
    "commit_log",
    "consume_queue",
    "sql_filter",
    "commands",
    "fastjson",
    "bodies",
    "registration",
    "compression",
    "files",
    "connection",
    "broker",
    "client",
)


def load(name: str) -> Target:
    """Return the target of this name."""
    target: Target = importlib.import_module(f"{__name__}.{name}").TARGET
    return target

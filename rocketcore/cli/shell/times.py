"""Times and durations as people type them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import click

from rocketcore.cli.shell.options import ParamType

__all__ = ["DURATION", "TIME", "parse_duration", "parse_time"]

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = 100 * 366 * _UNITS["d"]
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")


def parse_duration(text: str) -> float:
    """Return seconds: ``90``, ``30s``, ``10m``, ``1.5h``, ``2d``, ``250ms``; raises ValueError.

    At most a hundred years: clocks and timers do not count much further.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as 30s, 10m or 1.5h")
    seconds = float(match[1]) * _UNITS[match[2] or "s"]
    if seconds > _LONGEST:
        raise ValueError(f"{text!r} is more than a hundred years")
    return seconds


def parse_time(text: str, now_millis: int) -> int:
    """Return epoch milliseconds; raises ValueError.

    RFC 3339, ``YYYY-MM-DD`` (midnight UTC), 13 digits of milliseconds, ``now``, ``-1h`` or ``10m`` (that long ago)
    """
    if text == "now":
        return now_millis
    if re.fullmatch(r"\d{13}", text):
        return int(text)
    ago = _DURATION.fullmatch(text.removeprefix("-"))
    if ago is not None and ago[2]:
        return _after_1970(now_millis - round(parse_duration(ago[0]) * 1000), text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as 2030-01-31T12:00:00Z, 2030-01-31, -1h or now") from None
    if moment.tzinfo is None:
        if len(text) > 10:
            raise ValueError(f"{text!r} has no time zone: add Z or an offset")
        moment = moment.replace(tzinfo=UTC)
    return _after_1970(round(moment.timestamp() * 1000), text)


def _after_1970(millis: int, text: str) -> int:
    if millis < 0:
        raise ValueError(f"{text!r} is before 1970")
    return millis


class _Duration(ParamType[float]):
    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Time(ParamType[int]):
    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_time(str(value), round(datetime.now(UTC).timestamp() * 1000))
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = _Duration()
TIME = _Time()

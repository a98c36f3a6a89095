"""How values are shown: numbers with their units, times relative with the absolute on hover, unknown as –."""

from __future__ import annotations

import math
import time
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from markupsafe import Markup, escape

from rocketcore.console.language import Language
from rocketcore.printable import printable

__all__ = ["UNKNOWN", "Shown", "url"]

UNKNOWN: Final = "–"
_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SPANS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def url(path: str, /, **parameters: Any) -> str:
    """Return an address of the console; what is None or empty is left out."""
    given = [(name.rstrip("_"), value) for name, value in parameters.items() if value not in (None, "")]
    return f"{path}?{urlencode(given)}" if given else path


class Shown:
    """Filters of templates in one language."""

    def __init__(self, language: Language) -> None:
        self._t = language.text

    def number(self, value: float | None) -> str:
        if value is None or not math.isfinite(value):
            return UNKNOWN
        if isinstance(value, int) or value == int(value):
            return f"{int(value):,}"
        return f"{value:,.1f}" if abs(value) >= 0.1 else f"{value:,.2g}"

    def count(self, value: float | None, one: str, many: str) -> str:
        """Return a number with what it counts."""
        shown = self.number(value)
        return shown if value is None else f"{shown} {self._t(one if value == 1 else many)}"

    def two_millis(self, first: float | None, second: float | None, instead: str | None = None) -> str:
        """Return two times in milliseconds; of the first only a range may be known, as a broker writes it."""
        if first is None and second is None and instead is None:
            return UNKNOWN
        shown = self.number(first) if first is not None or instead is None else instead.removesuffix("ms")
        return f"{shown} / {self.number(second)} ms"

    def rate(self, value: float | None, unit: str = "msg/s") -> str:
        return UNKNOWN if value is None else f"{self.number(round(value, 2))} {self._t(unit)}"

    def bytes(self, value: float | None, suffix: str = "") -> str:
        if value is None:
            return UNKNOWN
        step = 0
        while abs(value) >= 1024 and step < len(_BINARY) - 1:
            value /= 1024
            step += 1
        return f"{value:,.0f} {_BINARY[step]}{suffix}" if step == 0 else f"{value:,.1f} {_BINARY[step]}{suffix}"

    def percent(self, value: float | None) -> str:
        return UNKNOWN if value is None else f"{value * 100:.1f} %"

    def span(self, seconds: float | None) -> str:
        """Return a duration by its two largest units."""
        if seconds is None or seconds < 0:
            return UNKNOWN
        if seconds < 1:
            return f"{seconds * 1000:.0f} ms"
        left = int(seconds)
        parts: list[str] = []
        for size, unit in _SPANS:
            if left >= size and len(parts) < 2:
                parts.append(f"{left // size} {self._t(unit)}")
                left %= size
            elif parts:
                break
        return " ".join(parts)

    def ago(self, stamp: str | None) -> Markup | str:
        """Return an RFC 3339 time as a distance from now, the time itself on hover."""
        if stamp is None:
            return UNKNOWN
        seconds = time.time() - datetime.fromisoformat(stamp).timestamp()
        text = self._t("just now")
        if seconds >= 1:
            text = self._t("{span} ago").format(span=self._one(seconds))
        elif seconds <= -1:
            text = self._t("in {span}").format(span=self._one(-seconds))
        return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(stamp, text)

    def _one(self, seconds: float) -> str:
        size, unit = next((size, unit) for size, unit in _SPANS if seconds >= size)
        return f"{int(seconds // size)} {self._t(unit)}"

    def yes(self, value: bool | None) -> str:
        return UNKNOWN if value is None else self._t("yes") if value else self._t("no")

    def known(self, value: Any) -> Any:
        """Return a value or –; a text without characters that do something to the page's lines."""
        if value is None or value == "" or value == []:
            return UNKNOWN
        if isinstance(value, (list, tuple)):
            return ", ".join(str(self.known(each)) for each in value)
        return printable(value) if isinstance(value, str) else value

    def client(self, client_id: str) -> Markup:
        """Return the id of a client that is broken before its counter alone."""
        host, counter, rest = printable(client_id).partition("#")
        return Markup('<span class="whole">{}</span><wbr><span class="whole">{}</span>').format(host, counter + rest)

    def process(self, client_id: str) -> str:
        """Return the id of a client without its counter: address and process."""
        return printable(client_id).partition("#")[0]

    def wrap(self, value: str) -> Markup:
        """Return a long name that may be broken behind its separators."""
        text = str(escape(printable(value)))
        for separator in ("-", "_", "%", "/", "."):
            text = text.replace(separator, f"{separator}<wbr>")
        return Markup(text)

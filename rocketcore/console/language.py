"""Languages of the console: English texts are the keys, ``zh.json`` holds the Chinese ones."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["LANGUAGES", "Language", "language_of"]

LANGUAGES: Final = {"en": "English", "zh": "中文"}


@dataclass(frozen=True, slots=True)
class Language:
    code: str

    def text(self, english: str) -> str:
        """Return a text in this language; English where the catalogue lacks it."""
        return english if self.code == "en" else _catalogue(self.code).get(english, english)


@cache
def _catalogue(code: str) -> dict[str, str]:
    texts = json.loads((Path(__file__).parent / f"{code}.json").read_text("utf-8"))
    return {str(english): str(text) for english, text in texts.items()}


def language_of(chosen: str, accepted: str) -> Language:
    """Return the language that was chosen, else the first of a browser's ``Accept-Language`` that there is."""
    if chosen in LANGUAGES:
        return Language(chosen)
    weighed = []
    for part in accepted[:200].split(","):
        name, _, weight = part.partition(";q=")
        try:
            weighed.append((-float(weight or 1), name.strip().lower()[:2]))
        except ValueError:
            continue
    for _, code in sorted(weighed, key=lambda pair: pair[0]):
        if code in LANGUAGES:
            return Language(code)
    return Language("en")

"""Every text of the console's pages has its Chinese, and the catalogue has no others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import rocketcore.console
from rocketcore.console.language import LANGUAGES, language_of

ROOT = Path(str(rocketcore.console.__file__)).parent
CATALOGUE: dict[str, str] = json.loads((ROOT / "zh.json").read_text("utf-8"))


def texts_of(template: str) -> set[str]:
    """Return the texts that a template names; those that it gets by name are looked for in the catalogue's use."""
    found = set(re.findall(r'\bt\("([^"]+)"\)', template)) | set(re.findall(r"\bt\('([^']+)'\)", template))
    for one, many in re.findall(r'f\.count\([^"\n]*?"([^"]+)", "([^"]+)"\)', template):
        found |= {one, many}
    found |= set(re.findall(r'm\.sortable\(state, "[^"]+", "([^"]+)"', template))
    found |= set(re.findall(r'm\.(?:filter|pager)\(state, "([^"]+)"', template))
    found |= set(re.findall(r'm\.(?:danger|confirmed)\(name, "([^"]+)"', template))
    found |= set(re.findall(r'm\.tabs\([^)]*"([^"]+)"\)', template))
    found |= set(re.findall(r'\bcard\("([^"]+)"', template))
    for title, text in re.findall(r'm\.empty\("[^"]+", "([^"]+)"(?:, "([^"]*)")?', template):
        found |= {title, text} - {""}
    return found


def test_every_text_has_its_chinese() -> None:
    missing = {
        f"{path.name}: {text}"
        for path in (ROOT / "templates").glob("*.html")
        for text in texts_of(path.read_text("utf-8")) - CATALOGUE.keys()
    }
    assert missing == set()


def test_the_catalogue_has_no_text_that_nothing_says() -> None:
    said = "\n".join(path.read_text("utf-8") for path in (*ROOT.rglob("*.html"), *ROOT.rglob("*.py")))
    said += " online offline up drained refuses unreachable master slave producer consumer done failed unknown "
    said += "handed out taken back transaction ended "  # of a trace
    assert [text for text in CATALOGUE if text not in said] == []


def test_placeholders_are_the_same() -> None:
    for english, chinese in CATALOGUE.items():
        assert re.findall(r"\{\w*\}", english) == re.findall(r"\{\w*\}", chinese), english


def test_a_browser_gets_the_first_language_that_there_is() -> None:
    for chosen, accepted, code in (
        ("", "", "en"), ("", "zh-CN,en;q=0.5", "zh"), ("", "de, en;q=0.3, zh;q=0.8", "zh"), ("en", "zh", "en"),
        ("xx", "zh;q=x,en", "en"), ("", "*", "en"),
    ):  # fmt: skip
        assert language_of(chosen, accepted).code == code
    assert set(LANGUAGES) == {"en", "zh"}

"""docs/console.md: its bounds, pages and addresses are those of the source; the assets are whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from rocketcore.console import accounts, app, console, safety
from rocketcore.console.defaults import changed_settings
from rocketcore.console.language import Language
from rocketcore.console.samples import by_python, by_shell
from rocketcore.console.show import UNKNOWN, Shown
from tests.fixtures.pages import PAGES

PAGE = (PAGES / "console.md").read_text("utf-8")
ROOT = Path(str(app.__file__)).parent
DIGESTS = {
    "htmx.min.js": "d6fdc75f204e6bde",
    "sse.min.js": "98a46496de0c3605",
    "uPlot.iife.min.js": "19c8d4c6ad88929a",
}
"""Of what the npm registry has under these versions, the first 64 bits."""


def test_its_bounds_are_those_of_the_source() -> None:
    assert (console.MOST_REQUESTS, safety.MOST_BODY_BYTES, accounts.MOST_FAILURES) == (40, 1 << 20, 5)
    assert accounts.SESSION_SECONDS == 12 * 3600
    for text in ("at most 40 requests", "1 MiB at most", "five wrong passwords", "twelve hours"):
        assert text in PAGE


def test_it_names_every_address_for_programs() -> None:
    for path in app.PAGES:
        assert f"`{path}" in PAGE or f"/api/v1{path.rstrip('/') or '/overview'}`" in PAGE, path


def test_what_is_not_ours_has_its_licence_and_its_version() -> None:
    """Two libraries and an extension of one of them, as their authors published them."""
    vendor = ROOT / "static" / "vendor"
    assert sorted(folder.name for folder in vendor.iterdir()) == ["htmx-2.0.11", "htmx-ext-sse-2.2.4", "uplot-1.6.32"]
    for folder in vendor.iterdir():
        assert (folder / "LICENSE").stat().st_size > 500
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in vendor.glob("*/*.min.js")}
    assert digests == DIGESTS


def test_every_asset_that_a_template_names_is_there() -> None:
    import re

    for path in (ROOT / "templates").glob("*.html"):
        for name in re.findall(r'"/static/([^"#{]+)', path.read_text("utf-8")):
            assert (ROOT / "static" / name).is_file(), (path.name, name)
    symbols = set(re.findall(r'id="(\w+)"', (ROOT / "static" / "icons.svg").read_text("utf-8")))
    named = {
        name for path in (ROOT / "templates").glob("*.html")
        for name in re.findall(r'm?\.?(?:icon|empty)\("(\w+)"', path.read_text("utf-8"))
    }  # fmt: skip
    assert named <= symbols


def test_settings_of_apaches_brokers_are_compared_with_their_defaults() -> None:
    vectors = json.loads((Path(__file__).parents[1] / "vectors" / "settings.json").read_text("ascii"))
    ours = json.loads((ROOT / "apache_defaults.json").read_text("ascii"))
    constant = {name: each for name, each in vectors["broker"].items() if each and "thread" not in name.lower()}
    assert ours == constant
    config = {**vectors["broker"], "fileReservedTime": "48", "sendMessageThreadPoolNums": "64", "brokerName": "a"}
    assert changed_settings(config, {}) == {"fileReservedTime": "72"}
    assert changed_settings({"a": "1"}, {"changedSettings": '{"a":"0","gone":"1"}'}) == {"a": "0"}
    assert changed_settings({"a": "1"}, {"changedSettings": "no json"}) == {}


def test_samples_say_bodies_that_a_shell_or_the_command_would_take_for_something_else() -> None:
    assert by_shell("h:1", "t", "it's", "", [], {}) == """rocket produce --namesrv h:1 -- t 'it'"'"'s'"""
    assert by_shell("h:1", "t", "--help", "a b", [], {}) == "rocket produce --namesrv h:1 -t 'a b' -- t --help"
    assert by_shell("h:1", "t", "@file", "", [], {}) == "printf '%s\\n' @file | rocket produce --namesrv h:1 -- t -"
    assert by_shell("h:1", "t", "@file\nmore", "", [], {}) is None
    compile(by_python("h:1", "t", "a\n'\"b", "x", ["k"], {"a": "1"}), "sample", "exec")


def test_values_are_shown_with_their_units_and_what_is_unknown_is_a_dash() -> None:
    shown = Shown(Language("en"))
    assert shown.two_millis(0.25, 18.32) == "0.2 / 18.3 ms"
    assert shown.two_millis(None, 12.0, "0~10ms") == "0~10 / 12 ms"
    assert shown.two_millis(None, None, "0~10ms") == "0~10 / – ms"
    assert shown.two_millis(None, None) == UNKNOWN
    assert shown.process("10.0.0.1@7#99") == "10.0.0.1@7"
    assert shown.client("<b>@7#99") == '<span class="whole">&lt;b&gt;@7</span><wbr><span class="whole">#99</span>'

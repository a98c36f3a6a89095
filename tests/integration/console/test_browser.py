"""The console in headless Chromium: each page in both themes and widths, each write, what a browser complains of.

Skipped where there is no Chromium or no Playwright. ``CONSOLE_PICTURES`` names a folder for pictures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import rocketcore as rmq
from rocketcore.admin.client import Admin
from rocketcore.local import LocalCluster
from tests.integration.console.browsing import (
    CHROMIUM,
    GROUP,
    PAGES,
    TOPIC,
    console_over,
    heard,
    launched,
    write_everything,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

playwright = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.base")

AXE = Path(axe.AXE_FILE_PATH).read_text("utf-8")
PICTURES = os.environ.get("CONSOLE_PICTURES", "")
"""A folder for pictures of the pages; empty: none are made."""

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
    # Playwright's own loop on Python's side leaves them to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(cluster: LocalCluster) -> Iterator[str]:
    """A console over a cluster with a topic, a group and dead letters."""
    with console_over(cluster.namesrv) as running:
        yield running


@pytest.fixture
def complaints() -> Iterator[list[str]]:
    """What browsers complain of in a test; at its end nothing may have been."""
    found: list[str] = []
    yield found
    assert found == []


@pytest.fixture
def open_page(chromium: Browser, address: str, complaints: list[str]) -> Iterator[Callable[..., Page]]:
    """``open_page(width=…, theme=…)``: a page of a new browser."""
    contexts = []

    def make(*, width: int = 1280, theme: str = "light", language: str = "en", scripts: bool = True) -> Page:
        context = chromium.new_context(
            base_url=address, viewport={"width": width, "height": 800}, color_scheme=theme, locale=language,  # type: ignore[arg-type]
            java_script_enabled=scripts, reduced_motion="reduce",
        )  # fmt: skip
        contexts.append(context)
        return heard(context.new_page(), complaints)

    yield make
    for context in contexts:
        context.close()


SEVERE = """async () => (await axe.run(document, {
  resultTypes: ["violations"], runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"], elementRef: false
})).violations.filter(each => ["serious", "critical"].includes(each.impact)).map(each =>
  `${each.id}: ${each.help}: ${each.nodes.slice(0, 3).map(node => node.html.slice(0, 160)).join(" | ")}`)"""
TALL = """[...document.querySelectorAll("td")].filter(cell => cell.clientHeight > 240).length"""
LOOKS = [(1280, "light"), (390, "light"), (390, "dark"), (1280, "dark")]
"""Widths and themes of each page; axe looks at the first and the third, which has each theme and each width once."""


def faults_of(page: Page, name: str) -> Iterator[str]:
    """Yield what is wrong with a page that is loaded, in every width and theme; keep its pictures if wanted.

    The policy does not let axe in as an element: Playwright evaluates it, which is no page's doing.
    """
    page.evaluate(AXE)
    for number, (width, theme) in enumerate(LOOKS):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        if page.evaluate("document.documentElement.scrollWidth") > width:
            yield f"{name}: wider than its window of {width}"
        if tall := page.evaluate(TALL):
            yield f"{name}: {tall} cells are squeezed in a window of {width}"
        if number in (0, 2):
            yield from (f"{name}, {theme}: {each}" for each in page.evaluate(SEVERE))
        if PICTURES:
            page.screenshot(path=Path(PICTURES) / f"{name}-{theme}-{width}.png", full_page=True)


@pytest.mark.timeout(300)
def test_every_page_in_both_themes_and_widths(open_page: Callable[..., Page]) -> None:
    page = open_page()
    faults: list[str] = []
    for name, path in PAGES.items():
        answer = page.goto(path, wait_until="domcontentloaded")
        assert answer is not None
        assert answer.status == 200, path
        if name == "rates":
            page.wait_for_selector(".u-wrap canvas")
        faults += faults_of(page, name)
    if faults:
        pytest.fail("\n".join(faults))


def test_chinese_and_the_switches(open_page: Callable[..., Page]) -> None:
    page = open_page(language="zh-CN")
    page.goto("/topics")
    assert page.locator("h1").inner_text() == "主题"
    page.locator(".foot a[lang=en]").click()
    assert page.locator("h1").inner_text() == "Topics"
    page.locator('.foot a[title$="dark"]').click()
    playwright.expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    playwright.expect(page.locator("html")).to_have_css("color-scheme", "dark")


def test_by_keys_alone(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.goto("/topics")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.press("/")
    page.keyboard.type("browser-ord")
    page.wait_for_url("**/topics?*q=browser-ord*")
    playwright.expect(page.locator("#list tbody tr")).to_have_count(1)
    assert page.evaluate("document.activeElement.name") == "q"
    page.locator("#list tbody a").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/topic?name={TOPIC}")


def test_lists_and_forms_need_no_javascript(open_page: Callable[..., Page]) -> None:
    page = open_page(scripts=False)
    page.goto(f"/topics?q={TOPIC}")
    page.get_by_role("link", name=TOPIC).first.click()
    page.get_by_text("key-5").first.wait_for()
    page.goto(f"/topic?name={TOPIC}&tab=publish")
    page.get_by_label("Body").fill("without a script")
    page.get_by_role("button", name="Send").click()
    page.get_by_text("The message was stored").first.wait_for()
    page.goto("/groups")
    assert GROUP in page.content().replace("<wbr>", "")


def test_each_write(open_page: Callable[..., Page], cluster: LocalCluster) -> None:
    write_everything(open_page(), cluster.namesrv)


def test_the_tail_goes_along_pauses_and_goes_on(open_page: Callable[..., Page], cluster: LocalCluster) -> None:
    page = open_page()
    page.goto(f"/topic?name={TOPIC}&tab=tail&tag=tail")
    playwright.expect(page.locator("#tail-count")).to_contain_text("seen")
    rows = page.locator("#rows tr")
    with rmq.Producer(cluster.namesrv, group="browser-tests") as producer:
        producer.send(TOPIC, b"left out", tag="other")
        producer.send(TOPIC, b"<b>first</b>", tag="tail")
        playwright.expect(rows).to_have_count(1)
        assert "<b>first</b>" in rows.first.inner_text()
        assert page.locator("td.clock").evaluate("cell => cell.scrollWidth <= cell.clientWidth")
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Go on").click()
        playwright.expect(page.locator("#tail-count")).to_contain_text("seen 0")
        producer.send(TOPIC, b"second", tag="tail")
        playwright.expect(rows).to_have_count(2)
        assert "second" in rows.first.inner_text()


def test_the_overview_keeps_itself_fresh(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.goto("/")
    page.evaluate("document.querySelector('main').dataset.seen = 'yes'")
    playwright.expect(page.locator("main[data-seen]")).to_have_count(0, timeout=20_000)
    live = page.locator("[data-live]")
    assert live.get_attribute("aria-pressed") == "true"
    live.click()
    assert live.get_attribute("aria-pressed") == "false"


def test_a_tail_of_thousands_a_second_leaves_the_page_alive(
    open_page: Callable[..., Page], cluster: LocalCluster
) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("browser-flood", 2)
    page = open_page()
    page.goto("/topic?name=browser-flood&tab=tail")
    count = page.locator("#tail-count")
    playwright.expect(count).to_contain_text("seen 0")
    sent = 10_000
    with rmq.Producer(cluster.namesrv, group="browser-tests") as producer:
        slowest = 0.0
        for number in range(sent):
            producer.send_nowait("browser-flood", f"message {number}".encode())
            if number % 1000 == 0:
                began = time.perf_counter()
                page.evaluate("document.title")
                slowest = max(slowest, time.perf_counter() - began)
        producer.flush()
    playwright.expect(count).to_contain_text(f"seen {sent:,}", timeout=20_000)
    assert slowest < 1
    rows = page.locator("#rows tr").count()
    dropped = int(count.inner_text().rsplit(" ", 1)[1].replace(",", ""))
    assert rows <= 200
    assert dropped >= sent - 1000  # each look shows forty at most
    page.get_by_role("button", name="Pause").click()
    playwright.expect(page.get_by_role("button", name="Go on")).to_be_visible()

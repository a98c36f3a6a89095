"""The console in headless Chromium: each page in both themes and widths, each write, what a browser complains of.

Skipped where there is no Chromium or no Playwright. Pictures are in the folder of the test, for eyes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import rocketcore as rmq
from rocketcore.admin.client import Admin
from rocketcore.console.serve import ConsoleThread
from rocketcore.console.settings import ConsoleSettings
from rocketcore.local import LocalCluster

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

playwright = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
    # Playwright's own loop on Python's side leaves them to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TOPIC, GROUP = "browser-orders", "browser-shop"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(cluster: LocalCluster) -> Iterator[str]:
    """A console over a cluster with a topic, a group and dead letters."""
    with Admin(cluster.namesrv) as admin:
        admin.create_topic(TOPIC, 2)
        admin.create_topic(f"%DLQ%{GROUP}", 1)
        admin.create_group(GROUP)
        for queue in admin.queues(TOPIC):
            admin.update_consumer_offset(GROUP, queue, 0)
    with rmq.Producer(cluster.namesrv, group="browser-tests") as producer:
        for number in range(6):
            producer.send(TOPIC, f'{{"id": {number}}}'.encode(), tag="paid", keys=f"key-{number}")
            producer.send(f"%DLQ%{GROUP}", f"dead {number}".encode())
    console = ConsoleThread(ConsoleSettings(namesrv=cluster.namesrv, listen="127.0.0.1:0"))
    console.start()
    yield f"http://{console.address}"
    console.stop()


@pytest.fixture
def open_page(chromium: Browser, address: str) -> Iterator[Callable[..., Page]]:
    """``open_page(width=…, theme=…)``: a page of a new browser; at the end nothing may have been complained of."""
    contexts = []
    complaints: list[str] = []

    def make(*, width: int = 1280, theme: str = "light", language: str = "en", scripts: bool = True) -> Page:
        context = chromium.new_context(
            base_url=address, viewport={"width": width, "height": 800}, color_scheme=theme, locale=language,
            java_script_enabled=scripts,
        )  # fmt: skip
        contexts.append(context)
        page = context.new_page()
        # An "info" is no complaint: the browser tells so that whoever types first keeps the field from an autofocus.
        page.on(
            "console", lambda told: told.type == "info" or complaints.append(f"{page.url}: {told.type} {told.text}")
        )
        page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))
        return page

    yield make
    for context in contexts:
        context.close()
    assert complaints == []


PLACE = f"topic={TOPIC}&broker=broker-a&queue=0&offset=0"
PAGES = {
    "overview": "/",
    "topics": "/topics?kind=all",
    "new-topic": "/topic/new",
    **{f"topic-{tab}": f"/topic?name={TOPIC}&tab={tab}" for tab in
       ("messages", "tail", "queues", "groups", "route", "config", "publish")},
    "topic-delete": f"/topic/delete?name={TOPIC}",
    "search": f"/search?topic={TOPIC}&q=tag:paid",
    "search-nothing": f"/search?topic={TOPIC}&q=tag:nothing",
    "message": f"/message?{PLACE}",
    "groups": "/groups?kind=all",
    **{f"group-{tab}": f"/group?name={GROUP}&tab={tab}" for tab in ("queues", "members", "config")},
    "group-reset": f"/group/reset?name={GROUP}&topic={TOPIC}&to=latest",
    "dead-letters": "/dead-letters",
    "dead-letters-group": f"/dead-letters/group?name={GROUP}",
    "dead-letters-purge": f"/dead-letters/purge?name={GROUP}",
    "clients": f"/clients?group={GROUP}",
    "brokers": "/brokers",
    "broker": "/broker?name=broker-a",
    "broker-config": "/broker?name=broker-a&tab=config",
    "rates": "/rates",
    "login": "/login",
}  # fmt: skip


def serious(page: Page) -> list[str]:
    """Return what axe finds on a page that keeps somebody from using it."""
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {[node['html'][:160] for node in each['nodes'][:3]]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_in_both_themes_and_widths(
    open_page: Callable[..., Page], tmp_path: Path, theme: str, width: int
) -> None:
    page = open_page(width=width, theme=theme)
    faults: list[str] = []
    for name, path in PAGES.items():
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == 200, path
        if name == "rates":
            page.wait_for_selector(".u-wrap canvas")
        if page.evaluate("document.documentElement.scrollWidth") > width:
            faults.append(f"{name}: wider than its window")
        # The policy does not let a script of axe's in as an element; Playwright evaluates it, which is no page's doing.
        if (width == 1280) == (theme == "light"):  # which has each theme and each width once
            faults += [f"{name}: {each}" for each in serious(page)]
        page.screenshot(path=tmp_path / f"{name}-{theme}-{width}.png", full_page=True)
    if faults:
        pytest.fail("\n".join(faults))


def test_chinese_and_the_switches(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(language="zh-CN")
    page.goto("/topics")
    assert page.locator("h1").inner_text() == "主题"
    page.screenshot(path=tmp_path / "topics-zh.png")
    page.locator(".foot a[lang=en]").click()
    assert page.locator("h1").inner_text() == "Topics"
    page.locator('.foot a[title$="dark"]').click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
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
    assert "key-5" in page.content()
    page.goto(f"/topic?name={TOPIC}&tab=publish")
    page.get_by_label("Body").fill("without a script")
    page.get_by_role("button", name="Send").click()
    assert "The message was stored" in page.content()
    page.goto("/groups")
    assert GROUP in page.content().replace("<wbr>", "")


def test_each_write(open_page: Callable[..., Page], cluster: LocalCluster, tmp_path: Path) -> None:
    page = open_page()
    page.goto("/topics")
    page.get_by_role("link", name="New topic").click()
    page.get_by_label("Name").fill("browser-made")
    page.get_by_label("Queues on each broker").fill("3")
    page.get_by_role("button", name="Create").click()
    page.wait_for_url("**/topic?name=browser-made&done=topic-created")
    assert page.get_by_role("status").inner_text().strip() == "The topic was created."
    page.screenshot(path=tmp_path / "created.png")

    page.get_by_role("link", name="config").click()
    page.get_by_label("Write queues").fill("4")
    page.get_by_label("Read queues").fill("4")
    page.get_by_role("button", name="Change").click()
    page.wait_for_url("**done=topic-updated**")

    page.get_by_role("link", name="publish").click()
    page.get_by_label("Body").fill("from a browser")
    page.get_by_label("Tag").fill("here")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("status").get_by_role("link").click()
    assert "from a browser" in page.locator("main").inner_text()

    page.goto("/topic/delete?name=browser-made")
    page.locator("input[name=typed]").fill("browser-made")
    page.get_by_role("button", name="Delete the topic").click()
    page.wait_for_url("**/topics?done=topic-deleted")

    page.goto(f"/group/reset?name={GROUP}")
    page.get_by_label("Topic", exact=True).fill(TOPIC)
    page.get_by_label("Where it goes on").fill("latest")
    page.get_by_role("button", name="Show the plan").click()
    page.locator("input[name=typed]").fill(GROUP)
    page.screenshot(path=tmp_path / "plan.png", full_page=True)
    page.get_by_role("button", name="Reset the offsets").click()
    page.wait_for_url("**done=offsets-reset**")
    with Admin(cluster.namesrv) as admin:
        assert all(row.lag == 0 for row in admin.offsets(GROUP, TOPIC))

    page.goto(f"/dead-letters/group?name={GROUP}")
    page.locator("tbody input[type=checkbox]").first.check()
    page.get_by_role("button", name="Redrive the chosen ones").click()
    assert page.get_by_role("status").locator(".pill").inner_text() == "done"
    page.screenshot(path=tmp_path / "redriven.png", full_page=True)
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").click()
    assert Path(download.value.path()).read_text("utf-8").count("\n") == 6
    page.get_by_role("link", name="Delete all").click()
    page.locator("input[name=typed]").fill(GROUP)
    page.get_by_role("button", name="Delete the dead letters").click()
    page.wait_for_url("**/dead-letters?done=purged")


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

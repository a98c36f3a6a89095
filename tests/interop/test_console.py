"""The web console over Apache's 5.5.0: each page and each write in Chromium, by the code that ours has."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.peers import ApacheCluster

pytest.importorskip("starlette")
pytest.importorskip("playwright.sync_api")

from tests.integration.console.browsing import (
    CHROMIUM,
    PAGES,
    TOPIC,
    console_over,
    heard,
    launched,
    write_everything,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(240),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def check_figures(page: Page) -> None:
    """See that what brokers of Apache's say in their own way is known."""

    def api(path: str) -> Any:
        return page.request.get(f"/api/v1{path}").json()

    broker = api("/brokers")[0]["broker"]
    changed = api(f"/broker?name={broker}")["changed"]
    assert 0 < len(changed) < 60, changed
    until = time.monotonic() + 40
    while (half := api("/overview")["half"]) is None:
        assert time.monotonic() < until
        time.sleep(0.2)
    assert half == 0
    while (row := next(each for each in api("/topics") if each["topic"] == TOPIC))["in_tps"] is None:
        assert time.monotonic() < until, row  # the second look at all groups comes ten seconds after the first
        time.sleep(0.2)
    assert row["out_tps"] == 0


def test_each_page_and_each_write(apache_clusters: Callable[[str], ApacheCluster]) -> None:
    cluster = apache_clusters("5.5.0")
    complaints: list[str] = []
    with console_over(cluster.namesrv) as address, launched() as browser:
        page = heard(browser.new_page(base_url=address, viewport={"width": 1280, "height": 800}), complaints)
        failed = []
        for name, path in PAGES.items():
            answer = page.goto(path, wait_until="domcontentloaded")
            assert answer is not None
            if answer.status != 200:
                failed.append(f"{name}: {answer.status} {page.locator('main').inner_text()}")
        assert failed == []
        check_figures(page)
        write_everything(page, cluster.namesrv)
    assert complaints == []

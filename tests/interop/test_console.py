"""The web console over Apache's 5.5.0: each page and each write in Chromium, by the code that ours has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.peers import ApacheCluster

pytest.importorskip("starlette")
pytest.importorskip("playwright.sync_api")

from tests.integration.console.browsing import (
    CHROMIUM,
    PAGES,
    console_over,
    heard,
    launched,
    write_everything,
)

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(240),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


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
        write_everything(page, cluster.namesrv)
    assert complaints == []

"""A console over the cluster of the tests, and what a browser of it sends."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("jinja2")
httpx = pytest.importorskip("httpx")

from starlette.testclient import TestClient  # noqa: E402 - these need the extra

from rocketcore.console.app import create_app  # noqa: E402
from rocketcore.console.settings import ConsoleSettings  # noqa: E402
from rocketcore.local import LocalCluster  # noqa: E402

ORIGIN = "http://127.0.0.1:9880"


class Browser:
    """Loads pages and sends their forms as a browser does, without JavaScript."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def get(self, address: str, **headers: str) -> Any:
        return self.client.get(address, headers=headers, follow_redirects=False)

    def api(self, address: str) -> Any:
        answer = self.get(f"/api/v1{address}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def hidden(self, page: str, name: str) -> str:
        """Return a hidden field of a page."""
        found = re.search(rf'<input type="hidden" name="{name}" value="([^"]*)">', page)
        assert found is not None, f"no hidden field {name}"
        return html.unescape(found[1])

    def send(self, shown: str, address: str, fields: dict[str, object], **headers: str) -> Any:
        """Load the page ``shown``, fill in its form and send that; cookies and tokens are its own."""
        page = self.get(shown)
        assert page.status_code == 200, page.text
        own = {name: self.hidden(page.text, name) for name in ("csrf", "plan") if f'name="{name}"' in page.text}
        sent = {"Origin": ORIGIN, **headers}
        return self.client.post(address, data={**own, **fields}, headers=sent, follow_redirects=False)


@pytest.fixture
def open_console(cluster: LocalCluster) -> Iterator[Callable[..., Browser]]:
    """``open_console(**settings)``: a console, and a browser that has not been there."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def make(**options: object) -> Browser:
            settings = ConsoleSettings(namesrv=cluster.namesrv, **options)  # type: ignore[arg-type]
            return Browser(stack.enter_context(TestClient(create_app(settings), base_url=ORIGIN)))

        yield make


@pytest.fixture
def browser(open_console: Callable[..., Browser]) -> Browser:
    return open_console()

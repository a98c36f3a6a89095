"""Several clusters in one console: addresses, the switch, and that nothing of one is done to another."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocketcore.admin.client import Admin
from rocketcore.console.settings import ClusterSettings, ConsoleSettings
from rocketcore.errors import ConfigError
from rocketcore.local import LocalCluster
from tests.integration.console.conftest import ORIGIN, Browser
from tests.integration.console.test_processes import end, page, started


@pytest.fixture(scope="module")
def other() -> Iterator[LocalCluster]:
    """A second cluster, with a topic that the first has too."""
    with LocalCluster() as running, Admin(running.namesrv) as admin:
        admin.create_topic("in-both", 1)
        yield running


@pytest.fixture
def browser(open_console: Callable[..., Browser], cluster: LocalCluster, other: LocalCluster) -> Browser:
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("in-both", 1, exist_ok=True)
    named = {"a b": ClusterSettings(namesrv=cluster.namesrv), "two": ClusterSettings(namesrv=other.namesrv)}
    return open_console(clusters=named)


def test_each_address_names_its_cluster(browser: Browser) -> None:
    answer = browser.get("/topics?q=x")
    assert (answer.status_code, answer.headers["location"]) == (303, "/c/a%20b/topics?q=x")
    first, second = browser.get("/c/a%20b/brokers").text, browser.get("/c/two/brokers").text
    assert "broker-b" in first
    assert "broker-b" not in second
    # The switch leads to the list that the page belongs to; links stay in the cluster.
    shown = browser.get("/c/two/topic?name=in-both").text
    assert 'href="/c/a%20b/topics"' in shown
    assert 'href="/c/two/topic?name=in-both&amp;tab=queues"' in shown
    assert [row["broker"] for row in browser.get("/c/two/api/v1/brokers").json()] == ["broker-a"]
    assert browser.get("/c/three/topics").status_code == 404
    assert browser.get("/readyz").status_code == 200


def test_a_plan_of_one_cluster_is_refused_by_another(browser: Browser, other: LocalCluster) -> None:
    shown = browser.get("/c/a%20b/topic/delete?name=in-both").text
    fields = {"csrf": browser.hidden(shown, "csrf"), "plan": browser.hidden(shown, "plan"), "typed": "in-both"}

    def delete(address: str) -> int:
        answer = browser.client.post(address, data=fields, headers={"Origin": ORIGIN}, follow_redirects=False)
        return int(answer.status_code)

    assert delete("/c/two/topic/delete") == 403
    assert delete("/topic/delete") == 404  # an address of no cluster writes to none
    with Admin(other.namesrv) as admin:
        assert "in-both" in admin.topics()
    assert delete("/c/a%20b/topic/delete") == 303


@pytest.mark.parametrize("name", ["", "a/b", "line\nend", "x" * 65])
def test_a_name_that_no_address_can_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="invalid cluster name"):
        ConsoleSettings(clusters={name: ClusterSettings()})


def test_contexts_and_options_name_clusters(
    cluster: LocalCluster, other: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "rocket").mkdir()
    lines = ['current = "second"']
    for name, namesrv in (("first", cluster.namesrv), ("second", other.namesrv)):
        lines.append(f'[contexts.{name}]\nnamesrv = "{namesrv}"')
    (tmp_path / "rocket" / "config.toml").write_text("\n".join(lines), "utf-8")
    named = ("--contexts", "--cluster", f"third={cluster.namesrv}")
    with started("console", "--listen", "127.0.0.1:0", *named) as (process, ready):
        shown = page(ready["url"])  # which leads to the one in use
        assert shown.index('href="/c/second/"') < shown.index('href="/c/first/"') < shown.index('href="/c/third/"')
        assert other.namesrv in shown
        assert end(process, signal.SIGTERM) == 0

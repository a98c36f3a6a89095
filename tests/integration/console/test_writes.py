"""What the console changes: plans that are shown first, and are refused where something has changed since."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Callable

import pytest

import rocketcore as rmq
from rocketcore.admin.client import Admin
from rocketcore.local import LocalCluster
from rocketcore.message_queue import MessageQueue
from tests.integration.console.conftest import Browser


@pytest.fixture
def admin(cluster: LocalCluster):  # type: ignore[no-untyped-def]
    with Admin(cluster.namesrv) as running:
        yield running


def refused(answer: object, status: int, text: str) -> None:
    assert answer.status_code == status, answer.text  # type: ignore[attr-defined]
    assert text in answer.text.replace("<wbr>", "")  # type: ignore[attr-defined]


def test_a_topic_is_created_changed_and_deleted(browser: Browser, admin: Admin, group: str) -> None:
    name = f"made-{group}"
    fields: dict[str, object] = {"name": name, "queues": "3", "type": "FIFO", "perm": "rw"}
    created = browser.send("/topic/new", "/topic/new", fields)
    assert (created.status_code, created.headers["location"]) == (303, f"/topic?name={name}&done=topic-created")
    assert "The topic was created." in browser.get(created.headers["location"]).text
    config = admin.topic_configs(name)["broker-a"]
    assert (config.read_queue_nums, config.write_queue_nums, config.attributes) == (3, 3, {"message.type": "FIFO"})
    refused(browser.send("/topic/new", "/topic/new", fields), 400, "nothing was changed")

    shown = f"/topic?name={name}&tab=config"
    changes: dict[str, object] = {"read_queues": "4", "write_queues": "4", "perm": "rw"}
    assert browser.send(shown, f"/topic/update?name={name}", changes).status_code == 303
    config = admin.topic_configs(name)["broker-b"]
    assert (config.read_queue_nums, config.attributes) == (4, {"message.type": "FIFO"})

    deletion = f"/topic/delete?name={name}"
    refused(browser.send(deletion, "/topic/delete", {"typed": "another"}), 400, "nothing was changed")
    assert name in admin.topics()
    assert browser.send(deletion, "/topic/delete", {"typed": name}).status_code == 303
    assert name not in admin.topics()


@pytest.mark.parametrize(
    "fields", [{"name": "a b"}, {"name": ""}, {"name": "%RETRY%g"}, {"queues": "0"}, {"queues": "x"}, {"perm": "rwx"},
               {"type": "OTHER"}],
)  # fmt: skip
def test_a_topic_that_cannot_be_is_refused(browser: Browser, fields: dict[str, str]) -> None:
    whole = {"name": "never-made", "queues": "1", "type": "", "perm": "rw", **fields}
    assert browser.send("/topic/new", "/topic/new", whole).status_code == 400  # type: ignore[arg-type]


def test_a_topic_that_changed_since_its_form_was_shown_stays(
    browser: Browser, admin: Admin, make_topic: Callable[..., str]
) -> None:
    name = make_topic(2)
    page = browser.get(f"/topic?name={name}&tab=config").text
    plan = browser.hidden(page, "plan")
    admin.update_topic(name, 5)
    fields: dict[str, object] = {"plan": plan, "read_queues": "4", "write_queues": "4", "perm": "rw"}
    refused(browser.send(f"/topic?name={name}&tab=config", "/topic/update", fields), 409, "nothing was changed")
    assert admin.topic_configs(name)["broker-a"].read_queue_nums == 5
    seen = browser.hidden(browser.get(f"/topic/delete?name={name}").text, "plan")
    admin.update_topic(name, 6)
    answer = browser.send(f"/topic/delete?name={name}", "/topic/delete", {"plan": seen, "typed": name})
    refused(answer, 409, "nothing was deleted")
    assert name in admin.topics()


def test_messages_are_not_hidden_by_fewer_queues(
    browser: Browser, cluster: LocalCluster, make_topic: Callable[..., str]
) -> None:
    name = make_topic(2)
    with rmq.Producer(cluster.namesrv, group="console-tests") as producer:
        for _ in range(8):
            producer.send(name, b"x")
    fields: dict[str, object] = {"read_queues": "1", "write_queues": "1", "perm": "rw"}
    answer = browser.send(f"/topic?name={name}&tab=config", "/topic/update", fields)
    refused(answer, 400, "could not be read any more")


def test_a_topic_of_the_system_stays(browser: Browser) -> None:
    assert browser.get("/topic/delete?name=broker-a").status_code == 403


def test_a_message_is_published(browser: Browser, admin: Admin, make_topic: Callable[..., str]) -> None:
    name = make_topic(1)
    fields: dict[str, object] = {
        "body": "Grüße\r\nzwei", "tag": "paid", "keys": "k1 k2", "properties": "a=1\r\nb = two=2",
    }  # fmt: skip
    answer = browser.send(f"/topic?name={name}&tab=publish", f"/topic/publish?name={name}", fields)
    assert answer.status_code == 200, answer.text
    assert "The message was stored" in answer.text
    shown = html.unescape(answer.text)
    assert "-t paid -k k1 -k k2 -H a=1 -H b=two=2 -- " in shown
    assert """'Grüße\\nzwei', tag='paid', keys=['k1', 'k2'], properties={'a': '1', 'b': 'two=2'})""" in shown
    assert answer.text.count('value="k1 k2"') == 1  # the form is as it was sent
    [message] = admin.query_messages(name, "k2")
    assert (message.text(), message.tag, message.keys) == ("Grüße\nzwei", "paid", ("k1", "k2"))
    assert (message.properties["a"], message.properties["b"]) == ("1", "two=2")
    for wrong in ({"body": ""}, {"properties": "no value"}, {"properties": "UNIQ_KEY=x"}):
        address = f"/topic?name={name}&tab=publish"
        assert browser.send(address, f"/topic/publish?name={name}", {**fields, **wrong}).status_code == 400


def test_offsets_are_reset_as_planned_or_not_at_all(
    browser: Browser, admin: Admin, cluster: LocalCluster, make_topic: Callable[..., str], group: str
) -> None:
    topic = make_topic(1)
    with rmq.Producer(cluster.namesrv, group="console-tests") as producer:
        for _ in range(6):
            producer.send(topic, b"x")
    admin.create_group(group)
    queues = admin.queues(topic)
    for queue in queues:
        admin.update_consumer_offset(group, queue, 2)
    shown = f"/group/reset?name={group}&topic={topic}&to=earliest"
    page = browser.get(shown).text
    assert "4 messages consumed again" in re.sub(r"\s+", " ", page)
    stale = browser.hidden(page, "plan")
    refused(browser.send(shown, f"/group/reset?name={group}", {"typed": "x"}), 400, "nothing was changed")
    assert browser.send(shown, f"/group/reset?name={group}", {"typed": group}).status_code == 303
    assert [admin.consumer_offset(group, queue) for queue in queues] == [0, 0]
    answer = browser.send(shown, f"/group/reset?name={group}", {"plan": stale, "typed": group})
    refused(answer, 409, "has moved")
    assert [admin.consumer_offset(group, queue) for queue in queues] == [0, 0]
    for target, status in {"latest": 200, "@10m": 200, "1": 200, "+1": 200, "-1": 200, "soon": 400, "@x": 400}.items():
        address = f"/group/reset?name={group}&topic={topic}&to={target.replace('+', '%2B')}"
        assert browser.get(address).status_code == status, target
    assert browser.get(f"/group/reset?name={group}&topic=%25DLQ%25{group}&to=latest").status_code == 400


@pytest.fixture
def dead(cluster: LocalCluster, make_topic: Callable[..., str], group: str) -> list[str]:
    """Three dead letters of a group, as places."""
    topic = make_topic(1)

    def fail(message: rmq.ReceivedMessage) -> None:
        raise rmq.RetryLater

    with rmq.Producer(cluster.namesrv, group="console-tests") as producer:
        for number in range(3):
            producer.send(topic, f"dead {number}".encode(), keys=f"dead-{number}")
    with rmq.PushConsumer(cluster.namesrv, group=group, start_from="first", max_reconsume_times=0) as consumer:
        consumer.subscribe(topic, handler=fail)
        consumer.start()
        with rmq.PullConsumer(cluster.namesrv, group=f"see-{group}", start_from="first") as watcher:
            watcher.subscribe(f"%DLQ%{group}")
            seen: list[rmq.ReceivedMessage] = []
            while len(seen) < 3:
                page = watcher.poll(timeout=20.0)
                assert page, "no dead letters came"
                seen += page
    return [f"{each.queue.broker}/{each.queue.queue_id}/{each.offset}" for each in seen]


def test_dead_letters_are_listed_redriven_exported_and_purged(
    browser: Browser, admin: Admin, group: str, dead: list[str]
) -> None:
    address = f"/dead-letters/group?name={group}"
    page = browser.get(address).text
    for text in (*dead, "dead-0", "dead 2"):
        assert text in page, text
    assert "dead-1" not in browser.get(f"{address}&q=dead-2").text
    rows = {row["place"]: row for row in browser.api(address)}
    assert sorted(rows) == sorted(dead)

    refused(browser.send(address, f"/dead-letters/redrive?name={group}", {}), 400, "choose 1 to")
    wrong: dict[str, object] = {"place": "broker-a/9/x"}
    refused(browser.send(address, f"/dead-letters/redrive?name={group}", wrong), 400, "invalid position")
    broker = dead[0].split("/")[0]
    gone = f"{broker}/0/999"
    chosen: dict[str, object] = {"place": [dead[0], gone]}
    answer = browser.send(address, f"/dead-letters/redrive?name={group}", chosen)
    assert answer.status_code == 200
    states = dict(re.findall(r'<td class="mono">([^<]+)</td><td><span class="pill \w*">(\w+)</span>', answer.text))
    assert states == {dead[0]: "done", gone: "failed"}
    retried = admin.topic_stats(f"%RETRY%{group}")
    assert sum(each.max_offset for each in retried.values()) <= 1  # its delay of a second may not be over

    lines = browser.get(f"/dead-letters/export?name={group}").text.splitlines()
    assert sorted(json.loads(line)["body"] for line in lines) == ["dead 0", "dead 1", "dead 2"]

    purging = f"/dead-letters/purge?name={group}"
    assert browser.send(purging, "/dead-letters/purge", {"typed": group}).status_code == 303
    assert f"%DLQ%{group}" not in admin.topics()


def test_dead_letters_that_came_since_the_plan_keep_all_of_them(
    browser: Browser, admin: Admin, cluster: LocalCluster, group: str
) -> None:
    topic = f"%DLQ%{group}"
    admin.create_topic(topic, 1)
    with rmq.Producer(cluster.namesrv, group="console-tests") as producer:
        producer.send(topic, b"one", queue=MessageQueue(topic, "broker-a", 0))
        page = browser.get(f"/dead-letters/purge?name={group}").text
        plan = browser.hidden(page, "plan")
        producer.send(topic, b"two", queue=MessageQueue(topic, "broker-a", 0))
    answer = browser.send(f"/dead-letters/purge?name={group}", "/dead-letters/purge", {"plan": plan, "typed": group})
    refused(answer, 409, "nothing was deleted")
    assert topic in admin.topics()


def test_all_dead_letters_are_redriven_at_a_rate_once_their_plan_was_shown(
    browser: Browser, admin: Admin, cluster: LocalCluster, group: str
) -> None:
    topic = f"%DLQ%{group}"
    admin.create_topic(topic, 1)
    admin.create_group(group)
    with rmq.Producer(cluster.namesrv, group="console-tests") as producer:
        for number in range(6):
            producer.send(topic, f"dead {number}".encode(), queue=MessageQueue(topic, "broker-a", 0))
    shown = f"/dead-letters/redrive-all?name={group}"
    plan = browser.api(f"{shown}&rate=1")
    assert (plan["messages"], plan["seconds"], plan["redrive"]) == (6, 6.0, None)
    assert [row["left"] for row in plan["queues"]] == [6, 0]
    refused(browser.send(f"{shown}&rate=1", shown, {"typed": "another"}), 400, "nothing was changed")
    assert browser.get(f"{shown}&rate=0").status_code == 400
    stale = browser.hidden(browser.get(shown).text, "plan")

    def left() -> int:
        return sum(each.end - each.redriven for each in admin.dead_letter_queues(group))

    assert left() == 6  # a plan changes nothing
    started = browser.send(f"{shown}&rate=1", shown, {"typed": group})
    assert (started.status_code, browser.api(shown)["redrive"]["state"]) == (303, "running")
    refused(browser.send(shown, shown, {"typed": group}), 503, "are being redriven")
    page = f"/dead-letters/group?name={group}"
    shown_running = browser.get(page).text
    assert ">running<" in shown_running
    assert "Redrive all" not in shown_running
    while left() == 6:
        time.sleep(0.01)
    assert browser.send(page, f"/dead-letters/redrive-stop?name={group}", {}).status_code == 303
    stopped = browser.api(shown)["redrive"]
    assert stopped["state"] == "stopped"
    assert left() == 6 - stopped["done"] > 0

    refused(browser.send(shown, shown, {"plan": stale, "typed": group}), 409, "nothing was redriven")
    assert browser.send(f"{shown}&rate=10000", shown, {"typed": group}).status_code == 303
    while (plan := browser.api(shown))["redrive"]["state"] == "running":
        time.sleep(0.001)  # over HTTP nothing tells of the end; short, so that the page is asked for around it
    redrive = plan["redrive"]
    assert (redrive["state"], redrive["done"], redrive["error"]) == ("done", redrive["count"], None)
    assert plan["messages"] == 0, "what is done has nothing left, in one page"
    assert left() == 0
    assert "was redriven" in browser.get(shown).text


def test_each_write_is_a_line_of_the_audit(
    browser: Browser, make_topic: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    name = make_topic(2)
    shown = f"/topic?name={name}&tab=config"
    changes: dict[str, object] = {"read_queues": "4", "write_queues": "4", "perm": "rw"}
    with caplog.at_level("INFO", "rocketcore.console.audit"):
        assert browser.send(shown, f"/topic/update?name={name}", changes).status_code == 303
        refused(browser.send(f"/topic/delete?name={name}", "/topic/delete", {"typed": "x"}), 400, "nothing was changed")
    deleted, changed = browser.api(f"/audit?q={name}")[:2]
    assert (changed["action"], changed["result"], changed["after"]) == ("topic/update", "done", "[4, 4, 'rw']")
    assert "['broker-a', 2, 2, 'rw']" in changed["before"]
    assert (deleted["action"], deleted["name"], deleted["result"]) == ("topic/delete", name, "refused")
    assert f"action=topic/update name={name} by=None" in caplog.text
    page = browser.get("/audit").text
    assert page.index("topic/delete</td>") < page.index("topic/update</td>")
    assert "nothing was changed" in page

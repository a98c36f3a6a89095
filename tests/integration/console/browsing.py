"""What tests in a browser share, whoever made the servers behind the console."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import rocketcore as rmq
from rocketcore.admin.client import Admin
from rocketcore.console.serve import ConsoleThread
from rocketcore.console.settings import ConsoleSettings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip

TOPIC, GROUP = "browser-orders", "browser-shop"


@contextmanager
def launched() -> Iterator[Browser]:
    """Run Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def console_over(namesrv: str) -> Iterator[str]:
    """Serve a console over a cluster that gets a topic, a group and dead letters; yield its address."""
    with Admin(namesrv) as admin:
        admin.create_topic(TOPIC, 2)
        admin.create_topic(f"%DLQ%{GROUP}", 1)
        admin.create_group(GROUP)
        for queue in admin.queues(TOPIC):
            admin.update_consumer_offset(GROUP, queue, 0)
    with rmq.Producer(namesrv, group="browser-tests") as producer:
        for number in range(6):
            producer.send(TOPIC, f'{{"id": {number}}}'.encode(), tag="paid", keys=f"key-{number}")
            producer.send(f"%DLQ%{GROUP}", f"dead {number}".encode())
    console = ConsoleThread(ConsoleSettings(namesrv=namesrv, listen="127.0.0.1:0"))
    console.start()
    yield f"http://{console.address}"
    console.stop()


def heard(page: Page, complaints: list[str]) -> Page:
    """Write down what a page complains of."""

    def told(message: ConsoleMessage) -> None:
        # An "info" is no complaint: the browser tells so that whoever types first keeps the field from an autofocus.
        if message.type != "info":
            complaints.append(f"{page.url}: {message.type} {message.text}")

    page.on("console", told)
    page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))
    return page


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
    "message-resend": f"/message/resend?{PLACE}&group={GROUP}",
    "groups": "/groups?kind=all",
    **{f"group-{tab}": f"/group?name={GROUP}&tab={tab}" for tab in ("queues", "members", "config")},
    "group-reset": f"/group/reset?name={GROUP}&topic={TOPIC}&to=latest",
    "dead-letters": "/dead-letters",
    "dead-letters-group": f"/dead-letters/group?name={GROUP}",
    "dead-letters-redrive": f"/dead-letters/redrive-all?name={GROUP}",
    "dead-letters-purge": f"/dead-letters/purge?name={GROUP}",
    "clients": f"/clients?group={GROUP}",
    "brokers": "/brokers",
    "broker": "/broker?name=broker-a",
    "broker-config": "/broker?name=broker-a&tab=config",
    "rates": "/rates",
    "audit": "/audit",
    "login": "/login",
}  # fmt: skip


def write_everything(page: Page, namesrv: str) -> None:
    """Change what the console can change, by its forms, and see that it is done."""
    from playwright.sync_api import expect

    page.goto("/topics")
    page.get_by_role("link", name="New topic").click()
    page.get_by_label("Name").fill("browser-made")
    page.get_by_label("Queues on each broker").fill("3")
    page.get_by_role("button", name="Create").click()
    page.wait_for_url("**/topic?name=browser-made&done=topic-created")
    assert page.get_by_role("status").inner_text().strip() == "The topic was created."

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
    expect(page.locator("main")).to_contain_text("from a browser")

    page.goto("/topic/delete?name=browser-made")
    page.locator("input[name=typed]").fill("browser-made")
    page.get_by_role("button", name="Delete the topic").click()
    page.wait_for_url("**/topics?done=topic-deleted")

    page.goto(f"/group/reset?name={GROUP}")
    page.get_by_label("Topic", exact=True).fill(TOPIC)
    page.get_by_label("Where the group continues").fill("latest")
    page.get_by_role("button", name="Show the plan").click()
    page.locator("input[name=typed]").fill(GROUP)
    page.get_by_role("button", name="Reset the offsets").click()
    page.wait_for_url("**done=offsets-reset**")
    with Admin(namesrv) as admin:
        assert all(row.lag == 0 for row in admin.offsets(GROUP, TOPIC))

    with rmq.PushConsumer(namesrv, group=GROUP, start_from="first") as consumer:
        consumer.subscribe(TOPIC, handler=lambda message: None)
        consumer.start()
        page.goto(f"/message?{PLACE}")
        page.get_by_role("link", name="Resend").click()
        page.get_by_role("button", name="Resend").click()
        expect(page.get_by_role("status")).to_contain_text("done")

    page.goto(f"/dead-letters/group?name={GROUP}")
    page.locator("tbody input[type=checkbox]").first.check()
    page.get_by_role("button", name="Redrive the chosen ones").click()
    expect(page.get_by_role("status").locator(".pill")).to_have_text("done")
    page.get_by_role("link", name="Redrive all").click()
    page.get_by_label("Messages per second, at most").fill("1000")
    page.get_by_role("button", name="Show the plan").click()
    page.locator("input[name=typed]").fill(GROUP)
    page.get_by_role("button", name="Redrive them").click()
    page.wait_for_url("**done=redrive-started")
    page.locator("#redrive .pill.good").wait_for()
    assert page.locator("#redrive dd").last.inner_text() == "0 messages"
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").click()
    assert Path(download.value.path()).read_text("utf-8").count("\n") == 6
    page.get_by_role("link", name="Delete all").click()
    page.locator("input[name=typed]").fill(GROUP)
    page.get_by_role("button", name="Delete the dead letters").click()
    page.wait_for_url("**/dead-letters?done=purged")

    page.goto("/audit")
    assert set(page.locator("tbody td:nth-child(2)").all_inner_texts()) == {
        "topic/new", "topic/update", "topic/publish", "topic/delete", "group/reset", "message/resend",
        "dead-letters/redrive", "dead-letters/redrive-all", "dead-letters/purge",
    }  # fmt: skip
    assert page.locator("tbody .pill.bad").count() == 0

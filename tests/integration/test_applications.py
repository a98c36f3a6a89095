"""The programs of examples/applications, as the pages show them: run as processes, with a cluster that is not there
yet, signals, restarts and forks.

``python -m tests.integration.test_applications`` writes the programs into the pages.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from rocketcore.admin.client import Admin
from rocketcore.client.sync import Producer
from rocketcore.local import LocalCluster
from rocketcore.message import ReceivedMessage
from rocketcore.testing import TestClients
from tests.fixtures.pages import PAGES, table_of, write_tables
from tests.fixtures.waiting import until

LIST = PAGES / "applications.md"
TEST = "tests.integration.test_applications"
FOLDER = Path(__file__).parents[2] / "examples" / "applications"
PROGRAMS = sorted(path.name for path in FOLDER.glob("*.py"))


def shown(name: str) -> str:
    return f"```python\n{(FOLDER / name).read_text('utf-8')}```\n"


def page_of(name: str) -> Path:
    """Return the one page that shows a program."""
    [page] = [page for page in PAGES.glob("*.md") if f"<!-- {name}: written by" in page.read_text("utf-8")]
    return page


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_page_has_the_program(name: str) -> None:
    assert table_of(page_of(name), name, TEST) == shown(name)
    assert f"| `{name}` |" in LIST.read_text("utf-8")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_short(name: str) -> None:
    assert len((FOLDER / name).read_text("utf-8").splitlines()) <= 70


class Application:
    """A program of the folder as a process; what it prints is in ``said``."""

    def __init__(self, folder: Path, namesrv: str, *command: str) -> None:
        self._output = folder / f"said-{len(list(folder.glob('said-*')))}"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=FOLDER,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "ROCKETMQ_NAMESRV_ADDR": namesrv, "PYTHONUNBUFFERED": "1"},
            )

    @property
    def said(self) -> str:
        return self._output.read_text()

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until it has printed a text so many times."""

        def holds() -> bool:
            assert self.process.poll() is None or self.said.count(text) >= times, self.said
            return self.said.count(text) >= times

        until(holds)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """A cluster for one test: the programs have the names of topics and groups in them."""
    properties = {"transactionTimeOut": "100", "transactionCheckInterval": "200", "transactionCheckMax": "1000"}
    with LocalCluster(properties=properties) as running:
        yield running


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Application]]:
    """``start(namesrv, argument…)`` runs Python with these arguments in the folder of the programs."""
    running: list[Application] = []

    def run(namesrv: str, *command: str) -> Application:
        running.append(Application(tmp_path, namesrv, *command))
        return running[-1]

    yield run
    for application in running:
        application.process.kill()
        application.process.wait()


def messages_of(cluster: LocalCluster, topic: str, expect: int) -> list[ReceivedMessage]:
    with ExitStack() as stack:
        admin = stack.enter_context(Admin(cluster.namesrv))
        until(lambda: topic in admin.topics())
        return TestClients(cluster, admin, stack).drain(topic, expect=expect, timeout=60)


def place_orders(cluster: LocalCluster, numbers: range) -> set[str]:
    with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv, group="shop") as producer:
        admin.create_topic("orders", exist_ok=True)
        for number in numbers:
            producer.send_nowait("orders", json={"id": f"o-{number}", "amount": 100}, tag="created", keys=f"o-{number}")
        producer.flush()
    return {f"o-{number}" for number in numbers}


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def post(address: str, order: dict[str, object]) -> int:
    request = urllib.request.Request(address, json.dumps(order).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_web_service_starts_without_a_cluster_and_works_when_there_is_one(
    start: Callable[..., Application],
) -> None:
    pytest.importorskip("fastapi")
    name_server, port = free_port(), free_port()
    web = start(f"127.0.0.1:{name_server}", "-m", "uvicorn", "web:app", "--port", str(port))
    web.wait_for("Uvicorn running on")
    orders = f"http://127.0.0.1:{port}/orders"
    assert post(orders, {"id": "o-1", "amount": 1}) == 503
    assert post(orders, {"id": "o-1"}) == 422
    with LocalCluster(namesrv_port=name_server) as cluster:
        until(lambda: post(orders, {"id": "o-2", "amount": 2}) == 201)
        [message, *_] = messages_of(cluster, "orders", 1)
        assert (message.json(), message.keys, message.tag) == ({"id": "o-2", "amount": 2}, ("o-2",), "created")
        assert web.end() in (0, -signal.SIGTERM), web.said  # newer uvicorns raise the signal again at their end
    assert "Application shutdown complete" in web.said
    assert "Traceback" not in web.said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_stopped_handles_nothing_twice(
    cluster: LocalCluster, start: Callable[..., Application], number: signal.Signals
) -> None:
    orders = place_orders(cluster, range(3000))
    first = start(cluster.namesrv, "worker.py")
    first.wait_for("billed")
    assert first.end(number) == 0, first.said
    orders |= place_orders(cluster, range(3000, 3010))
    second = start(cluster.namesrv, "worker.py")
    until(lambda: first.said.count("billed") + second.said.count("billed") >= len(orders))
    assert second.end() == 0, second.said
    billed = re.findall(r"billed (o-\d+): 100", first.said + second.said)
    assert (len(billed), set(billed)) == (len(orders), orders)


def test_processes_that_gunicorn_forks_send(cluster: LocalCluster, start: Callable[..., Application]) -> None:
    pytest.importorskip("gunicorn")
    web = start(
        cluster.namesrv, "-m", "gunicorn", "--preload", "--workers", "2", "--bind", "127.0.0.1:0", "preloaded:app"
    )  # fmt: skip
    web.wait_for("Booting worker", 2)
    [address] = re.findall(r"Listening at: (\S+)", web.said)
    for number in range(20):
        assert post(address, {"id": f"o-{number}", "amount": 1}) == 201, web.said
    assert {message.json()["id"] for message in messages_of(cluster, "orders", 20)} == {f"o-{n}" for n in range(20)}
    assert web.end() == 0, web.said
    assert "Traceback" not in web.said


SETTINGS = """
SECRET_KEY = "x"
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
"""
URLS = """
from django.urls import path
from shop import views
urlpatterns = [path("orders", views.create)]
"""


def write_django_project(folder: Path) -> None:
    """Write the files that docs/asyncio.md shows, each with its name in its first line, and what every project has."""
    files = re.findall(r"^```python\n# (shop/\S+)\n(.*?)^```$", (PAGES / "asyncio.md").read_text("utf-8"), re.M | re.S)
    assert len(files) == 3
    packages = {Path(name).parent / "__init__.py": "" for name, _ in files}
    commands = Path("shop", "management", "__init__.py")
    for name, text in {**packages, commands: "", "settings.py": SETTINGS, "shop/urls.py": URLS, **dict(files)}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_a_django_project_sends_and_consumes(
    cluster: LocalCluster, start: Callable[..., Application], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("django")
    write_django_project(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.getcwd()}")
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "settings")
    program = """
        import django
        django.setup()
        from django.test import Client
        print(Client().post("/orders", {"id": 7}, content_type="application/json").status_code)
    """
    posted = start(cluster.namesrv, "-c", textwrap.dedent(program))
    assert posted.process.wait(60) == 0, posted.said
    assert posted.said == "201\n"
    billing = start(cluster.namesrv, "-m", "django", "bill")
    billing.wait_for('billed {"id": 7}')
    assert billing.end() == 0, billing.said
    refused = start("127.0.0.1:1", "-c", textwrap.dedent(program))
    assert refused.process.wait(60) == 0, refused.said
    assert "503\n" in refused.said


def test_the_tests_pass() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER / "test_shop.py")]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=120)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_an_outbox_loses_nothing_while_the_cluster_is_away_or_the_relay_dies(
    start: Callable[..., Application], tmp_path: Path
) -> None:
    path, name_server = str(tmp_path / "shop.db"), free_port()
    relay = start(f"127.0.0.1:{name_server}", "outbox.py", path)
    until(lambda: Path(path).exists())

    def place(*ids: str) -> None:
        program = """
            import outbox, sqlite3, sys
            database = sqlite3.connect(sys.argv[1], timeout=30)
            database.executescript(outbox.TABLES)
            for order in sys.argv[2:]:
                outbox.place_order(database, order, 1)
            database.close()
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(program), path, *ids], cwd=FOLDER, check=True, timeout=60)

    place("a", "b")
    relay.wait_for("not sent, and tried again")
    with LocalCluster(namesrv_port=name_server) as cluster:
        assert {message.keys[0] for message in messages_of(cluster, "orders", 2)} == {"a", "b"}
        relay.end(signal.SIGKILL)
        place("c")
        again = start(cluster.namesrv, "outbox.py", path)
        assert {message.keys[0] for message in messages_of(cluster, "orders", 3)} == {"a", "b", "c"}
        with closing(sqlite3.connect(path, timeout=30)) as database:
            until(lambda: database.execute("SELECT count(*) FROM outbox").fetchone() == (0,))
        assert again.end() == 0, again.said


def test_steps_are_handled_in_order_though_one_fails(cluster: LocalCluster, start: Callable[..., Application]) -> None:
    worker = start(cluster.namesrv, "ordered.py")
    worker.wait_for("shipped", 2)
    assert worker.end() == 0, worker.said
    steps = [line.split() for line in worker.said.splitlines() if line.startswith("o-")]
    for order in ("o-1", "o-2"):
        assert [step for each, step in steps if each == order] == ["created", "paid", "shipped"]


def test_questions_are_answered(cluster: LocalCluster, start: Callable[..., Application]) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("quotes")
        server = start(cluster.namesrv, "quotes.py", "serve")
        until(lambda: "quotes" in admin.groups() and admin.consumer_connections("quotes"))
    asked = start(cluster.namesrv, "quotes.py", "ask", "ACME", "INIT", "NONE")
    assert asked.process.wait(60) == 0, asked.said
    assert asked.said.splitlines() == ["ACME 12.5", "INIT 99.0", "NONE None"]
    assert server.end() == 0, server.said


def test_a_payment_and_its_message_are_there_both_or_neither(
    cluster: LocalCluster, start: Callable[..., Application], tmp_path: Path
) -> None:
    path = str(tmp_path / "bank.db")
    paid = start(cluster.namesrv, "payments.py", path, "p-1", "250")
    assert paid.process.wait(60) == 0, paid.said
    refused = start(cluster.namesrv, "payments.py", path, "p-2", "-5")
    assert refused.process.wait(60) == 1
    assert "IntegrityError" in refused.said
    # Dies after the database has committed, and before the broker heard of it; and before anything was committed.
    program = """
        import os, sys, payments, rocketcore as rmq
        path, payment, commits = sys.argv[1:]
        with payments.producer_of(path) as producer:
            with producer.transaction(rmq.Message("payments", json={"id": payment}, keys=payment)):
                if commits == "yes":
                    with payments.connect(path) as database:
                        database.execute("INSERT INTO payments VALUES (?, 1)", (payment,))
                os._exit(9)
    """
    for payment, commits in (("p-3", "yes"), ("p-4", "no")):
        died = start(cluster.namesrv, "-c", textwrap.dedent(program), path, payment, commits)
        assert died.process.wait(60) == 9, died.said
    last = start(cluster.namesrv, "-c", "import payments, sys; p = payments.producer_of(sys.argv[1]); p.start(); "
                 "import signal; signal.pause()", path)  # fmt: skip
    assert {message.keys[0] for message in messages_of(cluster, "payments", 2)} == {"p-1", "p-3"}
    last.end()
    with closing(sqlite3.connect(path)) as database:
        assert {row[0] for row in database.execute("SELECT id FROM payments")} == {"p-1", "p-3"}


def test_a_service_that_is_stopped_sends_each_invoice_once(
    cluster: LocalCluster, start: Callable[..., Application]
) -> None:
    orders = place_orders(cluster, range(600))
    first = start(cluster.namesrv, "service.py")
    first.wait_for("service order")
    # 128 + 15 where the signal comes between ``subscribe``, which begins, and ``run``: that leaves in order, too.
    assert first.end() in (0, 128 + signal.SIGTERM), first.said
    orders |= place_orders(cluster, range(600, 610))
    second = start(cluster.namesrv, "service.py")
    until(lambda: first.said.count("service order") + second.said.count("service order") >= len(orders))
    assert second.end(signal.SIGINT) == 0, second.said
    invoices = [message.json() for message in messages_of(cluster, "invoices", len(orders))]
    assert (len(invoices), {invoice["order"] for invoice in invoices}) == (len(orders), orders)
    assert {invoice["total"] for invoice in invoices} == {119}


if __name__ == "__main__":
    for name in PROGRAMS:
        write_tables(page_of(name), {name: shown(name)}, TEST)

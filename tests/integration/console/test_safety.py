"""What a console refuses: other names, other origins, other browsers, too much, and names that are no names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.requests import Request

from rocketcore.admin.client import Admin
from rocketcore.console import console as console_module
from rocketcore.console.accounts import MOST_FAILURES, Sessions, account_line, read_accounts, verify
from rocketcore.console.safety import MOST_BODY_BYTES, PLAN_SECONDS, BadRequest, Forbidden, Guard, read_form
from rocketcore.console.settings import ClusterSettings, ConsoleSettings
from rocketcore.errors import ConfigError
from rocketcore.local import LocalCluster
from rocketcore.service import ManualClock
from tests.integration.console.conftest import ORIGIN, Browser

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


@pytest.mark.parametrize("listen", ["0.0.0.0:9880", "10.0.0.1:9880", "[::]:9880", "console.example:9880"])
def test_other_machines_need_accounts_or_a_console_that_changes_nothing(listen: str) -> None:
    with pytest.raises(ConfigError, match="--auth FILE, or --readonly"):
        ConsoleSettings(listen=listen)
    ConsoleSettings(listen=listen, readonly=True)
    ConsoleSettings(listen=listen, accounts={"ada": ("admin", "…")})


@pytest.mark.parametrize("listen", ["127.0.0.1:9880", "[::1]:9880", "localhost:0"])
def test_this_machine_alone_needs_neither(listen: str) -> None:
    ConsoleSettings(listen=listen)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9880", 200), ("localhost", 200), ("[::1]:9880", 200), ("10.1.2.3", 200), ("console.example", 200),
        ("evil.example", 421), ("127.0.0.1.evil.example", 421), ("localhost.evil.example:9880", 421),
        ("[::1", 421), ("evil.example@127.0.0.1:x", 421),
    ],
)  # fmt: skip
def test_a_name_that_was_turned_to_this_address_is_refused(
    open_console: Callable[..., Browser], host: str, status: int
) -> None:
    browser = open_console(hosts=("console.example",))
    assert browser.get("/livez", Host=host).status_code == status


def test_without_any_name_probes_alone_are_answered(open_console: Callable[..., Browser]) -> None:
    """As load balancers ask by HTTP/1.0, and no browser."""
    browser = open_console()
    assert browser.get("/livez", Host="").status_code == 200
    assert browser.get("/readyz", Host="").status_code == 200
    for address in ("/topics", "/metrics", "/api/v1/topics", "/livez/"):
        assert browser.get(address, Host="").status_code == 421


def test_every_answer_carries_the_policy(browser: Browser) -> None:
    for address in ("/", "/nothing", "/api/v1/brokers", "/static/console.css", "/livez", "/api/v1/nothing"):
        headers = browser.get(address).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'self'")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
    assert browser.get("/nothing", Host="evil.example").headers["x-frame-options"] == "DENY"


def test_cookies_are_for_this_console_alone(browser: Browser) -> None:
    for address in ("/", "/preferences?theme=dark&back=/"):
        for cookie in browser.get(address).headers.get_list("set-cookie"):
            assert "HttpOnly" in cookie
            assert "SameSite=strict" in cookie


def test_a_write_comes_from_a_form_of_this_browser(browser: Browser, cluster: LocalCluster) -> None:
    fields: dict[str, object] = {"name": "never-made", "queues": "1", "perm": "rw", "type": ""}
    refused = [
        browser.send("/topic/new", "/topic/new", fields, Origin="http://evil.example"),
        browser.send("/topic/new", "/topic/new", fields, Origin="http://127.0.0.1:9881"),
        browser.send("/topic/new", "/topic/new", fields, Origin="null"),
        browser.send("/topic/new", "/topic/new", fields, Origin=""),
        browser.send("/topic/new", "/topic/new", fields, **{"Sec-Fetch-Site": "cross-site"}),
        browser.send("/topic/new", "/topic/new", {**fields, "csrf": ""}),
        browser.send("/topic/new", "/topic/new", {**fields, "csrf": "0" * 64}),
        browser.send("/topic/new", "/topic/new", {**fields, "csrf": Guard().token("x")}),
    ]
    assert [answer.status_code for answer in refused] == [403] * len(refused)
    browser.client.cookies.clear()
    without = browser.client.post("/topic/new", data=fields, headers={"Origin": ORIGIN})
    assert without.status_code == 403
    with Admin(cluster.namesrv) as admin:
        assert "never-made" not in admin.topics()


def test_a_console_that_changes_nothing_has_no_forms_and_takes_none(open_console: Callable[..., Browser]) -> None:
    browser = open_console(readonly=True)
    assert 'href="/topic/new"' not in browser.get("/topics").text
    answer = browser.send("/topic/new", "/topic/new", {"name": "never-made", "queues": "1"})
    assert answer.status_code == 403
    assert "read-only" in answer.text


def test_what_is_sent_is_bounded(browser: Browser) -> None:
    page = browser.get("/topic/new").text
    token = browser.hidden(page, "csrf")
    headers = {"Origin": ORIGIN, "Content-Type": "application/x-www-form-urlencoded"}

    def post(content: object, **more: str) -> int:
        sent = {**headers, **more}
        return browser.client.post("/topic/new", content=content, headers=sent).status_code  # type: ignore[arg-type]

    assert post(b"csrf=" + b"x" * MOST_BODY_BYTES) == 413

    def chunks():  # type: ignore[no-untyped-def]
        for _ in range(MOST_BODY_BYTES // 65536 + 2):
            yield b"x" * 65536

    assert post(chunks()) == 400
    assert post(b"&".join(b"a%d=1" % number for number in range(5000))) == 400
    assert post(f"csrf={token}&name=%ff".encode()) == 400
    assert post(b"{}", **{"Content-Type": "application/json"}) == 400
    assert post(b"a=1", **{"Content-Type": "multipart/form-data; boundary=x"}) == 400
    assert browser.client.request("DELETE", "/topic").status_code == 405
    assert browser.client.request("OPTIONS", "/").status_code == 405


def test_a_form_that_breaks_off_is_a_bad_request() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    headers = [(b"content-type", b"application/x-www-form-urlencoded")]
    request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
    with pytest.raises(BadRequest, match="did not come to its end"):
        asyncio.run(read_form(request))


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd", "/static/vendor"],
)
def test_files_beside_the_static_ones_are_not_served(browser: Browser, path: str) -> None:
    assert browser.get(path).status_code == 404


def test_names_from_the_address_are_shown_as_text(browser: Browser) -> None:
    """Also where there is no such thing, and in every field that a page shows again."""
    name = quote(HOSTILE)
    for address in (
        f"/topic?name={name}", f"/topics?q={name}", f"/search?topic={name}&q={name}", f"/group?name={name}",
        f"/group/reset?name={name}&topic={name}&to={name}", f"/dead-letters/group?name={name}&q={name}",
        f"/clients?group={name}&q={name}", f"/topics?sort={name}", f"/broker?name={name}", f"/nothing/{name}",
        f"/topic?name={name}&tab={name}", f"/client?group={name}&id={name}", f"/audit?q={name}", f"/c/{name}/topics",
        f"/message/resend?topic={name}&broker={name}&group={name}",
    ):  # fmt: skip
        page = browser.get(address).text
        assert "<script>alert" not in page, address
        assert "<img src=x" not in page, address


def test_names_in_the_audit_and_of_clusters_are_shown_as_text(
    open_console: Callable[..., Browser], cluster: LocalCluster
) -> None:
    hostile = HOSTILE.replace("/", "!")
    browser = open_console(clusters={hostile: ClusterSettings(namesrv=cluster.namesrv)})
    base = f"/c/{quote(hostile)}"
    fields: dict[str, object] = {"name": HOSTILE, "queues": "1", "type": "", "perm": "rw"}
    assert browser.send(f"{base}/topic/new", f"{base}/topic/new", fields).status_code == 400
    page = browser.get(f"{base}/audit").text
    assert "&lt;script&gt;" in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page


def test_traces_are_shown_as_text(browser: Browser, cluster: LocalCluster, make_topic: Callable[..., str]) -> None:
    """What is in the trace topic anybody can have written."""
    import rocketcore as rmq
    from rocketcore.codes import TRACE_TOPIC
    from rocketcore.protocol.trace import PubTrace, encode_trace

    topic = make_topic(1)
    with rmq.Producer(cluster.namesrv, group="console-tests") as producer:
        result = producer.send(topic, b"x")
        told = PubTrace(
            timestamp=1, region=None, group=HOSTILE, topic=topic, msg_id=result.msg_id, tags=None, keys=None,
            store_host=HOSTILE, body_length=1, cost_millis=1,
        )  # fmt: skip
        producer.send(TRACE_TOPIC, encode_trace(told).encode(), keys=result.msg_id)
    queue = result.queue
    page = browser.get(
        f"/message?topic={topic}&broker={queue.broker}&queue={queue.queue_id}&offset={result.offset}"
    ).text
    assert page.count("&lt;script&gt;") >= 2  # in the list and in the picture
    assert "<script>alert" not in page
    assert "<img src=x" not in page


def test_messages_are_shown_as_text(browser: Browser, cluster: LocalCluster, make_topic: Callable[..., str]) -> None:
    import rocketcore as rmq

    topic = make_topic(1)
    with rmq.Producer(cluster.namesrv, group="console-tests") as producer:
        properties = {"evil": HOSTILE, "turn\u202e": "x\u202ey"}
        result = producer.send(topic, HOSTILE.encode(), tag="<b>", keys="<i>k</i>", properties=properties)
    place = f"topic={topic}&broker={result.queue.broker}&queue={result.queue.queue_id}&offset={result.offset}"
    for address in (f"/topic?name={topic}", f"/message?{place}", f"/search?topic={topic}&q=@1h"):
        page = browser.get(address)
        assert page.status_code == 200
        assert "&lt;script&gt;" in page.text
        assert "<script>alert" not in page.text
        assert "<i>k</i>" not in page.text
    assert "\u202e" not in browser.get(f"/message?{place}").text
    body = browser.get(f"/message/body?{place}")
    assert (body.content, body.headers["x-content-type-options"]) == (HOSTILE.encode(), "nosniff")


# Accounts


@pytest.fixture
def accounts(tmp_path: Path) -> dict[str, tuple[str, str]]:
    path = tmp_path / "accounts"
    lines = [account_line("ada", "admin", "correct horse"), account_line("vic", "viewer", "battery staple")]
    path.write_text("\n".join(["# who", *lines, ""]))
    return read_accounts(path)


def log_in(browser: Browser, name: str, password: str) -> int:
    return browser.send("/login", "/login", {"name": name, "password": password}).status_code


def test_nothing_is_shown_before_a_log_in(
    open_console: Callable[..., Browser], accounts: dict[str, tuple[str, str]]
) -> None:
    browser = open_console(accounts=accounts)
    for address in ("/", "/topics", "/message/body?topic=T&id=1", "/topic/tail?name=T", "/dead-letters/export?name=g"):
        answer = browser.get(address)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    for address in ("/api/v1/topics", "/metrics"):
        assert browser.get(address).status_code == 401
    assert browser.get("/livez").status_code == 200
    assert log_in(browser, "ada", "wrong") == 401
    before = browser.client.cookies["rocket_console"]
    assert log_in(browser, "ada", "correct horse") == 303
    assert browser.client.cookies["rocket_console"] != before  # a session that somebody else began is nobody's
    assert browser.get("/topics").status_code == 200
    page = browser.get("/topics").text
    logged_out = browser.client.post(
        "/logout", data={"csrf": browser.hidden(page, "csrf")}, headers={"Origin": ORIGIN}, follow_redirects=False
    )
    assert logged_out.status_code == 303
    assert browser.get("/topics").status_code == 303


def test_viewers_change_nothing(open_console: Callable[..., Browser], accounts: dict[str, tuple[str, str]]) -> None:
    browser = open_console(accounts=accounts)
    assert (
        browser.client.post("/logout", data={}, headers={"Origin": ORIGIN}, follow_redirects=False).status_code == 303
    )
    assert log_in(browser, "vic", "battery staple") == 303
    assert browser.get("/topics").status_code == 200
    answer = browser.send("/topic/new", "/topic/new", {"name": "never-made", "queues": "1"})
    assert answer.status_code == 403
    # It may leave all the same.
    token = browser.hidden(browser.get("/topics").text, "csrf")
    out = browser.client.post("/logout", data={"csrf": token}, headers={"Origin": ORIGIN}, follow_redirects=False)
    assert out.status_code == 303


def test_programs_send_name_and_password(
    open_console: Callable[..., Browser], accounts: dict[str, tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def verified_beside_the_loop(*given: Any) -> str | None:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return verify(*given)

    monkeypatch.setattr(console_module, "verify", verified_beside_the_loop)
    browser = open_console(accounts=accounts)
    for password, status in (("battery staple", 200), ("wrong", 401)):
        answer = browser.client.get("/api/v1/brokers", auth=("vic", password))
        assert answer.status_code == status
    for header in ("Basic", "Basic !", "Basic /////w==", "Bearer x"):
        assert browser.get("/api/v1/brokers", Authorization=header).status_code == 401


def test_wrong_passwords_are_counted() -> None:
    clock = ManualClock()
    sessions = Sessions(clock)
    for _ in range(MOST_FAILURES):
        assert sessions.may_try("ada")
        sessions.failed("ada")
    assert not sessions.may_try("ada")
    assert sessions.may_try("vic")
    clock.advance(60)
    assert sessions.may_try("ada")


def test_a_session_ends() -> None:
    clock = ManualClock()
    sessions = Sessions(clock)
    value = sessions.open("ada", "admin")
    assert sessions.find(value) is not None
    clock.advance(12 * 3600)
    assert sessions.find(value) is None
    assert sessions.find("") is None


def test_accounts_are_read_or_refused(tmp_path: Path, accounts: dict[str, tuple[str, str]]) -> None:
    assert verify(accounts, "ada", "correct horse") == "admin"
    assert verify(accounts, "ada", "correct hors") is None
    assert verify(accounts, "nobody", "") is None
    for text in ("", "# nobody", "ada", "ada:admin:", "ada:root:scrypt$00$00", "ada:admin:plain", "ada:admin:scrypt$$"):
        path = tmp_path / "bad"
        path.write_text(text)
        with pytest.raises(ConfigError):
            read_accounts(path)
    for name, password in (("a:b", "long enough"), ("", "long enough"), ("#a", "long enough"), ("a", "short")):
        with pytest.raises(ConfigError):
            account_line(name, "admin", password)


def test_a_plan_is_what_was_shown_and_for_what() -> None:
    guard = Guard()
    sealed = guard.seal("purge", {"group": "g"}, 1000.0)
    assert guard.unseal("purge", sealed, 1000.0 + PLAN_SECONDS) == {"group": "g"}
    for purpose, text, now in (
        ("reset", sealed, 1000.0),
        ("purge", sealed.replace('"g"', '"h"'), 1000.0),
        ("purge", "", 1000.0),
        ("purge", sealed, 1001.0 + PLAN_SECONDS),
    ):
        with pytest.raises(Forbidden):
            guard.unseal(purpose, text, now)
    with pytest.raises(Forbidden):
        Guard().unseal("purge", sealed, 1000.0)

"""The way in: log-in, preferences, health and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from rocketcore.console.console import Console, Page, Visit
from rocketcore.console.language import LANGUAGES
from rocketcore.console.safety import COOKIE, BadRequest, read_form
from rocketcore.errors import RocketError

__all__ = ["livez", "log_in", "log_out", "login_form", "metrics", "preferences", "readyz"]

THEMES = ("auto", "light", "dark")


async def login_form(visit: Visit) -> Page:
    return Page("login.html", "Log in", {"wrong": False})


async def log_in(visit: Visit) -> Page | Response:
    visit.form = await read_form(visit.request)
    visit.console.guard.check_write(visit.request, visit.form)
    name, password = visit.sent("name"), visit.sent("password")
    # A hash takes as long as a page: not on the loop.
    role = await asyncio.to_thread(visit.console.log_in, name, password)
    if role is None:
        return Page("login.html", "Log in", {"wrong": True}, status=401)
    response = RedirectResponse("/", 303)
    visit.set_cookie(response, COOKIE, visit.console.sessions.open(name, role))
    return response


async def log_out(visit: Visit) -> Response:
    visit.console.guard.check_write(visit.request, await read_form(visit.request))
    visit.console.sessions.close(visit.request.cookies.get(COOKIE, ""))
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE)
    return response


async def preferences(visit: Visit) -> Response:
    """Keep language or theme in a cookie, and go back to a page of this console."""
    back = visit.given("back", "/")
    if not back.startswith("/") or back.startswith(("//", "/\\")):
        raise BadRequest("back is a page of this console")
    response = RedirectResponse(back, 303)
    if visit.given("language"):
        if visit.given("language") not in LANGUAGES:
            raise BadRequest(f"language is one of {', '.join(LANGUAGES)}")
        visit.set_cookie(response, "rocket_language", visit.given("language"))
    if visit.given("theme"):
        if visit.given("theme") not in THEMES:
            raise BadRequest(f"theme is one of {', '.join(THEMES)}")
        visit.set_cookie(response, "rocket_theme", visit.given("theme"))
    return response


async def livez(request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def readyz(console: Console) -> Response:
    """Ready is a console that finds a name server, of one cluster at least."""
    asked = (cluster.admin.cluster_info() for cluster in console.clusters.values())
    answers = await asyncio.gather(*asked, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, RocketError):
            raise answer
    if all(isinstance(answer, RocketError) for answer in answers):
        return PlainTextResponse("".join(f"{error}\n" for error in answers), 503)
    return PlainTextResponse("ok\n")


async def metrics(visit: Visit) -> Response:
    """Answer the lag of each group under RocketMQ's name, and what the console has sampled, as Prometheus text."""
    survey = await visit.admin.survey_groups()
    lines = ["# HELP rocketmq_consumer_lag_messages Messages that a group has not consumed",
             "# TYPE rocketmq_consumer_lag_messages gauge"]  # fmt: skip
    for group, topics in survey.traffic.items():
        for topic, each in topics.items():
            labels = f'topic="{_label(topic)}",consumer_group="{_label(group)}"'
            lines.append(f"rocketmq_consumer_lag_messages{{{labels}}} {each.lag}")
    lines += _gauge("rocketmq_consumer_group_number", "Consumer groups", len(survey.configs))
    lines += _gauge("rocketcore_console_brokers_failed", "Masters that did not answer", len(survey.failed))
    latest = visit.cluster.rates.latest()
    for name, help_text in (("in_msgs", "Messages a second stored"), ("out_msgs", "Messages a second consumed")):
        value = latest[name]
        if value is not None:
            lines += _gauge(f"rocketcore_console_{name}_per_second", help_text, round(value, 3))
    return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4; charset=utf-8")


def _gauge(name: str, help_text: str, value: float) -> Iterator[str]:
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} gauge"
    yield f"{name} {value}"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

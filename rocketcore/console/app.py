"""The console as an ASGI application: which address is which page, and what becomes of an error."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from rocketcore.console import audit, tail
from rocketcore.console.cluster import SCOPE_KEY, ClusterPaths
from rocketcore.console.console import Console, Page, Visit, asked, json_bytes
from rocketcore.console.pages import (
    dead_letters,
    entry,
    groups,
    history,
    messages,
    overview,
    redriving,
    servers,
    topic,
    topics,
)
from rocketcore.console.safety import BadRequest, Forbidden, Safety
from rocketcore.console.settings import ConsoleSettings
from rocketcore.errors import (
    BrokerError,
    ConfigError,
    ConsumerNotOnline,
    GroupNotExist,
    MessageIllegal,
    NoPermission,
    Overloaded,
    PartlyDone,
    PlanOutdated,
    QueryNotFound,
    RequestTimeout,
    RocketError,
    RouteNotFound,
    TopicNotExist,
    TransportError,
)
from rocketcore.service import SYSTEM_CLOCK

__all__ = ["create_app"]

logger = logging.getLogger(__name__)

View = Callable[[Visit], Awaitable[Page | Response]]

PAGES: Final[dict[str, View]] = {
    "/": overview.overview,
    "/topics": topics.topics,
    "/topic": topic.topic,
    "/search": messages.search,
    "/message": messages.message,
    "/groups": groups.groups,
    "/group": groups.group,
    "/group/reset": groups.reset_form,
    "/dead-letters": dead_letters.dead_letter_groups,
    "/dead-letters/group": dead_letters.dead_letters,
    "/dead-letters/redrive-all": redriving.plan,
    "/clients": servers.clients,
    "/client": servers.client,
    "/brokers": servers.brokers,
    "/broker": servers.broker,
    "/rates": servers.rates,
    "/audit": audit.audit,
}
"""Pages that programs can read as well, below ``/api/v1``."""

FORMS: Final[dict[str, View]] = {
    "/topic/new": topics.creation,
    "/topic/delete": topic.deletion,
    "/message/resend": history.resend_form,
    "/dead-letters/purge": dead_letters.purging,
    "/login": entry.login_form,
}
"""Pages for people alone."""

FILES: Final[dict[str, View]] = {
    "/message/body": messages.download,
    "/dead-letters/export": dead_letters.export,
    "/topic/tail": tail.events,
    "/preferences": entry.preferences,
}

WRITES: Final[dict[str, View]] = {
    "/topic/new": topics.create,
    "/topic/update": topic.update,
    "/topic/delete": topic.delete,
    "/topic/publish": topic.publish,
    "/message/resend": history.resend,
    "/group/reset": groups.reset,
    "/dead-letters/redrive": dead_letters.redrive,
    "/dead-letters/redrive-all": redriving.start,
    "/dead-letters/redrive-stop": redriving.stop,
    "/dead-letters/purge": dead_letters.purge,
}

SHARED: Final = (entry.login_form, entry.log_out, entry.preferences)
"""What is of no cluster."""

_STATUS: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (Forbidden, 403),
    (NoPermission, 403),
    (PlanOutdated, 409),
    (ConsumerNotOnline, 409),
    (PartlyDone, 502),
    (ConfigError, 400),
    (MessageIllegal, 400),
    (TopicNotExist, 404),
    (GroupNotExist, 404),
    (QueryNotFound, 404),
    (RouteNotFound, 404),
    (Overloaded, 503),
    (RequestTimeout, 504),
    (TimeoutError, 504),
    (TransportError, 502),
    (BrokerError, 502),
)


def create_app(settings: ConsoleSettings) -> Starlette:
    """Return the application of a console; its connections open when it starts and close when it stops."""
    console = Console(settings)

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        console.start()
        try:
            yield
        finally:
            await console.close()

    def serve(view: View, form: Callable[[Visit, View], Awaitable[Response]]) -> Callable[..., Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            asked.set([0])
            if SCOPE_KEY not in request.scope and console.first.base and view not in SHARED:
                if request.method not in ("GET", "HEAD"):
                    return await _missing(console, request)
                query = f"?{request.url.query}" if request.url.query else ""
                return RedirectResponse(f"{console.first.base}{request.url.path}{query}", 303)
            visit = Visit(console, request, await console.who(request))
            if settings.accounts and visit.who is None and view is not entry.login_form:
                if form is _json:
                    headers = {"www-authenticate": 'Basic realm="rocket console", charset="UTF-8"'}
                    return PlainTextResponse("log in\n", 401, headers)
                return RedirectResponse("/login", 303)
            return await form(visit, view)

        return endpoint

    async def log_in(request: Request) -> Response:
        asked.set([0])
        visit = Visit(console, request, await console.who(request))
        return await _html(visit, entry.log_in)

    async def readyz(request: Request) -> Response:
        return await entry.readyz(console)

    routes: list[Route | Mount] = [
        Route("/livez", entry.livez),
        Route("/readyz", readyz),
        Route("/metrics", serve(entry.metrics, _json)),
        Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
        Route("/login", log_in, methods=["POST"]),
        Route("/logout", serve(entry.log_out, _html), methods=["POST"]),
    ]
    for path, view in {**PAGES, **FORMS, **FILES}.items():
        routes.append(Route(path, serve(view, _html), methods=["GET"]))
    for path, view in PAGES.items():
        routes.append(Route(f"/api/v1{path.rstrip('/') or '/overview'}", serve(view, _json), methods=["GET"]))
    for path, view in WRITES.items():
        routes.append(Route(path, serve(view, _write), methods=["POST"]))

    async def missing(request: Request, _: Exception) -> Response:
        return await _missing(console, request)

    app = Starlette(
        routes=routes,
        lifespan=life,
        middleware=[
            Middleware(Safety, hosts=settings.hosts),
            Middleware(ClusterPaths, clusters=console.clusters),
        ],
        exception_handlers={404: missing},
    )
    app.state.console = console
    return app


async def _answer(visit: Visit, view: View) -> Page | Response:
    """Make a page within its time; an error becomes one."""
    try:
        async with asyncio.timeout(2 * visit.console.settings.timeout):
            return await view(visit)
    except (RocketError, TimeoutError) as error:
        return _error_page(error)
    except Exception as error:
        logger.exception("page failed path=%s", visit.request.url.path)
        return _error_page(error)


def _error_page(error: BaseException) -> Page:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    code = _code_of(error)
    message = str(error) if isinstance(error, RocketError) else type(error).__name__
    if isinstance(error, TimeoutError):
        message = "the cluster did not answer in time"
    data = {"status": status, "code": code, "message": message}
    return Page("error.html", "Error", data, {"error": {"code": code, "message": message, "hint": ""}}, status)


def _code_of(error: BaseException) -> str:
    if isinstance(error, BrokerError):
        return error.code_name
    if isinstance(error, RocketError):
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).upper()
    return "TIMEOUT" if isinstance(error, TimeoutError) else "INTERNAL"


async def _html(visit: Visit, view: View) -> Response:
    answer = await _answer(visit, view)
    return answer if isinstance(answer, Response) else visit.render(answer)


async def _json(visit: Visit, view: View) -> Response:
    answer = await _answer(visit, view)
    if isinstance(answer, Response):
        return answer
    return Response(json_bytes(answer.api), answer.status, media_type="application/json")


async def _write(visit: Visit, view: View) -> Response:
    async def write(visit: Visit) -> Page | Response:
        await visit.read_write()
        return await view(visit)

    answer = await _answer(visit, write)
    audit.record(visit, SYSTEM_CLOCK.time_millis(), answer)
    return answer if isinstance(answer, Response) else visit.render(answer)


async def _missing(console: Console, request: Request) -> Response:
    path: str = request.url.path
    page = _error_page(BadRequest("there is no such page"))
    page.status, page.data["status"] = 404, 404
    if path.startswith(("/api/", "/static/")):
        return Response(json_bytes(page.api), 404, media_type="application/json")
    return Visit(console, request, await console.who(request)).render(page)

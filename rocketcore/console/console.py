"""Console: what the pages share: clusters, sessions, templates; and what a page is."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from rocketcore.console.accounts import Session, Sessions, verify
from rocketcore.console.cluster import SCOPE_KEY, Cluster
from rocketcore.console.language import LANGUAGES, Language, language_of
from rocketcore.console.safety import COOKIE, BadRequest, Forbidden, Guard, read_form
from rocketcore.console.settings import ConsoleSettings
from rocketcore.console.show import UNKNOWN, Shown, url

if TYPE_CHECKING:
    from rocketcore.admin.logic import AsyncAdmin
    from rocketcore.protocol.command import RemotingCommand

__all__ = ["Console", "Page", "Visit"]

_THEMES: Final = ("auto", "light", "dark")
MOST_REQUESTS: Final = 40
"""Requests to the cluster that one page makes at most."""

MOST_AUDITED: Final = 1000
"""Lines about writes that are kept."""

asked: ContextVar[list[int]] = ContextVar("asked")
"""How many requests to the cluster the page in hand has made, one number."""


class _Count:
    """Counts the requests of a page."""

    def before_request(self, address: str, command: RemotingCommand) -> None:
        counter = asked.get(None)
        if counter is not None:
            counter[0] += 1

    def after_response(self, address: str, command: RemotingCommand, response: RemotingCommand) -> None:
        """Nothing more to count."""


@dataclass(slots=True)
class Page:
    """What a page shows.

    template  of ``templates``; empty: there is no such page, only its JSON
    title     for the browser's window, in English
    data      for the template
    api       the same as JSON
    """

    template: str
    title: str
    data: dict[str, Any] = field(default_factory=dict)
    api: Any = None
    status: int = 200


class Console:
    """One console, over a cluster or several; to be started on its loop, and closed."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self.settings = settings
        hook = _Count()
        self.clusters = {name: Cluster(name, each, settings.timeout, hook) for name, each in settings.by_name.items()}
        self.guard = Guard()
        self.sessions = Sessions()
        self.tails = 0
        self.leaving = asyncio.Event()
        """Set when the server is to end: a live tail would hold it up."""
        self.audit: deque[dict[str, Any]] = deque(maxlen=MOST_AUDITED)
        self._basic: dict[str, Session] = {}
        self._hashing = asyncio.Lock()
        self.templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    @property
    def first(self) -> Cluster:
        """The cluster of a page whose address names none."""
        return next(iter(self.clusters.values()))

    def start(self) -> None:
        for cluster in self.clusters.values():
            cluster.start()

    async def close(self) -> None:
        for cluster in self.clusters.values():
            await cluster.close()

    # Who asks

    async def who(self, request: Request) -> Session | None:
        """Return who asks: by cookie, or by the header that programs send; None for nobody in particular.

        A hash takes as long as a page: that of a header is not made on the loop, and one at a time.
        """
        if not self.settings.accounts:
            return None
        found = self.sessions.find(request.cookies.get(COOKIE, ""))
        header = request.headers.get("authorization", "")
        if found is not None or not header:
            return found
        async with self._hashing:
            return await asyncio.to_thread(self._by_header, header)

    def _by_header(self, header: str) -> Session | None:
        import base64
        import binascii
        import hashlib

        kind, _, encoded = header.partition(" ")
        if kind.lower() != "basic":
            return None
        digest = hashlib.sha256(encoded.encode()).hexdigest()
        if digest in self._basic:
            return self._basic[digest]
        try:
            name, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        role = self.log_in(name, password)
        if role is None:
            return None
        if len(self._basic) >= 100:
            self._basic.clear()
        self._basic[digest] = session = Session(name, role, 0.0)
        return session

    def log_in(self, name: str, password: str) -> str | None:
        """Return the role of an account; None where name or password are wrong, or were too often."""
        if not self.sessions.may_try(name):
            return None
        role = verify(self.settings.accounts, name, password)
        if role is None:
            self.sessions.failed(name)
        return role

    def may_write(self, who: Session | None) -> bool:
        return not self.settings.readonly and (not self.settings.accounts or (who is not None and who.role == "admin"))


class Visit:
    """One request of a browser or a program: what it asks, who asks, and in which language it is answered."""

    def __init__(self, console: Console, request: Request, who: Session | None = None) -> None:
        self.console = console
        self.request = request
        self.cluster: Cluster = request.scope.get(SCOPE_KEY, console.first)
        self.admin: AsyncAdmin = self.cluster.admin
        self.who = who
        self.may_write = console.may_write(self.who)
        self.language: Language = language_of(
            request.cookies.get("rocket_language", ""), request.headers.get("accept-language", "")
        )
        self.form: dict[str, list[str]] = {}
        self._cookie = request.cookies.get(COOKIE, "")
        self._new_cookie = ""
        self.subject = self.before = self.after = ""
        self.began = time.perf_counter()

    # What is asked

    def requests_left(self) -> int:
        """Return how many requests to the cluster the page may still make."""
        counter = asked.get(None)
        return MOST_REQUESTS - (0 if counter is None else counter[0])

    def given(self, name: str, default: str = "") -> str:
        """Return a parameter of the address."""
        return self.request.query_params.get(name, default)

    def needed(self, name: str) -> str:
        """Return a parameter of the address; raises BadRequest without one."""
        value = self.given(name)
        if not value:
            raise BadRequest(f"the address lacks {name}=")
        return value

    def number(self, name: str, default: int, least: int = 0, most: int = (1 << 63) - 1) -> int:
        """Return a parameter that is a number; raises BadRequest for anything else, and outside of its bounds."""
        return _whole(name, self.given(name), default, least, most)

    def sent(self, name: str, default: str = "") -> str:
        """Return a field of the form; its line ends are \\n."""
        return self.form.get(name, [default])[0].replace("\r\n", "\n")

    def sent_number(self, name: str, default: int | None, least: int, most: int) -> int:
        """Return a field that is a number; raises BadRequest."""
        return _whole(name, self.sent(name).strip(), default, least, most)

    def all_sent(self, name: str) -> list[str]:
        return self.form.get(name, [])

    async def read_write(self) -> None:
        """Read the form of a write; raises Forbidden for one that is not allowed or is not ours."""
        self.form = await read_form(self.request)
        self.console.guard.check_write(self.request, self.form)
        if not self.may_write:
            raise Forbidden("this console is read-only" if self.console.settings.readonly else "viewers change nothing")

    def tell(self, subject: str, before: object = "", after: object = "") -> None:
        """Say for the audit what a write is about, and from what to what it changes that."""
        self.subject, self.before, self.after = subject, str(before)[:300], str(after)[:300]

    def seal(self, purpose: str, plan: Any) -> str:
        return self.console.guard.seal(self._of_cluster(purpose), plan, time.time())

    def unseal(self, purpose: str) -> Any:
        """Return the plan that the form carries."""
        return self.console.guard.unseal(self._of_cluster(purpose), self.sent("plan"), time.time())

    def _of_cluster(self, purpose: str) -> str:
        """Return a purpose by which the plan of one cluster is none of another's."""
        return f"{self.cluster.name}/{purpose}"

    def check_typed(self, name: str) -> None:
        """Raise BadRequest unless the name of what a write is about was typed."""
        if self.sent("typed").strip() != name:
            raise BadRequest(f"the name that was typed is not {name!r}: nothing was changed")

    # What is answered

    def text(self, english: str) -> str:
        return self.language.text(english)

    def cookie(self) -> str:
        """Return the value of this browser's cookie, a new one where it has none."""
        if not self._cookie:
            self._cookie = self._new_cookie = Guard.new_cookie()
        return self._cookie

    def render(self, page: Page) -> Response:
        """Return a page as HTML."""
        shown = Shown(self.language)
        template = self.console.templates.get_template(page.template)
        theme = self.request.cookies.get("rocket_theme", "auto")
        path = self.request.url.path
        counter = asked.get(None)
        context: dict[str, Any] = {
            "t": self.text,
            "f": shown,
            "url": self.url,
            "base": self.cluster.base,
            "unknown": UNKNOWN,
            "language": self.language.code,
            "languages": LANGUAGES,
            "theme": theme if theme in _THEMES else "auto",
            "themes": _THEMES,
            "path": path,
            "here": self.cluster.base + path + (f"?{self.request.url.query}" if self.request.url.query else ""),
            "again": self.again,
            "who": self.who,
            "has_accounts": bool(self.console.settings.accounts),
            "may_write": self.may_write,
            "readonly": self.console.settings.readonly,
            "cluster": self.cluster.settings.name_servers,
            "cluster_name": self.cluster.name,
            "clusters": {name: each.base for name, each in self.console.clusters.items()},
            "csrf": self.console.guard.token(self.cookie()),
            "done": DONE.get(self.given("done"), ""),
            "title": page.title,
            "requests": 0 if counter is None else counter[0],
            "millis": round((time.perf_counter() - self.began) * 1000),
            **page.data,
        }
        response = HTMLResponse(template.render(context).encode("utf-8", "replace"), page.status)
        self.keep_cookie(response)
        return response

    def again(self, **changes: Any) -> str:
        """Return the address of this page with some parameters changed, the others as they are."""
        given = {name: value for name, value in self.request.query_params.items() if name != "done"}
        return self.url(self.request.url.path, **{**given, **changes})

    def url(self, path: str, /, **parameters: Any) -> str:
        """Return an address of a page of this cluster."""
        return self.cluster.base + url(path, **parameters)

    def done(self, word: str, path: str, **parameters: Any) -> Response:
        """Return the way to the page after a write."""
        if word not in DONE:
            raise ValueError(word)
        return RedirectResponse(self.url(path, **parameters, done=word), 303)

    def keep_cookie(self, response: Response) -> None:
        """Give the browser its cookie, where it is new."""
        if self._new_cookie:
            self.set_cookie(response, COOKIE, self._new_cookie)

    def set_cookie(self, response: Response, name: str, value: str) -> None:
        secure = self.request.url.scheme == "https"
        response.set_cookie(name, value, httponly=True, samesite="strict", secure=secure, path="/")


def _whole(name: str, text: str, default: int | None, least: int, most: int) -> int:
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
        raise BadRequest(f"{name} must be a number from {least} to {most}, got {text[:40]!r}")
    return int(text)


DONE: Final = {
    "topic-created": "The topic was created.",
    "topic-updated": "The topic was changed.",
    "topic-deleted": "The topic was deleted.",
    "offsets-reset": "The offsets were reset.",
    "purged": "The dead letters were deleted.",
    "redrive-started": "The redrive has begun.",
    "redrive-stopped": "The redrive was stopped.",
}
"""What is told on the page after a write, by the word in its address."""


def page_of(
    rows: Sequence[Mapping[str, Any]],
    visit: Visit,
    sorts: Sequence[str],
    matches: Callable[[Mapping[str, Any], str], bool],
    size: int = 50,
) -> tuple[list[Mapping[str, Any]], dict[str, Any]]:
    """Return the rows of a list that its address asks for: those that match ``q``, in order of ``sort``, one page.

    sorts  the keys that it can be sorted by, the first by default; ``-key`` is from the largest
    """
    wanted = visit.given("q").strip()
    found = [row for row in rows if not wanted or matches(row, wanted.lower())]
    key = visit.given("sort", sorts[0])
    if key.removeprefix("-") not in sorts:
        raise BadRequest(f"the list is sorted by {', '.join(sorts)}, not by {key[:40]!r}")
    name = key.removeprefix("-")
    known = [row for row in found if row[name] is not None]
    known.sort(key=lambda row: row[name], reverse=key.startswith("-"))
    ordered = known + [row for row in found if row[name] is None]
    pages = max(1, -(-len(ordered) // size))
    number = min(visit.number("page", 1, 1), pages)
    shown = ordered[(number - 1) * size : number * size]
    return shown, {"q": wanted, "sort": key, "number": number, "pages": pages, "found": len(ordered), "all": len(rows)}


def json_bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace") + b"\n"

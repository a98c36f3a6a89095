"""Safety: what every request of a console passes before a page sees it, and what every answer carries.

Host         a name that nobody gave the console is refused: a page elsewhere whose name was turned to this address
             (DNS rebinding) speaks under its own name
Origin       a write says where its form came from, and it was here
CSRF         a write carries the token of the browser's cookie, which no other page can read
CSP          nothing is loaded from elsewhere, nothing runs inline, nobody frames a page
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import re
import secrets
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rocketcore.errors import ConfigError, RocketError
from rocketcore.transport.http_port import path_of

__all__ = ["COOKIE", "CSRF_FIELD", "BadRequest", "Forbidden", "Guard", "Safety", "read_form"]

COOKIE: Final = "rocket_console"
CSRF_FIELD: Final = "csrf"
PROBES: Final = ("/livez", "/readyz")
"""What load balancers ask by HTTP/1.0, without a name, which a browser never does."""
MOST_BODY_BYTES: Final = 1 << 20
MOST_FIELDS: Final = 2000
PLAN_SECONDS: Final = 600
"""How long a plan that was shown can be carried out."""

_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
POLICY: Final = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer: browsers would send Origin: null with our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Forbidden(RocketError):
    """A write that is not allowed, or whose form was not ours."""


class BadRequest(ConfigError):
    """A request that no page of ours makes."""


class Safety:
    """ASGI middleware: hosts, sizes and headers.

    hosts  names under which browsers reach the console, besides addresses and ``localhost``
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self._app = app
        self._hosts = {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = path_of(scope["path"])
        if path != scope["path"]:
            scope = {**scope, "path": path, "raw_path": path.encode()}
        request = Request(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                added = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in own]
                if b"cache-control" not in own:
                    added.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        refusal = self._refusal(request)
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> PlainTextResponse | None:
        if request.method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("only GET and POST are served\n", 405, {"allow": "GET, HEAD, POST"})
        host = request.headers.get("host", "")
        if not self._knows(host) and (host or request.url.path not in PROBES):
            return PlainTextResponse("this console is not served under that name: see --host\n", 421)
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 15 or int(length) > MOST_BODY_BYTES:
            return PlainTextResponse(f"a request has at most {MOST_BODY_BYTES} bytes\n", 413)
        return None

    def _knows(self, host: str) -> bool:
        """Whether browsers may call the console by this name; an address cannot be turned to another."""
        match = _HOST.fullmatch(host.lower())
        if match is None:
            return False
        name = match[1].strip("[]")
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._hosts
        return True


class Guard:
    """Tokens of forms, and plans that nobody else can have made."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    @staticmethod
    def new_cookie() -> str:
        return secrets.token_urlsafe(32)

    def token(self, cookie: str) -> str:
        """Return the token that forms of this browser carry."""
        return self._digest("csrf", cookie)

    def check_write(self, request: Request, form: dict[str, list[str]]) -> None:
        """Raise Forbidden for a write that did not come from a form of ours in this browser."""
        origin = request.headers.get("origin", "")
        if urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower() or not origin.startswith("http"):
            raise Forbidden(f"a write comes from a page of this console, and this one came from {origin or 'nowhere'}")
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise Forbidden("a write comes from a page of this console")
        cookie = request.cookies.get(COOKIE, "")
        given = form.get(CSRF_FIELD, [""])[0]
        if not cookie or not hmac.compare_digest(self.token(cookie).encode(), given.encode()):
            raise Forbidden("the form is of another browser, or of before the console was started: load its page again")

    def seal(self, purpose: str, plan: Any, now: float) -> str:
        """Return a plan as a text that goes to the browser and back."""
        text = json.dumps({"plan": plan, "until": now + PLAN_SECONDS}, separators=(",", ":"))
        return f"{self._digest(purpose, text)}.{text}"

    def unseal(self, purpose: str, sealed: str, now: float) -> Any:
        """Return a plan that ``seal`` made for the same purpose; raises Forbidden for any other, or an old one."""
        digest, _, text = sealed.partition(".")
        if not hmac.compare_digest(self._digest(purpose, text).encode(), digest.encode()):
            raise Forbidden("this plan was not shown here: look at it again")
        found = json.loads(text)
        if found["until"] < now:
            raise Forbidden(f"the plan was shown more than {PLAN_SECONDS // 60} minutes ago: look at it again")
        return found["plan"]

    def _digest(self, purpose: str, text: str) -> str:
        return hmac.new(self._secret, f"{purpose}\0{text}".encode(), hashlib.sha256).hexdigest()


async def read_form(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form; raises BadRequest for another type, too many bytes or fields, or no UTF-8."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise BadRequest(f"a form must be application/x-www-form-urlencoded, got {kind or 'nothing'}")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BODY_BYTES:
                raise BadRequest(f"a form has at most {MOST_BODY_BYTES} bytes")
    except ClientDisconnect:
        raise BadRequest("the form did not come to its end, or its chunks cannot be read") from None
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS, encoding="utf-8", errors="strict"
        )
    except ValueError as error:
        raise BadRequest(f"the form cannot be read: {error}") from None
    form: dict[str, list[str]] = {}
    for name, value in pairs:
        form.setdefault(name, []).append(value)
    return form

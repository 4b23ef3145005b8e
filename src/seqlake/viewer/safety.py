"""Who may ask the viewer's server: hosts, token and cookie, other origins; and what every reply forbids the page."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from html import escape
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_FENCED = ("/api/", "/media")


def is_loopback(host: str, /) -> bool:
    """Whether a name or address means this machine alone."""
    return host.strip("[]").lower() in _LOOPBACK


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a server asks of those who ask it.

    Attributes:
        host: What it is bound to; loopback names are always accepted beside it.
        port: Part of the cookie's name, since cookies know no ports.
        token: What must be shown; None: nothing, on loopback only.
        post_token: What a page of this origin alone can read, and must send to change anything.
    """

    host: str
    port: int
    token: str | None
    post_token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def cookie(self) -> str:
        """The name of the cookie that holds the token."""
        return f"seqlake-{self.port}"

    def accepts_host(self, host: str) -> bool:
        """Whether a `Host` header names this server, so that no other name may be bound to its address."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if is_loopback(name):
            return True
        return not is_loopback(self.host) and (name == self.host or self.host in {"0.0.0.0", "::"})  # noqa: S104 - compared, nothing is bound here

    def knows(self, text: str | None) -> bool:
        """Whether this is the token."""
        return self.token is None or (text is not None and secrets.compare_digest(text.encode(), self.token.encode()))


class Gate:
    """Stands before an ASGI application and refuses what the rules do not let through.

    Args:
        app: What answers.
        rules: Who may ask.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], *, rules: Rules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        given = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)).get("token")
        refused = self._refused(scope, headers, given)
        fresh = given is not None and self._rules.token is not None and self._rules.knows(given)
        if refused is None and fresh and not scope["path"].startswith(_FENCED) and scope["method"] == "GET":
            refused = (303, "moved", "")

        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                extra = [
                    (b"content-security-policy", POLICY.encode()),
                    (b"x-content-type-options", b"nosniff"),
                    (b"referrer-policy", b"no-referrer"),
                    (b"cross-origin-resource-policy", b"same-origin"),
                ]
                if fresh:
                    cookie = f"{self._rules.cookie}={given}; HttpOnly; SameSite=Strict; Path=/"
                    extra.append((b"set-cookie", cookie.encode()))
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        if refused is None:
            await self._app(scope, receive, sending)
        else:
            await _refuse(scope, sending, *refused)

    def _refused(
        self, scope: MutableMapping[str, Any], headers: dict[str, str], given: str | None
    ) -> tuple[int, str, str] | None:
        """Status, code and message of what is wrong with a request; None where nothing is."""
        if not self._rules.accepts_host(headers.get("host", "")):
            return 400, "host", f"This server is not called {headers.get('host', '')!r:.80}."
        path, method = scope["path"], scope["method"]
        if path.startswith(_FENCED) and headers.get("sec-fetch-site", "none") not in {"same-origin", "none"}:
            return 403, "origin", "Another site asked."
        if not path.startswith("/static/") and not (self._rules.knows(given) or self._rules.knows(self._held(headers))):
            return 401, "token", "Open the address that `seqlake view` printed: it holds the token."
        if method in {"GET", "HEAD"}:
            return None
        return _refused_post(headers, self._rules)

    def _held(self, headers: dict[str, str]) -> str | None:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self._rules.cookie)
        except CookieError:
            return None
        return None if morsel is None else morsel.value


def _refused_post(headers: dict[str, str], rules: Rules) -> tuple[int, str, str] | None:
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != headers.get("host"):
        return 403, "origin", "Another site asked."
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return 415, "type", "Expected Content-Type: application/json."
    if not secrets.compare_digest(headers.get("x-seqlake-token", "").encode(), rules.post_token.encode()):
        return 403, "post_token", "Changes need the header X-Seqlake-Token; load the page anew."
    return None


async def _refuse(scope: MutableMapping[str, Any], send: Any, status: int, code: str, message: str) -> None:
    from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

    reply: Response
    if status == 303:
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        query = urlencode([(name, value) for name, value in pairs if name != "token"])
        # Relative, by its last part: a proxy may have put a prefix before it.
        reply = RedirectResponse("./" + scope["path"].rpartition("/")[2] + (f"?{query}" if query else ""), 303)
    elif scope["path"].startswith(_FENCED):
        reply = JSONResponse({"error": {"code": code, "message": message, "where": None, "hint": None}}, status)
    else:
        reply = HTMLResponse(f"<!doctype html><title>seqlake view</title><p>{escape(message)}</p>", status)
    await reply(scope, None, send)  # type: ignore[arg-type]  # none of these reads the request

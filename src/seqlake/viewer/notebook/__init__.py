"""The viewer inside a notebook: a widget whose messages carry all that it shows, in Jupyter and in VS Code."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from seqlake.plugins import require
from seqlake.viewer.joining import LIBRARIES, STATIC, joined

if TYPE_CHECKING:
    from seqlake.viewer.app import Server

HERE = Path(__file__).parent
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; media-src blob:; "
    "base-uri 'none'; form-action 'none'"
)
_HEADERS = ("range", "if-range")  # what the page may say beside the address
_METHODS = frozenset({"GET", "POST"})
_AT_A_TIME = 4


class Answers:
    """Answers what the frame of a notebook asks, without a socket.

    The questions come through the kernel, which runs what its notebook says anyway: no token is asked for.

    Args:
        server: What answers over HTTP.
    """

    def __init__(self, server: Server) -> None:
        self._app = server.routes()

    def answer(self, asked: dict[str, Any], /) -> tuple[dict[str, Any], list[bytes]]:
        """The message and its buffers for one question: the page itself, or the answer of a route.

        Called in a thread without a loop of its own, as `widget` does.
        """
        view = {"view": asked.get("view")}
        if asked.get("page"):
            return {**view, "page": page(dark=asked.get("dark"))}, []
        status, headers, body = asyncio.run(self._ask(asked))
        return {**view, "id": asked.get("id"), "status": status, "headers": headers}, [body]

    async def _ask(self, asked: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        """One request to the routes, as a server would make it."""
        at = urlsplit(str(asked.get("path", "")))
        method = asked.get("method", "GET")
        if method not in _METHODS or at.scheme or at.netloc:
            return 400, {}, b"{}"
        given = {str(name).lower(): str(value) for name, value in (asked.get("headers") or {}).items()}
        headers = [(name.encode(), given[name].encode("latin-1", "replace")) for name in _HEADERS if name in given]
        path = "/" + at.path.lstrip("/")
        scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path}
        scope |= {"raw_path": path.encode(), "query_string": at.query.encode(), "headers": headers, "scheme": "http"}
        scope |= {"root_path": "", "server": ("notebook", 80), "client": ("notebook", 0)}
        sent = [{"type": "http.request", "body": str(asked.get("body") or "").encode(), "more_body": False}]
        replies: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if sent:
                return sent.pop()
            await asyncio.sleep(3600)  # nobody goes away
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            replies.append(message)

        await self._app(scope, receive, send)
        first, *rest = replies
        known = {name.decode("latin-1"): value.decode("latin-1") for name, value in first["headers"]}
        return first["status"], known, b"".join(bytes(one.get("body", b"")) for one in rest)


def page(*, dark: bool | None = None) -> str:
    """The whole viewer as one document without an address: styles, libraries and modules stand in it.

    Args:
        dark: The theme of the notebook; None where it is not known.
    """
    styles = [(STATIC / name).read_text(encoding="utf-8") for name in ("vendor/uPlot.min.css", "app.css")]
    libraries = [(STATIC / "vendor" / name).read_text(encoding="utf-8") for name in LIBRARIES]
    scripts = [*libraries, (HERE / "carrier.js").read_text(encoding="utf-8"), joined()]
    theme = "" if dark is None else f' data-theme="{"dark" if dark else "light"}"'
    inside = [f"<style>{style}</style>" for style in styles]
    # Within a script only its own end and the beginning of a comment mean something to the parser of the document.
    ends = [text.replace("</script", "<\\/script").replace("<!--", "<\\!--") for text in scripts]
    return "\n".join(
        [
            f'<!doctype html><html lang="en"{theme}><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            *inside,
            '</head><body><div id="app"></div>',
            *(f"<script>{text}</script>" for text in ends),
            "</body></html>",
        ]
    )


def widget(server: Server, /) -> Any:
    """The viewer as a widget of the notebook: an `anywidget.AnyWidget`.

    Args:
        server: What answers.

    Raises:
        MissingDependencyError: anywidget is not installed.
    """
    anywidget = require("anywidget", extra="jupyter")
    answers, workers = Answers(server), ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="seqlake-notebook")

    class ViewerWidget(anywidget.AnyWidget):  # type: ignore[name-defined,misc]  # anywidget is optional
        _esm = HERE / "widget.js"

    shows = ViewerWidget()

    def reply(asked: dict[str, Any]) -> None:
        message, buffers = answers.answer(asked)
        shows.send(message, buffers)

    shows.on_msg(lambda _, asked, __: workers.submit(reply, asked) if isinstance(asked, dict) else None)
    return shows

"""The viewer's routes: each asks one function, and every error becomes a status and an object."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import mimetypes
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake import errors
from seqlake.dataset.reading.views import FileView, StepsView
from seqlake.dataset.similarity import duplicates
from seqlake.dataset.statistics import outliers, statistics
from seqlake.dataset.validation import validate
from seqlake.dataset.validation.checking import DEPTHS
from seqlake.errors import MissingFileError, SchemaMismatchError, SeqlakeError
from seqlake.files import sandbox
from seqlake.spec.rules import RULES
from seqlake.viewer import curating, scenes, sequences, space, tables
from seqlake.viewer.asking import Parameters, finite, plain
from seqlake.viewer.joining import STATIC
from seqlake.viewer.safety import Gate, Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.requests import Request
    from starlette.responses import Response

    from seqlake.protocols import Blob

_log = logging.getLogger(__name__)
SECONDS = 20.0
"""What DuckDB may take for one request."""
MEMORY = "4GB"
"""What DuckDB may take for all requests together."""
_PAGES = ("/", "/seq", "/cmp", "/problems", "/sql", "/versions")
_BODY = 4 << 20
_PIECE = 1 << 20
_MEDIA = ("video/", "audio/", "image/jpeg", "image/png", "image/webp", "image/gif")
_STATUS: tuple[tuple[type[BaseException], int, str], ...] = (
    (errors.UnsafeReferenceError, 403, "outside"),
    (errors.AccessDeniedError, 403, "denied"),
    (errors.MissingFileError, 404, "missing"),
    (errors.SequenceNotFoundError, 404, "sequence"),
    (errors.ColumnNotFoundError, 404, "column"),
    (errors.VersionNotFoundError, 404, "version"),
    (errors.DatasetNotFoundError, 404, "dataset"),
    (errors.QueryLimitError, 503, "limit"),
    (errors.QueryError, 400, "query"),
    (errors.SchemaMismatchError, 400, "column"),
    (errors.ReadOnlyError, 409, "read_only"),
    (errors.CommitConflictError, 409, "conflict"),
    (curating.StaleError, 409, "changed"),
    (errors.ValidationError, 409, "invalid"),
    (errors.DecodeError, 422, "undecodable"),
    (errors.MissingDependencyError, 501, "extra"),
    (SeqlakeError, 422, "unreadable"),
)


class Server:
    """What answers for one dataset.

    Args:
        shelf: The dataset.
        rules: Who may ask.
        drafts: Where labels are kept.
    """

    def __init__(self, shelf: tables.Shelf, rules: Rules, drafts: curating.Drafts) -> None:
        self.shelf = shelf
        self.rules = rules
        self.drafts = drafts
        self._jobs: dict[tuple[str, ...], dict[str, Any]] = {}
        self._lock = Lock()
        self._committing = Lock()

    def app(self) -> Gate:
        """The routes behind their gate, as an ASGI application."""
        return Gate(self.routes(), rules=self.rules)

    def routes(self) -> Any:
        """The routes for whoever may ask anything, as an ASGI application."""
        from starlette.applications import Starlette
        from starlette.responses import FileResponse
        from starlette.routing import Mount, Route
        from starlette.staticfiles import StaticFiles

        def page(_: Request) -> Response:
            return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})

        objects: dict[str, Callable[[tables.Shelf, Parameters], dict[str, Any]]] = {
            "dataset": self._dataset,
            "rows": tables.rows,
            "place": tables.place,
            "histogram": tables.histogram,
            "sparklines": sequences.sparklines,
            "files": sequences.files,
            "sequence": sequences.sequence,
            "video": sequences.video,
            "scene": scenes.scene,
            "sql": tables.sql,
            "versions": self._versions,
            "diff": tables.diff,
            "labels": lambda shelf, _: curating.labels(shelf, self.drafts),
            "problems": self._problems,
            "outliers": self._outliers,
            "duplicates": self._duplicates,
        }
        arrays = {"pts": sequences.pts, "align": sequences.align, "signal": sequences.signal, "audio": sequences.audio}
        arrays |= {"points": space.points, "poses": space.poses, "faces": space.faces}
        pictures = {"frame": sequences.frame, "strip": sequences.film}
        posts = {"labels": self._label, "commit": self._commit, "undo": self._undo}
        routes: list[Any] = [Route(path, page, methods=["GET"]) for path in _PAGES]
        routes += [Route(f"/api/{name}", self._posting(one), methods=["POST"]) for name, one in posts.items()]
        routes += [Route(f"/api/{name}", self._object(one), methods=["GET"]) for name, one in objects.items()]
        routes += [Route(f"/api/{name}", self._array(one), methods=["GET"]) for name, one in arrays.items()]
        routes += [Route(f"/api/{name}", self._picture(one), methods=["GET"]) for name, one in pictures.items()]
        routes.append(Route("/media", self._guarded(self._media), methods=["GET"]))
        routes.append(Mount("/static", StaticFiles(directory=STATIC, check_dir=False)))
        return Starlette(routes=routes)

    # ---- replies

    def _guarded(self, answer: Callable[[Request], Response]) -> Callable[[Request], Response]:
        def guarded(request: Request) -> Response:
            try:
                with sandbox.limited(seconds=SECONDS, memory=MEMORY):
                    return answer(request)
            except Exception as error:  # noqa: BLE001 - the page says whatever it was
                return failed(error, request.url.path)

        return guarded

    def _object(self, answer: Callable[[tables.Shelf, Parameters], dict[str, Any]]) -> Callable[[Request], Response]:
        return self._guarded(lambda request: _json(answer(self.shelf, Parameters(dict(request.query_params)))))

    def _array(self, answer: Callable[..., Any]) -> Callable[[Request], Response]:
        def reply(request: Request) -> Response:
            from starlette.responses import Response

            array, headers = answer(self.shelf, Parameters(dict(request.query_params)))
            return Response(sequences.npy(array), media_type="application/octet-stream", headers=headers)

        return self._guarded(reply)

    def _picture(self, answer: Callable[..., Any]) -> Callable[[Request], Response]:
        def reply(request: Request) -> Response:
            from starlette.responses import Response

            data, kind, headers = answer(self.shelf, Parameters(dict(request.query_params)))
            return Response(data, media_type=kind, headers=headers)

        return self._guarded(reply)

    def _posting(self, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
        async def reply(request: Request) -> Response:
            from starlette.concurrency import run_in_threadpool

            data = bytearray()
            async for piece in request.stream():
                data += piece
                if len(data) > _BODY:
                    return _error(413, "body", "A body has at most 4 MiB.")
            try:
                body = json.loads(bytes(data))
                if not isinstance(body, dict):
                    return _error(400, "body", "Expected a JSON object.")
                json.dumps(body, ensure_ascii=False).encode()
                return _json(await run_in_threadpool(answer, body))
            except RecursionError:
                return _error(400, "body", "The JSON is nested too deeply.")
            except (json.JSONDecodeError, UnicodeError) as error:  # halves of letters too
                return _error(400, "body", f"Expected JSON: {error}.")
            except Exception as error:  # noqa: BLE001 - as above
                return failed(error, request.url.path)

        return reply

    # ---- answers that need the server

    def _dataset(self, shelf: tables.Shelf, asked: Parameters) -> dict[str, Any]:
        held = self.drafts.read()["sequences"]
        return {
            **tables.dataset(shelf, asked),
            "seqlake": _own_version(),
            "clock": None,
            "label_columns": sorted({key for draft in held.values() for key in draft}),
            "post_token": self.rules.post_token,
        }

    def _label(self, body: dict[str, Any]) -> dict[str, Any]:
        self.drafts.merge(body.get("set"), body.get("revision"))
        return curating.labels(self.shelf, self.drafts)

    def _commit(self, body: dict[str, Any]) -> dict[str, Any]:
        with self._committing:
            return curating.commit(self.shelf, self.drafts, body)

    def _undo(self, body: dict[str, Any]) -> dict[str, Any]:
        with self._committing:
            return curating.undo(self.shelf, self.drafts, body)

    def _versions(self, shelf: tables.Shelf, asked: Parameters) -> dict[str, Any]:
        facts = tables.versions(shelf, asked)
        ours = {one["version"] for one in self.drafts.read()["commits"]}
        return {**facts, "versions": [{**one, "undo": one["version"] in ours} for one in facts["versions"]]}

    def _job(self, key: tuple[str, ...], work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What a long piece of work has come to; it is begun where it was not."""
        with self._lock:
            state = self._jobs.get(key)
            if state is not None:
                return dict(state)
            state = self._jobs[key] = {"state": "running", "done": None, "ms": None}

        def run() -> None:
            try:
                state.update({"done": 1.0, **work(), "state": "done"})
            except SeqlakeError as error:
                state.update(state="failed", why=str(error))
            except Exception as error:  # noqa: BLE001 - a job ends where it is asked for
                _log.exception("a job of the viewer failed")
                state.update(state="failed", why=f"{type(error).__name__}: {error}")

        Thread(target=run, daemon=True, name="seqlake-viewer").start()
        return dict(state)

    def _problems(self, shelf: tables.Shelf, asked: Parameters) -> dict[str, Any]:
        selection, named = shelf.of(asked), asked.text("depth", "files")
        depth = next((one for one in DEPTHS if one == named), None)
        if depth is None:
            raise errors.QueryError("depth: expected metadata, rows, files or decode.")

        def work() -> dict[str, Any]:
            listed: list[dict[str, Any]] = []
            counts: dict[str, int] = {}
            for one in validate(selection, depth=depth):
                counts[one.code] = counts.get(one.code, 0) + 1
                if len(listed) < 2000:
                    listed.append(plain(one.to_json()))
            titles = {code: RULES[code].title for code in counts if code in RULES}
            return {"findings": listed, "counts": counts, "more": sum(counts.values()) - len(listed), "rules": titles}

        return self._job(("problems", str(shelf.pinned(asked)), str(depth)), work)

    def _outliers(self, shelf: tables.Shelf, asked: Parameters) -> dict[str, Any]:
        selection, most = shelf.of(asked), asked.whole("limit", 50, low=1, high=1000)

        def work() -> dict[str, Any]:
            ranked = outliers(selection, statistics(selection), top=most)
            named = [
                {
                    "row": one.row,
                    "id": one.sequence_id or str(one.row),
                    "score": one.score,
                    "why": [{"what": one.reason}],
                }
                for one in ranked
            ]
            return {"outliers": plain(named)}

        return self._job(("outliers", str(shelf.pinned(asked)), str(most)), work)

    def _duplicates(self, shelf: tables.Shelf, asked: Parameters) -> dict[str, Any]:
        selection, name = shelf.of(asked), asked.text("col")
        known = [one for one, column in selection.schema.items() if tables.kind_of(column) == "embedding"]
        name = name or next(iter(known), None)
        if name is None:
            return {"state": "done", "done": 1.0, "pairs": [], "why": "There is no column of embeddings."}
        selection.schema[name]

        def work() -> dict[str, Any]:
            pairs = [
                {
                    "score": one.score,
                    "a": {"row": one.rows[0], "id": one.sequence_id or str(one.rows[0])},
                    "b": {"row": one.rows[1], "id": one.other_id or str(one.rows[1])},
                }
                for one in duplicates(selection, name, most=500)
            ]
            return {"column": name, "pairs": plain(pairs)}

        return self._job(("duplicates", str(shelf.pinned(asked)), name), work)

    def _media(self, request: Request) -> Response:
        asked = Parameters(dict(request.query_params))
        shows, row = self.shelf.row(asked)
        name = asked.needed("col")
        value: Any = shows[shows.index_of(row)][name]
        if value is None or isinstance(value, StepsView):
            raise MissingFileError(f"The cell of {name!r} holds no file.")
        if not isinstance(value, FileView):
            raise SchemaMismatchError(f"{name!r} is no column of files.")
        if value.reference.lower().startswith(("http://", "https://")):
            return _error(403, "web", "Files of the web are not fetched.")
        return served(value.blob(), value.reference, request.headers.get("range"), request.headers.get("if-range"))


def served(blob: Blob, name: str, wanted: str | None, unless: str | None, /) -> Response:
    """The bytes of a file, or the one range of them that was asked for."""
    from starlette.responses import StreamingResponse

    kind = mimetypes.guess_type(name)[0] or ""
    etag = '"' + "".join(one for one in str(blob.token) if one.isalnum())[:64] + '"'
    plays = kind.startswith(_MEDIA)
    headers = {"Accept-Ranges": "bytes", "ETag": etag, "Cache-Control": "private, no-cache"}
    if not plays:
        headers["Content-Disposition"] = "attachment"
    span = None if unless is not None and unless != etag else _range(wanted, blob.size)
    if span is None:
        start, stop, status = 0, blob.size, 200
    elif span[0] >= span[1]:
        reply = _error(416, "range", f"The file has {blob.size} bytes.")
        reply.headers["Content-Range"] = f"bytes */{blob.size}"
        return reply
    else:
        (start, stop), status = span, 206
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{blob.size}"
    headers["Content-Length"] = str(stop - start)

    def pieces() -> Iterator[bytes]:
        for at in range(start, stop, _PIECE):
            yield bytes(blob.ranges(np.array([at]), np.array([min(at + _PIECE, stop)]))[0])

    media = kind if plays else "application/octet-stream"
    return StreamingResponse(pieces(), status, headers=headers, media_type=media)


def _range(text: str | None, size: int) -> tuple[int, int] | None:
    """The bytes that a `Range` header asks for; None where all are sent, an empty span where none can be."""
    if text is None or not text.startswith("bytes=") or "," in text or len(text) > 60:
        return None
    first, dash, last = text[6:].strip().partition("-")
    if not dash or not all(part == "" or (part.isascii() and part.isdecimal()) for part in (first, last)):
        return None
    if first:
        return int(first), min(int(last) + 1 if last else size, size)
    return (max(0, size - int(last)), size) if last else None


def failed(error: Exception, path: str, /) -> Response:
    """The reply to a request that could not be answered: what we refuse or cannot read has a status of its own.

    Anything else is a fault of ours, is logged with where it was, and ends as 500.
    """
    if isinstance(error, SeqlakeError):
        status, code = next((status, code) for kind, status, code in _STATUS if isinstance(error, kind))
        return _error(status, code, error.message, hint=sequences.OUTSIDE if code == "outside" else error.hint)
    _log.error("%s failed", path, exc_info=error)
    return _error(
        500, "fault", f"{type(error).__name__}: {error}", hint="This is a fault of seqlake: please report it."
    )


def _error(status: int, code: str, message: str, *, hint: str | None = None) -> Response:
    return _json({"error": {"code": code, "message": plain(message), "where": None, "hint": plain(hint)}}, status)


def _json(value: Any, status: int = 200) -> Response:
    from starlette.responses import Response

    text = json.dumps(finite(value), allow_nan=False, default=str)
    return Response(text, status, media_type="application/json", headers={"Cache-Control": "no-store"})


def _own_version() -> str:
    return importlib.metadata.version("seqlake")

"""An S3-speaking server on loopback that counts what is asked of it; run as a script, this is the server.

moto answers whatever S3 answers. It reads an object anew and whole for every range of it, which no store does, so bytes
that were read once are answered from memory here, and the work of a request is that of its own bytes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

COUNTS = "/-/counts"
BUCKET = "bench"
SIGNATURE = "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A bucket of such a server."""

    endpoint: str
    prefixes: set[str] = field(default_factory=set)

    @property
    def storage(self) -> dict[str, str]:
        """What seqlake and obstore open it with."""
        keys = {"access_key_id": "testing", "secret_access_key": "testing", "region": "us-east-1"}
        return {**keys, "endpoint": self.endpoint, "allow_http": "true", "virtual_hosted_style_request": "false"}

    @property
    def environment(self) -> dict[str, str]:
        """What everybody else does."""
        keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
        region = {"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
        return {**keys, **region, "AWS_ENDPOINT_URL": self.endpoint, "S3_ENDPOINT_URL": self.endpoint}

    def uri(self, prefix: str) -> str:
        return f"s3://{BUCKET}/{prefix}"

    def put(self, folder: Path, prefix: str) -> None:
        """Every file of a folder below a prefix, once; the server has them in memory then."""
        import obstore

        if prefix in self.prefixes:
            return
        self.prefixes.add(prefix)
        store = obstore.store.S3Store(BUCKET, **self.storage)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = f"{prefix}/{path.relative_to(folder).as_posix()}"
            obstore.put(store, name, path)
            obstore.get(store, name).bytes()


def counts(endpoint: str) -> dict[str, int]:
    """Requests and bytes of bodies so far."""
    with urllib.request.urlopen(endpoint + COUNTS, timeout=10) as answer:
        return dict(json.load(answer))


@contextmanager
def serving(*, latency: float = 0.0, rate: float = 0.0) -> Iterator[Store]:
    """The server in a process of its own, with an empty bucket.

    Args:
        latency: Seconds before an object's first byte.
        rate: Bytes a second of each request, afterwards; 0: as many as go.
    """
    command = [sys.executable, __file__, str(latency), str(rate)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin
    assert server.stdout
    try:
        store = Store(endpoint=server.stdout.readline().strip())
        request = urllib.request.Request(f"{store.endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()
        yield store
    finally:
        server.stdin.close()  # it ends when its input does
        server.wait(timeout=10)
        server.stdout.close()


class Counting:
    """Counts requests and bytes; answers objects from memory once they were read."""

    def __init__(self, app: Any, *, latency: float, rate: float) -> None:
        self.app = app
        self.latency = latency
        self.rate = rate
        self.lock = threading.Lock()
        self.counts = {"requests": 0, "gets": 0, "bytes": 0}
        self.kept: dict[str, tuple[list[tuple[str, str]], bytes]] = {}

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path == COUNTS:
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self.counts).encode()]
        environ.setdefault("HTTP_AUTHORIZATION", SIGNATURE)  # a plain web client signs nothing
        is_object = path.count("/") > 1 and not environ.get("QUERY_STRING")
        if method == "GET" and is_object:
            answer = self.object(path, environ, start_response)
        else:
            if method != "HEAD":
                self.kept.pop(path, None)
            answer = list(self.app(environ, start_response))
        with self.lock:
            self.counts["requests"] += 1
            self.counts["gets"] += method == "GET" and is_object
            self.counts["bytes"] += sum(map(len, answer)) if method == "GET" else 0
        return answer

    def object(self, path: str, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        """The object or its range, as S3 answers."""
        span = environ.pop("HTTP_RANGE", "")
        if path not in self.kept:
            head: list[Any] = []
            data = b"".join(self.app(environ, lambda *args: head.extend(args[:2])))
            if not head[0].startswith("200"):
                start_response(*head)
                return [data]
            skip = {"content-length", "connection"}
            self.kept[path] = [(name, value) for name, value in head[1] if name.lower() not in skip], data
        headers, data = self.kept[path]
        tags = [value for name, value in headers if name.lower() == "etag"]
        if environ.get("HTTP_IF_MATCH", tags[0]).strip('"') != tags[0].strip('"'):
            start_response("412 Precondition Failed", [("Content-Length", "0")])
            return [b""]
        status, own = "200 OK", [*headers, ("Accept-Ranges", "bytes")]
        if found := re.fullmatch(r"bytes=(\d*)-(\d*)", span):
            first = int(found[1]) if found[1] else len(data) - int(found[2])
            last = min(int(found[2]), len(data) - 1) if found[1] and found[2] else len(data) - 1
            status, own = "206 Partial Content", [*own, ("Content-Range", f"bytes {first}-{last}/{len(data)}")]
            data = data[first : last + 1]
        if self.latency:
            time.sleep(self.latency + (len(data) / self.rate if self.rate else 0))
        start_response(status, [*own, ("Content-Length", str(len(data)))])
        return [data]


def serve() -> None:
    """Serve until standard input ends."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_: object) -> None:
            return

    os.environ.setdefault("MOTO_S3_DEFAULT_KEY_BUFFER_SIZE", str(1 << 30))  # no temporary files
    app = Counting(DomainDispatcherApplication(create_backend_app), latency=float(sys.argv[1]), rate=float(sys.argv[2]))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve()

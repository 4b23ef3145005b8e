"""A proxy in front of a store that fails as it is told to."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import urlsplit

SIGNATURE = "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00"
Rule = Callable[[str, str, int], str | None]


def always_well(path: str, span: str, count: int) -> str | None:
    return None


@dataclass
class Proxy:
    """Forwards every request; `rule(path, range, n)` names the fault of the n-th GET of a range, or None.

    Faults: `503`, `reset`, `truncate` (half the body, then the connection ends), `flip` (a wrong byte in the middle),
    `slow` (50 ms), `hang` (until the proxy is let go).
    """

    upstream: str
    rule: Rule = always_well
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    nbytes: int = 0
    let_go: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.let_go.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(timeout=5)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def reset_counts(self) -> None:
        with self.lock:
            self.seen.clear()
            self.faults.clear()
            self.nbytes = 0

    def fault(self, path: str, span: str) -> str | None:
        with self.lock:
            self.seen[path, span] += 1
            fault = self.rule(path, span, self.seen[path, span])
            if fault:
                self.faults[fault] += 1
        return fault


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    host = urlsplit(proxy.upstream).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            try:
                super().handle()
            except (ConnectionError, OSError):
                self.close_connection = True

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = proxy.fault(self.path, self.headers.get("Range", "")) if self.command == "GET" else None
            if fault == "503":
                self.answer(503, [("Retry-After", "0")], b"<Error><Code>SlowDown</Code></Error>")
                return
            if fault == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True
                return
            if fault == "slow":
                time.sleep(0.05)
            if fault == "hang":
                proxy.let_go.wait(30)
                self.connection.close()
                self.close_connection = True
                return
            # A plain web client signs nothing, and the store wants to see some signature.
            upstream = http.client.HTTPConnection(host, timeout=20)
            try:
                headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
                headers.setdefault("authorization", SIGNATURE)
                upstream.request(self.command, self.path, body, headers)
                answer = upstream.getresponse()
                data = answer.read()
                kept = [
                    (name, value)
                    for name, value in answer.getheaders()
                    if name.lower() not in {"connection", "transfer-encoding", "server", "date", "content-length"}
                ]
                length = answer.getheader("Content-Length")
            finally:
                upstream.close()
            if self.command == "GET":
                with proxy.lock:
                    proxy.nbytes += len(data)
            if fault == "flip":
                data = data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 0x40]) + data[len(data) // 2 + 1 :]
            self.answer(answer.status, kept, data, length=length, half=fault == "truncate")

        def answer(self, status, headers, data, *, length=None, half=False) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if half else data)
            if half:
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward

        def log_message(self, *_) -> None:
            return

    return Handler

from __future__ import annotations

import os
import pickle
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from seqlake.errors import ReadOnlyError, ShardChangedError, UnsafeReferenceError
from seqlake.files import locations, web
from seqlake.files.stores import open_blob, open_store

DATA = np.random.default_rng(0).bytes(2_000_000)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_) -> None:
        return

    def do_GET(self) -> None:
        server = self.server
        server.asked.append((self.path, self.headers["Range"]))
        name = self.path.partition("?")[0].strip("/")
        if name in server.moved:
            return self.answer(302, b"", Location=server.moved[name])
        if server.failing.get(name):
            server.failing[name] -= 1
            return self.answer(503, b"")
        if name in {"forbidden", "gone", "broken"}:
            return self.answer({"forbidden": 403, "gone": 404, "broken": 500}[name], b"")
        data = b"" if name == "empty" else server.data
        if name == "whole":
            return self.answer(200, data, ETag=server.tag)
        first, last = (int(n) for n in self.headers["Range"].removeprefix("bytes=").split("-"))
        if first >= len(data):
            return self.answer(416, b"", **{"Content-Range": f"bytes */{len(data)}"})
        part = data[first : last + 1]
        if name == "cut" and len(part) > 1:
            return self.answer(
                206, part, cut=5, ETag=server.tag, **{"Content-Range": f"bytes {first}-{last}/{len(data)}"}
            )
        return self.answer(206, part, ETag=server.tag, **{"Content-Range": f"bytes {first}-{last}/{len(data)}"})

    def answer(self, status: int, data: bytes, *, cut: int = 0, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data[: len(data) - cut])


def serve():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.moved, server.failing, server.data, server.tag = [], {}, {}, DATA, '"one"'
    server.uri = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    return server, thread


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(web.time, "sleep", lambda _: None)
    server, thread = serve()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def part(blob, start, stop) -> bytes:
    return bytes(blob.ranges(np.array([start]), np.array([stop]))[0])


@pytest.mark.parametrize("name", ["video.mp4", "whole"])
def test_ranges_equal_slices_also_where_the_server_knows_none(server, name) -> None:
    blob = open_blob(f"{server.uri}/{name}")
    starts, stops = np.array([1_900_000, 5, 5, 700_000]), np.array([2_000_000, 5, 90, 700_001])
    parts = [bytes(p) for p in blob.ranges(starts, stops)]
    assert parts == [DATA[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
    assert (blob.size, blob.view()) == (2_000_000, None)
    again = pickle.loads(pickle.dumps(blob))
    assert (part(again, 3, 9), again) == (DATA[3:9], blob)


def test_an_empty_file_is_empty(server) -> None:
    blob = open_blob(f"{server.uri}/empty")
    assert (blob.size, part(blob, 0, 0)) == (0, b"")


def test_names_are_quoted_once_and_addresses_left_alone(server) -> None:
    """`a%20b` in an address is quoted already; in a relative reference it is a name."""
    open_blob(f"{server.uri}/a%20b/ü 1.mp4?signature=x%2Fy")
    open_blob(locations.join(f"{server.uri}/set", "files/a%20b?.mp4"))
    open_store(f"{server.uri}/set").blob("files/a%20b?.mp4")
    assert [path for path, _ in server.asked] == [
        "/a%20b/%C3%BC%201.mp4?signature=x%2Fy", "/set/files/a%2520b%3F.mp4", "/set/files/a%2520b%3F.mp4",
    ]  # fmt: skip


def test_a_redirect_to_another_host_is_refused_unless_allowed(server) -> None:
    other, thread = serve()
    try:
        server.moved["away"] = f"{other.uri}/inside"
        with pytest.raises(UnsafeReferenceError, match="allow_redirects"):
            open_blob(f"{server.uri}/away")
        assert other.asked == []
        blob = open_blob(f"{server.uri}/away", storage={"allow_redirects": "true"})
        assert part(blob, 10, 20) == DATA[10:20]
        server.moved["near"] = "/video.mp4"
        assert part(open_blob(f"{server.uri}/near"), 10, 20) == DATA[10:20]
        server.moved["near"] = "file:///etc/passwd"
        with pytest.raises(OSError):
            open_blob(f"{server.uri}/near", storage={"allow_redirects": "true"})
    finally:
        other.shutdown()
        thread.join()
        other.server_close()


def test_a_busy_server_is_asked_again_but_not_for_ever(server) -> None:
    server.failing["busy"] = 2
    assert open_blob(f"{server.uri}/busy").size == len(DATA)
    server.failing["busy"] = 99
    with pytest.raises(OSError, match="HTTP 503"):
        open_blob(f"{server.uri}/busy")
    assert server.failing["busy"] == 95


def test_a_cut_answer_is_an_error(server) -> None:
    with pytest.raises(OSError, match="connection broke 4 times"):
        part(open_blob(f"{server.uri}/cut"), 0, 100)


@pytest.mark.parametrize(
    ("name", "kind"), [("gone", FileNotFoundError), ("forbidden", PermissionError), ("broken", OSError)]
)
def test_refusals_are_pythons_own_errors_without_the_signature(server, name, kind) -> None:
    with pytest.raises(kind) as error:
        open_blob(f"{server.uri}/{name}?X-Amz-Signature=HUSH")
    assert "HUSH" not in f"{error.value} {error.value!r}"


def test_nobody_there_is_an_error_in_bounded_time(monkeypatch) -> None:
    monkeypatch.setattr(web.time, "sleep", lambda _: None)
    with pytest.raises(OSError, match="does not answer"):
        open_blob("http://127.0.0.1:9/x")


@pytest.mark.parametrize("change", ["tag", "data"])
def test_a_changed_file_is_noticed(server, change) -> None:
    blob = open_blob(f"{server.uri}/video.mp4?sig=HUSH")
    assert "HUSH" not in repr(blob)
    if change == "tag":
        server.tag = '"two"'
    else:
        server.data = DATA[:1000]
    with pytest.raises(ShardChangedError, match="changed on its server"):
        part(blob, 0, 10)


def test_a_user_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="user and password") as error:
        open_blob("https://me:HUSH@host/x")
    assert "HUSH" not in str(error.value)


def test_a_web_folder_can_only_be_read(server) -> None:
    store = open_store(f"{server.uri}/set/")
    assert store.blob("x").size == len(DATA)
    for call in (
        lambda: store.put("a", b""), lambda: store.copy("a", "b"), lambda: store.move("a", "b"),
        lambda: store.delete(["a"]), store.list,
    ):  # fmt: skip
        with pytest.raises(ReadOnlyError, match="HTTP"):
            call()
    store.sync("a")
    assert store.local("a") is None
    assert pickle.loads(pickle.dumps(store)) == store
    with pytest.raises(UnsafeReferenceError):
        store.blob("../x")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_may_read_the_web(server) -> None:
    blob = open_blob(f"{server.uri}/x")
    child = os.fork()
    if not child:
        os._exit(0 if part(blob, 7, 9) == DATA[7:9] else 1)
    assert os.waitpid(child, 0)[1] == 0

from __future__ import annotations

import os
import pickle
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from seqlake.errors import CorruptFileError, ReadOnlyError, ShardChangedError, UnsafeReferenceError
from seqlake.files import locations, web
from seqlake.files.stores import open_blob, open_store, read_all

UNMAPPED = {"mmap": "false"}
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


FLOOD = 512 << 20  # bytes of an answer to a question for a few


class Liar(BaseHTTPRequestHandler):
    """Declares what is not there, or sends what was not asked for."""

    sent = 0

    def log_message(self, *_) -> None:
        return

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        first, last = (int(n) for n in self.headers.get("Range", "bytes=0-0").removeprefix("bytes=").split("-"))
        size, part = {"huge": 99 << 40, "endless": 10**15}.get(name, 1000), f"{first}-{last}"
        if name == "other" and last:
            part = f"{first + 1}-{last + 1}"
        total = {"letters": "1_000", "negative": "-5", "long": "9" * 5000, "beyond": str(1 << 64)}.get(name, str(size))
        self.send_response(200 if name in {"whole", "letters", "negative", "long", "beyond"} else 206)
        if name in {"whole", "letters", "negative", "long", "beyond"}:
            self.send_header("Content-Length", str(99 << 40) if name == "whole" else total)
        else:
            self.send_header("Content-Range", f"bytes {part}/{total}")
        if name == "flood":
            self.send_header("Content-Length", str(FLOOD))
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        self.end_headers()
        for _ in range({"endless": 4, "flood": FLOOD >> 20}.get(name, 1)):
            try:
                self.wfile.write(bytes(1 << 20 if name == "flood" else max(1000, last - first + 1)))
            except OSError:
                return
            Liar.sent += 1 << 20


@pytest.fixture
def liar(monkeypatch):
    monkeypatch.setattr(web.time, "sleep", lambda _: None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("name", ["huge", "endless", "whole"])
def test_a_size_that_no_machine_holds_is_compared_before_memory_is_taken(liar, name) -> None:
    blob = open_blob(f"{liar}/{name}")
    assert blob.size > 1 << 46
    for read in (read_all, lambda blob: part(blob, 0, blob.size), lambda blob: part(blob, 5, blob.size)):
        with pytest.raises(CorruptFileError, match="memory"):
            read(blob)
    if name != "whole":
        assert part(blob, blob.size - 10, blob.size) == bytes(10)  # a part of it can be had


@pytest.mark.parametrize("name", ["letters", "negative", "long", "beyond"])
def test_a_size_that_is_none_is_an_error(liar, name) -> None:
    with pytest.raises(OSError, match=r"the server (says|does not)"):
        open_blob(f"{liar}/{name}")


def test_other_bytes_than_were_asked_for_are_no_answer(liar) -> None:
    assert part(open_blob(f"{liar}/right"), 3, 9) == bytes(6)
    with pytest.raises(OSError, match="asked for bytes 3-8"):
        part(open_blob(f"{liar}/other"), 3, 9)


def test_a_whole_file_is_compared_with_its_limit(tmp_path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 43)
    with pytest.raises(CorruptFileError, match="at most 100 bytes"):
        read_all(open_blob(path), most=100)
    for read in (
        read_all,
        lambda blob: part(blob, 0, blob.size),
        lambda blob: open_blob(path, storage=UNMAPPED).view(),
    ):
        with pytest.raises(CorruptFileError, match="memory"):
            read(open_blob(path))


def test_an_object_that_no_machine_holds_is_not_read_whole(liar) -> None:
    """obstore takes memory for what the answer declares, and ends the process where there is not that much."""
    storage = {"endpoint": liar, "access_key_id": "testing", "secret_access_key": "testing", "region": "us-east-1"}
    with pytest.raises(CorruptFileError, match="memory"):
        open_store("s3://bucket/set", storage=storage).read("whole")


def test_an_answer_longer_than_asked_for_is_not_waited_for(liar) -> None:
    storage = {"endpoint": liar, "access_key_id": "testing", "secret_access_key": "testing", "region": "us-east-1"}
    store, Liar.sent = open_store("s3://bucket/set", storage=storage), 0
    with pytest.raises(ShardChangedError, match="changed while it was open"):
        part(store.known("flood", 1000), 3, 9)
    assert part(open_blob(f"{liar}/flood"), 3, 9) == bytes(6)
    assert Liar.sent < FLOOD // 8  # what lies in buffers of sockets, of two answers

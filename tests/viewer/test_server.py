"""The viewer's server over a real socket: what it answers, and what it refuses."""

from __future__ import annotations

import http.client
import io
import itertools
import json
import random
import time
import wave
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.viewer import sequences

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

SECRET = b"nobody may read this"


class Client:
    """Asks one server, with or without its token."""

    def __init__(self, url: str) -> None:
        at = urlsplit(url)
        self.port = at.port
        self.token = parse_qs(at.query)["token"][0]

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> tuple[int, Any, bytes]:
        given = {"Cookie": f"seqlake-{self.port}={self.token}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body=body, headers={k: v for k, v in given.items() if v})
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()
        finally:
            connection.close()

    def json(self, route: str, **asked: Any) -> Any:
        status, _, body = self.ask(f"/api/{route}?{urlencode(asked)}")
        assert status == 200, body
        return json.loads(body)

    def ended(self, route: str, **asked: Any) -> Any:
        while (job := self.json(route, **asked))["state"] == "running":
            time.sleep(0.05)
        return job

    def post(self, route: str, body: Any, **headers: str) -> tuple[int, Any]:
        token = self.json("dataset")["post_token"]
        given = {"Content_Type": "application/json", "X_Seqlake_Token": token, **headers}
        status, _, answer = self.ask(f"/api/{route}", "POST", json.dumps(body), **given)
        return status, json.loads(answer)


@pytest.fixture
def dataset(tmp_path: Path) -> sl.Dataset:
    (tmp_path / "secret.mp4").write_bytes(SECRET)
    columns = {
        "sequence_id": pa.string(),
        "task": pa.string(),
        "reward": pa.float64(),
        "cam": sl.Video(fps=10),
        "action": sl.Trajectory(dim=3, fps=10),
    }
    ds = sl.create(tmp_path / "arm", columns)
    with ds.writer() as writer:
        for number in range(4):
            steps = np.arange(60 * 3, dtype=np.float32).reshape(60, 3)
            steps[7, 1] = 1000  # a spike
            frames = np.full((60, 32, 48, 3), number, np.uint8)
            writer.add(f"ep_{number}", task="<b>pick</b>", reward=float(number), action=steps, cam=frames)
    return ds


@pytest.fixture
def client(dataset: sl.Dataset, tmp_path: Path) -> Iterator[Client]:
    link = sl.view(dataset, labels=tmp_path / "labels")
    yield Client(link.url)
    link.close()


def test_rows_are_filtered_sorted_and_paged(client: Client) -> None:
    page = client.json("rows", where="reward > 0", order="reward", desc=1, limit=2)
    assert [row["id"] for row in page["rows"]] == ["ep_3", "ep_2"]
    assert (page["total"], page["matched"]) == (4, 3)
    assert page["rows"][0]["lengths"] == {"action": 60}
    assert client.json("place", id="ep_2", order="reward")["next"] == {"row": 3, "id": "ep_3"}
    bars = client.json("histogram", col="reward", bins=2)["bins"]
    assert [client.json("rows", where=bar["where"])["matched"] for bar in bars] == [bar["count"] for bar in bars]


def test_what_a_query_reads_and_which_depths_there_are(client: Client) -> None:
    plan = client.json("sql", q="SELECT avg(reward) FROM dataset", explain=1)["plan"]
    assert plan.startswith("opens 1 of 1 files")
    for depth in ("metadata", "rows", "files", "decode"):
        assert client.ended("problems", depth=depth)["state"] == "done"
    assert client.ask("/api/problems?depth=frames")[0] == 400


def test_an_envelope_keeps_every_spike(client: Client, dataset: sl.Dataset) -> None:
    status, headers, body = client.ask("/api/signal?id=ep_1&col=action&points=5")
    array = np.load(io.BytesIO(body))
    assert (status, array.shape, headers["X-Seqlake-Envelope"]) == (200, (5, 3, 2), "5")
    assert array[0, 1, 1] == 1000
    whole = np.load(io.BytesIO(client.ask("/api/signal?id=ep_1&col=action")[2]))
    np.testing.assert_array_equal(whole, dataset.sequence("ep_1")["action"])


@pytest.mark.parametrize("span", [None, (0.3, 1.7), (1.9, 9.0), (0.5, 0.501), (1.0, 1.0), (5.0, 9.0), (1.5, 0.5)])
@pytest.mark.parametrize("points", [1, 7, 1000, 8000])
def test_long_sounds_are_drawn_piece_by_piece(
    span: tuple[float, float] | None, points: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same lowest and highest samples as of the whole sound, of which only a little is in memory at a time."""
    noise = np.random.default_rng(4).integers(-32768, 32767, (16000, 2), dtype=np.int16)
    with wave.open(str(tmp_path / "mic.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(noise.tobytes())
    ds = sl.create(tmp_path / "heard", {"mic": sl.Audio()})
    with ds.writer() as writer:
        writer.add("ep", mic=sl.File(tmp_path / "mic.wav"))
    monkeypatch.setattr(sequences, "HEARD", 3000)
    link = sl.view(ds, labels=tmp_path / "labels")
    asked = {"id": "ep", "col": "mic", "points": points} | ({} if span is None else {"start": span[0], "stop": span[1]})
    status, headers, body = Client(link.url).ask(f"/api/audio?{urlencode(asked)}")
    link.close()
    assert (status, headers["X-Seqlake-Seconds"]) == (200, "2")
    start, stop = (0, 16000) if span is None else (round(one * 8000) for one in span)
    part = noise[start:stop] / np.float32(32768)
    cuts = [len(part) * one // points for one in range(points + 1)]
    pieces = [part[a:b] for a, b in itertools.pairwise(cuts) if b > a]
    expected = [np.stack([one.min(0), one.max(0)], -1) for one in pieces]
    np.testing.assert_array_equal(np.load(io.BytesIO(body)), np.array(expected, np.float32).reshape(-1, 2, 2))


def test_a_film_is_described_and_sent_by_ranges(client: Client, dataset: sl.Dataset) -> None:
    facts = client.json("video", id="ep_1", col="cam")
    assert (facts["frames"], facts["codec"], facts["play"]) == (60, "h264", "browser")
    times = np.load(io.BytesIO(client.ask("/api/pts?id=ep_1&col=cam")[2]))
    np.testing.assert_allclose(times, np.arange(61) / 10)
    data = dataset.sequence("ep_1")["cam"].read()
    status, headers, body = client.ask("/media?id=ep_1&col=cam", Range="bytes=3-9")
    assert (status, body, headers["Content-Range"]) == (206, data[3:10], f"bytes 3-9/{len(data)}")
    assert client.ask("/media?id=ep_1&col=cam", Range="bytes=-4")[2] == data[-4:]
    assert client.ask("/media?id=ep_1&col=cam", Range="bytes=99999999-")[0] == 416
    assert client.ask("/media?id=ep_1&col=cam")[2] == data
    assert client.ask("/api/frame?id=ep_1&col=cam&k=3")[2].startswith(b"\xff\xd8")


def test_strangers_are_refused(client: Client) -> None:
    assert client.ask("/api/rows", Cookie="")[0] == 401
    assert client.ask("/api/rows", Cookie=f"seqlake-{client.port}=wrong")[0] == 401
    assert client.ask("/api/rows", Host="evil.example")[0] == 400
    assert client.ask("/api/rows", Sec_Fetch_Site="cross-site")[0] == 403
    status, headers, _ = client.ask(f"/seq?id=a&token={client.token}", Cookie="")
    assert (status, headers["Location"]) == (303, "./seq?id=a")
    assert "HttpOnly; SameSite=Strict" in headers["Set-Cookie"]
    assert not any("access-control" in name.lower() for name in client.ask("/api/rows")[1])
    assert "script-src 'self'" in client.ask("/")[1]["Content-Security-Policy"]


def test_changes_need_json_token_and_origin(client: Client) -> None:
    assert client.post("labels", {"set": {}}, Origin="http://evil.example")[0] == 403
    assert client.post("labels", {"set": {}}, X_Seqlake_Token="wrong")[0] == 403
    assert client.post("labels", {"set": {}}, Content_Type="text/plain")[0] == 415
    assert client.post("labels", {"set": {"ep_1": {"spans": [{"start": 5, "stop": 1}]}}})[0] == 400


@pytest.mark.parametrize(
    "query",
    [
        "COPY (SELECT 1) TO '/tmp/seqlake-evil.csv'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT 1; SELECT 2",
        "SET memory_limit='1GB'",
        "SELECT * FROM '/etc/passwd'",
    ],
)
def test_sql_only_reads_the_dataset(client: Client, query: str) -> None:
    assert client.ask(f"/api/sql?{urlencode({'q': query})}")[0] == 400
    assert client.ask(f"/api/rows?{urlencode({'where': f'TRUE) UNION ({query}'})}")[0] == 400


def test_no_file_outside_is_read(tmp_path: Path) -> None:
    (tmp_path / "secret.mp4").write_bytes(SECRET)
    root = tmp_path / "plain"
    root.mkdir()
    (root / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    paths = ["../secret.mp4", str(tmp_path / "secret.mp4"), "link.mp4", "%2e%2e/secret.mp4", "gone.mp4", "a\0b"]
    rows = {"sequence_id": [f"e{number}" for number in range(len(paths))], "cam": paths}
    import pyarrow.parquet as pq

    pq.write_table(pa.table(rows), root / "rows.parquet")
    link = sl.view(sl.scan(root / "rows.parquet", column_types={"cam": sl.Video(fps=10)}), labels=tmp_path / "labels")
    try:
        client = Client(link.url)
        for number in range(len(paths)):
            for route in ("media?", "api/frame?", "api/video?", "api/pts?"):
                status, _, body = client.ask(f"/{route}id=e{number}&col=cam")
                assert SECRET not in body
                assert status < 500
                assert route == "api/video?" or status in {400, 403, 404, 422}
        assert client.json("video", id="e4", col="cam")["state"] == "missing"
        job = client.ended("problems", depth="files")
        assert sum(job["counts"].values()) >= len(paths) - 1
        assert all(job["rules"][code] for code in job["counts"])
    finally:
        link.close()


def test_labels_become_columns_and_are_undone(client: Client, dataset: sl.Dataset) -> None:
    draft = {"flag": True, "note": "blurred", "spans": [{"start": 1, "stop": 4, "label": "grasp"}]}
    first = dataset.version.id
    assert client.post("labels", {"set": {"ep_1": draft, "gone": {"flag": True}}})[0] == 200
    assert client.post("labels", {"set": {}, "revision": 0})[0] == 409
    status, done = client.post("commit", {"message": "looked at"})
    assert (status, done["cells"], done["unknown"]) == (200, 3, ["gone"])
    dataset.refresh()
    newest = client.json("versions")["versions"][0]
    assert (newest["version"], newest["message"]) == (first + 1, "looked at")  # all of it is one commit
    assert [one.id for one in dataset.where("flag AND note = 'blurred' AND spans[1].stop = 4")] == ["ep_1"]
    assert client.json("versions")["versions"][0]["undo"]
    assert client.post("undo", {"version": done["version"]})[0] == 200
    dataset.refresh()
    assert len(dataset.where("flag")) == 0
    client.post("labels", {"set": {"ep_2": {"note": "mine", "labels": {"task": "pour", "view": "left"}}}})
    client.post("labels", {"set": {"ep_3": {"spans": [{"start": 0, "stop": 2}]}}})
    _, done = client.post("commit", {})
    dataset.refresh()
    assert dataset.version.id == first + 3
    assert [dataset.sequence("ep_2")[name] for name in ("note", "view")] == ["mine", "left"]
    assert dataset.sequence("ep_3")["note"] is None
    client.post("labels", {"set": {"ep_1": {"labels": {"reward": "much"}}}})
    assert client.post("commit", {})[0] == 400  # a text, and the column holds numbers
    client.post("labels", {"set": {"ep_1": None}})
    dataset.update([{"sequence_id": "ep_2", "note": "theirs"}])
    assert client.post("undo", {"version": done["version"]})[0] == 409
    assert dataset.sequence("ep_2")["note"] == "theirs"


def test_no_request_ends_in_a_server_error(client: Client) -> None:
    chosen = random.Random(7)
    routes = [
        "dataset",
        "rows",
        "place",
        "histogram",
        "sparklines",
        "files",
        "strip",
        "sequence",
        "video",
        "pts",
        "align",
    ]
    routes += ["signal", "frame", "audio", "sql", "versions", "diff", "labels", "duplicates"]
    names = [
        "id",
        "row",
        "col",
        "where",
        "q",
        "order",
        "desc",
        "offset",
        "limit",
        "rows",
        "points",
        "bins",
        "clock",
        "k",
    ]
    names += ["height", "start", "stop", "dims", "version", "from", "to", "n", "format", "columns"]
    values = [
        "",
        "0",
        "1",
        "-1",
        "ep_1",
        "cam",
        "action",
        "task",
        "reward",
        "length:cam",
        "1e999",
        "nan",
        "9" * 40,
        "\0",
    ]
    values += ["../../etc/passwd", "'", "\ud7ff", "reward > 1", ");--", "0,1,2", "%s", "SELECT 1", "x" * 3000, "\u202e"]
    for _ in range(300):
        given = {name: chosen.choice(values) for name in chosen.sample(names, chosen.randint(0, 5))}
        path = f"/api/{chosen.choice(routes)}?{urlencode(given)}"
        status, _, body = client.ask(path)
        assert status < 500, (path, body)
    for path in (
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        f"/static/{quote('/etc/passwd')}",
    ):
        assert client.ask(path)[0] == 404

"""Clouds, paths, scenes and deep cells over a real socket: what they answer, and what hostile ones become."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlencode

import numpy as np
import pyarrow as pa
import pytest
from tests.formats.l5kit.conftest import REAL, drives, write
from tests.viewer import street
from tests.viewer.test_server import Client

import seqlake as sl
from seqlake.viewer.outlines import Outline, one_line, valued

if TYPE_CHECKING:
    from collections.abc import Iterator

STRANGE = "a,b\u2603%2C\u202e\r\n"

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> sl.Dataset:
    return street.make(tmp_path_factory.mktemp("street") / "ds", steps=8, across=90, size=(64, 48))


@pytest.fixture(scope="module")
def client(driven: sl.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    link = sl.view(driven, labels=tmp_path_factory.mktemp("labels"))
    yield Client(link.url)
    link.close()


def array(client: Client, route: str, **asked: Any) -> tuple[np.ndarray, Any]:
    status, headers, body = client.ask(f"/api/{route}?{urlencode(asked)}")
    assert status == 200, body
    return np.load(io.BytesIO(body)), headers


def status(client: Client, route: str, **asked: Any) -> tuple[int, str]:
    code, _, body = client.ask(f"/api/{route}?{urlencode(asked)}")
    return code, "" if code == 200 else json.loads(body)["error"]["code"]


def test_a_sequence_says_what_is_drawn(client: Client, driven: sl.Dataset) -> None:
    facts = client.json("sequence", id="street")
    media = {one["name"]: one for one in facts["media"]}
    assert (media["lidar"]["kind"], media["lidar"]["count"], media["lidar"]["state"]) == ("clouds", 8, "inline")
    assert (media["map"]["kind"], media["map"]["count"], media["map"]["frame"]) == ("points", 1, "map")
    poses = {one["name"]: one["pose"] for one in facts["signals"]}
    about = poses["ego_pose"]
    assert (about["reads"], about["assumed"]) == ("position and quaternion x, y, z, w", False)
    assert (about["rotation"], about["frame"], about["reach"]) == (True, "map", pytest.approx(7.7))
    assert poses["hand_pos"]["reads"] == "position and quaternion x, y, z, w of hand_quat"
    assert poses["camera"]["reads"] == "position and matrix"
    assert poses["speed"] is poses["hand_quat"] is None
    assert facts["steps"] == 8


def test_clouds_are_sent_thinned_and_counted(client: Client, driven: sl.Dataset) -> None:
    whole = driven["street"]["lidar"][3]
    points, head = array(client, "points", id="street", col="lidar", k=3, max=200_000)
    np.testing.assert_array_equal(points[:, :3], np.stack([whole[axis] for axis in "xyz"], 1))
    np.testing.assert_array_equal(points[:, 3], whole["intensity"])
    assert head["X-Seqlake-Color"] == "intensity"
    assert head["X-Seqlake-Colors"] == "height,intensity,ring"
    some, head = array(client, "points", id="street", col="lidar", k=3, max=100, color="ring")
    assert (some.shape, head["X-Seqlake-Of"]) == ((100, 4), str(len(whole)))
    assert len(set(some[:, 3].tolist())) > 15
    coloured, head = array(client, "points", id="street", col="map")
    assert (coloured.shape[1], head["X-Seqlake-Color"]) == (6, "rgb")
    assert 0 <= coloured[:, 3:].min() <= coloured[:, 3:].max() <= 1


def test_faces_of_a_mesh_are_its_triangles(tmp_path: Path) -> None:
    pytest.importorskip("trimesh")
    ds = sl.create(tmp_path / "ds", {"part": sl.Spatial3D(), "scan": sl.Spatial3D()})
    with ds.writer() as writer:
        writer.add("a", part=sl.File(street.box(tmp_path / "box.obj")), scan=street.scan(0, 8))
    link = sl.view(sl.open(tmp_path / "ds"), labels=tmp_path / "labels")
    try:
        client = Client(link.url)
        media = {one["name"]: one for one in client.json("sequence", id="a")["media"]}
        assert (media["part"].get("mesh"), media["scan"].get("mesh")) == (True, None)
        faces, headers = array(client, "faces", id="a", col="part")
        origin = np.array([float(one) for one in headers["X-Seqlake-Origin"].split(",")])
        corners = faces[:, :9].reshape(-1, 3, 3) + origin
        assert corners.shape == (12, 3, 3)
        assert {tuple(one) for one in corners.reshape(-1, 3)} == {
            (x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)
        }
        sides = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1) / 2
        assert sides.sum() == pytest.approx(24)  # the surface of the cube
        fewer, headers = array(client, "faces", id="a", col="part", max=5)
        assert (len(fewer), headers["X-Seqlake-Of"]) == (5, "12")
        assert status(client, "faces", id="a", col="scan") == (400, "column")
    finally:
        link.close()


def test_paths_are_places_and_rotations(client: Client, driven: sl.Dataset) -> None:
    path, head = array(client, "poses", id="street", col="ego_pose")
    np.testing.assert_allclose(path, driven["street"]["ego_pose"], atol=1e-6)
    assert (head["X-Seqlake-Length"], head["X-Seqlake-Each"]) == ("8", "1")
    camera, _ = array(client, "poses", id="street", col="camera")
    np.testing.assert_allclose(camera[:, 3:], path[:, 3:], atol=1e-5)
    hand, head = array(client, "poses", id="street", col="hand_pos", max=3)
    assert (hand.shape, head["X-Seqlake-Each"]) == ((3, 7), "3")
    np.testing.assert_allclose(hand[:, 3:], driven["street"]["hand_quat"][::3], atol=1e-6)


@pytest.mark.parametrize(
    ("route", "asked", "code"),
    [
        ("points", {"col": "lidar", "k": 8}, (404, "missing")),
        ("points", {"col": "map", "k": 1}, (404, "missing")),
        ("points", {"col": "speed"}, (400, "column")),
        ("points", {"col": "gone"}, (404, "column")),
        ("points", {}, (400, "query")),
        ("points", {"col": "lidar", "max": 200_001}, (400, "query")),
        ("points", {"col": "lidar", "max": 0}, (400, "query")),
        ("points", {"col": "lidar", "k": -1}, (400, "query")),
        ("points", {"col": "lidar", "color": "\r\nSet-Cookie: x"}, (400, "column")),
        ("poses", {"col": "speed"}, (400, "column")),
        ("poses", {"col": "task"}, (400, "column")),
        ("poses", {"col": "lidar"}, (400, "column")),
        ("poses", {"col": "ego_pose", "max": 1}, (400, "query")),
        ("scene", {}, (400, "column")),
        ("scene", {"id": "gone"}, (404, "sequence")),
    ],
)
def test_what_cannot_be_drawn_is_said(client: Client, route: str, asked: dict[str, Any], code: tuple[int, str]) -> None:
    assert status(client, route, **{"id": "street", **asked}) == code


def test_deep_cells_are_outlined_within_bounds(client: Client) -> None:
    facts = client.json("sequence", id="street")
    others = {one["name"]: one for one in facts["others"]}
    assert others["weather"]["value"] == {"sky": "clear", "wind": {"speed": 3.5, "from": "north"}}
    objects = others["objects"]["outline"]
    assert (objects["kind"], objects["count"], objects["more"]) == ("list", 9, 0)
    assert [name for name, _ in objects["items"][0]["fields"]] == ["label", "box", "seen"]
    caption = others["caption"]["outline"]
    assert (caption["kind"], caption["count"], len(caption["curve"])) == ("numbers", 64, 48)
    assert caption["low"] == pytest.approx(-1, abs=0.01)


def nested(depth: int) -> Any:
    return {"a": nested(depth - 1)} if depth else 1


@pytest.mark.parametrize(
    ("value", "kind", "most"),
    [
        ([{"a": [1] * 100, "b": "x"}] * 5000, pa.list_(pa.struct({"a": pa.list_(pa.int64()), "b": pa.string()})), 1000),
        (nested(40), None, 30),
        ({f"f{n}": n for n in range(900)}, None, 80),
        ([[float(n)] * 50 for n in range(1000)], pa.list_(pa.list_(pa.float64())), 100),
        ([["x" * 9000] * 30] * 30, pa.list_(pa.list_(pa.string())), 500),
        ([("k", 1), ("l", None)], pa.map_(pa.string(), pa.int64()), 20),
        (b"\0" * (1 << 22), pa.binary(), 2),
        ([float("nan"), float("inf")] * 20, pa.list_(pa.float32()), 2),
        ([None] * 50, pa.list_(pa.int8()), 2),
        ([True, None] * 50, pa.list_(pa.bool_()), 2),
        ([np.float16(0.5)] * 50, pa.list_(pa.float16()), 2),
        ([2**63 - 1] * 3, pa.list_(pa.int64()), 9),
    ],
)
def test_an_outline_is_small_whatever_the_cell(value: Any, kind: pa.DataType | None, most: int) -> None:
    outline = Outline()
    drawn = outline.of(pa.scalar(value, kind))
    text = json.dumps(drawn, allow_nan=False)
    assert len(text) < 900_000
    assert text.count('"kind"') <= most
    assert len(one_line(drawn)) < 20_000
    if not outline.cut:
        assert json.dumps(valued(drawn))


@pytest.fixture(scope="module", params=["scanned", "converted"])
def scenes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Any]]:
    pytest.importorskip("numcodecs")
    folder = tmp_path_factory.mktemp("l5kit")
    arrays = drives(frames=12, agents=9)
    write(folder / "drive.zarr", arrays)
    shown: Any = sl.scan(folder / "drive.zarr")
    if request.param == "converted":
        sl.convert(shown, folder / "ds")
        shown = sl.open(folder / "ds")
    link = sl.view(shown, labels=folder / "labels")
    yield Client(link.url), arrays
    link.close()


def test_a_scene_is_what_the_store_holds_at_each_step(scenes: tuple[Client, Any]) -> None:
    client, arrays = scenes
    row = client.json("rows")["rows"][1]
    facts = client.json("sequence", id=row["id"])
    [scene] = [one for one in facts["media"] if one["kind"] == "scene"]
    assert {"agents_centroid", "ego_translation", "num_agents"} <= set(scene["columns"])
    assert not any(one["pose"] for one in facts["signals"])  # they are in the scene
    first, stop = arrays["scenes"][1]["frame_index_interval"]
    assert facts["clock"]["hz"] == 10  # as the frames' times say
    assert (facts["steps"], facts["seconds"]) == (stop - first, (stop - first) / 10)
    for step, frame in enumerate(arrays["frames"][first:stop]):
        seen = client.json("scene", id=row["id"], k=step)
        x, y, _ = frame["ego_translation"]
        turn = frame["ego_rotation"]
        assert seen["ego"]["yaw"] == pytest.approx(np.arctan2(turn[1, 0], turn[0, 0]))
        expected = arrays["agents"][slice(*frame["agent_index_interval"])]
        assert seen["counts"]["agents"] == len(expected) == len(seen["agents"])
        by_track = {int(one["track_id"]): one for one in expected}
        for agent in seen["agents"]:
            one = by_track[agent["id"]]
            np.testing.assert_allclose((agent["x"] + x, agent["y"] + y), one["centroid"], atol=2e-3)
            assert agent["yaw"] == pytest.approx(one["yaw"], abs=1e-3)
            assert agent["length"] == pytest.approx(one["extent"][0], abs=1e-2)
        away = [np.hypot(agent["x"], agent["y"]) for agent in seen["agents"]]
        assert away == sorted(away)
        faces = arrays["traffic_light_faces"][slice(*frame["traffic_light_faces_index_interval"])]
        assert seen["counts"]["faces"] == len(faces)
        assert sorted(one["id"] for one in seen["lights"]) == sorted(str(one["face_id"]) for one in faces)
    assert status(client, "scene", id=row["id"], k=stop - first) == (404, "missing")


@pytest.mark.skipif(not REAL.exists(), reason="the real drive of Lyft is not beside the checkout")
def test_a_real_drive_is_seen_from_above(tmp_path: Path) -> None:
    link = sl.view(sl.scan(REAL), labels=tmp_path / "labels")
    try:
        client = Client(link.url)
        facts = client.json("sequence", row=0)
        assert facts["steps"] == 248
        total = 0
        for step in (0, 100, 247):
            seen = client.json("scene", row=0, k=step)
            assert 0 <= seen["ego"]["speed"] < 40
            assert seen["time"].startswith("20")
            assert {one["label"] for one in seen["agents"]} & {"CAR", "PEDESTRIAN", "UNKNOWN", "CYCLIST"}
            total += len(seen["lights"])
        assert total > 0
    finally:
        link.close()


def test_scenes_that_do_not_fit_say_so(tmp_path: Path) -> None:
    rows = {
        "sequence_id": ["counts", "nan", "huge"],
        "ego_translation": [[[0.0, 0, 0]] * 3, [[np.nan, 0, 0]] * 3, [[1e308, -1e308, 0]] * 3],
        "num_agents": [[1, 1, 5], [1, 1, 1], [1, 1, 1]],
        "agents_centroid": [[[1.0, 2]] * 3, [[np.nan, np.inf]] * 3, [[1e308, 0.0]] * 3],
        "agents_yaw": [[0.0] * 3, [np.nan] * 3, [1e308] * 3],
        "agents_extent": [[[4.0, 2, 1]] * 3, [[np.inf] * 3] * 3, [[-1.0, 1e38, 0]] * 3],
    }
    types = {name: sl.Trajectory(dim=1) for name in ("num_agents", "agents_yaw")}
    schema = sl.Schema(
        {
            "ego_translation": sl.Trajectory(dim=3, dtype="float64"),
            "num_agents": sl.Trajectory(dim=1, dtype="int32"),
            "agents_centroid": sl.Trajectory(dim=2, dtype="float64"),
            "agents_yaw": sl.Trajectory(dim=1, dtype="float64"),
            "agents_extent": sl.Trajectory(dim=3),
            "hand_pos": sl.Trajectory(dim=3, dtype="float64"),
        }
    )
    ds = sl.create(tmp_path / "ds", schema)
    with ds.writer() as writer:
        for at, name in enumerate(rows["sequence_id"]):
            cells = {key: np.array(cell[at]) for key, cell in rows.items() if key != "sequence_id"}
            cells["hand_pos"] = cells["ego_translation"] + 5e5
            writer.add(str(name), **{key: one[:, None] if key in types else one for key, one in cells.items()})
    link = sl.view(ds, labels=tmp_path / "labels")
    try:
        client = Client(link.url)
        assert status(client, "scene", id="counts") == (400, "column")
        lost = client.json("scene", id="nan")
        assert (lost["agents"], lost["lost"]) == ([], 1)
        assert client.json("scene", id="huge")["lost"] == 1
        for name, places in (("counts", 3), ("nan", 0), ("huge", 0)):
            path, head = array(client, "poses", id=name, col="hand_pos")
            assert np.isfinite(path).all(axis=1).sum() == places
            assert "nan" not in head["X-Seqlake-Origin"]
        for name in rows["sequence_id"]:
            assert client.json("sequence", id=name)["id"] == name
    finally:
        link.close()


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, list[str]]]:
    """Rows whose clouds are damaged, absent, outside, of other formats, or of numbers that are no places."""
    folder = tmp_path_factory.mktemp("broken")
    root = folder / "ds"
    root.mkdir()
    (folder / "secret.pcd").write_bytes(b"nobody may read this")
    head = (
        b"VERSION 0.7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\nWIDTH %d\nHEIGHT 1\nPOINTS %d\nDATA binary\n"
    )
    files = {
        "huge.pcd": head % (1 << 40, 1 << 40) + b"\0" * 24,
        "cut.pcd": head % (9, 9) + b"\0" * 24,
        "no_place.pcd": head % (2, 2) + np.array([np.nan, 0, 0, np.inf, 0, 0], "f4").tobytes(),
        "far.pcd": head % (2, 2) + np.array([3e38, 0, 0, 1, -3e38, 0], "f4").tobytes(),
        "none.pcd": head % (0, 0),
        "flat.pcd": (head % (1, 1)).replace(b"x y z", b"u v w") + b"\0" * 12,
        "head.ply": b"ply\nformat binary_little_endian 1.0\nelement vertex 99999999999\nproperty float x\nend_header\n",
        "odd.bin": b"\0" * 7,
        "text.obj": b"v 1 2\nv a b c\n",
        "empty.las": b"",
        "picture.png": b"\x89PNG\r\n\x1a\n",
        "other.xyzzy": b"1 2 3",
    }
    for name, data in files.items():
        (root / name).write_bytes(data)
    names = [
        *files,
        "gone.pcd",
        "../secret.pcd",
        str(folder / "secret.pcd"),
        "http://127.0.0.1:9/a.pcd",
        "a\0b.pcd",
        "",
    ]
    rows = pa.table(
        {
            "sequence_id": [f"e{number}" for number in range(len(names))],
            "scan": names,
            "clouds": [[name, None, name] for name in names],
            "row": pa.array([[[1.0, np.nan, 3.0, 7.0]] * 2] * len(names), pa.list_(pa.list_(pa.float64()))),
            "thin": pa.array([[[1.0, 2.0]]] * len(names), pa.list_(pa.list_(pa.float64()))),
            "ragged": pa.array(
                [[[[1.0, 2, 3]], [[1.0, 2, 3]] * 2]] * len(names), pa.list_(pa.list_(pa.list_(pa.float32())))
            ),
        }
    )
    import pyarrow.parquet as pq

    pq.write_table(rows, root / "rows.parquet")
    types = {
        "scan": sl.Spatial3D(), "clouds": sl.Spatial4D(frames="files", fps=10),
        "row": sl.Spatial3D(fields=["x", "y", "z", STRANGE]),
        "thin": sl.Spatial3D(), "ragged": sl.Spatial4D(),
    }  # fmt: skip
    link = sl.view(sl.scan(root / "rows.parquet", column_types=types), labels=folder / "labels")
    yield Client(link.url), names
    link.close()


def test_broken_clouds_are_states_and_never_a_server_error(broken: tuple[Client, list[str]]) -> None:
    client, names = broken
    good = {"no_place.pcd": 0, "far.pcd": 0, "none.pcd": 0}
    for number, name in enumerate(names):
        facts = client.json("sequence", id=f"e{number}")
        assert {one["name"] for one in facts["media"]} == {"scan", "clouds", "row", "thin", "ragged"}
        for asked in ({"col": "scan"}, {"col": "clouds", "k": 0}):
            code, _, body = client.ask(f"/api/points?{urlencode({'id': f'e{number}', **asked})}")
            assert b"nobody may" not in body
            if name in good:
                assert code == 200
                assert len(np.load(io.BytesIO(body))) == good[name]
            else:
                assert code in {400, 403, 404, 422}, (name, body)
                assert json.loads(body)["error"]["message"]
        assert status(client, "points", id=f"e{number}", col="clouds", k=1)[0] == 404
        code, _, body = client.ask(f"/api/strip?id=e{number}&col=clouds")
        assert (code, body[:2]) == (200, b"\xff\xd8")
        assert status(client, "scene", id=f"e{number}")[0] == 400
    assert status(client, "points", id="e0", col="row") == (200, "")
    assert status(client, "points", id="e0", col="thin") == (400, "column")
    for step, count in ((0, 1), (1, 2)):
        assert len(array(client, "points", id="e0", col="ragged", k=step)[0]) == count
    assert status(client, "points", id="e0", col="ragged", k=2) == (404, "missing")


def test_names_of_fields_travel_in_headers(broken: tuple[Client, list[str]]) -> None:
    points, head = array(broken[0], "points", id="e0", col="row", color=STRANGE)
    assert unquote(head["X-Seqlake-Color"]) == STRANGE
    assert [unquote(one) for one in head["X-Seqlake-Colors"].split(",")] == ["height", STRANGE]
    assert points.shape == (0, 4)  # each has a NaN


def test_no_question_ends_in_a_server_error(client: Client, broken: tuple[Client, list[str]]) -> None:
    chosen = random.Random(11)
    names = ["id", "row", "col", "k", "max", "color", "clock", "version"]
    values = [
        "",
        "0",
        "-1",
        "street",
        "e3",
        "lidar",
        "map",
        "scan",
        "clouds",
        "ragged",
        "ego_pose",
        "camera",
        "caption",
    ]
    values += ["objects", "rgb", "ring", "height", "1e999", "nan", "9" * 40, "\0", "../x", "'", "\ud7ff", "x" * 3000]
    for one in (client, broken[0]):
        for _ in range(120):
            given = {name: chosen.choice(values) for name in chosen.sample(names, chosen.randint(1, 5))}
            given.setdefault("id", chosen.choice(["street", "e2"]))
            code, _, body = one.ask(
                f"/api/{chosen.choice(['points', 'poses', 'scene', 'sequence'])}?{urlencode(given)}"
            )
            assert code < 500, (given, body)

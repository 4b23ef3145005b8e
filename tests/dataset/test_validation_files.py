"""Defects of files are found by code and place, at depths `files` and `decode`; clean datasets give no finding."""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.dataset import opening
from seqlake.dataset.validation import validate
from seqlake.errors import CorruptFrameError
from seqlake.files.blobs import MemoryBlob
from seqlake.media import VideoEncoder
from seqlake.media.video import indexing
from seqlake.protocols import Depth
from seqlake.spec.schema import Schema

from ..media import clips  # noqa: TID252 - tests are no installed package
from ..media.test_audio import encoded as sound_of  # noqa: TID252 - tests are no installed package
from ..media.test_image import jpeg, png, random  # noqa: TID252 - tests are no installed package

ONE = "data/one.parquet"
CAM = {"type": "video", "fps": 30}
X = {"type": "trajectory", "dim": 1}
A = {"location": ONE, "sequence_id": "a", "column": "cam"}
LINKS = pa.list_(pa.string())
PICTURES = pa.list_(pa.binary())


def steps(count: int) -> list[list[float]]:
    return [[float(step)] for step in range(count)]


@cache
def film(kind: str = "moving", *, frames: int = 20, fps: int = 30) -> bytes:
    """A video as seqlake itself writes it: `moving`, `black` with a little noise, or `frozen` and full of detail."""
    rng = np.random.default_rng(0)
    still = rng.integers(0, 255, (48, 64, 3), np.uint8)
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path("/tmp")
    path = folder / f"seqlake-{kind}-{frames}-{fps}-{id(still)}.mp4"
    encoder = VideoEncoder(path, fps=Fraction(fps))
    for number in range(frames):
        dark = rng.integers(0, 6, (48, 64, 3), np.uint8)
        encoder.write({"moving": clips.picture(number, 64, 48), "black": dark, "frozen": still}[kind])
    encoder.close()
    data = path.read_bytes()
    path.unlink()
    return data


@cache
def tone(*, rate: int = 8000, channels: int = 1, seconds: float = 20 / 30, loud: bool = True) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        samples = np.arange(int(rate * seconds)) % 50 * 100 * loud
        out.writeframes(np.repeat(samples[:, None], channels, 1).astype("<i2").tobytes())
    return file.getvalue()


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def place_of(data: bytes, frame: int) -> int:
    """The first byte of a frame's packet."""
    index = indexing.index(MemoryBlob(data))[0]
    return int(index.offset[index.order[frame]])


def broken(data: bytes, frame: int) -> bytes:
    """A frame whose packet says that it is longer than it is, which no decoder can miss."""
    start = place_of(data, frame)
    return data[:start] + b"\xff\xff\xff" + data[start + 3 :]


def folder(
    root: Path,
    *,
    cells: dict[str, list[Any]],
    types: dict[str, Any],
    files: dict[str, bytes] | None = None,
    arrow: dict[str, pa.DataType] | None = None,
) -> Path:
    """A plain dataset of as many rows as there are cells: a, b, c, ..."""
    (root / "data").mkdir(parents=True)
    count = len(next(iter(cells.values())))
    columns = {"sequence_id": pa.array("abcdefgh"[:count])}
    for name, values in cells.items():
        kind = (arrow or {}).get(name) or (pa.list_(pa.list_(pa.float32())) if name == "x" else None)
        columns[name] = pa.array(values, kind)
    pq.write_table(pa.table(columns), root / ONE)
    for path, data in (files or {}).items():
        (root / path).write_bytes(data)
    (root / "mixtrain.json").write_text(json.dumps({"mixtrain": "1.0", "column_types": types}))
    return root


@dataclass
class Defect:
    """One row, `a`, whose column `cam` names `f`; another, `b`, is good. What must be found, and from which depth."""

    code: str
    file: Callable[[], bytes] | None
    type: dict[str, Any] = field(default_factory=dict)
    at: dict[str, Any] = field(default_factory=dict)
    cell: Any = "f"
    depth: Depth = "files"
    good: Callable[[], bytes] = film
    also: frozenset[str] = frozenset()
    steps: int | None = 20
    fps: float | None = None
    says: str = ""
    arrow: pa.DataType | None = None
    other: Any = "good"

    def build(self, root: Path) -> Path:
        files = {"good": self.good()} | ({} if self.file is None else {"f": self.file()})
        cells: dict[str, list[Any]] = {"cam": [self.cell, self.other]}
        if self.steps is not None:
            cells["x"] = [steps(self.steps), steps(20)]
        types = {"cam": {**CAM, **self.type}} | (
            {"x": {**X, **({"fps": self.fps} if self.fps else {})}} if self.steps is not None else {}
        )
        types["cam"] = {name: value for name, value in types["cam"].items() if value is not None}
        return folder(root, cells=cells, types=types, files=files, arrow={"cam": self.arrow} if self.arrow else None)


IMAGE = {"type": "image", "fps": None}
AUDIO = {"type": "audio", "fps": None}
RGB, GREY16 = random((6, 8, 3), "u1"), random((6, 8), "u2")
DIM = png(RGB // 4, 2)
PNG, DEPTH, JPEG = png(RGB, 2), png(GREY16, 0), jpeg(clips.picture(0, 32, 16))
URL = pa.struct([("url", pa.string()), ("first_frame", pa.int64()), ("num_frames", pa.int64())])


def cut(data: bytes, share: float = 0.6) -> bytes:
    return data[: int(len(data) * share)]


def damaged_flac() -> bytes:
    data = bytearray(sound_of("flac", "flac", "s16"))
    for place in range(len(data) // 2, len(data) // 2 + 40):
        data[place] ^= 0x5A
    return bytes(data)


DEFECTS = {
    # ---- files that are not there, or are something else
    "missing": Defect("F404", None, says="no file is there"),
    "a folder": Defect("F404", None, cell="data"),
    "no bytes": Defect("F406", lambda: b""),
    "a text called mp4": Defect("F409", lambda: b"This is no video.\n" * 40),
    "a picture of no kind": Defect("F409", lambda: b"This is no picture", IMAGE, good=lambda: PNG, steps=None),
    "a video without sound": Defect("F409", film, AUDIO, good=tone, steps=None, says="found none"),
    "sound in place of a video": Defect("F409", tone, says="no video"),
    "moov last, cut": Defect("F409", lambda: cut(clips.clip("h264 with B-frames")), says="moov"),
    "moov first, cut": Defect("F411", lambda: cut(film()), also=frozenset({"F421"})),
    "matroska, cut": Defect("F411", lambda: cut(clips.clip("mpeg2, mkv")), also=frozenset({"F421"})),
    "wav, cut": Defect("F411", lambda: cut(tone()), AUDIO, good=tone, steps=None),
    "a stream that is not there": Defect("F410", film, {"stream": 3}, also=frozenset({"F410"})),
    "a stream of sound that is not there": Defect(
        "F410", tone, {**AUDIO, "stream": 1}, good=tone, steps=None, also=frozenset({"F410"})),
    "a part beyond the end": Defect(
        "F418", film, cell={"url": "f", "first_frame": 15, "num_frames": 10}, arrow=URL, steps=None,
        other={"url": "good", "first_frame": 0, "num_frames": 20}, says="frames 15 to 24 are declared; 5 are there"),
    # ---- declared, and not so
    "wrong fps": Defect("F413", lambda: film(fps=15), says="15 frames a second"),
    "fps of another standard": Defect("F413", film, {"fps": 29.97}, other=None, says="29.97 is declared"),
    "uneven times": Defect("F414", lambda: clips.encode(times=[*range(19), 20]), at={"step": 19}),
    "times at another rate altogether": Defect(
        "F413", lambda: clips.clip("uneven times, mp4"), also=frozenset({"F421"})),
    "wrong codec": Defect("F415", film, {"codec": "hevc"}, other=None),
    "wrong resolution": Defect(
        "F416", lambda: clips.encode(times=range(20)), {"resolution": [64, 48]}, says="64x48 is declared"),
    "turned, resolution before turning": Defect(
        "F416", lambda: clips.clip("rotated"), {"resolution": [96, 64]}, steps=None,
        good=lambda: clips.clip("head first"), says="64x96"),
    "wrong sample rate": Defect(
        "F413", lambda: tone(rate=16000), {**AUDIO, "sample_rate": 8000}, good=tone, steps=None),
    "wrong channels": Defect("F416", lambda: tone(channels=2), {**AUDIO, "channels": 1}, good=tone, steps=None),
    "picture of another format": Defect("F415", lambda: JPEG, {**IMAGE, "format": "png"}, good=lambda: PNG, steps=None),
    "picture of another size": Defect(
        "F416", lambda: png(RGB[:4], 2), {**IMAGE, "resolution": "8x6"}, good=lambda: PNG, steps=None),
    "cloud of another format": Defect(
        "F415", lambda: b"glTF....", {"type": "3d", "fps": None, "format": "ply"}, good=lambda: b"ply\n", steps=None),
    # ---- counted
    "too few frames": Defect("F421", lambda: film(frames=18), says="18 frames, expected 20: x has 20 steps"),
    "too many frames": Defect("F421", film, steps=19, says="20 frames, expected 19"),
    "sound too short": Defect(
        "F422", lambda: tone(seconds=0.3), AUDIO, good=tone, fps=30, says="0.300 s of sound"),
    # ---- pictures in the row
    "a picture of another format in the row": Defect(
        "F415", None, {**IMAGE, "format": "jpeg"}, {"step": 1}, [JPEG, PNG], steps=None, arrow=PICTURES, other=[JPEG],
        also=frozenset({"F417"})),
    "no picture in the row": Defect(
        "F409", None, IMAGE, {"step": 1}, [PNG, b"text"], steps=None, arrow=PICTURES, other=[PNG]),
    "8 bit among 16": Defect(
        "F417", None, IMAGE, {"step": 1}, [DEPTH, PNG], steps=None, arrow=PICTURES, other=[DEPTH],
        says="pixels of uint8"),
    "another size in the row": Defect(
        "F417", None, IMAGE, {"step": 2}, [PNG, PNG, png(RGB[:3], 2)], steps=None, arrow=PICTURES, other=[PNG]),
    "a missing step": Defect("F404", None, IMAGE, {"step": 1}, ["good", "gone"], good=lambda: PNG, steps=None,
        arrow=LINKS, other=[]),
    # ---- decoded
    "a broken packet": Defect(
        "F431", lambda: broken(film(), 11), at={"step": 11}, depth="decode", says="frames 11 to 15"),
    "a broken key frame": Defect(
        "F431", lambda: broken(film(), 8), at={"step": 8}, depth="decode", says="frames 8 to 15"),
    "a damaged picture": Defect(
        "F431", lambda: JPEG[:-40], {**IMAGE, "format": "jpeg"}, depth="decode", good=lambda: JPEG, steps=None),
    "a damaged picture in the row": Defect(
        "F431", None, IMAGE, {"step": 2}, [PNG, DIM, PNG[:60] + b"\0\0\0" + PNG[63:]], "decode", steps=None,
        arrow=PICTURES, other=[PNG, DIM]),
    "damaged sound": Defect(
        "F431", damaged_flac, AUDIO, depth="decode", good=lambda: sound_of("flac", "flac", "s16"), steps=None),
    "black": Defect("F432", lambda: film("black"), depth="decode"),
    "frozen": Defect("F433", lambda: film("frozen"), depth="decode"),
    "black pictures": Defect("F432", None, IMAGE, cell=[png(RGB * 0, 2)], depth="decode", steps=None, arrow=PICTURES,
        other=[PNG]),
    "silent": Defect("F434", lambda: tone(loud=False), AUDIO, depth="decode", good=tone, steps=None),
    "of a kind that nothing decodes": Defect(
        "F435", lambda: b"GIF89a" + bytes(20), IMAGE, depth="decode", good=lambda: PNG, steps=None),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found_by_its_code_and_place_and_alone(name: str, tmp_path: Path) -> None:
    defect = DEFECTS[name]
    root = defect.build(tmp_path / "ds")
    report = validate(root, depth=defect.depth)
    found = [f for f in report if f.code == defect.code and f.sequence_id != "b"]
    assert len(found) == 1, report
    expected = {**A, **defect.at}
    assert {key: getattr(found[0], key) for key in expected} == expected
    assert defect.says in found[0].message
    assert str(tmp_path) not in found[0].message
    # What follows from the defect may be said too, but nothing else.
    assert {f.code for f in report} - {defect.code} <= defect.also, report
    if defect.code not in defect.also:
        assert {f.sequence_id for f in report} == {"a"}
    if defect.depth == "decode":
        assert defect.code not in {f.code for f in validate(root, depth="files")}
    assert [f.code for f in validate(root, depth="rows")] == []


# ---- how things are said


def cameras(root: Path, *kinds: str, frames: int = 20, **types: Any) -> Path:
    """A row for each kind of film, in the columns `cam` and, always moving, `other`."""
    files = {kind: film(kind, frames=frames) for kind in {*kinds, "moving"}}
    moving = ["moving" + "/." * 0 for _ in kinds]
    for number in range(len(kinds)):
        files[f"moving{number}"] = files["moving"]
        moving[number] = f"moving{number}"
    cells = {"cam": [f"{kind}-{n}" for n, kind in enumerate(kinds)], "other": moving}
    files |= {f"{kind}-{n}": files[kind] for n, kind in enumerate(kinds)}
    return folder(root, cells=cells, types={"cam": CAM, "other": CAM, **types}, files=files)


def test_a_column_that_is_black_throughout_is_noted_once(tmp_path: Path) -> None:
    report = validate(cameras(tmp_path / "all", "black", "black", "black"), depth="decode")
    assert [(f.code, f.severity, f.column, f.sequence_id) for f in report] == [("F432", "note", "cam", "")]
    assert report.findings[0].message == "every frame is black, in all 3 sequences"
    some = validate(cameras(tmp_path / "some", "black", "moving", "black", "frozen"), depth="decode")
    assert [(f.code, f.column, f.sequence_id) for f in some] == [
        ("F432", "cam", "a"), ("F432", "cam", "c"), ("F433", "cam", "d")
    ]  # fmt: skip
    assert some.ok


def test_signals_that_never_change_are_noted(tmp_path: Path) -> None:
    schema = Schema({
        "x": sl.Trajectory(dim=2), "y": sl.Trajectory(dim=2), "raw": sl.Trajectory(dim=2, encoding="raw"),
        "n": pa.list_(pa.list_(pa.int16())),
    })  # fmt: skip
    ds = opening.create(tmp_path / "ds", schema)
    still, moving = np.ones((5, 2)), np.arange(10).reshape(5, 2)
    there_and_back = np.array([[0, 0], [1, 0], [0, 0]])
    ds.append([
        {"sequence_id": "a", "x": still, "y": moving, "raw": still, "n": [[1]] * 5},
        {"sequence_id": "b", "x": None, "y": still[:1], "raw": moving[:1], "n": None},
        {"sequence_id": "c", "x": 2 * still[:3], "y": there_and_back, "raw": there_and_back, "n": [[1], [1], [2]]},
    ])  # fmt: skip
    assert [(f.code, f.severity, f.column, f.sequence_id) for f in ds.validate(depth="rows")] == [
        ("R317", "note", "x", ""), ("R317", "note", "raw", "a"), ("R317", "note", "n", "a")
    ]  # fmt: skip


# ---- datasets of our own


def recorded(root: Path, count: int = 2) -> sl.Dataset:
    ds = opening.create(root / "ds", Schema({"cam": sl.Video(fps=30), "x": sl.Trajectory(dim=1)}))
    (root / "clip.mp4").write_bytes(film())
    with ds.writer() as writer:
        for number in range(count):
            writer.add(f"ep_{number}", cam=sl.File(root / "clip.mp4"), x=steps(20))
    return ds


def test_copied_in_files_are_compared_with_what_was_copied(tmp_path: Path) -> None:
    ds = recorded(tmp_path)
    assert list(ds.validate(depth="decode")) == []
    path = tmp_path / "ds" / ds[1]["cam"].reference
    path.write_bytes(flipped(film(), place_of(film(), 11) + 40))
    report = opening.open(ds.location).validate(depth="files")
    assert [(f.code, f.sequence_id, f.column) for f in report] == [("F412", "ep_1", "cam")]
    fresh = opening.open(ds.location)
    assert [f.code for f in validate(fresh.where("sequence_id = 'ep_1'"))] == ["F412"]
    assert list(validate(fresh.where("sequence_id = 'ep_0'"))) == []
    deep = fresh.validate(depth="decode")
    assert [(f.code, f.sequence_id, f.column, f.step) for f in deep] == [
        ("F412", "ep_1", "cam", None), ("F431", "ep_1", "cam", 11)
    ]  # fmt: skip
    assert "frames 11 to 15" in deep.findings[1].message
    path.write_bytes(film() + b"more")
    assert [(f.code, f.location) for f in opening.open(ds.location).validate()] == [("T510", ds[1]["cam"].reference)]


def test_every_damaged_group_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    film_of = broken(broken(film(frames=48), 20), 41)
    root = folder(tmp_path / "ds", cells={"cam": ["f"]}, types={"cam": CAM}, files={"f": film_of})
    found = [f for f in validate(root, depth="decode") if f.code == "F431"]
    assert [f.step for f in found] == [20, 41]
    assert "frames 20 to 23" in found[0].message
    assert "frames 41 to 47" in found[1].message


def test_damage_with_reordered_frames_is_named_by_the_frames_that_cannot_be_read(tmp_path: Path) -> None:
    data = broken(clips.clip("h264 with B-frames"), 15)
    root = folder(tmp_path / "ds", cells={"cam": ["f"]}, types={"cam": CAM}, files={"f": data})
    cam = opening.open(root)["a"]["cam"]

    def reads(frame: int) -> bool:
        try:
            cam[frame]
        except CorruptFrameError:
            return False
        return True

    bad = [frame for frame in range(len(cam)) if not reads(frame)]
    assert 15 in bad
    [found] = validate(root, depth="decode")
    assert (found.code, found.step) == ("F431", bad[0])
    assert f"{bad[0]} to {bad[-1]}:" in found.message


@pytest.mark.parametrize("name", ["head first", "fragmented by key frame", "mpeg2, mkv"])
def test_a_cut_video_is_decoded_up_to_the_cut(name: str, tmp_path: Path) -> None:
    root = folder(tmp_path / "ds", cells={"cam": ["f"]}, types={"cam": CAM}, files={"f": cut(clips.clip(name))})
    assert [(f.code, f.sequence_id, f.column) for f in validate(root, depth="decode")] == [("F411", "a", "cam")]
    assert 5 < len(opening.open(root)["a"]["cam"]) < clips.COUNT


def test_links_that_lead_out_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.mp4").write_bytes(film())
    root = folder(tmp_path / "ds", cells={"cam": ["link", str(tmp_path / "secret.mp4")]}, types={"cam": CAM})
    (root / "link").symlink_to(tmp_path / "secret.mp4")
    report = validate(root, depth="decode")
    assert [(f.code, f.sequence_id) for f in report] == [("F403", "b"), ("F407", "a")]
    trusted = opening.open(root, allow_outside=True).validate(depth="decode")
    assert [f.code for f in trusted] == ["F403"]


def test_files_in_buckets_are_looked_at_too(s3_bucket: Any, tmp_path: Path) -> None:
    place = f"{s3_bucket.uri}/ds"
    ds = opening.create(place, Schema({"cam": sl.Video(fps=30), "x": sl.Trajectory(dim=1)}), storage=s3_bucket.storage)
    (tmp_path / "clip.mp4").write_bytes(film())
    ds.table.store.put("files/mine.mp4", broken(film(), 3))
    with ds.writer() as writer:
        writer.add("a", cam=sl.File(tmp_path / "clip.mp4"), x=steps(20))
        writer.add("b", cam="files/mine.mp4", x=steps(20))
        writer.add("c", cam=f"{s3_bucket.uri}/nothing.mp4", x=steps(20))
        writer.add("d", cam="nosuch://bucket/x.mp4", x=steps(20))
        writer.add("e", cam="nosuch://bucket/y.mp4", x=steps(20))
    report = validate(place, depth="decode", storage=s3_bucket.storage)
    assert [(f.code, f.severity, f.sequence_id, f.step) for f in report] == [
        ("F431", "error", "b", 3), ("F404", "error", "c", None), ("F408", "warning", "d", None),
        ("F408", "warning", "e", None),
    ]  # fmt: skip


def test_the_clock_is_that_of_the_camera_whose_frames_are_as_many_as_the_steps(tmp_path: Path) -> None:
    """Two cameras of 30 and 15 fps and no rate of the signal: 20 steps are one each of the slow camera."""
    files = {"fast": film(frames=40), "slow": film(frames=20, fps=15), "short": film(frames=12)}
    cells = {"x": [steps(20)], "fast": ["fast"], "slow": ["slow"], "short": ["short"]}
    types = {"x": X, "fast": CAM, "slow": {**CAM, "fps": 15}, "short": CAM}
    report = validate(folder(tmp_path / "ds", cells=cells, types=types, files=files))
    assert [(f.code, f.column) for f in report] == [("F421", "short")]
    assert "expected 40: x has 20 steps at 15 a second" in report.findings[0].message


def test_clouds_are_read_where_a_plug_reads_them(tmp_path: Path) -> None:
    pytest.importorskip("trimesh")
    head = "ply\nformat binary_little_endian 1.0\nelement vertex 4\n"
    head += "property float x\nproperty float y\nproperty float z\nend_header\n"
    points = np.arange(12, dtype="<f4").tobytes()
    files = {"whole.ply": head.encode() + points, "cut.ply": head.encode() + points[:20], "film.bag": b"bytes"}
    cells = {"cloud": ["whole.ply", "cut.ply"], "bag": ["film.bag", None]}
    types = {"cloud": {"type": "3d", "format": "ply"}, "bag": {"type": "4d"}}
    root = folder(tmp_path / "ds", cells=cells, types=types, files=files)
    assert [(f.code, f.sequence_id, f.column) for f in validate(root, depth="decode")] == [
        ("F431", "b", "cloud"), ("F435", "a", "bag")
    ]  # fmt: skip
    assert list(validate(root)) == []


def test_many_rows_are_judged_in_their_order(tmp_path: Path) -> None:
    ds = opening.create(tmp_path / "ds", Schema({"cam": sl.Video(), "x": sl.Trajectory(dim=1)}))
    with ds.writer(rows_per_shard=7) as writer:
        for number in range(60):
            writer.add(f"ep_{number:02}", cam=None if number % 3 else f"gone-{number}.mp4", x=steps(3))
    report = ds.validate()
    assert [f.sequence_id for f in report] == [f"ep_{number:02}" for number in range(0, 60, 3)]
    assert {f.code for f in report} == {"F404"}


# ---- clean datasets


def clean(**columns: tuple[dict[str, Any], list[Any]]) -> Callable[[Path], Path]:
    def build(root: Path) -> Path:
        files, cells = {}, {}
        for name, (_, values) in columns.items():
            cells[name] = values
            for number, value in enumerate(values):
                if callable(value):
                    files[f"{name}{number}"] = value()
                    cells[name] = [*cells[name][:number], f"{name}{number}", *values[number + 1 :]]
        listed = {name: values[0] for name, (_, values) in columns.items() if name in {"im", "depth"}}
        kinds = {name: LINKS if isinstance(cell[0], str) else PICTURES for name, cell in listed.items()}
        kinds |= {"part": URL}
        types = {name: declared for name, (declared, _) in columns.items() if declared}
        return folder(root / "ds", cells=cells, types=types, files=files, arrow=kinds)

    return build


def filmed(name: str, *, count: int = clips.COUNT, **declared: Any) -> Callable[[Path], Path]:
    return clean(cam=({**CAM, **declared}, [lambda: clips.clip(name)]), x=(X, [steps(count)]))


UNEVEN_NS = [one * 10**9 // 30 for one in clips.UNEVEN]
CLEAN: dict[str, Callable[[Path], object]] = {
    "as we write them": recorded,
    "two cameras at 30 and 15": clean(
        x=(X, [steps(40)]), cam=(CAM, [lambda: film(frames=40)]), slow=({**CAM, "fps": 15}, [lambda: film(fps=15)])),
    "a camera at 12, started late": clean(
        x=({**X, "fps": 30}, [steps(40)]), slow=({**CAM, "fps": 12}, [lambda: film(frames=15, fps=12)])),
    "uneven times with a column of times": clean(
        cam=({"type": "video", "timestamps": "t"}, [lambda: clips.clip("uneven times, mp4")]), t=({}, [UNEVEN_NS]),
        x=({**X, "fps": 30}, [steps(60)])),
    "sound of the same length": clean(
        x=({**X, "fps": 30}, [steps(20)]), mic=({"type": "audio", "sample_rate": 8000, "channels": 1}, [tone])),
    "compressed sound": clean(
        mic=({"type": "audio", "sample_rate": 48000, "channels": 2, "codec": "mp4a"},
             [lambda: sound_of("aac", "mp4", "fltp")])),
    "pictures in the row": clean(
        im=({"type": "image", "format": "jpg", "resolution": [64, 48]},
            [[jpeg(clips.picture(number, 64, 48)) for number in range(3)]])),
    "depth in 16 bits, one file a step": clean(
        d0=({"type": "image"}, [lambda: DEPTH]), depth=({"type": "image", "format": "png"}, [["d00", "d00"]])),
    "parts of a shared file": clean(
        part=({**CAM, "codec": "avc1.640028"}, [
            {"url": "whole0", "first_frame": 0, "num_frames": 8},
            {"url": "whole0", "first_frame": 8, "num_frames": 12}]),
        whole=({"type": "4d"}, [film, None]), x=(X, [steps(8), steps(12)])),
    "nothing named": clean(cam=(CAM, [film, None]), x=(X, [steps(20), None])),
    "a stream of several": clean(
        cam=({**CAM, "stream": 0, "resolution": [64, 48]}, [lambda: clips.clip("several streams")]),
        mic=({"type": "audio", "sample_rate": 16000}, [lambda: clips.clip("several streams")])),
    "rotated": filmed("rotated", resolution=[64, 96]),
    "edit list": filmed("edit list", count=clips.COUNT - 7),
    "10 bit": filmed("h264 10 bit", codec="H.264"),
    "open groups": filmed("h264 open groups", codec="libx264"),
    "intra refresh": filmed("h264 intra refresh"),
    "hevc, 10 bit": filmed("hevc 10 bit", codec="hvc1"),
    "av1": filmed("av1", codec="libsvtav1"),
    "vp9, odd size": filmed("vp9, odd size", codec="vp09", resolution="95x63"),
    "matroska": filmed("h264 with a pyramid, mkv"),
    "mjpeg in avi": filmed("mjpeg, avi", codec="jpeg"),
    "mpeg2 in a transport stream": filmed("mpeg2 with B-frames"),
    "fragmented": filmed("fragmented by key frame"),
    "late start": filmed("late start, mkv"),
    "two parameter sets": filmed("two parameter sets, apart", count=80),
    "prores": filmed("prores"),
    "a title in Latin-1": clean(cam=(CAM, [lambda: film().replace(b"Lavf", b"\xe9avf")])),
    "raw": filmed("raw h264", fps=None),
}  # fmt: skip


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_dataset_gives_no_finding(name: str, tmp_path: Path) -> None:
    made = CLEAN[name](tmp_path)
    source = made.location if isinstance(made, sl.Dataset) else made
    # A file that two rows of one column name, pictures that are the same, and a kind that nothing decodes or gives.
    meant = {"parts of a shared file": {"F435"}, "depth in 16 bits, one file a step": {"F433"}}
    assert [f for f in validate(source, depth="decode") if f.code not in meant.get(name, set())] == []

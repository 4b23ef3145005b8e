"""Changed media files of every kind: an error of seqlake's or an answer and nothing else, in 2 GB, without a crash.

The files are read by a process of its own with little memory (`mutations.py`), through a dataset: frames, then
`validate`. A file that was copied in has a hash and a packet index, so there another answer must be a finding.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake import media
from seqlake.errors import SeqlakeError
from seqlake.media import video
from seqlake.protocols import Source
from seqlake.spec.column_types import ColumnType

from .. import counting  # noqa: TID252 - tests are no package that could be named
from . import clips, mutations, test_audio, test_clouds, test_spatial
from .test_image import jpeg, png, random

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.mutations,
    pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process, as Linux does"),
]
SHORT = range(20)  # long enough for groups, B-frames and an end
KINDS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "mp4": ("video", lambda: clips.encode(times=SHORT, bf="2", g="8")),
    "mp4, head first": ("video", lambda: clips.encode(times=SHORT, muxer={"movflags": "+faststart"}, g="8")),
    "mp4, fragmented": (
        "video",
        lambda: clips.encode(times=SHORT, muxer={"movflags": "frag_keyframe+empty_moov"}, bf="2", g="8"),
    ),
    "mp4, hevc": ("video", lambda: clips.encode("libx265", times=SHORT, **{"x265-params": "log-level=none:keyint=8"})),
    "mp4, av1": ("video", lambda: clips.encode("libsvtav1", times=SHORT, g="8", preset="10")),
    "mov, dnxhr": (
        "video",
        lambda: clips.encode(
            "dnxhd", container="mov", times=range(5), pix_fmt="yuv422p", size=(256, 128), profile="dnxhr_sq"
        ),
    ),
    "mov, qtrle": ("video", lambda: clips.encode("qtrle", container="mov", times=range(5), pix_fmt="rgb24")),
    "mkv": ("video", lambda: clips.encode(container="matroska", times=SHORT, bf="2", g="8")),
    "mkv, ffv1": ("video", lambda: clips.encode("ffv1", container="matroska", times=range(6), g="3")),
    "webm": ("video", lambda: clips.encode("libvpx-vp9", container="webm", times=SHORT, deadline="realtime", g="8")),
    "avi, mpeg4": ("video", lambda: clips.encode("mpeg4", container="avi", times=SHORT, g="8")),
    "avi, mjpeg": ("video", lambda: clips.encode("mjpeg", container="avi", times=range(6), pix_fmt="yuvj420p")),
    "ts": ("video", lambda: clips.encode(container="mpegts", times=SHORT, bf="2", g="8")),
    "ps": ("video", lambda: clips.encode("mpeg2video", container="vob", times=SHORT, g="8")),
    "flv": ("video", lambda: clips.encode("flv", container="flv", times=SHORT, g="8")),
    "mxf": ("video", lambda: clips.encode("mpeg2video", container="mxf", times=SHORT, g="8")),
    "asf": ("video", lambda: clips.encode("wmv2", container="asf", times=SHORT, g="8")),
    "nut": ("video", lambda: clips.encode("mpeg4", container="nut", times=SHORT, g="8")),
    "ivf": ("video", lambda: clips.encode("libvpx", container="ivf", times=SHORT, deadline="realtime", g="8")),
    "h264": ("video", lambda: clips.encode(container="h264", times=SHORT, g="8")),
    "y4m": ("video", lambda: clips.encode("rawvideo", container="yuv4mpegpipe", times=range(3))),
    "gif": ("video", lambda: clips.encode("gif", container="gif", times=range(4), pix_fmt="rgb8")),
    "apng": ("video", lambda: clips.encode("apng", container="apng", times=range(4), pix_fmt="rgb24")),
    "webp": ("video", lambda: clips.encode("libwebp", container="webp", times=[0], pix_fmt="yuv420p")),
    "jpeg": ("image", lambda: jpeg(clips.picture(3))),
    "png": ("image", lambda: png(random((30, 40, 3), "u1"), 2)),
    "png, 16 bit": ("image", lambda: png(random((30, 40, 4), "u2"), 6)),
    "wav": ("audio", lambda: test_audio.encoded("pcm_s16le", "wav", "s16")),
    "flac": ("audio", lambda: test_audio.encoded("flac", "flac", "s16")),
    "mp3": ("audio", lambda: test_audio.encoded("libmp3lame", "mp3", "fltp")),
    "aac": ("audio", lambda: test_audio.encoded("aac", "mp4", "fltp")),
    "opus": ("audio", lambda: test_audio.encoded("libopus", "ogg", "flt")),
    "aiff": ("audio", lambda: test_audio.encoded("pcm_s16be", "aiff", "s16")),
    "caf": ("audio", lambda: test_audio.encoded("pcm_s16be", "caf", "s16")),
    "ply": ("3d", lambda: test_spatial.ply(faces=True)),
    "ply, text": ("3d", lambda: test_spatial.ply(faces=True, text=True)),
    "stl": ("3d", test_spatial.stl),
    "obj": ("3d", test_spatial.obj),
    "off": ("3d", test_spatial.off),
    "glb": ("3d", test_spatial.glb),
    "pcd": ("3d", lambda: test_clouds.pcd(test_clouds.random_cloud(0, 60, ["u2"]), "binary")),
    "pcd, text": ("3d", lambda: test_clouds.pcd(test_clouds.random_cloud(0, 60, ["u2"]), "ascii")),
    "pcd, compressed": ("3d", lambda: test_clouds.pcd(test_clouds.random_cloud(0, 60, ["u2"]), "binary_compressed")),
    "las": ("3d", lambda: test_clouds.LAS),
    "laz": ("3d", lambda: test_clouds.LAZ),
    "xyz": ("3d", lambda: b"".join(b"%f %f %f\n" % tuple(point) for point in test_spatial.POINTS.tolist())),
}


def prepared(kind: str, folder: Path) -> Path:
    """The folder that `mutations.py` reads."""
    column, make = KINDS[kind]
    data = make()
    folder = folder / kind.replace(", ", "-").replace(" ", "-")
    folder.mkdir()
    (folder / "base").write_bytes(data)
    declared = ColumnType(column, format=kind.partition(",")[0]) if column == "3d" else ColumnType(column)
    for name, cell in (("copied", sl.File(str(folder / "base"))), ("stranger", "there.bin")):
        ds = sl.create(str(folder / name), sl.Schema({"cell": declared}))
        (folder / name / "there.bin").write_bytes(data)
        ds.append([{"sequence_id": "a", "cell": cell}])
    return folder


def counted(kinds: list[str], folder: Path, first: int, count: int) -> list[counting.Counts]:
    """Read changed files of some kinds."""
    folders = {prepared(kind, folder): kind for kind in kinds}
    counts = {one.name: counting.Counts(reader=f"media, {kind}") for one, kind in folders.items()}
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    read = 0
    while read < len(folders) * count:
        command = [sys.executable, mutations.__file__, *map(str, (first, count, read, *folders))]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert lines, done.stderr[-2000:]
        assert done.returncode <= 0, done.stderr[-2000:]
        if done.returncode:  # it ended with the last one
            lines[-1] |= {
                "what": "hang" if done.returncode == -signal.SIGALRM else "crash",
                "why": str(done.returncode),
            }
        read += len({(line["folder"], line["seed"]) for line in lines})
        for line in (one for one in lines if one["what"] != "begun"):
            one = counts[line["folder"]]
            one.mutations += 1
            setattr(one, line["what"], getattr(one, line["what"]) + 1)
            if line["what"] in counting.BAD:
                one.examples.append(f"{line['seed']} {line['name']} {line['what']}: {line['why']}")
    return list(counts.values())


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("part", range(3))
def test_changed_files_are_refused_or_read(part: int, tmp_path: Path) -> None:
    bad = [(one.reader, one.examples) for one in counted(list(KINDS)[part::3], tmp_path, 0, 3) if one.bad()]
    assert not bad


def test_a_beginning_that_says_no_size_is_an_error() -> None:
    data = bytearray(KINDS["ivf"][1]())
    data[50:300] = bytes(250)  # width, height and more in the first packet of VP8
    with pytest.raises(SeqlakeError):
        video.open(Source(blob=bytes(data), column=ColumnType("video"))).read(np.arange(2))


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_many_changed_files_are_refused_or_read(kind: str, tmp_path: Path) -> None:
    (counts,) = counted([kind], tmp_path, counting.seeded(1000), counting.many(200))
    counts.keep()
    assert not counts.bad(), counts.examples


FORGED: dict[str, list[Any]] = {
    "codec": ["", "none", "aac", "libx264", "h264\0", 7, None, "é", "x" * 1000, "rawvideo", "png", "ffv1"],
    "extradata": ["", "AAAA", "!", None, "/" * 4000],
    "width": [0, -1, 1 << 20, 1 << 40, 1e30, "96", None, True],
    "height": [0, -1, 1 << 20, [], 63],
    "pix_fmt": ["nonsense", "yuv444p", "cuda", None, 3],
    "reorder": [-1, 16, 1 << 31, "2", None],
    "time_base": ["0", "1/0", "-1/30", "x", None, "1/" + "9" * 5000],
    "rate": ["1/0", "-1", None],
    "tags": [[], [1, 2], [1 << 40] * 4, ["a"] * 4, [-1] * 4, None],
    "turn": [[0, 0, 0, 0], [1, 1, 1, 1], [5, 0, 0, 1], [], None, [0, 1, -1, 0]],
    "size": [-1, 0, 10**30, "x"],
    "placed": [None, "no", False],
    "number": [-1, 99, None],
    "changes": [[[0, "AAAA"]], [[-1, "AAAA"]], [["x", "AAAA"]], [[1 << 60, ""]], 7],
    "fourcc": ["toolong", "é", None, "MJPG"],
    "depth": [-1, 1 << 31, None, 12],
    "version": [0, None, "1"],
}


def forged(kept: bytes) -> Iterator[tuple[str, bytes]]:
    """Packet indexes with one field or column changed, by pyarrow alone."""
    table = pa.ipc.open_stream(kept).read_all()

    def written(columns: dict[str, Any], header: Any) -> bytes:
        made = pa.table(columns).replace_schema_metadata({b"seqlake.packets": json.dumps(header)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, made.schema) as writer:
            writer.write_table(made)
        return sink.getvalue().to_pybytes()

    header = json.loads(table.schema.metadata[b"seqlake.packets"])
    columns = {name: table[name] for name in table.column_names}
    for name in header:
        yield f"without {name}", written(columns, {key: value for key, value in header.items() if key != name})
    for name, values in FORGED.items():
        for value in values:
            yield f"{name} {str(value)[:20]}", written(columns, {**header, name: value})
    for value in ([], "x", None):
        yield f"header {value}", written(columns, value)
    for name, column in columns.items():
        yield f"no {name}", written({key: value for key, value in columns.items() if key != name}, header)
        for kind in (pa.string(), pa.float64(), pa.int16()):
            yield f"{name} as {kind}", written({**columns, name: column.cast(kind, safe=False)}, header)
        values = column.to_pylist()
        top = 2 ** (8 * column.type.bit_width // 8) // 2 - 1
        for value in (
            None,
            0,
            1,
            top,
            *([-1, -top] if name in {"gap", "length", "step"} else [255 if name == "flags" else 7]),
        ):
            for place in (0, len(values) // 2):
                wrong = pa.array([*values[:place], value, *values[place + 1 :]], column.type)
                yield f"{name}[{place}] = {value}", written({**columns, name: wrong}, header)


def test_an_index_that_was_forged_is_refused_or_right() -> None:
    """Whoever writes a dataset writes the packet indexes in it."""
    data = clips.encode(times=SHORT, bf="2", g="8")
    kept = media.index(Source(blob=data, column=ColumnType("video")))[0]
    counts = counting.Counts(reader="media, packet index")
    truth = media.open(Source(blob=data, column=ColumnType("video"))).read(np.arange(20))
    for name, index in forged(kept):
        source = Source(blob=data, column=ColumnType("video"), index=index)

        def read(source: Source = source) -> Any:
            decoder = media.open(source)
            return decoder.read(np.arange(min(20, len(decoder))))

        counts.of(read, lambda answer: answer.size <= truth.size, name=name)  # which frames there are, is its to say
    assert counts.mutations > 150
    assert not counts.bad(), counts.examples

"""A writer of LeRobot folders that shares nothing with ours: pyarrow, PyAV, and the layout's own words.

It writes what lerobot 0.4.4 writes (v3.0) and what 0.3.3 wrote (v2.x): dictionary and snappy, numbers of shape [1] as
scalars, vectors as fixed-size lists, matrices as nested lists, images as structs, videos of one camera end to end in
shared files with times that are sums of what the containers say.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

FPS = 10
SIZE = (48, 64)  # height, width
CAM = "observation.images.top"
FEATURES: dict[str, dict[str, Any]] = {
    "observation.state": {"dtype": "float32", "shape": [6], "names": {"motors": [f"j{k}" for k in range(6)]}},
    "action": {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]},
    "pose": {"dtype": "float64", "shape": [2, 3], "names": None},
    "next.reward": {"dtype": "float32", "shape": [1], "names": None},
    "next.done": {"dtype": "bool", "shape": [1], "names": None},
    "note": {"dtype": "string", "shape": [1], "names": None},
    "picture": {"dtype": "image", "shape": [6, 8, 3], "names": ["height", "width", "channels"]},
}
VIDEO = {
    "dtype": "video",
    "shape": [*SIZE, 3],
    "names": ["height", "width", "channels"],
    "info": {
        "video.height": SIZE[0],
        "video.width": SIZE[1],
        "video.codec": "h264",
        "video.pix_fmt": "yuv420p",
        "video.is_depth_map": False,
        "video.fps": FPS,
        "video.channels": 3,
        "has_audio": False,
    },
}
BOOKKEEPING = {
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    **{
        name: {"dtype": "int64", "shape": [1], "names": None}
        for name in ("frame_index", "episode_index", "index", "task_index")
    },
}


@dataclass
class Recorded:
    """One episode."""

    number: int
    length: int
    tasks: list[str]
    values: dict[str, Any] = field(default_factory=dict)
    films: dict[str, bytes] = field(default_factory=dict)


def record(number: int, length: int, *, tasks: Sequence[str] = ("pick",), cameras: Sequence[str] = (CAM,)) -> Recorded:
    """An episode whose every value says which it is."""
    rng = np.random.default_rng(number)
    values = {
        "observation.state": rng.normal(size=(length, 6)).astype(np.float32),
        "action": rng.normal(size=(length, 3)).astype(np.float32),
        "pose": rng.normal(size=(length, 2, 3)),
        "next.reward": rng.normal(size=length).astype(np.float32),
        "next.done": np.arange(length) == length - 1,
        "note": [f"{number}/{t}" for t in range(length)],
        "picture": [png(number, t) for t in range(length)],
    }
    films = {camera: film(number + 10 * place, length) for place, camera in enumerate(cameras)}
    return Recorded(number, length, list(tasks), values, films)


def png(number: int, step: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((6, 8, 3), (number * 16, step * 3, 7), np.uint8)).save(out, format="PNG")
    return out.getvalue()


def film(number: int, length: int, *, codec: str = "libx264", fps: int = FPS, gop: int = 2) -> bytes:
    """An episode's own MP4, encoded alone, so that it begins on a key frame."""
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=fps, options={"g": str(gop), "bf": "0", "crf": "12"})
        stream.height, stream.width = SIZE
        stream.pix_fmt = "yuv420p"
        for step in range(length):
            pixels = np.full((*SIZE, 3), (40 + 8 * (number % 20)) % 256, np.uint8)
            pixels[:, : min(2 + 2 * step, SIZE[1])] = 220
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return out.getvalue()


def joined(films: Sequence[bytes], *, late: Fraction = Fraction(0)) -> bytes:
    """Films end to end by packet copy; each begins `late` seconds after the one before ends."""
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        target, start = None, Fraction(0)
        for data in films:
            with av.open(io.BytesIO(data)) as source:
                stream = source.streams.video[0]
                if target is None:
                    target = container.add_stream_from_template(stream, opaque=True)
                    target.time_base = stream.time_base
                shift = round(start / stream.time_base)
                for packet in source.demux(stream):
                    if packet.dts is not None:
                        packet.pts, packet.dts, packet.stream = packet.pts + shift, packet.dts + shift, target
                        container.mux(packet)
                start += stream.duration * stream.time_base + late
    return out.getvalue()


def frames(data: bytes) -> np.ndarray:
    """[T, H, W, 3] what PyAV alone decodes."""
    with av.open(io.BytesIO(data)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def feature_type(feature: dict[str, Any]) -> pa.DataType:
    if feature["dtype"] == "image":
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    number = pa.string() if feature["dtype"] == "string" else pa.from_numpy_dtype(np.dtype(feature["dtype"]))
    shape = feature["shape"]
    if shape == [1]:
        return number
    if len(shape) == 1:
        return pa.list_(number, shape[0])
    for _ in shape:
        number = pa.list_(number)
    return number


def steps_table(one: Recorded, features: dict[str, dict[str, Any]], *, start: int, tasks: Sequence[str]) -> pa.Table:
    """The rows of an episode."""
    numbers = np.arange(one.length)
    switched = [one.tasks[min(t * len(one.tasks) // one.length, len(one.tasks) - 1)] for t in range(one.length)]
    values = {
        **one.values,
        "timestamp": (numbers / FPS).astype(np.float32),
        "frame_index": numbers,
        "episode_index": np.full(one.length, one.number),
        "index": numbers + start,
        "task_index": np.array([tasks.index(task) for task in switched], np.int64),
    }
    columns = {}
    for name, feature in features.items():
        if feature["dtype"] == "video" or name not in values:
            continue
        cells = values[name]
        if feature["dtype"] == "image":
            cells = [{"bytes": data, "path": f"frame-{t:06d}.png"} for t, data in enumerate(cells)]
        elif isinstance(cells, np.ndarray):
            cells = cells.tolist()
        columns[name] = pa.array(cells, feature_type(feature))
    return pa.table(columns)


def info_of(version: str, episodes: Sequence[Recorded], features: dict[str, Any], **more: Any) -> dict[str, Any]:
    cameras = [name for name, feature in features.items() if feature["dtype"] == "video"]
    tasks = {task for one in episodes for task in one.tasks}
    info = {
        "codebase_version": version,
        "robot_type": "so100",
        "total_episodes": len(episodes),
        "total_frames": sum(one.length for one in episodes),
        "total_tasks": len(tasks),
        "chunks_size": 1000,
        "fps": FPS,
        "splits": {"train": f"0:{len(episodes)}"},
        "features": features,
    }
    if version == "v3.0":
        info |= {
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4" if cameras else None,
        }
    else:
        info |= {
            "total_videos": len(episodes) * len(cameras),
            "total_chunks": 1,
            "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
            "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        }
    return {**info, **more}


def stats_of(one: Recorded, features: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A line of `episodes_stats.jsonl`; nothing here reads the numbers."""
    shapes = {
        name: (3, 1, 1) if "names" in f and len(f["shape"]) == 3 else tuple(f["shape"]) for name, f in features.items()
    }
    stats = {
        name: {key: np.zeros(shape).tolist() for key in ("min", "max", "mean", "std")} | {"count": [one.length]}
        for name, shape in shapes.items()
        if features[name]["dtype"] != "string"
    }
    return {"episode_index": one.number, "stats": stats}


def put(path: Path, data: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def parquet(path: Path, tables: Iterable[pa.Table], *, groups: bool = True) -> None:
    """A Parquet file with a row group a table; or one for all."""
    parts = list(tables)
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = parts if groups else [pa.concat_tables(parts)]
    with pq.ParquetWriter(path, parts[0].schema, compression="snappy", use_dictionary=True) as writer:
        for part in parts:
            writer.write_table(part)


def declared(episodes: Sequence[Recorded]) -> dict[str, dict[str, Any]]:
    cameras = dict.fromkeys(camera for one in episodes for camera in one.films)
    return {**FEATURES, **{camera: json.loads(json.dumps(VIDEO)) for camera in cameras}, **BOOKKEEPING}


def tasks_of(episodes: Sequence[Recorded]) -> list[str]:
    return list(dict.fromkeys(task for one in episodes for task in one.tasks))


def write_v3(
    root: Path,
    episodes: Sequence[Recorded],
    *,
    per_data_file: int = 2,
    per_video_file: int = 3,
    groups: bool = True,
    late: Fraction = Fraction(0),
    task_column: str = "__index_level_0__",
    features: dict[str, dict[str, Any]] | None = None,
    **info: Any,
) -> Path:
    """v3.0: many episodes a file; files of data and of videos break at different places."""
    features, tasks = features or declared(episodes), tasks_of(episodes)
    rows: list[dict[str, Any]] = []
    start = 0
    for one in episodes:
        stats = {"stats/action/min": [-1.0] * 3, "stats/action/count": [one.length]}
        rows.append({"episode_index": one.number, "tasks": one.tasks, "length": one.length})
        rows[-1] |= {"dataset_from_index": start, "dataset_to_index": start + one.length, **stats}
        start += one.length
    for number, first in enumerate(range(0, len(episodes), per_data_file)):
        tables = []
        for place in range(first, min(first + per_data_file, len(episodes))):
            rows[place] |= {"data/chunk_index": number // 2, "data/file_index": number % 2}
            one, begin = episodes[place], rows[place]["dataset_from_index"]
            tables.append(steps_table(one, features, start=begin, tasks=tasks))
        parquet(root / f"data/chunk-{number // 2:03d}/file-{number % 2:03d}.parquet", tables, groups=groups)
    for camera in (name for name, feature in features.items() if feature["dtype"] == "video"):
        for number, first in enumerate(range(0, len(episodes), per_video_file)):
            together = episodes[first : first + per_video_file]
            put(
                root / f"videos/{camera}/chunk-000/file-{number:03d}.mp4",
                joined([one.films[camera] for one in together], late=late),
            )
            at = 0.0
            for place, one in enumerate(together, first):
                lasting = one.length / FPS + float(late)
                where = {"chunk_index": 0, "file_index": number, "from_timestamp": at, "to_timestamp": at + lasting}
                rows[place] |= {f"videos/{camera}/{key}": value for key, value in where.items()}
                at += lasting
    rows = [{**row, "meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0} for row in rows]
    parquet(root / "meta/episodes/chunk-000/file-000.parquet", [pa.Table.from_pylist(rows)])
    parquet(root / "meta/tasks.parquet", [pa.table({"task_index": list(range(len(tasks))), task_column: tasks})])
    put(root / "meta/info.json", json.dumps(info_of("v3.0", episodes, features, **info), indent=4))
    put(root / "meta/stats.json", json.dumps({"action": {"min": [-1.0] * 3}}))
    return root


def write_v2(
    root: Path,
    episodes: Sequence[Recorded],
    *,
    version: str = "v2.1",
    features: dict[str, dict[str, Any]] | None = None,
    **info: Any,
) -> Path:
    """v2.0 and v2.1: files of one episode each."""
    features, tasks, start = features or declared(episodes), tasks_of(episodes), 0
    if version == "v2.0":  # which spelt it so
        features = {
            name: {**{key: value for key, value in feature.items() if key != "info"}, "video_info": feature["info"]}
            if "info" in feature
            else feature
            for name, feature in features.items()
        }
    for one in episodes:
        table = steps_table(one, features, start=start, tasks=tasks)
        parquet(root / f"data/chunk-000/episode_{one.number:06d}.parquet", [table])
        for camera, data in one.films.items():
            put(root / f"videos/chunk-000/{camera}/episode_{one.number:06d}.mp4", data)
        start += one.length
    if version == "v2.1":
        put(root / "meta/episodes_stats.jsonl", "".join(json.dumps(stats_of(one, features)) + "\n" for one in episodes))
    lines = [{"episode_index": one.number, "tasks": one.tasks, "length": one.length} for one in episodes]
    put(root / "meta/episodes.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    named = [{"task_index": number, "task": task} for number, task in enumerate(tasks)]
    put(root / "meta/tasks.jsonl", "".join(json.dumps(line) + "\n" for line in named))
    put(root / "meta/info.json", json.dumps(info_of(version, episodes, features, **info), indent=4))
    return root


def write(root: Path, episodes: Sequence[Recorded], version: str, **options: Any) -> Path:
    """A folder of any version."""
    return (
        write_v3(root, episodes, **options)
        if version == "v3.0"
        else write_v2(root, episodes, version=version, **options)
    )


def four() -> list[Recorded]:
    """Four episodes: one of a single step, one whose task changes."""
    return [
        record(0, 12),
        record(1, 1),
        record(2, 25, tasks=["pick", "place"]),
        record(3, 7, tasks=["place"]),
    ]

"""A tiny writer of l5kit stores that shares nothing with ours: JSON, numcodecs and files; and made-up drives."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
REAL = ROOT.parent / "shared" / "data" / "lyft_single_scene.zarr"
LOCAL_PEER = ROOT / "benchmarks" / ".venv-l5kit" / "bin" / "python"

SCENES = [("frame_index_interval", "<i8", (2,)), ("host", "<U16"), ("start_time", "<i8"), ("end_time", "<i8")]
FRAMES = [
    ("timestamp", "<i8"),
    ("agent_index_interval", "<i8", (2,)),
    ("traffic_light_faces_index_interval", "<i8", (2,)),
    ("ego_translation", "<f8", (3,)),
    ("ego_rotation", "<f8", (3, 3)),
]
AGENTS = [
    ("centroid", "<f8", (2,)),
    ("extent", "<f4", (3,)),
    ("yaw", "<f4"),
    ("velocity", "<f4", (2,)),
    ("track_id", "<u8"),
    ("label_probabilities", "<f4", (17,)),
]
FACES = [("face_id", "<U16"), ("traffic_light_id", "<U16"), ("traffic_light_face_status", "<f4", (3,))]
CODECS = {
    "none": None,
    "zlib": {"id": "zlib", "level": 1},
    "zstd": {"id": "zstd", "level": 1},
    **{f"blosc-{n}": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": n, "blocksize": 0} for n in (0, 1, 2)},
}
ATTRIBUTES = {"format_version": 2, "labels": [f"label {number}" for number in range(17)]}


def write(
    folder: Path, arrays: dict[str, Any], *, codec: Any = None, chunks: int = 20_000, leave_out: Any = ()
) -> Path:
    """A store of zarr format 2; `leave_out`: (array, chunk) whose files are not written."""
    import numcodecs

    folder.mkdir(parents=True)
    (folder / ".zgroup").write_text('{\n    "zarr_format": 2\n}')
    (folder / ".zattrs").write_text(json.dumps(ATTRIBUTES, indent=4, sort_keys=True))
    for name, rows in arrays.items():
        (folder / name).mkdir(parents=True)
        if "/" in name:
            (folder / name).parent.joinpath(".zgroup").write_text('{\n    "zarr_format": 2\n}')
        fill = 0 if rows.dtype.names is None else base64.b64encode(bytes(rows.dtype.itemsize)).decode()
        dtype = rows.dtype.str if rows.dtype.names is None else [described(one) for one in rows.dtype.descr]
        shape = [chunks, *rows.shape[1:]]
        metadata = {
            "chunks": shape, "compressor": codec, "dtype": dtype, "fill_value": fill, "filters": None, "order": "C",
            "shape": list(rows.shape), "zarr_format": 2,
        }  # fmt: skip
        (folder / name / ".zarray").write_text(json.dumps(metadata, indent=4, sort_keys=True))
        for number, at in enumerate(range(0, len(rows), chunks)):
            if (name, number) in leave_out:
                continue
            whole = np.zeros(shape, rows.dtype)
            part = rows[at : at + chunks]
            whole[: len(part)] = part
            key = ".".join([str(number), *("0" for _ in rows.shape[1:])])
            packed = whole.tobytes() if codec is None else bytes(numcodecs.get_codec(codec).encode(whole))
            (folder / name / key).write_bytes(packed)
    return folder


def described(one: Any) -> list[Any]:
    return [list(part) if isinstance(part, tuple) else part for part in one]


def drives(*, seed: int = 3, scenes: int = 3, frames: int = 24, agents: int = 12) -> dict[str, np.ndarray]:
    """A few scenes of a car among agents that come, go, vanish for a while, turn and change their size."""
    rng = np.random.default_rng(seed)
    rows: dict[str, list[Any]] = {"scenes": [], "frames": [], "agents": [], "traffic_light_faces": []}
    for scene in range(scenes):
        length = frames + scene
        first = sum(map(len, rows["frames"]))
        block = np.zeros(length, FRAMES)
        start = 1_571_846_863_000_000_000 + scene * 10**10
        block["timestamp"] = start + np.arange(length) * 10**8
        angle = np.cumsum(rng.normal(scale=0.05, size=length))
        block["ego_translation"][:, :2] = np.cumsum(np.stack([np.cos(angle), np.sin(angle)], 1), axis=0) * 1.5 + 500
        block["ego_rotation"][:, 0, 0] = block["ego_rotation"][:, 1, 1] = np.cos(angle)
        block["ego_rotation"][:, 1, 0] = np.sin(angle)
        block["ego_rotation"][:, 0, 1] = -np.sin(angle)
        block["ego_rotation"][:, 2, 2] = 1
        path = block["ego_translation"][:, :2]
        seen, lights = agents_of(rng, path, agents), lights_of(rng, length)
        at, light = sum(map(len, rows["agents"])), sum(map(len, rows["traffic_light_faces"]))
        for frame in range(length):
            block["agent_index_interval"][frame] = at, at + len(seen[frame])
            block["traffic_light_faces_index_interval"][frame] = light, light + len(lights[frame])
            at, light = at + len(seen[frame]), light + len(lights[frame])
        host = f"host-a{100 + scene // 2}"
        rows["scenes"].append(np.array([((first, first + length), host, start, start + 10**10)], SCENES))
        rows["frames"].append(block)
        rows["agents"] += [np.concatenate(seen)]
        rows["traffic_light_faces"] += [np.concatenate(lights)]
    return {name: np.concatenate(parts) for name, parts in rows.items()}


def agents_of(rng: Any, path: np.ndarray, count: int) -> list[np.ndarray]:
    length = len(path)
    frames: list[list[np.ndarray]] = [[] for _ in range(length)]
    for track in range(count):
        begin = int(rng.integers(0, length // 2)) if track % 3 else 0
        end = int(rng.integers(begin + 1, length + 1)) if track % 4 else length
        place = path[begin] + rng.normal(scale=25, size=2)
        yaw, size = rng.uniform(-np.pi, np.pi), rng.uniform(0.5, 5, size=3)
        for frame in range(begin, end):
            yaw += rng.normal(scale=0.05) + (rng.random() < 0.03) * 1.2
            size = size * (1 + (rng.random() < 0.03) * 0.5)
            place = place + rng.normal(scale=0.6, size=2)
            if rng.random() < 0.06:
                continue
            one = np.zeros(1, AGENTS)
            one["centroid"], one["extent"], one["velocity"] = place, size, rng.normal(size=2)
            one["yaw"] = (yaw + np.pi) % (2 * np.pi) - np.pi
            one["track_id"] = track + 1 + 2**40 * (track == 5)
            one["label_probabilities"][0, 3 if rng.random() < 0.93 else 1] = 1
            frames[frame].append(one)
    return [np.concatenate([np.zeros(0, AGENTS), *(one[k] for k in rng.permutation(len(one)))]) for one in frames]


def lights_of(rng: Any, length: int) -> list[np.ndarray]:
    out = []
    for _ in range(length):
        faces = np.zeros(int(rng.integers(0, 3)), FACES)
        faces["face_id"] = [f"f{number}" for number in rng.integers(0, 9, len(faces))]
        faces["traffic_light_id"] = "light"
        faces["traffic_light_face_status"][np.arange(len(faces)), rng.integers(0, 3, len(faces))] = 1
        out.append(faces)
    return out


def zipped(folder: Path, target: Path, *, below: str = "", method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(target, "w", method) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, below + path.relative_to(folder).as_posix())
    return target


def read(folder: Path) -> dict[str, np.ndarray]:
    """All arrays of a store by a reader of its own, as independent as the writer."""
    import numcodecs

    found = {}
    for path in sorted(folder.rglob(".zarray")):
        meta = json.loads(path.read_text())
        kinds = meta["dtype"]
        dtype = np.dtype(kinds if isinstance(kinds, str) else [tuple(map(as_tuple, one)) for one in kinds])
        rows, size = meta["shape"][0], meta["chunks"][0]
        out = np.zeros((-(-rows // size) * size, *meta["shape"][1:]), dtype)
        for number in range(len(out) // size):
            file = path.parent / ".".join([str(number), *("0" for _ in meta["shape"][1:])])
            if file.exists():
                raw = file.read_bytes()
                raw = raw if meta["compressor"] is None else numcodecs.get_codec(meta["compressor"]).decode(raw)
                part = np.frombuffer(raw, dtype).reshape(size, *meta["shape"][1:])
                out[number * size : (number + 1) * size] = part
        found[path.parent.relative_to(folder).as_posix()] = out[:rows]
    return found


def as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    """Equal byte for byte, with equal dtypes."""
    assert one.keys() == other.keys()
    for name, rows in one.items():
        assert rows.dtype == other[name].dtype, name
        assert rows.shape == other[name].shape, name
        assert rows.tobytes() == other[name].tobytes(), name


@pytest.fixture(scope="session")
def zarr() -> SimpleNamespace:
    """The tools of this file, for test modules that cannot import each other."""
    pytest.importorskip("numcodecs", reason="the extra l5kit is not installed")
    names = "write read drives zipped same CODECS SCENES FRAMES AGENTS FACES ATTRIBUTES"
    return SimpleNamespace(**{name: globals()[name] for name in names.split()})


@pytest.fixture(scope="session")
def drive(zarr, tmp_path_factory) -> Path:
    """Three made-up scenes, Blosc as l5kit writes it, in small chunks; read only."""
    return write(tmp_path_factory.mktemp("drive") / "drive.zarr", drives(), codec=CODECS["blosc-1"], chunks=100)


@pytest.fixture(scope="session")
def real(zarr) -> Path:
    if not REAL.is_dir():
        pytest.skip(f"the real scene is not at {REAL}")
    return REAL


@pytest.fixture(scope="session")
def peer(zarr):
    """Runs l5kit 1.5.0 in its own environment: `peer(code, folder, **values)` gives the dict `out` of that code."""
    python = Path(os.environ.get("SEQLAKE_L5KIT", str(LOCAL_PEER)))
    if not python.exists():
        pytest.skip("l5kit is not there: benchmarks/peers/setup makes it, or SEQLAKE_L5KIT names its python")

    def run(code: str, home: Path, /, **values: Any) -> dict[str, np.ndarray]:
        out = home / "out.npz"
        head = "import warnings; warnings.simplefilter('ignore')\nimport numpy as np\nout = {}\n"
        given = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        tail = f"\nnp.savez({str(out)!r}, **out)\n"
        script = home / "peer.py"
        script.write_text(head + given + code + tail)
        done = subprocess.run([str(python), str(script)], capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        with np.load(out, allow_pickle=False) as found:
            return dict(found)

    return run

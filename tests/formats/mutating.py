"""Changes folders of other formats at random and reads what is left, in a process of its own with a bound on memory.

Run as a script this is that process: it says what it begins and what became of it, line by line, so that whoever waits
knows which change a crash or a hang was. Imported, `counted` starts it again behind each such change.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MEMORY = 2 << 30
SECONDS = 60
VALUES: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    7,
    255,
    2**31,
    2**32,
    2**40,
    2**62,
    2**63,
    2**70,
    -(2**63),
    1.5,
    1e300,
]
VALUES += [
    float("nan"),
    "",
    "x",
    "0",
    "int",
    "ndarray",
    "ndarray:int8:3",
    "pil",
    "zstd",
    "gz:99",
    "\ud800",
    "é",
    "../x",
]
VALUES += ["|O", "<i8", "<U4", [], [1], [[1]], {}, {"a": 1}, [None], ["a", "b"], {"id": "lz4"}, {"id": "pickle"}]
JSON = {"index.json", "features.json", "dataset_info.json", ".zarray", ".zattrs", ".zgroup", "zarr.json", "info.json"}
PLUGS = {"json": "jsonl", "csv": "xsv", "tsv": "xsv", "steps": "csv"}
OF_STEPS = {"l5kit", "rlds", "hdf5", "lerobot", "mcap", "zarr_replay", "steps"}
"""Kinds whose rows are sequences; the others hold samples."""


# ---- changes


def flipped(data: bytes, rng: random.Random) -> bytes:
    """Bytes changed, cut, grown, zeroed or moved."""
    made, how = bytearray(data), rng.choice(["flip", "flip", "flip", "cut", "grow", "zero", "swap", "number"])
    place = rng.randrange(len(data) + 1) if rng.random() < 0.6 else min(rng.randrange(64), len(data))
    length = rng.randint(1, 9)
    if how == "flip":
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(max(1, len(made)))
            made[at : at + 1] = bytes([rng.randrange(256)])
    elif how == "cut":
        del made[place:]
    elif how == "grow":
        made[place:place] = rng.randbytes(length)
    elif how == "zero":
        made[place : place + length] = bytes(len(made[place : place + length]))
    elif how == "swap":
        made[place : place + length] = made[place : place + length][::-1]
    else:
        number = rng.choice([0, 1, 5, 255, 1 << 16, (1 << 31) - 1, (1 << 32) - 1, len(data), len(data) - 1])
        made[place : place + 4] = struct.pack("<I", number)
    return bytes(made)


def reworded(data: bytes, rng: random.Random) -> bytes:
    """JSON with values of other kinds, and keys that are gone, renamed or exchanged."""
    value = json.loads(data)
    for _ in range(rng.randint(1, 3)):
        places = list(_places(value))
        if not places:
            break
        holder, key = rng.choice(places)
        how = rng.choice(["value", "value", "value", "nudge", "nudge", "drop", "rename", "swap", "again"])
        if how == "nudge" and isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
            holder[key] = rng.choice(
                [holder[key] + 1, holder[key] - 1, holder[key] * 2, holder[key] * 10**6, -holder[key]]
            )
        elif how == "drop":
            del holder[key]
        elif how == "rename" and isinstance(holder, dict):
            holder[rng.choice(["", "x", "é", key + "_"])] = holder.pop(key)
        elif how == "swap":
            other, at = rng.choice(places)
            try:
                holder[key], other[at] = other[at], holder[key]
                json.dumps(value)  # nothing may lie in itself
            except (KeyError, IndexError, ValueError):
                value = json.loads(data)
        elif how == "again" and isinstance(holder, list):
            holder.insert(rng.randrange(len(holder) + 1), json.loads(json.dumps(holder[key])))
        else:
            holder[key] = deepcopy(rng.choice(VALUES))  # the next change may change it
    return json.dumps(value).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each place of a JSON value that holds another."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


def change(folder: Path, rng: random.Random) -> tuple[str, bool]:
    """One file changed; says how, and whether whoever did it also made the files around it fit."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = rng.choice(([one for one in files if one.name in JSON] or files) if rng.random() < 0.4 else files)
    data, name = path.read_bytes(), path.relative_to(folder).as_posix()
    if path.suffix == ".zip" and rng.random() < 0.4:
        path.write_bytes(rezipped(data, rng))
        return f"{name}, a member", True
    if path.name in JSON and rng.random() < 0.8:
        path.write_bytes(reworded(data, rng))
        return f"{name}, reworded", True
    if ".tfrecord" in path.name and rng.random() < 0.5:
        path.write_bytes(resealed(data, rng))
        return f"{name}, sealed again", True
    made = flipped(data, rng)
    path.write_bytes(made)
    index = folder / "index.json"
    if index.exists() and path != index and rng.random() < 0.5:
        text = json.loads(index.read_text())
        for shard in text["shards"]:
            for key in ("raw_data", "zip_data", "raw_meta", "zip_meta"):
                if shard.get(key) and shard[key]["basename"] == name:
                    shard[key] |= {"bytes": len(made), "hashes": {}}
        index.write_text(json.dumps(text))
        return f"{name}, sealed again", True
    return name, path.name in JSON


def resealed(data: bytes, rng: random.Random) -> bytes:
    """A TFRecord file with one record changed, and its checksums made to fit."""
    from seqlake.formats.rlds.tfrecord import crc32c, masked

    records, at = [], 0
    while at < len(data):
        [length] = struct.unpack_from("<Q", data, at)
        records.append(data[at + 12 : at + 12 + length])
        at += length + 16
    if records:
        one = rng.randrange(len(records))
        records[one] = flipped(records[one], rng)
    out = b""
    for record in records:
        head = struct.pack("<Q", len(record))
        out += head + struct.pack("<I", masked(crc32c(head))) + record + struct.pack("<I", masked(crc32c(record)))
    return out


def rezipped(data: bytes, rng: random.Random) -> bytes:
    """A zip archive with one member changed, and its checksum made to fit."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    one = rng.randrange(len(members))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number, (info, held) in enumerate(members):
            text = info.filename.rpartition("/")[2]
            new = held if number != one else reworded(held, rng) if text in JSON else flipped(held, rng)
            archive.writestr(info.filename, new, info.compress_type)
    return out.getvalue()


# ---- ways of reading


def ways(kind: str, place: str) -> dict[str, Callable[[], Any]]:
    """All that a user can ask of a folder, each by itself."""
    import numpy as np

    import seqlake as sl

    def source() -> Any:
        return scanned(kind, place)

    def flat() -> Any:
        found, read = [], source()
        for shard in read.shards():
            reader = shard.open()
            for name in read.schema.names:
                places = reader.flat(name)
                if places is not None and len(places.start):
                    stops = places.start + np.maximum(places.steps, 0) * places.stride
                    found.append([bytes(one) for one in places.blob.ranges(places.start, stops)])
        return found

    def some() -> Any:
        read = source()
        return [
            [
                batch.to_pylist()
                for batch in shard.open().batches(read.schema.names, rows=np.arange(shard.rows)[::-2].copy())
            ]
            for shard in read.shards()
        ]

    def lengths() -> Any:
        read = source()
        return {
            name: read.lengths(name).tolist() for name in read.schema.names if read.schema[name].category == "temporal"
        }

    def loaded() -> Any:
        read = source()
        steps = [name for name in ("ego_translation", "action") if name in read.schema]
        samples = [name for name in read.schema.names if name != "p"]  # whose bytes are no pictures
        steps += [name for name in ("actions", "top", "x") if name in read.schema]
        window: Any = samples if kind not in OF_STEPS else {name: range(2) for name in steps}
        if not window:
            return None
        batches = sl.Loader(read, window=window, batch_size=4).dataset()
        found = batches.batch(range(len(batches)))
        # Which window comes when is a matter of the fingerprint, which other files change too.
        return {name: sorted(repr(plain(row)) for row in rows) for name, rows in found.items()}

    found = {
        "schema": lambda: repr(source().schema),
        "arrow": lambda: sl.scan(source()).to_arrow().to_pylist(),
        "some": some,
        "flat": flat,
        "lengths": lengths,
        "loader": loaded,
        "fingerprint": lambda: bool(source().fingerprint),
    }
    if kind == "l5kit":
        return found | of_stores(place)
    if kind not in OF_STEPS | {"huggingface", "webdataset"}:
        found["one by one"] = lambda: [plain(one) for one in source()]
        found["by number"] = lambda: plain([one[n] for one in [source()] for n in range(len(one))])
    return found


def scanned(kind: str, place: str) -> Any:
    """A folder, or the only file in it, by the reader of its kind."""
    from seqlake import plugins

    if kind == "steps":
        import seqlake as sl

        return sl.scan(place, sequence_id="episode", steps="t")
    return plugins.load("formats", PLUGS.get(kind, kind)).scan(place)


def of_stores(place: str) -> dict[str, Callable[[], Any]]:
    """What users of l5kit call by name."""
    import numpy as np

    import seqlake as sl
    from seqlake.compat import l5kit as l5

    def copied(make: Callable[[str], Any]) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            make(f"{folder}/out.zarr")
            return {name: array[:].tobytes() for name, array in l5.open_store(f"{folder}/out.zarr").arrays.items()}

    def samples() -> Any:
        store = l5.open_store(place)
        mask = np.ones(len(store.agents), np.bool_)
        found = l5.AgentDataset(dataset=store, agents_mask=mask, history_num_frames=2, future_num_frames=3)
        try:
            return [plain(found[number]) for number in range(0, len(found), 40)]
        except IndexError as error:  # what l5kit raises too where an agent is not in its frame
            return str(error)

    return {
        "arrays": lambda: {name: array[:].tobytes() for name, array in l5.open_store(place).arrays.items()},
        "fields": lambda: [l5.open_store(place).agents[name].tobytes() for name in ("yaw", "track_id")],
        "numbers": lambda: [l5.open_store(place).agents[[5, 3, -1]].tobytes()],
        "attributes": lambda: [l5.open_store(place).format_version, str(l5.open_store(place))],
        "tracks": lambda: sl.scan(place, view="tracks").to_arrow().to_pylist(),
        "agents": lambda: (
            sl.scan(place, view="agents", history=2, future=2, min_frame_history=1).to_arrow().to_pylist()
        ),
        "ego": lambda: sl.scan(place, view="ego").to_arrow().to_pylist(),
        "scene": lambda: [rows.tobytes() for rows in vars_of(l5.open_store(place).get_scene_dataset(1))],
        "select": lambda: l5.select_agents(l5.open_store(place)).tolist(),
        "samples": samples,
        "concat": lambda: copied(lambda out: l5.zarr_concat([place, place], out)),
        "plain": lambda: copied(lambda out: l5.uncompressed(place, out)),
    }


def vars_of(data: Any) -> list[Any]:
    return [data.scenes, data.frames, data.agents, data.tl_faces]


def plain(value: Any) -> Any:
    """As text can show it; arrays by their bytes."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return (value.tobytes(), value.shape) if hasattr(value, "tobytes") else value


# ---- the process


def serve(kind: str, base: str, first: int, count: int) -> None:
    """Change and read, and say what became of it."""
    from seqlake.errors import SeqlakeError

    leaf = min(path.name for path in Path(base).iterdir())
    truth = {name: digest(way()) for name, way in ways(kind, f"{base}/{leaf}").items()}
    clean = findings(kind, f"{base}/{leaf}")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, resource.RLIM_INFINITY))
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory() as home:
            shutil.copytree(base, f"{home}/{seed}")
            rng = random.Random(f"{kind} {seed}")
            what, meant = change(Path(home) / str(seed), rng)
            say(begin=seed, what=what)
            signal.alarm(SECONDS)
            ends, place = {}, f"{home}/{seed}/{leaf}"
            for name, way in {**ways(kind, place), "validate": lambda at=place: findings(kind, at)}.items():
                try:
                    answer = digest(way())
                    ends[name] = "right" if meant or answer == truth.get(name, answer) else "wrong"
                except SeqlakeError:
                    ends[name] = "refused"
                except MemoryError:
                    ends[name] = "over_2_gb"
                except Exception as error:
                    at = error.__traceback__
                    while at is not None and at.tb_next is not None:
                        at = at.tb_next
                    line = f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}" if at is not None else ""
                    ends[name] = f"bare {type(error).__name__} at {line}: {error}"
            if "wrong" in ends.values() and found_by_validate(kind, place, clean):
                ends = {name: end.replace("wrong", "right") for name, end in ends.items()}
            signal.alarm(0)
        say(end=seed, ends=ends)


def findings(kind: str, place: str) -> set[tuple[str, str]]:
    """What `seqlake validate --depth rows` says of a folder."""
    import seqlake as sl
    from seqlake.dataset.validation import validate

    source = validate(sl.scan(scanned(kind, place)), depth="rows")
    return {(one.code, one.message.replace(place, "")) for one in source.findings}


def found_by_validate(kind: str, place: str, clean: set[tuple[str, str]]) -> bool:
    """Whether `validate` finds anything that it does not find in the unchanged folder."""
    from seqlake.errors import SeqlakeError

    try:
        return bool(findings(kind, place) - clean)
    except SeqlakeError:
        return True


def digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode("utf-8", "backslashreplace")).hexdigest()


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def counted(kind: str, base: Path, counts: Any, *, first: int = 0, count: int) -> None:
    """Change and read `count` times in processes of their own, into a `Counts`.

    Args:
        kind: Of reader, by its plug; `json`, `csv` and `tsv` are of the streaming formats, `steps` a table with a row
            a step.
        base: A folder that holds the one to be changed.
        counts: What is counted into.
        first: The seed of the first change.
        count: How many changes.
    """
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "MALLOC_ARENA_MAX": "1"}
    last = first + count
    while first < last:
        command = [sys.executable, "-W", "ignore", __file__, kind, str(base), str(first), str(last - first)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        began: dict[str, Any] = {}
        for line in process.stdout:
            told = json.loads(line)
            if "begin" in told:
                began, first = told, told["begin"]
            else:
                _count(counts, began, told["ends"])
                began, first = {}, first + 1
        process.stdout.close()
        code = process.wait()
        if code:
            assert began, f"the reader did not come up: {code}"
            counts.mutations += 1
            name = "hang" if code == -signal.SIGALRM else "crash"
            setattr(counts, name, getattr(counts, name) + 1)
            counts.examples.append(f"{name} ({code}): {kind} {began['begin']}, {began['what']}")
            first += 1


def _count(counts: Any, began: dict[str, Any], ends: dict[str, str]) -> None:
    counts.mutations += 1
    worst = [end for end in ends.values() if end not in {"right", "refused"}]
    if not worst:
        answered = "right" if "right" in ends.values() else "refused"
        setattr(counts, answered, getattr(counts, answered) + 1)
        return
    name = worst[0].split()[0]
    setattr(counts, name, getattr(counts, name) + 1)
    bad = {way: end for way, end in ends.items() if end in worst}
    if len(counts.examples) < 200:
        counts.examples.append(f"{began['begin']}, {began['what']}: {bad}"[:600])


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

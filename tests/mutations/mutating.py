"""Changes files of a dataset on purpose, reads it in every way, and counts what became of it: see `tests/counting.py`.

Run as a script it is one process for one reader, `mutating.py READER SEED COUNT FOLDER`, and prints the counts as JSON:
a crash, a hang and memory are seen from outside.
"""

from __future__ import annotations

import copy
import faulthandler
import json
import os
import random
import resource
import shutil
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import seqlake as sl
from seqlake.dataset.statistics import scan
from seqlake.errors import SeqlakeError
from seqlake.files.cache import BlobCache
from seqlake.files.stores import open_blob
from seqlake.testing import samples

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from counting import Counts
else:
    from ..counting import Counts  # noqa: TID252 - tests are no package that could be named

GB = 1 << 30
HOSTILE: list[Any] = [
    None, True, "", "x", "../../x", "/etc/passwd", "http://127.0.0.1:9/x", "s3://x/y", "a\0b", "\x1b[31m\u202e",
    "ü" * 300, -1, 0, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, 1e308, float("nan"), float("inf"), [], {}, [None],
    [[]], {"": 1}, [1, "a"], {"type": 5}, "9" * 5000, "list<int32", "2026-13-45T99:99:99Z", "1e999",
]  # fmt: skip


# ---- what is changed


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterable[tuple[Any, ...]]:
    """Every place in a document, the document itself first."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, held in inner:
        yield from places(held, (*path, key))


def changed_value(dice: random.Random, document: Any) -> Any:
    """A document with one of its values replaced, removed, repeated or under another key."""
    document = copy.deepcopy(document)
    path = dice.choice(list(places(document)))
    if not path:
        return copy.deepcopy(dice.choice(HOSTILE))
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    key, way = path[-1], dice.randrange(10)
    if way == 0:
        del holder[key]
    elif way == 1 and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
    elif way == 1:
        holder.append(copy.deepcopy(holder[key]))
    elif way == 2 and isinstance(holder[key], str):
        holder[key] = holder[key][: dice.randrange(len(holder[key]) + 1)]
    else:
        holder[key] = copy.deepcopy(dice.choice(HOSTILE))
    return document


def changed_text(dice: random.Random, data: bytes) -> bytes:
    """A JSON document, or lines of them, changed as one who writes JSON could."""
    lines = data.decode().splitlines() or [""]
    try:
        documents = [json.loads(data)]
        lines = [data.decode()]
    except ValueError:
        documents = []
    number = dice.randrange(len(lines))
    made = changed_value(dice, documents[0] if documents else json.loads(lines[number]))
    lines[number] = json.dumps(made)
    return "\n".join(lines).encode()


def changed_bytes(dice: random.Random, data: bytes) -> bytes:
    """Bytes with some of them flipped, cut off, zeroed, repeated or put in."""
    made, at = bytearray(data), dice.randrange(len(data) + 1)
    some = dice.choice([1, 4, 16, 256])
    match dice.randrange(7):
        case 0 | 1 | 2:
            for _ in range(dice.choice([1, 1, 3, 20])):
                made[dice.randrange(len(made))] ^= 1 << dice.randrange(8) if made else 0
        case 3:
            del made[at:]
        case 4:
            made[at : at + some] = bytes(len(made[at : at + some]))
        case 5:
            made[at:at] = made[at : at + some] or b"\xff" * some
        case _:
            made[at : at + 8] = dice.choice([b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\0" * 7 + b"\x80", b"\xff" * 4])
    return bytes(made)


def changed(dice: random.Random, path: Path, *, structured: bool) -> bytes:
    """What a file may say instead."""
    data = path.read_bytes()
    if not data:
        return dice.randbytes(20)
    if structured or dice.random() < 0.7:
        try:
            return changed_text(dice, data)
        except ValueError:  # no JSON
            pass
    return changed_bytes(dice, data)


def changed_cell(dice: random.Random, path: Path) -> bytes:
    """A SQLite database with one of its values replaced."""
    other = path.with_name("changing.db")
    shutil.copy(path, other)
    with closing(sqlite3.connect(other)) as database, database:
        tables = [one for (one,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        filled = [one for one in tables if database.execute(f'SELECT count(*) FROM "{one}"').fetchone()[0]]
        table = dice.choice(sorted(filled))
        columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
        rows = [one for (one,) in database.execute(f'SELECT rowid FROM "{table}"')]
        change = f'UPDATE "{table}" SET "{dice.choice(columns)}" = ? WHERE rowid = ?'
        try:
            database.execute(change, (dice.choice([one for one in HOSTILE if fits(one)]), dice.choice(rows)))
        except sqlite3.IntegrityError:  # a null where none may be
            database.rollback()
    data = other.read_bytes()
    other.unlink()
    return data


def fits(value: Any) -> bool:
    """Whether SQLite takes it."""
    return value is None or isinstance(value, (str, float)) or (isinstance(value, int) and -(2**63) <= value < 2**63)


# ---- how it is read


def rows_of(ds: Any) -> list[dict[str, Any]]:
    return sorted(ds.to_arrow().to_pylist(), key=lambda row: str(row.get("sequence_id")))


def looked_at(place: Any, **options: Any) -> Any:
    """Everything that a reader may ask of a dataset; the rows, or None where validation found something."""
    ds = sl.open(place, allow_buckets=[], **options)
    for version in ds.versions()[:3]:
        repr(version)
    rows = rows_of(ds)
    f"{ds!r} {ds._repr_html_()} {ds.schema} {ds.schema.metadata.to_json()}"
    if len(ds):
        ds[0]["action"]
        key = rows[0].get("sequence_id")
        assert key is None or ds[key] is not None
        next(iter(sl.Loader(ds, window={"action": range(2)}, batch_size=2)), None)
    ds.where("length > 3").to_arrow()
    found = list(ds.validate(depth="rows").findings)
    return rows if not found else None


ROWS = 6


def episodes() -> Iterable[dict[str, Any]]:
    for row in samples.arm_episodes(ROWS, steps=(4, 9)):
        kept = {name: row[name] for name in ("sequence_id", "task", "action")}
        yield {**kept, "length": len(kept["action"])}


SCHEMA: dict[str, Any] = {
    "task": pa.string(),
    "length": pa.int64(),
    "action": sl.Trajectory(dim=12, fps=50),
}


def made(place: Any, shards: str | None = None) -> sl.Dataset:
    ds = sl.create(place, sl.Schema({"sequence_id": pa.string(), **SCHEMA}), shards=shards)
    rows = list(episodes())
    ds.append(rows[: ROWS // 2])
    ds.append(rows[ROWS // 2 :])
    return ds


@dataclass(frozen=True, kw_only=True)
class Case:
    """One reader.

    Attributes:
        build: Makes the files below a folder.
        files: Which of them are changed, as patterns.
        read: Reads all; gives a value to compare.
        cause: Why a changed value can pass for a value.
        change: Changes a file; by default its JSON values or its bytes.
        any_answer: Nothing is compared: other words ask for something else.
        structured: Only values are changed: whoever reads the file is not this package.
    """

    build: Callable[[Path], object]
    files: tuple[str, ...]
    read: Callable[[Path], Any]
    cause: str = ""
    structured: bool = False
    change: Callable[[random.Random, Path], bytes] | None = None
    any_answer: bool = False


def metadata_only(folder: Path) -> None:
    """A folder of Parquet with a `mixtrain.json`, as the specification has it."""
    ds = made(folder / "made")
    (folder / "ds" / "data").mkdir(parents=True)
    for path in (folder / "made" / "data").glob("*.parquet"):
        shutil.copy(path, folder / "ds" / "data")
    (folder / "ds" / "mixtrain.json").write_text(ds.schema.metadata.to_json())


def delta(folder: Path) -> None:
    ds = made(f"delta:{folder}/ds")
    rows = list(episodes())
    for number in range(3):
        ds.upsert([{**rows[0], "task": f"again {number}"}])
    import deltalake

    deltalake.DeltaTable(str(folder / "ds")).create_checkpoint()
    ds.delete("task = 'again 2'")


def saved_state(folder: Path) -> None:
    ds = made(folder / "ds")
    loader = loader_of(ds)
    iterator = iter(loader)
    next(iterator)
    (folder / "state.json").write_text(json.dumps(loader.state_dict(steps=1)))


def loader_of(ds: Any) -> sl.Loader:
    return sl.Loader(ds, window={"action": range(2)}, batch_size=4, seed=3)


def resumed(folder: Path) -> Any:
    loader = loader_of(sl.open(folder / "ds"))
    loader.load_state_dict(json.loads((folder / "state.json").read_bytes()))
    return [np.asarray(batch["action"]).tolist() for batch in loader]


def counted(folder: Path) -> None:
    scan.statistics(made(folder / "ds"))


def statistics(folder: Path) -> Any:
    found = scan.statistics(sl.open(folder / "ds"))
    return {name: repr(one) for name, one in found.items()}


def begun(folder: Path) -> None:
    """A conversion that stopped half-way: its work folder is there."""
    made(folder / "ds")
    from seqlake.receipts import WorkFolder

    work = WorkFolder(folder / "work")
    work.begin({"source": "ds", "target": "out", "parts": 3})
    work.keep_state({"transaction": "t", "pairs": (1, 2), "when": timedelta(seconds=4), "bytes": b"abc"})
    for part in range(3):
        work.keep(part, [part, {"name": f"part-{part}"}])


def received(folder: Path) -> Any:
    from seqlake.receipts import WorkFolder

    work = WorkFolder(folder / "work")
    work.begin({"source": "ds", "target": "out", "parts": 3})
    return [work.state(), work.receipts()]


def command(folder: Path, *arguments: str) -> Any:
    """A command's exit status and what it printed, without what differs from run to run."""
    from seqlake.cli import main

    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main([one.replace("FOLDER", str(folder)) for one in arguments])
        except SystemExit as stop:
            return [stop.code, out.getvalue()]
    return [0, out.getvalue()]


def arguments(folder: Path) -> None:
    made(folder / "ds")
    metadata_only(folder / "plain")
    (folder / "plain" / "ds" / "mixtrain.json").unlink()
    (folder / "ids.txt").write_text("ep_000000\nep_000001\n")
    (folder / "type.json").write_text(json.dumps({"type": "trajectory", "dim": 12, "fps": 50, "units": "rad"}))


def commanded(folder: Path) -> Any:
    declared = (folder / "type.json").read_bytes().decode("utf-8", "surrogateescape").replace("\0", "")
    return [
        command(folder, "ls", "FOLDER/ds", "--ids", "FOLDER/ids.txt", "--json"),
        command(folder, "init", "FOLDER/plain/ds", "--dry-run", "--column", f"action={declared}"),
        command(folder, "ls", "FOLDER/ds", "--where", declared[:60], "--json"),
    ]


def warehouse(folder: Path) -> None:
    made(f"iceberg:{folder}/w/robots.arm")


def catalog(folder: Path) -> None:
    made(f"ducklake:{folder}/meta.duckdb?table=arm")


KEPT = "packets", 1 << 30


def kept(folder: Path) -> None:
    (folder / "film.mp4").write_bytes(bytes(range(256)) * 20)
    name, limit = KEPT
    BlobCache(name=name, limit=limit).put(open_blob(folder / "film.mp4"), b"what was made of it" * 20)


def found_again(folder: Path) -> Any:
    """What is kept, or what would be made anew."""
    name, limit = KEPT
    return BlobCache(name=name, limit=limit).get(open_blob(folder / "film.mp4")) or b"what was made of it" * 20


def copied(folder: Path) -> None:
    """Copies of compressed shards, in a folder that processes share."""
    made(folder / "ds")
    for number, path in enumerate(sorted((folder / "ds" / "data").glob("*.parquet"))):
        table = pq.read_table(path)
        (folder / "plain").mkdir(exist_ok=True)
        pq.write_table(table.drop_columns([]), folder / "plain" / f"{number}.parquet", compression="zstd")
    from_copies(folder)


def from_copies(folder: Path) -> Any:
    types = {"action": sl.Trajectory(dim=12, fps=50)}
    loader = sl.Loader(
        sl.scan(folder / "plain", column_types=types),
        window={"action": range(2)},
        batch_size=8,
        seed=3,
        cache=sl.Cache(folder / "shards", limit="1 GB"),
    )
    return [np.asarray(batch["action"]).tolist() for batch in loader]


def of_engine(name: str, *, archive: bool = False, verify: Any = None) -> Case:
    """Shards of an engine, as our writer makes them."""

    def build(folder: Path) -> None:
        ds = made(folder / ("first" if archive else "ds"), name)
        if archive:
            sl.repack(ds, folder / "ds", layout="archive", shards=name)

    return Case(build=build, files=(f"ds/data/*.{name}",), read=lambda folder: looked_at(folder / "ds", verify=verify))


def of_others(name: str) -> Case:
    """Files that the engine's own package wrote, which have no checksums."""

    def build(folder: Path) -> None:
        ds = made(folder / "first", name)
        (folder / "ds" / "data").mkdir(parents=True)
        (folder / "ds" / "mixtrain.json").write_bytes((folder / "first" / "mixtrain.json").read_bytes())
        table, path = ds.to_arrow(), folder / "ds" / "data" / f"0.{name}"
        if name == "lance":
            from lance.file import LanceFileWriter

            with LanceFileWriter(str(path), table.schema) as writer:
                for batch in table.to_batches():
                    writer.write_batch(batch)
        else:
            import vortex

            vortex.io.write(table, str(path))

    return Case(
        build=build, files=(f"ds/data/*.{name}",), read=lambda folder: looked_at(folder / "ds"), cause=NO_CHECKSUM
    )


def lance_dataset(folder: Path, *, ours: bool = True) -> None:
    """Several versions, a fragment with deleted rows, and one with a column in a file of its own."""
    import lance

    place, rows = str(folder / "ds"), list(episodes())
    if ours:
        ds = made(f"lance:{place}")
        ds.upsert([{**rows[0], "task": "again"}])
    else:
        ds = made(folder / "first", "lance")
        lance.write_dataset(ds.to_arrow(), place)
        lance.dataset(place).update_metadata({"mixtrain": ds.schema.metadata.to_json()})
        lance.dataset(place).add_columns({"double": "length * 2"})
    lance.dataset(place).delete(f"sequence_id = '{rows[1]['sequence_id']}'")


def of_lance(*files: str, ours: bool = True, cause: str = "", verify: Any = None) -> Case:
    """Some of the files of a Lance dataset."""
    return Case(
        build=lambda folder: lance_dataset(folder, ours=ours),
        files=files,
        read=lambda folder: looked_at(f"lance:{folder}/ds", verify=verify),
        cause=cause,
    )


NO_CHECKSUM = "the format has no checksum: a changed value is a value"
CASES: dict[str, Case] = {
    "mixtrain.json": Case(
        build=metadata_only,
        files=("ds/mixtrain.json",),
        read=lambda folder: looked_at(folder / "ds"),
        cause=NO_CHECKSUM,
    ),
    "delta": Case(
        build=delta,
        files=("ds/_delta_log/*",),
        read=lambda folder: looked_at(f"delta:{folder}/ds"),
        cause=NO_CHECKSUM,
    ),
    "delta, our index": Case(
        build=delta, files=("ds/_seqlake/**/*",), read=lambda folder: looked_at(f"delta:{folder}/ds")
    ),
    "iceberg": Case(
        build=warehouse,
        files=("w/robots/arm/metadata/*",),
        read=lambda folder: looked_at(f"iceberg:{folder}/w/robots.arm"),
        cause=NO_CHECKSUM,
    ),
    "iceberg catalog": Case(
        build=warehouse,
        files=("w/catalog.db",),
        read=lambda folder: looked_at(f"iceberg:{folder}/w/robots.arm"),
        cause=NO_CHECKSUM,
    ),
    "ducklake": Case(
        build=catalog,
        files=("meta.duckdb",),
        read=lambda folder: looked_at(f"ducklake:{folder}/meta.duckdb?table=arm"),
        cause=NO_CHECKSUM,
    ),
    "lance shards": of_engine("lance"),
    "lance shards, verified": of_engine("lance", verify="first"),
    "lance shards, archive": of_engine("lance", archive=True),
    "lance shards, archive, verified": of_engine("lance", archive=True, verify="first"),
    "lance shards of others": of_others("lance"),
    "vortex shards": of_engine("vortex"),
    "vortex shards, verified": of_engine("vortex", verify="first"),
    "vortex shards, archive": of_engine("vortex", archive=True),
    "vortex shards of others": of_others("vortex"),
    "lance dataset, manifests": of_lance("ds/_versions/*", cause=NO_CHECKSUM),
    "lance dataset, transactions": of_lance("ds/_transactions/*", cause=NO_CHECKSUM),
    "lance dataset, deletions": of_lance("ds/_deletions/*", cause=NO_CHECKSUM),
    "lance dataset, data": of_lance("ds/data/*"),
    "lance dataset, data, verified": of_lance("ds/data/*", verify="first"),
    "lance dataset, our index": of_lance("ds/_seqlake/**/*"),
    "lance dataset of others": of_lance(
        "ds/_versions/*", "ds/data/*", "ds/_deletions/*", ours=False, cause=NO_CHECKSUM
    ),
    "loader state": Case(build=saved_state, files=("state.json",), read=resumed, cause=NO_CHECKSUM, structured=True),
    "statistics": Case(build=counted, files=("ds/_seqlake/derived/*",), read=statistics),
    "receipts": Case(build=begun, files=("work/*",), read=received),
    "arguments": Case(build=arguments, files=("ids.txt", "type.json"), read=commanded, any_answer=True),
    "user's cache": Case(build=kept, files=("cache/seqlake/**/*",), read=found_again),
    "shard cache": Case(build=copied, files=("shards/shards/**/*",), read=from_copies),
    "iceberg catalog, values": Case(
        build=warehouse,
        files=("w/catalog.db",),
        read=lambda folder: looked_at(f"iceberg:{folder}/w/robots.arm"),
        cause=NO_CHECKSUM,
        change=changed_cell,
    ),
    "ducklake, values": Case(
        build=lambda folder: made(f"ducklake:sqlite:{folder}/meta.sqlite?table=arm"),
        files=("meta.sqlite",),
        read=lambda folder: looked_at(f"ducklake:sqlite:{folder}/meta.sqlite?table=arm"),
        cause=NO_CHECKSUM,
        change=changed_cell,
    ),
}


def main(reader: str, seed: int, count: int, folder: Path) -> None:
    """Build, change one file at a time, read, put it back."""
    faulthandler.enable()
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    case, dice = CASES[reader], random.Random(seed)
    case.build(folder)
    truth = case.read(folder)
    assert truth is not None
    found = sorted({path for pattern in case.files for path in folder.glob(pattern) if path.is_file()})
    assert found, "nothing to change"
    counts = Counts(reader=reader, cause=case.cause)
    for number in range(count):
        path = dice.choice(found)
        original = path.read_bytes()
        data = case.change(dice, path) if case.change else changed(dice, path, structured=case.structured)
        if data == original:
            continue
        replaced(path, data)
        print(json.dumps({"number": number, "path": str(path.relative_to(folder))}), file=sys.stderr, flush=True)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        counts.of(
            lambda: told(case, folder),
            lambda answer: case.any_answer or answer is None or answer == truth,
            name=f"{number} {path.relative_to(folder)}",
        )
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        counts.over_2_gb += before < 2 * GB // 1024 <= after
        replaced(path, original)
        print(json.dumps(asdict(counts)), flush=True)  # the next one may end the process


def told(case: Case, folder: Path) -> Any:
    """What is read; where a bare exception comes from is told on stderr."""
    try:
        return case.read(folder)
    except SeqlakeError:
        raise
    except Exception:
        traceback.print_exc()
        raise


def replaced(path: Path, data: bytes) -> None:
    """As another writer does it: a new file under the name."""
    fresh = path.with_name(f"{path.name}.fresh")
    fresh.write_bytes(data)
    fresh.replace(path)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))

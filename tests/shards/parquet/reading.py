"""Changes a dataset's bytes and reads it in every public way; a script, so that a crash is seen and not suffered.

Usage: reading.py KIND SEED FIRST COUNT FOLDER; prints one JSON line for each mutation, numbered from FIRST on.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import shutil
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import seqlake as sl
from seqlake.dataset.validation import validate
from seqlake.errors import SeqlakeError
from seqlake.plugins import load
from seqlake.shards import engines
from seqlake.shards.parquet import footer, index

ENGINES = ("lance", "vortex")
LENGTHS = [4, 9, 0, 7, 12, 3]
WINDOW = {"action": range(3)}


def _module(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


forging, mutating = _module("forging"), _module("mutating")


def told_apart(kind):
    """`lance archive` -> the engine and what is tried; `archive` is Parquet's."""
    engine, _, how = kind.rpartition(" ")
    return engine or "parquet", how


def written(folder, kind):
    """A small dataset, or a folder of somebody else's files."""
    engine, kind = told_apart(kind)
    if engine != "parquet" and kind == "foreign":
        written(folder, f"{engine} shards")
        by_the_engine(engine, folder)
        return
    if kind == "foreign":
        cells = pa.array(
            [[[float(n), 1.0]] * steps for n, steps in enumerate(LENGTHS)], pa.list_(pa.list_(pa.float32()))
        )
        Path(folder).mkdir()
        for name, options in (
            ("a", {"compression": "snappy"}),
            ("b", {"compression": "none", "use_dictionary": False}),
        ):
            rows = {"sequence_id": [f"{name}_{n}" for n in range(len(LENGTHS))], "task": ["pick"] * len(LENGTHS)}
            table = pa.table({**rows, "reward": np.arange(len(LENGTHS)) / 2, "action": cells})
            pq.write_table(table, folder / f"{name}.parquet", write_page_checksum=True, **options)
        return
    schema = {"task": pa.string(), "reward": pa.float64(), "action": sl.Trajectory(dim=2)}
    if kind != "shards":  # raw cells keep pyarrow's own scanner from reading the narrow columns
        schema["raw"] = sl.Trajectory(dim=2, encoding="raw")
    ds = sl.create(folder, sl.Schema(schema), shards=None if engine == "parquet" else engine)
    with ds.writer(layout="archive" if kind == "archive" else "training") as writer:
        for n, steps in enumerate(LENGTHS):
            cell = np.arange(2 * steps, dtype=np.float32).reshape(steps, 2) + n
            writer.add(
                f"ep_{n}", task="pick", reward=n / 2, **{name: cell for name in ("action", "raw") if name in schema}
            )


def by_the_engine(engine, folder):
    """The dataset becomes a folder of files that the engine's own package wrote, with `mixtrain.json` beside them."""
    table = sl.open(folder).to_arrow()
    shutil.rmtree(folder / "_seqlake")
    for path in list((folder / "data").iterdir()):
        path.unlink()
    for number, part in enumerate((table[:3], table[3:])):
        path = str(folder / "data" / f"{number}.{engine}")
        if engine == "vortex":
            import vortex

            vortex.io.write(part, path)
            continue
        from lance.file import LanceFileWriter

        with LanceFileWriter(path, part.schema) as writer:
            for batch in part.to_batches():
                writer.write_batch(batch)


def ways(place, kind):
    """Name -> a way of reading; each gives something that can be compared."""
    other = kind == "foreign"  # a folder that only `scan` reads

    def opened():
        return sl.scan(place) if other else sl.open(place)

    def converted():
        out = place.with_name("out")
        shutil.rmtree(out, ignore_errors=True)
        sl.convert(opened(), out)
        return sl.open(out).to_arrow()["action"].to_pylist()

    def loaded(**options):
        ds = sl.scan(place, **options) if other else sl.open(place, **options)
        loader = sl.Loader(ds, window=WINDOW, batch_size=4, shuffle=False)
        return [(batch["action"].tolist(), batch["action_mask"].tolist()) for batch in loader]

    return {
        "len": lambda: (len(opened()),),
        "to_arrow": lambda: opened().to_arrow().to_pydict(),
        "narrow": lambda: opened().select("sequence_id", "reward").to_arrow().to_pydict(),
        "cell": lambda: [one["action"].tolist() for one in opened()],
        "by id": lambda: (opened()["a_3" if other else "ep_3"]["action"].tolist(),),
        "window": lambda: (opened()[1].window(0, 3, columns=["action"])["action"].tolist(),),
        "sql": lambda: opened().sql("SELECT sequence_id, len(action), reward FROM dataset").fetchall(),
        "where": lambda: len(opened().where("reward > 1 AND len(action) > 3")),
        "lengths": lambda: opened().lengths("action").tolist(),
        "loader": loaded,
        "verified": lambda: loaded(verify="first"),
        "statistics": lambda: sl.statistics(opened()).to_json(),
        "scan": lambda: [
            sl.scan(path).to_arrow()["action"].to_pylist() for path in sorted(place.rglob("data/*.parquet"))
        ],
        "convert": converted,
    }


def changed(random, place, kind):
    """Change some bytes of one file of the dataset, so that seals hold where that is what is tried."""
    if kind == "mixtrain.json":
        path = place / "mixtrain.json"
        data = path.read_bytes()
        path.write_bytes(mutating.mutated(random, data, [(0, len(data))]))
        shutil.rmtree(place / "_seqlake", ignore_errors=True)  # else the log is believed, not the file
        return
    engine, kind = told_apart(kind)
    path = random.choice(sorted(place.rglob(f"data/*.{engine}" if engine != "parquet" else "*.parquet")))
    data = path.read_bytes()
    if engine != "parquet":
        path.write_bytes(changed_by_engine(random, data, engine, kind))
        if kind == "resealed":
            shutil.rmtree(place / "_seqlake", ignore_errors=True)
        return
    if kind == "resealed":
        path.write_bytes(_resealed(random, data))
        shutil.rmtree(
            place / "_seqlake", ignore_errors=True
        )  # which knows its size; a folder as somebody would send it
        return
    places = {name: ranges for name, ranges in mutating.places(data).items() if ranges}
    ranges = [one for ranges in places.values() for one in ranges]
    which = random.choice(sorted(places))
    path.write_bytes(mutating.mutated(random, data, places[which] if random.integers(4) else ranges))


def changed_by_engine(random, data, engine, kind):
    """Other bytes of a file of an engine, or other words of ours at its end, sealed."""
    reader = load("shard_formats", engine).open(mutating.MemoryBlob(data))
    known = engines.read_trailer(reader.blob, tail=reader.tail)
    if known is None:
        half = len(data) // 2
        return mutating.mutated(random, data, [(0, len(data)) if random.integers(2) else (half, len(data))])
    if kind != "resealed":
        parts = [(0, known.nbytes), (known.nbytes, len(data)), (len(data) - reader.tail - engines.POINTER, len(data))]
        return mutating.mutated(random, data, [parts[int(random.integers(len(parts)))]])
    told = {"index": known.index, "ids": known.ids, "schema": known.schema}
    which = random.choice(["index", "index", "ids", "schema"])
    if which == "index":
        column = str(random.choice(sorted(known.index.columns)))
        entry = lying(random, known.index.columns[column])
        told["index"] = replace(known.index, columns={**known.index.columns, column: entry})
    elif which == "ids":
        values = known.ids.column(0).to_pylist()
        values[int(random.integers(len(values)))] = str(random.choice(["", "ep_0", "ep_9", "\0"]))
        told["ids"] = pa.table({known.ids.column_names[0]: values})
    else:
        at = int(random.integers(len(known.schema)))
        kind = [pa.int64(), pa.string(), pa.list_(pa.list_(pa.float64())), pa.list_(pa.float32()), pa.null()]
        field = known.schema.field(at).with_type(kind[int(random.integers(len(kind)))])
        told["schema"] = known.schema.set(at, field)
    return sealed(data[: known.nbytes], told, reader.tail)


def sealed(body, told, tail):
    """A file of an engine with these words of ours behind it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x")
        path.write_bytes(body)
        engines.append_trailer(path, told["index"], ids=told["ids"], schema=told["schema"], tail=tail)
        return path.read_bytes()


def _resealed(random, data):
    """An index or a footer that says something else, with hashes that fit."""
    told = forging.own_index(data)
    if random.integers(3) == 0:  # the footer
        length = int.from_bytes(data[-8:-4], "little")
        start = len(data) - 8 - length
        tail = bytearray(data[start:-8])
        for _ in range(int(random.integers(1, 4))):
            tail[int(random.integers(len(tail)))] = int(random.integers(256))
        try:
            at = footer.seal_position(bytes(tail))
        except ValueError:
            return data[:start] + bytes(tail) + data[-8:]
        blank = bytes(tail[:at]) + footer.BLANK.encode() + bytes(tail[at + 16 :])
        found = footer.seal(blank)
        digits = b"0" * 16 if found is None else found[1]
        return data[:start] + blank[:at] + digits + blank[at + 16 :] + data[-8:]
    if random.integers(3) == 0:  # its bytes
        encoded = bytearray(index.encode(told))
        for _ in range(int(random.integers(1, 4))):
            encoded[int(random.integers(len(encoded)))] = int(random.integers(256))
        return forging.resealed(data, bytes(encoded))
    column = str(random.choice(sorted(told.columns)))
    entry = lying(random, told.columns[column])
    return forging.resealed(data, index.encode(replace(told, columns={**told.columns, column: entry})))


def lying(random, entry):
    """What an index may say of a column instead."""
    part = str(random.choice(["steps", "page_start", "page_row", "dim", "stored"]))
    if part == "dim":
        value = int(random.choice([0, 1, 3, 4, 2**31 - 1]))
    elif part == "stored":
        value = str(random.choice(["", "<f8", "<i4", "<u2", "|u1", "junk"]))
    else:
        value = getattr(entry, part).copy()
        for _ in range(int(random.integers(1, 3))):
            if value.size:
                value[int(random.integers(value.size))] = random.choice([-2, -1, 0, 1, 5, 13, 10**6, 2**31 - 1])
    return replace(entry, **{part: value})


def ended(call, right):
    """What became of one call, and what is to say of it."""
    try:
        answer = call()
    except SeqlakeError:
        return "refused", ""
    except duckdb.Error as error:  # of a relation, which is DuckDB's own: ours stands in its text
        return (
            ("refused", "")
            if "seqlake.errors." in str(error) or "checksum" in str(error)
            else ("bare", repr(error)[:300])
        )
    except (KeyError, IndexError) as error:  # no such column or row is Python's own error, as for any mapping
        return "refused" if "column" in str(error) or "sequence" in str(error) else "bare", repr(error)[:300]
    except Exception as error:
        return "bare", f"{type(error).__name__}: {error}"[:300]
    return ("right", "") if answer == right else ("other", "")


def main(kind, seed, first, count, folder):
    faulthandler.enable()
    faulthandler.dump_traceback_later(60 * max(count, 2), exit=True)
    warnings.simplefilter("ignore")
    base, place = Path(folder, "base"), Path(folder, "place")
    if not base.exists():
        written(base, kind)
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(base, place)
    truths = {name: call() for name, call in ways(place, kind).items()}
    for number in range(first, first + count):
        print(json.dumps({"begun": number}), flush=True)
        random = np.random.default_rng([seed, number])
        shutil.rmtree(place)
        shutil.copytree(base, place)
        changed(random, place, kind)
        found = {name: ended(call, truths[name]) for name, call in ways(place, kind).items()}
        if kind == "foreign":
            verdict, told = ended(lambda: validate(sl.scan(place), depth="rows").ok, False)
        else:
            verdict, told = ended(lambda: validate(place, depth="rows").ok, False)
        noticed = verdict in {"right", "refused"}
        result = {
            name: ("wrong" if how == "other" and not noticed else how, text) for name, (how, text) in found.items()
        }
        result["validate"] = ("bare", told) if verdict == "bare" else ("right", "")
        print(json.dumps({"number": number, "ends": result, "peak_kb": mutating.peak_kb()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) for word in sys.argv[2:5]), sys.argv[5])

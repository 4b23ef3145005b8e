"""Changes bytes of one file of an engine and reads it; a script, so that a crash is seen by the test and not suffered.

Usage: changing.py KIND SEED FIRST COUNT, with KIND as in `lance values`; what it prints stands in `tests/numbered.py`.
"""

from __future__ import annotations

import faulthandler
import json
import runpy
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from seqlake.errors import SeqlakeError
from seqlake.files.blobs import MemoryBlob
from seqlake.plugins import load
from seqlake.shards import engines
from seqlake.shards.parquet import layout
from seqlake.testing.shards import flat_is, identical

MUTATING = runpy.run_path(str(Path(__file__).parent / "parquet" / "mutating.py"))
SCHEMA = MUTATING["SCHEMA"]


def written(engine, order):
    """A file of ours with row groups of a few rows each."""
    batch = pa.RecordBatch.from_pylist(list(MUTATING["rows"](np.random.default_rng(5), 60)), SCHEMA.arrow)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"x.{engine}")
        before, layout.ROW_GROUP = layout.ROW_GROUP, 5_000
        try:
            writer = load("shard_formats", engine).create(path, SCHEMA, layout=order)
            for start in range(0, 60, 10):
                writer.write(batch.slice(start, 10))
            writer.close()
        finally:
            layout.ROW_GROUP = before
        return path.read_bytes()


def by_the_engine(engine, data):
    """The same rows in a file by the engine's own package."""
    reader = load("shard_formats", engine).open(MemoryBlob(data))
    table = pa.Table.from_batches(reader.batches(reader.schema.names))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"x.{engine}")
        if engine == "vortex":
            import vortex

            vortex.io.write(table, str(path))
        else:
            from lance.file import LanceFileWriter

            with LanceFileWriter(str(path), table.schema) as writer:
                for part in table.to_batches():
                    writer.write_batch(part)
        return path.read_bytes()


def ranges(engine, data, place):
    """Where such bytes lie."""
    if place == "foreign":
        return [(0, len(data)), (len(data) * 3 // 4, len(data))]
    reader = load("shard_formats", engine).open(MemoryBlob(data))
    known, end = reader.trailer, len(data) - reader.tail
    if place == "values":
        parts = []
        for name in reader.schema.names:
            flat = reader.flat(name)
            if flat is not None:
                stops = flat.start + np.maximum(flat.steps, 0) * flat.stride
                parts += [(int(a), int(b)) for a, b in zip(flat.start, stops, strict=True) if b > a]
        assert parts
        return parts
    return {
        "file": [(0, known.nbytes), (known.nbytes * 3 // 4, known.nbytes)],
        "archive": [(0, known.nbytes)],
        "trailer": [(known.nbytes, end - engines.POINTER)],
        "pointer": [(end - engines.POINTER, end)],
        "end": [(end, len(data))],
    }[place]


def everything(reader):
    names = reader.schema.names
    return pa.Table.from_batches(reader.batches(names), reader.schema), {name: reader.flat(name) for name in names}


def same(answer, truth):
    """Whether an answer says what the file said before it was changed."""
    table, flats = answer
    if table.schema.names != truth.schema.names or len(table) != len(truth):
        return False
    if not all(identical(table[name].cast(truth[name].type), truth[name]) for name in truth.schema.names):
        return False
    return all(flat is None or flat_is(flat, truth[name]) for name, flat in flats.items())


def ended(call, right):
    """What became of one way of reading."""
    try:
        answer = call()
    except SeqlakeError:
        return "refused", ""
    except Exception as error:
        return "bare", f"{type(error).__name__}: {error}"[:300]
    try:
        fine = right(answer)
    except pa.ArrowException:  # a type that is not to be cast
        fine = False
    return ("right", "") if fine else ("other", "")


def main(kind, seed, first, count):
    faulthandler.enable()
    faulthandler.dump_traceback_later(60 * max(count, 2), exit=True)
    engine, _, place = kind.partition(" ")
    opened = load("shard_formats", engine).open
    data = written(engine, "archive" if place == "archive" else "training")
    if place == "foreign":
        data = by_the_engine(engine, data)
    truth, _ = everything(opened(MemoryBlob(data)))
    where = ranges(engine, data, place)
    for number in range(first, first + count):
        print(json.dumps({"begun": number}), flush=True)
        data_now = MUTATING["mutated"](np.random.default_rng([seed, number]), data, where)
        result = read_all(lambda now=data_now: opened(MemoryBlob(now)), truth)
        if data_now != data and place in {"values", "file", "archive"} and result["compared"][0] == "right":
            result["compared"] = ("wrong", "no checksum met it")
        print(json.dumps({"number": number, "ends": result, "peak_kb": MUTATING["peak_kb"]()}), flush=True)


def read_all(opened, truth):
    """Way of reading -> what became of it; another answer is wrong where comparing the file finds nothing."""
    found = {
        "read": ended(lambda: everything(opened()), lambda answer: same(answer, truth)),
        "verified": ended(lambda: everything(opened().verified()), lambda answer: same(answer, truth)),
        "some rows": ended(
            lambda: pa.Table.from_batches(opened().batches(["sequence_id", "task"], rows=np.array([44, 3, 3]))),
            lambda table: table.equals(truth.select(["sequence_id", "task"]).take([44, 3, 3])),
        ),
        "lengths": ended(
            lambda: opened().lengths("action"), lambda found: found is None or found.tolist() == lengths(truth)
        ),
        "compared": ended(lambda: checked(opened()), lambda _: True),
    }
    noticed = found["compared"][0] == "refused"
    return {
        way: ("wrong" if how == "other" and (not noticed or way == "verified") else how, text)
        for way, (how, text) in found.items()
    }


def checked(reader):
    """What `validate` asks of a shard."""
    reader.compare()
    reader.check()


def lengths(truth):
    return [-1 if cell is None else len(cell) for cell in truth["action"].to_pylist()]


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) for word in sys.argv[2:5]))

"""Changes bytes of a file and reads it; run as a script, so that a crash is seen by the test and not suffered.

Usage: mutating.py PLACE SEED COUNT; prints one JSON line: how often the answer was right, and an error of ours.
"""

from __future__ import annotations

import faulthandler
import io
import json
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from seqlake.errors import SeqlakeError
from seqlake.files.stores import MemoryBlob
from seqlake.shards import parquet
from seqlake.shards.parquet import building, layout
from seqlake.shards.parquet.checking import check
from seqlake.shards.parquet.footer import read_footer
from seqlake.shards.parquet.pages import values_start, walk
from seqlake.spec.column_types import Trajectory
from seqlake.spec.schema import Schema
from seqlake.testing.shards import flat_is, identical

SCHEMA = Schema(
    {
        "task": pa.string(),
        "reward": pa.float64(),
        "action": Trajectory(dim=3),
        "state": Trajectory(dtype=pa.int16()),
        "raw": Trajectory(dim=2, encoding="raw"),
        "tags": pa.list_(pa.string()),
    }
)


def rows(random, count):
    for i in range(count):
        steps = int(random.integers(0, 30))
        yield {
            "sequence_id": f"ep{i}",
            "task": str(random.choice(["pick", "place", "push"])),
            "reward": float(i),
            "action": None if i % 7 == 3 else random.random((steps, 3), np.float32).tolist(),
            "state": random.integers(-99, 99, (steps, 2)).tolist(),
            "raw": random.random((steps, 2)).tolist(),
            "tags": ["a", None, "b"][: i % 4],
        }


def ours(layout_name="training", seed=5):
    random = np.random.default_rng(seed)
    batch = pa.RecordBatch.from_pylist(list(rows(random, 60)), SCHEMA.arrow)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.parquet")
        before, layout.ROW_GROUP = layout.ROW_GROUP, 20_000
        try:
            writer = parquet.create(path, SCHEMA, layout=layout_name)
            writer.write(batch)
            writer.close()
        finally:
            layout.ROW_GROUP = before
        return path.read_bytes()


def foreign():
    sink = io.BytesIO()
    table = pa.Table.from_pylist(
        list(rows(np.random.default_rng(5), 60)),
        SCHEMA.stored().set(5, pa.field("raw", pa.list_(pa.list_(pa.float32())))),
    )
    pq.write_table(table, sink, use_dictionary=["task"], compression="none", row_group_size=20, data_page_size=300)
    return sink.getvalue()


def places(data):
    """Byte ranges by what lies there."""
    footer = read_footer(MemoryBlob(data))
    length = int.from_bytes(data[-8:-4], "little")
    found = {"footer": [(len(data) - 8 - length, len(data))], "headers": [], "levels": [], "values": []}
    for group in footer.chunks:
        for chunk in group:
            part = memoryview(data)[chunk.start : chunk.stop]
            column = footer.metadata.schema.column(chunk.leaf)
            for page in walk(part, values=chunk.values):
                at = chunk.start
                found["headers"].append((at + page.offset, at + page.body))
                begin = page.body
                if chunk.codec == "UNCOMPRESSED" and page.is_data:
                    begin = values_start(
                        part, page, repeated=column.max_repetition_level > 0, optional=column.max_definition_level > 0
                    )
                    found["levels"].append((at + page.body, at + begin))
                if page.stop > begin:
                    found["values"].append((at + begin, at + page.stop))
    pointer = (footer.metadata.metadata or {}).get(b"seqlake.offsets")
    if pointer:
        start, size = (int(word) for word in pointer.split()[1:3])
        found["index"] = [(start, start + size)]
    return found


def mutated(random, data, ranges):
    """One to three bytes changed in these ranges."""
    out = bytearray(data)
    sizes = np.array([stop - start for start, stop in ranges], float)
    for _ in range(int(random.integers(1, 4))):
        start, stop = ranges[int(random.choice(len(ranges), p=sizes / sizes.sum()))]
        at = int(random.integers(start, stop))
        how = random.integers(3)
        out[at] = (
            (out[at] ^ (1 << int(random.integers(8))))
            if how == 0
            else int(random.integers(256))
            if how == 1
            else 255 * int(random.integers(2))
        )
    return bytes(out)


def read(data, outside):
    reader = parquet.open(MemoryBlob(data), index=outside)
    names = reader.schema.names
    table = pa.Table.from_batches(reader.batches(names), reader.schema)
    return table, {name: reader.flat(name) for name in names}


def decoded(data):
    """Through pyarrow alone: what the reader does where a column is not flat."""
    reader = parquet.open(MemoryBlob(data))
    reader.flat = lambda name: None
    return pa.Table.from_batches(reader.batches(reader.schema.names), reader.schema)


def main(place, seed, count):
    faulthandler.enable()
    faulthandler.dump_traceback_later(580, exit=True)
    data, outside = (
        (foreign(), None) if place == "foreign" else (ours("archive" if place == "archive" else "training"), None)
    )
    if place == "foreign":
        outside = building.build(MemoryBlob(data))
    truth, flats = read(data, outside)
    assert place == "archive" or {"action", "state"} <= {name for name, flat in flats.items() if flat is not None}
    found = places(data)
    ranges = [r for rs in found.values() for r in rs] if place in {"foreign", "archive"} else found[place]
    random = np.random.default_rng(seed)
    right = raised = caught = 0
    for number in range(count):
        changed = mutated(random, data, ranges)
        if changed == data:
            continue
        if place == "values":
            caught += any(finding.code == "P603" for finding in check(MemoryBlob(changed)))
            assert caught == right + raised + 1, f"mutation {number} not found"
        list(check(MemoryBlob(changed)))
        try:
            table, flats = read(changed, outside)
            through = None if place == "foreign" else decoded(changed)
        except SeqlakeError:
            raised += 1
            continue
        right += 1
        if place in {"footer", "archive"} and read_footer(MemoryBlob(changed)).index() is None:
            continue  # its pointer is hit too, so that nothing tells it from a file of another writer
        if place not in {"values", "foreign"}:
            for got in (table, through):
                assert got.schema.names == truth.schema.names, f"mutation {number}"
                assert all(identical(got[n], truth[n]) for n in truth.schema.names), f"mutation {number}"
        if place != "values" and not (place == "foreign" and table.schema.names != truth.schema.names):
            for name, flat in flats.items():
                ok = flat is None or place == "foreign" or flat_is(flat, truth[name])
                assert ok, f"mutation {number} {name}"
    print(json.dumps({"right": right, "raised": raised, "caught": caught, "peak_kb": peak_kb()}))


def peak_kb():
    """The most memory that this process held; `ru_maxrss` would count the parent's, from before our program began."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

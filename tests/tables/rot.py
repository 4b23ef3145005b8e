"""What a disk, a copy tool or an editor does to bytes: seeded mutations of the files below `_seqlake/`."""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
import string
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from seqlake.files.checksums import seal
from seqlake.versions import indexes


def kind_of(path: str) -> str:
    """The folder below `_seqlake/` that a file lies in."""
    name = path.split("/")[1]
    return "hint" if path.endswith("checkpoints/last") else name


def mutations(path: str) -> list[str]:
    """What can be done to a file of this kind."""
    found = ["bit", "byte", "zeros", "cut", "longer", "gone", "empty", "twin"]
    kind = kind_of(path)
    if kind in {"versions", "derived"} or path.endswith(".json"):
        found += ["key", "dropped", "number", "type", "case"]
    if kind in {"index", "media", "checkpoints"}:
        found += ["nulls", "column", "lost", "swapped", "types", "metadata"]
    if kind == "side":
        found += ["nulls", "column", "lost", "swapped"]
    return found


def mutate(path: Path, how: str, dice: random.Random) -> None:
    """Change a file in one place."""
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
        return
    made = _MUTATIONS[how](path, data, dice)
    path.write_bytes(made)


def _at(data: bytes, dice: random.Random) -> int:
    return dice.randrange(len(data))


def _bit(path: Path, data: bytes, dice: random.Random) -> bytes:
    at = _at(data, dice)
    return data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]


def _byte(path: Path, data: bytes, dice: random.Random) -> bytes:
    at = _at(data, dice)
    return data[:at] + bytes([dice.randrange(256)]) + data[at + 1 :]


def _zeros(path: Path, data: bytes, dice: random.Random) -> bytes:
    at, count = _at(data, dice), dice.choice([1, 4, 16, 64, 512])
    return data[:at] + bytes(len(data[at : at + count])) + data[at + count :]


def _cut(path: Path, data: bytes, dice: random.Random) -> bytes:
    return data[: _at(data, dice)]


def _longer(path: Path, data: bytes, dice: random.Random) -> bytes:
    return data + dice.randbytes(dice.choice([1, 8, 100]))


def _empty(path: Path, data: bytes, dice: random.Random) -> bytes:
    return b""


def _twin(path: Path, data: bytes, dice: random.Random) -> bytes:
    """The bytes of another file of the folder."""
    return dice.choice(sorted(path.parent.iterdir())).read_bytes()


def reseal(root: Path, path: str) -> None:
    """Make all digests right again, as somebody can who wants us to believe a change."""
    place = root / path
    if path.endswith(".json") or kind_of(path) == "derived":
        document = json.loads(place.read_text())
        place.write_bytes(seal({key: value for key, value in document.items() if key != "digest"}))
        if kind_of(path) == "versions":
            _link(root)
    elif kind_of(path) == "checkpoints":
        data = place.read_bytes()
        digits = json.loads(pa.ipc.open_file(data).schema.metadata[b"seqlake"])["digest"].encode()
        blank = data.replace(digits, b"0" * 64)
        place.write_bytes(data.replace(digits, hashlib.sha256(blank).hexdigest().encode()))
    else:
        table = pa.ipc.open_file(place.read_bytes()).read_all()
        (batch,) = table.drop_columns(["checksum"]).combine_chunks().to_batches()
        place.write_bytes(indexes._to_file(indexes._with_checksums(batch)))


def _link(root: Path) -> None:
    """Each record names the one before it again; checkpoints, which name records, are gone."""
    previous = None
    for path in sorted((root / "_seqlake" / "versions").iterdir()):
        document = {key: value for key, value in json.loads(path.read_text()).items() if key != "digest"}
        if previous is not None:
            document["previous"] = previous
        path.write_bytes(seal(document))
        previous = json.loads(path.read_text())["digest"]
    shutil.rmtree(root / "_seqlake" / "checkpoints", ignore_errors=True)


# ---- JSON, written as ours is


def _json(path: Path, data: bytes, dice: random.Random, change: Any) -> bytes:
    document = json.loads(data)
    places = list(_objects(document))
    change(dice.choice([place for place in places if place] or [document]), dice)
    return json.dumps(document, ensure_ascii=False).encode() + b"\n" * data.endswith(b"\n")


def _objects(value: Any) -> Any:
    if isinstance(value, dict):
        yield value
        for one in value.values():
            yield from _objects(one)
    elif isinstance(value, list):
        for one in value:
            yield from _objects(one)


def _rename(found: dict[str, Any], dice: random.Random) -> None:
    key = dice.choice(list(found))
    at = dice.randrange(len(key)) if key else 0
    new = key[:at] + dice.choice(string.ascii_lowercase) + key[at + 1 :]
    items = [(new if one == key else one, value) for one, value in found.items()]
    found.clear()
    found.update(items)


def _drop(found: dict[str, Any], dice: random.Random) -> None:
    del found[dice.choice(list(found))]


def _number(found: dict[str, Any], dice: random.Random) -> None:
    for key in dice.sample(list(found), len(found)):
        if isinstance(found[key], int | float):
            found[key] += dice.choice([-1, 1, 1 << 40])
            return


def _type(found: dict[str, Any], dice: random.Random) -> None:
    found[dice.choice(list(found))] = dice.choice([None, True, 7, -1, 1.5, "text", [], ["a"], [None], {}, {"a": 1}])


def _case(found: dict[str, Any], dice: random.Random) -> None:
    for key in dice.sample(list(found), len(found)):
        if isinstance(found[key], str) and found[key]:
            text = found[key]
            at = dice.randrange(len(text))
            found[key] = text[:at] + dice.choice(string.ascii_letters) + text[at + 1 :]
            return


# ---- Arrow and Parquet, written anew


def _tabular(path: Path, data: bytes, dice: random.Random, change: Any) -> bytes:
    sink = io.BytesIO()
    if data[:4] == b"PAR1":
        pq.write_table(change(pq.read_table(io.BytesIO(data)), dice), sink, compression="zstd")
    else:
        table = change(pa.ipc.open_file(data).read_all(), dice)
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    return sink.getvalue()


def _nulls(table: pa.Table, dice: random.Random) -> pa.Table:
    at, row = dice.randrange(table.num_columns), dice.randrange(max(table.num_rows, 1))
    field = table.schema.field(at).with_nullable(True)
    cells = table.column(at).to_pylist()
    cells[row : row + 1] = [None] * len(cells[row : row + 1])
    return table.set_column(at, field, pa.array(cells, field.type))


def _column(table: pa.Table, dice: random.Random) -> pa.Table:
    names = list(table.column_names)
    at = dice.randrange(len(names))
    names[at] = names[at][:-1] + dice.choice(string.ascii_lowercase)
    return table.rename_columns(names)


def _lost(table: pa.Table, dice: random.Random) -> pa.Table:
    return table.drop_columns([dice.choice(table.column_names)])


def _swapped(table: pa.Table, dice: random.Random) -> pa.Table:
    at = dice.randrange(table.num_columns)
    cells = table.column(at).to_pylist()
    dice.shuffle(cells)
    return table.set_column(at, table.schema.field(at), pa.array(cells, table.schema.field(at).type))


def _types(table: pa.Table, dice: random.Random) -> pa.Table:
    at = dice.randrange(table.num_columns)
    kind = dice.choice([pa.int8(), pa.string(), pa.float64(), pa.null(), pa.list_(pa.int8()), pa.large_binary()])
    return table.set_column(at, pa.field(table.column_names[at], kind), pa.nulls(table.num_rows, kind))


def _metadata(table: pa.Table, dice: random.Random) -> pa.Table:
    told = dict(table.schema.metadata or {})
    if not told:
        return table.replace_schema_metadata({"seqlake": "{}"})
    key = next(iter(told))
    document = json.loads(told[key])
    dice.choice([_rename, _drop, _number, _type, _case])(document, dice)
    return table.replace_schema_metadata({key: json.dumps(document)})


def _with(edit: Any, change: Any) -> Any:
    return lambda path, data, dice: edit(path, data, dice, change)


_MUTATIONS: dict[str, Any] = {
    "bit": _bit,
    "byte": _byte,
    "zeros": _zeros,
    "cut": _cut,
    "longer": _longer,
    "empty": _empty,
    "twin": _twin,
    "key": _with(_json, _rename),
    "dropped": _with(_json, _drop),
    "number": _with(_json, _number),
    "type": _with(_json, _type),
    "case": _with(_json, _case),
    "nulls": _with(_tabular, _nulls),
    "column": _with(_tabular, _column),
    "lost": _with(_tabular, _lost),
    "swapped": _with(_tabular, _swapped),
    "types": _with(_tabular, _types),
    "metadata": _with(_tabular, _metadata),
}

WRITTEN = frozenset(_MUTATIONS) - {"bit", "byte", "zeros", "cut", "longer", "empty", "twin"}
"""What leaves the file one of its kind."""

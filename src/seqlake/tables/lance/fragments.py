"""The fragments of a Lance dataset as files of a version, and a fragment as a shard.

A fragment is one Lance file, and one more for each column that came later. Columns are known by numbers: a file says
what its columns were called when it was written, and the version what they are called now.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.abilities import Physical, ability
from seqlake.errors import DamagedTableError, UnsupportedVersionError
from seqlake.shards.columns import Beside, Columns, Stored
from seqlake.spec.schema import Schema, is_list
from seqlake.versions import names
from seqlake.versions.state import TableFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from seqlake.protocols import Blob, Ints, Shard, ShardReader
    from seqlake.shards.columns import From
    from seqlake.versions.shard_formats import PluggedShard


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One file of a fragment.

    Attributes:
        path: Below the root.
        nbytes: Its size; -1 where Lance does not say.
        fields: The numbers of its columns, in their order.
        whole: Whether columns of lists and structs have numbers of their own, as in format 2.0.
    """

    path: str
    nbytes: int
    fields: tuple[int, ...]
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FragmentFile(TableFile):
    """A fragment of a version; its name is the path of its first file.

    Attributes:
        fragment: What Lance says of it, as JSON.
        parts: Its files.
        now: Number of a column, or of one inside it -> the name that the version has for it.
    """

    fragment: str
    parts: tuple[Part, ...]
    now: Mapping[int, str]

    def stored_names(self, column: str, /) -> Sequence[str]:
        """Nothing: a column may have been renamed since, and only the file can tell."""
        del column
        return []

    @property
    def identity(self) -> str:
        """What Lance says of it, and what its columns are called."""
        return f"{self.fragment}\0{sorted(self.now.items())!r}"


def fragment_file(fragment: Any, now: Mapping[int, str], /, *, root: str, blob: Callable[[str], Blob]) -> FragmentFile:
    """A fragment as a file of a version.

    Args:
        fragment: A `LanceFragment`.
        now: Number of a column -> its name.
        root: For messages.
        blob: Gives a file of the dataset.

    Raises:
        UnsupportedVersionError: It has something that is not read here: files elsewhere, columns that overlay others.
    """
    metadata = fragment.metadata
    said = metadata.to_json()
    number = fragment.fragment_id
    if any(file.get("base_id") is not None for file in said["files"]):
        raise UnsupportedVersionError(
            f"{root} is a branch or a shallow clone: its fragment {number} lies in the folder of another dataset, "
            "where seqlake does not look.",
            path=root,
            hint="Copy it, with lance.write_dataset(lance.dataset(...), TARGET), or open what it was made of.",
        )
    if said.get("overlays"):
        raise UnsupportedVersionError(
            f"{root}: fragment {number} has values that overlay others; seqlake does not read these.",
            path=root,
            hint="Copy the dataset, with lance.write_dataset(lance.dataset(...), TARGET).",
        )
    parts = _parts(said["files"])
    rows = int(metadata.physical_rows)
    return FragmentFile(
        name=parts[0].path,
        rows=rows,
        nbytes=parts[0].nbytes,
        deleted=_deleted(fragment, rows, root=root, blob=blob) if metadata.deletion_file is not None else None,
        fragment=json.dumps(said, sort_keys=True),
        parts=parts,
        now=now,
    )


def borrowed_file(fragment: Any, now: Mapping[int, str], /) -> FragmentFile | None:
    """What a fragment of a branch has of the files of the dataset that it branched off; None where it has none.

    Args:
        fragment: A `LanceFragment` of the branch.
        now: Number of a column -> its name in the branch.
    """
    said = fragment.metadata.to_json()
    parts = _parts([file for file in said["files"] if file.get("base_id") is not None])
    if not parts:
        return None
    rows, text = int(fragment.metadata.physical_rows), json.dumps(said, sort_keys=True)
    return FragmentFile(name=parts[0].path, rows=rows, nbytes=parts[0].nbytes, fragment=text, parts=parts, now=now)


def _parts(files: Sequence[Mapping[str, Any]]) -> tuple[Part, ...]:
    return tuple(
        Part(
            path=names.data(file["path"]),
            nbytes=int(file["file_size_bytes"] or -1),
            fields=tuple(file["fields"]),
            whole=(file["file_major_version"], file["file_minor_version"]) <= (2, 0),
        )
        for file in files
    )


def _deleted(fragment: Any, rows: int, *, root: str, blob: Callable[[str], Blob]) -> Ints:
    """[deleted] the rows that are no more, ascending.

    A list of them is an Arrow file, and read here: Lance ends the process over a damaged one. Bitmaps are for Lance.
    """
    path, declared = str(fragment.deletion_file()), int(fragment.metadata.deletion_file.num_deleted_rows or 0)
    if not path.endswith(".arrow"):
        addresses = fragment.scanner(columns=[], with_row_address=True).to_table()["_rowaddr"]
        live = np.asarray(addresses).astype(np.uint64) & np.uint64(0xFFFFFFFF)
        return np.setdiff1d(np.arange(rows, dtype=np.int64), live.astype(np.int64))
    try:
        file = blob(path)
        (data,) = file.ranges(np.array([0]), np.array([file.size]))
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        table.validate(full=True)
        deleted = np.unique(np.asarray(table.column(0).cast(pa.int64())))
    except (pa.ArrowException, OSError, IndexError) as error:
        what = str(error).partition("\n")[0]
    else:
        if len(deleted) == declared and not table.column(0).null_count and ((deleted >= 0) & (deleted < rows)).all():
            return deleted
        what = f"it names {len(deleted)} rows, and the manifest {declared} of {rows}"
    raise DamagedTableError(
        f"The deleted rows of a fragment of {root} cannot be read: {path}: {what}.",
        path=path,
        hint="Restore the file from a copy, or open an older version.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentShard:
    """A fragment as a shard, with the names that its columns have now.

    Attributes:
        files: Its files, with what is said of each.
        now: As in `FragmentFile`.
        rows: All its rows, deleted ones too.
        key: `<name>#<hash>`.
    """

    files: tuple[tuple[PluggedShard, Part], ...]
    now: Mapping[int, str]
    rows: int
    key: str

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return sum(shard.nbytes for shard, _ in self.files)

    def open(self) -> FragmentReader:
        """A reader; files are opened when it is first asked."""
        return FragmentReader(self)

    # ---- Verifiable

    def verified(self) -> FragmentShard:
        """The same fragment, its files compared as they are read."""
        return replace(self, files=tuple((shard.verified(), part) for shard, part in self.files))

    # ---- Copyable

    @property
    def one_file(self) -> bool:
        """Whether it has no columns in other files."""
        return len(self.files) == 1

    @property
    def in_place(self) -> bool:
        """Whether its first file lies on this machine."""
        return self.files[0][0].in_place

    def packed(self) -> Blob:
        """Its first file, as it is stored."""
        return self.files[0][0].blob

    def unpacked(self, data: memoryview, /) -> memoryview:
        """The same bytes: it is read as it is stored."""
        return data

    def over(self, blob: Blob, /) -> FragmentShard:
        """The same fragment, its first file read from this copy."""
        first, part = self.files[0]
        return replace(self, files=((first.over(blob), part), *self.files[1:]))


class FragmentReader:
    """One open `FragmentShard`: its files as one."""

    def __init__(self, shard: FragmentShard, /) -> None:
        self._shard = shard

    @cached_property
    def _shown(self) -> ShardReader:
        """All columns of the version that its files have, under the names that they have now."""
        fields: list[pa.Field] = []
        mapping: dict[str, From] = {}
        for number, (shard, part) in enumerate(self._shard.files):
            reader = shard.open()
            physical = ability(reader, Physical)
            stored = pa.schema([]) if physical is None else physical.schema
            reader.close()
            for name, field in _current(stored, part, self._shard.now):
                if name not in mapping:
                    mapping[name] = Beside(shard, field.name) if number else Stored(field.name)
                    fields.append(field.with_name(name).with_nullable(True))
        return Columns(self._shard.files[0][0], Schema.from_arrow(pa.schema(fields), id=None), mapping).open()

    @property
    def schema(self) -> pa.Schema:
        """The columns that it has."""
        physical = ability(self._shown, Physical)
        return pa.schema([]) if physical is None else physical.schema

    @property
    def rows(self) -> int:
        """All its rows, deleted ones too."""
        return self._shard.rows

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """Record batches of these columns, in this order."""
        return self._shown.batches(columns, rows=rows)

    def flat(self, column: str, /) -> Any:
        """Where the steps of each row lie; None where the column must be decoded."""
        return self._shown.flat(column)

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] T, as the end of its file says; None where another client wrote it."""
        return self._shown.lengths(column)  # type: ignore[attr-defined, no-any-return]  # of `Columns`

    def close(self) -> None:
        """Close the files that were opened."""
        if "_shown" in self.__dict__:
            self._shown.close()


def _current(stored: pa.Schema, part: Part, now: Mapping[int, str]) -> Iterator[tuple[str, pa.Field]]:
    """The columns of a file that the version still has: (name now, as the file has it)."""
    counts = [_numbers(field.type, whole=part.whole) for field in stored]
    if sum(counts) < len([number for number in part.fields if number >= 0]):
        raise DamagedTableError(
            f"{part.path} has {sum(counts)} columns, inner ones among them, where the dataset says {len(part.fields)}.",
            path=part.path,
        )
    at = 0
    for field, count in zip(stored, counts, strict=True):
        name = next((now[number] for number in part.fields[at : at + count] if number in now), None)
        at += count
        if name is not None:
            yield name, field


def _numbers(kind: pa.DataType, *, whole: bool) -> int:
    """How many columns of a file of Lance a column of Arrow becomes."""
    if pa.types.is_struct(kind):
        return whole + sum(_numbers(field.type, whole=whole) for field in kind)
    if pa.types.is_map(kind):
        return 2 * whole + _numbers(kind.key_type, whole=whole) + _numbers(kind.item_type, whole=whole)
    if is_list(kind) and not pa.types.is_fixed_size_list(kind):
        return whole + _numbers(kind.value_type, whole=whole)
    return 1


def shard_of(file: FragmentFile, describe: Callable[[str, int], PluggedShard], /) -> Shard:
    """A fragment as a shard.

    Args:
        file: The fragment.
        describe: From the path and the bytes of a file, the file as a shard.
    """
    described = tuple((describe(part.path, part.nbytes), part) for part in file.parts)
    return FragmentShard(files=described, now=file.now, rows=file.rows, key=described[0][0].key)

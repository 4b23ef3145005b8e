"""CSV files as rows of samples: passed over once to learn rows and types, and read block by block from then on."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.arguments import COUNT, FLAG, MAPPING, TEXT, TEXTS, takes, whole
from seqlake.errors import (
    CorruptFileError,
    DatasetNotFoundError,
    SchemaMismatchError,
    SeqlakeError,
    UnsafeReferenceError,
)
from seqlake.files.locations import absolute, is_local, local_path
from seqlake.files.packed import ENDINGS, UnpackedBlob, is_packed, plain_name
from seqlake.files.stores import open_store
from seqlake.formats.csv.dialect import (
    BLOCK_BYTES,
    NULLS,
    CsvBytes,
    Dialect,
    guessed_delimiter,
    header_of,
    joined,
    typed,
)
from seqlake.protocols import Mapped
from seqlake.shards.scanned import ScannedDataset, ScannedReader, ScannedShard
from seqlake.spec.column_types import ColumnType
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Column, Schema, is_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.protocols import Blob, Ints

_SUFFIXES = (".csv", ".tsv", ".tab")
_PACKED = tuple(f"{suffix}{packed}" for suffix in _SUFFIXES for packed in ENDINGS)
_ARCHIVES = tuple(f"{suffix}.zip" for suffix in _SUFFIXES)
_READ = (*_SUFFIXES, *_PACKED)
_BESIDE = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".png", ".jpg", ".jpeg", ".md", ".txt", ".wav")
_LOOKED_AT = 1000  # names of a folder
_HEADER_BYTES = 1 << 20


def matches(location: str, /, *, storage: Mapping[str, str] | None = None) -> bool:
    """Whether it is a file called `.csv` or `.tsv`, or a folder of such, with nothing but media and texts beside."""
    try:
        place = absolute(location)
        if place.lower().endswith((*_READ, *_ARCHIVES)):
            return not is_local(place) or local_path(place).is_file()
        if is_local(place) and not local_path(place).is_dir():
            return False
        names = [path for path, _ in islice(open_store(place, storage=storage).list(), _LOOKED_AT)]
    except UnsafeReferenceError:
        raise  # what it is can be said once that is allowed
    except (SeqlakeError, OSError, ValueError):
        return False
    seen = [name.lower() for name in names if not any(part.startswith(".") for part in name.split("/"))]
    tables = [name for name in seen if name.endswith(_READ)]
    return bool(tables) and all(name.endswith((*_READ, *_BESIDE)) for name in seen)


@takes(
    delimiter=TEXT.or_none(),
    header=FLAG,
    columns=TEXTS.or_none(),
    skip_rows=COUNT,
    types=MAPPING.or_none(),
    nulls=TEXTS,
    encoding=TEXT,
    file_names=TEXT.or_none(),
    column_types=MAPPING.or_none(),
    block_bytes=whole(1 << 8, 1 << 30),
)
def scan(
    location: str,
    /,
    *,
    delimiter: str | None = None,
    quote: str | None = '"',
    escape: str | None = None,
    encoding: str = "utf-8",
    header: bool = True,
    columns: Sequence[str] | None = None,
    skip_rows: int = 0,
    types: Mapping[str, Any] | None = None,
    nulls: Sequence[str] = NULLS,
    decimal: str = ".",
    file_names: str | None = None,
    column_types: Mapping[str, Any] | None = None,
    block_bytes: int = BLOCK_BYTES,
    storage: Mapping[str, str] | None = None,
) -> CsvRows:
    """Look at a CSV file, or at all of a folder, also compressed ones (`.csv.gz`); every row is a sample.

    All bytes are passed over once, block by block, to count the rows and to learn the type of every column from all of
    its cells. From then on a block is read when rows of it are asked for.

    Args:
        location: A file or folder, local or URI. Files of a folder have the same columns, and come in the order of
            their names.
        delimiter: Between cells; None: a tab in `.tsv`, else a comma, or what the header has in place of it.
        quote: Around cells that hold a delimiter or a newline, doubled inside them; None: nothing is quoted.
        escape: Before a character that means itself.
        encoding: Of the text; one that extends ASCII.
        header: Whether the first row holds the names of the columns.
        columns: Their names, where there is no header, or in place of it.
        skip_rows: Rows before the header that are passed over.
        types: Arrow types of columns that you know better, as `{"episode": "string", "x": "float32"}`.
        nulls: Cells that stand for nothing. Quoted ones are texts. A float `nan` is a number.
        decimal: Before the fraction of a number.
        file_names: Add a column of this name with the name of each row's file, without its suffix.
        column_types: What columns mean, as `mixtrain.json` would say it.
        block_bytes: Bytes that are read together.
        storage: Options of its store.

    Returns:
        A `Readable`; a text column `sequence_id` names its rows.

    Raises:
        DatasetNotFoundError: No such file.
        CorruptFileError: A row with another number of cells, or text in another encoding; names file and row.
        SchemaMismatchError: Files have different columns, or a name occurs twice.

    Example:
        ```python
        sl.scan("steps.csv", sequence_id="episode", steps="t", videos="videos/{episode}.mp4")
        ```
    """
    root, paths = _files(absolute(location), storage)
    store = open_store(root, storage=storage)
    dialect = Dialect(
        delimiter=delimiter or (";" if decimal == "," else ","),
        quote=quote,
        escape=escape,
        encoding=encoding,
        nulls=tuple(nulls),
        decimal=decimal,
    )
    known = {str(name): _arrow(name, kind) for name, kind in (types or {}).items()}
    files, kinds, lacking = list[_CsvFile](), dict[str, pa.DataType](), set[str]()
    for path in paths:
        blob = store.blob(path)
        read = _looked_at(
            UnpackedBlob(blob) if is_packed(path) else blob,
            path,
            dialect,
            guess=delimiter is None,
            header=header,
            names=columns,
            skip=skip_rows,
        )
        if files and set(files[0].names) != set(read.names):
            differ = sorted(set(files[0].names) ^ set(read.names))
            raise SchemaMismatchError(
                f"{path} has not the columns of {paths[0]}: {', '.join(differ[:5])} are in one of them only.",
                path=path,
                hint="Scan them one by one, or give both the same header.",
            )
        if unknown := sorted(known.keys() - set(read.names)):
            raise SchemaMismatchError(f"types names {unknown[0]!r}, and there are {', '.join(read.names)}.")
        blocks = []
        for start, stop, rows, block_kinds, nulls_in in read.surveyed(known, block_bytes):
            blocks.append((start, stop, rows))
            kinds = {n: joined(kinds[n], block_kinds[n]) if n in kinds else block_kinds[n] for n in read.names}
            lacking |= nulls_in
        files.append(replace(read, blocks=tuple(blocks)))
    names = files[0].names
    arrow = {n: known.get(n) or kinds.get(n) or pa.string() for n in names}
    arrow = {n: pa.string() if pa.types.is_null(kind) else kind for n, kind in arrow.items()}
    schema = _schema(arrow, lacking, file_names, column_types)
    return CsvRows(root=root, schema=schema, parts=list(_shards(files, arrow, schema, file_names)), names=tuple(names))


def _arrow(name: object, kind: object) -> pa.DataType:
    try:
        return kind if isinstance(kind, pa.DataType) else pa.type_for_alias(str(kind))
    except ValueError:
        raise SchemaMismatchError(
            f"types: {name!r} is {kind!r}, which is no Arrow type; expected one as 'string', 'int64', 'float32' or "
            "'timestamp[ms]'."
        ) from None


def _files(place: str, storage: Mapping[str, str] | None) -> tuple[str, list[str]]:
    """The folder, and the files in it."""
    if place.lower().endswith(_ARCHIVES):
        raise DatasetNotFoundError(
            f"{place} is an archive, which may hold several files.",
            path=place,
            hint=f"Unpack it first: unzip {PurePosixPath(place).name}",
        )
    if (is_local(place) and local_path(place).is_file()) or place.lower().endswith(_READ):
        place = os.path.realpath(place) if is_local(place) else place  # a link that the user names is the user's own
        root, _, name = place.rpartition("/")
        try:
            open_store(root, storage=storage).blob(name)
        except (FileNotFoundError, NotADirectoryError):
            raise DatasetNotFoundError(f"No file is at {place}.", path=place) from None
        return root, [name]
    try:
        listed = [path for path, _ in open_store(place, storage=storage).list()]
    except (FileNotFoundError, NotADirectoryError):
        listed = []
    hidden = (path for path in listed if not any(part.startswith((".", "_")) for part in path.split("/")))
    paths = sorted(path for path in hidden if path.lower().endswith(_READ))
    if not paths:
        raise DatasetNotFoundError(f"No CSV file is at {place}.", path=place)
    return place, paths


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _CsvFile:
    """One file after a look at its first rows.

    Attributes:
        blob: The file.
        path: Below the root.
        dialect: How it is written.
        names: Of its columns, in its own order.
        first: Where the rows begin.
        blocks: (first byte, end, rows) of each block.
    """

    blob: Blob
    path: str
    dialect: Dialect
    names: Sequence[str]
    first: int
    blocks: Sequence[tuple[int, int, int]] = ()

    def surveyed(
        self, known: Mapping[str, pa.DataType], block_bytes: int
    ) -> Iterator[tuple[int, int, int, dict[str, pa.DataType], set[str]]]:
        """Of each block: first byte, end, rows, types and columns with nulls."""
        data = CsvBytes(self.blob, self.dialect)
        row = 0
        for start, stop in data.blocks(self.first, size=block_bytes):
            held = data.read(start, stop)
            where = f"{self.blob.location}, rows from {row} on (bytes {start} to {stop})"
            table = self.dialect.parsed(held, location=where, names=self.names, types=known)
            for rows, kinds, lacking in typed(iter([(table, held)]), known, self.dialect):
                yield start, stop, rows, kinds, lacking
                row += rows


def _looked_at(
    blob: Blob,
    path: str,
    dialect: Dialect,
    /,
    *,
    guess: bool,
    header: bool,
    names: Sequence[str] | None,
    skip: int,
) -> _CsvFile:
    """The dialect, the names and the first row of a file."""
    data = CsvBytes(blob, dialect)
    start = data.first
    for _ in range(skip):
        start = data.row_at(start)
    stop = data.row_at(start)
    first = data.read(start, min(stop, start + _HEADER_BYTES))
    if not len(first):
        raise CorruptFileError(f"{blob.location} is empty.", path=blob.location)
    if b"\0" in bytes(first):
        raise CorruptFileError(f"{blob.location} holds NUL bytes, and is no text.", path=blob.location)
    if guess:
        text = str(first, dialect.encoding, "replace")
        dialect = replace(dialect, delimiter=guessed_delimiter(text, plain_name(path)))
    stored = header_of(first, dialect, location=blob.location)
    if names is not None and len(names) != len(stored):
        raise SchemaMismatchError(
            f"{blob.location} has {len(stored)} columns, and {len(names)} names are given.", path=blob.location
        )
    if not header and names is None:
        names = [f"column_{number}" for number in range(len(stored))]
    chosen = [str(name) for name in (names if names is not None else stored)]
    return _CsvFile(blob=blob, path=path, dialect=dialect, names=chosen, first=stop if header else start)


def _schema(
    arrow: Mapping[str, pa.DataType],
    lacking: set[str],
    file_names: str | None,
    column_types: Mapping[str, Any] | None,
) -> Schema:
    meaning = {
        name: kind if isinstance(kind, ColumnType) else ColumnType.from_json(dict(kind))
        for name, kind in (column_types or {}).items()
    }
    columns = {n: Column(n, kind, meaning.get(n), nullable=n in lacking) for n, kind in arrow.items()}
    if file_names is not None:
        if file_names in columns:
            raise SchemaMismatchError(f"file_names: there is a column {file_names!r} already.")
        columns[file_names] = Column(file_names, pa.string(), nullable=False)
    if unknown := sorted(meaning.keys() - columns.keys()):
        raise SchemaMismatchError(f"column_types names {unknown[0]!r}, and there are {', '.join(columns)}.")
    key = ID if ID in columns and is_text(columns[ID].arrow) else None
    return Schema(columns, id=key, metadata=Metadata(extra={"source": {"format": "csv"}}))


def _shards(
    files: Sequence[_CsvFile], arrow: Mapping[str, pa.DataType], schema: Schema, file_names: str | None
) -> Iterator[ScannedShard]:
    described = [(name, str(kind)) for name, kind in arrow.items()]
    for file in files:
        stem = PurePosixPath(plain_name(file.path)).stem
        extra = {} if file_names is None else {file_names: stem}
        for start, stop, rows in file.blocks:
            if not rows:
                continue
            state = repr([file.blob.location, file.blob.token, start, stop, file.dialect, described, extra])
            digest = hashlib.sha256(state.encode()).hexdigest()[:16]
            reader = partial(CsvReader, schema.arrow, rows, file, (start, stop), dict(arrow), extra)
            yield ScannedShard(key=f"{stem}-{start}#{digest}", rows=rows, nbytes=stop - start, reader=reader)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CsvRows(ScannedDataset):
    """The rows of CSV files: a `Readable`, picklable.

    Attributes:
        names: Of the columns in the files.
    """

    names: Sequence[str]

    def mapping(self) -> Sequence[Mapped]:
        """Every column is one of the files, and the name of its file one more."""
        added = [name for name in self.schema.names if name not in self.names]
        return [
            *(Mapped(source=name, column=name) for name in self.names),
            *(Mapped(source="name of the file", column=name) for name in added),
        ]


class CsvReader(ScannedReader):
    """Reads one block.

    Args:
        types: The logical Arrow schema.
        count: Rows of the block.
        file: The file.
        span: The bytes of the block.
        kinds: Column of the file -> its type.
        extra: Column -> its value in every row.
    """

    def __init__(
        self,
        types: pa.Schema,
        count: int,
        file: _CsvFile,
        span: tuple[int, int],
        kinds: Mapping[str, pa.DataType],
        extra: Mapping[str, str],
        /,
    ) -> None:
        super().__init__(types, count, location=file.blob.location)
        self._file = file
        self._span = span
        self._kinds = kinds
        self._extra = extra
        self._parsed: tuple[tuple[str, ...], pa.Table] | None = None

    def arrays(self, schema: pa.Schema, rows: Ints, /) -> list[pa.Array]:
        """The cells of some rows.

        Raises:
            CorruptFileError: The block has other rows than when it was looked at.
        """
        table = self._table(tuple(name for name in schema.names if name in self._kinds))
        picked = table.take(pa.array(rows)).combine_chunks() if table.num_columns else table
        arrays = []
        for field in schema:
            if field.name in self._extra:
                arrays.append(pa.repeat(pa.scalar(self._extra[field.name], field.type), len(rows)))
                continue
            column = picked.column(field.name)
            arrays.append(column.chunk(0) if column.num_chunks else pa.array([], field.type))
        return arrays

    def _table(self, columns: tuple[str, ...]) -> pa.Table:
        if self._parsed is not None and self._parsed[0] == columns:
            return self._parsed[1]
        start, stop = self._span
        file = self._file
        data = CsvBytes(file.blob, file.dialect).read(start, stop)
        where = f"{self.location} (bytes {start} to {stop})"
        table = file.dialect.parsed(data, location=where, names=file.names, types=self._kinds, columns=columns)
        if columns and table.num_rows != self.count:
            raise CorruptFileError(
                f"{where} has {table.num_rows} rows; it had {self.count} when it was looked at.",
                path=self.location,
                hint="The file was changed meanwhile: scan it again.",
            )
        self._parsed = (columns, table)
        return table

    def close(self) -> None:
        """Let go of the rows."""
        self._parsed = None

"""Folders of data files as engines leave them: which names are data, and the columns that folder names hold.

`data/split=val/x.parquet`, as DuckDB, Spark, Polars and Hive write it: every row of the file has `split` = `val`. The
types are DuckDB's: integers where every value is one, dates where every value is one, else text. A value becomes an
integer or a date only where its text can be had back, so that `007` stays what it is.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import date
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from seqlake.abilities import Physical, ability
from seqlake.errors import DatasetNotFoundError, SchemaMismatchError, SeqlakeError
from seqlake.shards.columns import Columns, Constant
from seqlake.shards.files import innermost
from seqlake.spec.findings import Finding
from seqlake.spec.schema import ID, is_text
from seqlake.versions import names, shard_formats

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from seqlake.protocols import Shard, Store
    from seqlake.spec.column_types import ColumnType

NULL = "__HIVE_DEFAULT_PARTITION__"
_INT64 = 1 << 63
_METADATA_OF_TABLES = {"_delta_log": "parquet", "metadata": "parquet", "_versions": "lance"}  # beside data of theirs
_TABLES = {
    "Delta": (
        re.compile(r"(.*/)?_delta_log/\d{20}\.(?:json|checkpoint.*\.parquet)"),
        "Open the table itself: sl.open('delta:{place}').",
    ),
    "Iceberg": (
        re.compile(r"(.*/)?metadata/[^/]+\.metadata\.json(?:\.gz)?"),
        "Open it by its catalog: sl.open('iceberg://CATALOG/NAMESPACE.TABLE').",
    ),
    "DuckLake": (
        re.compile(r"(.*/)?ducklake-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:-delete)?\.parquet"),
        "Open it by its catalog: sl.open('ducklake:CATALOG?table=TABLE').",
    ),
    "Lance": (
        re.compile(r"(.*/)?_versions/[^/]+\.manifest"),
        "Open it as what it is: sl.open('lance:{place}').",
    ),
}  # what of other clients' tables lies among their files: (form of its path, what to do)


def is_hidden(path: str, /) -> bool:
    """Whether engines pass over a name: it or a folder of it begins with `.`, or with `_` and names no column.

    Example:
        >>> is_hidden("data/_temporary/0.parquet"), is_hidden("data/_day=1/0.parquet")
        (True, False)
    """
    return any(part[:1] == "." or (part[:1] == "_" and "=" not in part) for part in path.split("/"))


def data_files(store: Store, /) -> list[str]:
    """The data files of a folder without a log, by path: those below `data/`, else all outside `files/`."""
    inner = [path for path, _ in store.list(names.DATA)]
    endings = {path.rpartition(".")[2] for path in inner if is_data(path)}
    beside = [folder for folder, ending in _METADATA_OF_TABLES.items() if ending in endings]
    if not endings:
        return chosen((path for path, _ in store.list()), root=store.root)
    with ThreadPoolExecutor(len(_METADATA_OF_TABLES)) as pool:  # at once: a folder far away is asked for each
        listed = pool.map(lambda folder: [path for path, _ in store.list(folder)], beside)
        return chosen([*(path for paths in listed for path in paths), *inner], root=store.root)


def chosen(paths: Iterable[str], /, *, root: str, parquet_only: bool = False) -> list[str]:
    """Of all paths of a folder those that are read as its data, sorted.

    Args:
        paths: Below the root.
        root: For messages.
        parquet_only: Files of other formats of shards are none.

    Raises:
        DatasetNotFoundError: They are a lake's, whose metadata alone say which of them count.
    """
    listed = list(paths)
    data = sorted(path for path in listed if is_data(path, parquet_only=parquet_only))
    data = [path for path in data if path.startswith(f"{names.DATA}/")] or data
    _refuse_tables(listed, data, root)
    return data


def _refuse_tables(paths: Sequence[str], data: Sequence[str], root: str) -> None:
    for lake, (form, how) in _TABLES.items():
        for path in paths:
            entry = form.fullmatch(path)
            if entry is None:
                continue
            folder = entry[1] or ""
            if any(one.startswith(folder) for one in data):
                place = f"{root}/{folder}".rstrip("/")
                raise DatasetNotFoundError(
                    f"No Mixtrain dataset is at {root}: {path} says that the files there are a table of {lake}, "
                    "which may have removed some of them.",
                    path=root,
                    hint=how.format(place=place),
                )


def is_data(path: str, /, *, parquet_only: bool = False) -> bool:
    """Whether a name is one of a data file, wherever it lies."""
    known = path.endswith(names.SUFFIX) if parquet_only else shard_formats.has_format(path)
    return known and not path.startswith(f"{names.FILES}/") and not is_hidden(path)


def columns_of(path: str, /) -> dict[str, str | None]:
    """The columns that the folders of a path name, as text; None is null.

    Example:
        >>> columns_of("data/task=pick%20up/day=__HIVE_DEFAULT_PARTITION__/0.parquet")
        {'task': 'pick up', 'day': None}
    """
    columns: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, sign, text = part.partition("=")
        if name and sign:  # the first of two counts, as for DuckDB and pyarrow
            columns.setdefault(_meant(name), None if text == NULL else _meant(text))
    return columns


def _meant(text: str) -> str:
    """Text as it was before engines escaped it; what is no such escape stays."""
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return text


def with_folders(
    schema: pa.Schema, paths: Sequence[str], types: Mapping[str, ColumnType], /
) -> tuple[pa.Schema, dict[str, pa.Array]]:
    """The columns of files and of the folders that they lie in, and the values of the latter.

    Args:
        schema: What the files hold. Where they hold a column of a folder, too, the folder's value counts, in the type
            that it has in the files if it can.
        paths: Of all files.
        types: What was declared; a `type` may be the name of an Arrow type.

    Returns:
        All columns, and of those that folders are named for the values, [paths]: null for a file in no such folder.

    Raises:
        SchemaMismatchError: A value that is none of the type that was declared.
    """
    listed = [_readable(path) for path in paths]
    columns: dict[str, pa.Array] = {}
    for name in dict.fromkeys(name for one in listed for name in one):
        texts = pa.array([one.get(name) for one in listed], pa.string())
        at = schema.get_field_index(name)
        if name == ID or name in types:
            values = _as_declared(texts, types[name].type if name in types else "string", name=name)
        else:
            values = _by_values(texts) if at < 0 else _as_in_files(texts, schema.field(at).type)
        columns[name] = values
        field = pa.field(name, values.type)
        schema = schema.append(field) if at < 0 else schema.set(at, field)
    return schema, columns


def contradictions(parts: Iterable[tuple[str, Shard]], /) -> Iterator[Finding]:
    """T516: files that hold another value of a column than the folder that they lie in, whose value counts.

    Args:
        parts: (path below the root, shard) of each file.
    """
    for path, part in parts:
        constants = part.mapping.items() if isinstance(part, Columns) else ()
        said = {name: source.value for name, source in constants if isinstance(source, Constant)}
        if not said:
            continue
        with suppress(SeqlakeError), closing(innermost(part).open()) as reader:  # other findings tell of damage
            physical = ability(reader, Physical)
            for name in [] if physical is None else [name for name in said if name in physical.schema.names]:
                other = next((one for batch in reader.batches([name]) for one in _others(batch, said[name])), None)
                if other is not None:
                    message = f"{name} is {other[0]!r} in the file, {said[name]!r} by its folder, which counts"
                    yield Finding(code="T516", severity="warning", message=message, location=path)


def _others(batch: pa.RecordBatch, value: object) -> Iterator[tuple[object]]:
    """The cells of a column that are not what its folder says; a NaN is one, whatever it is compared with."""
    column = batch.column(0)
    values = column if pa.types.is_nested(column.type) else column.unique()
    return ((one,) for one in values.to_pylist() if one != value and str(one) != str(value))


def _readable(path: str) -> dict[str, str | None]:
    columns = columns_of(path)
    for text in (*columns, *columns.values()):
        if text is not None and not is_unicode(text):
            raise SchemaMismatchError(
                f"The folder of {path!r} names a column, and its name is no UTF-8.", hint="Rename the folder."
            )
    return columns


def is_unicode(text: str, /) -> bool:
    """Whether a name of the machine's can be written in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _as_declared(texts: pa.Array, kind: str, *, name: str) -> pa.Array:
    try:
        wanted = pa.type_for_alias(kind)
    except ValueError:
        return texts  # a path of a video, a type of somebody else's: text
    try:
        return texts.cast(wanted)
    except pa.ArrowException as error:
        raise SchemaMismatchError(
            f"Column {name!r} is declared as {kind}, but a folder says otherwise: {error}",
            hint=f"Correct column_types[{name!r}] in {names.METADATA}, or the name of the folder.",
        ) from error


def _as_in_files(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return texts if is_text(kind) else texts.cast(kind)
    except pa.ArrowException:  # they contradict each other: the folder's value counts, as for all engines
        return _by_values(texts)


def _by_values(texts: pa.Array) -> pa.Array:
    values = [text for text in texts.to_pylist() if text is not None]
    if values and all(map(_is_integer, values)):
        return texts.cast(pa.int64())
    return texts.cast(pa.date32()) if values and all(map(_is_date, values)) else texts


def _is_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and str(int(text)) == text and -_INT64 <= int(text) < _INT64


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False

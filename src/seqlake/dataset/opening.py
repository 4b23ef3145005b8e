"""The ways in: open or create a dataset, look at somebody else's."""

from __future__ import annotations

import importlib
import os
import re
import sys
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, overload

from seqlake import media, plugins
from seqlake.abilities import (
    OfALake,
    OpensUntyped,
    Removable,
    ScansRows,
    WritesSamples,
    ability,
)
from seqlake.arguments import advice
from seqlake.dataset import in_place
from seqlake.dataset.reading import arranging, plain
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.selection import Selection
from seqlake.dataset.writing import conforming
from seqlake.errors import (
    CommitUnknownError,
    DatasetExistsError,
    DatasetNotFoundError,
    SchemaMismatchError,
    SeqlakeError,
)
from seqlake.files import locations, stores
from seqlake.files.allowed import with_rules
from seqlake.files.local import holds_files, remove_empty_folders
from seqlake.files.locations import is_local, local_path
from seqlake.files.room import room_in
from seqlake.files.stores import open_store
from seqlake.protocols import Readable, is_readable
from seqlake.shards.files import ParquetShard, innermost, verified_source
from seqlake.versions import shard_formats

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from seqlake.dataset.dataset import Dataset
    from seqlake.protocols import Version
    from seqlake.shards.files import Verify
    from seqlake.spec.schema import Schema


def import_pandas_first() -> None:
    """Import pandas, if it is installed, before pyarrow does.

    The first conversion that pyarrow makes in a process imports pandas, and drops every error raised meanwhile: for
    that second a Ctrl-C was taken and forgotten, and the work went on. Imported from here, it ends what it should end.
    """
    if "pandas" not in sys.modules:
        with suppress(Exception):  # one that is not there, or broken, is none of ours: pyarrow does without
            importlib.import_module("pandas")


METADATA = "mixtrain.json"
_DELTA = "_delta_log"


def open(  # noqa: A001 - the public name, as in tarfile.open
    location: object,
    /,
    *,
    version: Version | int | str | datetime | None = None,
    storage: Mapping[str, str] | None = None,
    allow_outside: bool = False,
    allow_hosts: Iterable[str] = (),
    allow_buckets: Iterable[str] | None = None,
    verify: Verify | None = None,
) -> Dataset:
    """Open a Mixtrain dataset, at its newest version or at an older one.

    A LeRobot folder opens, too, and HDF5 of robot episodes: read in place, in one version; what writes is refused.

    Args:
        location: A folder or its `mixtrain.json`, a path or URI (also `hf://`); a lake's address, `iceberg://catalog/ns.t`;
            or a lake's own table object.
        version: A `Version` of `ds.versions()`, its id, a name that `ds.tag` gave it, or a datetime: the last version
            that is not later.
        storage: Options of the object store, by obstore's names; by default the usual environment.
        allow_outside: References, links and the paths in a lake's metadata may leave the dataset's root; say so only
            of data that you trust.
        allow_hosts: Web servers that the dataset may name although they are on this machine or in a private network;
            the host of its root is one already.
        allow_buckets: The only buckets that it may name besides its own, as `"films"` or `"s3://films"`; None: any.
        verify: `"first"`: each page of signals that are read in place is compared with its checksum, and its rows
            with the offset index, when this process first touches it, whoever reads: loaders, streams, single cells.

    Raises:
        DatasetNotFoundError: Nothing is there, or it is no Mixtrain dataset; says what it is and what to do.
        InvalidMetadataError: Its `mixtrain.json` cannot be used.
        VersionNotFoundError: That version expired, or never was.

    Example:
        ```python
        ds = sl.open("data/pick-n-place")
        before = sl.open("data/pick-n-place", version=ds.versions()[0])
        ```
    """
    from seqlake.dataset.dataset import Dataset

    import_pandas_first()
    # Table objects of other packages pass as they are.
    place = place_of(location) if isinstance(location, (str, os.PathLike)) else location
    storage = with_rules(storage, hosts=allow_hosts, buckets=allow_buckets, outside=allow_outside)
    place = stores.pinned(place, storage=storage) if isinstance(place, str) else place
    table = _table(place, storage)
    if table is None and isinstance(place, str) and not lake_of(place):
        table = in_place.matching(place, storage)
    if table is None:
        raise not_a_dataset(place, storage)
    return Dataset(
        table,
        verified_source(table.snapshot(version), verify),
        location=place if isinstance(place, str) else type(place).__name__,
        storage=storage,
        allow_outside=allow_outside,
    )


@overload
def create(
    location: str | os.PathLike[str],
    schema: Schema | Mapping[str, Any],
    /,
    *,
    partition_by: Sequence[str] = ...,
    storage: Mapping[str, str] | None = ...,
    exist_ok: bool = ...,
    shards: str | None = ...,
    format: None = ...,
) -> Dataset: ...


@overload
def create(
    location: str | os.PathLike[str],
    schema: Mapping[str, Any],
    /,
    *,
    storage: Mapping[str, str] | None = ...,
    format: str,
    exist_ok: bool = ...,
    **options: Any,
) -> Any: ...


@overload
def create(
    *,
    out: str | os.PathLike[str],
    columns: Mapping[str, str],
    storage: Mapping[str, str] | None = ...,
    format: str,
    exist_ok: bool = ...,
    **options: Any,
) -> Any: ...


def create(
    location: str | os.PathLike[str] | None = None,
    schema: Schema | Mapping[str, Any] | None = None,
    /,
    *,
    partition_by: Sequence[str] = (),
    storage: Mapping[str, str] | None = None,
    exist_ok: bool = False,
    shards: str | None = None,
    format: str | None = None,  # noqa: A002 - the word of the field
    **options: Any,
) -> Dataset | Any:
    """Create an empty dataset and open it.

    Args:
        location: A folder (path or URI) that need not exist, or a lake's address.
        schema: The columns; `sequence_id` is added where it is missing. A dict is taken as `Schema(dict)`.
        partition_by: Columns that a lake partitions by; standalone datasets refuse them.
        storage: Options of the object store.
        exist_ok: A dataset of the same schema that is there already is opened instead; with `format`, the shards and
            the index of before are removed first, as its official writer does.
        shards: The format of its shards: `parquet`, or `lance` or `vortex` in a standalone dataset; by default what the
            schema's metadata say, else Parquet.
        format: Another format, as in `"mds"`: gives a writer of samples, and `schema` maps names to its encodings.
        **options: The format's own, as `compression="zstd:7"`; `out=` and `columns=` stand for the first two arguments.

    Returns:
        The `Dataset`; with `format`, the format's writer.

    Raises:
        DatasetExistsError: A dataset is there already.
        UnknownPluginError: No format of that name.
        SchemaMismatchError: The columns break a rule of the format, as a raw trajectory without `dim` does; with
            `exist_ok`: what is there has other columns.

    Example:
        ```python
        ds = sl.create("data/pick-n-place", sl.Schema({"action": sl.Trajectory(dim=12), "task": pa.string()}))
        ```
    """
    from seqlake.dataset.dataset import Dataset
    from seqlake.spec.schema import Schema as Columns

    import_pandas_first()
    if format is not None:
        if partition_by or shards:
            raise TypeError(f"partition_by and shards are for Mixtrain datasets, not for {format!r}.")
        return _writer(format, location, schema, storage, exist_ok, options)
    if options:
        raise TypeError(f"Unknown options: {', '.join(sorted(options))}; they belong to a `format`.")
    if location is None or schema is None:
        raise TypeError("create needs a location and a schema: sl.create(location, schema).")
    place = place_of(location)
    wanted = conforming.storable(schema if isinstance(schema, Columns) else Columns(schema))
    wanted = shard_formats.with_new(wanted, shards, lake=bool(lake_of(place)))
    there = None
    with suppress(DatasetNotFoundError):  # what a lake says of an address that it does not know
        there = _table(place, storage)
    if there is not None:
        if not exist_ok:
            raise DatasetExistsError(
                f"A dataset is at {place} already.", path=place, hint="Open it with sl.open, or pass exist_ok=True."
            )
        present = open(place, storage=storage)
        lake = ability(present.table, OfALake)  # which has wider types for some
        if problems := conforming.differences(wanted if lake is None else lake.held(wanted), present.schema):
            raise SchemaMismatchError(f"The dataset at {place} has other columns:\n" + "\n".join(problems))
        return present
    stores.refuse_pinned(place)
    conforming.refuse_broken(wanted)
    plug = plugins.load("tables", lake_of(place) or "standalone")
    try:
        with room_in(place):
            table = plug.create(place, wanted, partition_by=partition_by, storage=storage)
    except BaseException:
        if not lake_of(place) and locations.is_local(place):  # folders of a table that was not made
            remove_empty_folders(locations.local_path(place))
        raise
    return Dataset(table, table.snapshot(), location=place, storage=storage, allow_outside=False)


def _writer(
    name: str,
    location: str | os.PathLike[str] | None,
    columns: Any,
    storage: Mapping[str, str] | None,
    replace: bool,  # noqa: FBT001 - private
    options: dict[str, Any],
) -> Any:
    """The writer of samples of another format; `out` and `columns` are its official writers' words."""
    given = {"out": location, "columns": columns}
    for word, value in given.items():
        if (value is None) == (word not in options):
            raise TypeError(f"create for {name!r} needs {word!r} once: sl.create(out, columns, format={name!r}).")
        given[word] = options.pop(word, value)
    out: Any = given["out"]
    if isinstance(out, (tuple, list)):
        raise TypeError(f"out: expected one location, found {out!r}: give the remote one, shards go straight there.")
    plug = ability(plugins.load("formats", name), WritesSamples)
    if plug is None:
        raise SeqlakeError(f"The format {name!r} has no writer of samples.", hint="Convert a dataset into it instead.")
    if replace and options.setdefault("mode", "replace") != "replace":
        raise TypeError(f"exist_ok=True begins anew, and mode={options['mode']!r} does not: give one of them.")
    if storage is not None:
        options["storage"] = storage
    return plug.writer(place_of(out), given["columns"], **options)


def scan(
    source: object,
    /,
    *,
    format: str | None = None,  # noqa: A002 - the word of the field
    storage: Mapping[str, str] | None = None,
    allow_outside: bool = False,
    allow_hosts: Iterable[str] = (),
    allow_buckets: Iterable[str] | None = None,
    verify: Verify | bool | None = None,
    **options: Any,
) -> Selection:
    """Look at, query or train on data that is no Mixtrain dataset, as it is and without converting.

    Args:
        source: A Parquet file or folder of any engine, a lake's table, or a folder of another format (path or URI);
            rows in memory, as an Arrow, pandas or Polars table, a dict, a `datasets.Dataset`; or any `Readable`.
        format: A format's name, as in `"rlds"`; found out by default. `"parquet"` for plain Parquet.
        storage: Options of the object store.
        allow_outside: References, links and the paths in a lake's metadata may leave the folder; say so only of data
            that you trust.
        allow_hosts: As for `open`.
        allow_buckets: As for `open`.
        verify: As for `open`; of Parquet only. True and False are options of other formats, as of MDS.
        **options: Of rows that are time steps, in CSV, Parquet, memory or samples of another format: `sequence_id`,
            `steps`, `videos`, `fps`, `timestamps`, `keep_constant` and `map`, as `convert` takes them. Else the
            format's own. Plain Parquet takes `column_types={name: ColumnType}`; a dataset takes those of the format
            that it was converted from, where that has views of its rows, as l5kit has.

    Raises:
        DatasetNotFoundError: Nothing there can be read.
        SchemaMismatchError: Parquet files disagree about a column.
        UnknownPluginError: No format of that name.
        ValueError: `verify` of something that is not Parquet.

    Example:
        ```python
        sl.scan("exports/episodes").where("reward > 40")
        sl.scan("downloads/bridge_data_v2")
        ```
    """
    import_pandas_first()
    storage = with_rules(storage, hosts=allow_hosts, buckets=allow_buckets, outside=allow_outside)
    checks = {"verify": verify} if isinstance(verify, bool) else {}
    verify = None if isinstance(verify, bool) else verify
    asked = arranging.taken_from(options)
    readable, is_parquet = _scanned(source, format, storage, {**options, **checks}, asked)
    readable = arranging.arranged(readable, asked)
    if verify is not None and not is_parquet:
        raise ValueError(
            f"verify={verify!r} compares the pages of Parquet files, and this is something else: the documentation of "
            "its format says which checksums it has, and `seqlake validate` compares them."
        )
    return Selection(verified_source(readable, verify), storage=storage, allow_outside=allow_outside)


def _scanned(
    source: object,
    name: str | None,
    storage: Mapping[str, str] | None,
    options: Mapping[str, Any],
    asked: dict[str, Any],
) -> tuple[Any, bool]:
    """What `scan` looks at, and whether it is Parquet; what a format does itself is taken out of `asked`."""
    if not isinstance(source, (str, os.PathLike)):
        return _scanned_object(source, storage, options, asked)
    place = stores.pinned(place_of(source), storage=storage)
    given = {**options, **({} if storage is None else {"storage": storage})}
    if name not in {None, "parquet"}:
        return _scanned_as(str(name), place, given, asked), False
    table = _scanned_table(place, storage) if name is None and not options else None
    if table is not None:
        return table.snapshot(), True
    known = format_of(place, storage) if name is None else None
    if known is not None:
        return _scanned_as(known, place, given, asked), False
    if name is None and _inner(place):
        raise not_a_dataset(place, storage)
    foreign = sorted(options.keys() - {"column_types"})
    if foreign and name is None:
        if (table := _scanned_table(place, storage)) is not None:
            return _shown_by(table.snapshot(), options, what=f"The dataset at {place}"), False
        raise DatasetNotFoundError(
            f"Nothing at {place} is of a format that takes {foreign[0]!r}.{advice(foreign[0])}",
            path=place,
            hint="If you know the format, name it: scan(..., format=...) says what is wrong with it.",
        )
    return plain_files(place, storage, **options), True


def _scanned_object(
    source: object, storage: Mapping[str, str] | None, options: Mapping[str, Any], asked: dict[str, Any]
) -> tuple[Any, bool]:
    """The same of what is in memory, or open, or what another package holds."""
    if is_readable(source):
        shows = ability(source, Excerpt)
        readable: Readable = source if shows is None else shows
        if options:
            return _shown_by(readable, options, what="An open dataset"), False
        shards = [innermost(shard) for shard in readable.shards()]
        return readable, not shards or any(isinstance(shard, ParquetShard) for shard in shards)
    name = in_place.taking(source)
    if name is not None:
        return _scanned_as(name, source, {**options, **({} if storage is None else {"storage": storage})}, asked), False
    table = lake_table(source, storage)
    if table is None:
        plugins.check_options(plain.scan_table, options, what="A table in memory", advice=advice)
        return plain.scan_table(source, **options), False
    return table.snapshot(), True


def _shown_by(rows: Readable, options: Mapping[str, Any], *, what: str) -> Readable:
    """Rows of a dataset by options of the format that they were converted from."""
    for name in plugins.names("formats"):
        plug = ability(plugins.load("formats", name), ScansRows)
        shown_rows = None if plug is None else plug.scan_rows(rows, **options)
        if shown_rows is not None:
            return shown_rows
    option = min(options)
    raise TypeError(
        f"{what} takes no option {option!r}: it is read as it is, and was not converted from a format that has views "
        f"of its rows.{advice(option)}"
    )


def plain_files(place: str, storage: Mapping[str, str] | None, **options: Any) -> plain.PlainFiles:
    """The Parquet files of a place; where there is something of another engine instead, the error says so."""
    try:
        return plain.scan_files(place, storage=storage, **options)
    except DatasetNotFoundError:
        if shard_formats.name_of(place) != shard_formats.PARQUET or _has_lance_versions(place, storage):
            raise not_a_dataset(place, storage) from None
        raise


def _scanned_table(place: str, storage: Mapping[str, str] | None) -> Any:
    """The table at a place, as it is: a lake's before a folder's, since the lake knows which files count."""
    lake = lake_table(place, storage)
    return _table(place, storage) if lake is None else lake


def _scanned_as(name: str, place: object, options: Mapping[str, Any], asked: dict[str, Any]) -> Any:
    format_ = plugins.load("formats", name)
    takes = plugins.options_of(format_.scan)
    options = {**options, **{option: asked.pop(option) for option in [*asked] if option in takes}}
    plugins.check_options(format_.scan, options, what=f"The format {name!r}", advice=advice)
    return format_.scan(place, **options)


def lake_table(place: object, storage: Mapping[str, str] | None, /) -> Any:
    """The table of a lake at a place, with or without metadata; None where there is none."""
    lake = lake_of(place) if isinstance(place, str) else None
    if lake:
        return _opened_untyped(lake, place, storage)
    for name in plugins.names("tables"):
        if name != "standalone" and plugins.load("tables", name).matches(place):
            with suppress(DatasetNotFoundError):
                return _opened_untyped(name, place, storage)
    if isinstance(place, str) and has_delta_log(place, storage):
        return _opened_untyped("delta", f"delta:{place}", storage)
    return None


def _opened_untyped(name: str, place: object, storage: Mapping[str, str] | None) -> Any:
    plug = plugins.load("tables", name)
    untyped = ability(plug, OpensUntyped)
    return plug.open(place, storage=storage) if untyped is None else untyped.open_untyped(place, storage=storage)


def has_delta_log(place: str, storage: Mapping[str, str] | None, /) -> bool:
    """Whether a bucket's prefix is a Delta table, which nothing but a look tells."""
    if is_local(place) or place.startswith(("http://", "https://")):
        return False
    return next(open_store(place, storage=storage).list("_delta_log"), None) is not None


def _has_lance_versions(place: str, storage: Mapping[str, str] | None) -> bool:
    if place.startswith(("http://", "https://")):
        return False
    listed = stores.open_store(place, storage=storage).list("_versions")
    return any(path.endswith(".manifest") for path, _ in listed)


def refuse_occupied(location: str | os.PathLike[str], /, *, storage: Mapping[str, str] | None = None) -> None:
    """Raise `DatasetExistsError` unless a folder or prefix is new or empty; of a lake's address its catalog knows.

    Folders without files are empty: what a run that was killed may leave. A folder within a dataset's is not free:
    whoever reads that one's files would find those of both.
    """
    place = place_of(location)
    if lake_of(place):
        return
    stores.refuse_pinned(place)
    if locations.is_local(place):  # no link is followed to say whether a folder is free
        path = locations.local_path(place)
        outer = next((one for one in path.parents if any((one / name).exists() for name in (METADATA, _DELTA))), None)
        if outer is not None:
            raise DatasetExistsError(
                f"{place} lies in the dataset at {outer}.", path=place, hint="Give a location beside it."
            )
        names = sorted(one.name for one in path.iterdir())[:3] if path.is_dir() and holds_files(path) else []
        names = [path.name] if path.exists() and not path.is_dir() else names
    else:
        names = [path for path, _ in islice(stores.open_store(place, storage=storage).list(), 3)]
    if names:
        raise DatasetExistsError(
            f"The output must be new or empty; {place} holds {', '.join(names)}.",
            path=place,
            hint="Give another location, or remove what is there.",
        )


def place_of(location: str | os.PathLike[str], /) -> str:
    """The folder or address that is meant: absolute, without the name of its `mixtrain.json`."""
    text = os.fspath(location)
    if not isinstance(text, str) or "\0" in text:
        raise DatasetNotFoundError(f"{text!r} is no location: expected a path or an address as text.", path=str(text))
    text = text.removesuffix(f"/{METADATA}") if text.endswith(f"/{METADATA}") else text
    text = os.curdir if text == METADATA else text
    return text if lake_of(text) else locations.absolute(text)


def lake_of(place: str) -> str | None:
    """The lake whose prefix an address has: `delta:`, `iceberg://`, `uc://`, or the name of a plug."""
    prefix, colon, _ = place.partition(":")
    name = "delta" if prefix == "uc" else prefix
    return name if colon and name != "standalone" and name in plugins.names("tables") else None


def _table(place: object, storage: Mapping[str, str] | None) -> Any:
    """The table at a place; None where there is none."""
    lake = lake_of(place) if isinstance(place, str) else None
    if isinstance(place, str) and not lake and locations.is_local(place) and locations.local_path(place).is_file():
        return None
    # A folder with a lake's log may hold a mixtrain.json too: the lake counts, so standalone is asked last.
    names = [lake] if lake else sorted(plugins.names("tables"), key="standalone".__eq__)
    for name in names:
        plug = plugins.load("tables", name)
        if lake:
            return plug.open(place, storage=storage)
        # The last one that is asked looks when it opens, and says the same; on object stores others do so, too.
        if not isinstance(place, str):
            if plug.matches(place):
                return plug.open(place, storage=storage)
        elif name == "standalone" or plug.matches(place):
            with suppress(DatasetNotFoundError):
                return plug.open(place, storage=storage)
    return None


_BARE = re.compile(r"mixtrain\.json|_seqlake/(staged/.+|versions/0{20}\.json|checkpoints/.+)")


@contextmanager
def nothing_left(location: str | os.PathLike[str], /, *, storage: Mapping[str, str] | None) -> Iterator[None]:
    """Within the block a dataset is created at a new or empty place; after an error nothing of it is there.

    What holds rows, or a file of anybody else, is never touched. A lake's table without rows is dropped.
    """
    try:
        yield
    except (CommitUnknownError, DatasetExistsError):
        raise  # it may be there, or it is somebody else's
    except BaseException:
        remove_bare(location, storage=storage)
        raise


def remove_bare(location: str | os.PathLike[str], /, *, storage: Mapping[str, str] | None) -> None:
    """Remove a dataset that was being created; what holds rows, or a file of anybody else, stays."""
    place = place_of(location)
    if lake_of(place):
        _drop_if_empty(place, storage)
        return
    if is_local(place) and not local_path(place).is_dir():
        return
    store = open_store(place, storage=storage)
    paths = [path for path, _ in store.list()]
    if all(_BARE.fullmatch(path) for path in paths):
        store.delete(paths)
        if is_local(place):
            remove_empty_folders(local_path(place))


def _drop_if_empty(place: str, storage: Mapping[str, str] | None) -> None:
    """Drop a lake's table that has no rows."""
    with suppress(Exception):  # it was not made, or its lake does not answer: the error under way says more
        dataset = open(place, storage=storage)
        whole = ability(dataset.table, Removable)
        if whole is not None and not len(dataset):
            whole.drop()


def format_of(place: str, storage: Mapping[str, str] | None, /) -> str | None:
    """The other format that a place is of; None where none knows it."""
    known = ((name, plugins.load("formats", name)) for name in plugins.names("formats"))
    return next((name for name, plug in known if plug.matches(place, storage=storage)), None)


def not_a_dataset(place: object, storage: Mapping[str, str] | None, /) -> DatasetNotFoundError:
    """The error that says what is there instead, and what to do about it."""
    if not isinstance(place, str):
        return DatasetNotFoundError(f"Expected a path, a URI or a table object, found {type(place).__name__}.")
    try:
        there, hint = _what_is_there(place, storage)
    except DatasetNotFoundError as error:  # it says so itself
        return error
    except (OSError, SeqlakeError) as error:
        there, hint = f"and what is there cannot be listed ({str(error).partition(chr(10))[0]})", "Check the address."
    return DatasetNotFoundError(f"No Mixtrain dataset is at {place}: {there}.", path=place, hint=hint)


def _inner(place: str) -> list[str]:
    """The datasets in a folder of this machine."""
    if not locations.is_local(place):
        return []
    return sorted(path.parent.name for path in locations.local_path(place).glob(f"*/{METADATA}"))


def _what_is_there(place: str, storage: Mapping[str, str] | None) -> tuple[str, str]:
    create_it = "Create one with sl.create(location, schema)."
    local = locations.local_path(place) if locations.is_local(place) else None
    if local is not None and not local.exists():
        return "nothing is there", f"Check the path, or: {create_it}"
    if local is not None and local.is_file():
        if (engine := shard_formats.name_of(local.name)) != shard_formats.PARQUET:
            return f"it is one file, a shard of {engine}", (
                f"Open the dataset that it belongs to: the folder with {METADATA}. Where there is none, write "
                f'{{"mixtrain": "1.0"}} into {METADATA} in the folder of such files, and open that folder.'
            )
        known = media.hint(local.name, open_store(str(local.parent), storage=storage).blob(local.name))
        is_table = not known or "Parquet" in known
        return "it is one file", f"Read a Parquet file with sl.scan({place!r})." if is_table else known
    name = format_of(place, storage)
    if name is not None:
        return (
            f"it is a dataset of the format {name!r}",
            f"Read it with sl.scan({place!r}), or convert it first: sl.convert({place!r}, OUT), `seqlake convert`.",
        )
    if has_delta_log(place, storage):
        return "it is a Delta table", f"Open it with sl.open('delta:{place}')."
    if _has_lance_versions(place, storage):
        return "it is a Lance dataset", f"Open it with sl.open('lance:{place}')."
    if inner := _inner(place):
        return f"it is a folder of datasets ({', '.join(inner[:5])})", "Open one of them."
    _, files = plain.parquet_paths(place, storage=storage)
    if files:
        return (
            f"it holds Parquet ({len(files)} files) but no {METADATA}",
            f"Read it with sl.scan({place!r}), or make it a dataset with: seqlake init {place}",
        )
    if others := plain.other_shards(place, storage=storage):
        extras = f"pip install 'seqlake[{','.join(others)}]'"
        make_it = f'Make it a dataset: write {{"mixtrain": "1.0"}} into {METADATA} there.'
        return f"it holds {' and '.join(others)} shards but no {METADATA}", f"{make_it} Reading it needs: {extras}"
    return f"it has neither {METADATA} nor Parquet files", create_it

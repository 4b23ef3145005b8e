"""Where Iceberg tables are: addresses, catalogs, and the options of both.

| address | the catalog |
|---|---|
| `iceberg://NAME/namespace.table` | what pyiceberg's own configuration, or `storage=`, calls NAME |
| `iceberg:FOLDER/namespace.table` | SQLite in a local warehouse, made where it is missing |

The properties of a table are written by whoever made it. pyiceberg merges them into the options of its `FileIO`:
`py-io-impl` imports any module, `s3.endpoint` sends requests that your keys signed to any host. Here they do not count;
a REST catalog's answers do, which come from a server that you named, all but `py-io-impl`.

What pyiceberg reads and writes for a table is below the table's location: others may have written its metadata.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqlake import plugins
from seqlake.errors import DatasetNotFoundError, SeqlakeError, UnsafeReferenceError
from seqlake.files.allowed import OUTSIDE, refuse_bucket
from seqlake.files.credentials import Storage, for_pyiceberg, from_pyiceberg
from seqlake.files.locations import OBJECT_STORES, absolute, inside, is_local, local_path, redacted, scheme
from seqlake.files.references import contained
from seqlake.tables.iceberg.undoing import noting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO, InputFile, OutputFile
    from pyiceberg.table import Table

CATALOG_FILE = "catalog.db"
_WAIT = 60  # seconds that SQLite waits for the lock of another process
_NAMED = re.compile(r"iceberg://([^/]+)/(.+)")
# Properties of a catalog, as against options of an object store: dotted, or one of these.
_OF_CATALOG = {"uri", "warehouse", "type", "py-catalog-impl", "prefix", "credential", "oauth2-server-uri"}


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergAddress:
    """One table: how its catalog is made, and what it is called there; picklable.

    Attributes:
        catalog: Its name.
        identifier: Namespace and table.
        properties: What the catalog is made with; may hold secrets and is never printed.
        kind: The catalog's class, where a native table was given; None: as pyiceberg finds out.
        storage: obstore's options for reading and writing files.
    """

    catalog: str
    identifier: tuple[str, ...]
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    kind: type[Any] | None = field(default=None, repr=False)
    storage: Storage = field(default_factory=Storage)

    @property
    def name(self) -> str:
        """The address as text."""
        return f"iceberg://{self.catalog}/{'.'.join(self.identifier)}"

    def open_catalog(self) -> Catalog:
        """The catalog, connected anew.

        Raises:
            DatasetNotFoundError: pyiceberg knows no such catalog.
        """
        if self.kind is not None:
            opened: Catalog = self.kind(self.catalog, **self.properties)
            return guarded(opened, self.storage)
        loading = plugins.require("pyiceberg.catalog", extra="iceberg")
        try:
            loaded: Catalog = loading.load_catalog(self.catalog, **self.properties)
        except ValueError as error:
            raise DatasetNotFoundError(  # without the error's words, which may repeat a password
                f"{self.name}: pyiceberg has no catalog {self.catalog!r} ({type(error).__name__}).",
                path=self.name,
                hint="Name it in ~/.pyiceberg.yaml or PYICEBERG_CATALOG__..., give its 'uri' and 'warehouse' in "
                "storage=, or open a local warehouse: iceberg:FOLDER/namespace.table.",
            ) from None
        return guarded(loaded, self.storage)


def parse(text: str, storage: Mapping[str, str] | None = None, /) -> IcebergAddress:
    """What an address and `storage=` say.

    Args:
        text: `iceberg://catalog/namespace.table` or `iceberg:FOLDER/namespace.table`.
        storage: obstore's options, and properties of the catalog: `uri`, `warehouse`, `type` and names with a dot.

    Raises:
        ValueError: It is no such address.
    """
    given = dict(storage or {})
    catalog = {name: str(value) for name, value in given.items() if name in _OF_CATALOG or "." in name}
    options = Storage({name: value for name, value in given.items() if name not in catalog})
    named = _NAMED.fullmatch(text)
    if named is not None:
        name, table = named[1], named[2]
        warehouse = catalog.get("warehouse", "")
        if warehouse and "uri" not in catalog and "type" not in catalog and is_local(warehouse):
            catalog |= local_catalog(local_path(warehouse))
    else:
        folder, _, table = text.removeprefix("iceberg:").rpartition("/")
        if not folder or not is_local(folder):
            raise _not_an_address(text)
        name = "local"
        catalog = local_catalog(local_path(folder)) | catalog
    identifier = tuple(table.split("."))
    if len(identifier) < 2 or not all(identifier):
        raise _not_an_address(text)
    kind = scheme(catalog.get("warehouse", "s3://"))
    files = for_pyiceberg(options, scheme="s3" if kind == "file" else kind)
    return IcebergAddress(catalog=name, identifier=identifier, properties={**files, **catalog}, storage=options)


def local_catalog(folder: Path, /) -> dict[str, str]:
    """The properties of a catalog in SQLite that lies in its warehouse."""
    place = Path(os.path.abspath(folder.expanduser()))  # noqa: PTH100 - resolve() follows links
    return {
        "type": "sql",
        "uri": f"sqlite:///{place / CATALOG_FILE}?timeout={_WAIT}",
        "warehouse": f"file://{place}",  # as it is: pyiceberg takes `%20` for a name of three letters more
    }


def of_table(table: Table, storage: Mapping[str, str] | None = None, /) -> IcebergAddress:
    """The address of a table that somebody opened with pyiceberg."""
    catalog = table.catalog
    return IcebergAddress(
        catalog=str(catalog.name),
        identifier=tuple(table.name()),
        properties=dict(catalog.properties),
        kind=type(catalog),
        storage=Storage(storage),
    )


def file_options(address: IcebergAddress, table: Table, /) -> dict[str, str]:
    """Options of obstore for a table's files: the given ones, then what pyiceberg was told or handed out."""
    return {**from_pyiceberg(table.io.properties, scheme=scheme(table.location())), **address.storage}


def make_warehouse(address: IcebergAddress, /) -> None:
    """The folder of a local warehouse, before SQLite wants to put its file there."""
    uri = address.properties.get("uri", "")
    if uri.startswith("sqlite:///"):
        Path(uri.removeprefix("sqlite:///").partition("?")[0]).parent.mkdir(parents=True, exist_ok=True)


def is_missing(address: IcebergAddress, /) -> bool:
    """Whether a local catalog's file is not there: opening must not make one."""
    uri = address.properties.get("uri", "")
    path = uri.removeprefix("sqlite:///").partition("?")[0]
    return uri.startswith("sqlite:///") and bool(path) and path != ":memory:" and not Path(path).is_file()


def _not_an_address(text: str) -> ValueError:
    return ValueError(f"Expected iceberg://catalog/namespace.table or iceberg:FOLDER/namespace.table, found {text!r}.")


CODE = "py-io-impl"
_WRITE = "_write_metadata"  # private in pyiceberg
_OF_ROW = "_convert_orm_to_iceberg"  # the same, of catalogs in SQL: reads the metadata that a row names


def guarded(catalog: Catalog, storage: Mapping[str, str], /) -> Catalog:
    """A catalog whose tables read files as you said, and no others than they may name.

    Args:
        catalog: Just made; changed in place.
        storage: Options, with `allow_buckets`.
    """
    loading: Any = catalog
    loading._load_file_io = partial(_load, loading._load_file_io, catalog, storage)  # noqa: SLF001 - no public way in 0.12
    if hasattr(loading, _OF_ROW):
        setattr(loading, _OF_ROW, partial(_of_row, getattr(loading, _OF_ROW), catalog, storage))
    if hasattr(loading, _WRITE):  # one that writes metadata files itself
        setattr(loading, _WRITE, noting(getattr(loading, _WRITE)))
    return catalog


def _load(
    load: Callable[..., FileIO],
    catalog: Catalog,
    storage: Mapping[str, str],
    properties: Mapping[str, str] | None = None,
    location: str | None = None,
) -> FileIO:
    """As the catalog's own, without what the table says of itself."""
    known = {name: value for name, value in (properties or {}).items() if name != CODE and _is_rest(catalog)}
    opened: Any = load(known, location)
    home = catalog.properties.get("warehouse") or location or ""
    opened.new_input = partial(_judged, opened.new_input, home, storage)
    return opened  # type: ignore[no-any-return]  # set on an object, so typed as anything


def _of_row(read: Callable[[Any], Any], catalog: Catalog, storage: Mapping[str, str], row: Any) -> Any:
    """The table of a catalog's row, whose metadata pyiceberg would fetch from wherever the row says.

    Raises:
        UnsafeReferenceError: They may not be read there.
    """
    location = str(row.metadata_location or "")
    if location and not Storage(storage).allows(OUTSIDE):
        refuse_elsewhere(catalog.properties, f"The metadata of {row.table_name}", place_of(location))
    _refuse(location, catalog.properties.get("warehouse") or location, storage)
    try:
        return read(row)
    except OSError as error:
        if isinstance(error, FileNotFoundError) or scheme(location) == "file":
            raise
        raise SeqlakeError(
            f"The metadata of {row.table_name} cannot be read at {redacted(location)}: "
            f"{str(error).partition(chr(10))[0]}",
            path=redacted(location),
            hint="Look at credentials and network; the catalog says that they lie there.",
        ) from error


def _judged(read: Callable[[str], InputFile], home: str, storage: Mapping[str, str], location: str) -> InputFile:
    """A file that metadata name, where they may name it.

    Raises:
        UnsafeReferenceError: It is in a bucket that may not be read, or on a store of which nothing is known.
    """
    _refuse(location, home, storage)
    return read(location)


def _refuse(location: str, home: str, storage: Mapping[str, str]) -> None:
    kind = scheme(location)
    if kind not in {"file", *OBJECT_STORES, scheme(home)}:
        raise UnsafeReferenceError(
            f"{redacted(location)}: an Iceberg table names a file by the scheme {kind!r}.", path=redacted(location)
        )
    refuse_bucket(location, storage, named_by=home)


def _is_rest(catalog: Catalog) -> bool:
    module = sys.modules.get("pyiceberg.catalog.rest")
    return module is not None and isinstance(catalog, module.RestCatalog)


class FencedIO:
    """A `FileIO` that refuses paths of this machine outside a table: manifests, files of deletes, what is removed.

    Args:
        io: pyiceberg's.
        root: Where the table lies.
    """

    def __init__(self, io: Any, root: str, /) -> None:
        self._io = io
        self._root = root
        self.properties: Any = io.properties

    def new_input(self, location: str) -> InputFile:
        """A file to read."""
        file: InputFile = self._io.new_input(self._checked(location))
        return file

    def new_output(self, location: str) -> OutputFile:
        """A file to write."""
        file: OutputFile = self._io.new_output(self._checked(location))
        return file

    def delete(self, location: Any) -> None:
        """Remove a file that may be touched."""
        self._checked(location if isinstance(location, str) else location.location)
        self._io.delete(location)

    def _checked(self, location: str) -> str:
        contained(self._root, place_of(location))
        return location


def place_of(location: str, /) -> str:
    """Where a table lies; nothing is escaped in the locations that pyiceberg writes, on this machine or elsewhere."""
    return location.removeprefix("file://").rstrip("/") if location.startswith("file:///") else absolute(location)


def refuse_elsewhere(properties: Mapping[str, str], name: str, place: str, /) -> None:
    """Refuse a place of this machine that a catalog in a local file names, away from its warehouse.

    Whoever made the file chose that. What it places in a bucket, `refuse_bucket` judges.

    Args:
        properties: Of the catalog.
        name: Of what lies there, for the message.
        place: Of a table, or of its metadata.

    Raises:
        UnsafeReferenceError: It is elsewhere.
    """
    uri = properties.get("uri", "")
    if not uri.startswith("sqlite:///") or not is_local(place):
        return
    beside = os.path.dirname(os.path.abspath(uri.removeprefix("sqlite:///").partition("?")[0]))  # noqa: PTH100, PTH120 - strings
    warehouse = properties.get("warehouse", "")
    known = [beside, *([str(local_path(warehouse))] if warehouse and is_local(warehouse) else [])]
    if not any(inside(one, place) for one in known):
        raise UnsafeReferenceError(
            f"{name} lies at {place}, away from the catalog's own folder {known[-1]}.",
            path=place,
            hint="If you trust the catalog, open it with allow_outside=True.",
        )

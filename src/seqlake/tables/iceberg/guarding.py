"""What the bytes of a table may make pyiceberg do, which lets them choose the class that reads and where keys are sent.

A table's properties are written by whoever made the table. pyiceberg merges them into the options of its `FileIO`:
`py-io-impl` imports any module, `s3.endpoint` sends requests that your keys signed to any host. Here they do not count;
a REST catalog's answers do, which come from a server that you named, all but `py-io-impl`.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from seqlake.errors import SeqlakeError, UnsafeReferenceError
from seqlake.files.allowed import OUTSIDE, refuse_bucket
from seqlake.files.credentials import Storage
from seqlake.files.locations import OBJECT_STORES, redacted, scheme
from seqlake.tables.iceberg.fenced import place_of, refuse_elsewhere
from seqlake.tables.iceberg.undoing import noting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO, InputFile

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

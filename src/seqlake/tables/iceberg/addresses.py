"""Where Iceberg tables are: addresses, catalogs, and the options of both.

| address | the catalog |
|---|---|
| `iceberg://NAME/namespace.table` | what pyiceberg's own configuration, or `storage=`, calls NAME |
| `iceberg:FOLDER/namespace.table` | SQLite in a local warehouse, made where it is missing |
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqlake import plugins
from seqlake.errors import DatasetNotFoundError
from seqlake.files.credentials import Storage, for_pyiceberg, from_pyiceberg
from seqlake.files.locations import is_local, local_path, scheme
from seqlake.tables.iceberg.guarding import guarded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.catalog import Catalog
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

"""Where a DuckLake table is: `ducklake:` as in DuckDB's ATTACH, then the table's name.

```text
ducklake:lake.ducklake?table=episodes                    a DuckDB file
ducklake:sqlite:lake.sqlite?table=robots.episodes        an SQLite file, the table in the schema `robots`
ducklake:postgres:dbname=lake host=db?table=episodes     PostgreSQL, as libpq spells it
```
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

from seqlake.errors import UnsafeReferenceError
from seqlake.files.credentials import Storage
from seqlake.files.locations import absolute, inside, is_local

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "ducklake:"
_KINDS = {"sqlite": "sqlite", "postgres": "postgres", "postgresql": "postgres", "duckdb": "duckdb"}
_KNOWN = ("table", "data_path", "metadata_schema")
_SECRET = re.compile(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)|(://[^:/@]*:)[^@]*(?=@)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckLakeAddress:
    """One table of one DuckLake.

    Attributes:
        kind: What database the catalog is.
        target: Its absolute path, or the connection string of PostgreSQL.
        schema: The table's schema.
        table: The table.
        data_path: Where data files lie; None for what the catalog says. A moved lake is read with it.
        metadata_schema: The PostgreSQL schema that holds the catalog; None for the first of the search path.
    """

    kind: Literal["duckdb", "sqlite", "postgres"]
    target: str
    schema: str = "main"
    table: str
    data_path: str | None = None
    metadata_schema: str | None = None

    def __str__(self) -> str:
        kind = "" if self.kind == "duckdb" else f"{self.kind}:"
        return f"{PREFIX}{kind}{self.target}?table={self.schema}.{self.table}"

    @property
    def default_data_path(self) -> str | None:
        """Where DuckDB puts data files when nobody says: beside the catalog's file."""
        return None if self.kind == "postgres" else f"{self.target}.files"


def parse(location: str, /) -> DuckLakeAddress:
    """Read a location.

    Raises:
        ValueError: It names no table, has an option that is not known, or a password.

    Example:
        >>> parse("ducklake:sqlite:/data/lake.sqlite?table=robots.episodes").schema
        'robots'
    """
    rest, mark, query = location.removeprefix(PREFIX).rpartition("?")
    options = dict(_option(one, location) for one in query.split("&")) if mark else {}
    if not rest or not options.get("table"):
        raise ValueError(f"Expected ducklake:CATALOG?table=NAME, found {_SECRET.sub('...', location)!r}.")
    word, colon, target = rest.partition(":")
    kind = _KINDS.get(word.lower()) if colon else None
    if colon and kind is None and re.fullmatch(r"[a-z]{2,}", word):
        raise ValueError(f"A DuckLake catalog is a DuckDB file, sqlite: or postgres:, found {word}:.")
    if kind == "postgres" and _SECRET.search(rest):
        raise ValueError(
            "Leave the password out of the address, which is printed and kept: PostgreSQL takes it from PGPASSWORD or "
            "from ~/.pgpass."
        )
    if kind is None and rest.startswith(("dbname=", "host=")):
        raise ValueError("A catalog in PostgreSQL is written ducklake:postgres:dbname=... .")
    target = target if kind else rest
    schema, _, table = options["table"].rpartition(".")
    address = DuckLakeAddress(
        kind=kind or "duckdb",  # type: ignore[arg-type]  # one of the values of _KINDS
        target=target,
        schema=schema or "main",
        table=table,
        data_path=options.get("data_path") and absolute(options["data_path"]),
        metadata_schema=options.get("metadata_schema"),
    )
    return address if address.kind == "postgres" else replace(address, target=absolute(target))


def _option(text: str, location: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if name not in _KNOWN:
        hidden = _SECRET.sub("...", location)
        raise ValueError(f"Expected options among {', '.join(_KNOWN)} after the ?, found {name!r} in {hidden!r}.")
    return name, unquote(value)


def matches(location: object, /) -> bool:
    """Whether this is an address of a DuckLake table: it begins with `ducklake:`."""
    return isinstance(location, str | os.PathLike) and str(os.fspath(location)).startswith(PREFIX)


# ---- what is believed of a catalog: whoever sent it chose what stands in it, and where it says that its data lie
def refuse_elsewhere(address: DuckLakeAddress, data_path: str, /, *, storage: Mapping[str, str] | None) -> None:
    """Refuse to read data that a catalog in a file has elsewhere on this machine, where nobody else says so.

    Args:
        address: Of the table.
        data_path: Where its data lie, absolute.
        storage: Options, `allow_outside` among them.

    Raises:
        UnsafeReferenceError: They lie elsewhere.
    """
    if address.kind != "postgres" and is_local(data_path):
        refuse_unnamed(address, data_path, storage=storage)


def refuse_unnamed(address: DuckLakeAddress, data_path: str, /, *, storage: Mapping[str, str] | None) -> None:
    """Refuse to remove anything where only the catalog says that the data lie there, and it is not beside the catalog.

    Args:
        address: Of the table.
        data_path: Where its data lie, absolute.
        storage: Options, `allow_outside` among them.

    Raises:
        UnsafeReferenceError: Only the catalog says so.
    """
    if address.data_path is not None or Storage(storage).allows("allow_outside"):
        return
    if address.kind != "postgres" and inside(os.path.dirname(address.target), data_path):  # noqa: PTH120 - a string
        return
    raise UnsafeReferenceError(
        f"{address}: its data lie at {data_path}, as the catalog alone says, and not beside the catalog.",
        path=data_path,
        hint=f"If that is right, say so in the address: ...&data_path={data_path}",
    )

"""What is believed of a catalog: whoever sent it chose what stands in it, and where it says that its data lie."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from seqlake.errors import SeqlakeError, UnsafeReferenceError
from seqlake.files.credentials import Storage
from seqlake.files.locations import inside, is_local

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.tables.ducklake.address import Address
    from seqlake.tables.ducklake.catalogs import Session

TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"


def refuse_elsewhere(address: Address, data_path: str, /, *, storage: Mapping[str, str] | None) -> None:
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


def refuse_unnamed(address: Address, data_path: str, /, *, storage: Mapping[str, str] | None) -> None:
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


def refuse_views(session: Session, address: Address, /) -> None:
    """Refuse a catalog where one of DuckLake's tables is a view or has a trigger: SQL that its maker would run here.

    Raises:
        SeqlakeError: Names them.
    """
    if session.kind == "sqlite":
        sql = (
            "SELECT name FROM sqlite_master WHERE tbl_name LIKE 'ducklake%' AND (type IN ('view', 'trigger') OR "
            "(type = 'table' AND sql LIKE 'create virtual%'))"
        )
    else:
        sql = f"{TABLES} AND table_type <> 'BASE TABLE' AND lower(table_name) LIKE 'ducklake%'"
    found = sorted(name for (name,) in session.rows(sql))
    if found:
        raise SeqlakeError(
            f"{address}: expected plain tables, found views or triggers: {', '.join(map(repr, found[:5]))}.",
            path=address.target,
            hint="No DuckLake has these; do not use this catalog unless you know why it does.",
        )

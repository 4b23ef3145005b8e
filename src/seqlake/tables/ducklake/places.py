"""What is believed of a catalog: whoever sent it chose what stands in it, and where it says that its data lie."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from seqlake.errors import UnsafeReferenceError
from seqlake.files.credentials import Storage
from seqlake.files.locations import inside, is_local

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.tables.ducklake.address import DuckLakeAddress


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

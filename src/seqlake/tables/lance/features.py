"""What a Lance dataset may have that is not read, or not written, here: said before a value is shown or harmed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.errors import ReadOnlyError, UnsupportedVersionError
from seqlake.spec.schema import is_list

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEGACY = ("legacy", "0.1")
_OTHER_CELLS = {
    "arrow.json": "JSON, which its files hold in a binary form of Lance's",
    "lance.json": "JSON, which its files hold in a binary form of Lance's",
    "lance.blob.v2": "blobs of version 2, which may lie in files of their own",
}
_OTHER_PAGES = {
    "packed": "a packed struct",
    "lance-encoding:packed": "a packed struct",
    "lance-encoding:blob": "a blob column",
}


def refuse_unreadable(dataset: Any, /, *, root: str) -> None:
    """Raise for what cannot be read, files of other folders aside, which `fragments` refuses.

    Raises:
        UnsupportedVersionError: The storage format that came before 2.0, or columns whose files hold other cells.
    """
    version = str(dataset.data_storage_version)
    if version in _LEGACY:
        raise UnsupportedVersionError(
            f"{root} has Lance's storage format {version}; expected 2.0 or later.",
            path=root,
            hint="Write it anew: lance.write_dataset(lance.dataset(...), TARGET, data_storage_version='2.0').",
        )
    for name, field in _fields(dataset.schema):
        kind = field.type
        what = _OTHER_CELLS.get(kind.extension_name) if isinstance(kind, pa.BaseExtensionType) else None
        if what is not None:
            raise UnsupportedVersionError(
                f"{root}: column {name!r} has {what}; seqlake does not read these.",
                path=root,
                hint="Write the dataset anew with the column as text or bytes, or without it.",
            )


def refuse_unwritable(dataset: Any, /, *, root: str) -> None:
    """Raise for what cannot be written: Lance would take the pages of our shards for others, or not know our rows.

    Raises:
        ReadOnlyError: Rows with stable numbers, or columns whose pages are made another way.
    """
    if dataset.has_stable_row_ids:
        raise ReadOnlyError(
            f"{root} is only read by seqlake: its rows have stable numbers, which the package lance gives.",
            path=root,
            hint="Write with lance.write_dataset, or copy the dataset without enable_stable_row_ids.",
        )
    for name, field in _fields(dataset.schema):
        for key, value in (field.metadata or {}).items():
            what = _OTHER_PAGES.get(key.decode(errors="replace"))
            if what is not None and value.lower() == b"true":
                raise ReadOnlyError(
                    f"{root} is only read by seqlake: column {name!r} is {what}, whose pages the package lance makes.",
                    path=root,
                    hint="Write with lance.write_dataset, or copy the dataset without that field's metadata.",
                )


def _fields(schema: Any) -> Iterator[tuple[str, pa.Field]]:
    """(name of the column, field) of all fields, those inside others too."""
    for field in schema:
        yield from ((field.name, one) for one in _inside(field))


def _inside(field: pa.Field) -> Iterator[pa.Field]:
    yield field
    kind = field.type
    children = list(kind) if pa.types.is_struct(kind) else [kind.value_field] if is_list(kind) else []
    for child in children:
        yield from _inside(child)

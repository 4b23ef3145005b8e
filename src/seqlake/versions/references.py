"""Which files the rows of a shard may name: every text in its columns."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.protocols import Copied
from seqlake.spec.findings import Finding
from seqlake.spec.schema import is_list, is_text
from seqlake.versions import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from seqlake.protocols import Shard, Store
    from seqlake.spec.schema import Schema
    from seqlake.versions.context import TableContext
    from seqlake.versions.indexes import IndexFile
    from seqlake.versions.state import TableFile


def file_columns(shard: Shard, schema: bytes, /) -> set[str]:
    """Every text in the columns of a shard that may name files: strings, lists of them, structs with them."""
    declared = pa.ipc.read_schema(pa.py_buffer(schema))
    reader = shard.open()
    texts: set[str] = set()
    try:
        for field in declared:
            if field.name != "sequence_id" and _holds_text(field.type):
                for batch in reader.batches([field.name]):
                    texts.update(_texts(batch.column(0)))
    finally:
        reader.close()
    return texts


def own_texts(shard: Shard, /) -> set[str]:
    """Every text in the columns that the file itself has, whatever a version calls them."""
    reader = shard.open()
    try:
        held: pa.Schema = reader.schema  # type: ignore[attr-defined]  # whatever lies in a table has one
        return file_columns(shard, bytes(held.serialize()))
    finally:
        reader.close()


def named_files(context: TableContext, file: TableFile, /) -> Iterator[Copied]:
    """Our copied-in files that the rows of a shard name, as they lie there now; those that are gone are left out.

    By the columns that the file holds, not those of a version: others, or none, may name the files.
    """
    for text in sorted(own_texts(context.bare(file))):
        if names.copied_owner(text) is not None:
            with suppress(OSError):
                yield Copied(path=text, size=context.store.blob(text).size, sha256="")


def findings(store: Store, known: Mapping[str, IndexFile], /) -> Iterator[Finding]:
    """T510: copied-in files that are gone or have another size.

    Args:
        store: The table's.
        known: Shard -> the index file that knows it.
    """
    for name, rows in known.items():
        for file in rows.files(name):
            try:
                size = store.blob(file.path).size
                why = "" if size == file.size else f"expected {file.size} bytes, found {size}"
            except FileNotFoundError:
                why = "copied in, and gone"
            if why:
                yield Finding(code="T510", severity="error", message=why, location=file.path)


def carried_files(
    context: TableContext, leaving: Sequence[TableFile], added: Iterable[TableFile], /, *, schema: Schema
) -> dict[str, list[Copied]]:
    """New shard -> the copied-in files of the shards that leave which its rows still name.

    Without this a vacuum would take the files of rows that were only rewritten.

    Args:
        context: The table.
        leaving: The shards that leave.
        added: The new shards.
        schema: Of the version that is made.
    """
    files = _copied_by(context, leaving)
    if not files:
        return {}
    carried: dict[str, list[Copied]] = {}
    for file in added:
        texts = file_columns(context.logical(file, schema), bytes(schema.arrow.serialize()))
        carried[file.name] = [files[text] for text in sorted(texts & files.keys())]
    return carried


def _copied_by(context: TableContext, leaving: Sequence[TableFile]) -> dict[str, Copied]:
    """The copied-in files that these shards name: from the index, or read from the shards where it is no help."""
    if not leaving:
        return {}
    known = context.index.find(leaving, unsealed=True)
    files = {file.path: file for name, rows in known.items() for file in rows.files(name)}
    sound = context.index.find(leaving)
    for shard in leaving:
        for seen in named_files(context, shard) if shard.name not in sound else ():
            kept = files.get(seen.path)  # what was kept of it holds if its size is so
            files[seen.path] = kept if kept is not None and kept.size == seen.size else seen
    return files


def _holds_text(kind: pa.DataType) -> bool:
    if is_list(kind):
        return _holds_text(kind.value_type)
    if pa.types.is_struct(kind):
        return any(_holds_text(kind.field(at).type) for at in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _holds_text(kind.key_type) or _holds_text(kind.item_type)
    return is_text(kind)


def _texts(array: Any) -> Iterator[str]:
    if pa.types.is_struct(array.type):
        for at in range(array.type.num_fields):
            yield from _texts(array.field(at))
    elif is_list(array.type):
        yield from _texts(array.flatten())
    elif pa.types.is_map(array.type):
        yield from _texts(array.keys)
        yield from _texts(array.items)
    elif pa.types.is_dictionary(array.type):
        yield from _texts(array.dictionary)
    elif _holds_text(array.type):
        yield from (text for text in array.to_pylist() if text is not None)

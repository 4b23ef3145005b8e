"""Writes scenes as a store of l5kit: Arrow rows become structured rows, staged in parts; one commit makes the store."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import ValidationError
from seqlake.files.appearing import STAGED, clear, sweep
from seqlake.files.locations import absolute
from seqlake.files.stores import exists, open_store, read_all
from seqlake.formats._zarr.places import ROOT
from seqlake.formats.l5kit.arrays import joined
from seqlake.formats.l5kit.converted import mapping_of, structured
from seqlake.formats.l5kit.layout import CHILDREN
from seqlake.formats.l5kit.mapping import KEY, SCENE, Mapping, kind_of
from seqlake.formats.l5kit.store import FRAME_INTERVAL, FRAMES, MASKS, SCENES
from seqlake.formats.l5kit.writing import Appender, StoreWriter, publish, staged_store
from seqlake.receipts import by_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from seqlake.formats._zarr.metadata import ArrayMetadata
    from seqlake.spec.schema import Schema


def create(
    location: str,
    schema: Schema,
    /,
    *,
    chunks: int = 0,
    compressor: Any = "as it was",
    storage: dict[str, str] | None = None,
) -> L5kitSink:
    """Write scenes as a store of l5kit.

    Args:
        location: A new folder or URI.
        schema: Of rows of the view of scenes, whose metadata say how they were arrays.
        chunks: Rows a chunk; 0: as they were.
        compressor: The settings of another codec, as numcodecs names them; None stores plain bytes.
        storage: Options of the object store.

    Raises:
        SchemaMismatchError: Rows that are no scenes of l5kit, or lack columns of it.

    Example:
        ```python
        sl.convert("data/drives", "drives.zarr", to="l5kit")
        ```
    """
    mapping = mapping_of(schema)
    arrays = dict(mapping.arrays)
    for name, metadata in arrays.items():
        if chunks:
            arrays[name] = replace(arrays[name], chunks=(chunks, *metadata.chunks[1:]), text="")
        if compressor != "as it was":
            arrays[name] = replace(arrays[name], compressor=compressor, text="")
    return L5kitSink(location=absolute(location), mapping=mapping, arrays=arrays, storage=storage)


def dropped(schema: Schema, /) -> dict[str, str]:
    """Columns that a store of l5kit has no place for, with the reason."""
    value = schema.metadata.extra.get(KEY)
    if value is None:
        return {}
    mapping = Mapping.from_json(value)
    known = {*mapping.schema().names, schema.id, SCENE}
    return {name: "l5kit has no field for it" for name in schema.names if name not in known}


@dataclass(frozen=True, slots=True, kw_only=True)
class L5kitSink:
    """A `Sink`; picklable.

    Attributes:
        location: The store to be.
        mapping: How the columns were arrays.
        arrays: How the arrays are written.
        storage: Options of the object store; never printed.
    """

    location: str
    mapping: Mapping
    arrays: dict[str, ArrayMetadata]
    storage: dict[str, str] | None = field(default=None, repr=False)

    def write(self, part: int, rows: Iterator[pa.RecordBatch], /, *, root: str) -> dict[str, Any]:  # noqa: ARG002 - no files
        """Stage the rows of one part; the same part again replaces itself.

        Returns:
            How many rows of each array, and where they lay.

        Raises:
            ValidationError: Cells of one scene that do not fit each other.
        """
        arrays_of_part: dict[str, list[NDArray[Any]]] = {name: [] for name in self.arrays}
        runs: dict[str, list[list[int]]] = {}
        for batch in rows:
            arrays, pairs_of_batch = structured(batch, self.mapping)
            self._shift(arrays, arrays_of_part)
            for name, values in arrays.items():
                arrays_of_part[name].append(values)
            for name, pairs in pairs_of_batch.items():
                runs.setdefault(name, []).extend(pairs)
        store = open_store(self.location, storage=self.storage)
        counts = {}
        for name, parts in arrays_of_part.items():
            metadata = self.arrays[name]
            whole = joined(parts, metadata)
            counts[name] = len(whole)
            store.put(_part(part, name), whole.tobytes())
        return {"part": part, "counts": counts, "runs": runs}

    def _shift(self, arrays: dict[str, NDArray[Any]], before: dict[str, list[NDArray[Any]]]) -> None:
        """Count the intervals of a batch from the first batch of its part on."""
        if self.mapping.tiles:
            self._move(arrays, {name: sum(map(len, parts)) for name, parts in before.items()})

    def _move(self, arrays: dict[str, NDArray[Any]], by: dict[str, int]) -> None:
        if SCENES in arrays:
            arrays[SCENES][FRAME_INTERVAL] += by[FRAMES]
        for child in self.mapping.children:
            if FRAMES in arrays:
                arrays[FRAMES][CHILDREN[child]] += by[child]

    def commit(self, receipts: Sequence[object], /) -> None:
        """Make the store of all parts, in the order of their numbers; nobody sees it before it is whole.

        Raises:
            ValidationError: Rows of a store whose intervals do not tile are missing.
        """
        store = open_store(self.location, storage=self.storage)
        if not exists(store, ROOT):  # else it was made, and only the parts are left to remove
            sweep(store, self.location)
            self._make(by_part(receipts))
        self.discard()

    def _make(self, ordered: Sequence[dict[str, Any]]) -> None:
        totals = {name: sum(one["counts"][name] for one in ordered) for name in self.arrays}
        if not self.mapping.tiles:
            totals = {name: self.mapping.arrays[name].shape[0] for name in self.arrays}
        sized = {name: metadata.resized(totals[name]) for name, metadata in self.arrays.items()}
        writer = staged_store(self.location, sized, storage=self.storage)
        for name in self.arrays:
            if self.mapping.tiles:
                self._tile(writer, name, ordered)
            else:
                writer.appended(name, [self._scattered(name, totals[name], ordered)])
        publish(writer, self.mapping.attributes)

    def _tile(self, writer: StoreWriter, name: str, receipts: Sequence[dict[str, Any]]) -> None:
        """One array, part after part."""
        appender = Appender(writer, name)
        before = dict.fromkeys(self.arrays, 0)
        for receipt in receipts:
            rows = self._staged(name, receipt)
            self._move({name: rows}, before)
            appender.add(rows)
            for one, count in receipt["counts"].items():
                before[one] += count
        appender.close()

    def _scattered(self, name: str, total: int, receipts: Sequence[dict[str, Any]]) -> NDArray[Any]:
        """One array whose rows go where they came from."""
        metadata = self.arrays[name]
        out = np.zeros((total, *metadata.shape[1:]), metadata.dtype)
        there = np.zeros(total, np.bool_)
        for receipt in receipts:
            rows, at = self._staged(name, receipt), 0
            for first, stop in receipt["runs"].get(kind_of(name), []):
                out[first:stop] = rows[at : at + stop - first]
                there[first:stop] = True
                at += stop - first
        if not there.all():
            raise ValidationError(
                f"{int((~there).sum())} of {total} rows of {name!r} are missing.",
                hint="The intervals of this store do not tile, so all of its rows have to be written together, those "
                "with scene_index -1 too.",
            )
        return out

    def _staged(self, name: str, receipt: dict[str, Any]) -> NDArray[Any]:
        data = read_all(open_store(self.location, storage=self.storage).blob(_part(receipt["part"], name)))
        metadata = self.arrays[name]
        return np.frombuffer(bytearray(data), metadata.dtype).reshape(receipt["counts"][name], *metadata.shape[1:])

    def discard(self) -> None:
        """Remove every part that was staged, and what a commit that failed had written."""
        store = open_store(self.location, storage=self.storage)
        written = () if exists(store, ROOT) else tuple(f"{name}/" for name in (*self.arrays, MASKS))
        clear(store, self.location, written)


def _part(part: int, name: str) -> str:
    return f"{STAGED}/{part}/{name.replace('/', '.')}"

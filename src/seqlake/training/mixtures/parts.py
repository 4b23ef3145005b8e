"""Batches put together from parts, and taken apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import SchemaMismatchError
from seqlake.windows.spec import Whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.training.samples import Batch


def together(parts: Sequence[tuple[Ints, Batch]], window: Any) -> Batch:
    """One batch from parts of it.

    Args:
        parts: Positions in the batch, and the values there.
        window: Says which columns are whole sequences.

    Raises:
        SchemaMismatchError: Frames of unlike sizes.
    """
    if len(parts) == 1:
        return parts[0][1]  # the positions are all there are, in order
    size = sum(len(places) for places, _ in parts)
    batch: Batch = {}
    packed = {f"{name}_offsets": name for name in window.columns} if isinstance(window, Whole) and window.packed else {}
    for name in parts[0][1]:
        if name in packed or f"{name.removesuffix('_mask')}_offsets" in parts[0][1]:
            continue
        values = [(places, part[name]) for places, part in parts]
        if isinstance(values[0][1], list):
            batch[name] = _listed(values, size)
            continue
        batch[name] = scattered(values, size, name=name, whole=isinstance(window, Whole))
    for offsets, name in packed.items():
        if offsets in parts[0][1]:
            for each in {name, f"{name}_mask"} & parts[0][1].keys():
                batch[each], batch[offsets] = _packed(
                    [(places, part[each], part[offsets]) for places, part in parts], size
                )
    return batch


def _listed(parts: Sequence[tuple[Ints, list[Any]]], size: int) -> list[Any]:
    """[B] Python values at their positions."""
    listed: list[Any] = [None] * size
    for places, values in parts:
        for place, value in zip(places.tolist(), values, strict=True):
            listed[place] = value
    return listed


def scattered(parts: Sequence[tuple[Ints, NDArray[Any]]], size: int, *, name: str, whole: bool = False) -> NDArray[Any]:
    """[B, ...] values at their positions; whole sequences are padded to the longest of all."""
    shapes = {values.shape[1:] for _, values in parts}
    kinds = {values.dtype for _, values in parts}
    shape = shapes.pop()
    dtype = kinds.pop() if len(kinds) == 1 else np.dtype(object)
    if shapes and not (whole and {one[1:] for one in shapes} == {shape[1:]}):
        raise SchemaMismatchError(
            f"Column {name!r} is {shape} in one source of the mixture and {shapes.pop()} in another.",
            hint="Frames can be scaled to one size: loader.frames(size=(height, width)).",
        )
    if shapes:
        shape = (max(values.shape[1] for _, values in parts), *shape[1:])
    out = np.zeros((size, *shape), dtype) if shapes else np.empty((size, *shape), dtype)
    for places, values in parts:
        if shapes:
            out[places, : values.shape[1]] = values
        else:
            out[places] = values
    return out


def _packed(parts: Sequence[tuple[Ints, NDArray[Any], Ints]], size: int) -> tuple[NDArray[Any], Ints]:
    """Whole sequences end to end in the order of the batch, with their cumulative lengths."""
    pieces: list[NDArray[Any]] = [np.empty(0)] * size
    for places, values, offsets in parts:
        for place, piece in zip(places.tolist(), np.split(values, offsets[1:-1]), strict=True):
            pieces[place] = piece
    ends = np.cumsum([0, *(len(piece) for piece in pieces)], dtype=np.int64)
    return np.concatenate(pieces), ends


def exchanged(batch: Batch, places: Ints, others: Batch, window: Whole, /) -> Batch:
    """A batch of whole sequences with others in some places, whatever their lengths.

    Args:
        batch: The batch.
        places: [m] positions in it, ascending.
        others: As many sequences.
        window: Of both.
    """
    kept = np.setdiff1d(np.arange(len(batch["start"])), places)
    if not len(kept):
        return others
    columns = {name: batch[name] for name in others}
    return together([(kept, chosen(columns, kept, window)), (places, others)], window)


def chosen(batch: Batch, which: Ints, window: Whole, /) -> Batch:
    """Some sequences of a batch of whole ones."""
    some: Batch = {}
    for name, values in batch.items():
        offsets = f"{name.removesuffix('_mask')}_offsets" if window.packed else ""
        if offsets in batch:
            pieces = np.split(values, batch[offsets][1:-1])
            some[name] = np.concatenate([values[:0], *(pieces[number] for number in which.tolist())])
        elif window.packed and name.endswith("_offsets") and name.removesuffix("_offsets") in batch:
            some[name] = np.concatenate([[0], np.cumsum(np.diff(values)[which])])
        else:
            some[name] = values[which]
    return some

"""Where the cells of each row lie in memory, learned shard by shard as the order comes to them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import DamagedTableError, SchemaMismatchError
from seqlake.training.decoded import flatten, single_values

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from seqlake.protocols import Flat, Ints, Proof
    from seqlake.training.gather import Memory


@dataclass(frozen=True, slots=True)
class Layout:
    """How the steps of a cell follow each other; shards may differ."""

    stored: np.dtype[Any]
    shape: tuple[int, ...]
    stride: int

    @property
    def width(self) -> int:
        """Bytes of one step."""
        return prod(self.shape) * self.stored.itemsize


class Cells:
    """A temporal column: for each row, the address of its first step and its number of steps.

    Attributes:
        address: [rows] absolute address of step 0.
        steps: [rows] T, 0 for null cells and for rows whose shard is not open yet.
        low, high: [shards] the memory that each shard's addresses must stay in.
        held: [shards] bytes that were decoded for each.
        layout: [shards] which of `layouts` a shard has.
        layouts: Every layout seen; nearly always one.
        proofs: Shard -> what is still to compare its pages before they are read; only with `verify="first"`.
    """

    def __init__(
        self, name: str, *, rows: int, shards: int, dtype: np.dtype[Any], shape: tuple[int, ...] | None
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.address = np.zeros(rows, dtype=np.int64)
        self.steps = np.zeros(rows, dtype=np.int64)
        self.low = np.zeros(shards, dtype=np.int64)
        self.high = np.zeros(shards, dtype=np.int64)
        self.held = np.zeros(shards, dtype=np.int64)
        self.layout = np.full(shards, -1, dtype=np.int64)
        self.layouts: list[Layout] = []
        self.proofs: dict[int, Proof] = {}

    def place(self, shard: int, rows: slice, flat: Flat, memory: Memory) -> None:
        """Take in a shard whose steps lie where `flat` says.

        Raises:
            DamagedTableError: It names bytes outside the shard.
        """
        view = flat.blob.view()
        assert view is not None
        layout = Layout(flat.stored, flat.shape, flat.stride)
        steps = np.maximum(flat.steps, 0)
        ends = flat.start + np.where(steps > 0, (steps - 1) * flat.stride + layout.width, 0)
        if len(steps) and bool(((steps > 0) & ((flat.start < 0) | (ends > view.nbytes))).any()):
            raise DamagedTableError(
                f"Column {self.name!r} of {flat.blob.location!r} is said to lie outside its {view.nbytes} bytes.",
                path=flat.blob.location,
                hint="Run `seqlake validate`; `seqlake repack` writes the shard anew.",
            )
        self._agree(layout, flat.blob.location)
        low, high = memory.hold(view)
        self._set(shard, rows, layout, low + flat.start, steps)
        self.low[shard], self.high[shard] = low, high
        self.held[shard] = 0
        if flat.proof is not None:
            self.proofs[shard] = flat.proof

    def prove(self, shard: int, rows: Ints) -> None:
        """Compare the pages of some rows of a shard, as long as there are any that were not.

        Raises:
            CorruptFileError: One is not what was written.
        """
        proof = self.proofs.get(shard)
        if proof is None:
            return
        proof.touch(self.address[rows[self.steps[rows] > 0]] - self.low[shard])
        if proof.done:
            del self.proofs[shard]

    def forget(self, shard: int) -> None:
        """Its memory is gone."""
        self.low[shard] = self.high[shard] = self.held[shard] = 0
        self.proofs.pop(shard, None)

    def count(self, shard: int, rows: slice, flat: Flat) -> None:
        """Take in how many steps there are in a shard whose windows are read by range: none of them is in memory."""
        layout = Layout(flat.stored, flat.shape, flat.stride)
        self._agree(layout, flat.blob.location)
        self._set(shard, rows, layout, np.zeros_like(flat.start), np.maximum(flat.steps, 0))

    def keep(self, shard: int, rows: slice, values: NDArray[Any], steps: Ints, memory: Memory) -> None:
        """Take in a shard that was decoded: its steps one after the other, C-contiguous."""
        shape = values.shape[1:]
        layout = Layout(values.dtype, shape, prod(shape) * values.itemsize)
        self._agree(layout, "a decoded shard")
        steps = np.maximum(steps, 0)
        low, high = memory.hold(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        starts = np.cumsum(steps) - steps
        self._set(shard, rows, layout, low + starts * layout.stride, steps)
        self.low[shard], self.high[shard] = low, high
        self.held[shard] = values.nbytes

    def _set(self, shard: int, rows: slice, layout: Layout, address: Ints, steps: Ints) -> None:
        if layout not in self.layouts:
            self.layouts.append(layout)
        self.layout[shard] = self.layouts.index(layout)
        self.address[rows] = address
        self.steps[rows] = steps

    def _agree(self, layout: Layout, where: str) -> None:
        """All shards give steps of one shape; the first decides where the schema does not."""
        if self.shape is None:
            self.shape = layout.shape
        if prod(layout.shape) != prod(self.shape):
            raise SchemaMismatchError(
                f"Column {self.name!r}: steps have shape {self.shape}, but {layout.shape} in {where}.",
                hint="Declare `dim`, and run `seqlake validate` to see which sequences differ.",
            )


class Values:
    """A column with one value a row."""

    def __init__(self, name: str, *, rows: int) -> None:
        self.name = name
        self.present = np.zeros(rows, dtype=np.bool_)
        self.values: NDArray[Any] | None = None

    def keep(self, rows: slice, column: pa.Array, *, vector: bool) -> None:
        """Take in the values of one shard.

        Raises:
            SchemaMismatchError: Vectors of unlike lengths.
        """
        if vector:
            found, self.present[rows] = self._vectors(column)
        else:
            found, self.present[rows] = single_values(column)
        if self.values is None or not self.values.size:
            fresh = np.empty if found.dtype == object else np.zeros  # rows that cannot be read stay None, or 0
            self.values = fresh((len(self.present), *found.shape[1:]), dtype=found.dtype)
        if found.shape[1:] != self.values.shape[1:]:
            raise SchemaMismatchError(
                f"Column {self.name!r} has vectors of {self.values.shape[1:]} and {found.shape[1:]} numbers."
            )
        self.values[rows] = found

    def _vectors(self, column: pa.Array) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        numbers, lengths = flatten(column, name=self.name)
        present = lengths >= 0
        widths = np.unique(lengths[present])
        if len(widths) > 1:
            raise SchemaMismatchError(f"Column {self.name!r} has vectors of {widths[0]} and {widths[-1]} numbers.")
        width = int(widths[0]) if len(widths) else 0 if self.values is None else self.values.shape[1]
        vectors = np.zeros((len(lengths), width), dtype=numbers.dtype)
        vectors[present] = numbers.reshape(-1, width) if width else vectors[present]
        return vectors, present

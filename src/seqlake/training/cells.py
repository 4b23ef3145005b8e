"""Where the cells of each row lie in memory, learned shard by shard as the order comes to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.errors import DamagedTableError, SchemaMismatchError
from seqlake.shards.cells import step_shape
from seqlake.spec.schema import dtype_of, is_list
from seqlake.windows.assemble import step_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Flat, Ints, Proof, ShardReader
    from seqlake.spec.schema import Schema
    from seqlake.training.bad_data.damage import Harm
    from seqlake.training.gather import Memory
    from seqlake.training.survey import WindowSurvey


@dataclass(frozen=True, slots=True)
class StepLayout:
    """How the steps of a cell follow each other; shards may differ."""

    stored: np.dtype[Any]
    shape: tuple[int, ...]
    stride: int

    @property
    def width(self) -> int:
        """Bytes of one step."""
        return prod(self.shape) * self.stored.itemsize


class StepColumn:
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
        self.address: Ints = np.zeros(rows, dtype=np.int64)
        self.steps: Ints = np.zeros(rows, dtype=np.int64)
        self.low: Ints = np.zeros(shards, dtype=np.int64)
        self.high: Ints = np.zeros(shards, dtype=np.int64)
        self.held: Ints = np.zeros(shards, dtype=np.int64)
        self.layout: Ints = np.full(shards, -1, dtype=np.int64)
        self.layouts: list[StepLayout] = []
        self.proofs: dict[int, Proof] = {}

    def place(self, shard: int, rows: slice, flat: Flat, memory: Memory) -> None:
        """Take in a shard whose steps lie where `flat` says.

        Raises:
            DamagedTableError: It names bytes outside the shard.
        """
        view = flat.blob.view()
        assert view is not None
        layout = StepLayout(flat.stored, flat.shape, flat.stride)
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
        layout = StepLayout(flat.stored, flat.shape, flat.stride)
        self._agree(layout, flat.blob.location)
        self._set(shard, rows, layout, np.zeros_like(flat.start), np.maximum(flat.steps, 0))

    def count_alone(self, shard: int, rows: slice, steps: Ints) -> None:
        """Take in how many steps there are in a shard of which windows are read step by step: none is in memory."""
        shape = self.shape or ()
        layout = StepLayout(self.dtype, shape, prod(shape) * self.dtype.itemsize)
        self._set(shard, rows, layout, np.zeros(len(steps), np.int64), np.maximum(steps, 0))

    def keep(self, shard: int, rows: slice, values: NDArray[Any], steps: Ints, memory: Memory) -> None:
        """Take in a shard that was decoded: its steps one after the other, C-contiguous."""
        shape = values.shape[1:]
        layout = StepLayout(values.dtype, shape, prod(shape) * values.itemsize)
        self._agree(layout, "a decoded shard")
        steps = np.maximum(steps, 0)
        low, high = memory.hold(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        starts = np.cumsum(steps) - steps
        self._set(shard, rows, layout, low + starts * layout.stride, steps)
        self.low[shard], self.high[shard] = low, high
        self.held[shard] = values.nbytes

    def _set(self, shard: int, rows: slice, layout: StepLayout, address: Ints, steps: Ints) -> None:
        if layout not in self.layouts:
            self.layouts.append(layout)
        self.layout[shard] = self.layouts.index(layout)
        self.address[rows] = address
        self.steps[rows] = steps

    def _agree(self, layout: StepLayout, where: str) -> None:
        """All shards give steps of one shape; the first decides where the schema does not."""
        if self.shape is None:
            self.shape = layout.shape
        if prod(layout.shape) != prod(self.shape):
            raise SchemaMismatchError(
                f"Column {self.name!r}: steps have shape {self.shape}, but {layout.shape} in {where}.",
                hint="Declare `dim`, and run `seqlake validate` to see which sequences differ.",
            )


class GrowingSteps:
    """The steps of one column of one shard, while it is decoded.

    Args:
        name: The column.
        most: How many steps all rows are said to have; None where nobody says it.
    """

    def __init__(self, name: str, most: int | None) -> None:
        self._name = name
        self._most = most
        self._whole: NDArray[Any] | None = None  # where steps go as they come
        self._length = 0
        self._parts: list[NDArray[Any]] = []  # those for which there is no place
        self._steps: list[Ints] = []

    def add(self, cells: pa.Array) -> None:
        """Take in the cells of further rows."""
        values, steps = flatten(cells, name=self._name)
        self._steps.append(steps)
        if self._whole is None and self._most is not None and len(values):
            self._whole = np.empty((self._most, *values.shape[1:]), values.dtype)
        stop = self._length + len(values)
        fits = self._whole is not None and values.shape[1:] == self._whole.shape[1:] and stop <= len(self._whole)
        if fits and not self._parts and self._whole is not None:
            self._whole[self._length : stop] = values
            self._length = stop
        elif len(values) or self._whole is None:
            self._parts.append(values)

    def taken(self) -> tuple[NDArray[Any], Ints]:
        """[all steps, ...] and [rows] how many are each row's."""
        whole = [] if self._whole is None else [self._whole[: self._length]]
        parts = [*whole, *self._parts]
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return values, np.concatenate(self._steps)


class SingleColumn:
    """A column with one value a row."""

    def __init__(self, name: str, *, rows: int) -> None:
        self.name = name
        self.present: NDArray[np.bool_] = np.zeros(rows, dtype=np.bool_)
        self.values: NDArray[Any] | None = None

    def keep(self, rows: slice, column: pa.Array, *, vector: bool) -> None:
        """Take in the values of one shard.

        Raises:
            SchemaMismatchError: Vectors of unlike lengths.
        """
        if vector:
            values, self.present[rows] = self._vectors(column)
        else:
            values, self.present[rows] = single_values(column)
        if self.values is None or not self.values.size:
            fresh = np.empty if values.dtype == object else np.zeros  # rows that cannot be read stay None, or 0
            self.values = fresh((len(self.present), *values.shape[1:]), dtype=values.dtype)
        if values.shape[1:] != self.values.shape[1:]:
            raise SchemaMismatchError(
                f"Column {self.name!r} has vectors of {self.values.shape[1:]} and {values.shape[1:]} numbers."
            )
        self.values[rows] = values

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


class ColumnStore(ABC):
    """What a process has learned of a dataset's columns: where their cells lie in memory, shard by shard.

    Attributes:
        survey: The dataset through the window.
        memory: What the addresses in `cells` point into.
        cells: Temporal columns, time stamps among them.
        values: Columns with one value a row, the id among them.
        beside: Columns with one value a row that batches do not hold: videos' files, and what time stamps count from.
        origins: [shards] where each one's steps are copied from: which of `telemetry.ORIGINS`.
        harms: Row -> what is wrong with it; only rows of shards that were salvaged.
    """

    def __init__(self, schema: Schema, survey: WindowSurvey, memory: Memory) -> None:
        rows, shards = survey.rows, len(survey.shards)
        self.survey = survey
        self.memory = memory
        self.origins: Ints = np.zeros(shards, dtype=np.int64)
        self.harms: dict[int, list[Harm]] = {}
        self._shard_of = np.repeat(np.arange(shards), np.diff(survey.first_rows))
        names = [*map(attrgetter("column"), survey.tracks), *survey.cells]
        names += [name for name in survey.times if is_list(schema[name].arrow) or schema[name].raw]
        self.cells: dict[str, StepColumn] = {
            name: StepColumn(name, rows=rows, shards=shards, dtype=step_dtype(schema[name]), shape=schema[name].shape)
            for name in dict.fromkeys(names)
        }
        self._id = schema.id
        singles = [*survey.singles, *([schema.id] if schema.id is not None else [])]
        self.values: dict[str, SingleColumn] = {name: SingleColumn(name, rows=rows) for name in singles}
        media = map(attrgetter("column"), (*survey.framed, *survey.sounds))
        beside = [name for name in media if schema[name].category == "file"]
        beside += [name for name in survey.times if name not in self.cells and name not in self.values]
        self.beside: dict[str, SingleColumn] = {name: SingleColumn(name, rows=rows) for name in beside}
        self._vectors = {name for name in singles if schema[name].category == "vector"}

    @abstractmethod
    def take(self, reader: ShardReader, shard: int, names: Sequence[str]) -> None:
        """Take in columns of a shard: where they lie in the file, or else decoded."""

    @abstractmethod
    def count_decoded(self, nbytes: int) -> None:
        """Count bytes of memory as decoded."""

    def shard_of(self, rows: Ints) -> Ints:
        """[n] rows -> the shard of each."""
        shards: Ints = self._shard_of[rows]
        return shards

    def rows_by_shard(self) -> Iterator[Ints]:
        """The rows of each shard that has any."""
        edges = self.survey.first_rows.tolist()
        yield from (np.arange(start, stop) for start, stop in pairwise(edges) if stop > start)

    @property
    def singles(self) -> list[str]:
        """Columns with one value a row, those that batches do not hold among them."""
        return [*self.values, *(name for name in self.beside if name not in self.values)]

    def rows(self, shard: int) -> slice:
        """The rows of a shard."""
        start, stop = self.survey.first_rows[shard : shard + 2]
        return slice(int(start), int(stop))

    def cell(self, name: str, row: int) -> NDArray[Any]:
        """[T, ...] one whole cell, copied; [0, ...] where it is null."""
        cells = self.cells[name]
        shard = int(self.shard_of(np.array([row]))[0])
        layout = cells.layouts[cells.layout[shard]]
        steps = int(cells.steps[row])
        if not steps or not layout.width:
            return np.zeros((steps, *layout.shape), dtype=layout.stored)
        if layout.width == layout.stride:
            data = self.memory.gather(cells.address[row : row + 1], steps * layout.stride)
        else:
            data = self.memory.gather(cells.address[row] + np.arange(steps) * layout.stride, layout.width)
        cell: NDArray[Any] = data.reshape(-1).view(layout.stored).reshape(steps, *(cells.shape or ()))
        return cell

    def times_of(self, row: int, /) -> Callable[[str], Any]:
        """Gives an open row's cells of time stamps and of what they count from; None where they are null."""

        def cell(name: str) -> Any:
            if name in self.cells:
                return self.cell(name, row)
            single = self.values.get(name) or self.beside[name]
            return single.values[row] if single.values is not None and single.present[row] else None

        return cell

    def keep(self, shard: int, name: str, column: pa.ChunkedArray) -> None:
        """Take in a decoded column of a shard."""
        if name in self.cells:
            parts = [flatten(chunk, name=name) for chunk in column.chunks]
            self.keep_steps(shard, name, np.concatenate([v for v, _ in parts]), np.concatenate([s for _, s in parts]))
            return
        single = self.values[name] if name in self.values else self.beside[name]
        single.keep(self.rows(shard), column.combine_chunks(), vector=name in self._vectors)

    def keep_steps(self, shard: int, name: str, values: NDArray[Any], steps: Ints) -> None:
        """Take in a shard's steps of one column: [all steps, ...], and [rows] how many are each row's."""
        self.cells[name].keep(shard, self.rows(shard), values, steps, self.memory)
        self.count_decoded(values.nbytes)

    def harmed(self, rows: Ints) -> NDArray[np.bool_]:
        """[n] whether something is wrong with the cells of rows."""
        if not self.harms:
            return np.zeros(len(rows), np.bool_)
        return np.isin(rows, np.fromiter(self.harms, np.int64, len(self.harms)))

    def harms_of(self, row: int) -> list[Harm]:
        """What is wrong with the cells of a row."""
        return self.harms.get(row, [])

    def id_of(self, row: int) -> str | None:
        """The id of a row; None where there are none, or it cannot be read."""
        values = None if self._id is None else self.values[self._id].values
        return None if values is None or values[row] is None else str(values[row])

    def lose(self, rows: Ints, harm: Harm, /) -> None:
        """Enter what is wrong with these rows."""
        for row in rows.tolist():
            harms = self.harms.setdefault(row, [])
            if harm not in harms:
                harms.append(harm)

    def file(self, shard: int) -> str:
        """What messages call a shard."""
        key = self.survey.shards[shard].key
        return key.rpartition("#")[0] or key


# ---- Arrow arrays as the flat arrays that batches are gathered from


def flatten(cells: pa.Array, /, *, name: str) -> tuple[NDArray[Any], Ints]:
    """List cells as one array of steps.

    Args:
        cells: [rows] lists of numbers, or lists of lists of numbers.
        name: The column, for messages.

    Returns:
        ([all steps, ...] values, [rows] steps of each cell with -1 for null).

    Raises:
        SchemaMismatchError: A step is null, has null elements, or another width than the steps before it.
    """
    steps = pc.list_value_length(cells).fill_null(-1).cast(pa.int64()).to_numpy(zero_copy_only=False)
    inner = cells.flatten()
    if not pa.types.is_nested(inner.type):
        return _numbers(inner, name), steps
    if inner.null_count:
        raise SchemaMismatchError(f"Column {name!r} has a null step; batches need every step to be there.")
    if is_list(inner.type.value_type):
        return _deep(inner, name), steps
    widths = pc.unique(pc.list_value_length(inner)).to_pylist()
    if len(widths) > 1:
        raise SchemaMismatchError(
            f"Column {name!r} has steps of {min(widths)} and of {max(widths)} numbers; batches need one width.",
            hint="`validate` names the rows.",
        )
    if not len(inner):
        width = inner.type.list_size if pa.types.is_fixed_size_list(inner.type) else 0
        return np.zeros((0, width), dtype_of(inner.type.value_type)), steps
    return _numbers(inner.flatten(), name).reshape(len(inner), -1), steps


def _deep(steps: pa.Array, name: str) -> NDArray[Any]:
    """[all steps, N, D] of steps that are lists in lists."""
    values, shape = step_shape(steps)
    if shape is None:
        raise SchemaMismatchError(
            f"Column {name!r} has steps of different shapes; batches need one.",
            hint="It is shown and queried as it is; for batches pad its steps to one shape, or leave it out.",
        )
    return _numbers(values, name).reshape(len(steps), *shape)


def _numbers(values: pa.Array, name: str) -> NDArray[Any]:
    if values.null_count:
        raise SchemaMismatchError(f"Column {name!r} has {values.null_count} null numbers inside its steps.")
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(numbers)


def single_values(values: pa.Array, /) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """One value a row: numbers and times as numpy types, everything else as Python objects.

    Args:
        values: [rows], of a scalar or file column, or of clouds.

    Returns:
        ([rows] values, [rows] True where not null). A null number is 0, a null time NaT, any other null None.
    """
    present: NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    kind = values.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        filled = values.fill_null(pa.scalar(0).cast(kind)) if values.null_count else values
        return filled.to_numpy(zero_copy_only=False), present
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return values.to_numpy(zero_copy_only=False), present
    objects = np.empty(len(values), dtype=object)
    if is_list(kind):  # clouds, each of its own size: [N, D]
        for row in np.flatnonzero(present).tolist():
            objects[row] = flatten(values.slice(row, 1), name="")[0]
        return objects, present
    objects[:] = values.to_pylist()
    return objects, present

"""New datasets whose signals stand at another rate: nearest, held, linear, and along the circle for what turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa

from seqlake.abilities import KeepsFiles, ability
from seqlake.arguments import DATASET, TEXTS, a, takes
from seqlake.dataset import progress
from seqlake.dataset.changing.units import turn_of
from seqlake.dataset.reading import streaming
from seqlake.dataset.reading.cells import BatchRow
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.reshaping.merging import whole
from seqlake.dataset.reshaping.slicing import rate_advice, refuse_counts
from seqlake.dataset.writing.carrying import Carrier, FilesMode
from seqlake.dataset.writing.parts import RowsPart, rows_of, rows_parts, write_parts
from seqlake.dataset.writing.staging import ShardShape, Staging
from seqlake.dataset.writing.values import cell
from seqlake.errors import SchemaMismatchError
from seqlake.executors import executor_if_asked
from seqlake.files.locations import absolute
from seqlake.shares import begun
from seqlake.spec.alignment import exact, on_clock, own_rate
from seqlake.spec.column_types import ColumnType
from seqlake.spec.stamps import origin_of
from seqlake.windows.clock import dataset_clock
from seqlake.windows.timestamps import Stamps, origin_at

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.dataset.dataset import Dataset
    from seqlake.dataset.selection import Selection
    from seqlake.executors import Executor
    from seqlake.spec.schema import Column, Schema

Method = Literal["linear", "nearest", "hold"]
KINDS = ("linear", "angle", "quaternion", "hold")
"""What a column type's `kind` may say of each dimension; other words are left alone."""

_NANOSECONDS = 1_000_000_000
_SPARSE, _MANY = 1000, 1 << 24  # new steps for one sample that was there, new steps of a sequence


@takes(selection=DATASET, columns=TEXTS.or_none(), method=a((str, Mapping), "a method, or one by column").or_none())
def resample(
    selection: Selection,
    out: str | os.PathLike[str],
    /,
    *,
    fps: float | Fraction,
    columns: Sequence[str] | None = None,
    method: Method | Mapping[str, Method] | None = None,
    files: FilesMode = "copy",
    storage: Mapping[str, str] | None = None,
    on: str | Executor | None = None,
    workers: int | None = None,
) -> Dataset:
    """Write a dataset whose signals have `fps` samples per second.

    Step k stands at k / fps seconds. Before a column's first sample its first value stands, after its last the last.
    What is not resampled, videos and images among it, stays as it is and declares the rate that it had. A column of
    time stamps that no column needs any more is left out.

    Numbers between two samples are made by `method`. With `linear`, dimensions whose column type says `kind="angle"` go
    the short way round (in degrees where `units` says so, else radians), four that say `quaternion` along the arc, and
    those that say `hold` keep the latest; `kind` is one word for all dimensions, or a list of one for each.

    Args:
        selection: The sequences; `sequence_id` among its columns.
        out: A new or empty folder or URI.
        fps: Samples per second.
        columns: Which signals; by default all.
        method: `linear`, `nearest` (in time; the earlier of two) or `hold` (the latest at or before), for all or by
            column; by default linear for floating-point numbers, hold for others.
        files: `copy`, `hardlink` or `reference`.
        storage: Options of the new dataset's store.
        on: What writes: `"processes"`, `"ray"` or an `Executor`, each task at most about one shard; by default this
            process alone. `Resumable` and `Share` keep what is finished.
        workers: Tasks at a time of what `on` names.

    Raises:
        DatasetExistsError: `out` is neither new nor empty.
        SchemaMismatchError: A column that is no signal, nothing says its rate, or its numbers cannot be made so.
        ValueError: No such method or rate.

    Example:
        ```python
        sl.resample(ds, "data/at-10-hz", fps=10)
        sl.resample(ds, "data/at-50-hz", fps=50, method={"gripper": "hold"})
        ```
    """
    rate = exact(fps)
    source = Excerpt.of(selection)
    plan = _Plan(source, rate, columns, method)
    write = _Resampling(source, plan, files)
    executor = executor_if_asked(on, workers=workers)
    asked = {"columns": None if columns is None else list(columns), "method": repr(method), "files": files}
    identity = {"source": lambda: source.fingerprint, "out": absolute(out), "fps": str(rate), **asked}
    with (
        begun(executor, "resample", identity) as run,
        whole(out, plan.schema, shape=ShardShape(), storage=storage, run=run) as (dataset, staging),
    ):
        if run is None:
            write.rows(source, staging)
        else:
            parts = rows_parts(source, staging.shape)
            write_parts(run, parts, write, staging=staging, table=dataset.table, schema=plan.schema, what="resample")
    return dataset


@dataclass(frozen=True, slots=True)
class _Resampling:
    """Writes rows at the new rate."""

    source: Excerpt
    plan: _Plan
    files: FilesMode

    def __call__(self, part: RowsPart, staging: Staging, /) -> None:
        self.rows(rows_of(self.source, part), staging)

    def rows(self, source: Excerpt, staging: Staging) -> None:
        carrier = Carrier(
            self.plan.schema,
            root=source.root,
            staging=staging,
            mode=self.files,
            storage=source.storage,
            known=ability(source, KeepsFiles),
        )
        for shard in progress.over(source.shards(), "resample"):
            for batch in streaming.for_writing(shard, source.schema.names):
                for rows in staging.parts(self.plan.resampled(batch)):
                    staging.write(carrier.carry(rows))


class _Plan:
    """Which columns are made anew, how, and what the schema says then."""

    def __init__(
        self,
        source: Excerpt,
        rate: Fraction,
        columns: Sequence[str] | None,
        method: Method | Mapping[str, Method] | None,
    ) -> None:
        schema = self._old = source.schema
        refuse_counts(schema, "resample")
        self._rate = rate
        self._clock = dataset_clock(source).rate
        stamps = {column.timestamps for column in schema.values() if column.timestamps in schema}
        signals = [name for name in schema if schema[name].category == "temporal" and name not in stamps]
        chosen = signals if columns is None else list(columns)
        for name in (*chosen, *(method if isinstance(method, Mapping) else ())):
            _ = schema[name]  # says which columns there are
        for name in chosen:
            if name not in signals:
                raise SchemaMismatchError(
                    f"{name!r} is no signal that can be resampled; there are {', '.join(signals) or 'none'}."
                )
        self._methods = {name: _method_of(schema[name], method) for name in chosen}
        if isinstance(method, Mapping) and (wrong := [name for name in method if name not in chosen]):
            raise SchemaMismatchError(f"method: {wrong[0]!r} is none of the columns {', '.join(chosen) or '(none)'}.")
        self._needs_rate(source, chosen)
        self.schema = self._declared(chosen, stamps)

    def resampled(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows at the new rate."""
        arrays: dict[str, Any] = {name: batch.column(name) for name in self.schema.names}
        rows = [BatchRow(batch=batch, row=row, schema=self._old) for row in range(batch.num_rows)]
        counts = [self._count(row) for row in rows]
        for name, method in self._methods.items():
            column, kind = self.schema[name], self.schema.arrow.field(name).type
            cells = [
                cell(self._cell(row, name, method, count), column, kind, where=row.where(name))
                for row, count in zip(rows, counts, strict=True)
            ]
            arrays[name] = pa.concat_arrays(cells)
        length = arrays.get("length")
        if length is not None and pa.types.is_integer(length.type) and self._methods:
            arrays["length"] = pa.array(
                [None if old is None else count for old, count in zip(length.to_pylist(), counts, strict=True)],
                length.type,
            )
        return pa.RecordBatch.from_arrays([arrays[name] for name in self.schema.names], schema=self.schema.arrow)

    def _cell(self, row: BatchRow, name: str, method: Method, count: int) -> NDArray[Any] | None:
        steps: NDArray[Any] | None = row.value(name)
        if isinstance(steps, list):
            raise SchemaMismatchError(
                f"{row.where(name)}: its steps have different shapes, and nothing says what lies between two of them.",
                hint="Name the others: columns=[...].",
            )
        if steps is None or not len(steps):
            return steps
        times = self._times(row, name, len(steps))
        at = np.arange(count, dtype=np.float64) / float(self._rate)
        flat = steps.reshape(len(steps), -1)
        if method == "linear":
            column, dims = self._old[name], flat.shape[1]
            result = _between(flat, times, at, _kinds(column, dims), _turns(column, dims))
        else:
            result = flat[_places(times, at, method)]
        return result.reshape(count, *steps.shape[1:])

    def _times(self, row: BatchRow, name: str, count: int) -> NDArray[np.float64]:
        """[T] seconds after the sequence's start."""
        stamps = self._old[name].timestamps
        if stamps is not None and stamps in self._old:
            times = Stamps.of(row.times(stamps), column=str(stamps)).times
            if len(times) != count:
                raise SchemaMismatchError(
                    f"{row.where(name)}: expected a time for each of {count} samples, found {len(times)} in {stamps!r}."
                )
            return np.asarray((times - origin_at(origin_of(self._old, name), row.times)) / _NANOSECONDS)
        rate = own_rate(self._old[name]) or self._clock
        assert rate is not None, "the plan has looked"
        return np.arange(count, dtype=np.float64) / float(rate)

    def _count(self, row: BatchRow) -> int:
        """The steps of a sequence at the new rate: as long as its clock's steps last, else as its longest signal."""
        lasting: dict[bool, list[Fraction]] = {True: [], False: []}
        samples = 0
        for name in self._methods:
            there = row.length(name)
            if not there:
                continue
            samples = max(samples, there)
            if self._old[name].timestamps in self._old:
                seconds = Fraction(float(self._times(row, name, there)[-1])).limit_denominator(_NANOSECONDS)
                lasting[False].append(seconds + 1 / self._rate)
            else:
                known = own_rate(self._old[name]) or self._clock
                assert known is not None, "the plan has looked"
                lasting[on_clock(self._old, name, self._clock)].append(there / known)
        longest = max(lasting[True] or lasting[False], default=Fraction(0))
        count = max(1, int(longest * self._rate)) if longest else 0
        if count > max(_MANY, _SPARSE * samples):
            raise SchemaMismatchError(
                f"{row.where()}: {samples} samples last {float(longest):.6g} seconds: {count} steps.",
                hint="Correct its time stamps, or leave the sequence out.",
            )
        return count

    def _needs_rate(self, source: Excerpt, chosen: Sequence[str]) -> None:
        for name in chosen:
            if (
                self._clock is None
                and self._old[name].timestamps not in self._old
                and own_rate(self._old[name]) is None
            ):
                raise SchemaMismatchError(
                    f"Nothing says how many samples of {name!r} there are in a second.",
                    hint=f"First {rate_advice(source, name)}",
                )

    def _declared(self, chosen: Sequence[str], stamps: set[str | None]) -> Schema:
        changed: dict[str, Column] = {}
        for name, column in self._old.items():
            kind, moves = column.type, column.category in {"temporal", "frames"} or column.medium == "video"
            if name in chosen:
                fields = {} if kind is None else kind.to_json()
                kept = {key: value for key, value in fields.items() if key not in {"timestamps", "origin"}}
                changed[name] = replace(
                    column, type=ColumnType.from_json({"type": "trajectory"} | kept | _fps(self._rate))
                )
            elif moves and self._clock is not None and own_rate(column) is None and column.timestamps is None:
                fields = {"type": "trajectory"} if kind is None else kind.to_json()
                if on_clock(self._old, name, self._clock) and name not in stamps:
                    changed[name] = replace(column, type=ColumnType.from_json(fields | _fps(self._clock)))
        schema = self._old.with_columns(changed) if changed else self._old
        needed = {column.timestamps for column in schema.values()}
        return schema.without([name for name in stamps if name is not None and name not in needed])


def _fps(rate: Fraction) -> dict[str, float]:
    return {"fps": int(rate) if rate.denominator == 1 else float(rate)}


def _method_of(column: Column, method: Method | Mapping[str, Method] | None) -> Method:
    asked = method.get(column.name) if isinstance(method, Mapping) else method
    floating = column.dtype is not None and column.dtype.kind == "f"
    if asked is None:
        return "linear" if floating else "hold"
    if asked not in get_args(Method):
        raise ValueError(f"method: expected one of {', '.join(get_args(Method))}, found {asked!r}.")
    if asked == "linear" and not floating:
        raise SchemaMismatchError(
            f"{column.name!r} holds {column.dtype}: between two of its values there may be none.",
            hint="Use 'nearest' or 'hold', or widen the column to floating-point numbers first.",
        )
    return asked


def _kinds(column: Column, dims: int) -> list[str]:
    """What each dimension is, as far as the column type says it in words that are known."""
    declared = None if column.type is None else column.type.get("kind")
    words = [declared] * dims if isinstance(declared, str) else declared
    if not isinstance(words, list) or len(words) != dims:
        return ["linear"] * dims
    kinds = [word if word in KINDS else "linear" for word in words]
    place = 0
    while place < dims:
        if kinds[place] == "quaternion" and kinds[place : place + 4] != ["quaternion"] * 4:
            raise SchemaMismatchError(
                f"{column.name!r}: a quaternion has four dimensions beside each other, found {words}."
            )
        place += 4 if kinds[place] == "quaternion" else 1
    return kinds


def _turns(column: Column, dims: int) -> list[float]:
    """A whole turn in the unit of each dimension."""
    units = column.type.get("units") if column.type is not None else None
    each = units if isinstance(units, list) and len(units) == dims else [units] * dims
    return [turn_of(unit) for unit in each]


def _places(times: NDArray[np.float64], at: NDArray[np.float64], method: Method) -> NDArray[np.int64]:
    """Which sample stands at each moment."""
    # A moment that was rounded is the moment that was meant: half a nanosecond is less than any stamp says.
    latest = np.clip(np.searchsorted(times, at + 5e-10, side="right") - 1, 0, len(times) - 1)
    if method == "hold":
        return np.asarray(latest, np.int64)
    following = np.minimum(latest + 1, len(times) - 1)
    nearer = np.abs(times[following] - at) + 1e-12 < np.abs(at - times[latest])
    return np.asarray(np.where(nearer, following, latest), np.int64)


def _between(
    values: NDArray[Any], times: NDArray[np.float64], at: NDArray[np.float64], kinds: list[str], turns: list[float]
) -> NDArray[Any]:
    """Values [T, D] at moments: [N, D], computed in double precision."""
    before = _places(times, at, "hold")
    after = np.minimum(before + 1, len(times) - 1)
    gap = times[after] - times[before]
    part = np.clip(np.divide(at - times[before], gap, out=np.zeros(len(at)), where=gap > 0), 0, 1)[:, None]
    a, b = values[before].astype(np.float64), values[after].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):  # what is infinite or unknown stays so
        result = _mixed(a, b, part, values, kinds, turns)
    return result.astype(values.dtype)


def _mixed(
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    part: NDArray[np.float64],
    values: NDArray[Any],
    kinds: list[str],
    turns: list[float],
) -> NDArray[np.float64]:
    step = b - a
    result = np.where(part > 0, a + part * step, a)  # a sample stays itself, whatever follows it
    for dim in [place for place, kind in enumerate(kinds) if kind == "angle"]:
        turn, one = turns[dim], slice(dim, dim + 1)
        short = np.remainder(step[:, one] + turn / 2, turn) - turn / 2
        result[:, one] = np.where(part > 0, _in_range(a[:, one] + part * short, values[:, one], turn), a[:, one])
    held = [place for place, kind in enumerate(kinds) if kind == "hold"]
    result[:, held] = a[:, held]
    place = 0
    while place < len(kinds):
        if kinds[place] == "quaternion":
            four = slice(place, place + 4)
            result[:, four] = np.where(part > 0, _arc(a[:, four], b[:, four], part), a[:, four])
        place += 4 if kinds[place] == "quaternion" else 1
    return result


def _in_range(angles: NDArray[np.float64], values: NDArray[Any], turn: float) -> NDArray[np.float64]:
    """Angles in the range of a turn that the values keep to; as they are where they keep to none."""
    finite = values[np.isfinite(values)]
    low = -turn / 2 if (finite < 0).any() else 0.0
    slack = 1e-3 * turn
    if not finite.size or finite.min() < low - slack or finite.max() > low + turn + slack:
        return angles
    outside = (angles < low) | (angles > low + turn)
    return np.where(outside, np.remainder(angles - low, turn) + low, angles)


def _arc(a: NDArray[np.float64], b: NDArray[np.float64], part: NDArray[np.float64]) -> NDArray[np.float64]:
    """Unit quaternions between two of them, along the shorter arc."""
    with np.errstate(invalid="ignore", divide="ignore"):
        a, b = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (a, b))
        cosine = (a * b).sum(1, keepdims=True)
        b, cosine = np.where(cosine < 0, -b, b), np.abs(cosine)
        angle = np.arccos(np.clip(cosine, -1, 1))
        sine = np.sin(angle)
        near = sine < 1e-6
        left = np.where(near, 1 - part, np.sin((1 - part) * angle) / np.where(near, 1, sine))
        right = np.where(near, part, np.sin(part * angle) / np.where(near, 1, sine))
        result = left * a + right * b
        return np.asarray(result / np.linalg.norm(result, axis=1, keepdims=True))

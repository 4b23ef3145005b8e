"""Which sequences are unlike the others, and why: extreme values, jerk, standing still, unusual length."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.dataset.reading.cells import arrow_cell, flat_cell
from seqlake.dataset.reading.streaming import read
from seqlake.dataset.statistics.chunks import each
from seqlake.executors import executor_of, in_order
from seqlake.shares import begun

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from seqlake.dataset.statistics.summary import ColumnStatistics, Statistics
    from seqlake.executors import Executor
    from seqlake.protocols import Readable, Shard, ShardReader
    from seqlake.spec.schema import Column, Schema

_UNUSUAL = 3.5  # robust deviations from which a reason is worth telling (Iglewicz and Hoaglin)
_MEASURES = ("peak", "jerk", "static")
_LEAST = (0.0, 0.0, 0.05)  # deviation of each measure that is too small to matter: a few still steps are no oddity


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """One sequence and how far it is from the others.

    Attributes:
        row: Its place in the selection.
        sequence_id: Its id; None where rows are samples.
        score: The largest deviation of the four measures from the sequences' median, in robust standard deviations.
        reason: What deviates, in words.
        peak: Largest distance of a number from its dimension's mean, in the dimension's standard deviations.
        jerk: Root mean square of the third differences of steps, in standard deviations.
        static: Part of the steps that equal the one before in every dimension, from 0 to 1.
        length: Steps, in standard deviations from the mean length.
    """

    row: int
    sequence_id: str | None
    score: float
    reason: str
    peak: float
    jerk: float
    static: float
    length: float

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self)


def outliers(
    source: Readable,
    stats: Statistics,
    /,
    *,
    top: int = 20,
    workers: int | None = None,
    on: str | Executor | None = None,
) -> list[Outlier]:
    """The sequences that differ most from the others, worst first.

    Each temporal column of `stats`, [T] or [T, D], gives a sequence four measures: its largest z-score, its jerk, the
    part of its steps in which nothing moves, and its length. A measure counts by its distance from the median of all
    sequences, over their median absolute deviation; peak, jerk and standing still only upwards.

    Args:
        source: The sequences to rank.
        stats: Of these or of others, as of the training split.
        top: At most so many.
        workers: Threads, or tasks at a time of what `on` names; by default one for each processor.
        on: What reads the shards: `"processes"`, `"ray"` or an `Executor`; by default threads of this process.

    Raises:
        ValueError: `stats` has no temporal column of the source, or a number out of range.

    Example:
        ```python
        for outlier in outliers(ds, statistics(ds), top=8):
            print(outlier.sequence_id, outlier.reason)
        ```
    """
    if top < 0 or (workers is not None and workers < 1):
        raise ValueError(f"Expected top from 0 and workers from 1 on, found {top} and {workers}.")
    columns = {name: source.schema[name] for name in stats if name in source.schema}
    names = [name for name, column in columns.items() if column.category == "temporal" and not column.deep]
    if not names:
        raise ValueError(
            "Outliers are found in temporal columns, [T] or [T, D], and the statistics have none of this source's."
        )
    measure = partial(_measured, schema=source.schema, stats=stats, names=names)
    if on is None:
        parts = list(each(source.shards(), measure, workers=workers or _threads()))
    else:
        known = hashlib.sha256(json.dumps(stats.to_json(), sort_keys=True, default=str).encode()).hexdigest()
        identity = {"source": lambda: source.fingerprint, "stats": known, "columns": names}
        with begun(executor_of(on, workers=workers), "outliers", identity) as executor:
            parts = in_order(executor, measure, source.shards())
    whole = {name: np.concatenate([np.zeros((0, 6)), *(part[name] for part in parts)]) for name in names}
    return _ranked(source, whole, top)


def _threads() -> int:
    return min(16, os.cpu_count() or 1)


# ---- measuring: [rows, 6] of a column: peak, jerk, static, steps, and the dimension and step of the peak


def _measured(
    shard: Shard, /, *, schema: Schema, stats: Statistics, names: Sequence[str]
) -> dict[str, NDArray[np.float64]]:
    with closing(shard.open()) as reader:
        return {name: _of_column(reader, shard.rows, schema[name], stats[name]) for name in names}


def _of_column(reader: ShardReader, rows: int, column: Column, known: ColumnStatistics) -> NDArray[np.float64]:
    measured = np.full((rows, 6), np.nan)
    std = known.std.ravel()
    scale = np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
    middle = np.nan_to_num(known.mean.ravel())
    for row, cell in enumerate(_cells(reader, rows, column)):
        if cell is not None:
            numbers = int(np.prod(cell.shape[1:], dtype=np.int64))
            measured[row] = _of_sequence(cell.reshape(len(cell), numbers), middle, scale)
    return measured


def _cells(reader: ShardReader, rows: int, column: Column) -> Iterator[NDArray[Any] | None]:
    flat = reader.flat(column.name)
    if flat is not None:
        for row in range(rows):
            yield flat_cell(flat, row)
        return
    for batch in reader.batches([column.name]):
        for row in range(batch.num_rows):
            yield arrow_cell(batch.column(0), row, column)


def _of_sequence(
    steps: NDArray[Any], middle: NDArray[np.float64], scale: NDArray[np.float64]
) -> tuple[float, float, float, int, int, int]:
    count = len(steps)
    if not count or steps.shape[1] != len(middle):
        return 0.0, 0.0, 0.0, count, 0, 0
    with np.errstate(invalid="ignore", over="ignore"):
        z = (steps.astype(np.float64) - middle) * scale
        third = np.diff(z, n=3, axis=0)
    far = np.where(np.isfinite(z), np.abs(z), 0)
    step, dim = divmod(int(far.argmax()), far.shape[1])
    third = third[np.isfinite(third)]
    jerk = float(np.sqrt(np.mean(np.square(third)))) if third.size else 0.0
    moving = scale > 0  # a dimension that never moves anywhere says nothing about one sequence
    still = (steps[1:, moving] == steps[:-1, moving]).all(axis=1)
    static = float(still.mean()) if still.size and moving.any() else 0.0
    return float(far[step, dim]), jerk, static, count, dim, step


# ---- ranking


def _ranked(source: Readable, whole: Mapping[str, NDArray[np.float64]], top: int) -> list[Outlier]:
    names = list(whole)
    measures = np.nan_to_num(np.stack([whole[name] for name in names]))  # [columns, rows, 6]; a null cell is nothing
    steps = measures[:, :, 3].max(axis=0)
    deviation = np.stack(
        [_robust(measures[:, :, place], up=True, least=_LEAST[place]) for place in range(3)]
    )  # [measures, columns, rows]
    length = _robust(steps[None], up=False)[0]
    score = np.maximum(deviation.max(axis=(0, 1)), np.abs(length))
    spread = steps.std() if len(steps) else 0.0
    order = np.argsort(-score, kind="stable")[:top]
    ids = _ids(source)
    unusual = []
    for row in map(int, order):
        reasons = []
        for kind, measure in enumerate(_MEASURES):
            worst = int(deviation[kind, :, row].argmax())
            text = _because(measure, names[worst], measures[worst, row], float(np.median(measures[worst, :, kind])))
            reasons.append((float(deviation[kind, worst, row]), text))
        off = (steps[row] - steps.mean()) / spread if spread else 0.0
        reasons.append((float(abs(length[row])), f"{steps[row]:.0f} steps, where the median is {np.median(steps):.0f}"))
        reasons.sort(key=lambda reason: -reason[0])
        texts = [text for far, text in reasons if far >= _UNUSUAL] or [f"nothing unusual; most of all, {reasons[0][1]}"]
        peak, jerk, static = measures[:, row, :3].max(axis=0).tolist()
        unusual.append(
            Outlier(
                row=row,
                sequence_id=None if ids is None else ids[row],
                score=float(score[row]),
                reason="; ".join(texts),
                peak=peak,
                jerk=jerk,
                static=static,
                length=float(off),
            )
        )
    return unusual


def _robust(values: NDArray[np.float64], *, up: bool, least: float = 0.0) -> NDArray[np.float64]:
    """[n, rows] distance from the median in robust standard deviations."""
    if not values.shape[1]:
        return values
    off = values - np.median(values, axis=1, keepdims=True)
    spread = 1.4826 * np.median(np.abs(off), axis=1, keepdims=True)
    # Where more than half are alike, the mean deviation stands in for the median one.
    spread = np.where(spread > 0, spread, 1.2533 * np.abs(off).mean(axis=1, keepdims=True))
    spread = np.maximum(spread, least)
    far = np.divide(off, spread, out=np.zeros_like(off), where=spread > 0)
    return np.maximum(far, 0) if up else far


def _because(measure: str, column: str, measured: NDArray[np.float64], median: float) -> str:
    if measure == "peak":
        far, dim, step = measured[0], measured[4], measured[5]
        return f"{column}[{dim:.0f}] is {far:.3g} standard deviations from its mean at step {step:.0f}"
    if measure == "jerk":
        return f"{column} has a jerk of {measured[1]:.3g}, where the median is {median:.3g}"
    return f"{column} stands still in {measured[2]:.0%} of its steps, where the median is {median:.0%}"


def _ids(source: Readable) -> list[str] | None:
    if source.schema.id is None:
        return None
    batches: list[pa.RecordBatch] = list(read(source, [source.schema.id]))
    return [one for batch in batches for one in batch.column(0).to_pylist()]

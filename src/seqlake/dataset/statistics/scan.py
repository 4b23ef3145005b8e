"""The passes over a dataset that find its statistics, and the file that keeps them by its fingerprint.

Of pictures, evenly spaced frames of evenly spaced sequences are looked at. Every value of a picture is one of 256 (of
65 536 where it has 16 bits), so the sample is counted once, value by value, and everything follows from the counts
exactly, in whole numbers, in whatever order threads deliver them.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.abilities import KeepsDerived, ability
from seqlake.arguments import DATASET, takes
from seqlake.bars import progress_bar
from seqlake.dataset.drawing.strips import is_pictures
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.statistics.chunks import declared_shape, each, kept_dtype, pieces, pieces_of
from seqlake.dataset.statistics.moments import merged, moments, none_yet
from seqlake.dataset.statistics.ranks import HISTOGRAMS, UNCOUNTED, QuantileSearch, histograms, rank_of
from seqlake.dataset.statistics.summary import ColumnStatistics, Statistics, finished
from seqlake.errors import DecodeError, SchemaMismatchError, ValidationError
from seqlake.executors import executor_of, in_order
from seqlake.files.checksums import digest_of, seal
from seqlake.media import depth_levels
from seqlake.shares import RecordedRun, begun
from seqlake.spec.schema import is_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from tqdm import tqdm

    from seqlake.dataset.statistics.chunks import CellBatch
    from seqlake.dataset.statistics.moments import Moments
    from seqlake.dataset.statistics.ranks import Seen
    from seqlake.executors import Executor
    from seqlake.protocols import Ints, Readable, Shard
    from seqlake.spec.schema import Column, Schema

QUANTILES = (0.01, 0.5, 0.99)
_MOST_WORKERS = 16
_TASKS = 64  # of an executor, at most
_LAST = 4  # of them are smaller than the others


@takes(source=DATASET)
def statistics(
    source: Readable,
    columns: Sequence[str] | None = None,
    *,
    quantiles: Sequence[float] = QUANTILES,
    workers: int | None = None,
    on: str | Executor | None = None,
    progress: bool | None = None,
) -> Statistics:
    """Count, range, mean, standard deviation and exact quantiles of every step, per column and dimension.

    Of signals of more levels, as [T, N, D], per last dimension, whatever N is.

    Images and videos are sampled: at most 1024 frames of 128 sequences, evenly spaced, by channel and scaled to [0, 1].

    One pass over the numbers finds all but the quantiles and about where these lie, one more finds them (up to three
    for 64-bit numbers that are mostly alike). Of columns that declare no width, and of what is beyond 256 quantiles of
    dimensions, these begin after that pass. Memory does not grow with the dataset, and the result does not depend on
    `workers`. It is kept by the source's fingerprint where its table can keep it, and read again from there.

    Args:
        source: A dataset, a selection, a scanned format.
        columns: Temporal, vector and numeric scalar columns, images and videos; by default all of them.
        quantiles: From 0 to 1; none, for a single pass.
        workers: Threads, or tasks at a time of what `on` names; by default one for each processor.
        on: What reads the shards: `"processes"`, `"ray"` or an `Executor`; by default threads of this process.
        progress: Show a bar on stderr; None: where stderr is a terminal.

    Raises:
        KeyError: No such column.
        SchemaMismatchError: A column that holds no numbers and no pictures.
        MissingFileError, DecodeError: A video or image that is looked at is not there, or cannot be decoded.
        ValidationError: Cells that break the format: steps of different widths, null steps.
        ValueError: A quantile or a number of workers out of range.

    Example:
        ```python
        stats = statistics(ds.where("split = 'train'"))
        loader = sl.Loader(ds, window={"action": range(16)}, batch_size=64).normalize(stats)
        ```
    """
    names = _names(source.schema, columns)
    points = tuple(sorted({float(point) for point in quantiles}))
    if not all(0 <= point <= 1 for point in points):
        raise ValueError(f"Quantiles lie between 0 and 1, found {', '.join(map(str, points))}.")
    if workers is not None and workers < 1:
        raise ValueError(f"Expected at least one worker, found {workers}.")
    threads = workers or min(_MOST_WORKERS, os.cpu_count() or 1)
    executor = None if on is None else executor_of(on, workers=workers)
    kept = _read(source)
    missing = [name for name in names if name not in kept or not set(points) <= set(kept[name].quantiles)]
    if missing:
        every = {*points, *(point for name in missing if name in kept for point in kept[name].quantiles)}
        visual = [name for name in missing if is_pictures(source.schema[name])]
        numeric = [name for name in missing if name not in visual]
        identity = {"source": lambda: source.fingerprint, "columns": missing, "quantiles": sorted(every)}
        with begun(executor, "statistics", identity, goes_on=True) as run:
            if numeric:
                kept |= _Scan(source, numeric, sorted(every), workers=threads, executor=run, progress=progress).run()
            for name in visual:
                kept[name] = statistics_of(
                    source, name, sorted(every), workers=threads, executor=run, progress=progress
                )
            if isinstance(run, RecordedRun):
                run.stop()
            _write(source, kept)
    return Statistics({name: _with_points(kept[name], points) for name in names}, rows=_rows(source))


def _names(schema: Schema, columns: Sequence[str] | None) -> list[str]:
    def has_numbers(name: str) -> bool:
        column = schema[name]
        numbers = column.category == "scalar" and is_number(column.arrow)
        return numbers or column.category in {"temporal", "vector"} or is_pictures(column)

    if columns is None:
        return [name for name in schema.names if has_numbers(name)]
    if isinstance(columns, str):
        columns = [columns]
    wrong = [name for name in dict.fromkeys(columns) if not has_numbers(name)]
    if wrong:
        raise SchemaMismatchError(
            f"Statistics are of temporal, vector and numeric scalar columns, images and videos; {schema[wrong[0]]} is "
            "none of these."
        )
    return list(dict.fromkeys(columns))


def _rows(source: Readable) -> int:
    return sum(shard.rows for shard in source.shards())


def _with_points(statistics: ColumnStatistics, points: Sequence[float]) -> ColumnStatistics:
    return replace(statistics, quantiles={point: statistics.quantiles[point] for point in points})


class _Scan:
    """The passes over some columns of a source."""

    def __init__(
        self,
        source: Readable,
        names: Sequence[str],
        points: Sequence[float],
        *,
        workers: int,
        executor: Executor | None,
        progress: bool | None,
    ) -> None:
        self.source = source
        self.names = names
        self.points = points
        self.workers = workers
        self.executor = executor
        self.progress = progress

    def run(self) -> dict[str, ColumnStatistics]:
        """The statistics of each column."""
        begun_with = self._searches()
        moments, nulls, shapes = self._moments(begun_with)
        searches = {name: one for name, one in begun_with.items() if one.dims == len(moments[name].count)}
        for name, search in searches.items():
            search.know(moments[name].count)
            search.end_pass()
        ordered = self._quantiles(searches)
        for names in self._turns([name for name in self.names if name not in searches], moments):
            ordered |= self._quantiles(
                {name: QuantileSearch(moments[name].min.dtype, moments[name].count, self.points) for name in names}
            )
        return {
            name: finished(
                moments[name],
                category=self.source.schema[name].category,
                shape=shapes[name],
                nulls=nulls[name],
                quantiles=dict(zip(self.points, ordered[name], strict=True)),
            )
            for name in self.names
        }

    def _searches(self) -> dict[str, QuantileSearch]:
        """Of columns whose width is declared, as many as memory is meant for: these begin with the first pass."""
        searches: dict[str, QuantileSearch] = {}
        room = HISTOGRAMS if self.points else 0
        for name in self.names:
            shape = declared_shape(self.source.schema[name])
            needed = room + 1 if shape is None else int(np.prod(shape, dtype=np.int64)) * len(self.points)
            if 0 < needed <= room:
                counts = np.full(needed // len(self.points), UNCOUNTED, np.int64)
                searches[name] = QuantileSearch(kept_dtype(self.source.schema[name]), counts, self.points)
                room -= needed
        return searches

    def _turns(self, names: Sequence[str], moments: Mapping[str, Moments]) -> Iterator[list[str]]:
        """Columns whose quantiles are found at a time: as many as memory is meant for, at least one."""
        turn: list[str] = []
        room = HISTOGRAMS
        for name in names:
            needed = histograms(moments[name].count, len(self.points))
            if turn and needed > room:
                yield turn
                turn, room = [], HISTOGRAMS
            turn.append(name)
            room -= needed
        yield turn

    def _quantiles(self, searches: Mapping[str, QuantileSearch]) -> dict[str, NDArray[Any]]:
        """Of each column [quantiles, D]."""
        while wanted := {name: search for name, search in searches.items() if search.wanted}:
            look = _Look({name: search.dtype for name, search in wanted.items()}, wanted, moments=False)
            for _ in self._over(list(wanted), look, "quantiles"):
                pass
            for search in wanted.values():
                search.end_pass()
        return {name: search.values for name, search in searches.items()}

    def _moments(
        self, searches: Mapping[str, QuantileSearch]
    ) -> tuple[dict[str, Moments], dict[str, int], dict[str, tuple[int, ...]]]:
        """Of each column its moments, its null cells and the shape of a step; searches see its numbers, too."""
        schema = self.source.schema
        nulls = dict.fromkeys(self.names, 0)
        shapes: dict[str, tuple[int, ...]] = {}
        parts: dict[str, list[Moments]] = {name: [] for name in self.names}

        look = _Look({name: kept_dtype(schema[name]) for name in self.names}, searches, moments=True)
        for name, without, shape, some in self._over(self.names, look, "moments"):
            nulls[name] += without
            if shape is None or some is None:
                continue
            if shapes.setdefault(name, shape) != shape:
                raise ValidationError(
                    f"Column {name!r} has steps of shape {list(shapes[name])} and of {list(shape)}.",
                    hint="A signal has the same dimension in every sequence; ds.validate() lists those that differ.",
                )
            parts[name].append(some)
            if len(parts[name]) >= 64:
                parts[name] = [merged(parts[name])]
        for name in self.names:
            shape = shapes.setdefault(name, declared_shape(schema[name]) or ())
            parts[name].append(none_yet(int(np.prod(shape, dtype=np.int64)), kept_dtype(schema[name])))
        return {name: merged(some) for name, some in parts.items()}, nulls, shapes

    def _over(self, names: Sequence[str], look: _Look, what: str) -> Iterator[Any]:
        """What `look` makes of every chunk, in their order."""
        with self._bar(what) as bar:
            if self.executor is not None:
                yield from self._elsewhere(names, look, bar)
                return

            def work(piece: Callable[[], Iterator[CellBatch]]) -> list[Any]:
                return [look(chunk) for chunk in piece()]

            for done in each(pieces(self.source, names, passed=bar.update), work, workers=self.workers):
                yield from done

    def _elsewhere(self, names: Sequence[str], look: _Look, bar: tqdm[Any]) -> Iterator[Any]:
        """The same by an executor. Searches take in what others saw as it comes: all of it could be gigabytes."""
        assert self.executor is not None
        results: dict[int, list[Any]] = {}

        def done(task: tuple[int, Sequence[Shard]], answer: tuple[list[Any], dict[str, Seen]]) -> None:
            results[task[0]], parts = answer
            for name, part in parts.items():
                look.searches[name].absorb(part)
            bar.update(len(task[1]))

        searches = look.searches.values()
        width = sum(search.dims * search.dtype.itemsize for search in searches)
        steps = sum(shard.nbytes for shard in self.source.shards()) // max(1, width)
        most = max((search.parts(steps) for search in searches), default=_TASKS)
        run = partial(_looked, look=look, schema=self.source.schema, names=tuple(names))
        self.executor.run(run, list(enumerate(self._tasks(min(most, _TASKS)))), done=done, tick=lambda: None)
        for number in sorted(results):
            yield from results[number]

    def _tasks(self, most: int) -> list[Sequence[Shard]]:
        """Runs of neighbouring shards, one for each task of an executor; the last ones ever smaller, so that workers
        end at about the same time.
        """
        shards = self.source.shards()
        sizes = [min(_LAST, most - number) for number in range(most)]
        cuts = [len(shards) * upto // sum(sizes) for upto in accumulate(sizes, initial=0)]
        return [shards[start:stop] for start, stop in pairwise(cuts) if start < stop]

    def _bar(self, what: str) -> tqdm[Any]:
        hidden = None if self.progress is None else not self.progress
        return progress_bar()(total=len(self.source.shards()), desc=what, unit=" shards", disable=hidden)


@dataclass(frozen=True, slots=True)
class _Look:
    """What a chunk says of range, mean and deviation, where that is asked; searches of some columns see it, too."""

    dtypes: Mapping[str, np.dtype[Any]]
    searches: Mapping[str, QuantileSearch]
    moments: bool

    def __call__(self, chunk: CellBatch, /) -> tuple[str, int, tuple[int, ...] | None, Moments | None]:
        if not chunk.parts:
            return chunk.column, chunk.nulls, None, None
        numbers = _flat(chunk, self.dtypes[chunk.column])
        search = self.searches.get(chunk.column)
        if search is not None and numbers[0].shape[1] == search.dims:  # else steps are not as wide as declared
            search.add(*numbers)
        some = moments(*numbers) if self.moments else None
        return chunk.column, chunk.nulls, chunk.parts[0].shape[1:], some


def _looked(
    task: tuple[int, Sequence[Shard]], /, *, schema: Schema, names: Sequence[str], look: _Look
) -> tuple[list[Any], dict[str, Seen]]:
    """What is made of the chunks of some shards, and what searches saw there; an executor's task."""
    searches = {name: search.blank() for name, search in look.searches.items()}  # a task may be run again
    fresh = replace(look, searches=searches)
    results = [fresh(chunk) for shard in task[1] for piece in pieces_of(shard, schema, names) for chunk in piece()]
    return results, {name: search.seen for name, search in searches.items()}


def _flat(chunk: CellBatch, dtype: np.dtype[Any]) -> list[NDArray[Any]]:
    """The parts of a chunk as [n, D]."""
    size = int(np.prod(chunk.parts[0].shape[1:], dtype=np.int64))
    return [part.astype(dtype, copy=False).reshape(len(part), size) for part in chunk.parts]


# ---- kept by fingerprint


def _name(source: Readable) -> str:
    return f"statistics-{source.fingerprint}"


def _read(source: Readable) -> dict[str, ColumnStatistics]:
    """Columns whose statistics are known."""
    keeper = ability(source, KeepsDerived)
    data = None if keeper is None else keeper.read_derived(_name(source))
    if data is None:
        return {}
    try:
        document = json.loads(data)
        if "digest" in document and digest_of(data) is None:  # older releases wrote none
            return {}
        return dict(Statistics.from_json(document))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return {}  # damaged, or of a later release: it can be computed again


def _write(source: Readable, columns: Mapping[str, ColumnStatistics]) -> None:
    keeper = ability(source, KeepsDerived)
    if keeper is not None:
        document = Statistics(columns, rows=_rows(source)).to_json()
        with suppress(OSError):  # nowhere to keep it: what was found is as good
            keeper.write_derived(_name(source), seal(document))


SEQUENCES = 128
"""So many sequences are looked at, at most."""

FRAMES = 1024
"""So many frames are, at most, shared among these sequences."""

_AT_ONCE = 8  # frames that are decoded before they are counted
_SMALL, _ABOUT = 300, 150  # pixels along the longer side: what is left whole, what larger pictures are thinned to


def evenly(count: int, most: int, /) -> Ints:
    """At most `most` numbers below `count`, in the middles of equal parts.

    Example:
        >>> evenly(100, 4).tolist(), evenly(3, 4).tolist()
        ([12, 37, 62, 87], [0, 1, 2])
    """
    taken = min(count, most)
    return (2 * np.arange(taken, dtype=np.int64) + 1) * count // (2 * max(taken, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """How often each channel has each value in some frames."""

    frames: int
    values: NDArray[np.int64]  # [channels, 256 or 65 536]


def statistics_of(
    source: Readable,
    name: str,
    points: Sequence[float],
    /,
    *,
    workers: int,
    executor: Executor | None = None,
    progress: bool | None = None,
) -> ColumnStatistics:
    """The statistics of a column of pictures, values scaled to [0, 1]; of depth maps the metres that were measured.

    Args:
        source: Any readable.
        name: The column.
        points: Quantiles.
        workers: Threads.
        executor: What looks at the sequences, in place of threads.
        progress: As for `statistics`.

    Raises:
        MissingFileError: A file is not there.
        CorruptFileError, CorruptFrameError, DecodeError: A picture cannot be decoded.
        ValidationError: Pictures of 8 and of 16 bits, or with other channels, in one column; or of floats.
    """
    excerpt = Excerpt.of(source)
    column = excerpt.schema[name]
    there = _there(excerpt, column)
    rows = np.flatnonzero(there)
    chosen = rows[evenly(len(rows), SEQUENCES)]
    look = partial(_look, excerpt, name, most=max(1, FRAMES // max(len(chosen), 1)))
    hidden = None if progress is None else not progress
    total: _Counted | None = None
    with progress_bar()(total=len(chosen), desc=f"pictures of {name}", unit=" sequences", disable=hidden) as bar:
        rows_of = chosen.tolist()
        if executor is None:
            for counted in each(rows_of, look, workers=workers):
                total = _joined(total, counted, name)
                bar.update()
        else:
            for counted in in_order(executor, look, rows_of, done=lambda _: bar.update()):
                total = _joined(total, counted, name)
    return _finished(total, column, points, nulls=int(len(there) - there.sum()))


def _there(excerpt: Excerpt, column: Column) -> NDArray[np.bool_]:
    """[rows] whether a row has a cell."""
    if column.category == "frames":
        return excerpt.lengths(column.name) >= 0
    parts = [np.asarray(batch.column(0).is_valid()) for batch in excerpt.batches([column.name])]
    return np.concatenate([np.zeros(0, np.bool_), *parts])


def _look(excerpt: Excerpt, name: str, row: int, *, most: int) -> _Counted | None:
    """Count the values of one sequence's frames."""
    view, kind = excerpt[row][name], excerpt.schema[name].type
    if view is None:
        return None
    if kind is not None and kind.is_depth:
        view = view.codes
    counted: _Counted | None = None
    numbers = evenly(len(view), most)
    for start in range(0, len(numbers), _AT_ONCE):
        try:
            frames = _thinned(view.decode(numbers[start : start + _AT_ONCE]))
        except DecodeError as error:
            where = f"Column {name!r} of {excerpt[row].id!r}: {error.message}"
            raise type(error)(where, path=error.path, hint=error.hint) from error
        if frames.dtype.kind == "f":
            raise ValidationError(
                f"Column {name!r} has pictures of {frames.dtype}: expected 8 or 16 bits, whose values are counted.",
                hint="Leave this column out.",
            )
        levels = 1 << (8 * frames.dtype.itemsize)
        values = [np.bincount(frames[..., c].ravel(), minlength=levels) for c in range(frames.shape[-1])]
        counted = _joined(counted, _Counted(frames=len(frames), values=np.stack(values).astype(np.int64)), name)
    return counted


def _thinned(frames: NDArray[Any]) -> NDArray[Any]:
    """Every k-th pixel of large pictures, in rows and in columns: it changes no pixel's value, as scaling would."""
    longer = max(frames.shape[1:3])
    step = 1 if longer < _SMALL else longer // _ABOUT
    return frames[:, ::step, ::step]


def _joined(one: _Counted | None, two: _Counted | None, name: str) -> _Counted | None:
    if one is None or two is None:
        return one or two
    if one.values.shape != two.values.shape:
        raise ValidationError(
            f"Column {name!r} has pictures of {_kind(one)} and of {_kind(two)}.",
            hint="Statistics are of pictures of one kind; leave this column out.",
        )
    return _Counted(frames=one.frames + two.frames, values=one.values + two.values)


def _kind(counted: _Counted) -> str:
    channels, levels = counted.values.shape
    return f"{channels} channels with {levels.bit_length() - 1} bits"


def _finished(total: _Counted | None, column: Column, points: Sequence[float], *, nulls: int) -> ColumnStatistics:
    values = np.zeros((3, 256), np.int64) if total is None else total.values
    channels, levels = values.shape
    metres = None if column.type is None else depth_levels(column.type, levels)
    if metres is not None:
        values = np.where(metres > 0, values, 0)  # 0 is no measurement
        numbers = [_of_levels(counts, points, metres) for counts in values]
    else:
        numbers = [_of_channel(counts, points) for counts in values]

    def scaled(which: int) -> NDArray[np.float64]:
        levels_of: NDArray[np.float64] = np.array([channel[which] for channel in numbers], np.float64)
        return levels_of if metres is not None else levels_of / (levels - 1)

    none = np.zeros(channels, np.int64)
    return ColumnStatistics(
        category=column.category,
        dtype=np.dtype(np.float64),
        nulls=nulls,
        count=values.sum(axis=1),
        min=scaled(0),
        max=scaled(1),
        mean=scaled(2),
        std=scaled(3),
        nan=none,
        inf=none,
        quantiles={point: scaled(4 + place) for place, point in enumerate(points)},
        frames=0 if total is None else total.frames,
    )


def _of_levels(counts: NDArray[np.int64], points: Sequence[float], metres: NDArray[np.float64]) -> list[float]:
    """As `_of_channel`, of values that stand for these metres, ascending."""
    least, most, *_, quantiles = *_of_channel(counts, ())[:2], [_of_channel(counts, [point])[-1] for point in points]
    if not counts.any():
        return [np.nan] * (4 + len(points))
    mean = float(np.average(metres, weights=counts))
    deviation = float(np.average((metres - mean) ** 2, weights=counts)) ** 0.5
    return [float(metres[int(least)]), float(metres[int(most)]), mean, deviation, *(metres[int(q)] for q in quantiles)]


def _of_channel(counts: NDArray[np.int64], points: Sequence[float]) -> list[float]:
    """Smallest, largest, mean, deviation and quantiles of values that occur so often; NaN where there is none."""
    count = int(counts.sum())
    if not count:
        return [np.nan] * (4 + len(points))
    there, up_to = np.flatnonzero(counts), np.cumsum(counts)
    # Python's whole numbers: sums of squares of 16 bits outgrow 64.
    pairs = [(int(value), int(counts[value])) for value in there]
    first = sum(value * often for value, often in pairs)
    second = sum(value * value * often for value, often in pairs)
    spread = count * second - first * first
    ranks = [int(np.searchsorted(up_to, rank_of(point, count), side="right")) for point in points]
    return [float(there[0]), float(there[-1]), first / count, (spread / count**2) ** 0.5, *map(float, ranks)]

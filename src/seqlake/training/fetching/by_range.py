"""Windows of remote flat shards: only their bytes are read, many windows in few requests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import SeqlakeError
from seqlake.files.ranges import GAP, PARALLEL
from seqlake.shards.files import ParquetShard, is_verified
from seqlake.shards.parquet.reader import ParquetReader
from seqlake.shards.reading import gathered
from seqlake.training.fetching.transfers import MeteredBlob, read_ranges
from seqlake.training.shard_cache.layers import beneath, is_remote, over

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Blob, Flat, Ints, Shard
    from seqlake.training.cache import Cache
    from seqlake.training.fetching.transfers import Transfers
    from seqlake.training.survey import WindowSurvey


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSteps:
    """Steps of one column of one shard.

    Attributes:
        flat: Where the column lies.
        rows: [n] rows of the shard.
        numbers: [n, W] step numbers, each one that its row has; rows without steps give zeros.
    """

    flat: Flat
    rows: Ints
    numbers: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A remote shard whose windows can be read by range.

    Attributes:
        flats: Where its columns lie.
        others: Further columns, read whole.
    """

    flats: dict[str, Flat]
    others: pa.Table


def look(shard: Shard, columns: Sequence[str], transfers: Transfers, /, *, others: Sequence[str] = ()) -> Look | None:
    """Where columns of a remote shard lie, if all of them can be read by range.

    Args:
        shard: The shard.
        columns: Its temporal columns that windows take.
        transfers: What reads the footer and the index, in a few requests.
        others: Columns to read whole.

    Returns:
        None where the shard is no remote Parquet, or a column is not flat: then fetch it whole.
    """
    base = beneath(shard)
    if base is None or not is_remote(shard):
        return None
    reader = over(shard, MeteredBlob(base.blob, transfers), kind=_Remote).open()
    try:
        flats = {name: flat for name in columns if (flat := reader.flat(name)) is not None}
        if len(flats) < len(columns):
            return None
        table = pa.Table.from_batches(gathered(reader.batches(others), shard.key)) if others else pa.table({})
        return Look(flats=flats, others=table)
    finally:
        reader.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remote(ParquetShard):
    """A file whose pages are not looked at: its own index is sealed, and the ETag says that it is the same file."""

    def open(self) -> ParquetReader:
        return ParquetReader(self.blob, index=self.index, headers=False)


def read_steps(wanted: Sequence[RangeSteps], transfers: Transfers, /) -> list[NDArray[Any]]:
    """Steps of any number of columns and shards, all fetched side by side.

    Neighbouring ranges become one request, so bytes between them may be read along: `transfers.traffic` counts what
    was read, and `asked_bytes` what had to be.

    Args:
        wanted: Steps, column by column and shard by shard.
        transfers: What fetches them.

    Returns:
        For each of `wanted` an array [n, W, ...] of `flat.dtype`, in the order asked for.

    Raises:
        ShardChangedError: A file changed.
        OSError: A range cannot be fetched; names the file and the cause.
        IndexError: A step that its row does not have.
    """
    spans = [_Spans.of(steps) for steps in wanted]
    blobs: dict[int, tuple[Blob, list[int]]] = {}
    for number, steps in enumerate(wanted):
        blob = steps.flat.blob
        blob = blob.inner if isinstance(blob, MeteredBlob) else blob
        blobs.setdefault(id(blob), (blob, []))[1].append(number)
    asked = [
        (blob, np.concatenate([spans[n].starts for n in numbers]), np.concatenate([spans[n].stops for n in numbers]))
        for blob, numbers in blobs.values()
    ]
    arrays: list[NDArray[Any]] = [np.zeros(0)] * len(wanted)
    for (_, numbers), parts in zip(blobs.values(), read_ranges(asked, transfers), strict=True):
        left: Iterator[memoryview] = iter(parts)
        for number in numbers:
            pieces = [next(left) for _ in range(len(spans[number].starts))]
            arrays[number] = spans[number].assembled(wanted[number], pieces)
    return arrays


def asked_bytes(wanted: Sequence[RangeSteps], /) -> int:
    """Bytes of all these steps, each counted once: the least that can be read."""
    total = 0
    for steps in wanted:
        has = steps.flat.steps[steps.rows] > 0
        places = steps.flat.start[steps.rows[has], None] + steps.numbers[has] * steps.flat.stride
        total += len(np.unique(places)) * _width(steps.flat)
    return total


def _width(flat: Flat) -> int:
    """Bytes of one step."""
    return prod(flat.shape) * flat.stored.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spans:
    """The byte ranges behind steps: one for each window, or for each step where they lie far apart.

    Attributes:
        has: Which of the rows have steps.
        starts, stops: [ranges] what to read.
        range_of: [rows that have, W] the range that a step lies in.
        offset: [rows that have, W] its first byte there.
    """

    has: NDArray[np.bool_]
    starts: Ints
    stops: Ints
    range_of: Ints
    offset: Ints

    @classmethod
    def of(cls, steps: RangeSteps) -> _Spans:
        flat = steps.flat
        counts = flat.steps[steps.rows]
        has = counts > 0
        if steps.numbers.shape[1] == 0:
            has = np.zeros_like(has)
        numbers = steps.numbers[has]
        if (numbers < 0).any() or (numbers >= counts[has, None]).any():
            raise IndexError("Expected steps that the rows have; move the numbers to the nearest that exists first.")
        places = flat.start[steps.rows[has], None] + numbers * flat.stride
        width = _width(flat)
        first, last = places.min(axis=1, initial=np.iinfo(np.int64).max), places.max(axis=1, initial=0)
        if len(places) and (last - first).max() > GAP:
            starts, where = np.unique(places, return_inverse=True)
            range_of = where.reshape(places.shape)
            return cls(has=has, starts=starts, stops=starts + width, range_of=range_of, offset=np.zeros_like(range_of))
        range_of = np.broadcast_to(np.arange(len(places))[:, None], places.shape)
        return cls(has=has, starts=first, stops=last + width, range_of=range_of, offset=places - first[:, None])

    def assembled(self, steps: RangeSteps, parts: Sequence[memoryview]) -> NDArray[Any]:
        """[n, W, ...] the steps, out of the ranges that were read."""
        flat, (rows, window) = steps.flat, steps.numbers.shape
        values = np.zeros((rows, window, *flat.shape), flat.dtype)
        if not len(parts):
            return values
        width = _width(flat)
        data = np.concatenate([np.frombuffer(part, np.uint8) for part in parts])
        sizes = self.stops - self.starts
        places = (np.cumsum(sizes) - sizes)[self.range_of] + self.offset
        if flat.stride == width and window > 1 and bool((np.diff(places, axis=1) == width).all()):
            whole = data[places[:, :1] + np.arange(window * width)]
        else:
            whole = data[places[:, :, None] + np.arange(width)]
        steps_read = np.ascontiguousarray(whole).reshape(-1).view(flat.stored)
        values[self.has] = steps_read.reshape(-1, window, *flat.shape)
        return values


_QUARTER = 0.25
_AT_A_TIME = 32 << 20  # bytes of windows that are read together
_MOST = 1 << 15  # windows that are read together
_FEW = 1 << 9  # where nothing says how large they are


class Ranged:
    """Shards whose windows are read by range; belongs to one process.

    Args:
        survey: The dataset through the window.
        cache: Says what shall be fetched.
        transfers: What reads stores.
        images: Windows take images that stand in rows, too.

    Attributes:
        wanted: [shards] True where windows shall be read by range, if they can.
        flats: Open shard of that kind -> column -> where it lies.
    """

    def __init__(self, survey: WindowSurvey, cache: Cache | None, transfers: Transfers, *, images: bool) -> None:
        # What is compared with checksums is read by the page: such shards are fetched whole.
        self.wanted: NDArray[np.bool_] = chosen(survey, cache, images=images)
        if self.wanted.any():
            self.wanted &= ~np.array([is_verified(shard) for shard in survey.shards], np.bool_)
        self.flats: dict[int, dict[str, Flat]] = {}
        self._survey = survey
        self._transfers = transfers
        self._columns = [track.column for track in survey.tracks]
        self._stamps = survey.times  # looked at whole
        self._looks: dict[int, Look] = {}

    @property
    def portion(self) -> int | None:
        """Samples whose windows are read together; None where no shard is wanted by range."""
        if not self.wanted.any():
            return None
        sizes = [self._survey.step_bytes.get(track.column, 0) * track.width for track in self._survey.tracks]
        return max(1, min(_MOST, _AT_A_TIME // sum(sizes))) if all(sizes) else _FEW

    def has(self, shards: Ints) -> NDArray[np.bool_]:
        """[n] whether shards, which are open, are of this kind."""
        return np.isin(shards, list(self.flats)) if self.flats else np.zeros(len(shards), np.bool_)

    def look_ahead(self, shards: Sequence[int], names: Sequence[str]) -> None:
        """Look into some shards side by side, of which these columns are wanted."""
        wanted = [shard for shard in shards if self.wanted[shard] and shard not in self.flats]
        if len(wanted) < 2:
            return
        others = self._others(names)

        def one(shard: int) -> Look | None:
            try:
                return look(self._survey.shards[shard], self._columns, self._transfers, others=others)
            except (SeqlakeError, OSError):
                return None  # `look` tries again, and tells why

        with ThreadPoolExecutor(min(PARALLEL, len(wanted))) as pool:
            looks = zip(wanted, pool.map(one, wanted), strict=True)
            self._looks.update({shard: seen for shard, seen in looks if seen is not None})

    def look(self, shard: int, names: Sequence[str]) -> Look | None:
        """Where the windows of a shard lie, and its other columns of these; None where it must be read whole."""
        if not self.wanted[shard]:
            return None
        return self._looks.pop(shard, None) or look(
            self._survey.shards[shard], self._columns, self._transfers, others=self._others(names)
        )

    def _others(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name in self._stamps or name not in self._columns]


def chosen(survey: WindowSurvey, cache: Cache | None, /, *, images: bool) -> NDArray[np.bool_]:
    """[shards] whose windows shall be read by range, where they are remote and flat; nothing is read to find out.

    With `fetch="auto"` those of which the windows of an epoch are less than a quarter of what would be fetched whole.
    Steps that several windows take count as often, since each window is read when it comes, and each range counts as
    `GAP` bytes more: that is what one more request costs.
    """
    fetch = "auto" if cache is None else cache.fetch
    shards = len(survey.shards)
    if fetch != "auto" or images or not survey.tracks:  # images cannot be read but by the row group
        return np.full(shards, fetch == "range" and bool(survey.tracks))
    windows, taken, held = survey.axis.shard_windows, np.zeros(shards, np.int64), np.zeros(shards)
    for track in survey.tracks:
        size, counts = survey.step_bytes.get(track.column, 0), survey.counts.get(track.column)
        if counts is None or not size:
            return np.zeros(shards, np.bool_)  # samples, or steps of unknown size
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.maximum(counts, 0))])
        taken += windows * (track.width * size + GAP)
        held += np.diff(ends[survey.first_rows]) * size
    if cache is not None and cache.path is not None:  # whole files, whichever of their rows are wanted
        held *= [_all_rows(shard) / max(1, shard.rows) for shard in survey.shards]
    return taken < held * _QUARTER


def _all_rows(shard: Shard) -> int:
    base = beneath(shard)
    return shard.rows if base is None else base.rows

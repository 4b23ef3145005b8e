"""The shards of which a loader reads windows by range: which they are, and where their columns lie."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import SeqlakeError
from seqlake.files.ranges import GAP, PARALLEL
from seqlake.shards.files import is_verified
from seqlake.training.fetching.by_range import look
from seqlake.training.shard_cache.layers import beneath

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Flat, Ints, Shard
    from seqlake.training.cache import Cache
    from seqlake.training.fetching.by_range import Look
    from seqlake.training.fetching.transfers import Transfers
    from seqlake.training.survey import Survey

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

    def __init__(self, survey: Survey, cache: Cache | None, transfers: Transfers, *, images: bool) -> None:
        # What is compared with checksums is read by the page: such shards are fetched whole.
        self.wanted = chosen(survey, cache, images=images)
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


def chosen(survey: Survey, cache: Cache | None, /, *, images: bool) -> NDArray[np.bool_]:
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

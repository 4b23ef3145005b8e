"""Which rows of a store belong to which scene, however its intervals lie.

In stores as they are recorded, scenes tile the frames and frames tile agents and traffic lights: then the lengths say
everything. In others (merged scenes, rows cut by hand) intervals are kept as they are, every scene is given the rows
that its intervals name, and rows that nobody names become rows of their own, the orphans, so that nothing is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import InvalidMetadataError
from seqlake.formats.l5kit.store import (
    AGENT_INTERVAL,
    AGENTS,
    FACE_INTERVAL,
    FACES,
    FRAME_INTERVAL,
    FRAMES,
    SceneArrays,
    in_range,
    refuse_overlap,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints

_SCENE_COSTS = 1024  # bytes of memory that say where a scene is
_ORPHANS = 100_000  # rows of one array that are put into one orphan
NO_RUNS = np.zeros((0, 2), np.int64)
CHILDREN = {AGENTS: AGENT_INTERVAL, FACES: FACE_INTERVAL}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SceneRows:
    """One row of the view: a scene, or an orphan.

    Attributes:
        scene: Its number; -1 for an orphan.
        runs: For frames, agents and traffic lights, [n, 2] the rows it holds: first, and after the last.
    """

    scene: int
    runs: dict[str, Ints]

    def count(self, name: str, /) -> int:
        """Rows of one array."""
        runs = self.runs.get(name, NO_RUNS)
        return int((runs[:, 1] - runs[:, 0]).sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SceneLayout:
    """Every row of the view.

    Attributes:
        tiles: Lengths alone say all intervals.
        rows: Scenes in their order, then orphans.
        scenes: The array of scenes, read whole.
    """

    tiles: bool
    rows: Sequence[SceneRows]
    scenes: NDArray[Any] = field(repr=False)


def layout_of(store: SceneArrays[Any], /) -> SceneLayout:
    """Look at the intervals of all scenes and frames.

    Raises:
        InvalidMetadataError: Scenes or frames without intervals, or with some that leave their array.
    """
    for array in store.arrays.values():
        array.refuse_empty(each=_SCENE_COSTS if array is store.scenes else 0)
    scenes = store.scenes[:]
    present = [name for name in CHILDREN if name in store.arrays and CHILDREN[name] in (store.frames.dtype.names or ())]
    for array, interval in ((store.scenes, FRAME_INTERVAL), (store.frames, AGENT_INTERVAL)):
        if interval not in (array.dtype.names or ()):
            raise InvalidMetadataError(
                f"{store.location}: {array.name} has no field {interval!r}.", path=store.location
            )
    parts = list(store.frames.each_chunk())
    intervals = {
        name: np.concatenate([np.zeros((0, 2), np.int64), *(part[CHILDREN[name]] for part in parts)])
        for name in present
    }
    sizes = {name: len(array) for name, array in store.arrays.items()}
    place = store.location
    frames_named = in_range(scenes[FRAME_INTERVAL], sizes[FRAMES], what="scene", array=FRAMES, path=place)
    for name, pairs in intervals.items():
        intervals[name] = in_range(pairs, sizes[name], what="frame", array=name, path=place)
    if (
        len(scenes)
        and _tile(frames_named, sizes[FRAMES])
        and all(_tile(intervals[name], sizes[name]) for name in present)
        and (FACES not in sizes or FACES in present or not sizes[FACES])
    ):
        rows = _tiled(frames_named, {name: intervals[name] for name in present})
        return SceneLayout(tiles=True, rows=rows, scenes=scenes)
    refuse_overlap(int((frames_named[:, 1] - frames_named[:, 0]).sum()), sizes[FRAMES], array=FRAMES, path=place)
    for name, pairs in intervals.items():
        ends = np.concatenate([[0], np.cumsum(pairs[:, 1] - pairs[:, 0])])
        refuse_overlap(
            int((ends[frames_named[:, 1]] - ends[frames_named[:, 0]]).sum()), sizes[name], array=name, path=place
        )
    return SceneLayout(tiles=False, rows=_irregular(frames_named, intervals, sizes), scenes=scenes)


def _tile(intervals: Ints, size: int) -> bool:
    """Whether intervals begin at 0, follow each other and end at the array's end."""
    if not len(intervals):
        return size == 0
    follow = bool((intervals[1:, 0] == intervals[:-1, 1]).all()) and bool((intervals[:, 0] <= intervals[:, 1]).all())
    return follow and int(intervals[0, 0]) == 0 and int(intervals[-1, 1]) == size


def _tiled(frames_named: Ints, intervals: dict[str, Ints]) -> list[SceneRows]:
    edges = {name: np.concatenate([[0], pairs[:, 1]]) for name, pairs in intervals.items()}
    return [
        SceneRows(
            scene=scene,
            runs={
                FRAMES: np.array([[a, b]], np.int64),
                **{name: np.array([[edge[a], edge[b]]], np.int64) for name, edge in edges.items()},
            },
        )
        for scene, (a, b) in enumerate(frames_named.tolist())
    ]


def _merged(intervals: Ints) -> Ints:
    """[m, 2] the same rows in the same order in fewer runs."""
    kept = intervals[intervals[:, 1] > intervals[:, 0]]
    if not len(kept):
        return NO_RUNS
    breaks = np.flatnonzero(kept[1:, 0] != kept[:-1, 1])
    firsts, lasts = np.concatenate([[0], breaks + 1]), np.concatenate([breaks, [len(kept) - 1]])
    return np.stack([kept[firsts, 0], kept[lasts, 1]], axis=1)


def _irregular(frames_named: Ints, intervals: dict[str, Ints], sizes: dict[str, int]) -> list[SceneRows]:
    named = {name: np.zeros(sizes[name], np.bool_) for name in (FRAMES, *CHILDREN) if name in sizes}
    rows = []
    for scene, (a, b) in enumerate(frames_named.tolist()):
        frames = np.array([[a, b]], np.int64) if b > a else NO_RUNS
        rows.append(SceneRows(scene=scene, runs={FRAMES: frames, **{n: _merged(intervals[n][a:b]) for n in intervals}}))
    for row in rows:
        for name, runs in row.runs.items():
            for a, b in runs.tolist():
                named[name][a:b] = True
    # Frames that no scene names still name agents; those go with them.
    for a, b in _pieces(~named[FRAMES]):
        row = SceneRows(
            scene=-1, runs={FRAMES: np.array([[a, b]], np.int64), **{n: _merged(intervals[n][a:b]) for n in intervals}}
        )
        rows.append(row)
        for name in intervals:
            for first, last in row.runs[name].tolist():
                named[name][first:last] = True
    for name in CHILDREN:
        if name in named:
            rows += [
                SceneRows(scene=-1, runs={FRAMES: NO_RUNS, name: np.array([[a, b]], np.int64)})
                for a, b in _pieces(~named[name])
            ]
    return rows


def _pieces(wanted: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Runs of True, cut to at most `_ORPHANS` rows."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], wanted.view(np.int8), [0]])))
    return [
        (first, min(first + _ORPHANS, stop))
        for start, stop in edges.reshape(-1, 2).tolist()
        for first in range(start, stop, _ORPHANS)
    ]

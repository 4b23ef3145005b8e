"""One row per agent and scene, step by step from where it was seen first to where it was seen last.

A derived view: steps at which the agent was not seen are zeros with `available` 0, and of two sightings in one frame
the first counts, as it does for l5kit.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.arguments import takes
from seqlake.errors import DatasetNotFoundError, InvalidMetadataError, SchemaMismatchError
from seqlake.formats.l5kit.columns import step_cells, step_column, values_of
from seqlake.formats.l5kit.converted import ROWS, as_store
from seqlake.formats.l5kit.layout import layout_of
from seqlake.formats.l5kit.mapping import SCENE, TIMES, Mapping
from seqlake.formats.l5kit.scenes import SceneCells, scene_bytes
from seqlake.formats.l5kit.store import AGENTS, FRAMES, SCENES, SceneArrays, expect_fields, grouped, stem_of
from seqlake.shards.scanned import ScannedDataset, ScannedReader, ScannedShard
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Column, Schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.formats.l5kit.layout import SceneRows
    from seqlake.protocols import Ints, Readable

TRACK, HOST, FIRST, AVAILABLE, SELECTION = "track_id", "host", "first_frame", "available", "selection"
_THREADS = 4
_SPARSE, _FEW_STEPS = 100, 1_000_000  # steps of tracks for each sighting, and how many are let be in any case


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tracks:
    """Tracks of some scenes, in the order of scenes and of their first sighting.

    Attributes:
        scene: [tracks] which of the scenes.
        track: [tracks] their ids.
        first: [tracks] the frame of the scene at which each begins.
        steps: [tracks] T.
    """

    scene: Ints
    track: NDArray[np.uint64]
    first: Ints
    steps: Ints


def found_in(cells: SceneCells, scenes: int, /) -> tuple[Tracks, Ints]:
    """The tracks of some scenes, and where each step comes from.

    Args:
        cells: Of the scenes.
        scenes: How many.

    Returns:
        (tracks, [all steps] the row of `cells.array("agents")` of each; -1 where the agent was not seen).
    """
    frames, agents = cells.offsets(FRAMES), cells.offsets(AGENTS)
    counts, ids = cells.counts(AGENTS), cells.array(AGENTS)[TRACK]
    parts, sources, at = [], [np.zeros(0, np.int64)], 0
    for scene in range(scenes):
        counts_of_frames = counts[frames[scene] : frames[scene + 1]]
        frame = np.repeat(np.arange(len(counts_of_frames)), counts_of_frames)
        tracks, source = _one_scene(ids[agents[scene] : agents[scene] + len(frame)], frame)
        parts.append((np.full(len(tracks[0]), scene), *tracks))
        sources.append(np.where(source < 0, -1, source + agents[scene]))
        at += len(source)
    kinds: tuple[Any, ...] = (np.int64, ids.dtype, np.int64, np.int64)
    merged = [
        np.concatenate([np.zeros(0, kind), *(part[n] for part in parts)]).astype(kind) for n, kind in enumerate(kinds)
    ]
    tracks_of_scenes = Tracks(scene=merged[0], track=merged[1], first=merged[2], steps=merged[3])
    return tracks_of_scenes, np.concatenate(sources)


def _one_scene(ids: NDArray[Any], frame: Ints) -> tuple[tuple[NDArray[Any], Ints, Ints], Ints]:
    unique, seen, owner = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(seen, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    owner = rank[owner]
    first = frame[seen[order]]
    last = np.full(len(order), -1, np.int64)
    last[owner] = frame  # rows are in the order of frames, so the last one stays
    steps = last - first + 1
    begins = np.cumsum(steps) - steps
    if int(steps.sum()) > _FEW_STEPS + _SPARSE * len(ids):
        raise InvalidMetadataError(
            f"The tracks of a scene have {int(steps.sum())} steps from first to last, and only {len(ids)} sightings.",
            hint='Read the scenes: scan(store, view="scenes").',
        )
    source = np.full(int(steps.sum()), -1, np.int64)
    place = begins[owner] + frame - first[owner]
    source[place[::-1]] = np.arange(len(ids))[::-1]  # the first sighting in a frame is written last
    return (unique[order], first, steps), source


@takes(rows=ROWS)
def tracks_of(rows: SceneArrays[Any] | Readable, /, *, mask: NDArray[Any] | str | None = None) -> ScannedDataset:
    """The view of tracks; reads all track ids once. Shards are tracks of neighbouring scenes.

    Args:
        rows: An open store, or a dataset that was converted from one.
        mask: [agents, ...] what `selection` shows of each sighting, as `select_agents` gives it, or the name of a mask
            of the store; None: no such column.

    Raises:
        DatasetNotFoundError: No mask of that name.
        SchemaMismatchError: A mask of another number of rows; rows that are no scenes.

    Example:
        ```python
        ds = sl.convert(tracks_of(sl.open("data/drives")), "data/tracks")
        ```
    """
    store = as_store(rows)
    mask = _mask(store, mask)
    expect_fields(store.agents.dtype, [TRACK], array=AGENTS, path=store.location)
    layout = layout_of(store)
    mapping = Mapping.of(store, tiles=layout.tiles, rated=True)
    named = [row for row in layout.rows if row.scene >= 0]
    groups = [named[a:b] for a, b in grouped([scene_bytes(row, mapping) for row in named])]

    def look(group: Sequence[SceneRows]) -> Tracks:
        return found_in(SceneCells(store, mapping, group, [""] * len(group), pa.schema([])), len(group))[0]

    with ThreadPoolExecutor(_THREADS) as pool:
        tracks_of_groups = list(pool.map(look, groups))
    schema, stem = schema_of(mapping, store, mask), stem_of(store.location)
    state = hashlib.sha256(store.state.encode() + (b"" if mask is None else mask.tobytes())).hexdigest()
    shards = [
        ScannedShard(
            key=f"{stem}-tracks-{group[0].scene:06d}#{state[:16]}",
            rows=len(tracks.steps),
            nbytes=int(tracks.steps.sum()) * store.agents.metadata.row_bytes,
            reader=partial(
                TrackReader,
                store,
                mapping,
                group,
                tracks,
                schema.arrow,
                mask=_of_scenes(mask, group),
                heads=store.heads([one.scene for one in group]),
            ),
        )
        for group, tracks in zip(groups, tracks_of_groups, strict=True)
        if len(tracks.steps)
    ]
    state = hashlib.sha256(f"tracks {state}".encode()).hexdigest()[:32]
    things = mapping.things(schema, array=AGENTS, other="agents: where each was seen")
    return ScannedDataset(root=store.location, schema=schema, parts=shards, state=state, things=things)


def _mask(store: SceneArrays[Any], mask: NDArray[Any] | str | None) -> NDArray[Any] | None:
    if mask is None:
        return None
    if isinstance(mask, str):
        if mask not in store.masks:
            known = ", ".join(store.masks) or "none"
            raise DatasetNotFoundError(f"{store.location} has no mask {mask!r}; it has {known}.", path=store.location)
        mask = store.masks[mask][:]
    rows = np.asarray(mask)
    if len(rows) != len(store.agents):
        raise SchemaMismatchError(f"A mask of {len(rows)} rows does not fit {len(store.agents)} agents.")
    return rows.view(np.uint8) if rows.dtype == np.bool_ else rows


def schema_of(mapping: Mapping, store: SceneArrays[Any], mask: NDArray[Any] | None, /) -> Schema:
    """The columns of tracks."""
    columns: dict[str, Column] = {
        SCENE: Column(SCENE, pa.int64(), None, nullable=False),
        TRACK: Column(TRACK, pa.from_numpy_dtype(store.agents.dtype[TRACK].newbyteorder("=")), None, nullable=False),
        HOST: Column(HOST, pa.string(), None, nullable=False),
        FIRST: Column(FIRST, pa.int64(), None, nullable=False),
    }
    rate = {} if mapping.rate is None else {"fps": mapping.rate}
    if mapping.times:
        columns[TIMES] = step_column(TIMES, np.dtype("<i8"), **rate)
    columns[AVAILABLE] = step_column(AVAILABLE, np.dtype("u1"), **rate)
    for name in store.agents.dtype.names or ():
        if name != TRACK:
            columns[name] = step_column(name, store.agents.dtype[name], **rate)
    if mask is not None:
        columns[SELECTION] = step_column(SELECTION, np.dtype((mask.dtype, mask.shape[1:])), **rate)
    return Schema(columns, metadata=Metadata(extra={"source": {"format": "l5kit", "view": "tracks"}}))


class TrackReader(ScannedReader):
    """Tracks of some scenes: their agents are read once, when a column of theirs is asked for.

    Args:
        store: Where they lie.
        mapping: How its arrays are columns.
        scenes: The scenes.
        tracks: Their tracks.
        types: The logical Arrow schema.
        mask: [agents of these scenes, ...] see `tracks_of`.
        heads: (id, number) of each scene.
    """

    most_rows: int | None = 4096

    def __init__(
        self,
        store: SceneArrays[Any],
        mapping: Mapping,
        scenes: Sequence[SceneRows],
        tracks: Tracks,
        types: pa.Schema,
        /,
        *,
        mask: NDArray[Any] | None,
        heads: Sequence[tuple[str, int]],
    ) -> None:
        super().__init__(types, len(tracks.steps), location=store.location)
        self._scenes = len(scenes)
        self._heads = heads
        self._tracks = tracks
        self._mask = mask
        self._cells = SceneCells(store, mapping, scenes, [""] * len(scenes), pa.schema([]))
        self._source: Ints | None = None

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] T of a column with steps."""
        return self._tracks.steps if pa.types.is_list(self.type_of(column)) else None

    def arrays(self, schema: pa.Schema, rows: Ints, /) -> list[pa.Array]:
        """The cells of some tracks."""
        return [self._column(field.name, rows, field.type) for field in schema]

    def _column(self, name: str, rows: Ints, kind: pa.DataType) -> pa.Array:
        tracks = self._tracks
        scenes = tracks.scene[rows]
        if name in {SCENE, ID}:
            heads = [self._heads[scene] for scene in scenes.tolist()]
            if name == SCENE:
                return pa.array([number for _, number in heads], kind)
            named = zip(heads, tracks.track[rows].tolist(), strict=True)
            return pa.array([f"{scene}-{track}" for (scene, _), track in named], kind)
        if name == TRACK:
            return pa.array(tracks.track[rows], kind)
        if name == FIRST:
            return pa.array(tracks.first[rows], kind)
        if name == HOST:
            return self._hosts(kind).take(pa.array(scenes))
        return self._steps(name, rows, kind)

    def _hosts(self, kind: pa.DataType) -> pa.Array:
        scenes = self._cells.array(SCENES)
        if HOST not in (scenes.dtype.names or ()):
            return pa.array([""] * len(scenes), kind)
        return values_of(scenes[HOST], name=HOST)

    def _steps(self, name: str, rows: Ints, kind: pa.DataType) -> pa.Array:
        tracks = self._tracks
        steps = tracks.steps[rows]
        offsets = np.concatenate([[0], np.cumsum(steps)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], steps)
        if name == TIMES:
            begin = self._cells.offsets(FRAMES)[tracks.scene[rows]] + tracks.first[rows]
            times = self._cells.array(FRAMES)[TIMES]
            return step_cells(times[np.repeat(begin, steps) + within].astype(np.int64), offsets, kind, name=name)
        begins = np.cumsum(tracks.steps) - tracks.steps
        source = self._sources()[np.repeat(begins[rows], steps) + within]
        if name == AVAILABLE:
            return step_cells((source >= 0).astype(np.uint8), offsets, kind, name=name)
        values = self._values(name)
        out = np.zeros((len(source), *values.shape[1:]), values.dtype)
        out[source >= 0] = values[source[source >= 0]]
        return step_cells(out, offsets, kind, name=name)

    def _sources(self) -> Ints:
        if self._source is None:
            self._source = found_in(self._cells, self._scenes)[1]
        return self._source

    def _values(self, name: str) -> NDArray[Any]:
        """[agents, ...] one field, or the selection, of all agents of the shard."""
        if name != SELECTION:
            return self._cells.array(AGENTS)[name]
        assert self._mask is not None
        return self._mask


def _of_scenes(mask: NDArray[Any] | None, scenes: Sequence[SceneRows]) -> NDArray[Any] | None:
    """The rows of a mask that belong to the agents of some scenes."""
    if mask is None:
        return None
    runs = [run for scene in scenes for run in scene.runs[AGENTS].tolist()]
    return np.concatenate([mask[:0], *(mask[a:b] for a, b in runs)])

"""One row per window around one sighting of an agent: the samples of `AgentDataset`, of a store or a dataset.

The steps of a shard's tracks are laid end to end in memory with zeros between them, and every row is a place in there:
windows that overlap share their bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.arguments import INDEX, STEPS, takes
from seqlake.errors import SchemaMismatchError
from seqlake.files.blobs import MemoryBlob
from seqlake.formats.l5kit.columns import step_cells
from seqlake.formats.l5kit.converted import ROWS, as_store
from seqlake.formats.l5kit.mapping import KEY, SCENE
from seqlake.formats.l5kit.selecting import MIN_FRAME_FUTURE, MIN_FRAME_HISTORY, select_agents, selected
from seqlake.formats.l5kit.store import SceneArrays
from seqlake.formats.l5kit.tracks import AVAILABLE, FIRST, HOST, SELECTION, TRACK, tracks_of
from seqlake.protocols import Flat
from seqlake.shards.reading import runs_of
from seqlake.shards.scanned import ScannedDataset, ScannedReader, ScannedShard
from seqlake.spec.schema import ID, Column, Schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints, Readable, Shard, ShardReader

FRAME = "frame_index"
_SINGLES = (SCENE, TRACK, HOST)
_OF_TRACKS = (SCENE, TRACK, FIRST, AVAILABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What a window holds: `history` steps, now, `future` steps."""

    history: int
    future: int

    @property
    def width(self) -> int:
        """Steps of a window."""
        return self.history + 1 + self.future


@takes(rows=ROWS, history=STEPS, future=STEPS, min_frame_history=INDEX, min_frame_future=INDEX)
def windows(
    rows: SceneArrays[Any] | Readable,
    /,
    *,
    mask: NDArray[Any] | str | None = None,
    history: int = 10,
    future: int = 50,
    min_frame_history: int = MIN_FRAME_HISTORY,
    min_frame_future: int = MIN_FRAME_FUTURE,
) -> ScannedDataset:
    """Windows around the sightings of agents: the samples of `AgentDataset`.

    Args:
        rows: A store, or `sl.open` of what one was converted to: rows of scenes or of tracks.
        mask: Of stores and scenes: which sightings are selected, see `tracks_of`; by default l5kit's rules decide. Rows
            of tracks have their own, in the column `selection`; without that every sighting counts.
        history: Steps before now.
        future: Steps after now; steps beyond the first and last sighting are zeros with `available` 0.
        min_frame_history: Of past frames that a selected sighting must have, where the selection says them.
        min_frame_future: Of future frames.

    Raises:
        SchemaMismatchError: Rows that are neither scenes nor tracks; a mask of another number of rows.
        DatasetNotFoundError: No mask of that name.

    Example:
        ```python
        source = windows(sl.open("data/drives"), history=10, future=50)
        loader = sl.Loader(source, window=sl.Window({"centroid": range(61), ...}, stride=61), batch_size=64)
        ```
    """
    tracks = _tracks_in(rows, mask)
    span, shards = Span(history=history, future=future), tracks.shards()
    places = [_places(shard, tracks.schema, (min_frame_history, min_frame_future)) for shard in shards]
    state, schema = _state(span, places), _schema(tracks.schema)
    return ScannedDataset(
        root=tracks.root,
        schema=schema,
        parts=[
            ScannedShard(
                key=f"{shard.key}-windows-{state[:16]}",
                rows=len(place.row),
                nbytes=shard.nbytes,  # windows share the bytes of the tracks
                reader=partial(WindowReader, shard, span, place, schema.arrow, f"{shard.key}-windows-{state[:16]}"),
            )
            for shard, place in zip(shards, places, strict=True)
            if len(place.row)
        ],
        state=hashlib.sha256(f"{tracks.fingerprint} {state}".encode()).hexdigest()[:32],
    )


def are_tracks(schema: Schema, /) -> bool:
    """Whether these are the columns of tracks."""
    return all(name in schema for name in _OF_TRACKS)


def _tracks_in(rows: SceneArrays[Any] | Readable, mask: NDArray[Any] | str | None) -> Readable:
    """The tracks that rows are, or that are in them."""
    if isinstance(rows, SceneArrays) or KEY in rows.schema.metadata.extra:
        store = as_store(rows)
        return tracks_of(store, mask=select_agents(store) if mask is None else mask)
    if not are_tracks(rows.schema):
        missing = [name for name in _OF_TRACKS if name not in rows.schema]
        raise SchemaMismatchError(
            "Expected rows of scenes, whose metadata have the key 'l5kit', or rows of tracks, which have a column "
            f"{missing[0]!r}; found {', '.join(rows.schema)}.",
            hint='sl.convert("sample.zarr", "data/drives") makes rows of scenes, of scan(store, view="tracks") tracks.',
        )
    if mask is not None:
        raise ValueError(
            f"mask: these are rows of tracks, whose selection is the column {SELECTION!r}. Give the mask when they are "
            'made: scan(store, view="tracks", mask=...).'
        )
    return rows


def _schema(tracks: Schema) -> Schema:
    """Which sighting it is, then the windows of all columns of the tracks."""
    columns: dict[str, Column] = {name: tracks[name] for name in _SINGLES if name in tracks}
    columns[FRAME] = Column(FRAME, pa.int64(), None, nullable=False)
    columns |= {name: tracks[name] for name in tracks if tracks[name].category == "temporal" and name != SELECTION}
    return Schema(columns)


def _state(span: Span, places: Sequence[Places]) -> str:
    state = hashlib.sha256(repr(span).encode())
    for place in places:
        state.update(place.tracks[place.row].tobytes())
        state.update(place.step.tobytes())
    return state.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Places:
    """Where the windows of a shard are.

    Attributes:
        tracks: [tracks] those of the shard that have a window.
        row: [windows] which of them.
        step: [windows] the step of the track that is now.
        steps: [tracks] T.
        first: [tracks] the frame at which each begins.
    """

    tracks: Ints
    row: Ints
    step: Ints
    steps: Ints
    first: Ints


def _places(shard: Shard, schema: Schema, least: tuple[int, int]) -> Places:
    reader = shard.open()
    try:
        names = [FIRST, AVAILABLE, *([SELECTION] if SELECTION in schema else [])]
        table = pa.Table.from_batches(reader.batches(names))
    finally:
        reader.close()
    cells = table[AVAILABLE].combine_chunks()
    steps = np.asarray(pa.compute.list_value_length(cells), np.int64)
    chosen = cells.flatten().to_numpy() != 0
    if SELECTION in schema:
        inner = table[SELECTION].combine_chunks().flatten()
        pairs = pa.types.is_nested(inner.type)
        mask = inner.flatten().to_numpy().reshape(len(chosen), -1) if pairs else inner.to_numpy()
        chosen &= selected(mask, *least)
    at = np.flatnonzero(chosen)
    owner = np.repeat(np.arange(len(steps)), steps)[at]
    begins = np.cumsum(steps) - steps
    used, row = np.unique(owner, return_inverse=True)
    first = table[FIRST].to_numpy().astype(np.int64)
    return Places(tracks=used, row=row, step=at - begins[owner], steps=steps[used], first=first[used])


class WindowReader(ScannedReader):
    """Reads the windows of one shard of tracks.

    Args:
        tracks: The shard.
        span: What a window holds.
        places: Where they are.
        types: The logical Arrow schema.
        key: Of this shard, for messages.
    """

    most_bytes = 16 << 20

    def __init__(self, tracks: Shard, span: Span, places: Places, types: pa.Schema, key: str, /) -> None:
        super().__init__(types, len(places.row))
        self._shard = tracks
        self._span = span
        self._places = places
        self._key = key
        self._reader: ShardReader | None = None
        self._laid: dict[str, NDArray[Any]] = {}

    def parts(self, rows: Ints, columns: Sequence[str], /) -> Iterator[Ints]:
        """Runs of rows whose windows of these columns make a batch."""
        width = sum(self._step_bytes(name) for name in columns) * self._span.width
        return runs_of(rows, np.full(len(rows), max(1, width)), most_bytes=self.most_bytes)

    def arrays(self, schema: pa.Schema, rows: Ints, /) -> list[pa.Array]:
        """The cells of some windows."""
        return [self._column(field.name, rows, field.type) for field in schema]

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] the width of a window, for every column with steps."""
        return np.full(self.count, self._span.width, np.int64) if pa.types.is_list(self.type_of(column)) else None

    def flat(self, column: str, /) -> Flat | None:
        """Every window as a place in the steps that lie end to end; None for columns without steps."""
        if not pa.types.is_list(self.type_of(column)):
            return None
        laid = self._steps(column)
        stride = laid.dtype.itemsize * int(np.prod(laid.shape[1:], dtype=np.int64))
        return Flat(
            blob=MemoryBlob(laid.reshape(-1).view(np.uint8).data, location=f"{self._key}/{column}"),
            start=self._begins(np.arange(self.count)) * stride,
            steps=np.full(self.count, self._span.width, np.int64),
            stride=stride,
            stored=laid.dtype,
            dtype=laid.dtype,
            shape=laid.shape[1:],
        )

    def close(self) -> None:
        """Close the shard of tracks."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _step_bytes(self, name: str) -> int:
        kind, size = self.types.field(name).type, 1
        while pa.types.is_nested(kind):
            size *= kind.list_size if pa.types.is_fixed_size_list(kind) else 1
            kind = kind.value_type
        return 16 if pa.types.is_string(kind) else size * kind.bit_width // 8

    def _begins(self, rows: Ints) -> Ints:
        """[n] the first step of each window among those that lie end to end."""
        places = self._places
        return self._offsets()[places.row[rows]] + places.step[rows] - self._span.history

    def _offsets(self) -> Ints:
        """[tracks] the first step of each track: a gap between two is long enough for both."""
        span, steps = self._span, self._places.steps
        return span.history + np.cumsum(steps) - steps + max(span.history, span.future) * np.arange(len(steps))

    def _steps(self, name: str) -> NDArray[Any]:
        """[steps, ...] of the tracks that have windows, with zeros between them."""
        if name not in self._laid:
            [cells] = self._tracks([name])
            values = cells.flatten()
            size = values.type.list_size if pa.types.is_fixed_size_list(values.type) else 0
            flat = (values.flatten() if pa.types.is_nested(values.type) else values).to_numpy()
            dense = flat.reshape(len(values), size) if size else flat
            steps, offsets = self._places.steps, self._offsets()
            total = int(offsets[-1] + steps[-1]) + self._span.future if len(steps) else 0
            laid = np.zeros((total, *dense.shape[1:]), dense.dtype)
            laid[np.repeat(offsets - (np.cumsum(steps) - steps), steps) + np.arange(len(dense))] = dense
            self._laid[name] = laid
        return self._laid[name]

    def _tracks(self, columns: Sequence[str]) -> list[Any]:
        if self._reader is None:
            self._reader = self._shard.open()
        table = pa.Table.from_batches(self._reader.batches(list(columns), rows=self._places.tracks))
        return [table[name].combine_chunks() for name in columns]

    def _column(self, name: str, rows: Ints, kind: pa.DataType) -> pa.Array:
        places, span = self._places, self._span
        if name == FRAME:
            return pa.array(places.first[places.row[rows]] + places.step[rows], kind)
        if name == ID:
            [ids] = self._tracks([ID])
            frames = (places.first[places.row[rows]] + places.step[rows]).tolist()
            named = zip(ids.take(pa.array(places.row[rows])).to_pylist(), frames, strict=True)
            return pa.array([f"{track}-{frame:04d}" for track, frame in named], kind)
        if name in _SINGLES:
            [values] = self._tracks([name])
            return values.take(pa.array(places.row[rows]))
        laid = self._steps(name)
        values_of_windows = laid[self._begins(rows)[:, None] + np.arange(span.width)]
        offsets = np.arange(len(rows) + 1, dtype=np.int64) * span.width
        return step_cells(values_of_windows.reshape(len(rows) * span.width, *laid.shape[1:]), offsets, kind, name=name)

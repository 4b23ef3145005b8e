"""A replay buffer as rows, one per episode: looked at, put into shards, and checked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.arguments import TEXT, TEXTS, Kind, takes, whole
from seqlake.errors import CorruptFileError, SchemaMismatchError, SeqlakeError, UnsafeReferenceError
from seqlake.files.locations import absolute
from seqlake.formats._mapping import MAP, wanted
from seqlake.formats._zarr.places import CHUNK_BYTES, oddities
from seqlake.formats.zarr_replay.columns import ReplayColumns, columns_of
from seqlake.formats.zarr_replay.layout import ENDS, NAMES, ReplayLayout, ReplayPlace, is_replay, look
from seqlake.formats.zarr_replay.reading import ReplayReader, known_rows, text_of
from seqlake.shards.scanned import ScannedDataset, ScannedShard
from seqlake.spec.findings import Finding

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from seqlake.protocols import Depth, Ints, Mapped
    from seqlake.spec.schema import Schema

_SHARD_BYTES = 64 << 20  # of steps, decoded
_PICTURES = Kind("'ppm' or 'png'", lambda value: value in {"ppm", "png"})


def matches(location: str, /, *, storage: Mapping[str, str] | None = None) -> bool:
    """Whether a folder, URI or zip archive is a zarr store with `meta/episode_ends`."""
    try:
        return is_replay(ReplayPlace(location=absolute(location), storage=storage, most=CHUNK_BYTES).files())
    except UnsafeReferenceError:
        raise  # what it is can be said once that is allowed
    except (SeqlakeError, OSError, ValueError):
        return False


@takes(map=MAP.or_none(), without=TEXTS, pictures=_PICTURES, ends=TEXT, chunk_bytes=whole(1))
def scan(
    location: str,
    /,
    *,
    map: Mapping[str, Any] | str | os.PathLike[str] | None = None,  # noqa: A002 - the word of every format
    without: Collection[str] = (),
    ends: str = ENDS,
    pictures: str = "ppm",
    chunk_bytes: int = CHUNK_BYTES,
    storage: Mapping[str, str] | None = None,
) -> ReplayBuffer:
    """Look at a replay buffer; every row is an episode, nothing is converted.

    What is read now are the metadata of all arrays, the names of their chunks, `meta` and where episodes end.

    Args:
        location: The folder or URI that holds `data/` and `meta/`, or a zip archive of it; zarr format 2 or 3.
        map: Columns by the arrays that they are made of, as `{"cam": {"source": "data/img", "type": "image"}}`, or a
            JSON or TOML file of this; None: every array of `data` and `meta` by its own name.
        without: Arrays to leave out, as `["img"]`.
        ends: The array that says where episodes end.
        pictures: How pictures are encoded in rows: `"ppm"`, pixels behind a short header, or `"png"`.
        chunk_bytes: The limit for what one chunk may unfold to.
        storage: Options of the object store.

    Returns:
        A `Readable` with `check` and `mapping`.

    Raises:
        DatasetNotFoundError: No such buffer.
        InvalidMetadataError: Episode ends that cannot be used, or a mapping that does not fit.
        ColumnNotFoundError: `without` names an array that is not there.
        CorruptFileError: A file is damaged.

    Example:
        ```python
        ds = sl.scan("pusht_cchi_v7_replay.zarr")
        sl.convert("umi/replay_buffer.zarr.zip", "data/umi", images="video", fps=60)
        ```
    """
    place = ReplayPlace(location=absolute(location), storage=storage, most=chunk_bytes)
    layout = look(place, ends=ends)
    declared = None if map is None else wanted(map)
    columns = columns_of(
        layout, declared=declared, without=without, looks_whole=_looks_whole(layout), pictures=pictures
    )
    if not any(one.role != "episode" for one in columns.chosen.values()):
        raise SchemaMismatchError(f"{place.location} has no array of steps that can be read.", path=place.location)
    used = {one.source: layout.arrays[one.source] for one in columns.chosen.values()}
    for array in place.arrays(used).values():
        array.promises.refuse_empty()
    schema = columns.schema()
    return ReplayBuffer(
        root=_root(place.location),
        schema=schema,
        parts=list(_shards(layout, columns, schema)),
        layout=layout,
        columns=columns,
    )


def _root(location: str) -> str:
    return location.rpartition("/")[0] or location if location.lower().endswith(".zip") else location


def _looks_whole(layout: ReplayLayout) -> dict[str, bool]:
    """Arrays of floats with the shape of pictures whose first step could be one of 8 bits."""
    looks = {}
    for name, known in layout.arrays.items():
        shaped = known.dtype.kind == "f" and len(known.shape) == 4 and known.shape[3] == 3 and known.shape[0] > 0
        if shaped and len(layout.ends) and layout.ends[-1] > 0:
            try:
                pixels = layout.place.arrays({name: known})[name].rows(0, 1)
            except CorruptFileError:
                continue  # whoever reads it meets the error
            with np.errstate(invalid="ignore"):
                looks[name] = bool(np.array_equal(pixels.astype(np.uint8), pixels)) and bool(pixels.max(initial=0) > 1)
    return looks


def _shards(layout: ReplayLayout, columns: ReplayColumns, schema: Schema) -> Iterator[ScannedShard]:
    """Episodes of about 64 MiB each."""
    types = schema.arrow
    stepped = {name: one for name, one in columns.chosen.items() if one.role != "episode"}
    used = {one.source: layout.arrays[one.source] for one in columns.chosen.values()}
    readers = layout.place.arrays(used)
    rows = {
        name: readers[one.source].rows(0, len(layout.ends))
        for name, one in columns.chosen.items()
        if one.role == "episode"
    }
    known = known_rows(episode_names(layout), rows, types)
    per_step = sum(used[one.source].row_bytes for one in stepped.values())
    stored = sum(layout.stored.get(source, (0, 0))[1] for source in used)
    steps = max(int(layout.ends[-1]), 1) if len(layout.ends) else 1
    name = layout.place.location.rstrip("/").rpartition("/")[2]
    described = repr([layout.state, [[one, str(column)] for one, column in schema.items()]])
    starts, lengths = layout.starts, layout.lengths
    for first, stop in _parts(lengths * per_step):
        digest = hashlib.sha256(f"{described} {first} {stop}".encode()).hexdigest()[:16]
        reader = partial(
            ReplayReader,
            types,
            layout.place,
            {one.source: used[one.source] for one in stepped.values()},
            stepped,
            known.slice(first, stop - first).take(pa.array(np.arange(stop - first))),
            starts[first:stop].copy(),
            lengths[first:stop].copy(),
            columns.pictures,
        )
        nbytes = (stored or per_step * steps) * int(lengths[first:stop].sum()) // steps
        yield ScannedShard(key=f"{name}#{digest}", rows=stop - first, nbytes=nbytes, reader=reader)


def episode_names(layout: ReplayLayout, /) -> list[str]:
    """Ids of episodes: those of `meta/sequence_id` where they are there, unique and not empty; else numbers."""
    count, known = len(layout.ends), layout.arrays.get(NAMES)
    if known is not None and known.dtype.kind in "SU" and known.shape == (count,):
        array = layout.place.arrays({NAMES: known})[NAMES]
        array.promises.refuse_empty()
        names = [text_of(one) for one in array.rows(0, count).tolist()]
        if len(set(names)) == count and all(names):
            return names
    width = max(6, len(str(count)))
    return [f"episode_{number:0{width}d}" for number in range(count)]


def _parts(sizes: Ints) -> Iterator[tuple[int, int]]:
    """Runs of episodes of about the bytes of a shard, as (first, behind the last)."""
    first, held = 0, 0
    for number, size in enumerate(sizes.tolist()):
        if number > first and held + size > _SHARD_BYTES:
            yield first, number
            first, held = number, 0
        held += size
    if first < len(sizes):
        yield first, len(sizes)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReplayBuffer(ScannedDataset):
    """A scanned replay buffer: a `Readable`, `Checked`, `SaysMapping`, `HasStorage` and picklable.

    Attributes:
        layout: Its arrays and episodes.
        columns: How columns are made of arrays.
    """

    layout: ReplayLayout
    columns: ReplayColumns

    @property
    def storage(self) -> Mapping[str, str] | None:
        """Options of its store; never printed."""
        return self.layout.place.storage

    @property
    def allow_outside(self) -> bool:
        """False: rows name no files."""
        return False

    def lengths(self, column: str, /) -> Ints:
        """[rows] T, as episode ends say."""
        one = self.columns.chosen.get(column)
        return super().lengths(column) if one is None or one.role == "episode" else self.layout.lengths.copy()

    def mapping(self) -> Sequence[Mapped]:
        """What became of every array."""
        return list(self.columns.mapping)

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What only this format knows: arrays left out, steps behind the last episode, chunks that are not stored.

        A chunk that is not stored reads as its fill value, as zarr does it; a folder that was copied in part looks so.
        """
        place = self.layout.place.location
        yield from oddities(self.layout.place.files())
        for one in self.columns.mapping:
            if one.column is None and one.source != self.layout.ends_name:
                asked = one.how in {"left out as asked", "not in the mapping"}
                yield Finding(
                    code="zarr-replay-left-out",
                    severity="note" if asked else "warning",
                    message=f"the array {one.source!r} is no column: {one.how}",
                    location=place,
                )
        steps = int(self.layout.ends[-1]) if len(self.layout.ends) else 0
        for name, column in self.columns.chosen.items():
            known = self.layout.arrays[column.source]
            if column.role != "episode" and known.shape[0] > steps:
                text = f"{known.shape[0] - steps} steps of {column.source!r} lie behind the end of the last episode"
                yield Finding(code="zarr-replay-steps", severity="warning", message=text, location=place, column=name)
            if depth != "metadata" and self.layout.stored and known.shards is None:
                yield from self._check_chunks(name, column.source)

    def _check_chunks(self, name: str, source: str) -> Iterator[Finding]:
        there, expected = self.layout.stored.get(source, (0, 0))[0], self.layout.arrays[source].count
        if there < expected:
            text = f"{expected - there} of {expected} chunks of {source!r} are not stored, and read as the fill value"
            yield Finding(
                code="zarr-replay-chunks",
                severity="warning",
                message=text,
                location=self.layout.place.location,
                column=name,
            )

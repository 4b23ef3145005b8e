"""`scan`: a store of l5kit as rows, one per scene, per track or per selected sighting."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import DatasetNotFoundError, InvalidMetadataError, SchemaMismatchError
from seqlake.formats.l5kit.layout import layout_of
from seqlake.formats.l5kit.mapping import Mapping
from seqlake.formats.l5kit.places import CHUNK_BYTES
from seqlake.formats.l5kit.selecting import select_agents
from seqlake.formats.l5kit.shard import SceneReader, scene_bytes
from seqlake.formats.l5kit.store import MASKS, Store, grouped, is_store, open_store, state_of, stem_of
from seqlake.formats.l5kit.tracks import tracks_of
from seqlake.formats.l5kit.windows import windows
from seqlake.shards.scanned import ScannedDataset, ScannedShard
from seqlake.spec.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from seqlake.formats.l5kit.layout import SceneLayout
    from seqlake.protocols import Depth, Readable
    from seqlake.spec.schema import Schema

VIEWS = ("scenes", "ego", "agents", "tracks")
_EGO_FIELDS = ("timestamp", "ego_translation", "ego_rotation")


def matches(location: str, /, *, storage: dict[str, str] | None = None) -> bool:
    """Whether a folder, URI or zip archive is a store of l5kit: zarr format 2 with scenes, frames and agents."""
    return is_store(location, storage=storage)


def scan(
    location: str, /, *, view: str = "scenes", storage: Any = None, chunk_bytes: int = CHUNK_BYTES, **options: Any
) -> Readable:
    """Look at a store of l5kit; nothing is converted.

    Args:
        location: A folder or URI, or a zip archive of a folder.
        view: What a row is. `"scenes"`: one scene with everything in it, from which the store can be written again
            as it was. `"ego"`: one scene with the car's own path alone. `"tracks"`: one agent in one scene, step by
            step from where it was seen first to where it was seen last. `"agents"`: one window around one sighting of
            an agent, as `AgentDataset` selects them.
        storage: Options of the object store.
        chunk_bytes: The limit for what a store of somebody else may unfold to; see `open_store`.
        **options: Of the views of agents. `mask`: which sightings are selected, as `select_agents` gives it, or the
            name of one in the store; by default it is computed for `"agents"` and left out of `"tracks"`. Of
            `"agents"`: `history`, `future`, `min_frame_history`, `min_frame_future`; see `windows`.

    Raises:
        DatasetNotFoundError: No such store.
        InvalidMetadataError: Arrays that do not fit each other, or a `.zarray` that cannot be used.

    Example:
        ```python
        sl.scan("sample.zarr")                  # scenes
        sl.scan("sample.zarr", view="tracks")   # agents
        ```
    """
    if view not in VIEWS:
        raise ValueError(f"view: expected one of {', '.join(VIEWS)}, found {view!r}.")
    store = open_store(location, storage=storage, chunk_bytes=chunk_bytes)
    if view in {"scenes", "ego"}:
        if options:
            raise TypeError(f"The view {view!r} takes no option {min(options)!r}.")
        return scenes(store, ego=view == "ego")
    from seqlake.formats.l5kit.scan import agent_view

    return agent_view(store, view=view, **options)


def scenes(store: Store, /, *, ego: bool = False) -> L5kitScenes:
    """The view of scenes.

    Args:
        store: An open store.
        ego: Only the columns of the car's own path.
    """
    for name, mask in store.masks.items():
        if len(mask) != len(store.agents):
            raise InvalidMetadataError(
                f"{store.location}: {MASKS}/{name} has {len(mask)} rows, there are {len(store.agents)} agents.",
                path=store.location,
                hint="Remove that mask: it belongs to another store.",
            )
    layout = layout_of(store)
    mapping = Mapping.of(store, tiles=layout.tiles)
    schema = mapping.schema()
    schema = schema.select(_ego_columns(schema)) if ego else schema
    state = state_of(store)
    return L5kitScenes(
        root=store.location,
        schema=schema,
        parts=_shards(store, layout, mapping, schema, state),
        state=hashlib.sha256(repr([state, schema.names]).encode()).hexdigest()[:32],
        store=store,
        layout=layout,
    )


def _shards(store: Store, layout: SceneLayout, mapping: Mapping, schema: Schema, state: str) -> list[ScannedShard]:
    """Neighbouring scenes, about 64 MiB of rows each."""
    stem, shards = stem_of(store.location), []
    sizes = np.array([scene_bytes(row, mapping) for row in layout.rows], np.int64)
    for start, stop in grouped(sizes.tolist()):
        digest = hashlib.sha256(repr([state, start, stop, schema.names]).encode()).hexdigest()[:16]
        rows = layout.rows[start:stop]
        names = [_name(stem, row.scene, number) for number, row in enumerate(rows, start)]
        shards.append(
            ScannedShard(
                key=f"{stem}-{start:06d}#{digest}",
                rows=stop - start,
                nbytes=int(sizes[start:stop].sum()),
                reader=partial(SceneReader, store, mapping, rows, names, schema.arrow, sizes[start:stop]),
            )
        )
    return shards


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class L5kitScenes(ScannedDataset):
    """A store as rows of scenes: a `Readable`, `Checked` and picklable.

    Attributes:
        store: The store.
        layout: Which of its rows belong to which scene.
    """

    store: Store
    layout: SceneLayout

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What only this format knows: intervals that do not tile; from depth `rows` on, chunks that are not there."""
        if not self.layout.tiles:
            orphans = sum(row.scene < 0 for row in self.layout.rows)
            text = f"intervals do not tile the arrays; {orphans} rows hold what no scene names (scene_index is -1)"
            yield Finding(code="l5kit-intervals", severity="note", message=text, location=self.root)
        if depth == "metadata":
            return
        for name, array in self.store.arrays.items():
            for number in range(array.metadata.count):
                if array.blob(number) is None:
                    text = f"chunk {number} is not there: its rows read as zeros"
                    yield Finding(
                        code="l5kit-missing-chunk", severity="warning", message=text, location=f"{self.root}/{name}"
                    )


def _ego_columns(schema: Schema) -> list[str]:
    whole = [name for name in schema.names if schema[name].category == "scalar"]
    return [*whole, *(name for name in _EGO_FIELDS if name in schema)]


def _name(stem: str, scene: int, number: int) -> str:
    """The id of a row."""
    return f"{stem}-{scene:05d}" if scene >= 0 else f"{stem}-orphan-{number:05d}"


def agent_view(store: Store, /, *, view: str, mask: NDArray[Any] | str | None = None, **options: Any) -> Readable:
    """Rows of tracks, or of windows around selected sightings; see `scan`.

    Raises:
        DatasetNotFoundError: No mask of that name in the store.
        SchemaMismatchError: A mask of another number of rows.
    """
    if view == "tracks":
        if options:
            raise TypeError(f"The view 'tracks' takes no option {min(options)!r}.")
        return tracks_of(store, mask=_mask(store, mask))
    selected = select_agents(store) if mask is None else _mask(store, mask)
    return windows(tracks_of(store, mask=selected), **options)


def _mask(store: Store, mask: NDArray[Any] | str | None) -> NDArray[Any] | None:
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

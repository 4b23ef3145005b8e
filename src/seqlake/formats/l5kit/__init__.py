"""L5Kit: recorded drives as l5kit writes them, in zarr folders; read and written without zarr and without l5kit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import DatasetNotFoundError, SchemaMismatchError
from seqlake.formats.l5kit.places import CHUNK_BYTES
from seqlake.formats.l5kit.scenes import scenes
from seqlake.formats.l5kit.selecting import select_agents
from seqlake.formats.l5kit.sink import create, dropped
from seqlake.formats.l5kit.store import Store, is_store, open_store
from seqlake.formats.l5kit.tracks import tracks_of
from seqlake.formats.l5kit.windows import windows
from seqlake.moved import keep_old_paths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.protocols import Readable

__all__ = ["create", "dropped", "matches", "scan"]

VIEWS = ("scenes", "ego", "agents", "tracks")


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
    return _agent_view(store, view=view, **options)


def _agent_view(store: Store, /, *, view: str, mask: NDArray[Any] | str | None = None, **options: Any) -> Readable:
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


keep_old_paths(__name__)

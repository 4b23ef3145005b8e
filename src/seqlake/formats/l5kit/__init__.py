"""L5Kit: recorded drives as l5kit writes them, in zarr folders; read and written without zarr and without l5kit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seqlake.formats._zarr.places import CHUNK_BYTES
from seqlake.formats.l5kit.mapping import KEY
from seqlake.formats.l5kit.scenes import scenes
from seqlake.formats.l5kit.sink import create, dropped
from seqlake.formats.l5kit.store import is_store, open_store
from seqlake.formats.l5kit.tracks import tracks_of
from seqlake.formats.l5kit.windows import are_tracks, windows
from seqlake.moved import keep_old_paths

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.protocols import Readable

__all__ = ["create", "dropped", "matches", "scan", "scan_rows"]

VIEWS: dict[str, set[str]] = {
    "scenes": set(),
    "ego": set(),
    "agents": {"mask", "history", "future", "min_frame_history", "min_frame_future"},
    "tracks": {"mask"},
}
"""What a row may be, and the options of each."""


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
    _check(view, options)
    store = open_store(location, storage=storage, chunk_bytes=chunk_bytes)
    if view in {"scenes", "ego"}:
        return scenes(store, ego=view == "ego")
    return windows(store, **options) if view == "agents" else tracks_of(store, **options)


def scan_rows(rows: Readable, /, *, view: str = "scenes", **options: Any) -> Readable | None:
    """What a store was converted to, by the views that a store has; None where the rows are of something else.

    Args:
        rows: An open dataset of scenes, or of tracks.
        view: As for `scan`; tracks have no scenes any more.
        **options: As for `scan`.

    Raises:
        SchemaMismatchError: The rows lack a column that this view needs.
    """
    of_scenes = KEY in rows.schema.metadata.extra
    if not of_scenes and not are_tracks(rows.schema):
        return None
    _check(view, options)
    if view == "agents":
        return windows(rows, **options)
    if view == "ego":
        raise ValueError(
            "view: of converted scenes the car's own path is ds.select('timestamp', 'ego_translation', ...)."
        )
    is_shown = view == ("scenes" if of_scenes else "tracks") and not options
    return rows if is_shown else tracks_of(rows, **options)


def _check(view: str, options: Mapping[str, Any]) -> None:
    if view not in tuple(VIEWS):
        raise ValueError(f"view: expected one of {', '.join(VIEWS)}, found {view!r}.")
    if unknown := options.keys() - VIEWS[view]:
        raise TypeError(f"The view {view!r} takes no option {min(unknown)!r}.")


keep_old_paths(__name__)

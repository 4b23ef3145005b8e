"""The views of agents, with the selection they need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import DatasetNotFoundError, SchemaMismatchError
from seqlake.formats.l5kit.selecting import select_agents
from seqlake.formats.l5kit.tracks import tracks_of
from seqlake.formats.l5kit.windows import windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.formats.l5kit.store import Store
    from seqlake.protocols import Readable


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
    found = select_agents(store) if mask is None else _mask(store, mask)
    return windows(tracks_of(store, mask=found), **options)


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

"""A dataset that is made for rows still to come, and taken back if they do not come."""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from seqlake.dataset.opening import lake_of, place_of
from seqlake.dataset.opening import open as open_dataset
from seqlake.errors import CommitUnknownError, DatasetExistsError
from seqlake.files.local import remove_empty_folders
from seqlake.files.locations import is_local, local_path
from seqlake.files.stores import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

_BARE = re.compile(r"mixtrain\.json|_seqlake/(staged/.+|versions/0{20}\.json|checkpoints/.+)")


@contextmanager
def nothing_left(location: str | os.PathLike[str], /, *, storage: Mapping[str, str] | None) -> Iterator[None]:
    """Within the block a dataset is created at a new or empty place; after an error nothing of it is there.

    What holds rows, or a file of anybody else, is never touched. A lake's table without rows is dropped.
    """
    try:
        yield
    except (CommitUnknownError, DatasetExistsError):
        raise  # it may be there, or it is somebody else's
    except BaseException:
        place = place_of(location)
        if lake_of(place):
            _drop_if_empty(place, storage)
            raise
        if is_local(place) and not local_path(place).is_dir():
            raise
        store = open_store(place, storage=storage)
        paths = [path for path, _ in store.list()]
        if all(_BARE.fullmatch(path) for path in paths):
            store.delete(paths)
            if is_local(place):
                remove_empty_folders(local_path(place))
        raise


def _drop_if_empty(place: str, storage: Mapping[str, str] | None) -> None:
    """Drop a lake's table that has no rows."""
    with suppress(Exception):  # it was not made, or its lake does not answer: the error under way says more
        empty = open_dataset(place, storage=storage)
        if not len(empty):
            empty.table.drop()  # type: ignore[attr-defined]  # every lake's table has it

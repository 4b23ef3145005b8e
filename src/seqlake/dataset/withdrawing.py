"""A dataset that is made for rows still to come, and taken back if they do not come."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from seqlake.dataset.opening import place_of
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

    What holds rows, or a file of anybody else, is never touched; nor are lakes, whose tables their engines make whole.
    """
    try:
        yield
    except (CommitUnknownError, DatasetExistsError):
        raise  # it may be there, or it is somebody else's
    except BaseException:
        place = place_of(location)
        if is_local(place) and not local_path(place).is_dir():
            raise
        store = open_store(place, storage=storage)
        found = [path for path, _ in store.list()]
        if all(_BARE.fullmatch(path) for path in found):
            store.delete(found)
            if is_local(place):
                remove_empty_folders(local_path(place))
        raise

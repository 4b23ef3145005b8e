"""One index above folders that several writers filled: names cannot collide, and 10 comes after 9."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from seqlake.arguments import TEXTS, takes
from seqlake.errors import DatasetExistsError, DatasetNotFoundError, SeqlakeError
from seqlake.files.locations import absolute
from seqlake.files.stores import exists, open_store, read_all
from seqlake.formats._streaming import index as indexes
from seqlake.formats._streaming.writing import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from seqlake.formats._streaming.index import IndexedFile, IndexedShard


@takes(parts=TEXTS.or_none())
def merge(out: str, parts: Iterable[str] | None = None, /, *, storage: Mapping[str, str] | None = None) -> int:
    """Write the index of a folder whose sub-folders were written separately, in parallel for instance.

    Nothing is copied: the new index names the shards where they lie, with their whole path below `out`.

    Args:
        out: The folder above.
        parts: The sub-folders in order; by default all that have an `index.json`, by name, numbers in numeric order.
        storage: Options of the object store.

    Returns:
        How many samples there are.

    Raises:
        DatasetExistsError: `out` has an index already.
        DatasetNotFoundError: A sub-folder has none, or there is none.
        SeqlakeError: A sub-folder is still being written, or was left so; without `parts`, one lies in another.

    Example:
        ```python
        for worker in range(8): ...            # sl.create(f"out/{worker}", columns, format="mds"), one a process
        seqlake.formats.mds.merge("out")
        ```
    """
    root = absolute(out)
    store: Any = open_store(root, storage=storage)
    if exists(store, indexes.NAME):
        raise DatasetExistsError(f"{root} has an {indexes.NAME} already.", path=root, hint="Remove it to merge anew.")
    folders = _folders(store, root) if parts is None else [part.strip("/") for part in parts]
    entries: list[IndexedShard] = []
    for folder in folders:
        name = f"{folder}/{indexes.NAME}"
        if exists(store, f"{folder}/{SETTINGS}"):
            raise SeqlakeError(f"{root}/{folder} is still being written, or was interrupted.", path=f"{root}/{folder}")
        try:
            data = read_all(store.blob(name))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DatasetNotFoundError(f"No {name} is at {root}.", path=root) from error
        entries += [in_folder(entry, folder) for entry in indexes.parse(data, location=f"{root}/{name}").entries]
    store.put(indexes.NAME, indexes.dump(entries))
    store.sync("")
    return sum(entry.samples for entry in entries)


def in_folder(entry: IndexedShard, folder: str, /) -> IndexedShard:
    """An entry whose files lie in a folder below the index."""

    def moved(file: IndexedFile | None) -> IndexedFile | None:
        return None if file is None else replace(file, name=f"{folder}/{file.name}")

    raw = moved(entry.raw)
    assert raw is not None
    return replace(
        entry,
        raw=raw,
        zipped=moved(entry.zipped),
        raw_meta=moved(entry.raw_meta),
        zipped_meta=moved(entry.zipped_meta),
    )


def _folders(store: Any, root: str) -> list[str]:
    folders = {path.rpartition("/")[0] for path, _ in store.list() if path.endswith(f"/{indexes.NAME}")}
    if not folders:
        raise DatasetNotFoundError(f"No folder below {root} has an {indexes.NAME}.", path=root)
    for name in sorted(folders):
        above = next((one for one in folders if name.startswith(f"{one}/")), None)
        if above is not None:
            raise SeqlakeError(
                f"{root}/{above} and {root}/{name}, which lies in it, both have an {indexes.NAME}: samples of one may "
                "be those of the other.",
                path=root,
                hint=f"Say which: merge(..., [{above!r}]).",
            )
    return sorted(folders, key=_numerically)


def _numerically(name: str) -> list[tuple[str, int]]:
    """Texts by their letters, numbers in them by their value."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", name)]

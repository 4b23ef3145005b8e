"""Files of other people's formats get their names all at once, or one that makes them a dataset is written last.

```text
<out>/.seqlake_parts/...           what parts write; readers and shells pass over names that begin with a dot
<out>/.seqlake_parts/whole/...     at the commit: all files under the names that they will have
.<out's name>.seqlake_whole/...    beside it, for a moment: the same folder, while `out` is emptied
<out>/...                          one rename later
```

So appears a folder that others read by what lies in it, with no file that says that it is finished. Where one rename is
not to be had, in a bucket or where the folder above cannot be written, its files come one by one.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from seqlake.errors import InvalidMetadataError
from seqlake.files.local import SystemCalls, remove_empty_folders
from seqlake.files.locations import is_local, local_path
from seqlake.files.stores import exists, list_without_links

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from seqlake.protocols import Store

STAGED = ".seqlake_parts"
"""Where exports keep their parts until all is written."""

_WHOLE = f"{STAGED}/whole"
_BESIDE = ".seqlake_whole"
_TORN = re.compile(r"(?:.*/)?[^/]+\.[0-9a-f]{8}\.tmp")  # what `LocalStore.put` fills before it gives the name


def appear(store: Store, location: str, names: Mapping[str, str], /) -> None:
    """Give staged files their names, on a disk all at once; again, it goes on where it was interrupted.

    Args:
        store: Of the folder.
        location: The folder, absolute.
        names: Where each file lies below `STAGED` -> its name.

    Raises:
        FileNotFoundError: A file lies under no name that it had or gets.

    Example:
        ```python
        appear(store, "/data/export", {f"{STAGED}/0/a.tar": "shard-000000.tar"})
        ```
    """
    if not names:
        return
    if not is_local(location):
        _one_by_one(store, names)
        return
    home, beside = _home(location), _beside(location)
    if any(exists(store, one) for one in _places(names)):
        shutil.rmtree(beside, ignore_errors=True)  # of a run whose parts were written anew since
        if any(exists(store, name) for name in names.values()) or not _lifted(store, home, beside, names):
            _one_by_one(store, names)
            return
    elif not beside.is_dir():
        _one_by_one(store, names)  # all have their names, or it says what is missing
        return
    store.delete([path for path, _ in list_without_links(store, STAGED)])
    _lowered(home, beside)


def clear(store: Store, location: str, folders: Iterable[str] = (), /) -> None:
    """Remove what was staged, and files whose names begin so.

    Args:
        store: Of the folder.
        location: The folder, absolute.
        folders: What is removed besides, as `data/`; what a commit that failed may have written.
    """
    prefixes = (f"{STAGED}/", *folders)
    store.delete([path for path, _ in list_without_links(store) if path.startswith(prefixes)])
    if is_local(location):
        shutil.rmtree(_beside(location), ignore_errors=True)
        remove_empty_folders(local_path(location))


def sweep(store: Store, location: str, /) -> None:
    """Remove what a commit that was killed was just writing; called before anything makes the folder a dataset.

    Args:
        store: Of the folder, which nobody else writes.
        location: The folder, absolute.
    """
    if is_local(location):
        store.delete([path for path, _ in list_without_links(store) if _TORN.fullmatch(path)])


def is_between(location: str, /) -> bool:
    """Whether a commit was interrupted while its folder was empty: all files lie beside it."""
    return is_local(location) and _beside(location).is_dir()


def refuse_unfinished(store: Store, location: str, /) -> None:
    """Refuse to read a folder into which files are being exported.

    Raises:
        InvalidMetadataError: It is one.
    """
    if next(iter(store.list(f"{STAGED}/")), None) is not None:
        raise InvalidMetadataError(
            f"{location} holds {STAGED}: an export into it is under way, or was interrupted.",
            path=location,
            hint="Run the same export again, which finishes it, or remove the folder.",
        )


def _home(location: str) -> Path:
    return Path(os.path.realpath(local_path(location)))


def _beside(location: str) -> Path:
    home = _home(location)
    return home.with_name(f".{home.name}{_BESIDE}")


def _places(names: Mapping[str, str]) -> Iterable[str]:
    for staged, name in names.items():
        yield staged
        yield f"{_WHOLE}/{name}"


def _one_by_one(store: Store, names: Mapping[str, str]) -> None:
    for staged, name in names.items():
        passing = f"{_WHOLE}/{name}"
        store.move(passing if exists(store, passing) else staged, name)
    store.sync(*_folders(names.values()))


def _lifted(store: Store, home: Path, beside: Path, names: Mapping[str, str]) -> bool:
    """Put all files into one folder, and that out of the one that it lies in, into the one above."""
    for staged, name in names.items():
        store.move(staged, f"{_WHOLE}/{name}")
    store.sync(*_folders(f"{_WHOLE}/{name}" for name in names.values()))
    calls = SystemCalls()
    whole = home / _WHOLE
    folders = {name.rpartition("/")[0].partition("/")[0] for name in names.values()}
    if len(folders) == 1 and "" not in folders:
        [folder] = folders
        calls.rename(whole / folder, home / folder)
        calls.fsync_folder(home)
        return True
    try:
        shutil.copymode(home, whole)
        calls.rename(whole, beside)
        calls.fsync_folder(beside.parent)
    except OSError:  # a disk of its own, or a folder above that is not ours to write
        return False
    return True


def _lowered(home: Path, beside: Path) -> None:
    """Put the folder of all files in the place of the one that is empty now."""
    if not beside.is_dir():
        return
    calls = SystemCalls()
    remove_empty_folders(home)
    try:
        calls.rename(beside, home)
    except OSError:  # somebody else's file lies there, or the place cannot be replaced
        for path in sorted(path for path in beside.rglob("*") if path.is_file()):
            target = home / path.relative_to(beside)
            target.parent.mkdir(parents=True, exist_ok=True)
            calls.rename(path, target)
        remove_empty_folders(beside)
    with suppress(FileNotFoundError):
        calls.fsync_folder(home.parent)


def _folders(paths: Iterable[str]) -> list[str]:
    """The folders that names lie in, those around them too."""
    around = set[str]()
    for path in paths:
        parts = path.split("/")[:-1]
        around |= {"/".join(parts[:depth]) for depth in range(len(parts) + 1)}
    return sorted(around)

"""Derived bytes kept by name: in the table, or in the user's cache where the table cannot be written."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from seqlake.versions import names
from seqlake.versions.small_files import read

if TYPE_CHECKING:
    from seqlake.protocols import Store

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def read_derived(store: Store, name: str, /) -> bytes | None:
    """What was kept under this name; None where nothing was."""
    data = read(store, f"{names.DERIVED}/{_checked(name)}")
    return data if data is not None else read(_cache(store.root), name)


def write_derived(store: Store, name: str, data: bytes, /, *, inside: bool = True) -> None:
    """Keep bytes that can be computed again.

    Args:
        store: The table's.
        name: A plain name.
        data: The bytes.
        inside: Whether the table may be written to; a plain folder is left as it is.
    """
    path = f"{names.DERIVED}/{_checked(name)}"
    if inside:
        try:
            store.put(path, data, temporary=names.temporary(names.new_transaction()))
        except OSError:
            pass  # read only: the user's own cache does as well
        else:
            return
    _cache(store.root).put(name, data, temporary=f"{names.new_transaction()}.tmp")


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None or name.endswith(names.SUFFIX):
        raise ValueError(f"A derived file has a plain name without {names.SUFFIX}, found {name!r}.")
    return name


def _cache(root: str) -> Store:
    """A folder of the user's for this table."""
    from seqlake.files.stores import LocalStore

    top = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return LocalStore(Path(top) / "seqlake" / "derived" / hashlib.sha256(root.encode()).hexdigest()[:32])

"""Derived bytes of a lake table kept by name: beside it, or in the user's cache where it cannot be written."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from seqlake.tables.standalone import names
from seqlake.tables.standalone.log import read, root_of

if TYPE_CHECKING:
    from seqlake.protocols import Store

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def read_derived(store: Store, name: str, /) -> bytes | None:
    """What was kept under this name; None where nothing was."""
    found = read(store, f"{names.DERIVED}/{_checked(name)}")
    return found if found is not None else read(_cache(root_of(store)), name)


def write_derived(store: Store, name: str, data: bytes, /) -> None:
    """Keep bytes that can be computed again."""
    path = f"{names.DERIVED}/{_checked(name)}"
    try:
        store.put(path, data, temporary=names.temporary(names.new_transaction()))
    except OSError:
        _cache(root_of(store)).put(name, data, temporary=f"{names.new_transaction()}.tmp")


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None or name.endswith(names.SUFFIX):
        raise ValueError(f"A derived file has a plain name without {names.SUFFIX}, found {name!r}.")
    return name


def _cache(root: str) -> Store:
    from seqlake.files.stores import LocalStore

    top = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return LocalStore(Path(top) / "seqlake" / "derived" / hashlib.sha256(root.encode()).hexdigest()[:32])

"""Files that commands write: whole or not at all, and never over another unless told to."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def refuse_existing(paths: Iterable[Path], /, *, overwrite: bool) -> None:
    """Raise `UsageError` if one of the files is there already, unless it may be replaced."""
    there = next((path for path in paths if path.exists() and (path.is_dir() or not overwrite)), None)
    if there is not None:
        kind = "is a folder" if there.is_dir() else "is there already; --overwrite replaces it"
        raise click.UsageError(f"{there} {kind}.")


def save(path: Path, data: bytes, /, *, overwrite: bool) -> None:
    """Write a file under its name at once.

    Raises:
        FileExistsError: It is there, perhaps since a moment ago, and may not be replaced.
        OSError: It cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        fresh.write_bytes(data)
        if overwrite:
            fresh.replace(path)
        else:
            _link(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def _link(fresh: Path, path: Path) -> None:
    try:
        os.link(fresh, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if path.exists():
            raise FileExistsError(f"{path} is there already; --overwrite replaces it.") from None
        fresh.rename(path)

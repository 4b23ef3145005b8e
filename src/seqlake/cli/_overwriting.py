"""`--overwrite`: an output takes the place of an older one only when it is complete."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from seqlake.cli import _options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_OURS = {"mixtrain.json", "data", "files", "_seqlake"}  # what a dataset's folder holds, and nothing else
_EXCHANGE = 2  # renameat2: both names at once
_HERE = -100  # relative to the working folder


@contextmanager
def replacing(out: str, /, *, overwrite: bool, sources: Sequence[str], dry_run: bool = False) -> Iterator[str]:
    """Where to write a dataset that will be at `out`: there, or beside an older dataset that it replaces at the end.

    Until the block is over the old dataset stays as it is; if it fails nothing was changed.

    Args:
        out: As given on the command line.
        overwrite: Whether a dataset there may be replaced.
        sources: What is read; a dataset is never replaced by parts of itself.
        dry_run: The block ends at its first write.

    Raises:
        UsageError: What is at `out` is not certainly a dataset of ours and nothing else.
    """
    from seqlake.files import locations

    folder = locations.local_path(locations.absolute(out)) if locations.is_local(out) else None
    if not overwrite or folder is None or not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        if overwrite and folder is None:
            raise click.UsageError(
                "--overwrite is for folders of this machine; remove what is there, or write elsewhere."
            )
        with _options.rehearsed(dry_run):
            yield out
        return
    _check(folder, [Path(locations.local_path(locations.absolute(s))) for s in sources if locations.is_local(s)])
    fresh = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        with _options.rehearsed(dry_run):
            yield str(fresh)
        if not dry_run:
            _exchange(fresh, folder)  # from here on the old dataset has the temporary name
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _check(folder: Path, sources: Sequence[Path]) -> None:
    """Refuse whatever is not a dataset of ours, whole and alone."""
    from seqlake.tables import standalone

    refuse = f"--overwrite replaces a dataset that seqlake wrote; {folder}"
    if folder.is_symlink() or not folder.is_dir():
        raise click.UsageError(f"{refuse} is {'a link' if folder.is_symlink() else 'a file'}.")
    others = sorted({one.name for one in folder.iterdir()} - _OURS)
    if others:
        raise click.UsageError(f"{refuse} holds other things too: {', '.join(others[:5])}.")
    table = standalone.open(str(folder)) if standalone.matches(str(folder)) else None
    if table is None or not table.manifest_exists:
        raise click.UsageError(f"{refuse} is none.")
    if strangers := table.strangers():
        raise click.UsageError(f"{refuse} holds files of others: {', '.join(strangers[:5])}.")
    real = folder.resolve()
    for source in (one.resolve() for one in sources):
        if source == real or real in source.parents or source in real.parents:
            raise click.UsageError(f"{folder} is what is being read, or lies in it; write elsewhere.")


def _exchange(fresh: Path, folder: Path) -> None:
    """Give each folder the other's name: at once where the system can, else by way of a third name."""
    if _at_once(fresh, folder):
        return
    between = fresh.with_name(f"{fresh.name}-old")
    folder.rename(between)
    try:
        fresh.rename(folder)
    except OSError:
        between.rename(folder)
        raise
    between.rename(fresh)


def _at_once(fresh: Path, folder: Path) -> bool:
    """Whether the system exchanged the names; only Linux can, and not on every file system."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    return rename is not None and rename(_HERE, os.fsencode(fresh), _HERE, os.fsencode(folder), _EXCHANGE) == 0

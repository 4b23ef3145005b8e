"""Recordings of Rerun: written, one `.rrd` for each sequence, and not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.errors import DatasetNotFoundError
from seqlake.formats.rerun.sink import create, dropped, takes_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

__all__ = ["create", "dropped", "matches", "scan", "takes_files"]


def matches(location: str, /, *, storage: Mapping[str, str] | None = None) -> bool:  # noqa: ARG001 - the protocol's
    """Whether this is a file of Rerun's, so that opening one says what can be done with it."""
    return location.endswith(".rrd")


def scan(location: str, /, *, storage: Mapping[str, str] | None = None) -> NoReturn:  # noqa: ARG001 - the protocol's
    """Recordings are made to be looked at, and are not read back.

    Raises:
        DatasetNotFoundError: Always.
    """
    raise DatasetNotFoundError(
        f"{location} is a recording of Rerun's, which seqlake writes and does not read.",
        path=location,
        hint="Open the dataset that it was made of; `rerun FILE` shows the recording.",
    )

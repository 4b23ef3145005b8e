"""HDF5: episodes as ALOHA, robomimic and its kin, and DROID write them, or as a mapping says; read in place by h5py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.formats.hdf5.scan import matches, scan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.formats.hdf5.scan import Hdf5Dataset

__all__ = ["matches", "open", "scan"]


def open(location: str, /, *, storage: Mapping[str, str] | None = None) -> Hdf5Dataset:  # noqa: A001 - as sl.open asks
    """All episodes of a file or folder, for `sl.open`; `scan` takes options.

    Args:
        location: A file, or a folder of files: a path or URI.
        storage: Options of the object store.

    Example:
        ```python
        sl.statistics(sl.open("aloha/transfer_cube"), ["action"])
        ```
    """
    return scan(location, storage=storage)

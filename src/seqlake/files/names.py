"""Names inside a store: relative, below its root, the same on every system."""

from __future__ import annotations

from seqlake.errors import UnsafeReferenceError


def checked(path: str, /) -> str:
    """The name itself, if it stays below the root.

    Names come out of manifests and indexes that others may have written, so they are input like any other.

    Raises:
        UnsafeReferenceError: Absolute, or with `..`, an empty part, a drive, a backslash or a NUL.

    Example:
        >>> checked("data/part-0.parquet")
        'data/part-0.parquet'
    """
    climbs = any(part in {"", ".", ".."} for part in path.split("/"))
    if climbs or "\0" in path or "\\" in path or path[1:2] == ":":
        raise UnsafeReferenceError(
            f"{path!r} is no name inside a dataset: expected a relative path with '/' between its parts and without "
            "'..'. The file that names it is damaged, or was made to reach outside.",
            path=path,
        )
    return path


def folder(prefix: str, /) -> str:
    """What every name below a folder begins with: `data` and `data/` give `data/`, the root gives nothing."""
    name = prefix.rstrip("/")
    return f"{checked(name)}/" if name else ""

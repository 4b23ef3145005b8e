"""Names inside a store: relative, below its root, the same on every system."""

from __future__ import annotations

from seqlake.errors import UnsafeReferenceError


def checked(path: str, /) -> str:
    """The name itself, if it stays below the root.

    Raises:
        UnsafeReferenceError: Absolute, with `..`, with an empty part, or with a NUL.
    """
    parts = path.split("/")
    bad = not path or "\0" in path or "\\" in path or any(part in {"", ".", ".."} for part in parts)
    if bad or (len(path) > 1 and path[1] == ":"):
        raise UnsafeReferenceError(f"{path!r} is no name inside a dataset: expected a relative path without '..'.")
    return path

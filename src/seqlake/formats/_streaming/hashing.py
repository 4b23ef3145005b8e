"""The hashes that an index may name."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from seqlake import plugins

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# The strongest first: one that matches is enough, and the first that is there is looked at.
ALGORITHMS = (
    *("blake2b", "sha3_512", "sha512", "sha3_384", "sha384", "blake2s", "sha3_256", "sha256", "sha3_224", "sha224"),
    *("sha1", "md5", "xxh3_128", "xxh128", "xxh3_64", "xxh64", "xxh32"),
)


def digest(data: bytes | memoryview, algorithm: str, /) -> str:
    """The lower-case hex digest.

    Raises:
        MissingDependencyError: An `xxh` hash without the package xxhash.
    """
    if algorithm.startswith("xx"):
        made: str = getattr(plugins.require("xxhash", extra="mds"), algorithm)(data).hexdigest()
        return made
    return hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()


def strongest(hashes: Mapping[str, str], /) -> str | None:
    """The strongest algorithm that a file has a digest of; None where there is none that we know."""
    return next((name for name in ALGORITHMS if name in hashes), None)


def checked(names: Iterable[str], /) -> tuple[str, ...]:
    """Algorithms as an index lists them: sorted, each once.

    Raises:
        ValueError: One that is not known.
    """
    found = tuple(sorted(set(names)))
    unknown = [name for name in found if name not in ALGORITHMS]
    if unknown:
        raise ValueError(f"No hash is called {unknown[0]!r}; known are {', '.join(sorted(ALGORITHMS))}.")
    return found

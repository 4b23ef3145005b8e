"""A reference as a row holds it, opened: below the dataset's root, or where its own scheme says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.errors import UnsafeReferenceError
from seqlake.files import locations, stores

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.protocols import Blob


def open_reference(
    root: str, reference: str, /, *, storage: Mapping[str, str] | None = None, allow_outside: bool = False
) -> Blob:
    """The bytes that a reference means.

    Args:
        root: What it is relative to, unless it has a scheme.
        reference: What the cell says.
        storage: Options of the store, as for `open_blob`.
        allow_outside: It may lead out of the root.

    Raises:
        UnsafeReferenceError: It leaves the root, and `allow_outside` was not given.
        FileNotFoundError: Nothing is there.

    Example:
        >>> open_reference("/data/arm", "../secret")
        Traceback (most recent call last):
        seqlake.errors.UnsafeReferenceError: The reference '../secret' leads out of the dataset, to /data/secret...
    """
    location = locations.join(root, reference)
    own_scheme = locations.scheme(reference) != "file"
    if not allow_outside and not own_scheme and not locations.inside(root, location):
        raise UnsafeReferenceError(
            f"The reference {reference!r} leads out of the dataset, to {location}.",
            path=location,
            hint="If you trust the dataset, open it with allow_outside=True.",
        )
    return stores.open_blob(location, storage=storage)

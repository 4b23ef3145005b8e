"""A reference as a row holds it, opened: below the dataset's root, or where its own scheme says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.errors import MissingFileError, SeqlakeError, UnsafeReferenceError
from seqlake.files import locations, stores
from seqlake.files.allowed import in_allowed_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.protocols import Blob


def contained(root: str, reference: str, /, *, allow_outside: bool = False) -> str:
    """The location that a reference means; one without a scheme of its own stays below the root, links followed.

    Args:
        root: What it is relative to, unless it has a scheme.
        reference: A path or URI, as somebody wrote it: in a cell, or in the metadata of a table.
        allow_outside: It may lead out of the root.

    Raises:
        UnsafeReferenceError: It leaves the root, and `allow_outside` was not given.
    """
    location = locations.join(root, reference)
    own_scheme = locations.scheme(reference) != "file"
    if not allow_outside and not own_scheme and not locations.inside(root, location):
        raise UnsafeReferenceError(
            f"The reference {reference!r} leads out of the dataset, to {location}.",
            path=location,
            hint="If you trust the dataset, open it with allow_outside=True.",
        )
    return location


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
        UnsafeReferenceError: It leaves the root, and `allow_outside` was not given; or it names a host or a bucket
            that it may not (`files.allowed`).
        FileNotFoundError: Nothing is there.

    Example:
        >>> open_reference("/data/arm", "../secret")
        Traceback (most recent call last):
        seqlake.errors.UnsafeReferenceError: The reference '../secret' leads out of the dataset, to /data/secret...
    """
    try:
        trusted = allow_outside or in_allowed_folder(locations.join(root, reference), storage)
        location = contained(root, reference, allow_outside=trusted)
        return stores.open_blob(location, storage=storage, named_by=root)
    except SeqlakeError:
        raise
    except ValueError as error:
        raise _names_nothing(reference, error) from None


def missing(error: FileNotFoundError, /, where: str = "") -> Exception:
    """What the system says of a file that is not there, or not any more, as an error of ours.

    Args:
        error: As it was raised; one of ours stays what it is.
        where: The sequence and the column, for the message.
    """
    if isinstance(error, SeqlakeError):
        return error
    return MissingFileError(
        f"{where}{': ' if where else ''}the file that the row names is not there: {error.filename or error}.",
        path=None if error.filename is None else str(error.filename),
        hint="It was removed by a vacuum or by something else: open the newest version, or restore the file; "
        "`seqlake validate` lists all of them.",
    )


def _names_nothing(reference: str, error: ValueError) -> UnsafeReferenceError:
    """Whoever gives a location may have misspelled an argument; a cell names nothing that can be opened."""
    name = locations.redacted(reference)
    return UnsafeReferenceError(f"The reference {name!r} names no file that can be opened: {error}", path=name)

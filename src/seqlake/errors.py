"""Every error that seqlake raises on purpose.

```text
SeqlakeError
├── DatasetNotFoundError      (FileNotFoundError)   nothing there, or not a Mixtrain dataset
├── DatasetExistsError        (FileExistsError)     something is there already
├── VersionNotFoundError      (LookupError)         expired, or never there
├── TagExistsError            (ValueError)          the tag names another version
├── SequenceNotFoundError     (KeyError)            no row has this id
├── InvalidMetadataError      (ValueError)          mixtrain.json cannot be used as it is
│   └── UnsupportedVersionError                     a newer major version of the format
├── ValidationError           (ValueError)          carries findings
│   └── DuplicateSequenceError                      an id that is there already
├── SchemaMismatchError       (ValueError)          expected / found, column by column
│   └── ColumnNotFoundError   (KeyError)            no column of that name, and the nearest one
├── QueryError                (ValueError)          SQL that cannot be used here
│   └── QueryLimitError                             it takes more time or memory than it may
├── ReadOnlyError             (PermissionError)     the place cannot be written
├── AccessDeniedError         (PermissionError)     a server wants a login, or refuses this one
├── DiskFullError             (OSError)             no space is left; errno says which kind
├── CommitConflictError                             what changed meanwhile, how to retry
│   └── CommitUnknownError                          no answer: the log decides
├── DamagedTableError         (OSError)             committed bytes are gone or changed
│   └── MissingFileError      (FileNotFoundError)   a file that a row names is not there
├── ShardChangedError         (OSError)             a shard changed under a reader
├── UnsafeReferenceError      (PermissionError)     a path that leaves the dataset's root
├── ForkedProcessError        (RuntimeError)        a remote store in a forked child
├── LoaderStateError          (ValueError)          a state that belongs to another loader
├── MissingCopyError          (LookupError)         training copies that are not there, or of another original
├── CacheTooSmallError        (ValueError)          says the least size that works
├── BacklogFullError          (RuntimeError)        frames come faster than they are encoded
├── BadDataError              (ValueError)          more bad samples than a budget allows
├── DecodeError               (ValueError)          bytes that cannot be decoded
│   ├── CorruptFileError                            the container is damaged
│   └── CorruptFrameError                           one frame is damaged
├── UnknownPluginError        (LookupError)         known names, nearest guess
└── MissingDependencyError    (ImportError)         the extra to install

PublishPendingWarning         (UserWarning)         committed, but glob readers do not see all of it yet
```

A message says what was expected, what was found and what to do next.
"""

from __future__ import annotations

import errno as _errno
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Controls but the line feed, line separators, what turns the direction of writing or is not seen, and lone surrogates.
_UNSEEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str, /) -> str:
    r"""Text for a terminal: what would steer it, or show something else than it is, as Python writes it in a string.

    Names, ids and texts of a dataset are its maker's. Line feeds stay; see `in_line`.

    Example:
        >>> visible("a\x1b[2Jb")
        'a\\x1b[2Jb'
    """
    return _UNSEEN.sub(lambda match: ascii(match.group())[1:-1], text)


def in_line(text: str, /) -> str:
    """The same for a name within a line: it cannot begin another one."""
    return visible(text).replace("\n", "\\n")


def causes(error: BaseException, /, *, contexts: bool = False) -> Iterator[BaseException]:
    """An error and what it was raised from, each once: one that was raised from itself is its own cause for ever.

    Args:
        error: The last one.
        contexts: Go on with the error that was being handled where no cause was named.
    """
    known: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in known:
        known.add(id(one))
        yield one
        one = one.__cause__ or (one.__context__ if contexts else None)


class SeqlakeError(Exception):
    """The root of the tree.

    Attributes:
        path: The file, folder or URI in question, where there is one.
        hint: What to do next, where the message does not say it already.
    """

    def __init__(self, message: str, *, path: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.hint = hint

    def __str__(self) -> str:
        return visible(f"{self.message} {self.hint}" if self.hint else self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross processes; OSError's own pickling would drop the attributes.
        return (_rebuild, (type(self), self.message, dict(self.__dict__)))

    @property
    def code(self) -> str:
        """The error's stable name in JSON output: its class without `Error`, in kebab case."""
        name = type(self).__name__.removesuffix("Error")
        return "".join(f"-{c.lower()}" if c.isupper() else c for c in name).lstrip("-")


def _rebuild(kind: type[SeqlakeError], message: str, attributes: dict[str, Any]) -> SeqlakeError:
    error = kind(message)
    error.__dict__.update(attributes)
    return error


class DatasetNotFoundError(SeqlakeError, FileNotFoundError):
    """Nothing is there, or what is there is not a Mixtrain dataset."""


class DatasetExistsError(SeqlakeError, FileExistsError):
    """A dataset, or Parquet files of somebody else's, lie where one was to be made."""


class VersionNotFoundError(SeqlakeError, LookupError):
    """The version expired, or was never there."""


class TagExistsError(SeqlakeError, ValueError):
    """The tag names another version already."""


class SequenceNotFoundError(SeqlakeError, KeyError):
    """No row of the dataset, or of the selection, has this id."""


class InvalidMetadataError(SeqlakeError, ValueError):
    """`mixtrain.json`, or the table property, cannot be used as it is."""


class UnsupportedVersionError(InvalidMetadataError):
    """The metadata names a major version of the format newer than this package reads."""


class ValidationError(SeqlakeError, ValueError):
    """Data break a rule of the format.

    Attributes:
        findings: Every `Finding`, not only the first.
    """

    def __init__(
        self, message: str, *, findings: Sequence[Any] = (), path: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.findings: tuple[Any, ...] = tuple(findings)


class DuplicateSequenceError(ValidationError):
    """A `sequence_id` is in the dataset, or in what is being added, already."""


class SchemaMismatchError(SeqlakeError, ValueError):
    """Columns or types differ from the schema; the message compares them column by column."""


class ColumnNotFoundError(SchemaMismatchError, KeyError):
    """No column has this name; names those there are, and the nearest."""


class QueryError(SeqlakeError, ValueError):
    """SQL that does not parse, does not bind, or is not allowed in this place."""


class QueryLimitError(QueryError):
    """SQL that takes more time or memory than it may, where a bound was set."""


class ReadOnlyError(SeqlakeError, PermissionError):
    """The place cannot be written."""


class AccessDeniedError(SeqlakeError, PermissionError):
    """A server wants a login, or refuses the one that it was given; says how to get in."""


class DiskFullError(SeqlakeError, OSError):
    """No space is left, or a quota is used up: what was committed before stands, and the rest left nothing.

    Attributes:
        errno: The system's number for it: `ENOSPC` or `EDQUOT`.
    """

    errno: int = _errno.ENOSPC  # in the instance's dictionary where it is another one, so that it crosses processes


class CommitConflictError(SeqlakeError):
    """A rival's commit touched the same rows; says which, and how to retry.

    Attributes:
        replay: The same change can be made anew on the newest version as it is.
    """

    replay: bool = False


class CommitUnknownError(CommitConflictError):
    """The store gave no answer to a commit: look the transaction up in the log before retrying."""


class DamagedTableError(SeqlakeError, OSError):
    """Committed bytes are gone, overwritten or unreadable."""


class MissingFileError(DamagedTableError, FileNotFoundError):
    """A file that a row names is not there, or not any more."""


class ShardChangedError(SeqlakeError, OSError):
    """A shard's file changed while it was being read."""


class UnsafeReferenceError(SeqlakeError, PermissionError):
    """A reference leaves the dataset's root, or names a host or a bucket, and was not allowed to."""


class ForkedProcessError(SeqlakeError, RuntimeError):
    """A forked child of a parent that had used a remote store cannot use one: it would hang."""


class LoaderStateError(SeqlakeError, ValueError):
    """A loader state belongs to another dataset, window or order."""


class MissingCopyError(SeqlakeError, LookupError):
    """A training copy was asked for that is not there, is of other bytes, or lacks a step that was asked for."""


class CacheTooSmallError(SeqlakeError, ValueError):
    """The cache cannot hold what one step needs; says the least size that can."""


class BacklogFullError(SeqlakeError, RuntimeError):
    """Frames of a take come faster than they are encoded, and no more may wait."""


class BadDataError(SeqlakeError, ValueError):
    """More samples of a loader, or sequences of `compute`, are bad than the budget allows; names one of them."""


class DecodeError(SeqlakeError, ValueError):
    """Bytes cannot be decoded."""


class CorruptFileError(DecodeError):
    """The file itself is damaged or not of its declared kind."""


class CorruptFrameError(DecodeError):
    """One frame of a file is damaged."""


class UnknownPluginError(SeqlakeError, LookupError):
    """No table, format, shard type or command of that name."""


class MissingDependencyError(SeqlakeError, ImportError):
    """An optional package is not installed; says the exact command."""


class PublishPendingWarning(UserWarning):
    """A commit is durable, but readers that glob `data/` do not see all of it yet."""

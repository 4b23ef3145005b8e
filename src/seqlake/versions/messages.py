"""What a commit is for, in its maker's words: said around the verb, kept with the version by whatever home it has.

It travels beside the protocol of tables: a plug that knows nothing of messages commits as it always did.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST = 10_000
_SAID: ContextVar[str | None] = ContextVar("seqlake_message", default=None)


def check(message: object, /) -> None:
    """Refuse what is no message; None is one that nobody said.

    Raises:
        TypeError: It is no text.
        ValueError: It is empty, not text that UTF-8 can hold, or longer than 10 000 characters.
    """
    if message is None:
        return
    if not isinstance(message, str):
        raise TypeError(f"A message is a text, found {type(message).__name__}.")
    if not message.strip() or len(message) > _LONGEST:
        raise ValueError(f"A message has 1 to {_LONGEST} characters, found {len(message.strip())}.")
    try:
        message.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"A message must be valid Unicode, found {message!r} ({error.reason}).") from error


@contextmanager
def saying(message: str | None, /) -> Iterator[None]:
    """Within the block, every commit of this thread carries the message; None leaves what was said around it."""
    check(message)
    before = _SAID.set(_SAID.get() if message is None else message)
    try:
        yield
    finally:
        _SAID.reset(before)


def message() -> str | None:
    """What the commit under way is for; None where nobody said it."""
    return _SAID.get()

"""What obstore does not repeat by itself when a connection breaks, done again a few times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Found = TypeVar("_Found")
_WAITS = (0.1, 0.4, 1.6)  # seconds


def patiently(act: Callable[[], _Found], /, *, is_done: Callable[[], bool] | None = None) -> _Found | None:
    """Do something that may be done twice, again where its connection broke.

    obstore repeats a request that had no answer yet and is known to be harmless; not a listing whose body broke off,
    a put that refuses a name that is taken, a delete. What it gave up after retries of its own is not done again.

    Args:
        act: One or more requests.
        is_done: Whether an earlier try did it, whose answer was lost: asked where a later one finds the name taken.
            Of obstore's own tries nothing is known: whoever makes a name must look whose it is.
    """
    from obstore import exceptions

    taken = (exceptions.AlreadyExistsError, exceptions.PreconditionError)
    for number, wait in enumerate((*_WAITS, None)):
        try:
            return act()
        except taken:
            if not number or is_done is None or not is_done():
                raise
            return None
        except exceptions.GenericError as error:
            text = str(error).partition("\n")[0]
            if wait is None or "HTTP error" not in text or " retries" in text:
                raise
            time.sleep(wait)
    raise AssertionError  # the last try returned or raised

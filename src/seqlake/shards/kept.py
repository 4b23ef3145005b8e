"""Properties that are computed once, of objects that threads use side by side."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Kept = cached_property
else:

    class Kept(cached_property):
        """`functools.cached_property` without its lock, which all objects of a class share before Python 3.12.

        Under that lock the footers of many files of a store are read one after another, whatever threads there are.
        Two threads that ask one object at a time may both compute; the first value stays.

        Example:
            >>> class Circle:
            ...     @Kept
            ...     def area(self):
            ...         return 3
            >>> Circle().area
            3
        """

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            """The value of an object, computed where it is not there yet."""
            if instance is None:
                return self
            return instance.__dict__.setdefault(self.attrname, self.func(instance))

"""Names of files made of cells: `videos/{episode:03d}/cam.mp4`, whose cells may come from strangers."""

from __future__ import annotations

import string
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from seqlake.errors import SchemaMismatchError, UnsafeReferenceError, ValidationError
from seqlake.files.locations import checked

if TYPE_CHECKING:
    from collections.abc import Mapping

_WIDEST = 20  # digits of a number in a name


@dataclass(frozen=True)
class NameTemplate:
    """A relative path with names of columns in braces.

    Python's own `str.format` would follow attributes and pad to any width, so nothing but names and a width of digits
    is taken.

    Attributes:
        text: As in `"videos/{episode:03d}/cam.mp4"`.
        column: What messages call it: the column of the paths.

    Example:
        >>> NameTemplate("{episode:03d}.mp4", "video").filled({"episode": 7})
        '007.mp4'
    """

    text: str
    column: str

    @cached_property
    def _parts(self) -> list[tuple[str, str | None, str]]:
        try:
            parts = [
                (text, name, f"!{conversion}" if conversion else spec or "")
                for text, name, spec, conversion in string.Formatter().parse(self.text)
            ]
        except (ValueError, TypeError, AttributeError) as error:
            raise self._unusable(str(error)) from None
        for _, name, spec in parts:
            if name is None:
                continue
            if not name:
                raise self._unusable("a pair of braces holds no name")
            width = spec.removesuffix("d")
            if spec and not (width.isascii() and width.isdigit() and int(width) <= _WIDEST):
                raise self._unusable(f"{spec!r} is no width of a number, as 03d is one")
        return parts

    def _unusable(self, why: str) -> SchemaMismatchError:
        return SchemaMismatchError(
            f"Column {self.column!r}: expected a path with names of columns in braces, as '{{episode}}/cam.mp4', "
            f"found {self.text!r:.200}: {why}."
        )

    @property
    def names(self) -> list[str]:
        """The columns that it names, each once.

        Raises:
            SchemaMismatchError: It is no template.
        """
        return list(dict.fromkeys(name for _, name, _ in self._parts if name is not None))

    def filled(self, cells: Mapping[str, object], /) -> str:
        """The path of one sequence.

        Args:
            cells: One for each of `names`: text or a whole number.

        Raises:
            ValidationError: A cell that is null, empty, or of another kind.
            UnsafeReferenceError: The path leaves the folder.
        """
        path = "".join(text + self._cell(name, spec, cells) for text, name, spec in self._parts)
        try:
            return checked(path)
        except UnsafeReferenceError as error:
            raise UnsafeReferenceError(
                f"Column {self.column!r}: {error.message}",
                path=path,
                hint=f"The template is {self.text!r}, and the cells are {dict(cells)!r:.200}.",
            ) from None

    def _cell(self, name: str | None, spec: str, cells: Mapping[str, object]) -> str:
        if name is None:
            return ""
        cell = cells[name]
        if isinstance(cell, float) and cell.is_integer():
            cell = int(cell)
        if isinstance(cell, bool) or not isinstance(cell, (str, int)) or cell == "":
            raise ValidationError(f"Column {self.column!r}: {name!r} is {cell!r}, which is no part of a file's name.")
        if isinstance(cell, int):
            return f"{cell:{spec}}"
        if not spec:
            return cell
        if not (cell.isascii() and cell.isdigit()):  # a number that was read as text, since ids may be anything
            raise ValidationError(f"Column {self.column!r}: {name!r} is {cell!r}, and {spec!r} writes a number.")
        return f"{int(cell):{spec}}"

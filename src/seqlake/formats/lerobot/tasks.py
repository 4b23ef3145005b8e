"""What is to be done at each step: by the texts of a sequence, and by the numbers that it had in a LeRobot folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import ColumnNotFoundError, SchemaMismatchError, ValidationError
from seqlake.formats.lerobot.columns import TASK, TASKS
from seqlake.spec.schema import is_list, is_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.formats.lerobot.planning import ExportPlan
    from seqlake.protocols import Ints
    from seqlake.spec.schema import Schema

TASK_INDEX = "task_index"
_INSTRUCTION = "language_instruction"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTexts:
    """Where the texts come from; picklable.

    Attributes:
        columns: Columns of texts, or of lists of them, that must agree.
        numbered: Whether steps have numbers of tasks.
        known: What these numbers mean.
        renamed: Texts that are written in place of others.
    """

    columns: tuple[str, ...]
    numbered: bool
    known: Mapping[int, str]
    renamed: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(schema: Schema, plan: ExportPlan, /, *, column: str | None, renamed: Mapping[str, str]) -> TaskTexts:
        """Where they are in rows of a schema.

        Args:
            schema: Of the rows.
            plan: What becomes of the columns.
            column: The one that is asked for; None: `task` and `tasks`, else `language_instruction`.
            renamed: See the class.

        Raises:
            ColumnNotFoundError: There is no such column.
            SchemaMismatchError: It holds no texts.
        """
        if column is not None and column not in schema:
            raise ColumnNotFoundError(f"task_column: no column {column!r}; there are {', '.join(schema.names)}.")
        if column is not None and not _holds_texts(schema, column):
            raise SchemaMismatchError(f"task_column: expected texts in {column!r}, found {schema[column].arrow}.")
        usual = tuple(name for name in (TASKS, TASK) if _holds_texts(schema, name))
        columns = (column,) if column is not None else usual
        if not columns and _holds_texts(schema, _INSTRUCTION):
            columns = (_INSTRUCTION,)
        numbered = TASK_INDEX in schema and bool(plan.tasks)
        return TaskTexts(columns=columns, numbered=numbered, known=plan.tasks, renamed=renamed)

    def per_step(self, cells: Mapping[str, Any], numbers: Ints | None, steps: int, where: str, /) -> list[str]:
        """[T] what is to be done.

        Args:
            cells: The value of each of `columns`.
            numbers: [T] numbers of tasks, where steps have them.
            steps: T.
            where: The sequence, for messages.

        Raises:
            ValidationError: Texts contradict each other, or nothing says which of several counts at which step.
        """
        texts = self._texts(cells, where)
        named = self._named(numbers, steps)
        if named is not None and (not texts or set(named) <= set(texts)):
            result = named
        elif len(texts) <= 1:
            result = [texts[0] if texts else ""] * steps
        elif len(self.columns) == 1 and isinstance(cells[self.columns[0]], list) and len(texts) == steps:
            result = texts
        else:
            raise ValidationError(
                f"{where} has {len(texts)} tasks, and nothing says at which steps each is to be done.",
                hint="Give one text, or one for each step, in a column that task_column names.",
            )
        return [self.renamed.get(text, text) for text in result]

    def _texts(self, cells: Mapping[str, Any], where: str) -> list[str]:
        held = {name: _listed(cells[name]) for name in self.columns}
        texts = max(held.values(), key=len, default=[])
        for name, some in held.items():
            if not set(some) <= set(texts):
                raise ValidationError(
                    f"{where}: {name} says {some[0]!r:.60}, and another column {texts[0]!r:.60}.",
                    hint=f"Say which counts: task_column={name!r}.",
                )
        return texts

    def _named(self, numbers: Ints | None, steps: int) -> list[str] | None:
        if (
            numbers is None
            or len(numbers) != steps
            or not all(one in self.known for one in np.unique(numbers).tolist())
        ):
            return None
        return [self.known[one] for one in numbers.tolist()]


def _holds_texts(schema: Schema, name: str) -> bool:
    if name not in schema:
        return False
    kind = schema[name].arrow
    inner = kind.value_type if is_list(kind) or pa.types.is_dictionary(kind) else kind
    return is_text(inner)


def _listed(value: Any) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else [one for one in value if isinstance(one, str)]

"""What formats share that keep a file for each sequence: names, staging, and the times of a row's steps."""

from __future__ import annotations

import hashlib
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from seqlake.errors import SeqlakeError, ValidationError
from seqlake.files.appearing import STAGED, appear, clear
from seqlake.files.stores import list_without_links, open_store
from seqlake.receipts import by_part
from seqlake.spec.alignment import clock_of, exact, own_rate
from seqlake.windows.sources import MediaFiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from fractions import Fraction

    from seqlake.protocols import Ints
    from seqlake.spec.schema import Column, Schema

SECOND = 1_000_000_000
_LONGEST = 180  # letters of a file's name


def file_name(key: str, ending: str, /) -> str:
    """The file of a sequence: its id, with what file systems do not take quoted as in URLs.

    Example:
        >>> file_name("ep/1", ".mcap"), file_name("..", ".mcap")
        ('ep%2F1.mcap', '%2E%2E.mcap')
    """
    text = quote(key, safe=" ()[]{}=+,@'")
    text = text.replace(".", "%2E") if not text.strip(".") else text
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 33]}-{hashlib.sha256(key.encode()).hexdigest()[:32]}"
    return f"{text}{ending}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePerSequence(ABC):
    """A `Sink`: a folder whose files have their names only once all are written; picklable.

    Attributes:
        location: The folder, absolute.
        schema: What is written.
        fps: Steps per second where nothing else says it.
        storage: Options of the store; never printed.
        source_storage: Options of the store that the rows' files lie in; never printed.
        ending: Of the files, as in `.mcap`.
    """

    location: str
    schema: Schema
    fps: float | Fraction | None
    storage: Mapping[str, str] | None = field(default=None, repr=False)
    source_storage: Mapping[str, str] | None = field(default=None, repr=False)
    ending: ClassVar[str]

    @abstractmethod
    def save(self, row: pa.RecordBatch, key: str, named: MediaFiles, path: Path) -> None:
        """Write the file of one row.

        Args:
            row: The one row.
            key: Its id.
            named: Opens the files that it names.
            path: Where; there is nothing.

        Raises:
            ValidationError: What the row holds cannot be written.
        """

    def write(self, part: int, rows: Iterator[pa.RecordBatch], /, *, root: str) -> dict[str, Any]:
        """Stage the files of one part; the same part again replaces itself.

        Returns:
            The names of its files.

        Raises:
            ValidationError: What a row holds cannot be written: steps and their times that do not fit, for one.
        """
        store: Any = open_store(self.location, storage=self.storage)
        folder = f"{STAGED}/{part:05d}"
        store.delete([path for path, _ in list_without_links(store, folder)])
        names, named = list[str](), MediaFiles.named(root, self.source_storage)
        with tempfile.TemporaryDirectory(prefix="seqlake-sequence-") as scratch:
            path = Path(scratch) / f"row{self.ending}"
            for row in (batch.slice(number, 1) for batch in rows for number in range(batch.num_rows)):
                key = row.column(str(self.schema.id))[0].as_py()
                path.unlink(missing_ok=True)
                try:
                    self.save(row, key, named, path)
                except ValidationError as error:
                    raise ValidationError(f"sequence {key!r}: {error.message}", hint=error.hint) from None
                names.append(file_name(key, self.ending))
                store.put(f"{folder}/{names[-1]}", path)
        return {"part": part, "names": names}

    def commit(self, receipts: Sequence[object], /) -> None:
        """Give the files their names, on a disk all at once.

        Raises:
            SeqlakeError: Two sequences would have one file.
        """
        store: Any = open_store(self.location, storage=self.storage)
        placed = [(one["part"], name) for one in by_part(receipts) for name in one["names"]]
        names = [name for _, name in placed]
        if len(set(names)) < len(names):
            raise SeqlakeError("Two sequences have the same id: nothing was written.")
        appear(store, self.location, {f"{STAGED}/{part:05d}/{name}": name for part, name in placed})
        self.discard()

    def discard(self) -> None:
        """Remove every file that was staged."""
        clear(open_store(self.location, storage=self.storage), self.location)


class StepTimes:
    """When the steps of one row's columns are: by the stamps that it holds, else by rates.

    Args:
        schema: The columns.
        row: The one row.
        fps: Steps per second where neither columns nor stamps say it.
        least: The least time that there may be, in nanoseconds; None: any.

    Raises:
        ValidationError: A time is no number, or before `least`.
    """

    def __init__(
        self, schema: Schema, row: pa.RecordBatch, /, *, fps: float | Fraction | None = None, least: int | None = None
    ) -> None:
        self._schema, self._row, self._fps, self._least = schema, row, fps, least
        self._stamps = {name: self._times_in(name) for name in schema.stamp_columns}
        begins = [int(times.min()) for times in self._stamps.values() if times is not None and len(times)]
        self.begin = min(begins, default=self.started() or 0)
        """The first of all stamps; else when the row began."""

    def of(self, column: Column, count: int, /) -> Ints | None:
        """[count] nanoseconds of the steps of a column; None where nothing says them.

        Raises:
            ValidationError: It has another number of times than of steps.
        """
        stamps = self._stamps.get(column.name if column.name in self._stamps else str(column.timestamps))
        if stamps is not None:
            if len(stamps) != count:
                raise ValidationError(f"column {column.name!r} has {count} steps and {len(stamps)} times.")
            return stamps
        rate = rate_of(column, self._schema, self._fps)
        if rate is None:
            return None
        steps = [self.begin + step * SECOND * rate.denominator // rate.numerator for step in range(count)]
        return np.array(steps, np.int64)

    def started(self) -> int | None:
        """When the row began, in nanoseconds since 1970, where a column `start_time` says it."""
        if "start_time" not in self._schema or not pa.types.is_timestamp(self._schema["start_time"].logical):
            return None
        value = self._row.column("start_time")[0]
        return max(value.cast(pa.timestamp("ns", tz=value.type.tz)).value, 0) if value.is_valid else None

    def _times_in(self, name: str) -> Ints | None:
        """The stamps of a column as nanoseconds: whole numbers are, floats are seconds."""
        cell = self._row.column(name)[0]
        if not cell.is_valid:
            return None
        values = np.asarray(cell.values.to_numpy(zero_copy_only=False))
        if values.dtype.kind == "f":
            if not np.isfinite(values).all():
                raise ValidationError(f"column {name!r} has times that are no numbers.")
            values = np.round(values.astype(np.float64) * SECOND)
        values = values.astype(np.int64)
        if self._least is not None and len(values) and int(values.min()) < self._least:
            raise ValidationError(f"column {name!r} has times before {self._least}, where this format's clock begins.")
        return values


def rate_of(column: Column, schema: Schema, fps: float | Fraction | None, /) -> Fraction | None:
    """Steps per second of a column: its own, else those of the dataset, else `fps`."""
    return own_rate(column) or clock_of(schema).rate or (None if fps is None else exact(fps))

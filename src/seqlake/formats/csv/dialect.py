"""How the bytes of a CSV file are rows: where blocks of whole rows end, and what their cells are."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.protocols import Blob

BLOCK_BYTES = 8 << 20
_MOST_ROW = 256 << 20  # bytes of one row
_BOM = b"\xef\xbb\xbf"
_MARKS = (",", ";", "\t", "|")
NULLS = ("", "NA", "N/A", "#N/A", "n/a", "null", "NULL", "None", "<NA>")
_LEADING_ZERO = re.compile(rb"""(?:^|[,;\t|"\r\n])[-+]?0[0-9]""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What separates, quotes and replaces cells.

    Attributes:
        delimiter: Between cells.
        quote: Around cells that hold a delimiter or a newline; None: nothing is quoted.
        escape: Before a character that means itself.
        encoding: Of the text; one in which the delimiter, quotes and newlines are the bytes that they are in ASCII.
        nulls: Cells that stand for nothing.
        decimal: Before the fraction of a number.
    """

    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None
    encoding: str = "utf-8"
    nulls: Sequence[str] = NULLS
    decimal: str = "."

    def __post_init__(self) -> None:
        for name in ("delimiter", "decimal", "quote", "escape"):
            mark = getattr(self, name)
            optional = mark is None and name in {"quote", "escape"}
            if not optional and not (
                isinstance(mark, str) and len(mark) == 1 and mark.isascii() and mark not in "\r\n"
            ):
                raise ValueError(f"{name}: expected one character of ASCII, found {mark!r:.80}.")
        marks = [mark for mark in (self.delimiter, self.quote, self.escape, self.decimal) if mark is not None]
        if len(set(marks)) < len(marks):
            raise ValueError(
                f"delimiter, quote, escape and decimal are different characters; found {self.delimiter!r}, "
                f"{self.quote!r}, {self.escape!r} and {self.decimal!r}."
            )
        try:
            plain = codecs.lookup(self.encoding).name
            fits = 'a,"\n'.encode(plain) == b'a,"\n'
        except (LookupError, TypeError):
            plain, fits = "", False
        if not fits:
            raise ValueError(
                f"encoding: expected one that extends ASCII, as 'utf-8' or 'latin-1', found {self.encoding!r:.80}: "
                "write the file anew in UTF-8."
            )

    def parsed(
        self,
        data: bytes | memoryview,
        /,
        *,
        location: str,
        names: Sequence[str],
        types: Mapping[str, pa.DataType],
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows of a block.

        Args:
            data: Whole rows, without a header.
            location: For messages.
            names: Of all columns.
            types: What is known of them; the others are guessed.
            columns: Those that are wanted; None for all.

        Raises:
            CorruptFileError: A row has another number of cells, or a cell is none of its column's type.
        """
        from pyarrow import csv

        try:
            return csv.read_csv(
                pa.BufferReader(data),
                read_options=csv.ReadOptions(
                    column_names=list(names), block_size=max(len(data) + 1, 1 << 10), encoding=self.encoding
                ),
                parse_options=csv.ParseOptions(
                    delimiter=self.delimiter,
                    quote_char=self.quote or False,
                    escape_char=self.escape or False,
                    newlines_in_values=self.quote is not None,
                ),
                convert_options=csv.ConvertOptions(
                    column_types=dict(types),
                    null_values=list(self.nulls),
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                    decimal_point=self.decimal,
                    include_columns=None if columns is None else list(columns),
                ),
            )
        except (pa.ArrowException, UnicodeDecodeError) as error:
            text = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
            raise CorruptFileError(
                f"{location}: {text}",
                path=location,
                hint="Say how it is written: delimiter=, quote=, encoding=, decimal=; or types={'column': 'string'} "
                "for a column that holds something else.",
            ) from None


class CsvBytes:
    """The bytes of one file, cut into blocks of whole rows.

    Args:
        blob: The file.
        dialect: How it is written.
    """

    def __init__(self, blob: Blob, dialect: Dialect, /) -> None:
        self._blob = blob
        self._dialect = dialect
        self._held: tuple[int, memoryview] = (0, memoryview(b""))

    @cached_property
    def first(self) -> int:
        """Where the text begins: behind its byte order mark."""
        return len(_BOM) if bytes(self.read(0, len(_BOM))) == _BOM else 0

    def read(self, start: int, stop: int, /) -> memoryview:
        """The bytes of a range, which ends with the file."""
        stop = min(stop, self._blob.size)
        if stop <= start:
            return memoryview(b"")
        view = self._blob.view()
        if view is not None:
            return view[start:stop]
        begin, held = self._held
        if not begin <= start <= stop <= begin + len(held):  # the end of a block was looked for in what it is read from
            [held] = self._blob.ranges(np.array([start], np.int64), np.array([stop], np.int64))
            begin, self._held = start, (start, held)
        return held[start - begin : stop - begin]

    def row_at(self, start: int, /) -> int:
        """Where the row that begins at a byte ends."""
        return self._end(start, most=1 << 16, last=False)

    def blocks(self, start: int, /, *, size: int) -> Iterator[tuple[int, int]]:
        """Ranges of whole rows of about so many bytes each."""
        while start < self._blob.size:
            stop = self._end(start, most=size, last=True)
            yield start, stop
            start = stop

    def _end(self, start: int, *, most: int, last: bool) -> int:
        """The end of the first row, or of the last one that ends within so many bytes."""
        while True:
            data = self.read(start, start + most)
            ends = self._ends(data, start, final=start + most >= self._blob.size)
            if len(ends):
                return start + int(ends[-1 if last else 0]) + 1
            if start + most >= self._blob.size:
                return self._blob.size
            if most >= _MOST_ROW:
                raise CorruptFileError(
                    f"{self._blob.location}: the row that begins at byte {start} does not end within {most:,} bytes.",
                    path=self._blob.location,
                    hint="A quote may be opened and never closed: quote=None if the file has no quoted cells.",
                )
            most *= 4

    def _ends(self, data: memoryview, start: int, *, final: bool) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Places of newlines that end a row; `data` begins with a row."""
        escape, quote = self._dialect.escape, self._dialect.quote
        if escape is not None:
            text = re.sub(re.escape(escape).encode() + rb"[\s\S]", b"xx", bytes(data))
            letters = np.frombuffer(text, np.uint8)
        else:
            letters = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(letters == ord("\n"))
        if not len(ends):
            ends = np.flatnonzero(letters == ord("\r"))
            ends = ends[ends < len(letters) - 1]  # the newline of one at the end may follow
        if quote is None:
            return ends
        quotes = np.flatnonzero(letters == ord(quote))
        if final and len(quotes) % 2:
            raise CorruptFileError(
                f"{self._blob.location}: between byte {start} and its end a quote is opened and never closed.",
                path=self._blob.location,
                hint="The file is cut off; or its cells are not quoted, and hold quotes: quote=None.",
            )
        # An even number of quotes before it: it stands outside of them.
        return ends[np.searchsorted(quotes, ends) % 2 == 0] if len(quotes) else ends


def guessed_delimiter(header: str, path: str, /) -> str:
    """A tab for `.tsv`, a comma where the header has one, else what it has most of."""
    if path.lower().endswith((".tsv", ".tab")):
        return "\t"
    counts = {mark: header.count(mark) for mark in _MARKS}
    return "," if counts[","] or not any(counts.values()) else max(counts, key=lambda mark: counts[mark])


def header_of(data: bytes | memoryview, dialect: Dialect, /, *, location: str) -> list[str]:
    """The names in the first row; a column without a name is called `column_<number>`.

    Raises:
        SchemaMismatchError: Two columns have one name.
    """
    count = max(1, len(_cells(data, dialect, location)))
    names = [name.strip() or f"column_{number}" for number, name in enumerate(_cells(data, dialect, location))][:count]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SchemaMismatchError(
            f"{location}: two columns are called {twice!r}.",
            path=location,
            hint="Name them yourself: header=False, columns=[...] and skip_rows=1.",
        )
    return names


def _cells(data: bytes | memoryview, dialect: Dialect, location: str) -> list[str]:
    """The cells of one row as texts."""
    import csv

    try:
        text = str(data, dialect.encoding)
        [*rows] = csv.reader(
            [text.rstrip("\r\n")] if "\n" not in text.rstrip("\r\n") else text.rstrip("\r\n").splitlines(keepends=True),
            delimiter=dialect.delimiter,
            quotechar=dialect.quote,
            quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE,
            escapechar=dialect.escape,
        )
    except (UnicodeDecodeError, csv.Error) as error:
        raise CorruptFileError(f"{location}: its first row cannot be read ({error}).", path=location) from None
    return [str(cell) for row in rows[:1] for cell in row]


def typed(
    tables: Iterator[tuple[pa.Table, bytes | memoryview]], known: Mapping[str, pa.DataType], dialect: Dialect, /
) -> Iterator[tuple[int, dict[str, pa.DataType], set[str]]]:
    """Of each block: rows, the types of its columns, and those with nulls."""
    for table, data in tables:
        kinds = {field.name: field.type for field in table.schema}
        if any(pa.types.is_integer(kind) for kind in kinds.values()) and _LEADING_ZERO.search(data):
            kinds |= _padded(data, kinds, known, dialect)
        yield table.num_rows, kinds, {n for n in table.column_names if table.column(n).null_count}


def _padded(
    data: bytes | memoryview, kinds: Mapping[str, pa.DataType], known: Mapping[str, pa.DataType], dialect: Dialect
) -> dict[str, pa.DataType]:
    """Columns of digits with zeros before them: names such as 007, which a number would lose."""
    import pyarrow.compute as pc

    asked = [name for name, kind in kinds.items() if pa.types.is_integer(kind) and name not in known]
    texts = dialect.parsed(data, location="", names=list(kinds), types=dict.fromkeys(kinds, pa.string()), columns=asked)
    padded = (n for n in asked if pc.any(pc.match_substring_regex(texts.column(n), r"^\s*[-+]?0[0-9]")).as_py())
    return dict.fromkeys(padded, pa.string())


def joined(first: pa.DataType, second: pa.DataType, /) -> pa.DataType:
    """The type that holds the cells of two blocks of a column; text where nothing else does.

    Example:
        >>> joined(pa.int64(), pa.float64())
        DataType(double)
    """
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    numbers = (pa.int64(), pa.float64())
    if first in numbers and second in numbers:
        return pa.float64()
    times = [kind for kind in (first, second) if pa.types.is_timestamp(kind)]
    if len(times) == 2 and times[0].tz == times[1].tz:
        return pa.timestamp("ns", tz=times[0].tz)
    if len(times) == 1 and times[0].tz is None and pa.types.is_date(second if first is times[0] else first):
        return times[0]
    return pa.string()

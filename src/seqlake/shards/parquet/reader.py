"""Reads a Parquet shard: flat columns without decoding, everything else through pyarrow.

Where a column is read in place nobody looks at whole pages: that is what makes windows cheap. With a proof
(`verify="first"`) the page under a window is read once, from its header to its last byte: its CRC-32, and row by row
the lengths that its levels say.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from seqlake.errors import CorruptFileError, SchemaMismatchError, SeqlakeError
from seqlake.files.checksums import crc32
from seqlake.shards.cells import from_flat, takeable
from seqlake.shards.kept import Kept
from seqlake.shards.parquet import index as offsets
from seqlake.shards.parquet.building import page_steps
from seqlake.shards.parquet.expansion import BATCH, Expansion, expansion_of, fitting_rows
from seqlake.shards.parquet.flatness import bears_out, claims_of, flat_of
from seqlake.shards.parquet.footer import DAMAGE, Footer, read_footer
from seqlake.shards.parquet.held import HeldFiles
from seqlake.shards.parquet.pages import read_header
from seqlake.shards.proofs import PieceProof, proven
from seqlake.shards.reading import count_only, rows_asked
from seqlake.spec.schema import has_list_views, has_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Blob, Flat, Ints
    from seqlake.shards.parquet.flatness import PageClaims
    from seqlake.shards.parquet.index import ColumnIndex

_BATCH = 16 << 20  # bytes of a batch, about
_MOST_VALUES = 1 << 26  # values of a batch, whatever the encoding makes of them
_MOST_ROWS = 1 << 16  # rows of a batch
_BEGINNING = 8  # a row group's first eighth is its beginning
_KEPT = 256 << 20  # bytes of decoded row groups kept between calls that ask for rows


@dataclass(frozen=True, kw_only=True, eq=False)
class PageProof(PieceProof):
    """Of one flat column of one file; see `protocols.Proof`.

    Attributes:
        blob: The file.
        footer: Of the file.
        column: Its name.
        entry: What the offset index says of it.
    """

    blob: Blob
    footer: Footer
    column: str
    entry: ColumnIndex

    @cached_property
    def _claims(self) -> PageClaims:
        claims = claims_of(self.footer, self.column, self.entry)
        assert claims is not None  # the column is flat
        return claims

    def _proven_pieces(self) -> NDArray[np.bool_]:
        entry = self.entry
        facts = (entry.page_start.tobytes(), entry.page_row.tobytes(), entry.steps.tobytes())
        return proven(self.blob, self.column, len(entry.page_start), *facts)

    def _first_values(self) -> Ints:
        return self.entry.page_start

    def _extent(self, pieces: Ints) -> tuple[Ints, Ints]:
        """From the header of a page to its last byte."""
        return self._claims.header[pieces], self._claims.stop[pieces]

    def rows(self, page: int, /) -> slice:
        """The rows of a page, counted in the file."""
        first = self.entry.page_row
        return slice(int(first[page]), int(first[page + 1]) if page + 1 < len(first) else self.entry.steps.size)

    def _compare(self, piece: int, data: memoryview) -> None:
        page = read_header(data, 0)
        if page.crc is not None and page.crc != crc32(data[page.body : page.stop]):
            raise self._damaged(piece, f"checksum {page.crc:08x}", "another: its values changed after writing")
        rows = self.rows(piece)
        steps = page_steps(self.footer, self.column, self.entry, data, page)
        if steps is None or not np.array_equal(steps, self.entry.steps[rows]):
            raise self._damaged(piece, f"the lengths of rows {rows.start} to {rows.stop - 1} in the index", "others")

    def _damaged(self, page: int, expected: str, actual: str) -> CorruptFileError:
        return CorruptFileError(
            f"Column {self.column!r} of {self.blob.location}: expected {expected} in the page at byte "
            f"{self._claims.header[page]}, found {actual}.",
            path=self.blob.location,
            hint="Restore the file from a copy, or delete its rows; `seqlake validate --depth rows` says more.",
        )


class ParquetReader:
    """One open Parquet file; made by `open`, opens nothing before it is asked.

    Attributes:
        blob: The file.
    """

    def __init__(
        self,
        blob: Blob,
        /,
        *,
        index: bytes | None = None,
        headers: bool = True,
        footer: Footer | None = None,
        verify: bool = False,
    ) -> None:
        self.blob = blob
        self._verify = verify
        if footer is not None:
            self.footer = footer
        self._outside = index
        self._headers = headers
        self._flats: dict[str, Flat | None] = {}
        self._held: dict[str, HeldFiles] = {}
        self._fits: dict[tuple[int, tuple[int, ...]], int] = {}
        self._decoded: dict[tuple[int, tuple[str, ...]], list[pa.RecordBatch]] = {}
        self._begun: set[tuple[int, tuple[str, ...]]] = set()

    @Kept
    def footer(self) -> Footer:
        """The end of the file, read once.

        Raises:
            CorruptFileError: It is not Parquet, or is damaged.
        """
        return read_footer(self.blob)

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema as the file stores it."""
        return self.footer.schema

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return self.footer.rows

    @Kept
    def index(self) -> offsets.OffsetIndex | None:
        """The file's own offset index, else the one given at `open`; None where there is neither.

        One that was given is derived: where it does not decode, the file itself is asked, and `validate` says so.
        """
        stored = self.footer.index()
        if stored is not None or not self._outside:
            return stored
        try:
            outside = offsets.decode(self._outside, nbytes=self.blob.size)
        except CorruptFileError:
            return None
        return outside if all(entry.steps.size == self.rows for entry in outside.columns.values()) else None

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] T of a column, -1 null, from the index where the footer bears it out; None: they must be counted."""
        entry = None if self.index is None else self.index.columns.get(column)
        return None if entry is None or not bears_out(self.footer, column, entry) else entry.steps.astype(np.int64)

    def flat(self, column: str, /) -> Flat | None:
        """Where the steps of each row lie; None where the column must be decoded.

        Raises:
            SchemaMismatchError: No such column.
            CorruptFileError: The file is damaged.
        """
        if column not in self._flats:
            self._known([column])
            self._flats[column] = self._found_flat(column)
        return self._flats[column]

    def _found_flat(self, column: str) -> Flat | None:
        entry = None if self.index is None else self.index.columns.get(column)
        if self.index is None or entry is None:
            return None
        self.blob.view()  # maps a local file, so that its ranges are slices
        # Only the file's own index lies under its seal; any other must be tied to these very rows.
        levels = None if self.footer.has_index else self.index.levels.get(column, b"")
        flat = flat_of(self.footer, column, entry, levels=levels, headers=self._headers or levels is not None)
        if flat is None or not self._verify or not entry.page_start.size:
            return flat
        return replace(flat, proof=PageProof(blob=self.blob, footer=self.footer, column=column, entry=entry))

    def held(self, column: str, rows: Ints, /) -> list[tuple[str, Blob] | None] | None:
        """Files in cells, where they lie; None where pages are encoded or compressed, or to be compared.

        Raises:
            SchemaMismatchError: No such column.
            IndexError: A row that the file does not have.
        """
        self._known([column])
        if self._verify:
            return None  # checksums are of whole pages
        if column not in self._held:
            self._held[column] = HeldFiles(self.footer, column)
        return self._held[column].files(rows_asked(rows, self.rows))

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """Record batches of these columns, in this order, as the file stores them.

        Args:
            columns: Column names; none gives batches that only count rows.
            rows: Row numbers, in the order wanted, repeats allowed; None is all.

        Yields:
            Batches of about 16 MiB, at least one row each.

        Raises:
            SchemaMismatchError: No such column.
            CorruptFileError: The file is damaged.
            IndexError: A row that the file does not have.
        """
        names = list(columns)
        self._known(names)
        if rows is None:
            for group in range(len(self.footer.group_rows)):
                yield from self._group(group, names)
        else:
            yield from self._picked(names, rows_asked(rows, self.rows))

    def close(self) -> None:
        """Forget what was read; the reader may be asked again."""
        self._decoded.clear()
        self._flats.clear()
        self._held.clear()
        self.__dict__.pop("_file", None)

    def _known(self, columns: Sequence[str]) -> None:
        unknown = [name for name in columns if name not in self.footer.leaves]
        if unknown:
            raise SchemaMismatchError(
                f"Expected columns among {self.schema.names}, found {unknown}.", path=self.blob.location
            )

    # ---- whole row groups

    def _group(self, group: int, names: list[str]) -> Iterator[pa.RecordBatch]:
        """One row group in bounded batches; flat columns are copied, the rest is decoded."""
        first = sum(self.footer.group_rows[:group])
        flats = {name: flat for name in names if (flat := self.flat(name)) is not None}
        decode = [name for name in dict.fromkeys(names) if name not in flats]
        size = self._batch_rows(group, names)
        for batch in self._decode(group, decode, size):
            rows = np.arange(first, first + batch.num_rows)
            first += batch.num_rows
            yield self._joined(names, batch, flats, rows)

    def _joined(self, names: list[str], decoded: pa.RecordBatch, flats: dict[str, Flat], rows: Ints) -> pa.RecordBatch:
        if not names:
            return next(count_only(len(rows)))
        fields = [self.schema.field(name) for name in names]
        arrays = [
            from_flat(flats[name], rows, field.type) if name in flats else decoded.column(name)
            for name, field in zip(names, fields, strict=True)
        ]
        fields = [  # nothing casts to views of lists: what came with offsets stays so
            field.with_type(array.type) if has_list_views(field.type) else field
            for field, array in zip(fields, arrays, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _batch_rows(self, group: int, names: Sequence[str]) -> int:
        """Rows of one batch of a row group."""
        rows = max(self.footer.group_rows[group], 1)
        chunks = [self.footer.chunks[group][leaf] for name in names for leaf in self.footer.leaves[name]]
        nbytes = sum(chunk.decoded for chunk in chunks)
        values = max((chunk.values for chunk in chunks), default=0)
        return int(max(1, min(_MOST_ROWS, _BATCH * rows // max(nbytes, 1), _MOST_VALUES * rows // max(values, 1))))

    def _decode(self, group: int, names: list[str], size: int) -> Iterator[pa.RecordBatch]:
        """Batches of a row group through pyarrow, after its page headers were proved."""
        rows = self.footer.group_rows[group]
        if not names:
            for start in range(0, rows, size):
                yield from count_only(min(size, rows - start))
            return
        leaves = [leaf for name in names for leaf in self.footer.leaves[name]]
        file, most = self._opened(group, leaves)
        size = min(size, most)
        texts = [name for name in names if has_text(self.schema.field(name).type)]
        seen = 0
        try:
            for batch in file.iter_batches(batch_size=size, row_groups=[group], columns=names, use_threads=False):
                seen += batch.num_rows
                for name in texts:
                    batch.column(name).validate(full=True)  # bytes that are no UTF-8 raise a library's error far away
                yield batch.select(names)
        except SeqlakeError:
            raise
        except DAMAGE as error:
            raise self._damaged(f"values that cannot be decoded ({error})") from None
        if seen != rows:
            raise self._damaged(f"{seen} rows in row group {group} instead of {rows}")

    def _opened(self, group: int, leaves: Sequence[int]) -> tuple[pq.ParquetFile, int]:
        """The file for pyarrow (the map itself, or chunks fetched at once), and how many rows are decoded at once."""
        chunks = [self.footer.chunks[group][leaf] for leaf in leaves]
        view = self.blob.view()
        if view is not None:
            parts = [view[chunk.start : chunk.stop] for chunk in chunks]
            file = self._file
        else:
            starts, stops = np.array([c.start for c in chunks]), np.array([c.stop for c in chunks])
            parts = self.blob.ranges(starts, stops)
            source = pa.PythonFile(_Fetched(self.blob, starts.tolist(), parts), mode="r")
            file = self._parquet_file(source)
        key = (group, tuple(leaves))
        if key not in self._fits:
            expansions = [expansion_of(self.footer, chunk, part) for chunk, part in zip(chunks, parts, strict=True)]
            for one in expansions:
                self._prove(one)
            self._fits[key] = fitting_rows(self.footer, expansions, _MOST_ROWS)
        return file, self._fits[key]

    @Kept
    def _file(self) -> pq.ParquetFile:
        return self._parquet_file(pa.BufferReader(pa.py_buffer(self.blob.view())))

    def _parquet_file(self, source: pa.NativeFile) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(
                source, metadata=self.footer.metadata, page_checksum_verification=True, pre_buffer=False
            )
        except DAMAGE as error:
            raise self._damaged(f"a file that cannot be opened ({error})") from None

    def _prove(self, part: Expansion) -> None:
        """Compare a chunk's page headers with the digest taken when it was written."""
        headers = self.index.headers if self.index is not None and self.footer.has_index else ()
        parquet = self.footer.metadata
        if headers and part.headers() != headers[part.chunk.row_group * parquet.num_columns + part.chunk.leaf]:
            raise self._damaged(f"page headers of {parquet.schema.column(part.chunk.leaf).path!r} that changed")

    def _damaged(self, actual: str) -> CorruptFileError:
        return CorruptFileError(
            f"Expected the bytes that were written to {self.blob.location}, found {actual}.",
            path=self.blob.location,
            hint="The file is damaged: restore it from a copy, or delete its rows.",
        )

    # ---- some rows

    def _picked(self, names: list[str], rows: Ints) -> Iterator[pa.RecordBatch]:
        """These rows in bounded batches; row groups without any of them are not touched."""
        flats = {name: flat for name in names if (flat := self.flat(name)) is not None}
        decode = [name for name in dict.fromkeys(names) if name not in flats]
        ends = np.cumsum(self.footer.group_rows)
        groups = np.searchsorted(ends, rows, side="right")
        size = min((self._batch_rows(int(group), names) for group in np.unique(groups)), default=1)
        for start in range(0, rows.size, size):
            yield from self._some(names, decode, flats, rows[start : start + size], groups[start : start + size])

    def _some(
        self, names: list[str], decode: list[str], flats: dict[str, Flat], rows: Ints, groups: Ints
    ) -> Iterator[pa.RecordBatch]:
        """One batch of these rows; halves of it where they are larger than others of their row groups."""
        decoded = self._taken(rows, groups, decode)
        if decoded is not None:
            yield self._joined(names, decoded, flats, rows)
            return
        half = rows.size // 2
        yield from self._some(names, decode, flats, rows[:half], groups[:half])
        yield from self._some(names, decode, flats, rows[half:], groups[half:])

    def _taken(self, rows: Ints, groups: Ints, names: list[str]) -> pa.RecordBatch | None:
        """Decoded cells of these rows, in their order; None where they are too large for one batch."""
        if not names:
            return next(count_only(len(rows)))
        parts, order, nbytes = [], [], 0
        for group in np.unique(groups):
            here = np.flatnonzero(groups == group)
            inside = rows[here] - sum(self.footer.group_rows[: int(group)])
            first = 0
            for batch in self._kept(int(group), names, int(inside.max())):
                hit = np.flatnonzero((inside >= first) & (inside < first + batch.num_rows))
                if hit.size:
                    wanted = inside[hit] - first
                    often = int(np.bincount(wanted).max())
                    if rows.size > 1 and often > 1 and often * batch.nbytes > BATCH:
                        return None
                    parts.append(takeable(batch).take(pa.array(wanted)))
                    order.append(here[hit])
                    nbytes += parts[-1].nbytes
                    if rows.size > 1 and nbytes > BATCH:
                        return None
                first += batch.num_rows
        positions = np.concatenate(order)
        table = pa.Table.from_batches(parts)
        if np.array_equal(positions, np.arange(positions.size)):
            joined = table.combine_chunks()
        else:
            joined = table.combine_chunks().take(pa.array(np.argsort(positions)))
        return joined.combine_chunks().to_batches()[0]

    def _kept(self, group: int, names: list[str], last: int) -> Iterator[pa.RecordBatch]:
        """A row group's batches, at least up to its row `last`; small ones stay decoded for the next question."""
        key = (group, tuple(names))
        if key in self._decoded:
            self._decoded[key] = self._decoded.pop(key)  # the newest is last
            yield from self._decoded[key]
            return
        kept: list[pa.RecordBatch] = []
        nbytes = rows = 0
        # The first page of a table is often all that is asked for: the rest is decoded when a group is asked for again.
        whole = key in self._begun or last * _BEGINNING >= self.footer.group_rows[group]
        self._begun.add(key)
        for batch in self._decode(group, names, self._batch_rows(group, names)):
            nbytes += batch.nbytes
            rows += batch.num_rows
            kept = [*kept, batch] if nbytes <= _KEPT else []
            yield batch
            if rows > last and (nbytes > _KEPT or not whole):
                return
        if nbytes <= _KEPT:
            self._decoded[key] = kept
            while sum(b.nbytes for group_ in self._decoded.values() for b in group_) > _KEPT:
                del self._decoded[next(iter(self._decoded))]


class _Fetched(io.RawIOBase):
    """A file of which some ranges are in memory; the others are fetched when asked for."""

    def __init__(self, blob: Blob, starts: list[int], parts: list[memoryview]) -> None:
        self._blob = blob
        self._parts = sorted(zip(starts, parts, strict=True), key=lambda item: item[0])
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._blob.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        stop = self._blob.size if size < 0 else min(self._at + size, self._blob.size)
        start, self._at = self._at, max(stop, self._at)
        if stop <= start:
            return b""
        for first, part in self._parts:
            if first <= start and stop <= first + len(part):
                return bytes(part[start - first : stop - first])
        (part,) = self._blob.ranges(np.array([start]), np.array([stop]))
        return bytes(part)


def open(blob: Blob, /, *, index: bytes | None = None, verify: bool = False) -> ParquetReader:  # noqa: A001 - the verb of the ShardFormat protocol
    """Open a Parquet file as a shard.

    Args:
        blob: The file.
        index: An offset index kept outside the file (`building.build`), used where the file has none of its own.
        verify: Flat columns carry a `Proof`: each of their pages is compared before it is first handed out.

    Returns:
        A reader; the footer is read when it is first asked.

    Example:
        >>> reader = open(open_blob("part-0.parquet"))
        >>> flat = reader.flat("action")
        >>> flat.steps[:3], flat.shape
        (array([54, 40, 59]), (12,))
    """
    return ParquetReader(blob, index=index, verify=verify)

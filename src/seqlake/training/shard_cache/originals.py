"""Shards as a cache takes them in: what is fetched of one, and how that becomes a local shard with the same rows.

A remote Parquet file is mirrored: the bytes of the column chunks that are wanted lie in a local file at the places they
have in the remote one, all else is holes. Where the signals in it are flat, the mirror itself is the local shard. Any
other shard is read batch by batch and written anew in the training layout.
"""

from __future__ import annotations

import json
import os
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from seqlake.errors import CacheTooSmallError, CorruptFileError, ShardChangedError
from seqlake.files.blobs import LocalBlob, MemoryBlob
from seqlake.files.ranges import GAP, LARGEST
from seqlake.shards import parquet
from seqlake.shards.columns import Columns
from seqlake.shards.files import ParquetShard, innermost, parquet_shard
from seqlake.shards.parquet.footer import read_footer
from seqlake.shards.reading import gathered
from seqlake.training.cells import GrowingSteps
from seqlake.training.fetching.transfers import MeteredBlob, passes, pieces_of
from seqlake.training.shard_cache.copies import LocalCopy
from seqlake.training.shard_cache.folder import allocated
from seqlake.training.shard_cache.layers import InSteps, Known, beneath, beneath_names, copyable, is_remote, over
from seqlake.training.shard_cache.proof import check_pages
from seqlake.training.shard_cache.sizes import Size, at_most, values_of, written

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from seqlake.abilities import Copyable
    from seqlake.protocols import Blob, Shard
    from seqlake.shards.parquet.footer import ColumnChunk, Footer
    from seqlake.spec.schema import Schema
    from seqlake.training.fetching.transfers import Transfers
    from seqlake.training.shard_cache.copies import Draft, HeldCopy
    from seqlake.training.shard_cache.sizes import StepsOf


def of_chunks(footer: Footer, chunks: Sequence[tuple[int, int]], /) -> list[list[int]]:
    """Ranges, [first byte, end], of some column chunks and of the end of the file; those near each other as one."""
    wanted: list[ColumnChunk] = [footer.chunks[group][leaf] for group, leaf in chunks]
    ranges = [(chunk.start, chunk.stop) for chunk in wanted if chunk.stop > chunk.start]
    behind = max((chunk.stop for group in footer.chunks for chunk in group), default=0)  # indexes and footer
    merged: list[list[int]] = []
    for start, stop in sorted([*ranges, (behind, footer.blob.size)]):
        if merged and start - merged[-1][1] <= GAP:
            merged[-1][1] = max(merged[-1][1], stop)
        else:
            merged.append([start, stop])
    return merged


FORMAT = 1  # of what lies in the cache; another number, and nothing older is found

_Found = TypeVar("_Found")
_ATTEMPTS = 3  # at a whole shard whose bytes arrived wrong, or that has no transfers of ours to repeat
_BLOCK = 4096  # bytes that a file system gives at least
_MOST = 0.75  # of a file: where as much is wanted, all of it is fetched


class Original:
    """A shard that cannot be read in place, and the columns that are wanted of it.

    Args:
        shard: Any shard.
        schema: The columns wanted, with the types that the shard shows.
        transfers: What reads remote files.
        writing: Held while a shard is written anew: bounds how many are at a time.
        decode: Runs what decodes one in memory.
        steps: Columns of steps that are decoded where it is kept in memory, and what is known of them.

    Attributes:
        progress: Grows while a local copy is made.
    """

    def __init__(
        self,
        shard: Shard,
        schema: Schema,
        transfers: Transfers,
        /,
        *,
        writing: AbstractContextManager[object] | None = None,
        decode: Callable[[Callable[[], pa.Table]], pa.Table] | None = None,
        steps: Mapping[str, StepsOf] | None = None,
    ) -> None:
        self.shard = shard
        self.schema = schema
        self.progress: int = 0
        self._transfers = transfers
        self._writing = nullcontext() if writing is None else writing
        self._decode = decode
        self._steps = {} if steps is None else steps
        self._planned: tuple[list[list[int]], list[tuple[int, int]] | None] | None = None
        self._footer: Footer | None = None  # of the copy that was made last, until it is opened

    @property
    def name(self) -> str:
        """What messages call it."""
        base = beneath(self.shard)
        return f"shard {self.shard.key}" + (f" ({base.blob.location})" if base is not None else "")

    def __str__(self) -> str:
        return self.name

    @cached_property
    def key(self) -> str:
        """32 hex digits that change with the shard's bytes, its rows, the columns wanted and their types."""
        if copyable(self.shard) is not None:  # of all columns, for whoever wants some
            return blake2b(f"{FORMAT}\0{innermost(self.shard).key}\0copy".encode(), digest_size=16).hexdigest()
        columns = json.dumps([column.to_json() for column in self.schema.values()], sort_keys=True)
        return blake2b(f"{FORMAT}\0{self.shard.key}\0{columns}".encode(), digest_size=16).hexdigest()

    def size_in_folder(self, steps: Mapping[str, int], /, *, look: bool) -> Size:
        """What its copy in a folder takes, at most.

        Args:
            steps: Of columns of steps, where it is known, how many all rows have together.
            look: At its footer, so that it is as little as can be said.

        Raises:
            OSError: It cannot be looked at.
        """
        files, base = copyable(self.shard), beneath(self.shard)
        if files is not None:
            return Size(files.nbytes + 2 * _BLOCK, files.packed().size)
        if base is None or not is_remote(self.shard):
            return Size(written(self.shard, self.schema, steps, look=look))
        ranges = self._plan(base)[0] if look else [[0, base.nbytes]]
        mirror = sum(stop - start + 2 * _BLOCK for start, stop in ranges)
        there = over(self.shard, MeteredBlob(base.blob, self._transfers))
        if look and self._stays_as_it_is(there):
            return Size(mirror)
        anew = written(there, self.schema, steps, look=look)
        return Size(anew, mirror) if look else Size(max(anew, mirror), mirror)

    def size_in_memory(self, *, look: bool) -> Size:
        """What its bytes in memory take, at most, what is decoded not counted; see `size_in_folder`."""
        files, base = copyable(self.shard), beneath(self.shard)
        if files is not None:
            blob = files.packed()
            return Size(files.nbytes, blob.size if _comes_apart(files, blob) else 0)
        if base is None or not is_remote(self.shard):
            return Size(0)
        if not look:
            return Size(base.nbytes)
        there = over(self.shard, MeteredBlob(base.blob, self._transfers))
        nbytes = sum(stop - start for start, stop in self._plan(base)[0])
        return Size(nbytes, decodes=not self._stays_as_it_is(there))

    def local(self, held: HeldCopy, /) -> LocalCopy:
        """The local shard that an entry of the cache is."""
        blob = LocalBlob(held.path)
        if held.record["form"] in {"mirror", "copy"}:
            shard = self._over(blob)
            self._footer = None
        else:
            shard = Columns(parquet_shard(blob), self.schema, {})

        def let_go() -> None:
            if held.release():
                blob.let_go()

        return LocalCopy(shard, nbytes=allocated(held.path.stat()), release=let_go)

    def fetched(self, reserve: Callable[[int], object], /) -> tuple[Shard, int]:
        """The shard with its bytes in memory, its steps decoded where they are not flat, and how many they are.

        Args:
            reserve: Sets so many bytes aside before they are fetched or decoded.

        Raises:
            OSError: It cannot be fetched; names the file and the cause.
            CorruptFileError: What arrives does not match its checksums, several times over.
        """
        files, base = copyable(self.shard), beneath(self.shard)
        if files is not None and not self._steps:
            return self._unpacked(files, reserve)
        if base is None or not is_remote(self.shard):
            return self._in_steps(self.shard, 0, reserve)
        ranges, chunks = self._plan(base)
        nbytes = sum(stop - start for start, stop in ranges)
        reserve(nbytes)

        def fetch() -> Shard:
            blob = MemoryBlob(self._bytes(base.blob, ranges), location=base.blob.location)
            footer, _ = self._checked(blob, chunks)
            return over(self.shard, blob, kind=partial(Known, footer=footer))

        return self._in_steps(self._patiently(base.blob, fetch), nbytes, reserve)

    def _in_steps(self, shard: Shard, nbytes: int, reserve: Callable[[int], object]) -> tuple[Shard, int]:
        """A shard that takes so many bytes, with the steps decoded that are not flat, and how many it takes then."""
        if not self._steps:
            return shard, nbytes
        with closing(shard.open()) as reader:
            flats = {name: reader.flat(name) for name in self._steps}
            names = [name for name, flat in flats.items() if flat is None or flat.blob.view() is None]
            if not names or not shard.rows:
                return shard, nbytes
            reserve(nbytes + sum(self._steps[name].nbytes for name in names))
            steps = {name: GrowingSteps(name, self._steps[name].total) for name in names}
            # What was fetched goes when nothing is read from it any more; images are read as they come.
            images = any(column.category == "frames" or column.inline for column in self.schema.values())
            alone = nbytes > 0 and not images and len(names) == len(self._steps)
            others = [name for name in self.schema if name not in steps] if alone else []

            def read() -> pa.Table:
                aside = []
                for batch in gathered(reader.batches([*names, *others]), f"Columns {names} of a shard"):
                    self._transfers.check()
                    for name, grown in steps.items():
                        grown.add(batch.column(name))
                    aside.append(batch.select(others))
                    self.progress += 1
                return pa.Table.from_batches(aside)

            beside = read() if self._decode is None else self._decode(read)
        arrays = {name: grown.taken() for name, grown in steps.items()}
        kept = sum(values.nbytes for values, _ in arrays.values()) + (0 if alone else nbytes)
        reserve(kept)
        return InSteps(shard, arrays, beside if alone else None), kept

    def _unpacked(self, files: Copyable, reserve: Callable[[int], object]) -> tuple[Shard, int]:
        blob = files.packed()
        reserve(files.nbytes + (blob.size if _comes_apart(files, blob) else 0))

        def fetch() -> Shard:
            data = files.unpacked(blob.view() or self._bytes(blob, [[0, blob.size]]))
            return over(self.shard, MemoryBlob(data, location=blob.location))

        return self._patiently(blob, fetch), files.nbytes

    def _bytes(self, blob: Blob, ranges: Sequence[Sequence[int]]) -> memoryview:
        return self._transfers.parts(blob, ranges, came=self._get_on)

    def _get_on(self) -> None:
        self.progress += 1

    def fill(self, draft: Draft, /) -> dict[str, Any]:
        """Make the local copy in a file.

        Returns:
            What `local` must know of it.

        Raises:
            OSError: It cannot be fetched; names the file and the cause.
            CorruptFileError: What arrives does not match its checksums, several times over.
            ShardChangedError: It has another number of rows than it said.
            CacheTooSmallError: There is no room for it.
        """
        files, base = copyable(self.shard), beneath(self.shard)
        if files is not None:
            return self._patiently(files.packed(), lambda: self._copy(files, draft), forget=draft.remove)
        if base is None or not is_remote(self.shard):
            return self._rewrite_patiently(draft)
        record = self._patiently(base.blob, lambda: self._mirror(base, draft), forget=draft.remove)
        mirror = LocalBlob(draft.path)
        try:
            if self._readable_in_place(self._over(mirror)):
                return record
        finally:
            mirror.let_go()
        draft.path.replace(draft.beside)
        mirror = LocalBlob(draft.beside)
        try:
            with self._writing:
                return self._rewrite(draft, self._over(mirror), beside=draft.room)
        finally:
            mirror.let_go()
            draft.beside.unlink(missing_ok=True)

    def _over(self, blob: LocalBlob) -> Shard:
        """The shard on a copy of its file, whose footer was read when this process made it."""
        if self._footer is None or self._footer.blob.size != blob.size:
            return over(self.shard, blob)
        return over(self.shard, blob, kind=partial(Known, footer=self._footer.at(blob)))

    # ---- as it is

    def _patiently(self, blob: Blob, fetch: Callable[[], _Found], /, *, forget: Callable[[], object] = bool) -> _Found:
        """Fetch a file again where its bytes arrived wrong; `forget` what came before."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return fetch()
            except CorruptFileError as error:
                if attempt == _ATTEMPTS:
                    hint = f"It arrived so {attempt} times: the file is damaged. `seqlake validate` says more."
                    raise CorruptFileError(f"{self.name}: {error.message}", path=blob.location, hint=hint) from None
                forget()
                self._transfers.pause(attempt)
        raise AssertionError("unreachable")  # pragma: no cover

    def _copy(self, files: Copyable, draft: Draft) -> dict[str, Any]:
        """Fetch a file of another format whole, and keep it as it is read."""
        blob = files.packed()
        draft.reserve(blob.size + files.nbytes + 2 * _BLOCK)
        self._fetch(blob, [[0, blob.size]], draft.beside)
        fetched = LocalBlob(draft.beside)
        try:
            data = fetched.view()
            unpacked = files.unpacked(data)
            if unpacked is not data:
                draft.path.write_bytes(unpacked)
        finally:
            fetched.let_go()
        if unpacked is data:
            draft.beside.replace(draft.path)
        draft.beside.unlink(missing_ok=True)
        return {"form": "copy"}

    def _mirror(self, base: ParquetShard, draft: Draft) -> dict[str, Any]:
        """Fetch what is wanted of a file to the places it has there."""
        ranges, chunks = self._plan(base)
        draft.reserve(sum(stop - start + 2 * _BLOCK for start, stop in ranges))
        self._fetch(base.blob, ranges, draft.path)
        local = LocalBlob(draft.path)
        try:
            self._footer, chunks = self._checked(local, chunks)
        finally:
            local.let_go()
        # Other writers' pages need not have checksums.
        return {"form": "mirror", "ranges": ranges, "chunks": chunks if self._footer.has_index else []}

    def _checked(self, copy: Blob, chunks: list[tuple[int, int]] | None) -> tuple[Footer, list[tuple[int, int]]]:
        """Footer and wanted chunks of a copy of the file, whose pages are what was written."""
        footer = read_footer(copy)
        chunks = self._wanted(footer) if chunks is None else chunks
        check_pages(footer, chunks)
        return footer, chunks

    def _plan(self, base: ParquetShard) -> tuple[list[list[int]], list[tuple[int, int]] | None]:
        """The ranges to fetch of the file, and the chunks wanted; None where it is fetched whole before it is asked."""
        size = base.blob.size
        if size <= LARGEST or _all_wanted(self.shard, self.schema):
            return [[0, size]], None
        if self._planned is not None:  # there was no room for it when it was planned, and each look is a request
            return self._planned
        footer = replace(base, blob=MeteredBlob(base.blob, self._transfers)).open().footer
        chunks = self._wanted(footer)
        ranges = of_chunks(footer, chunks)
        most = os.name == "nt" or sum(stop - start for start, stop in ranges) > _MOST * size
        self._planned = ([[0, size]] if most else ranges), chunks  # files have no holes on Windows
        return self._planned

    def _fetch(self, blob: Blob, ranges: Sequence[Sequence[int]], path: Path) -> None:
        pieces = pieces_of(blob, ranges)
        with path.open("wb", buffering=0) as file:
            file.truncate(blob.size)

            def put(number: int, data: memoryview) -> None:
                file.seek(pieces[number].start)
                left = data
                while left:
                    left = left[file.write(left) :]
                self._get_on()

            self._transfers.each(pieces, put)

    def _wanted(self, footer: Footer) -> list[tuple[int, int]]:
        """(row group, Parquet column) of every chunk that holds rows and columns wanted."""
        names, rows, _ = beneath_names(self.shard, list(self.schema))
        groups = np.arange(len(footer.group_rows))
        if rows is not None:
            groups = np.unique(np.searchsorted(np.cumsum(footer.group_rows), rows, side="right"))
        leaves = [leaf for name in names for leaf in footer.leaves.get(name, ())]
        return [(group, leaf) for group in groups.tolist() for leaf in leaves]

    def _signals(self) -> list[str]:
        """Columns that are flat where they can be."""
        return [
            name
            for name, column in self.schema.items()
            if column.category == "temporal"
            and column.value_type is not None
            and not pa.types.is_boolean(column.value_type)
        ]

    def _readable_in_place(self, shard: Shard) -> bool:
        """Whether every signal is flat that could be, without a look at other shards."""
        if beneath_names(shard, list(self.schema))[2]:
            return False
        reader = shard.open()
        try:
            return all(reader.flat(name) is not None for name in self._signals())
        finally:
            reader.close()

    def _stays_as_it_is(self, there: Shard) -> bool:
        """Whether a mirror will be readable in place, as far as the footer tells."""
        base = beneath(there)
        names, _, aside = beneath_names(there, self._signals())
        if base is None or aside:
            return False
        footer = base.open().footer
        chunks = [group[leaf] for group in footer.chunks for name in names for leaf in footer.leaves.get(name, ())]
        plain = all(chunk.codec == "UNCOMPRESSED" and not chunk.dictionary for chunk in chunks)
        return plain and (footer.has_index or base.index is not None)

    # ---- written anew

    def _rewrite_patiently(self, draft: Draft) -> dict[str, Any]:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with self._writing:
                    return self._rewrite(draft, self.shard, beside=0)
            except OSError as error:
                if not passes(error) or attempt == _ATTEMPTS:
                    raise
                self._transfers.pause(attempt)
        raise AssertionError("unreachable")  # pragma: no cover

    def _rewrite(self, draft: Draft, shard: Shard, *, beside: int) -> dict[str, Any]:
        """Write its rows in the training layout.

        Args:
            draft: Where to write it.
            shard: The rows.
            beside: Bytes that lie on disk until it is done.
        """
        writer = parquet.create(draft.path, self.schema, layout="training")
        names = list(self.schema)
        reader = shard.open()
        values, rows = 0.0, 0
        batches = reader.batches(names)
        try:
            for batch in batches:
                self._transfers.check()
                rows += batch.num_rows
                values += sum(map(values_of, batch.columns))
                draft.reserve(beside + at_most(rows, len(names), values))
                writer.write(batch)
                self.progress += 1
            _check_rows(self, rows)
            writer.close()
        except CacheTooSmallError:
            writer.abort()
            values += sum(values_of(column) for batch in batches for column in batch.columns)
            draft.reserve(beside + at_most(self.shard.rows, len(names), values))  # fails again, with all that is needed
            raise
        except BaseException:
            writer.abort()
            raise
        finally:
            reader.close()
        return _rewritten(draft.path)


def _comes_apart(files: Copyable, blob: Blob) -> bool:
    """Whether what came stays until it is unpacked."""
    return blob.view() is None and blob.size != files.nbytes


def _check_rows(original: Original, rows: int) -> None:
    if rows != original.shard.rows:
        raise ShardChangedError(
            f"{original.name}: expected {original.shard.rows} rows, found {rows}; open the dataset again."
        )


def _all_wanted(shard: Shard, schema: Schema) -> bool:
    """Whether every column that fills a file is wanted, as far as the table's schema says."""
    if not isinstance(shard, Columns):
        return False
    columns = shard.schema.items()
    large = {name for name, column in columns if column.inline or column.category not in {"scalar", "file"}}
    return bool(large) and large <= set(schema)


def _rewritten(path: Path) -> dict[str, Any]:
    """What is known of a file of our own, after a look at whether the disk gives back what was written."""
    blob = LocalBlob(path)
    try:
        footer = read_footer(blob)
        chunks = [(chunk.row_group, chunk.leaf) for group in footer.chunks for chunk in group]
        check_pages(footer, chunks)
    finally:
        blob.let_go()
    return {"form": "training", "chunks": chunks}

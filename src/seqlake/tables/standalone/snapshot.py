"""A version of a standalone table; engines scan and prune its files themselves, wherever they are at that moment."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.files.locations import is_local, local_path
from seqlake.shards.parquet.expansion import NARROW, checked_format, scannable
from seqlake.tables.standalone import checking
from seqlake.tables.standalone.context import placed_blob
from seqlake.tables.standalone.state import LoggedFile
from seqlake.versions import folders, shard_formats
from seqlake.versions.snapshot import TableSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyarrow.dataset import Dataset

    from seqlake.protocols import Depth, Shard
    from seqlake.spec.findings import Finding
    from seqlake.spec.unfolded import Unfolded
    from seqlake.tables.standalone.blobs import PlacedBlob
    from seqlake.tables.standalone.context import LogContext


class StandaloneSnapshot(TableSnapshot):
    """One version of a standalone table, or a plain folder as it is: `Pushdown`, `HasBounds` and `Checked` besides."""

    context: LogContext

    @property
    def bounds_hold_nan(self) -> bool:
        """True: our writers note no bounds of a column with a NaN."""
        return True

    def bounds(self, column: str, /) -> list[tuple[object, object] | None]:
        """[shards] the least and the most that a column has in each, as the log says; None where it does not."""
        kind = self.schema[column].logical
        return [file.bounds(column, kind) if isinstance(file, LoggedFile) else None for file in self.state.files]

    def arrow_dataset(self) -> Dataset | None:
        """The shards as a pyarrow dataset, for an engine to scan and prune itself.

        None where the files alone do not say what the version says: mapped or side columns, raw cells. None too where
        they are not local, or take far more memory than they have bytes: our own reader bounds it.
        """
        import pyarrow.compute as pc
        import pyarrow.dataset as ds
        from pyarrow.fs import PyFileSystem

        state, schema = self.state, self.schema
        if any(file.beside or file.columns or file.absent for file in state.files):
            return None
        if any(schema[name].raw for name in schema.names):
            return None
        if any(shard_formats.name_of(file.name) != "parquet" for file in state.files):
            return None
        if not all(map(folders.is_unicode, state.files.names)):  # pyarrow knows no other names
            return None
        version = int(state.version.id)
        blobs = {file.name: placed_blob(self.context.store, file, version=version) for file in state.files}
        if not scannable(blobs.values(), [name for name in schema.names if schema[name].category in NARROW]):
            return None
        system = PyFileSystem(_handler(self.root, blobs))
        _HELD.append(system)
        form = checked_format()
        fragments = []
        for file in state.files:
            constant = pc.scalar(True)
            for name, value in file.constants.items():
                constant &= ds.field(name).is_null() if value is None else ds.field(name) == value
            fragments.append(form.make_fragment(file.name, filesystem=system, partition_expression=constant))
        return ds.FileSystemDataset(fragments, schema.stored(), form, system)

    @property
    def unfolded(self) -> Unfolded:
        """What the files hold otherwise than the version shows them, as far as the log says."""
        return self.state.unfolded

    def lagging(self) -> Sequence[Shard]:
        """Shards that hold columns under other names, dropped ones, or have labels beside them, as the log says."""
        return [
            shard
            for shard, file in zip(self.shards(), self.state.files, strict=True)
            if file.columns or file.absent or file.beside
        ]

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What only the table can know is wrong: strangers, edited metadata, missing, changed or torn shards."""
        return checking.check(self.context, self.state, depth)


# Arrow's threads let go of a scan a little after its last batch. The one that is last to let go of a file system of
# Python's asks for the interpreter's lock; while the interpreter ends that takes the whole process down (SIGABRT, in
# one of 150 runs of `seqlake ls`). So the last ones are held here, and Arrow's threads are never the last.
_HELD: deque[object] = deque(maxlen=8)


class PlainSnapshot(StandaloneSnapshot):
    """A plain folder as it is; its folders may say which rows their files have."""

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """As of a table; and files that contradict their folders."""
        yield from super().check(depth)
        if depth != "metadata":
            paths = [file.name for file in self.state.files]
            yield from folders.contradictions(zip(paths, self.shards(), strict=True))

    def bounds(self, column: str, /) -> list[tuple[object, object] | None]:
        """[shards] the one value of a column that folders are named for, twice; None where nothing is known."""
        files = self.state.files
        return [(file.constants[column],) * 2 if column in file.constants else None for file in files]


def _handler(root: str, blobs: dict[str, PlacedBlob]) -> Any:  # noqa: C901 - a class of short methods
    """A file system of exactly these shards, by name; the class is made here because pyarrow.fs is heavy."""
    from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType

    class Shards(FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
        def __eq__(self, other: object) -> bool:
            return self is other

        def __hash__(self) -> int:
            return id(self)

        def get_type_name(self) -> str:
            return "seqlake"

        def normalize_path(self, path: str) -> str:
            return path

        def get_file_info(self, paths: list[str]) -> list[Any]:
            return [
                FileInfo(path, FileType.File, size=blobs[path].size)
                if path in blobs
                else FileInfo(path, FileType.NotFound)
                for path in paths
            ]

        def get_file_info_selector(self, selector: FileSelector) -> list[Any]:
            return self.get_file_info(list(blobs)) if selector.base_dir in ("", "/") else []

        def open_input_file(self, path: str) -> Any:
            if is_local(root):
                # Opened at once, so that the shard may be retired afterwards.
                return blobs[path].opened(lambda location: pa.OSFile(str(local_path(location)), "rb"))
            return pa.PythonFile(_Reader(blobs[path]), "r")

        def open_input_stream(self, path: str) -> Any:
            return self.open_input_file(path)

        def _refuse(self, *_: object, **__: object) -> Any:
            raise PermissionError(f"{root} is only read here.")

        create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
        move = copy_file = open_output_stream = open_append_stream = _refuse

    return Shards()


class _Reader:
    """A blob as the file object that pyarrow wraps."""

    closed = False

    def __init__(self, blob: PlacedBlob) -> None:
        self._blob = blob
        self._at = 0

    def read(self, size: int | None = None) -> bytes:
        stop = self._blob.size if size is None or size < 0 else min(self._at + size, self._blob.size)
        if stop <= self._at:
            return b""
        (data,) = self._blob.ranges(np.array([self._at], np.int64), np.array([stop], np.int64))
        self._at = stop
        return bytes(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._blob.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed = True

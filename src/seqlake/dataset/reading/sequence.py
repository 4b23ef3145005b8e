"""One row in your hand: a mapping from column names to values, read when they are asked for."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake import media
from seqlake.dataset.reading import display
from seqlake.files import locations, stores
from seqlake.files.reading import BlobFile
from seqlake.files.references import open_reference
from seqlake.protocols import Source
from seqlake.spec.column_types import ColumnType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from seqlake.dataset.selection import Selection
    from seqlake.protocols import Blob, Decoder
    from seqlake.spec.schema import Column, Schema
    from seqlake.windows.frames import Decoded
    from seqlake.windows.spec import Edges, Rate


class SequenceView(Mapping[str, Any]):
    """One sequence of a dataset or selection; nothing is read before a column is asked for.

    Values by category of the column: *temporal* numpy [T, D] (a read-only view of the file where it lies flat and
    local), *vector* numpy [D], *file* a `FileView` (video, image and audio: a `MediaView`, which decodes), *frames* a
    `StepsView` of encoded images, everything else plain Python values; None where the cell is null.

    Example:
        ```python
        sequence = ds.sequence("ep_001")
        sequence["action"].shape                       # (200, 12)
        sequence["task"]                               # 'pick'
        sequence["cam"][10:20]                         # decoded, uint8 [10, H, W, 3]
        sequence.window(100, 116, columns=["action"])  # exactly what training would see
        ```
    """

    __slots__ = ("_row", "_selection")

    def __init__(self, selection: Selection, row: int) -> None:
        self._selection = selection
        self._row = row

    @property
    def id(self) -> str:
        """Its `sequence_id`; the row number as text where rows are samples."""
        access = self._selection.access
        name = access.source.schema.id  # the selection need not have selected it
        return str(self._row) if name is None else str(access.cell(self._row, access.source.schema[name]))

    @property
    def index(self) -> int:
        """Its place in the selection: `selection[view.index]` is this sequence."""
        return self._selection.index_of(self._row)

    @property
    def schema(self) -> Schema:
        """The columns of the selection."""
        return self._selection.schema

    def __getitem__(self, name: str) -> Any:
        column = self._selection.schema[name]
        value = self._selection.access.cell(self._row, column)
        if value is None or column.category not in {"file", "frames"}:
            return value
        if column.category == "file":
            return self._file(value, column)
        return StepsView(
            [self._file(one, column) if isinstance(one, str) else one for one in value], column=column.type
        )

    def _file(self, cell: str | Mapping[str, Any], column: Column) -> FileView | None:
        reference = cell if isinstance(cell, str) else cell.get("url")
        if reference is None:
            return None
        selection = self._selection
        options: dict[str, Any] = {
            "root": selection.root,
            "column": column.type,
            "storage": selection.storage,
            "allow_outside": selection.allow_outside,
        }
        if column.type is None or not media.opens(column.type.type):
            return FileView(reference, **options)
        file = MediaView(reference, kept=selection.access.kept_packets, **options)
        if not isinstance(cell, str):
            file.first, file.count = int(cell.get("first_frame") or 0), cell.get("num_frames")
        return file

    def __iter__(self) -> Iterator[str]:
        return iter(self.schema.names)

    def __len__(self) -> int:
        return len(self.schema.names)

    def __contains__(self, name: object) -> bool:
        return name in self.schema.names

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SequenceView):
            return NotImplemented
        mine, theirs = self._selection, other._selection
        return self._row == other._row and mine.access.source is theirs.access.source and self.schema == other.schema

    def __hash__(self) -> int:
        return hash((id(self._selection.access.source), self._row))

    def window(
        self,
        start: int,
        stop: int,
        *,
        columns: Sequence[str] | None = None,
        edges: Edges = "pad",
        clock: Rate | None = None,
    ) -> dict[str, Any]:
        """Steps `start` to `stop` of some columns: exactly what training would see.

        Args:
            start: First clock step; may lie before the sequence.
            stop: One past the last; may lie beyond the sequence.
            columns: Which columns; all temporal ones by default. Videos and columns of images give frames, others
                their one value.
            edges: Steps outside the sequence are zeros (`"pad"`), the nearest step (`"clamp"`), or an error (`"drop"`).
            clock: Steps per second, where the dataset should not decide it.

        Returns:
            `sequence_id`, `start`, and for each temporal column [stop - start, *shape] and `<column>_mask`
            [stop - start], True where the step exists; frames are uint8 [stop - start, height, width, 3].

        Raises:
            SchemaMismatchError: A column cannot be windowed, or a video stands beside others and nothing says a rate.
            ValueError: `edges="drop"` and a step is missing.
            DecodeError: A frame cannot be decoded.
        """
        from seqlake.windows.assemble import assemble
        from seqlake.windows.frames import framed
        from seqlake.windows.sources import Files
        from seqlake.windows.spec import Window

        access = self._selection.access
        schema = access.source.schema  # a clock may hang on a column that was not selected
        if columns is None:
            columns = [name for name in self.schema.names if self.schema[name].category == "temporal"]
        stepped = [name for name in columns if schema[name].category == "temporal" or framed(schema[name])]
        window = Window(
            {name: range(stop - start) if name in stepped else None for name in columns}, edges=edges, clock=clock
        )
        sample = assemble(
            lambda name: access.cell(self._row, schema[name]),
            schema,
            window,
            start,
            clock=access.clock(window, Files.of(self._selection)),
            frames_of=self._frames,
        )
        return {"sequence_id": self.id, **sample}

    def _frames(self, name: str) -> Decoded:
        """This row's frames; where it has none, nothing in the shape of those that another row has."""
        from seqlake.windows.frames import Blank

        frames = self[name]
        if _has_frames(frames):
            return frames  # type: ignore[no-any-return]  # a view of frames
        rows = range(self._selection.access.starts[-1])
        others = (SequenceView(self._selection, row)[name] for row in rows)
        return Blank(next(filter(_has_frames, others), None))

    def __repr__(self) -> str:
        return display.sequence_text(self)

    def _repr_html_(self) -> str:
        return display.sequence_html(self)


class FileView:
    """A file that a row points to.

    Attributes:
        reference: What the cell says.
        column: The column's type, as in `Video(fps=30)`; None where it has none.
    """

    __slots__ = ("_allow_outside", "_root", "_storage", "column", "reference")

    def __init__(
        self,
        reference: str,
        /,
        *,
        root: str,
        column: ColumnType | None = None,
        storage: Mapping[str, str] | None = None,
        allow_outside: bool = False,
    ) -> None:
        self.reference = reference
        self.column = column
        self._root = root
        self._storage = storage
        self._allow_outside = allow_outside

    @property
    def location(self) -> str:
        """Absolute path or URI: the reference itself where it has a scheme, else joined to the dataset's root."""
        return locations.join(self._root, self.reference)

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.blob().size

    def blob(self) -> Blob:
        """Its bytes, for reading by range.

        Raises:
            UnsafeReferenceError: The reference leaves the dataset's root, and `allow_outside` was not given.
            FileNotFoundError: It is not there.
        """
        return open_reference(self._root, self.reference, storage=self._storage, allow_outside=self._allow_outside)

    def open(self) -> io.BufferedReader:
        """A readable, seekable binary file; for the errors see `blob`."""
        return io.BufferedReader(BlobFile(self.blob()))

    def read(self) -> bytes:
        """All bytes; for the errors see `blob`."""
        return stores.read_all(self.blob())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileView) and self.location == other.location

    def __hash__(self) -> int:
        return hash(self.location)

    def __repr__(self) -> str:
        kind = f", {self.column.type}" if self.column is not None else ""
        return f"{type(self).__name__}({self.reference!r}{kind})"


class MediaView(media.Frames, FileView):
    """A video, image or audio file that a row points to: a file whose frames (samples) are decoded when asked for.

    Nothing is read before that. Video and images are uint8 [N, H, W, 3] with the file's rotation applied, audio is
    float32 [N, channels].

    Args:
        reference: What the cell says.
        kept: The packet indexes that a table keeps of this file, by video stream; or what finds them.
        **options: As for `FileView`.

    Attributes:
        first: The first frame of this row, where several rows share the file.
        count: How many are its own; None means all that follow.

    Example:
        ```python
        cam = sequence["cam"]
        cam[10:20]                      # frames 10 to 19 in the order they are shown
        cam.at(seconds=[0.5, 1.0])      # what is on screen half a second, and a second, after the first frame
        cam.stream(1)[0]                # another of the container's streams
        ```
    """

    __slots__ = ("_held", "_kept", "count", "first")

    def __init__(
        self,
        reference: str,
        /,
        *,
        kept: Callable[[str], Mapping[int, bytes]] | Mapping[int, bytes] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(reference, **options)
        self._held = media.Held()
        self._kept = kept
        self.first: int = 0
        self.count: int | None = None

    def stream(self, number: int, /) -> MediaView:
        """The same file, another of its streams of this kind, from 0; the largest (audio: first) is the default."""
        fields = self.column.to_json() if self.column is not None else {}
        other = MediaView(
            self.reference,
            root=self._root,
            column=ColumnType.from_json({**fields, "stream": number}),
            storage=self._storage,
            allow_outside=self._allow_outside,
            kept=self._kept,
        )
        other.first, other.count = self.first, self.count
        return other

    def source(self) -> Source:
        """What a decoder opens; for the errors see `blob`."""
        assert self.column is not None
        kept = self._packets() or None
        return Source(blob=self.blob(), column=self.column, first=self.first, count=self.count, index=kept)

    def _packets(self) -> Mapping[int, bytes]:
        return self._kept(self.reference) if callable(self._kept) else self._kept or {}

    def _open(self) -> Decoder:
        return media.open(self.source())

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        state = {name: getattr(self, name) for name in (*FileView.__slots__, *MediaView.__slots__)}
        return None, {**state, "_kept": dict(self._packets())}  # a view travels without its table

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MediaView) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        return (self.location, self.column, self.first, self.count)


class StepsView(media.Frames):
    """Encoded images, one for each time step: decoded when asked for, their bytes within reach.

    Args:
        cells: Encoded bytes or `FileView`, None where a step has no image.
        column: The column's type.

    Attributes:
        cells: What the row holds, not decoded.

    Example:
        ```python
        frames = sequence["image_0"]
        frames[3:7]                     # decoded, uint8 [4, H, W, 3]
        frames.bytes(3)                 # the JPEG or PNG of step 3
        ```
    """

    __slots__ = ("_column", "_held", "cells")

    def __init__(self, cells: Sequence[bytes | FileView | None], /, *, column: ColumnType | None = None) -> None:
        self.cells = list(cells)
        self._column = column
        self._held = media.Held()

    def bytes(self, step: int, /) -> bytes | None:
        """The encoded image of one step; None where there is none."""
        cell = self.cells[step]
        return cell.read() if isinstance(cell, FileView) else cell

    @property
    def present(self) -> NDArray[np.bool_]:
        """[steps] False where a step has no image."""
        return np.array([cell is not None for cell in self.cells], np.bool_)

    def __len__(self) -> int:
        return len(self.cells)

    def _open(self) -> Decoder:
        kind = self._column or ColumnType("image")

        def picture(step: int) -> Source | None:
            cell = self.cells[step]
            if cell is None:
                return None
            return Source(blob=cell.blob() if isinstance(cell, FileView) else cell, column=kind)

        return media.open_steps(len(self.cells), picture, kind)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepsView) and self.cells == other.cells

    __hash__ = None  # type: ignore[assignment]  # it holds a list

    def __repr__(self) -> str:
        return f"StepsView({len(self.cells)} images)"


def _has_frames(frames: Decoded | None) -> bool:
    return frames is not None and (frames.present is None or bool(frames.present.any()))

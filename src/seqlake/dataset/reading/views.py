"""What sequences are made of: files of a row, images of its steps, decoded when they are asked for."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from seqlake import media
from seqlake.dataset.reading.access import SlicedSteps
from seqlake.errors import SeqlakeError
from seqlake.files import locations, stores
from seqlake.files.reading import BlobFile
from seqlake.files.references import missing, open_reference
from seqlake.protocols import Readable, Source
from seqlake.spec.column_types import ColumnType, as_codes, as_rgb
from seqlake.windows.sounds import sound_of
from seqlake.windows.sources import inline_blob
from seqlake.windows.spec import exact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.dataset.reading.access import Access
    from seqlake.protocols import Blob, Decoder
    from seqlake.spec.schema import Schema


class CellSource(Readable, Protocol):
    """What a sequence asks of the excerpt that it is a row of."""

    @property
    def access(self) -> Access:
        """Point access to the source."""

    @property
    def storage(self) -> Mapping[str, str] | None:
        """Options of the store that file references are read from."""

    @property
    def allow_outside(self) -> bool:
        """Whether references may leave the dataset's root."""

    def index_of(self, row: int, /) -> int:
        """Where a row of the source stands in the excerpt."""


class SelectedRows(Readable, Protocol):
    """What prints rows asks of the selection they belong to."""

    def __len__(self) -> int: ...
    def __getitem__(self, which: int, /) -> Any: ...


class Row(Protocol):
    """What draws or prints a sequence asks of it."""

    @property
    def id(self) -> str:
        """Its `sequence_id`, or its number."""

    @property
    def schema(self) -> Schema:
        """Its columns, by name."""

    def get(self, name: str, /) -> Any:
        """The value of a column; None where there is none."""

    def __getitem__(self, name: str, /) -> Any: ...


class FileView:
    """A file that a row points to, or holds.

    Attributes:
        reference: What the cell says; of a file that the row holds, the name it once had, or empty.
        column: The column's type, as in `Video(fps=30)`; None where it has none.
    """

    __slots__ = ("_allow_outside", "_copied", "_inside", "_root", "_storage", "column", "reference")

    def __init__(
        self,
        reference: str,
        /,
        *,
        root: str,
        column: ColumnType | None = None,
        storage: Mapping[str, str] | None = None,
        allow_outside: bool = False,
        copied: Callable[[str], Blob | None] | None = None,
        data: bytes | Blob | None = None,
    ) -> None:
        self._copied = copied
        self.reference: str = reference
        self._inside = None if data is None else inline_blob(data, reference)
        self.column: ColumnType | None = column
        self._root = root
        self._storage = storage
        self._allow_outside = allow_outside

    @property
    def inline(self) -> bool:
        """Whether the row holds the file's bytes, rather than pointing to a file."""
        return self._inside is not None

    @property
    def data(self) -> bytes | None:
        """All bytes of a file that the row holds, read at every call; None where it points to a file."""
        return None if self._inside is None else bytes(stores.read_all(self._inside))

    @property
    def location(self) -> str:
        """Absolute path or URI: the reference itself where it has a scheme, else joined to the dataset's root.

        What messages call its bytes, where the row holds them.
        """
        if self._inside is not None:
            return self._inside.location
        return locations.join(self._root, self.reference)

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.blob().size

    def blob(self) -> Blob:
        """Its bytes, for reading by range.

        Raises:
            UnsafeReferenceError: The reference leaves the dataset's root, and `allow_outside` was not given.
            MissingFileError: It is not there.
            CorruptFileError: It is not the one that was copied in, and the dataset was opened with `verify="first"`.
        """
        if self._inside is not None:
            return self._inside
        try:
            copy = None if self._copied is None else self._copied(self.reference)
            if copy is not None:
                return copy
            return open_reference(self._root, self.reference, storage=self._storage, allow_outside=self._allow_outside)
        except FileNotFoundError as error:
            raise missing(error) from error

    def open(self) -> io.BufferedReader:
        """A readable, seekable binary file; for the errors see `blob`."""
        return io.BufferedReader(BlobFile(self.blob()))

    def read(self) -> bytes:
        """All bytes; for the errors see `blob`."""
        try:
            return stores.read_all(self.blob())
        except FileNotFoundError as error:  # removed since it was opened
            raise missing(error) from error

    def hint(self) -> str:
        """What it is and how it is read, in one sentence, where its column's type does not decode it; else empty.

        Its first bytes decide, then its name; of a file on another machine, or one that is not there, its name alone.

        Example:
            ```python
            ds["ep_1"]["log"].hint()    # 'It is an MCAP log, read by `sl.open(file.location)`.'
            ```
        """
        blob = None
        with suppress(OSError, SeqlakeError, ValueError):
            blob = self.blob() if self.inline or locations.is_local(self.location) else None
        return media.hint(self.reference, blob, self.column)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileView) and self.location == other.location and self._same_bytes(other)

    def _same_bytes(self, other: FileView) -> bool:
        """Whether both hold the same bytes, or neither any: those of others are the same where they lie."""
        if self._inside is None or other._inside is None:
            return self._inside is other._inside
        return self._inside.size == other._inside.size and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.location)

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        state = {name: getattr(self, name) for name in FileView.__slots__}
        return None, {**state, "_copied": None}  # a view travels without its table

    def __str__(self) -> str:
        kind = f", {self.column.type}" if self.column is not None else ""
        named = repr(self.reference) if self._inside is None else f"{self._inside.size:,} bytes"
        return f"{type(self).__name__}({named}{kind})"

    def __repr__(self) -> str:
        known = media.hint(self.reference, self._inside, self.column)
        return f"{self}  # {known}" if known else str(self)  # by its name alone: no file is opened to print it


class MediaView(media.Frames, FileView):
    """A video, image or audio file that a row points to: a file whose frames (samples) are decoded when asked for.

    Nothing is read before that. Video and images are uint8 [N, H, W, 3] with the file's rotation applied, video of more
    than 8 bits is uint16 [N, H, W, 1 or 3], depth is float32 [N, H, W, 1] in metres, audio is float32 [N, channels].

    Args:
        reference: What the cell says.
        kept: The packet indexes that a table keeps of this file, by video stream; or what finds them.
        data: The file's bytes, where the row holds them.
        copied: Opens a file that was copied into a table through the store that the table has.
        root: What a relative reference resolves against.
        column: The column's type.
        storage: Options of the store that it lies in.
        allow_outside: Whether it may leave the root.

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
        root: str,
        column: ColumnType | None = None,
        storage: Mapping[str, str] | None = None,
        allow_outside: bool = False,
        copied: Callable[[str], Blob | None] | None = None,
        kept: Callable[[str], Mapping[int, bytes]] | Mapping[int, bytes] | None = None,
        data: bytes | Blob | None = None,
    ) -> None:
        super().__init__(
            reference,
            root=root,
            column=column,
            storage=storage,
            allow_outside=allow_outside,
            copied=copied,
            data=data,
        )
        self._held = media.LazyDecoder()
        self._kept = kept
        self.first: int = 0
        self.count: int | None = None

    def stream(self, number: int, /) -> MediaView:
        """The same file, another of its streams of this kind, from 0; the largest (audio: first) is the default."""
        fields = self.column.to_json() if self.column is not None else {}
        return self._as(ColumnType.from_json({**fields, "stream": number}))

    @property
    def codes(self) -> MediaView:
        """The same frames of a depth map as the numbers that the file stores: uint16 (or uint8) [N, H, W, 1]."""
        return self._as(as_codes(self.column))

    @property
    def rgb(self) -> MediaView:
        """The same frames of a video as RGB of 8 bits, uint8 [N, H, W, 3], however many bits the file has."""
        return self._as(as_rgb(self.column))

    def _as(self, column: ColumnType | None) -> MediaView:
        """The same file as another column's."""
        other = MediaView(
            self.reference,
            root=self._root,
            column=column,
            storage=self._storage,
            allow_outside=self._allow_outside,
            copied=self._copied,
            kept=self._kept,
            data=self._inside,
        )
        other.first, other.count = self.first, self.count
        return other

    @property
    def rate(self) -> int:
        """Samples a second, of sound.

        Raises:
            DecodeError: It is no sound.
        """
        with self._held.use(self._open) as decoder:
            return sound_of(decoder, self.location).rate

    @property
    def channels(self) -> int:
        """Numbers of a sample, of sound; for the errors see `rate`."""
        with self._held.use(self._open) as decoder:
            return sound_of(decoder, self.location).channels

    def samples(
        self, *, seconds: tuple[float, float] | None = None, rate: int | None = None, channels: int | None = None
    ) -> NDArray[np.float32]:
        """The samples of sound that stand within a time.

        Args:
            seconds: From when until when, counted from the first sample; like a slice, what lies outside is left out.
                All of it by default.
            rate: Samples a second to resample to; as the file has them by default.
            channels: 1 mixes all channels into one, their mean.

        Returns:
            float32 [S, channels], full scale is 1. Spans side by side have every sample once.

        Raises:
            ValueError: A time, a rate or a number of channels that cannot be meant.
            DecodeError: It is no sound.

        Example:
            ```python
            mic.samples(seconds=(0.5, 1.5), rate=16_000)      # [16000, channels]
            ```
        """
        if channels not in (None, 1):
            raise ValueError(f"channels: expected 1, for all of them mixed, or None, found {channels!r}.")
        if rate is not None and not media.SLOWEST <= rate <= media.FASTEST:
            raise ValueError(f"rate: expected {media.SLOWEST} to {media.FASTEST} samples a second, found {rate!r}.")
        with self._held.use(self._open) as decoder:
            sound = sound_of(decoder, self.location)
            after = sound.rate if rate is None else int(rate)
            count = media.resampled_count(len(sound), sound.rate, after)
            begin, end = (0, count) if seconds is None else (-(-exact(time) * after // 1) for time in seconds)
            if begin > end:
                raise ValueError(f"seconds: expected a beginning and a later end, found {seconds!r}.")

            def read(start: int, stop: int) -> NDArray[np.float32]:
                samples: NDArray[np.float32] = sound.span(start, stop)
                return samples.mean(axis=1, keepdims=True, dtype=np.float32) if channels == 1 else samples

            start, stop = (int(min(max(one, 0), count)) for one in (begin, end))
            return np.array(media.resampled(read, len(sound), (sound.rate, after), start, stop))

    def source(self) -> Source:
        """What a decoder opens; for the errors see `blob`."""
        assert self.column is not None
        kept = self._packets() or None
        return Source(blob=self.blob(), column=self.column, first=self.first, count=self.count, index=kept)

    def _packets(self) -> Mapping[int, bytes]:
        if self.inline:
            return {}
        return self._kept(self.reference) if callable(self._kept) else self._kept or {}

    def _open(self) -> Decoder:
        return media.open(self.source())

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        _, state = super().__getstate__()
        frames = {name: getattr(self, name) for name in MediaView.__slots__}
        return None, {**state, **frames, "_kept": dict(self._packets())}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MediaView) and self._key() == other._key() and self._same_bytes(other)

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
        self.cells: Sequence[bytes | FileView | None] = cells if isinstance(cells, SlicedSteps) else list(cells)
        self._column = column
        self._held = media.LazyDecoder()

    def bytes(self, step: int, /) -> bytes | None:
        """The encoded image of one step; None where there is none."""
        cell = self.cells[step]
        return cell.read() if isinstance(cell, FileView) else cell

    @property
    def codes(self) -> StepsView:
        """The same images of a depth map as the numbers that they store."""
        return StepsView(self.cells, column=as_codes(self._column))

    @property
    def present(self) -> NDArray[np.bool_]:
        """[steps] False where a step has no image."""
        if isinstance(self.cells, SlicedSteps):  # readers that slice have one for every step
            return np.ones(len(self.cells), np.bool_)
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

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # it holds a list

    def __repr__(self) -> str:
        return f"StepsView({len(self.cells)} images)"

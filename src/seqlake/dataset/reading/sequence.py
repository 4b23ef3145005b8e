"""One row in your hand: a mapping from column names to values, read when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seqlake import media
from seqlake.dataset.reading import display
from seqlake.dataset.reading.views import FileView, MediaView, StepsView
from seqlake.windows.sounds import Silence, check_rate, declared_rate, sounding
from seqlake.windows.sources import FileSpan, MediaFiles, held_span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from seqlake.dataset.reading.views import CellSource
    from seqlake.spec.schema import Column, Schema
    from seqlake.windows.frames import Decoded
    from seqlake.windows.sounds import Heard
    from seqlake.windows.spec import Edges, Rate


class SequenceView(Mapping[str, Any]):
    """One sequence of a dataset or selection; nothing is read before a column is asked for.

    Values by category of the column: *temporal* numpy [T, D] (a read-only view of the file where it lies flat and
    local), *vector* numpy [D], *file* a `FileView` (video, image and audio: a `MediaView`, which decodes), also where
    the row holds the file's bytes, *frames* a `StepsView` of encoded images, everything else plain Python values; None
    where the cell is null.

    Example:
        ```python
        sequence = ds.sequence("ep_001")
        sequence["action"].shape                       # (200, 12)
        sequence["task"]                               # 'pick'
        sequence["cam"][10:20]                         # decoded, uint8 [10, H, W, 3]
        sequence.window(100, 116, columns=["action"])  # exactly what training would see
        ```
    """

    __slots__ = ("_excerpt", "_row")

    def __init__(self, excerpt: CellSource, row: int) -> None:
        self._excerpt = excerpt
        self._row = row

    @property
    def id(self) -> str:
        """Its `sequence_id`; the row number as text where rows are samples."""
        access = self._excerpt.access
        name = access.source.schema.id  # the selection need not have selected it
        return str(self._row) if name is None else str(access.cell(self._row, access.source.schema[name]))

    @property
    def index(self) -> int:
        """Its place in the selection: `selection[view.index]` is this sequence."""
        return self._excerpt.index_of(self._row)

    @property
    def schema(self) -> Schema:
        """The columns of the selection."""
        return self._excerpt.schema

    def __getitem__(self, name: str) -> Any:
        column, access = self._excerpt.schema[name], self._excerpt.access
        inline = column.inline and access.source.schema.id is not None
        if inline and (held := access.held(self._row, column)) is not None:
            return self._viewed(FileSpan(held[0], data=held[1]), column)
        if column.category == "frames" and (steps := access.steps(self._row, column)) is not None:
            return StepsView(steps, column=column.type)
        value = access.cell(self._row, column)
        if value is None:
            return None
        if column.category == "file" or inline:
            return self._file(value, column)
        if column.category != "frames":
            return value
        return StepsView(
            [self._file(one, column) if isinstance(one, str) else one for one in value], column=column.type
        )

    def _file(self, cell: object, column: Column) -> FileView | None:
        place = held_span(cell, self._excerpt.access.token(self._row, column))
        return None if place is None else self._viewed(place, column)

    def _viewed(self, place: FileSpan, column: Column) -> FileView:
        reference = place.reference
        excerpt = self._excerpt
        root, storage, allow_outside = excerpt.root, excerpt.storage, excerpt.allow_outside
        if column.type is None or not media.opens(column.type.type):
            return FileView(
                reference,
                root=root,
                column=column.type,
                storage=storage,
                allow_outside=allow_outside,
                copied=excerpt.access.copied_file,
                data=place.data,
            )
        file = MediaView(
            reference,
            root=root,
            column=column.type,
            storage=storage,
            allow_outside=allow_outside,
            copied=excerpt.access.copied_file,
            kept=excerpt.access.kept_packets,
            data=place.data,
        )
        file.first, file.count = place.first, place.count
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
        mine, theirs = self._excerpt, other._excerpt
        return self._row == other._row and mine.access.source is theirs.access.source and self.schema == other.schema

    def __hash__(self) -> int:
        return hash((id(self._excerpt.access.source), self._row))

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
            columns: Which columns; all temporal ones by default. Videos and columns of images give frames, audio
                the samples of that time, others their one value.
            edges: Steps outside the sequence are zeros (`"pad"`), the nearest step (`"clamp"`), or an error (`"drop"`).
            clock: Steps per second, where the dataset should not decide it.

        Returns:
            `sequence_id`, `start`, and for each temporal column [stop - start, *shape] and `<column>_mask`
            [stop - start], True where the step exists; frames are uint8 [stop - start, height, width, 3], sound is
            float32 [S, channels] at the rate that the file has, with a mask [S].

        Raises:
            SchemaMismatchError: A column cannot be windowed, or columns have unlike steps and nothing says a rate.
            ValueError: `edges="drop"` and a step is missing.
            DecodeError: A frame cannot be decoded.

        Example:
            >>> dataset[0].window(-2, 2, columns=["action"])["action_mask"]
            array([False, False,  True,  True])
        """
        from seqlake.windows.assemble import assemble
        from seqlake.windows.frames import framed
        from seqlake.windows.spec import Window

        access = self._excerpt.access
        schema = access.source.schema  # a clock may hang on a column that was not selected
        if columns is None:
            steps = (name for name in self.schema.names if self.schema[name].category == "temporal")
            columns = [name for name in steps if not self.schema[name].timeless]
        stepped = [
            name
            for name, column in ((name, schema[name]) for name in columns)
            if column.category == "temporal" or framed(column) or sounding(column)
        ]
        stepped = [name for name in stepped if not schema[name].timeless]
        window = Window(
            {name: range(stop - start) if name in stepped else None for name in columns}, edges=edges, clock=clock
        )
        sample = assemble(
            lambda name: access.cell(self._row, schema[name]),
            schema,
            window,
            start,
            clock=access.clock(window, MediaFiles.of(self._excerpt)),
            frames_of=self._frames,
            sounds_of=self._sound,
        )
        return {"sequence_id": self.id, **sample}

    def _frames(self, name: str) -> Decoded:
        """This row's frames; where it has none, nothing in the shape of those that another row has."""
        from seqlake.windows.frames import Blank

        frames = self[name]
        if _has_frames(frames):
            return frames  # type: ignore[no-any-return]  # a view of frames
        rows = range(self._excerpt.access.starts[-1])
        others = (SequenceView(self._excerpt, row)[name] for row in rows)
        return Blank(next(filter(_has_frames, others), None))

    def _sound(self, name: str) -> Heard:
        """This row's sound; where it has none, none of the rate and the channels that another row's has."""
        column, sound = self._excerpt.schema[name], self[name]
        declared = declared_rate(column)
        if sound is not None:
            check_rate(column, sound.rate, declared or sound.rate)
            return sound  # type: ignore[no-any-return]  # a view of sound
        rows = range(self._excerpt.access.starts[-1])
        others = (SequenceView(self._excerpt, row)[name] for row in rows)
        other = next((one for one in others if one is not None), None)
        return Silence(declared or 1, 1) if other is None else Silence(declared or other.rate, other.channels)

    def __repr__(self) -> str:
        return display.sequence_text(self)

    def _repr_html_(self) -> str:
        return display.sequence_html(self)


def _has_frames(frames: Decoded | None) -> bool:
    return frames is not None and (frames.present is None or bool(frames.present.any()))

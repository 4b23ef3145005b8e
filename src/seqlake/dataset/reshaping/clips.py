"""Files of pieces: videos and sounds are cut with the steps, all other files come along whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from seqlake.dataset.writing.ingest import Encoded
from seqlake.errors import DecodeError, ValidationError
from seqlake.media import _sound
from seqlake.media.video import cutting
from seqlake.spec.alignment import on_clock, samples_of
from seqlake.spec.column_types import ColumnType

if TYPE_CHECKING:
    from seqlake.dataset.reading.sequence import MediaView, SequenceView
    from seqlake.dataset.reshaping.slicing import Piece, Spans
    from seqlake.dataset.writing.staging import Staging
    from seqlake.spec.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class CutFile:
    """What became of one video or sound of one piece.

    Attributes:
        sequence_id: Of the piece.
        column: The column.
        frames: How many frames (samples) it has; 0: the file ended before the piece began, and the cell is null.
        encoded: How many frames were encoded again; the packets of all others were copied.
        note: Why all of them were, where they were.
    """

    sequence_id: str
    column: str
    frames: int
    encoded: int = 0
    note: str = ""


def cut_columns(schema: Schema, /) -> list[str]:
    """The columns whose files are cut: videos and sounds."""
    return [*videos(schema), *_files(schema, "audio")]


def videos(schema: Schema, /) -> list[str]:
    """The columns of videos."""
    return _files(schema, "video")


def _files(schema: Schema, kind: str) -> list[str]:
    types = ((name, schema[name].type) for name in schema if schema[name].category == "file")
    return [name for name, declared in types if declared is not None and declared.type == kind]


def of_pieces(schema: Schema, /) -> Schema:
    """The schema of pieces: a cut file has one stream, whichever it was in the file before."""
    changed = {}
    for name in cut_columns(schema):
        kind = schema[name].type
        if kind is not None and kind.get("stream") is not None:
            fields = {key: value for key, value in kind.to_json().items() if key != "stream"}
            changed[name] = replace(schema[name], type=ColumnType.from_json(fields))
    return schema.with_columns(changed) if changed else schema


class Cutter:
    """Cuts the files of pieces into a transaction that has begun; several threads may share it.

    Args:
        schema: Of the sequences.
        spans: Which samples belong to which steps.
        staging: Where the clips go.
        storage: Options of the store that the files lie in.
    """

    def __init__(
        self, schema: Schema, spans: Spans, staging: Staging, /, *, storage: Mapping[str, str] | None = None
    ) -> None:
        self._schema = schema
        self._spans = spans
        self._staging = staging
        self._storage = storage

    def cell(self, view: SequenceView, name: str, piece: Piece, /, *, cell: object) -> tuple[object, CutFile | None]:
        """The piece's cell of a column of files, which names a clip of its own, and what became of the file.

        Args:
            view: The sequence.
            name: The column.
            piece: Which steps.
            cell: What the sequence has there: a reference, or a struct with `url`.

        Raises:
            ValidationError: The file is not there, or cannot be cut; the message names sequence and column.
        """
        file: MediaView | None = view[name]
        if file is None:
            return None, None
        where = f"Sequence {view.id!r}, column {name!r}"
        try:
            reference, cut = self._cut(name, file, piece, view)
        except FileNotFoundError as error:
            raise ValidationError(
                f"{where}: the file {file.reference!r} is not there.",
                hint="Run validate(depth='files') to list all that are missing; leave the rows or the column out.",
            ) from error
        except DecodeError as error:
            raise ValidationError(f"{where}: {error}") from error
        if isinstance(cell, dict) and reference is not None:
            whole = {"url": reference, "first_frame": 0, "num_frames": cut.frames}
            return {**cell, **{key: whole[key] for key in whole if key in cell}}, cut
        return reference, cut

    def _cut(self, name: str, file: MediaView, piece: Piece, view: SequenceView) -> tuple[str | None, CutFile]:
        """The reference of the piece's own file, and what became of it."""
        source, there = file.source(), len(file)
        shared = (
            file.first > 0 or file.count is not None or (file.column is not None and "stream" in file.column.fields)
        )
        if piece.whole and not shared:
            reference = self._staging.copy_in(
                name,
                piece.id,
                file.location,
                storage=self._storage,
                packets=source.index if isinstance(source.index, Mapping) else None,
            )
            return reference, CutFile(sequence_id=piece.id, column=name, frames=there)
        sound = name not in videos(self._schema)
        first, stop = self._samples(name, file, piece) if sound else self._frames(name, file, piece, view)
        first, stop = min(first, there), min(stop, there)
        if first >= stop:
            return None, CutFile(sequence_id=piece.id, column=name, frames=0, note="the file ends before the piece")
        path = self._staging.scratch()
        try:
            clip = (_sound.cut if sound else cutting.cut)(source, path, start=first, stop=stop)
            reference = self._staging.take_in(name, piece.id, Encoded(path, suffix=clip.suffix))
        finally:
            path.unlink(missing_ok=True)
        return reference, CutFile(
            sequence_id=piece.id, column=name, frames=clip.frames, encoded=clip.encoded, note=clip.note
        )

    def _frames(self, name: str, file: MediaView, piece: Piece, view: SequenceView) -> tuple[int, int]:
        """At the clock's rate by count; at another, or by time stamps, by the times at which frames are shown."""
        if piece.whole:
            return 0, len(file)
        if self._spans.stamps_of(name) is not None:
            return self._spans.span(name, piece, len(file), view.get)
        if on_clock(self._schema, name, self._spans.clock.rate):
            return piece.start, piece.stop
        rate = self._spans.rate(name)
        first = int(file.numbers_at([piece.start / rate])[0])
        lasting = (piece.stop - piece.start) / rate / file.time_base
        ticks = file.pts - file.pts[first]
        return first, int(np.searchsorted(ticks, -(-lasting.numerator // lasting.denominator), side="left"))

    def _samples(self, name: str, file: MediaView, piece: Piece) -> tuple[int, int]:
        """The samples of a sound within the steps."""
        if piece.whole:
            return 0, len(file)
        clock, rate = self._spans.rate(name), 1 / file.time_base
        return (
            samples_of(piece.start, clock=clock, rate=rate).start,
            samples_of(piece.stop, clock=clock, rate=rate).start,
        )

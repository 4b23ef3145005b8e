"""Encoded images in rows that become something else on their way into a dataset: a video, or one file a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from seqlake.dataset.writing.encoding import Encodings, encoded
from seqlake.dataset.writing.ingest import Encoded
from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.media import format_of, image
from seqlake.spec.alignment import clock_of, exact, own_rate
from seqlake.spec.column_types import Image, Video
from seqlake.spec.schema import is_binary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from fractions import Fraction

    from seqlake.dataset.writing.staging import Staging
    from seqlake.media import Encoding
    from seqlake.spec.column_types import ColumnType
    from seqlake.spec.schema import Column, Schema

Form = Literal["bytes", "video", "files"]
FORMS: tuple[Form, ...] = ("bytes", "video", "files")
_NAMED = "Name the columns that become videos, as in images={'image_0': 'video'}; others stay as they are."


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """Which columns of images, one a step in the row, become what; picklable.

    Attributes:
        forms: Column -> `video` (one MP4 a row) or `files` (one image file a step, its bytes unchanged).
        fps: Frames per second of videos whose source tells no rate.
        encoding: How videos are encoded.
    """

    forms: Mapping[str, Form] = field(default_factory=dict)
    fps: float | Fraction | None = None
    encoding: Encodings = field(default_factory=Encodings)

    @staticmethod
    def of(
        images: str | Mapping[str, str],
        schema: Schema,
        /,
        *,
        fps: float | Fraction | None = None,
        encoding: Encoding | Mapping[str, Encoding] | None = None,
    ) -> Pictures:
        """What is asked for, checked against the columns.

        Args:
            images: One form for every column of images that lie in the row, or a form for each column named; others
                stay as they are.
            schema: Of the rows.
            fps: See `Pictures`.
            encoding: See `Pictures`.

        Raises:
            ValueError: A form that there is not.
            SchemaMismatchError: A column that holds no such images.
        """
        inside = [name for name in schema if _in_row(schema[name])]
        named = dict(images) if isinstance(images, Mapping) else dict.fromkeys(inside, images)
        for form in [*named.values(), *([images] if isinstance(images, str) else [])]:
            if form not in FORMS:
                raise ValueError(f"Images become {', '.join(map(repr, FORMS))}; found {form!r}.")
        wrong = [name for name in named if name not in inside]
        if wrong:
            raise SchemaMismatchError(
                f"Column {wrong[0]!r}: expected images that lie in the row, one a step; "
                f"there are such in {', '.join(inside) or 'no column'}."
            )
        forms: dict[str, Any] = {name: form for name, form in named.items() if form != "bytes"}
        videos = [name for name, form in forms.items() if form == "video"]
        encodings = Encodings() if encoding is None else Encodings.among(videos, encoding)
        return Pictures(forms=forms, fps=fps, encoding=encodings)

    def declared(self, schema: Schema, /) -> Schema:
        """The columns as they will be.

        Raises:
            SchemaMismatchError: Nothing says the rate of a video, or the source says another.
        """
        columns = {name: self._column(schema, schema[name]) for name in self.forms}
        return schema.with_columns(columns) if columns else schema

    def _column(self, schema: Schema, column: Column) -> Column:
        assert column.type is not None, "a column of images has a type"
        kept: dict[str, Any] = {k: v for k, v in column.type.fields.items() if k not in {"format", "frames", "fps"}}
        kind: ColumnType
        if self.forms[column.name] == "files":
            kind = Image(format=column.type.get("format"), frames="files", fps=column.type.get("fps"), **kept)
        else:
            rate = None if column.timestamps else _plain(self._rate(schema, column))
            kept.pop("channels", None)  # a video has colours
            kind = Video(fps=rate, codec=self.encoding.of(column.name).produces, **kept)
        return replace(column, type=kind, arrow=kind.arrow)

    def _rate(self, schema: Schema, column: Column) -> Fraction:
        known = own_rate(column) or clock_of(schema).rate
        given = None if self.fps is None else exact(self.fps)
        if known is not None and given not in {None, known}:
            raise SchemaMismatchError(
                f"Column {column.name!r}: expected {float(known):g} frames per second as the source says, found "
                f"fps={float(self.fps or 0):g}.",
                hint="Leave fps out.",
            )
        rate = known or given
        if rate is None:
            raise SchemaMismatchError(
                f"Column {column.name!r}: expected a rate for its video, and the source tells none.",
                hint="Give the steps per second of the recordings, as in fps=5.",
            )
        return rate

    def turned(self, batch: pa.RecordBatch, schema: Schema, staging: Staging, /) -> pa.RecordBatch:
        """The rows with references to what was made of their images, which lies in the dataset already.

        Args:
            batch: Rows as they were read.
            schema: What `declared` gave.
            staging: Where files go.

        Raises:
            CorruptFrameError, DecodeError: A picture cannot be decoded; names the sequence and the step.
            SchemaMismatchError: Pictures of different sizes, or of 16 bits, in one video.
        """
        ids = batch.column(schema.id).to_pylist() if schema.id is not None else [""] * batch.num_rows
        for name, form in self.forms.items():
            turn = self._video if form == "video" else _files
            cells = [turn(batch, row, name, ids[row], schema, staging) for row in range(batch.num_rows)]
            logical = schema.arrow.field(name)
            batch = batch.set_column(batch.schema.get_field_index(name), logical, pa.array(cells, logical.type))
        return batch

    def _video(
        self, batch: pa.RecordBatch, row: int, name: str, key: str, schema: Schema, staging: Staging
    ) -> str | None:
        pictures = batch.column(name)[row]
        if not pictures.is_valid or not len(pictures):
            return None  # there is no video without a frame
        where = f"Sequence {key!r}, column {name!r}"
        values: dict[str, Any] = {name: _decoded(pictures, schema[name].type, where)}
        stamps = schema[name].timestamps
        if stamps is not None and stamps in batch.schema.names:
            times = batch.column(stamps)[row]
            values[stamps] = times.as_py() if times.is_valid else None
        with encoded(schema, key, values, encoding=self.encoding, scratch=staging.scratch) as cells:
            video = cells[name]
            assert isinstance(video, Encoded)
            return staging.take_in(name, key, video)


def _files(
    batch: pa.RecordBatch, row: int, name: str, key: str, _: Schema, staging: Staging
) -> list[str | None] | None:
    """One file a step, with the bytes that are there."""
    pictures = batch.column(name)[row]
    if not pictures.is_valid:
        return None
    references: list[str | None] = []
    for picture in pictures.values:
        if not picture.is_valid:
            references.append(None)
            continue
        data = picture.as_py()
        kind = format_of(data[:64])
        suffix = "" if kind is None else ".jpg" if kind == "jpeg" else f".{kind}"
        path = staging.scratch()
        try:
            path.write_bytes(data)
            references.append(staging.take_in(name, key, Encoded(path, suffix=suffix)))
        finally:
            path.unlink(missing_ok=True)
    return references


def _decoded(pictures: pa.ListScalar, video: ColumnType | None, where: str) -> Iterator[Any]:
    kind = Image(orientation=None if video is None else video.get("orientation"))
    for step, picture in enumerate(pictures.values):
        place = f"{where}, step {step}"
        if not picture.is_valid:
            raise ValidationError(
                f"{place}: expected a picture for every frame of a video, found null.",
                hint=_NAMED,
            )
        picture_array = image.decode(picture.as_py(), name=place, column=kind)
        if picture_array.dtype != "uint8":
            raise SchemaMismatchError(
                f"{place}: expected a picture of 8 bits for a video, found {picture_array.dtype}.",
                hint=_NAMED,
            )
        yield picture_array


def _in_row(column: Column) -> bool:
    is_image = column.type is not None and column.type.type == "image"
    return column.category == "frames" and is_image and is_binary(column.arrow.value_type)


def _plain(rate: Fraction) -> float:
    return int(rate) if rate.denominator == 1 else float(rate)

"""One row as a recording: signals as series, videos as they are, pictures, poses and points, and a layout for them."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import SeqlakeError
from seqlake.files.blobs import MemoryBlob
from seqlake.formats._recordings import StepTimes
from seqlake.formats.rerun.movies import asset_of, frames_of, picture_of
from seqlake.media import open as open_media
from seqlake.media import open_steps, spatial
from seqlake.plugins import require
from seqlake.protocols import Source
from seqlake.spec.alignment import clock_of, own_rate
from seqlake.spec.schema import innermost, is_binary, is_list, is_number, is_text
from seqlake.windows.sources import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from fractions import Fraction
    from pathlib import Path

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.spec.schema import Column, Schema
    from seqlake.windows.sources import MediaFiles

_log = logging.getLogger(__name__)
_SECOND = 1_000_000_000
_POSITION = ("x", "y", "z")
_QUATERNION = ("qx", "qy", "qz", "qw")
_FRAMES = 16  # decoded at a time
_PLOTS = 12  # panels of the layout; more are in the list of entities
_MILLIMETRES = 1000.0  # to the metre, of the depth that `frames_of` and `picture_of` give
_FILES = {"3d": "geometry", "image": "image"}


def role_of(column: Column, schema: Schema, /) -> str:
    """What a column becomes: `signal`, `texts`, `images`, `image`, `clouds`, `video`, `geometry`, `value`; the `id` and
    the `times` of others; or why it becomes nothing: `sound`, `deep`, `bytes`.
    """
    if column.name == schema.id:
        return "id"
    if column.name in schema.stamp_columns:
        return "times"
    kind = None if column.type is None else column.type.type
    if column.category == "temporal":
        return "deep" if column.deep else "signal"
    if column.category == "frames":
        return "clouds" if kind == "4d" else "images"
    if column.medium == "video":
        return "video"
    if kind == "audio":
        return "sound"
    if (column.inline or column.category == "file") and kind in _FILES:
        return _FILES[kind]
    if column.inline or is_binary(innermost(column.logical)):
        return "bytes"
    return "texts" if is_list(column.logical) and is_text(column.logical.value_type) else "value"


class RowLog:
    """Writes one row as a recording.

    Args:
        schema: The columns.
        row: The one row.
        named: How files are opened that it names.
        fps: Steps per second where nothing else says it.
        quality: Of JPEG.
    """

    def __init__(
        self,
        schema: Schema,
        row: pa.RecordBatch,
        named: MediaFiles,
        /,
        *,
        fps: float | Fraction | None,
        quality: int,
    ) -> None:
        self._schema, self._row, self._named, self._quality = schema, row, named, quality
        self._steps = StepTimes(schema, row, fps=fps)
        self._clock = clock_of(schema, given=fps if clock_of(schema).rate is None else None).rate
        self._roles = {name: role_of(column, schema) for name, column in schema.items()}
        self._rr = require("rerun", extra="rerun")
        self._stream: Any = None
        self._seen: dict[str, list[str]] = {"plots": [], "pictures": [], "points": [], "texts": []}

    def save(self, path: Path, /, *, application: str, key: str) -> None:
        """The recording as a file.

        Args:
            path: Where nothing is.
            application: What the viewer calls the set of recordings.
            key: The id of the sequence.

        Raises:
            ValidationError: Steps and their times do not fit each other.
            SeqlakeError: Rerun is switched off.
        """
        self._stream = self._rr.RecordingStream(application, recording_id=key, send_properties=False)
        if not self._stream.is_enabled():
            raise SeqlakeError("Rerun writes no file.", hint="Unset the variable RERUN, which switches it off.")
        self._stream.save(path)
        try:
            self._stream.send_recording_name(key)
            if (started := self._steps.started()) is not None:
                self._stream.send_recording_start_time_nanos(started)
            logs: Mapping[str, Callable[[str, Column, Any], None]] = {
                "signal": self._signal,
                "texts": self._texts,
                "images": self._images,
                "image": self._image,
                "clouds": self._clouds,
                "video": self._video,
                "geometry": self._geometry,
            }
            for name, column in self._schema.items():
                cell = self._row.column(name)[0]
                if cell.is_valid and self._roles[name] in logs:
                    logs[self._roles[name]](name, column, cell)
            self._values()
            self._stream.send_blueprint(self._layout())
            self._stream.flush()
        finally:
            self._stream.disconnect()

    # ---- columns

    def _signal(self, name: str, column: Column, cell: Any) -> None:
        steps = cell.values
        count, lengths = len(steps), None
        if column.nested:
            lengths = np.diff(_offsets(steps))
            steps = steps.flatten()
        values = np.asarray(steps.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)
        if not count:
            return
        series = self._rr.Scalars.columns(scalars=values)
        self._send(name, column, count, series.partition(lengths) if lengths is not None else series)
        names = _names(column)
        if names:
            self._stream.log(self._path(name), self._rr.SeriesLines(names=names), static=True)
        self._seen["plots"].append(name)
        if names and lengths is not None and set(_POSITION) <= set(names) and (lengths == len(names)).all():
            self._pose(name, column, values.reshape(count, len(names)), names)

    def _pose(self, name: str, column: Column, values: NDArray[np.float64], names: list[str]) -> None:
        """Where something is, and how it is turned, as a frame that moves along its path."""
        places = values[:, [names.index(one) for one in _POSITION]]
        turned = {}
        if set(_QUATERNION) <= set(names):
            turned = {"quaternion": values[:, [names.index(one) for one in _QUATERNION]]}
        frame, path = self._path(name, "pose"), self._path(name, "path")
        self._send((name, "pose"), column, len(values), self._rr.Transform3D.columns(translation=places, **turned))
        there = places[np.isfinite(places).all(axis=1)]
        extent = float(np.ptp(there, axis=0).max()) if len(there) else 0.0
        self._stream.log(frame, self._rr.TransformAxes3D((extent or 1.0) / 10), static=True)
        self._stream.log(path, self._rr.LineStrips3D([there]), static=True)
        self._seen["points"] += [frame, path]

    def _texts(self, name: str, column: Column, cell: Any) -> None:
        texts = ["" if one is None else one for one in cell.as_py()]
        if texts:
            self._send(name, column, len(texts), self._rr.TextLog.columns(text=texts))
            self._seen["texts"].append(name)

    def _images(self, name: str, column: Column, cell: Any) -> None:
        assert column.type is not None
        pictures = [self._source(one, column) for one in cell.as_py()]
        there = np.array([one is not None for one in pictures])
        decoder = open_steps(len(pictures), pictures.__getitem__, column.type)
        blobs = [picture_of(pictures[k], decoder, int(k), column.type, self._quality) for k in np.flatnonzero(there)]
        self._pictures(name, column, blobs, len(pictures), np.flatnonzero(there), None)

    def _image(self, name: str, column: Column, cell: Any) -> None:
        source = self._source(cell.as_py(), column)
        if source is not None:
            decoder = open_media(source)
            try:
                data = picture_of(source, decoder, 0, source.column, self._quality)
            finally:
                decoder.close()
            entity: Any = self._rr.EncodedImage(contents=data, media_type=_media_type(data))
            if source.column.is_depth:
                entity = self._rr.EncodedDepthImage(data, media_type="image/png", meter=_MILLIMETRES)
            self._stream.log(self._path(name), entity, static=True)
            self._seen["pictures"].append(name)

    def _clouds(self, name: str, column: Column, cell: Any) -> None:
        sources = [self._source(one, column) for one in cell.as_py()]
        clouds = [np.zeros((0, 3)) if one is None else spatial.xyz(spatial.points(one)) for one in sources]
        if clouds:
            points = self._rr.Points3D.columns(positions=np.concatenate(clouds).astype(np.float32))
            self._send(name, column, len(clouds), points.partition([len(cloud) for cloud in clouds]))
            self._seen["points"].append(self._path(name))

    def _geometry(self, name: str, column: Column, cell: Any) -> None:
        source = self._source(cell.as_py(), column)
        if source is None:
            return
        one = spatial.load(source)
        colors = None if one.colors is None or not len(one.colors) else one.colors
        points = one.points.astype(np.float32)
        if len(one.faces):
            entity = self._rr.Mesh3D(vertex_positions=points, triangle_indices=one.faces, vertex_colors=colors)
        else:
            entity = self._rr.Points3D(points, colors=colors)
        self._stream.log(self._path(name), entity, static=True)
        self._seen["points"].append(self._path(name))

    def _video(self, name: str, column: Column, cell: Any) -> None:
        source = self._source(cell.as_py(), column)
        if source is None:
            return
        assert column.type is not None
        decoder = open_media(source)
        try:
            pts, count = np.asarray(decoder.pts, np.int64), len(decoder)
            if not count:
                return
            base = decoder.time_base * _SECOND
            instants = np.array([round(int(one - pts[0]) * base) for one in pts], np.int64)
            held = None if column.type.is_depth else asset_of(source, instants)
            if held is None:
                if not column.type.is_depth:
                    _log.warning("%s: its frames are written as pictures, since Rerun does not decode it.", name)
                for start in range(0, count, _FRAMES):
                    numbers = np.arange(start, min(start + _FRAMES, count))
                    blobs = frames_of(decoder, numbers, column.type, self._quality)
                    self._pictures(name, column, blobs, count, numbers, instants)
                return
        finally:
            decoder.close()
        data, stamps = held
        asset = self._rr.AssetVideo(contents=data, media_type="video/mp4")
        self._stream.log(self._path(name), asset, static=True)
        self._send(name, column, count, self._rr.VideoFrameReference.columns_nanos(stamps), instants=instants)
        self._seen["pictures"].append(name)

    def _pictures(
        self, name: str, column: Column, blobs: Sequence[bytes], count: int, numbers: Ints, instants: Ints | None
    ) -> None:
        """Some steps of a column as pictures."""
        assert column.type is not None
        if not len(numbers):
            return
        if column.type.is_depth:
            entity = self._rr.EncodedDepthImage.columns(
                blob=blobs, media_type=["image/png"] * len(blobs), meter=[_MILLIMETRES] * len(blobs)
            )
        else:
            entity = self._rr.EncodedImage.columns(blob=blobs, media_type=[_media_type(one) for one in blobs])
        self._send(name, column, count, entity, instants=instants, numbers=numbers)
        if name not in self._seen["pictures"]:
            self._seen["pictures"].append(name)

    def _values(self) -> None:
        """What the row has once: properties of the recording."""
        names = [name for name, role in self._roles.items() if role == "value" and self._row.column(name)[0].is_valid]
        values = [self._rr.AnyBatchValue(name, _property(self._row.column(name))) for name in names]
        if values:
            self._stream.send_property("row", values)

    # ---- times, places, layout

    def _send(
        self,
        name: str | tuple[str, str],
        column: Column,
        count: int,
        columns: Any,
        *,
        instants: Ints | None = None,
        numbers: Ints | None = None,
    ) -> None:
        """Send the steps of a column, or some of them, with the times of their frames where nothing else says them."""
        if instants is not None and column.timestamps not in self._schema:
            times: Ints | None = instants
        else:
            stamps = self._steps.of(column, count)
            times = None if stamps is None else stamps - self._steps.begin
        frames = self._frames(column, count, times)
        chosen = slice(None) if numbers is None else numbers
        lines = [self._rr.TimeColumn("frame", sequence=frames[chosen])]
        if times is not None:
            lines.append(self._rr.TimeColumn("time", duration=times[chosen].astype("timedelta64[ns]")))
        path = self._path(*(name if isinstance(name, tuple) else (name,)))
        self._stream.send_columns(path, lines, columns, strict=True)

    def _frames(self, column: Column, count: int, times: Ints | None) -> Ints:
        """[count] the steps of the dataset's clock at which those of a column are; their numbers where it has none."""
        if times is None or self._clock is None or own_rate(column) == self._clock:
            return np.arange(count, dtype=np.int64)
        rate = self._clock / _SECOND
        return np.array([round(int(time) * rate) for time in times], np.int64)

    def _path(self, *names: str) -> str:
        """An entity; names with two underscores in front are Rerun's own."""
        theirs = names[0].startswith("__") or not names[0]
        return str(self._rr.new_entity_path(["columns", *names] if theirs else list(names)))

    def _source(self, cell: Any, column: Column) -> Source | None:
        place = place_of(cell)
        if place is None:
            return None
        assert column.type is not None
        blob = MemoryBlob(place.data) if isinstance(place.data, bytes) else place.data
        if blob is None:
            blob = self._named.blob(place.reference)
        return Source(blob=blob, column=column.type, first=place.first, count=place.count)

    def _layout(self) -> Any:
        """Videos and what is in space above, a plot for each signal below."""
        blueprint = require("rerun.blueprint", extra="rerun")
        seen, path = self._seen, self._path
        upper = [blueprint.Spatial2DView(origin=path(name), name=name) for name in seen["pictures"]]
        if seen["points"]:
            upper.append(blueprint.Spatial3DView(origin="/", contents=seen["points"], name="space"))
        lower = [
            blueprint.TimeSeriesView(origin=path(name), contents="$origin", name=name)
            for name in seen["plots"][:_PLOTS]
        ]
        lower += [blueprint.TextLogView(origin=path(name), name=name) for name in seen["texts"]]
        rows = [blueprint.Grid(*views) for views in (upper, lower) if views]
        timed = self._clock is not None or any(self._schema.stamp_columns)
        panel = blueprint.TimePanel(timeline="time" if timed else "frame")
        if not rows:
            return blueprint.Blueprint(panel)
        return blueprint.Blueprint(blueprint.Vertical(*rows), panel, collapse_panels=True)


def _offsets(steps: pa.Array) -> Ints:
    """[steps + 1] where the numbers of each step begin; a step that is null has none."""
    if pa.types.is_fixed_size_list(steps.type):
        return np.arange(len(steps) + 1, dtype=np.int64) * int(steps.type.list_size)
    lengths = np.asarray(steps.value_lengths().fill_null(0), np.int64)
    return np.concatenate([[0], np.cumsum(lengths)])


def _names(column: Column) -> list[str]:
    """A name for each number of a step, where the column's type has them."""
    names = None if column.type is None else column.type.get("names")
    if not isinstance(names, list) or len(names) != column.dim or not all(isinstance(one, str) for one in names):
        return []
    return names


def _media_type(data: bytes) -> str:
    return "image/png" if data.startswith(b"\x89PNG") else "image/jpeg"


def _property(cell: pa.Array) -> pa.Array:
    """The value of a row as a component: plain ones and lists of numbers as they are, others as text or JSON.

    Arrow arrays, since of anything else Rerun infers a type, and keeps to it for all that has the same name.
    """
    kind = cell.type
    if is_list(kind) and is_number(kind.value_type) and len(cell[0].values):
        return cell[0].values
    if pa.types.is_boolean(kind) or is_number(kind) or is_text(kind):
        return cell
    value = cell[0].as_py()
    text = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list) else str(value)
    return pa.array([text])


__all__ = ["RowLog", "role_of"]

"""Column types: what a column means beyond its Arrow type.

Specification: "Dataset-Level Metadata", Common types. The `type` is an open string: any type without a class here is
written as `ColumnType("mcap", ...)`. Fields that are not known are kept as they came.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from difflib import get_close_matches
from math import isfinite
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.errors import InvalidMetadataError
from seqlake.spec.depth import field_of, is_depth, measure_of
from seqlake.spec.pixel_formats import RGB

if TYPE_CHECKING:
    from collections.abc import Sequence


class ColumnType:
    """What a column means: a type and the fields that belong to it.

    Args:
        type: The type's name, as in `"mcap"`; any string.
        fields: Type-specific fields, each a JSON value; `None` leaves a field out. `file=True` says that the texts of
            a column are paths or URLs of files, where `type` is none of `FILE_TYPES`.

    Raises:
        InvalidMetadataError: A type that is no string, or a field that is no JSON value.

    Example:
        >>> ColumnType("mcap", topics=["/joint_states"])
        ColumnType('mcap', topics=['/joint_states'])
    """

    __slots__ = ("_fields", "_type", "_value_type")

    def __init__(self, type: str, /, **fields: Any) -> None:  # noqa: A002 - the format's own word
        if not isinstance(type, str):
            raise InvalidMetadataError(f"A column's type must be a string such as 'mcap', got {type!r}.")
        if "type" in fields:
            raise InvalidMetadataError(f"A column has one type: {type!r} is given, and {fields['type']!r} as a field.")
        _warn_of_misspelt(self.__class__, fields)
        self._type = type
        self._fields = {name: _plain(value, name) for name, value in fields.items() if value is not None}
        self._value_type: pa.DataType | None = None

    @property
    def type(self) -> str:
        """The name of the type."""
        return self._type

    @property
    def fields(self) -> Mapping[str, Any]:
        """Everything beside the type, unknown fields too, in the order they came."""
        return dict(self._fields)

    def get(self, name: str, default: Any = None, /) -> Any:
        """One field, or `default`.

        Example:
            >>> Trajectory(dim=3).get("dim")
            3
        """
        return self._fields.get(name, default)

    @property
    def timestamps(self) -> str | None:
        """The column that the field `timestamps` names; None where it holds no name."""
        named = self._fields.get("timestamps")
        return named if isinstance(named, str) and named else None

    @property
    def rate(self) -> float | None:
        """What `fps`, or `sample_rate` of audio, declares as a constant rate; None beside `timestamps`."""
        declared = self._fields.get("sample_rate" if self._type == "audio" else "fps")
        usable = isinstance(declared, (int, float)) and not isinstance(declared, bool) and 0 < declared < float("inf")
        return declared if usable and self.timestamps is None else None

    @property
    def stream(self) -> int | None:
        """Which of a container's streams is meant; None where the field `stream` is no whole number."""
        number = self._fields.get("stream")
        return number if isinstance(number, int) and not isinstance(number, bool) else None

    @property
    def inline(self) -> bool:
        """Whether the field `inline` says that a cell is a file's own bytes, for a type where it may be."""
        return self._fields.get("inline") is True and self._type in INLINE_TYPES

    @property
    def pixel_format(self) -> str | None:
        """FFmpeg's name of the pixels that a column of videos declares; LeRobot's `video.pix_fmt` is one, too."""
        name = field_of(self._fields, "pixel_format")
        return name if isinstance(name, str) and name else None

    @property
    def is_depth(self) -> bool:
        """Whether it declares that its pictures are depth maps."""
        return self._type in {"video", "image"} and is_depth(self._fields)

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of a column that is declared by this type alone."""
        return pa.binary() if self.inline else pa.string()

    def to_json(self) -> dict[str, Any]:
        """The object that stands in `column_types`.

        Example:
            >>> Trajectory(dim=3, units="m").to_json()
            {'type': 'trajectory', 'dim': 3, 'units': 'm'}
        """
        return {"type": self._type, **self._fields}

    @staticmethod
    def from_json(value: Any, /) -> ColumnType:
        """Read one entry of `column_types`; of the class that belongs to its type, where there is one.

        Raises:
            InvalidMetadataError: Not an object, or without a string `type`.

        Example:
            >>> ColumnType.from_json({"type": "trajectory", "dim": 3})
            Trajectory(dim=3)
        """
        if not isinstance(value, dict):
            raise InvalidMetadataError(f"A column type must be a JSON object with a 'type', found {value!r}.")
        name = value.get("type")
        if not isinstance(name, str):
            raise InvalidMetadataError(f"A column type needs a 'type' that is a string, found {name!r} in {value!r}.")
        depth = name in {"video", "image"} and is_depth(value)
        kind = object.__new__(Depth if depth else KINDS.get(name, ColumnType))
        kind._type = name
        kind._fields = {key: field for key, field in value.items() if key != "type"}
        kind._value_type = None
        return kind

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ColumnType):
            return NotImplemented
        return self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json(), sort_keys=True, default=str))

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restored, (self.to_json(), self._value_type))

    def __repr__(self) -> str:
        kind = type(self)
        parts = [repr(self._type)] if kind is ColumnType else []
        parts += [f"{name}={value!r}" for name, value in self._fields.items()]
        return f"{kind.__name__}({', '.join(parts)})"


_OPTIONS = {
    "Trajectory": "dim dtype units coordinate_frame fps timestamps origin shape names encoding",
    "Video": "fps codec resolution stream pixel_format is_depth_map timestamps origin inline",
    "Depth": "fps codec resolution stream pixel_format is_depth_map units depth_scale depth_min depth_max shift "
    "use_log invalid format frames timestamps origin inline",
    "Image": "format resolution frames channels orientation fps timestamps origin inline",
    "Audio": "sample_rate channels stream codec timestamps origin inline",
    "Spatial3D": "format fields coordinate_frame units inline",
    "Spatial4D": "format frames fields fps coordinate_frame units timestamps origin inline",
    "Embedding": "dim model dtype fps timestamps origin",
}
_ALSO = {
    "frame_rate": "fps",
    "framerate": "fps",
    "rate": "fps",
    "hz": "fps",
    "size": "resolution",
    "frame": "coordinate_frame",
    "pix_fmt": "pixel_format",
    "unit": "units",
    "depth_unit": "units",
    "scale": "depth_scale",
}


def _warn_of_misspelt(kind: type, fields: Mapping[str, Any]) -> None:
    """Fields are open, so a misspelt one would be kept and never read: a warning names what is nearly meant."""
    options = _OPTIONS.get(kind.__name__, "").split()
    for name in fields:
        if name in options:
            continue
        near = get_close_matches(name, options, n=1, cutoff=0.75)
        meant = _ALSO.get(name.casefold(), near[0] if near else "")
        if meant in options:
            warnings.warn(
                f"{kind.__name__} knows no {name!r}; is {meant!r} meant? It is kept, and nothing here reads it.",
                stacklevel=4,
            )


def _plain(value: Any, name: str) -> Any:
    """The value as JSON holds it; numbers of numpy become Python's."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, name) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, name) for inner in value]
    if not isinstance(value, (str, int, float, type(None))) and hasattr(value, "tolist"):
        return _plain(value.tolist(), name)
    if not isinstance(value, (str, int, float, type(None))) or (isinstance(value, float) and not isfinite(value)):
        raise InvalidMetadataError(f"Field {name!r} must be a JSON value, got {value!r}.")
    return value


def _restored(value: dict[str, Any], value_type: pa.DataType | None) -> ColumnType:
    kind = ColumnType.from_json(value)
    kind._value_type = value_type  # noqa: SLF001 - a value of this module
    return kind


class Trajectory(ColumnType):
    """A signal: [T, dim] numbers, one row per time step.

    Args:
        dim: Numbers per step; None if it is not declared.
        dtype: The type of one number, of Arrow or numpy, or its name, as in `"float64"`.
        units: As in `"rad"`.
        coordinate_frame: As in `"base_link"`.
        fps: Steps per second, where this column has a rate of its own.
        timestamps: The column that holds each step's time (nanoseconds as integers, seconds as floats).
        origin: With `timestamps`, the time of step 0, where it is not the earliest stamp of all columns.
        shape: The shape of one step, whose product is `dim`, as in `(3, 3)`.
        names: One name per dimension.
        encoding: `"raw"` stores a cell as one binary value of little-endian numbers.
        fields: Anything else.

    Example:
        >>> Trajectory(dim=12, units="rad")
        Trajectory(dim=12, units='rad')
    """

    __slots__ = ()

    def __init__(
        self,
        dim: int | None = None,
        *,
        dtype: pa.DataType | str | type | None = None,
        units: str | None = None,
        fps: float | None = None,
        shape: Sequence[int] | None = None,
        encoding: str | None = None,
        **fields: Any,
    ) -> None:
        value_type = _number_type("float32" if dtype is None else dtype)
        stored = number_name(value_type) if encoding == "raw" else None
        super().__init__(
            "trajectory", dim=dim, units=units, fps=fps, shape=shape, encoding=encoding, dtype=stored, **fields
        )
        self._value_type = value_type

    @property
    def arrow(self) -> pa.DataType:
        """`list<list<dtype>>`, or `binary` with `encoding="raw"`."""
        if self.get("encoding") == "raw":
            return pa.binary()
        return pa.list_(pa.list_(self._value_type or pa.float32()))


def _number_type(dtype: Any) -> pa.DataType:
    """The Arrow type of one number, however it is named.

    Raises:
        InvalidMetadataError: It is none.
    """
    try:
        if not isinstance(dtype, pa.DataType):
            dtype = pa.type_for_alias(dtype) if isinstance(dtype, str) else pa.from_numpy_dtype(dtype)
    except (ValueError, TypeError, pa.ArrowException):
        raise InvalidMetadataError(f"dtype: expected a type of numbers such as 'float32', found {dtype!r}.") from None
    return dtype


def number_name(value_type: pa.DataType, /) -> str:
    """The name that numpy and people have for a number type, as in `float32`; Arrow calls that `float`."""
    names = {pa.float16(): "float16", pa.float32(): "float32", pa.float64(): "float64"}
    return names.get(value_type, str(value_type))


class Video(ColumnType):
    """A reference to a video file, or its bytes in the row.

    Args:
        fps: Frames per second.
        codec: As in `"h264"`.
        resolution: Width and height in pixels.
        stream: Which of the container's video streams, from 0.
        pixel_format: FFmpeg's name of the file's pixels, as in `"gray16le"`. `"gray"` has frames of one channel, and
            those of 9 to 16 bits are handed out as the codes that are stored; `"rgb24"` asks for RGB of 8 bits instead.
        inline: Whether a cell is the file's own bytes.
        fields: Anything else.

    Example:
        >>> Video(fps=30, codec="h264")
        Video(fps=30, codec='h264')
        >>> Video(fps=30, inline=True).arrow
        DataType(binary)
    """

    __slots__ = ()

    def __init__(
        self, *, fps: float | None = None, codec: str | None = None, inline: bool = False, **fields: Any
    ) -> None:
        super().__init__("video", fps=fps, codec=codec, inline=inline or None, **fields)


class Depth(Video):
    """Depth maps: a video of grey pixels, or with `frames` one image per time step. Read as metres, float32.

    Without a range the codes of 16 bits are stored as they are, losslessly. With `depth_max` depth is quantised to the
    bits of the pixels, 12 unless others are named, in equal steps or in steps that grow with the distance (`use_log`),
    by the arithmetic and the names of LeRobot.

    Args:
        fps: Frames per second.
        units: What whole numbers count: `"m"`, `"cm"`, `"mm"` (which is the default) or `"um"`.
        depth_scale: Metres of one code, in place of `units`, where a camera says it so: 0.0002.
        depth_min: Metres of the smallest code; 0.01 by default.
        depth_max: Metres of the largest code. What is farther is stored as it.
        shift: Metres added before the logarithm; 3.5 by default.
        use_log: Whether steps grow with the distance; so they do by default.
        invalid: The code that stands for no measurement, read as 0 m.
        pixel_format: FFmpeg's name of the pixels: `"gray16le"`, or `"gray12le"` for quantised depth.
        frames: `"bytes"`: PNG of 16 bits in the row, index i is step i; `"files"`: one file per step.
        fields: Anything else.

    Raises:
        InvalidMetadataError: Values that contradict each other.

    Example:
        >>> Depth(fps=30)
        Depth(fps=30, pixel_format='gray16le', is_depth_map=True, units='mm', invalid=0)
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        fps: float | None = None,
        units: str | None = None,
        depth_scale: float | None = None,
        depth_min: float | None = None,
        depth_max: float | None = None,
        shift: float | None = None,
        use_log: bool | None = None,
        invalid: int | None = 0,
        pixel_format: str | None = None,
        frames: str | None = None,
        **fields: Any,
    ) -> None:
        ranged: dict[str, Any] = {"depth_min": depth_min, "depth_max": depth_max, "shift": shift, "use_log": use_log}
        if depth_max is None and any(value is not None for value in ranged.values()):
            raise InvalidMetadataError("Depth: depth_min, shift and use_log belong to a range: give depth_max, too.")
        if depth_max is not None:
            ranged = {"depth_min": 0.01, "depth_max": depth_max, "shift": 3.5, "use_log": True} | {
                name: value for name, value in ranged.items() if value is not None
            }
        pixels = "gray16le" if depth_max is None else "gray12le"
        units = units or (None if depth_scale is not None else "mm")
        meaning = {"is_depth_map": True, "units": units, "depth_scale": depth_scale, **ranged, "invalid": invalid}
        fields = meaning | fields
        if frames is None:
            super().__init__(fps=fps, pixel_format=pixel_format or pixels, **fields)
        elif frames in {"bytes", "files"}:
            ColumnType.__init__(self, "image", fps=fps, frames=frames, pixel_format=pixel_format, **fields)
        else:
            raise InvalidMetadataError(f'frames must be "bytes" or "files", got {frames!r}.')
        measure_of(self._fields)

    @property
    def arrow(self) -> pa.DataType:
        """As of a video, or a list per step with `frames`."""
        frames = self.get("frames")
        inner = {"bytes": pa.binary(), "files": pa.string()}.get(frames if isinstance(frames, str) else "")
        return super().arrow if inner is None else pa.list_(inner)


class Image(ColumnType):
    """A reference to an image file, or with `frames` one image per time step.

    Args:
        format: As in `"jpeg"`.
        resolution: Width and height in pixels.
        frames: `"bytes"`: encoded images in the row, index i is step i; `"files"`: one file per step.
        inline: Whether a cell is the one image's own bytes.
        channels: 1 hands grey of 8 bits out as one channel; it has three by default.
        orientation: `"apply"` turns images as their EXIF says; by default they keep the rows that the file has.
        fields: Anything else.

    Raises:
        InvalidMetadataError: Other values of `frames` or `orientation`.

    Example:
        >>> Image(format="jpeg", frames="bytes").arrow
        ListType(list<item: binary>)
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        format: str | None = None,  # noqa: A002 - the format's own word
        frames: str | None = None,
        inline: bool = False,
        orientation: str | None = None,
        **fields: Any,
    ) -> None:
        if frames not in {None, "bytes", "files"}:
            raise InvalidMetadataError(f'frames must be "bytes" or "files", got {frames!r}.')
        if inline and frames is not None:
            raise InvalidMetadataError('inline is for one image a row; images one a step are inline as frames="bytes".')
        if orientation not in {None, "apply", "keep"}:
            raise InvalidMetadataError(f'orientation must be "apply" or "keep", got {orientation!r}.')
        super().__init__(
            "image", format=format, frames=frames, orientation=orientation, inline=inline or None, **fields
        )

    @property
    def arrow(self) -> pa.DataType:
        """`string`, `binary` with `inline`, or a list per step with `frames`."""
        frames = self.get("frames")
        inner = {"bytes": pa.binary(), "files": pa.string()}.get(frames if isinstance(frames, str) else "")
        return super().arrow if inner is None else pa.list_(inner)


class Audio(ColumnType):
    """A reference to an audio file, or its bytes in the row.

    Args:
        sample_rate: Samples per second.
        channels: How many.
        inline: Whether a cell is the file's own bytes.
        fields: Anything else.

    Example:
        >>> Audio(sample_rate=48_000, channels=2)
        Audio(sample_rate=48000, channels=2)
    """

    __slots__ = ()

    def __init__(
        self, *, sample_rate: int | None = None, channels: int | None = None, inline: bool = False, **fields: Any
    ) -> None:
        super().__init__("audio", sample_rate=sample_rate, channels=channels, inline=inline or None, **fields)


class Spatial3D(ColumnType):
    """A reference to 3D data: a point cloud, a mesh, a depth map.

    Args:
        format: As in `"ply"`.
        inline: Whether a cell is the file's own bytes; `format` then says what they are.
        fields: `coordinate_frame`, `units`, or anything else.

    Example:
        >>> Spatial3D(format="ply", units="m")
        Spatial3D(format='ply', units='m')
    """

    __slots__ = ()

    def __init__(self, *, format: str | None = None, inline: bool = False, **fields: Any) -> None:  # noqa: A002 - the format's own word
        super().__init__("3d", format=format, inline=inline or None, **fields)


class Spatial4D(ColumnType):
    """A reference to 3D data over time: dynamic point clouds, animated meshes, volumetric video.

    Args:
        format: As in `"ply-sequence"`.
        fps: Steps per second.
        frames: `"files"`: a file for each step, index i is step i.
        inline: Whether a cell is the file's own bytes, with `frames` a list of them; `format` then says what they are.
        fields: Anything else.

    Example:
        >>> Spatial4D(fps=10)
        Spatial4D(fps=10)
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        format: str | None = None,  # noqa: A002 - the format's own word
        fps: float | None = None,
        frames: str | None = None,
        inline: bool = False,
        **fields: Any,
    ) -> None:
        if frames not in {None, "files"}:
            raise InvalidMetadataError(f'frames must be "files", got {frames!r}.')
        super().__init__("4d", format=format, fps=fps, frames=frames, inline=inline or None, **fields)

    @property
    def arrow(self) -> pa.DataType:
        """`string`, or with `frames` `list<string>`, where they are inline `list<binary>`."""
        each = pa.binary() if self.get("inline") else pa.string()
        return pa.list_(each) if self.get("frames") == "files" else super().arrow


class Embedding(ColumnType):
    """A vector of numbers without time: [dim].

    Args:
        dim: How many numbers.
        model: What made it.
        dtype: The Arrow type of one number.
        fields: Anything else.

    Example:
        >>> Embedding(dim=512, model="clip").arrow
        ListType(list<item: float>)
    """

    __slots__ = ()

    def __init__(
        self,
        dim: int | None = None,
        *,
        model: str | None = None,
        dtype: pa.DataType | str | type | None = None,
        **fields: Any,
    ) -> None:
        super().__init__("embedding", dim=dim, model=model, **fields)
        self._value_type = None if dtype is None else _number_type(dtype)

    @property
    def arrow(self) -> pa.DataType:
        """`list<dtype>`, float32 unless a dtype was given."""
        return pa.list_(self._value_type or pa.float32())


INLINE_TYPES = frozenset({"video", "image", "audio", "3d", "4d"})
"""The types of files whose bytes may stand in the rows themselves."""

FILE_TYPES = frozenset({"video", "image", "audio", "3d", "4d", "mcap", "zarr", "nifti", "rerun", "hdf5"})
"""The types whose columns of text name files: those that the specification names. Any other type is a hint."""

KINDS: dict[str, type[ColumnType]] = {
    "trajectory": Trajectory,
    "video": Video,
    "image": Image,
    "audio": Audio,
    "3d": Spatial3D,
    "4d": Spatial4D,
    "embedding": Embedding,
}


def as_codes(column: ColumnType | None, /) -> ColumnType | None:
    """The type of a column whose depth maps are handed out as the codes that are stored."""
    if column is None or not column.is_depth:
        return column
    meaning = {"units", "depth_unit", "depth_scale", "depth_max", "depth_min", "shift", "use_log", "invalid"}
    fields = column.to_json()
    return ColumnType.from_json({name: fields[name] for name in fields if name.removeprefix("video.") not in meaning})


def as_rgb(column: ColumnType | None, /) -> ColumnType | None:
    """The type of a column of videos that are handed out as RGB of 8 bits."""
    if column is None:
        return None
    fields = column.to_json()
    depth = {"is_depth_map", "video.is_depth_map"}
    return ColumnType.from_json({name: fields[name] for name in fields if name not in depth} | {"pixel_format": RGB})

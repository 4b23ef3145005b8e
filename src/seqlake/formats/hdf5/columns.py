"""What of an HDF5 file becomes which column: sources as people write them, and types by what is stored."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import InvalidMetadataError
from seqlake.media import format_of
from seqlake.media.image import FORMATS
from seqlake.spec.column_types import ColumnType, Embedding, Image, Trajectory
from seqlake.spec.schema import ID, Column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.formats._mapping import Wanted
    from seqlake.formats.hdf5.nodes import Hdf5File, StoredArray

_VARIABLE = re.compile(r"\{\{|\}\}|\{(\w+)\}")
_SMALLEST = 8  # pixels of a side, from which on bytes in three axes are pictures
_NEAR = 0.1  # of an episode's steps that a data set may have more or fewer and still be meant to have as many
_PADDED = 64  # bytes of an encoded picture, at least
_GREYS = {"uint8": 255, "uint16": 65535}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5Source:
    """Where a column comes from, in every episode; `{name}` in a path stands for what the episode calls it.

    Attributes:
        path: Of a data set or group, or of a file beside.
        attribute: One of that group or data set, in place of its values.
        key: A path of keys into an attribute that is JSON, as in `env_kwargs.control_freq`.
        file: It is a file beside.
    """

    path: str
    attribute: str = ""
    key: str = ""
    file: bool = False

    @staticmethod
    def parse(text: str, /) -> Hdf5Source:
        """A source as people write it: `/action`, `data/{episode}@env_args#env_name`, `file:{stem}.mp4`."""
        if text.startswith("file:"):
            return Hdf5Source(path=text.removeprefix("file:"), file=True)
        path, _, attribute = text.partition("@")
        attribute, _, key = attribute.partition("#")
        return Hdf5Source(path=path, attribute=attribute, key=key)

    @property
    def variables(self) -> list[str]:
        """The names in its path that each episode fills in."""
        return [name for name in _VARIABLE.findall(self.path) if name]

    def filled(self, values: Mapping[str, str], /) -> str | None:
        """The path in one episode; None where the episode does not say one of the names."""
        if any(name not in values for name in self.variables):
            return None
        return _VARIABLE.sub(lambda match: values[match[1]] if match[1] else match[0][0], self.path)

    def __str__(self) -> str:
        text = f"file:{self.path}" if self.file else self.path
        text += f"@{self.attribute}" if self.attribute else ""
        return text + (f"#{self.key}" if self.key else "")


def literal(path: str, /) -> str:
    """A path whose braces mean themselves.

    Example:
        >>> literal("images/{top}")
        'images/{{top}}'
    """
    return path.replace("{", "{{").replace("}", "}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5Column:
    """One column.

    Attributes:
        source: Where it comes from.
        role: `signal`, `pixels` (raw pictures), `encoded` (files of pictures), `blobs` and `texts` have one entry a
            step; `vector`, `list` (texts) and `value` have no steps; `file` names one.
        column: As the schema has it.
        dtype: Of one number of a signal, of pixels or of a vector; empty for others.
        shape: Of one step.
    """

    source: Hdf5Source
    role: str
    column: Column
    dtype: str = ""
    shape: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """What it is called."""
        return self.column.name

    @property
    def stepped(self) -> bool:
        """Whether it has one entry a time step."""
        return self.role in {"signal", "pixels", "encoded", "blobs", "texts"}

    @property
    def step_bytes(self) -> int:
        """Of one step, about."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize if self.dtype else 256

    @property
    def how(self) -> str:
        """How it is read, where that is not plain."""
        return {
            "pixels": "raw pictures, each handed out as a PPM or PGM",
            "encoded": "encoded pictures, as they are",
            "file": "a reference to a file beside",
        }.get(self.role, "")


class NoColumnError(ValueError):
    """A data set that becomes no column; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5Typing:
    """What is known beside a data set itself.

    Attributes:
        steps: Of the episode that is looked at; None where nothing has steps.
        fps: Steps per second; None where nobody says it.
        declared: By a mapping; None where the type is up to us.
    """

    steps: int | None = None
    fps: float | None = None
    declared: ColumnType | None = None

    def of_array(self, name: str, source: Hdf5Source, array: StoredArray, file: Hdf5File, /) -> Hdf5Column:
        """The column that a data set becomes.

        Args:
            name: What it is called.
            source: Where it is in every episode.
            array: It, in one of them.
            file: That episode's.

        Raises:
            NoColumnError: None: says why.
        """
        if array.kind == "other":
            raise NoColumnError(f"{array.what}: not read")
        if not array.shape:
            return self._value(name, source, array)
        if not self._has_steps(array):
            return self._vector(name, source, array)
        if array.kind == "text" and not self._is_picture(array, file):
            return _column(name, source, "texts", pa.list_(pa.string()), self.declared)
        if array.kind != "number":
            return self._encoded(name, source, array, file)
        wanted = self.declared.type if self.declared is not None else ""
        if wanted not in {"", "trajectory"} or self.declared is None:
            if self._is_padded(array, file):
                return self._encoded(name, source, array, file)
            if (size := pixels(array)) is not None:
                return self._pixels(name, source, array, size)
            if wanted in {"image", "video"}:
                raise NoColumnError(f"{_shape(array)} is no pictures: expected uint8 or uint16 [T, H, W, 1 or 3]")
        return self._signal(name, source, array)

    def _has_steps(self, array: StoredArray) -> bool:
        count = array.shape[0]
        if self.declared is not None:
            return self.declared.type != "embedding"
        if self.steps is None or count == self.steps:
            return True
        if len(array.shape) > 1 and array.kind == "number":
            if abs(count - self.steps) <= max(2, self.steps * _NEAR):
                return True  # it is meant to have as many: `check` says that it has not
            raise NoColumnError(
                f"{_shape(array)} has {count} entries where the episode has {self.steps} steps; if they are steps of "
                "another rate, declare it: map={...: {'source': ..., 'type': 'trajectory', 'fps': ...}}"
            )
        return False

    def _value(self, name: str, source: Hdf5Source, array: StoredArray) -> Hdf5Column:
        if array.kind == "bytes":
            return _column(name, source, "value", pa.binary(), self.declared)
        kind = pa.string() if array.kind == "text" else pa.from_numpy_dtype(array.dtype)
        return _column(name, source, "value", kind, self.declared)

    def _vector(self, name: str, source: Hdf5Source, array: StoredArray) -> Hdf5Column:
        if array.kind != "number":
            return _column(name, source, "list", pa.list_(pa.string()), self.declared)
        assert array.dtype is not None
        number = pa.from_numpy_dtype(array.dtype)
        kind = self.declared or Embedding(dtype=number)
        return Hdf5Column(
            source=source, role="vector", column=Column(name, pa.list_(number), kind), dtype=array.dtype.name
        )

    def _signal(self, name: str, source: Hdf5Source, array: StoredArray) -> Hdf5Column:
        assert array.dtype is not None
        if 0 in array.step:
            raise NoColumnError(f"{_shape(array)} has no numbers")
        number, shape = pa.from_numpy_dtype(array.dtype), array.step
        fields: dict[str, Any] = {"fps": self.fps}
        if shape:
            fields |= {"dim": prod(shape), "shape": list(shape) if len(shape) > 1 else None}
        if self.declared is not None:
            fields |= {key: value for key, value in self.declared.fields.items() if key != "type"}
            if prod(shape) != fields.get("dim", 1):
                text = f"has {prod(shape)} numbers a step, {fields.get('dim')} are declared"
                raise NoColumnError(f"{_shape(array)} {text}")
        kind = pa.list_(pa.list_(number, prod(shape))) if shape else pa.list_(number)
        fields.pop("dtype", None)
        column = Column(name, kind, Trajectory(dtype=number, **fields))
        return Hdf5Column(source=source, role="signal", column=column, dtype=array.dtype.name, shape=shape)

    def _pixels(self, name: str, source: Hdf5Source, array: StoredArray, size: tuple[int, int, int]) -> Hdf5Column:
        assert array.dtype is not None
        fields: dict[str, Any] = {"resolution": [size[1], size[0]]}
        if size[2] == 1 and array.dtype == np.uint8:
            fields["channels"] = 1
        return Hdf5Column(
            source=source,
            role="pixels",
            column=Column(name, pa.list_(pa.binary()), self._picture_type(fields)),
            dtype=array.dtype.name,
            shape=array.step,
        )

    def _picture_type(self, fields: dict[str, Any]) -> ColumnType:
        if self.declared is None:
            return Image(frames="bytes", fps=self.fps, **fields)
        declared = {key: value for key, value in self.declared.to_json().items() if value is not None}
        return ColumnType.from_json({"fps": self.fps, **fields, **declared, "type": "image", "frames": "bytes"})

    def _is_picture(self, array: StoredArray, file: Hdf5File) -> bool:
        if not array.shape[0] or len(array.shape) > 1:
            return False
        return format_of(bytes(file.steps(array, 0, 1)[0][:64])) in FORMATS

    def _is_padded(self, array: StoredArray, file: Hdf5File) -> bool:
        """Whether each step is the bytes of a picture's file, filled up to the longest."""
        if array.dtype != np.uint8 or len(array.shape) != 2 or not array.shape[0] or array.step[0] < _PADDED:
            return False
        return format_of(file.steps(array, 0, 1)[0].tobytes()[:64]) in FORMATS

    def _encoded(self, name: str, source: Hdf5Source, array: StoredArray, file: Hdf5File) -> Hdf5Column:
        if len(array.shape) > 1 and array.kind != "number":
            raise NoColumnError(f"{_shape(array)}: runs of bytes in several axes are not read")
        head = file.steps(array, 0, 1)[0] if array.shape[0] else b""
        head = head.tobytes() if isinstance(head, np.ndarray) else bytes(head)
        kind = format_of(head[:64])
        if kind not in FORMATS and self.declared is None and head:
            return _column(name, source, "blobs", pa.list_(pa.binary()), None)
        column = Column(name, pa.list_(pa.binary()), self._picture_type({"format": kind}))
        return Hdf5Column(source=source, role="encoded", column=column)

    def of_attribute(self, name: str, source: Hdf5Source, value: Any, /) -> Hdf5Column:
        """The column that an attribute becomes.

        Args:
            name: What it is called.
            source: Where it is in every episode.
            value: What it is in one of them.

        Raises:
            NoColumnError: None: says why.
        """
        value = plain(value)
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "iufb" or value.dtype.itemsize > 8 or value.ndim != 1:
                raise NoColumnError(f"an attribute of type {value.dtype} {list(value.shape)}: not read")
            number = pa.from_numpy_dtype(value.dtype)
            column = Column(name, pa.list_(number), self.declared or Embedding(dtype=number))
            return Hdf5Column(source=source, role="vector", column=column, dtype=value.dtype.name)
        if isinstance(value, list):
            return _column(name, source, "list", pa.list_(pa.string()), self.declared)
        kinds = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
        if type(value) not in kinds:
            raise NoColumnError(f"an attribute of {type(value).__name__}: not read")
        return _column(name, source, "value", kinds[type(value)], self.declared)


def plain(value: Any, /) -> Any:
    """An attribute as Python has it: texts as `str`, lists of them as lists, one number as a number; arrays stay."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":
        return [str(plain(one)) for one in value.ravel().tolist()]
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray) and value.ndim:
        return value.astype(value.dtype.newbyteorder("="))
    if isinstance(value, (np.generic, np.ndarray)):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [str(one) for one in value]
    return value


def pixels(array: StoredArray, /) -> tuple[int, int, int] | None:
    """Height, width and channels of the pictures that a data set holds raw; None where it holds none."""
    if array.dtype is None or array.dtype.name not in _GREYS or len(array.shape) not in {3, 4}:
        return None
    if len(array.shape) == 3:
        height, width = array.step
        return (height, width, 1) if min(height, width) >= _SMALLEST else None
    one, two, three = array.step
    channels = 3 if array.dtype == np.uint8 else 1
    if three in {1, channels} and one and two:
        return one, two, three
    return (two, three, one) if one in {1, channels} and two and three else None


def _shape(array: StoredArray) -> str:
    return f"{array.kind if array.dtype is None else array.dtype} {list(array.shape)}"


def _column(name: str, source: Hdf5Source, role: str, kind: pa.DataType, declared: ColumnType | None) -> Hdf5Column:
    return Hdf5Column(source=source, role=role, column=Column(name, kind, declared))


def of_file(wanted: Wanted, source: Hdf5Source, fps: float | None, /) -> Hdf5Column:
    """A column that names files beside, as in `file:{stem}.mp4`.

    Raises:
        InvalidMetadataError: Nothing says what kind of file it is.
    """
    kind = wanted.type
    if kind is None:
        if not source.path.lower().endswith((".mp4", ".mkv", ".webm", ".mov", ".avi")):
            raise InvalidMetadataError(
                f"Column {wanted.column!r}: expected the type of the file, as in {{'source': {str(source)!r}, 'type': "
                "'video'}."
            )
        kind = ColumnType.from_json({"type": "video", "fps": fps})
    return Hdf5Column(source=source, role="file", column=Column(wanted.column, pa.string(), kind))


def unique(name: str, path: str, taken: Mapping[str, Any], /) -> str:
    """A column's name that no other has: the short one, else the whole path with dots."""
    if name in taken or name == ID or not name:
        name = path.strip("/").replace("/", ".")
    while name in taken or name == ID or not name:
        name += "_"
    return name

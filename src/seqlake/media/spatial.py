"""Point clouds with all their fields, meshes as arrays of points, depth maps as the pictures they are.

Clouds (`_clouds`) are structured arrays; meshes are read by trimesh (extra `spatial`). Points stand in the file's own
order and coordinates; scenes (GLB) are joined with the places of their parts applied. A file never makes another one be
read: textures and materials beside it are left alone.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from seqlake import plugins
from seqlake.errors import CorruptFileError, DecodeError, MissingDependencyError
from seqlake.media._bytes import all_of, blob_of
from seqlake.media._clouds import READERS, pcd, ply, raw
from seqlake.media._containers import BEGIN
from seqlake.media._frames import room_for
from seqlake.media._limits import POINTS
from seqlake.media.image import ImageDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Decoder, Ints, Source
    from seqlake.spec.column_types import ColumnType

_MESHES = ("glb", "obj", "off", "ply", "stl", "xyz")
XYZ = ("x", "y", "z")
"""The coordinates of a point."""

T = TypeVar("T")

_PART = 1000  # points that a part of a scene, and a place in it, count as
_PICTURES = ("jpeg", "jpg", "png")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Geometry:
    """What a file of 3D data holds.

    Attributes:
        points: float64 [points, 3]: a cloud's points, a mesh's vertices.
        faces: int64 [faces, 3] numbers of points; [0, 3] for a cloud.
        colors: uint8 [points, 4] RGBA; None where points have none.
    """

    points: NDArray[np.float64]
    faces: NDArray[np.int64]
    colors: NDArray[np.uint8] | None


def types() -> tuple[str, ...]:
    """The column types that it opens."""
    return ("3d",)


def index(source: Source, /) -> Mapping[int, bytes]:  # noqa: ARG001 - the protocol's
    """Nothing: a file is read whole."""
    return {}


def open(source: Source, /, *, threads: int = 1, device: str = "cpu") -> Decoder:  # noqa: A001, ARG001 - the protocol's
    """Open 3D data as a decoder of one frame; its bytes are read with the first `read`.

    Args:
        source: The file; `source.column` may name its `format`, else its name's suffix does.
        threads: Not used.
        device: Not used.

    Raises:
        DecodeError: A format that is not read here.
    """
    if _format(source) in _PICTURES:
        return ImageDecoder(1, lambda _: source)
    if _format(source) in {*READERS, *_MESHES}:
        return PointsDecoder(source)
    raise _unknown(source)


def open_steps(count: int, cloud: Callable[[int], Source | None], /, *, rate: Fraction | None = None) -> CloudsDecoder:
    """Clouds, one for each step, as one decoder; for the arguments see `CloudsDecoder`."""
    return CloudsDecoder(count, cloud, rate=rate)


class PointsDecoder:
    """The points of one file as its only frame.

    Args:
        source: The file.
    """

    def __init__(self, source: Source, /) -> None:
        self._source = source
        self._points: NDArray[Any] | None = None

    def __len__(self) -> int:
        return 1

    @property
    def pts(self) -> Ints:
        """[1] zero: it has no time."""
        return np.zeros(1, np.int64)

    @property
    def time_base(self) -> Fraction:
        """One second, as nothing is timed."""
        return Fraction(1)

    def read(
        self, indices: Ints, /, *, size: tuple[int, int] | None = None, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """The points.

        Args:
            indices: [N] zeros.
            size: Nothing that points have.
            out: [N, points] structured, or [N, points, 3] float64, to write into.

        Returns:
            Of a cloud [N, points] structured, as `points` says; of a mesh float64 [N, points, 3].

        Raises:
            CorruptFileError: It is damaged, or not of its format.
            IndexError: There is only frame 0.
            MissingDependencyError: What reads the format is not installed.
        """
        wanted = np.asarray(indices, np.int64)
        if size is not None:
            raise ValueError("size is for pictures; points have none.")
        if wanted.any():
            raise IndexError(
                f"{blob_of(self._source).location} has frame 0 alone, found {int(wanted[wanted != 0][0])}."
            )
        if self._points is None:
            is_cloud = _format(self._source) in READERS
            self._points = points(self._source) if is_cloud else load(self._source).points
        out = room_for(out, (len(wanted), *self._points.shape), self._points.dtype)
        out[:] = self._points
        return out

    def close(self) -> None:
        """Let go of the points; the next read loads them again."""
        self._points = None


class CloudsDecoder:
    """Clouds by number, each a file of its own; for one thread at a time.

    Args:
        count: How many steps.
        cloud: Gives the source of one; None where a step has no cloud.
        rate: Clouds per second, for times; step numbers by default.
    """

    def __init__(self, count: int, cloud: Callable[[int], Source | None], /, *, rate: Fraction | None = None) -> None:
        self._count = count
        self._cloud = cloud
        self._rate = rate or Fraction(1)

    def __len__(self) -> int:
        return self._count

    @property
    def pts(self) -> Ints:
        """[steps] the number of each step."""
        return np.arange(self._count, dtype=np.int64)

    @property
    def time_base(self) -> Fraction:
        """Seconds from one step to the next."""
        return 1 / self._rate

    def read(
        self, indices: Ints, /, *, size: tuple[int, int] | None = None, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Read clouds, each as long as it is.

        Args:
            indices: [N] numbers in any order; repeats are read once.
            size: Nothing that points have.
            out: [N] of objects to write into.

        Returns:
            [N] of objects, each a cloud as `points` gives it.

        Raises:
            CorruptFileError: A cloud is damaged, or not of its format.
            DecodeError: A step without a cloud, or a format that is not read here.
            IndexError: There is no such step.
        """
        wanted = np.asarray(indices, np.int64).tolist()
        if size is not None:
            raise ValueError("size is for pictures; points have none.")
        out = room_for(out, (len(wanted),), np.dtype(object))
        known: dict[int, NDArray[Any]] = {}
        for place, step in enumerate(wanted):
            if not 0 <= step < self._count:
                raise IndexError(f"There are clouds 0 to {self._count - 1}, found {step}.")
            if step not in known:
                source = self._cloud(step)
                if source is None:
                    raise DecodeError(f"Step {step} has no cloud. Leave it out, or ask for others.")
                known[step] = points(source)
            out[place] = known[step]
        return out

    def close(self) -> None:
        """Nothing to release: no file is held."""


def points(source: Source, /) -> NDArray[Any]:
    """The points of one file with all that it says of each.

    Args:
        source: A PCD, LAS, LAZ or PLY file, or a `.bin` of KITTI's or nuScenes' kind; a mesh, whose vertices count.

    Returns:
        [points] structured: fields under the names and in the types that the file has. Of LAS `x`, `y` and `z` are
        float64, scaled as the file says; a mesh has those three alone.

    Raises:
        CorruptFileError: It is damaged, or not of its format.
        DecodeError: A format that is not read here, a `.bin` whose fields nothing says, or more points than
            `SEQLAKE_MAX_POINTS`.
        MissingDependencyError: The extra `spatial` is not installed, and this format needs it.

    Example:
        ```python
        from seqlake.media import spatial

        scan = spatial.points(ds["a"]["lidar"].source())
        scan.dtype.names                                    # ('x', 'y', 'z', 'intensity', 'ring')
        spatial.xyz(scan)                                   # float32 [points, 3]
        ```
    """
    kind = _format(source)
    if kind not in READERS:
        return _vertices(load(source).points, None)
    location, data = blob_of(source).location, memoryview(all_of(source))

    def hold(count: int) -> None:
        POINTS.hold(count, location, path=location)

    return _read(location, kind, lambda: READERS[kind](data, source.column, hold))


def colored_points(source: Source, /) -> NDArray[Any]:
    """The points of one file as `points` gives them; of a mesh, with the colours that its vertices have.

    Returns:
        [points] structured; a mesh with colours has uint8 `red`, `green` and `blue` behind `x`, `y` and `z`.

    Raises:
        CorruptFileError, DecodeError, MissingDependencyError: As `points`.
    """
    if _format(source) in READERS:
        return points(source)
    geometry = load(source)
    return _vertices(geometry.points, geometry.colors)


def _vertices(places: NDArray[np.float64], colors: NDArray[np.uint8] | None) -> NDArray[Any]:
    """[vertices] structured, with colours where there are any."""
    columns: dict[str, NDArray[Any]] = {axis: places[:, number] for number, axis in enumerate(XYZ)}
    if colors is not None:
        columns |= {name: colors[:, number] for number, name in enumerate(("red", "green", "blue"))}
    cloud = np.empty(len(places), [(name, values.dtype) for name, values in columns.items()])
    for name, values in columns.items():
        cloud[name] = values
    return cloud


def xyz(cloud: NDArray[Any], /) -> NDArray[Any]:
    """[points, 3] the coordinates of a cloud, in the type that they are stored in; what has no fields as it is.

    Raises:
        DecodeError: It has no fields `x`, `y` and `z`.
    """
    return cloud if cloud.dtype.names is None else stacked(cloud, XYZ)


def stacked(cloud: NDArray[Any], fields: Sequence[str], /) -> NDArray[Any]:
    """Some fields of a cloud side by side.

    Args:
        cloud: [points] structured.
        fields: Names of numbers; a field of several numbers is not taken.

    Returns:
        [points, fields] of the type that holds the values of all.

    Raises:
        DecodeError: The cloud has no such field.

    Example:
        >>> cloud = np.zeros(2, [("x", "f4"), ("y", "f4"), ("ring", "u2")])
        >>> stacked(cloud, ["x", "ring"]).shape
        (2, 2)
    """
    named: Mapping[str, Any] = cloud.dtype.fields or {}
    for name in fields:
        if name not in named or named[name][0].shape:
            known = ", ".join(one for one, (kind, *_) in named.items() if not kind.shape)
            raise DecodeError(f"Points have no field {name!r}; there are {known or 'none'}.")
    joined: NDArray[Any] = np.stack([cloud[name] for name in fields], axis=-1)
    return joined


def encode(cloud: NDArray[Any], column: ColumnType, /, *, where: str) -> bytes:
    """A cloud as the file that a writer makes of it: binary PCD, which has all types of numbers up to 64 bits.

    Args:
        cloud: [points] structured with `x`, `y` and `z`; or [points, 3]; or [points, C] where the column's type names
            C `fields`.
        column: The column's type.
        where: Sequence and column, for messages.

    Raises:
        DecodeError: Another shape, or a type that PCD has not; or a column that declares another format.
    """
    kind = str(column.get("format") or "pcd").lower().lstrip(".")
    if kind != "pcd":
        raise DecodeError(
            f"{where}: clouds given as arrays are written as PCD, and the column declares {kind!r}. Give a File that "
            "is encoded already, or leave the format out."
        )
    named = raw.declared(column)
    names = XYZ if named is None else named.names or ()
    if cloud.dtype.names is None:
        if cloud.ndim != 2 or cloud.shape[1] != len(names):
            raise DecodeError(
                f"{where}: expected points as a structured array, or [N, {len(names)}] ({', '.join(names)}), found "
                f"{list(cloud.shape)}. Name other numbers by `fields` of the column's type."
            )
        values, cloud = cloud, np.empty(len(cloud), [(name, cloud.dtype) for name in names])
        for number, name in enumerate(names):
            cloud[name] = values[:, number]
    if cloud.ndim != 1 or not {*XYZ} <= {*(cloud.dtype.names or ())}:
        raise DecodeError(f"{where}: expected [N] points with x, y and z, found {cloud.dtype} {list(cloud.shape)}.")
    try:
        return pcd.write(cloud)
    except ValueError as error:
        raise DecodeError(f"{where}: {error}. Convert it first.") from error


def load(source: Source, /) -> Geometry:
    """Points, faces and colours of one file.

    Args:
        source: A GLB, OBJ, OFF, PLY, STL or XYZ file; of a cloud of another format, which has no faces, the points.

    Raises:
        CorruptFileError: It is damaged, or not of its format.
        DecodeError: A format that is not read here, or more points and faces than `SEQLAKE_MAX_POINTS`.
        MissingDependencyError: trimesh is not installed.

    Example:
        ```python
        from seqlake.media import spatial

        scan = spatial.load(ds["a"]["scan"].source())
        scan.points.shape, scan.faces.shape                 # (5000, 3), (9996, 3)
        ```
    """
    kind = _format(source)
    if kind in READERS and kind not in _MESHES:
        places = xyz(points(source)).astype(np.float64)
        return Geometry(points=places, faces=np.empty((0, 3), np.int64), colors=None)
    if kind not in _MESHES:
        raise _unknown(source)
    trimesh = plugins.require("trimesh", extra="spatial")
    location = blob_of(source).location
    data = all_of(source)

    def parts() -> list[Geometry]:
        if kind == "glb":
            POINTS.hold(_declared(data), location, path=location)
        if kind == "ply":
            ply.check(memoryview(data), lambda count: POINTS.hold(count, location, path=location))
        scene = trimesh.load_scene(io.BytesIO(data), file_type=kind, process=False, maintain_order=True)
        POINTS.hold(_size_of(scene), location, path=location)
        return [_part(one) for one in scene.dump() if len(getattr(one, "vertices", ()))]

    joined = _read(location, kind, parts)
    if not joined:
        raise CorruptFileError(
            f"{location} holds no points: expected a point cloud or a mesh as {kind}.", path=location
        )
    return _joined(joined)


def _read(location: str, kind: str, read: Callable[[], T]) -> T:
    """What a reader gives; whatever Python error damage makes it raise, as ours."""
    try:
        return read()
    except DecodeError as error:
        if location in error.message:
            raise
        raise type(error)(f"{location}: {error.message}", path=location, hint=error.hint) from error
    except MissingDependencyError:
        raise
    except Exception as error:
        why = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise CorruptFileError(
            f"{location} cannot be read as {kind}: {why}. Copy it from where it came from, or declare its format on "
            "the column.",
            path=location,
        ) from error


def _format(source: Source) -> str:
    declared, blob = source.column.get("format"), blob_of(source)
    name = str(declared) if declared else blob.location.split("?")[0].rpartition(".")[2]
    kind = name.lower().lstrip(".")
    if declared or kind in {*READERS, *_MESHES, *_PICTURES} or (head := blob.view()) is None:
        return kind
    return next((known for begins, known in BEGIN if bytes(head[: len(begins)]) == begins), kind)  # bytes have no name


def _unknown(source: Source) -> DecodeError:
    known = ", ".join((*sorted({*READERS, *_MESHES}), *_PICTURES))
    return DecodeError(
        f"{blob_of(source).location}: expected 3D data as {known}, found {_format(source)!r}. Read the file's bytes "
        "instead, or declare its format on the column."
    )


def _declared(data: bytes | memoryview) -> int:
    """Points and faces that a GLB makes of its buffers: several parts may share one, and each part costs time."""
    length = int.from_bytes(data[12:16], "little")
    scene = json.loads(bytes(data[20 : 20 + length]))
    counts = [int(one.get("count", 0)) for one in scene.get("accessors", ())]
    parts = [part for mesh in scene.get("meshes", ()) for part in mesh.get("primitives", ())]
    total = _PART * (len(parts) + len(scene.get("nodes", ())))
    for part in parts:
        points = sum(counts[at] for at in part.get("attributes", {}).values())  # of each attribute, four as a rule
        indices = counts[part["indices"]] if part.get("indices") is not None else 0
        total += points // 4 + indices // 3
    return total


def _size_of(scene: Any) -> int:
    """Points and faces of all places where a scene shows its parts: a few bytes may show one a million times."""
    sizes = {
        name: len(getattr(one, "vertices", ())) + len(getattr(one, "faces", ())) for name, one in scene.geometry.items()
    }
    return sum(len(places) * sizes[name] for name, places in scene.graph.geometry_nodes.items())


def _part(one: Any) -> Geometry:
    """One mesh or cloud of trimesh's as plain arrays."""
    points = np.array(one.vertices, np.float64)
    colors = getattr(one, "colors", None)
    if hasattr(one, "visual"):
        colors = one.visual.vertex_colors if one.visual.kind == "vertex" else None
    return Geometry(
        points=points,
        faces=np.array(getattr(one, "faces", ()), np.int64).reshape(-1, 3),
        colors=None if colors is None or np.shape(colors) != (len(points), 4) else np.array(colors, np.uint8),
    )


def _joined(parts: list[Geometry]) -> Geometry:
    first = np.cumsum([0, *(len(one.points) for one in parts)])
    colors = [one.colors for one in parts if one.colors is not None]
    return Geometry(
        points=np.concatenate([one.points for one in parts]),
        faces=np.concatenate([one.faces + start for one, start in zip(parts, first.tolist(), strict=False)]),
        colors=np.concatenate(colors) if len(colors) == len(parts) else None,
    )

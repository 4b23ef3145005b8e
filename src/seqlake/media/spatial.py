"""Point clouds and meshes as arrays of points; depth maps as the pictures they are. Read by trimesh (extra `spatial`).

Points stand in the file's own order and coordinates; scenes (GLB) are joined with the places of their parts applied.
A file never makes another one be read: textures and materials beside it are left alone.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake import plugins
from seqlake.errors import CorruptFileError, DecodeError
from seqlake.media._bytes import all_of, blob_of
from seqlake.media._frames import room_for
from seqlake.media._limits import POINTS
from seqlake.media.image import ImageDecoder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from seqlake.protocols import Decoder, Ints, Source

_FORMATS = ("glb", "obj", "off", "ply", "stl", "xyz")
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
    if _format(source) in _FORMATS:
        return PointsDecoder(source)
    raise _unknown(source)


class PointsDecoder:
    """The points of one file as its only frame.

    Args:
        source: The file.
    """

    def __init__(self, source: Source, /) -> None:
        self._source = source
        self._points: NDArray[np.float64] | None = None

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
            out: [N, points, 3] float64 to write into.

        Returns:
            float64 [N, points, 3].

        Raises:
            CorruptFileError: It is damaged, or not of its format.
            IndexError: There is only frame 0.
            MissingDependencyError: trimesh is not installed.
        """
        wanted = np.asarray(indices, np.int64)
        if size is not None:
            raise ValueError("size is for pictures; points have none.")
        if wanted.any():
            raise IndexError(
                f"{blob_of(self._source).location} has frame 0 alone, found {int(wanted[wanted != 0][0])}."
            )
        if self._points is None:
            self._points = load(self._source).points
        out = room_for(out, (len(wanted), *self._points.shape), np.float64)
        out[:] = self._points
        return out

    def close(self) -> None:
        """Let go of the points; the next read loads them again."""
        self._points = None


def load(source: Source, /) -> Geometry:
    """Points, faces and colours of one file.

    Args:
        source: A GLB, OBJ, OFF, PLY, STL or XYZ file.

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
    trimesh = plugins.require("trimesh", extra="spatial")
    kind = _format(source)
    if kind not in _FORMATS:
        raise _unknown(source)
    location = blob_of(source).location
    data = all_of(source)
    try:
        if kind == "glb":
            POINTS.hold(_declared(data), location, path=location)
        scene = trimesh.load_scene(io.BytesIO(data), file_type=kind, process=False, maintain_order=True)
        POINTS.hold(_size_of(scene), location, path=location)
        parts = [_part(one) for one in scene.dump() if len(getattr(one, "vertices", ()))]
    except DecodeError:
        raise
    except Exception as error:  # its readers raise whatever Python does
        raise CorruptFileError(
            f"{location} cannot be read as {kind}: {type(error).__name__}: {error}. Copy it from where it came from, "
            "or declare its format on the column.",
            path=location,
        ) from error
    if not parts:
        raise CorruptFileError(
            f"{location} holds no points: expected a point cloud or a mesh as {kind}.", path=location
        )
    return _joined(parts)


def _format(source: Source) -> str:
    declared = source.column.get("format")
    name = str(declared) if declared else blob_of(source).location.split("?")[0].rpartition(".")[2]
    return name.lower().lstrip(".")


def _unknown(source: Source) -> DecodeError:
    known = ", ".join((*_FORMATS, *_PICTURES))
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

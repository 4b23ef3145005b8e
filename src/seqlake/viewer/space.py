"""What the viewer draws in three dimensions: clouds of points, and paths of poses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from seqlake.dataset.drawing.clouds import FAR, cloud_at, drawn, has_points, origin_of, steps_of
from seqlake.dataset.drawing.strips import READ_ERRORS
from seqlake.dataset.reading.views import MediaView
from seqlake.errors import MissingFileError, SchemaMismatchError
from seqlake.media import spatial
from seqlake.viewer.poses import PoseReading, path_of, reading_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.dataset.reading.sequence import SequenceView
    from seqlake.viewer.asking import Parameters
    from seqlake.viewer.tables import Shelf


_MESHES = frozenset(["glb", "obj", "off", "ply", "stl"])


def points(shelf: Shelf, asked: Parameters, /) -> tuple[NDArray[Any], dict[str, str]]:
    """One cloud, thinned and coloured: [n, 6] places and colours, or [n, 4] places and a value."""
    shows, row = shelf.row(asked)
    column = shows.schema[asked.needed("col")]
    if not has_points(column):
        raise SchemaMismatchError(f"{column.name!r} holds no clouds of points.")
    step, most = asked.whole("k", 0, low=0, high=1 << 40), asked.whole("max", 20_000, low=1, high=200_000)
    cell = shows[shows.index_of(row)][column.name]
    cloud = drawn(cloud_at(cell, column, step), most=most, by=asked.text("color"))
    shades = cloud.colors if cloud.values is None else cloud.values[:, None]
    assert shades is not None
    head = {
        "X-Seqlake-Of": str(cloud.total),
        "X-Seqlake-Lost": str(cloud.lost),
        "X-Seqlake-Origin": ",".join(map(str, cloud.origin)),
        "X-Seqlake-Color": quote(cloud.by),
        "X-Seqlake-Colors": ",".join(quote(one, safe="") for one in cloud.choices),
        "X-Seqlake-Range": f"{cloud.span[0]:g},{cloud.span[1]:g}",
    }
    return np.concatenate([cloud.points, shades], axis=1).astype("<f4"), head


def faces(shelf: Shelf, asked: Parameters, /) -> tuple[NDArray[Any], dict[str, str]]:
    """The faces of a mesh, the largest first: [n, 12] three corners and a colour; none of a cloud."""
    shows, row = shelf.row(asked)
    column, most = shows.schema[asked.needed("col")], asked.whole("max", 20_000, low=1, high=100_000)
    cell = shows[shows.index_of(row)][column.name]
    if not is_mesh(cell):
        raise SchemaMismatchError(f"{column.name!r} holds no mesh here.")
    mesh = spatial.load(cell.source())
    points = np.where(np.abs(mesh.points) < FAR, mesh.points, np.nan)
    named = mesh.faces[((mesh.faces >= 0) & (mesh.faces < len(points))).all(axis=1)]
    corners = points[named]
    shades = np.full((len(mesh.points), 3), 0.62) if mesh.colors is None else mesh.colors[:, :3] / 255
    colours = shades[named].mean(axis=1)
    areas = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
    order = np.argsort(-areas, kind="stable")  # those without a place are last
    order = order[np.isfinite(areas[order])][:most]
    origin = origin_of(corners[order].reshape(-1, 3))
    placed = (corners[order] - origin).reshape(len(order), 9)
    head = {"X-Seqlake-Of": str(len(mesh.faces)), "X-Seqlake-Origin": ",".join(map(str, origin.tolist()))}
    return np.concatenate([placed, colours[order]], axis=1).astype("<f4"), head


def is_mesh(value: Any, /) -> bool:
    """Whether a file may have faces, by its name and its column's type; nothing is read.

    Example:
        >>> is_mesh(None)
        False
    """
    if not isinstance(value, MediaView):
        return False
    declared = value.column.get("format") if value.column is not None else None
    return str(declared or value.reference.rpartition(".")[2]).lower() in _MESHES


def clouds_in(value: Any, column: Any, /) -> int | None:
    """How many clouds a cell has; None where it has none that could be counted."""
    try:
        return None if value is None else steps_of(value, column)
    except READ_ERRORS:
        return None


def reading(view: SequenceView, name: str, cell: NDArray[Any], /) -> PoseReading | None:
    """How a signal of a sequence is a path; None where it is none."""

    def sibling(other: str) -> Any:
        try:
            return view[other]
        except READ_ERRORS:
            return None

    return reading_of(view.schema[name], cell, view.schema, sibling)


def poses(shelf: Shelf, asked: Parameters, /) -> tuple[NDArray[Any], dict[str, str]]:
    """The path that a signal is: every n-th step, so that there are at most `max`."""
    shows, row = shelf.row(asked)
    name, most = asked.needed("col"), asked.whole("max", 20_000, low=2, high=200_000)
    column, view = shows.schema[name], shows[shows.index_of(row)]
    cell: Any = view[name] if column.category == "temporal" else ()
    if cell is None:
        raise MissingFileError(f"The cell of {name!r} is null.")
    read_as = reading(view, name, cell) if isinstance(cell, np.ndarray) else None
    if read_as is None:
        raise SchemaMismatchError(
            f"{name!r} is not known to be positions or poses.",
            hint="Name its dimensions: names=['x', 'y', 'z', 'qx', 'qy', 'qz', 'qw'] of the column's type.",
        )
    each = max(1, -(-len(cell) // most))
    turn = None if read_as.partner is None else np.asarray(view[read_as.partner])[::each]
    path = path_of(np.asarray(cell)[::each], read_as, turn)
    path[~(np.abs(path[:, :3]) < FAR).all(axis=1)] = np.nan
    origin = origin_of(path[np.isfinite(path[:, 0]), :3])
    path[:, :3] -= origin
    head = {
        "X-Seqlake-Length": str(len(cell)),
        "X-Seqlake-Each": str(each),
        "X-Seqlake-Origin": ",".join(map(str, origin.tolist())),
    }
    with np.errstate(over="ignore"):
        return path.astype("<f4"), head

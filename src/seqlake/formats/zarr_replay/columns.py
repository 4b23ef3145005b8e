"""Which array of a replay buffer becomes which column, and why others do not."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from seqlake.errors import ColumnNotFoundError, InvalidMetadataError
from seqlake.formats._mapping import Wanted
from seqlake.formats.zarr_replay.layout import DATA, META, NAMES
from seqlake.protocols import Mapped
from seqlake.spec.column_types import ColumnType, Embedding, Image, Trajectory
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Column, Schema

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np

    from seqlake.formats._zarr.grid import GridMetadata
    from seqlake.formats.zarr_replay.layout import ReplayLayout

Role = Literal["signal", "picture", "episode"]
_COLOURS = {1, 3}
_PICTURES = ("image", "video")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayColumn:
    """One column and the array that it is read from.

    Attributes:
        column: Its name and types.
        source: The array, as in `data/action`.
        role: `signal`: a step a row of the array; `picture`: the same, encoded; `episode`: one row for each episode.
        shape: Of one step as it is stored.
        whole: Floats of the array are whole numbers from 0 to 255, as pictures of 8 bits.
    """

    column: Column
    source: str
    role: Role
    shape: tuple[int, ...]
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayColumns:
    """All columns but the id.

    Attributes:
        chosen: Name -> column.
        mapping: What became of every array.
        pictures: How pictures are encoded: `ppm` or `png`.
    """

    chosen: Mapping[str, ReplayColumn]
    mapping: Sequence[Mapped] = field(default_factory=tuple)
    pictures: str = "ppm"

    def schema(self) -> Schema:
        """The schema: what is known of episodes first."""
        order = sorted(self.chosen.values(), key=lambda one: one.role != "episode")
        source = {"format": "zarr_replay", "columns": {one.column.name: one.source for one in order}}
        return Schema({one.column.name: one.column for one in order}, metadata=Metadata(extra={"source": source}))


def columns_of(
    layout: ReplayLayout,
    /,
    *,
    declared: Mapping[str, Wanted] | None,
    without: Collection[str],
    looks_whole: Mapping[str, bool],
    pictures: str,
) -> ReplayColumns:
    """Choose and type columns.

    Args:
        layout: What is there.
        declared: A mapping that the user gave; None: all that can be read.
        without: Arrays to leave out, by name with or without `data/`.
        looks_whole: Array of floats shaped as pictures -> whether its first row holds whole numbers of 0 to 255.
        pictures: How pictures are encoded.

    Raises:
        ColumnNotFoundError: `without` names an array that is not there.
        InvalidMetadataError: The mapping names one that is not there, or cannot be what it should be.
    """
    left = {_full(name, layout, what="leave out") for name in without}
    chosen: dict[str, ReplayColumn] = {}
    said: dict[str, Mapped] = {name: Mapped(source=name, column=None, how=why) for name, why in layout.unread.items()}
    wanted = _by_default(layout) if declared is None else declared
    if ID in wanted:
        raise InvalidMetadataError(f"Ids are those of {NAMES}, or numbers: no array can be mapped to {ID!r}.")
    for name, one in wanted.items():
        source = _full(one.source, layout, what=f"be the column {name!r}")
        if source in left:
            continue
        column = _column(name, source, layout, one.type, whole=looks_whole.get(source, False), pictures=pictures)
        if isinstance(column, str):
            if declared is not None:
                raise InvalidMetadataError(f"{layout.place.location}/{source} cannot be the column {name!r}: {column}.")
            said[source] = Mapped(source=source, column=None, how=column)
            continue
        chosen[name] = column
        said[source] = Mapped(source=source, column=name, how=_how(column))
    for source in layout.arrays:
        why = "left out as asked" if source in left else "not in the mapping" if declared is not None else _elsewhere
        said.setdefault(source, Mapped(source=source, column=None, how=why))
    if NAMES in layout.arrays and said[NAMES].column is None and NAMES not in left:
        said[NAMES] = Mapped(source=NAMES, column=ID, how="where they are unique and not empty")
    said.update(
        {source: Mapped(source=source, column=None, how="where episodes end") for source in _ends(layout, said)}
    )
    return ReplayColumns(chosen=chosen, mapping=[said[name] for name in sorted(said)], pictures=pictures)


_elsewhere = "neither in data nor in meta: name it in map="


def _ends(layout: ReplayLayout, said: Mapping[str, Mapped]) -> list[str]:
    return [layout.ends_name] if said.get(layout.ends_name, Mapped(source="", column=None)).column is None else []


def _full(name: str, layout: ReplayLayout, *, what: str) -> str:
    for one in (name, DATA + name, META + name):
        if one in layout.arrays:
            return one
    known = ", ".join(layout.arrays)
    if name in layout.unread:
        raise InvalidMetadataError(f"{layout.place.location}/{name} cannot {what}: {layout.unread[name]}")
    raise ColumnNotFoundError(f"{layout.place.location} has no array {name!r} to {what}; there are {known}.")


def _by_default(layout: ReplayLayout) -> dict[str, Wanted]:
    """Arrays of `data` and `meta` by their last name; those of `meta` give way."""
    names: dict[str, Wanted] = {}
    for group in (DATA, META):
        for source in layout.arrays:
            if not source.startswith(group) or source in {layout.ends_name, NAMES}:
                continue
            name = source.removeprefix(group)
            while name in names or name == ID:
                name += "_"
            names[name] = Wanted(column=name, source=source)
    return names


def _column(
    name: str, source: str, layout: ReplayLayout, given: ColumnType | None, *, whole: bool, pictures: str
) -> ReplayColumn | str:
    """The column, or why the array cannot be one."""
    known = layout.arrays[source]
    steps = int(layout.ends[-1]) if len(layout.ends) else 0
    of_steps = not source.startswith(META) and known.shape[0] >= steps
    if not of_steps:
        if known.shape[0] != len(layout.ends):
            return (
                f"it has {known.shape[0]} rows, the episodes have {steps} steps"
                if not source.startswith(META)
                else f"it has {known.shape[0]} rows, there are {len(layout.ends)} episodes"
            )
        return _of_episodes(name, source, known, given)
    if known.dtype.kind not in "biuf":
        return f"{known.dtype} is no number"
    step = known.shape[1:]
    if given is not None and given.type in _PICTURES and given.type != "image":
        return "a buffer holds pictures, so its type is image; sl.convert(images='video') makes videos of them"
    if _is_picture(known, whole=whole) if given is None else given.type == "image":
        refusal = _no_picture(known, whole=whole)
        return refusal or _picture(name, source, known, given, whole=known.dtype.kind == "f", pictures=pictures)
    if prod(step) < 1:
        return f"its steps of shape {list(step)} hold no numbers"
    return ReplayColumn(column=_signal(name, source, known, given), source=source, role="signal", shape=step)


def _is_picture(known: GridMetadata, *, whole: bool) -> bool:
    return len(known.shape) == 4 and known.shape[3] == 3 and not _no_picture(known, whole=whole)


def _no_picture(known: GridMetadata, *, whole: bool) -> str:
    step = known.shape[1:]
    if not (len(step) == 2 or (len(step) == 3 and step[2] in _COLOURS)) or min(step) < 1:
        return f"its steps of shape {list(step)} are no pictures [height, width, 1 or 3]"
    if known.dtype.kind == "f" and whole:
        return ""
    if known.dtype.kind != "u" or known.dtype.itemsize > 2:
        return f"pictures are uint8 or uint16, this is {known.dtype}"
    return ""


def _picture(
    name: str, source: str, known: GridMetadata, given: ColumnType | None, *, whole: bool, pictures: str
) -> ReplayColumn:
    step = known.shape[1:]
    fields: dict[str, Any] = {} if given is None else {k: v for k, v in given.fields.items() if k != "frames"}
    fields = {"resolution": [step[1], step[0]], "source": source, **fields, "format": pictures}
    if len(step) == 2 or step[2] == 1:
        fields.setdefault("channels", 1)
    column = Column(name, pa.list_(pa.binary()), Image(frames="bytes", **fields))
    return ReplayColumn(column=column, source=source, role="picture", shape=step, whole=whole)


def _signal(name: str, source: str, known: GridMetadata, given: ColumnType | None) -> Column:
    number = number_type(known.dtype)
    step = known.shape[1:]
    fields: dict[str, Any] = {"source": source, **({} if given is None else given.fields)}
    if not step:
        return Column(name, pa.list_(number), Trajectory(dtype=number, **fields))
    shape = list(step) if len(step) > 1 else None
    fields = {"dim": prod(step), "shape": shape, **fields}
    signal = Trajectory(dtype=number, **fields)
    return Column(name, pa.list_(pa.list_(number)), signal)


def _of_episodes(name: str, source: str, known: GridMetadata, given: ColumnType | None) -> ReplayColumn | str:
    if known.dtype.kind in "SU":
        if len(known.shape) > 1:
            return f"texts of shape {list(known.shape[1:])} for each episode"
        return ReplayColumn(column=Column(name, pa.string(), given), source=source, role="episode", shape=())
    step = known.shape[1:]
    if not step:
        kind = pa.bool_() if known.dtype.kind == "b" else number_type(known.dtype)
        return ReplayColumn(column=Column(name, kind, given), source=source, role="episode", shape=())
    if prod(step) < 1:
        return f"its rows of shape {list(step)} hold no numbers"
    number, shape = number_type(known.dtype), list(step) if len(step) > 1 else None
    vector = Embedding(dim=prod(step), dtype=number, shape=shape) if given is None else given
    return ReplayColumn(column=Column(name, pa.list_(number), vector), source=source, role="episode", shape=step)


def number_type(dtype: np.dtype[Any], /) -> pa.DataType:
    """The Arrow type of the numbers of an array; flags are 0 and 1, as windows and statistics take them."""
    return pa.uint8() if dtype.kind == "b" else pa.from_numpy_dtype(dtype.newbyteorder("="))


def _how(column: ReplayColumn) -> str:
    if column.role == "picture":
        return "pictures, encoded one a step"
    if column.role == "episode":
        return "one an episode"
    return f"steps of shape {list(column.shape)} in a row" if len(column.shape) > 1 else ""

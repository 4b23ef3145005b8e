"""What becomes of columns in a LeRobot folder: a feature, something said of whole episodes, or nothing, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from seqlake.errors import ColumnNotFoundError, SchemaMismatchError
from seqlake.formats.lerobot.columns import EPISODE, LENGTH, OURS, ROBOT, SPLIT, TASK, TASKS
from seqlake.formats.lerobot.layout import BOOKKEEPING, SCALAR
from seqlake.formats.lerobot.metadata import DEEPEST, NUMBERS
from seqlake.spec.alignment import clock_of, exact, own_rate
from seqlake.spec.schema import ID, is_binary, is_list, is_number, is_text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from fractions import Fraction

    from seqlake.spec.schema import Column, Schema

Role = Literal["numbers", "text", "language", "image", "video", "episode", "counted"]

_EPISODE_WIDE = {ID, EPISODE, SPLIT, ROBOT, LENGTH, TASK, TASKS}
_FOLDERS = ("stats/", "meta/", "data/", "videos/")
_NO_NAMES = frozenset({"", ".", ".."})  # of folders, as a camera's
_TAKEN = frozenset({"dataset_from_index", "dataset_to_index"})
_SAID = frozenset({"type", "dim", "dtype", "shape", "names", "fps", "frames"})  # fields that features have words for


class _NoPlaceError(Exception):
    """A column that LeRobot has no place for, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFeature:
    """One feature to be.

    Attributes:
        column: The column that it is made of.
        name: What it is called.
        role: What it is.
        dtype: As `info.json` has it.
        shape: Of one step; empty of pictures, which say it themselves.
        names: Of the numbers of a step, where the column's type names them.
        declared: What a LeRobot folder that the rows came from said of it; empty where there is none.
        info: What is kept of the column's type.
    """

    column: str
    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...] = ()
    names: Sequence[str] | None = None
    declared: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """What becomes of the columns; picklable.

    Attributes:
        rate: Steps per second.
        features: In the order of the columns; those that every folder has are not among them.
        order: Names of all features: as they were, and new ones in the order of the columns.
        episode: Columns with one value an episode that go into the list of episodes.
        source: `info.json` of the LeRobot folder that the rows came from; empty where they did not.
        tasks: What its numbers of tasks meant.
    """

    rate: Fraction
    features: Sequence[ExportedFeature]
    order: Sequence[str]
    episode: Sequence[str]
    source: Mapping[str, Any]
    tasks: Mapping[int, str]


def came_from(schema: Schema, /) -> tuple[Mapping[str, Any], dict[int, str]]:
    """`info.json` and the tasks of the LeRobot folder that rows came from; empty where they did not."""
    source = schema.metadata.extra.get("source")
    if not isinstance(source, Mapping) or source.get("format") != "lerobot":
        return {}, {}
    info, tasks = source.get("info"), source.get("tasks")
    named = tasks.items() if isinstance(tasks, Mapping) else ()
    known = {int(number): text for number, text in named if str(number).isdigit() and isinstance(text, str)}
    return (info if isinstance(info, Mapping) else {}), known


def dropped(schema: Schema, /) -> dict[str, str]:
    """Columns that a LeRobot folder has no place for, with the reason."""
    info, _ = came_from(schema)
    reasons = {}
    for column in schema.values():
        try:
            _role(column, info)
        except _NoPlaceError as reason:
            reasons[column.name] = str(reason)
    return reasons


def planned(schema: Schema, /, *, fps: float | Fraction | None, without: Collection[str]) -> ExportPlan:
    """What becomes of the columns.

    Args:
        schema: Of the rows, without those that `dropped` names.
        fps: Steps per second, where nothing else says it.
        without: Columns to leave out.

    Raises:
        ColumnNotFoundError: One of `without` is no column.
        SchemaMismatchError: No column has steps; nothing says their rate, or one has another.
    """
    for name in without:
        if name not in schema:
            raise ColumnNotFoundError(f"without: no column {name!r}; there are {', '.join(schema.names)}.")
    info, tasks = came_from(schema)
    features, episode = list[ExportedFeature](), list[str]()
    for column in schema.values():
        if column.name in without:
            continue
        name, declared = _declared(info, column.name)
        role, dtype, shape = _role(column, info)
        if role == "episode" and column.name not in _EPISODE_WIDE:
            episode.append(column.name)
        if role in {"episode", "counted"}:
            continue
        names = None if column.type is None or role != "numbers" else column.type.get("names")
        features.append(
            ExportedFeature(
                column=column.name,
                name=name,
                role=role,
                dtype=dtype,
                shape=shape,
                names=names,
                declared=declared,
                info=_kept(column, role),
            )
        )
    if not features:
        raise SchemaMismatchError("A LeRobot folder has at least one feature of steps; these columns have none.")
    columns = [schema[feature.column] for feature in features]
    named = dict.fromkeys([feature.name for feature in features])
    before = info.get("features")
    known = [name for name in before if name in {*named, *BOOKKEEPING}] if isinstance(before, Mapping) else []
    order = list(dict.fromkeys([*known, *named, *BOOKKEEPING]))
    rate = _rate(schema, columns, info, fps)
    return ExportPlan(rate=rate, features=features, order=order, episode=episode, source=info, tasks=tasks)


def _declared(info: Mapping[str, Any], column: str) -> tuple[str, Mapping[str, Any]]:
    """The feature that a column was, by name, and what was said of it."""
    features = info.get("features")
    known = features if isinstance(features, Mapping) else {}
    name = column[:-1] if column.endswith("_") and column[:-1] in OURS and column[:-1] in known else column
    said = known.get(name)
    return name, said if isinstance(said, Mapping) else {}


def _role(column: Column, info: Mapping[str, Any]) -> tuple[Role, str, tuple[int, ...]]:
    """What a column becomes, its dtype and the shape of a step.

    Args:
        column: One.
        info: Of the folder that the rows came from; empty where they did not.

    Raises:
        _NoPlaceError: It has no place.
    """
    if column.name in BOOKKEEPING:
        return _counted(column, known=bool(info))
    if column.name in _EPISODE_WIDE:
        return _of_episode(column)
    role, dtype, shape = _by_kind(column, _declared(info, column.name)[1])
    if role == "episode":
        if column.name.startswith(_FOLDERS) or column.name in _TAKEN:
            raise _NoPlaceError("LeRobot has columns of that name itself: give it another")
    elif "/" in column.name or "\0" in column.name or column.name in _NO_NAMES:
        raise _NoPlaceError("a feature cannot be called so: give it another name with rename_column")
    return role, dtype, shape


def _of_episode(column: Column) -> tuple[Role, str, tuple[int, ...]]:
    """A column that LeRobot has a word for: it must be what that means."""
    kind = column.arrow.value_type if pa.types.is_dictionary(column.arrow) else column.arrow
    listed = is_list(kind) and is_text(kind.value_type)
    fits = {LENGTH: pa.types.is_integer(kind), TASKS: listed or is_text(kind), TASK: listed or is_text(kind)}
    if not fits.get(column.name, is_text(kind)):
        raise _NoPlaceError(f"LeRobot has {column.name!r} of its own, and this is {kind}: give it another name")
    return "episode", "", ()


def _counted(column: Column, *, known: bool) -> tuple[Role, str, tuple[int, ...]]:
    """A column that LeRobot counts itself; of rows that did not come from there it is something else."""
    plain = column.category == "scalar" and pa.types.is_integer(column.arrow)
    stepped = column.category == "temporal" and column.shape == ()
    if known and (plain if column.name == EPISODE else stepped):
        return "counted", BOOKKEEPING[column.name], (1,)
    raise _NoPlaceError(f"LeRobot has {column.name!r} of its own, which counts steps: give it another name")


def _by_kind(column: Column, declared: Mapping[str, Any]) -> tuple[Role, str, tuple[int, ...]]:
    kind, dtype = column.arrow, declared.get("dtype")
    if column.category == "temporal":
        return "numbers", _number(column), _shape(column)
    if column.category == "frames" and column.type is not None and column.type.type == "image":
        return "image", "image", ()
    if column.medium == "video":
        return "video", "video", ()
    if column.medium is not None or column.category in {"frames", "file"}:
        raise _NoPlaceError(f"LeRobot has no place for {'' if column.type is None else column.type.type} files")
    if dtype == "string" and is_list(kind) and is_text(kind.value_type):
        return "text", "string", (1,)
    if dtype == "language" and is_list(kind):
        return "language", "language", (1,)
    if _of_episodes(kind):
        return "episode", "", ()
    raise _NoPlaceError(f"LeRobot has no place for {kind}")


def _of_episodes(kind: pa.DataType) -> bool:
    """Whether a cell may stand in the list of episodes: a number, a flag, a time, a text, or a list of them."""
    inner = kind.value_type if is_list(kind) else kind
    if pa.types.is_dictionary(inner):
        inner = inner.value_type
    if is_binary(inner) or pa.types.is_null(inner):
        return False
    return is_text(inner) or is_number(inner) or (kind is inner and pa.types.is_primitive(inner))


def _number(column: Column) -> str:
    name = str(column.dtype)
    if name not in NUMBERS:
        raise _NoPlaceError(f"features have no numbers of type {name}")
    return name


def _shape(column: Column) -> tuple[int, ...]:
    if column.timeless:
        raise _NoPlaceError("the points of a cloud are no steps")
    shape = column.shape
    if shape is None:
        raise _NoPlaceError("nothing says how many numbers a step has: declare its dim or shape with set_type")
    if len(shape) > DEEPEST:
        raise _NoPlaceError(f"its steps have {len(shape)} dimensions, and those of features at most {DEEPEST}")
    return shape or (1,)


def _kept(column: Column, role: Role) -> dict[str, Any]:
    """What `info` of the feature says besides, so that the column comes back as it is."""
    fields = {} if column.type is None else dict(column.type.fields)
    kept = {key: value for key, value in fields.items() if key not in _SAID}
    if role == "video":
        kept.pop("codec", None)  # of what is written
    if role == "numbers" and not column.nested:
        kept[SCALAR] = True
    return kept


def _rate(schema: Schema, columns: Sequence[Column], info: Mapping[str, Any], fps: Any) -> Fraction:
    declared = info.get("fps")
    known = exact(declared) if isinstance(declared, (int, float)) and 0 < declared < float("inf") else None
    rates = {column.name: rate for column in columns if (rate := own_rate(column)) is not None}
    rate = exact(fps) if fps is not None else known or clock_of(schema).rate
    if rate is None:
        raise SchemaMismatchError(
            "A LeRobot folder has one rate, and nothing says that of these rows.",
            hint="Give the steps per second of the recordings, as in fps=10.",
        )
    others = {name: other for name, other in rates.items() if other != rate}
    if others:
        name = next(iter(others))
        raise SchemaMismatchError(
            f"A LeRobot folder has one rate, here {float(rate):g} steps per second; "
            + ", ".join(f"{one!r} has {float(other):g}" for one, other in others.items())
            + ".",
            hint=f"Bring them to one rate first: sl.resample(ds, out, fps={float(rate):g}); or leave them out: "
            f"without=[{name!r}].",
        )
    return rate

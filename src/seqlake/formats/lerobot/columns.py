"""How features and what is known of episodes become columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.errors import ColumnNotFoundError, SchemaMismatchError, SeqlakeError
from seqlake.formats.lerobot.layout import INFO, OWN, SCALAR, episode_id
from seqlake.formats.lerobot.reading import step_type
from seqlake.formats.lerobot.videos import CELL
from seqlake.protocols import Mapped
from seqlake.spec.column_types import ColumnType, Trajectory
from seqlake.spec.findings import Finding
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Column, Schema, is_list, is_text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from seqlake.formats.lerobot.episodes import Episodes
    from seqlake.formats.lerobot.metadata import Info, LeRobotFeature
    from seqlake.formats.lerobot.videos import VideoPlaces

_MEANT = frozenset({"type", "dim", "dtype", "fps", "shape", "names", "time", "encoding", "timestamps", SCALAR})
"""Fields of a trajectory that say what its numbers are: these the feature says, or nobody."""

EPISODE, SPLIT, ROBOT, LENGTH, TASK, TASKS = "episode_index", "split", "robot_type", "length", "task", "tasks"
OURS = (ID, EPISODE, SPLIT, ROBOT, LENGTH, TASK, TASKS)
"""Columns that every folder has; a feature called so gets `_` behind its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeRobotColumns:
    """The columns that features become.

    Attributes:
        steps: Column -> its feature, of those that data files hold.
        types: Column -> the Arrow type of one step of it.
        cameras: Column -> its feature, of videos.
        findings: Features that are no column, and why.
    """

    steps: Mapping[str, LeRobotFeature]
    types: Mapping[str, pa.DataType]
    cameras: Mapping[str, LeRobotFeature]
    findings: Sequence[Finding]


def columns_of(info: Info, stored: pa.Schema | None, /, *, without: Collection[str] = ()) -> LeRobotColumns:
    """The columns of all features.

    Args:
        info: The dataset's.
        stored: Of a data file; None where none could be looked at.
        without: Features that are left out.

    Raises:
        ColumnNotFoundError: One of `without` is no feature.
        SchemaMismatchError: No feature is left.
    """
    unknown = [name for name in without if name not in info.features]
    if unknown:
        raise ColumnNotFoundError(f"No feature {unknown[0]!r} to leave out; there are {', '.join(info.features)}.")
    steps, types, cameras, findings = {}, {}, {}, list[Finding]()
    for feature in info.features.values():
        if feature.name == EPISODE or feature.name in without:
            continue  # one number for all steps, which is a column of its own
        name = feature.name if feature.name not in OURS else f"{feature.name}_"
        if feature.stored == "video":
            cameras[name] = feature
            continue
        missing = stored is not None and feature.name not in stored.names
        kind = None if missing else step_type(feature, None if stored is None else stored.field(feature.name).type)
        if kind is None:
            findings.append(_left_out(feature, missing=missing))
            continue
        steps[name], types[name] = feature, kind
    if not steps and not cameras:
        raise SchemaMismatchError("No feature of this dataset is left that can be read.")
    extra = [] if stored is None else [name for name in stored.names if name not in info.features]
    for name in extra:
        text = f"the data files have a column {name!r} that is no feature: it is left out"
        findings.append(Finding(code="lerobot-no-feature", severity="note", message=text, location=INFO))
    return LeRobotColumns(steps=steps, types=types, cameras=cameras, findings=findings)


def _left_out(feature: LeRobotFeature, *, missing: bool) -> Finding:
    why = "no data file has it" if missing else f"dtype {feature.dtype!r}, shape {list(feature.shape)} cannot be read"
    text = f"the feature {feature.name!r} is left out: {why}"
    return Finding(code="lerobot-feature", severity="warning", message=text, location=INFO)


def mapped(info: Info, columns: LeRobotColumns, /) -> list[Mapped]:
    """What became of each feature, in their order."""
    by_name = {feature.name: column for column, feature in {**columns.steps, **columns.cameras}.items()}
    result = []
    for feature in info.features.values():
        column = EPISODE if feature.name == EPISODE else by_name.get(feature.name)
        if column is None:
            how = _why_left_out(feature, columns)
        elif column == EPISODE:
            how = "one number for all steps"
        elif feature.stored == "video":
            how = "its part of a file that episodes share" if info.shared else "a file of its own"
        else:
            how = ""
        result.append(Mapped(source=feature.name, column=column, how=how))
    return result


def _why_left_out(feature: LeRobotFeature, columns: LeRobotColumns) -> str:
    """As the finding has it; without one it was asked for."""
    start = f"the feature {feature.name!r} is left out: "
    reasons = [one.message.removeprefix(start) for one in columns.findings if one.message.startswith(start)]
    return reasons[0] if reasons else "left out as without= says"


def schema_of(info: Info, columns: LeRobotColumns, episodes: Episodes, tasks: Mapping[int, str], /) -> Schema:
    """The schema: what is known of episodes first, then the features in their order.

    Args:
        info: The dataset's; kept whole in the metadata as `source`.
        columns: What `columns_of` gave.
        episodes: Their columns beyond LeRobot's own are kept.
        tasks: What the numbers in `task_index` mean.
    """
    declared: dict[str, Column] = {
        EPISODE: Column(EPISODE, pa.int64(), nullable=False),
        SPLIT: Column(SPLIT, pa.string()),
    }
    if info.robot_type is not None:
        declared[ROBOT] = Column(ROBOT, pa.string())
    declared[LENGTH] = Column(LENGTH, pa.int64(), nullable=False)
    declared[TASK], declared[TASKS] = Column(TASK, pa.string()), Column(TASKS, pa.list_(pa.string()))
    for name, values in episodes.more().items():
        if name not in declared and name not in columns.steps and name not in columns.cameras and name != ID:
            declared[name] = Column(name, values.type, _said_of(info, name, values.type))
    order = {feature.name: place for place, feature in enumerate(info.features.values())}
    every = {**columns.steps, **columns.cameras}
    for name in sorted(every, key=lambda name: order[every[name].name]):
        feature = every[name]
        if name in columns.cameras:
            declared[name] = Column(name, CELL if info.shared else pa.string(), _pictures(feature, info, "video"))
        else:
            declared[name] = _of_steps(name, feature, columns.types[name], info)
    source = {"format": "lerobot", "info": info.fields, "tasks": {str(number): text for number, text in tasks.items()}}
    return Schema(declared, metadata=Metadata(extra={"source": source}))


def _said_of(info: Info, name: str, kind: pa.DataType) -> ColumnType | None:
    """What a column of episodes meant before it was written here, where that can still be."""
    kept = info.fields.get(OWN)
    types = kept.get("column_types") if isinstance(kept, dict) else None
    said = types.get(name) if isinstance(types, dict) else None
    if not isinstance(said, dict):
        return None
    try:
        column = Column(name, kind, ColumnType.from_json(said))
        # Of files and steps no column of the list is: who says so did not write it here.
        numbers = column.type is not None and column.type.type in {"embedding", "trajectory"}
        fits = column.category == "vector" or (column.category == "scalar" and column.medium is None and not numbers)
    except (SeqlakeError, ValueError, TypeError):
        return None
    return column.type if fits else None


def _of_steps(name: str, feature: LeRobotFeature, kind: pa.DataType, info: Info) -> Column:
    if feature.stored == "image":
        return Column(name, pa.list_(pa.binary()), _pictures(feature, info, "image"))
    if feature.stored != "numbers":
        return Column(name, pa.list_(kind))
    if not is_list(kind):
        return Column(name, pa.list_(kind), _with_more(Trajectory(dtype=kind, fps=info.fps), feature))
    names = _names(feature)
    shape = list(feature.shape) if len(feature.shape) > 1 else None
    signal = Trajectory(dim=feature.size, dtype=kind.value_type, fps=info.fps, shape=shape, names=names)
    return Column(name, pa.list_(kind), _with_more(signal, feature))


def _with_more(signal: Trajectory, feature: LeRobotFeature) -> ColumnType:
    """The column type, with what `info` says besides; a conversion of ours keeps units and the like there."""
    more = {key: value for key, value in feature.info.items() if key not in _MEANT}
    return ColumnType.from_json({**signal.to_json(), **more}) if more else signal


def _names(feature: LeRobotFeature) -> list[str] | None:
    """One name for each number of a step; they are a list, or a dict of lists, as `{"motors": [...]}`."""
    named: Any = feature.names
    if isinstance(named, dict):
        parts = list(named.values())
        named = [one for part in parts for one in part] if all(isinstance(part, list) for part in parts) else None
    fits = isinstance(named, list) and len(named) == feature.size and all(isinstance(one, str) for one in named)
    return list(named) if fits else None


def _pictures(feature: LeRobotFeature, info: Info, kind: str) -> ColumnType:
    """The column type of a camera: what LeRobot says of its videos is kept in its own words, too."""
    details = {key: value for key, value in feature.info.items() if key != "type"}
    fields: dict[str, Any] = {
        "type": kind,
        "fps": details.get("video.fps") if _is_rate(details.get("video.fps")) else info.fps,
    }
    if kind == "image":
        fields["frames"] = "bytes"
    if isinstance(codec := details.get("video.codec"), str):
        fields["codec"] = codec
    if (size := _resolution(feature)) is not None:
        fields["resolution"] = size
    return ColumnType.from_json(fields | {key: value for key, value in details.items() if key not in fields})


def _is_rate(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")


def _resolution(feature: LeRobotFeature) -> list[int] | None:
    """[width, height]: of the video, or of the shape, whose axes `names` tells apart."""
    width, height = (feature.info.get(f"video.{one}") for one in ("width", "height"))
    if type(width) is int and type(height) is int and width > 0 and height > 0:
        return [width, height]
    if len(feature.shape) != 3 or 0 in feature.shape:
        return None
    names = feature.names if isinstance(feature.names, list) else []
    first = names[:1] in (["channels"], ["channel"], ["c"]) or (not names and feature.shape[0] in {1, 3, 4})
    height, width = feature.shape[1:] if first else feature.shape[:2]
    return [width, height]


def table_of(info: Info, episodes: Episodes, cameras: Mapping[str, VideoPlaces], schema: Schema, /) -> pa.Table:
    """[episodes] all columns but those of steps, as the schema has them."""
    tasks = episodes.tasks()
    known: dict[str, Any] = {
        ID: _ids(episodes),
        EPISODE: pa.array(episodes.index, pa.int64()),
        SPLIT: pa.array(_splits(info, episodes), pa.string()),
        LENGTH: pa.array(episodes.length, pa.int64()),
        TASKS: tasks,
        TASK: _first(tasks),
        **{name: places.cells(episodes.length, shared=info.shared) for name, places in cameras.items()},
    }
    if info.robot_type is not None:
        known[ROBOT] = pa.array([info.robot_type] * len(episodes), pa.string())
    known = {**episodes.more(), **known}
    names = [name for name in schema.names if name in known and name in schema]
    return pa.table([known[name] for name in names], schema=pa.schema([schema.arrow.field(name) for name in names]))


def _ids(episodes: Episodes) -> pa.Array:
    """[episodes] as a conversion of ours kept them, where it did; else made of their numbers."""
    kept = episodes.more().get(ID)
    if kept is not None and is_text(kept.type) and not kept.null_count:
        different = kept.cast(pa.string()).unique()
        if len(different) == len(kept) and not pc.any(pc.equal(different, "")).as_py():
            return kept.cast(pa.string())
    return pa.array([episode_id(number) for number in episodes.index.tolist()], pa.string())


def _first(tasks: pa.Array) -> pa.Array:
    """The first task of each episode; null where it has none."""
    filled = pc.if_else(pc.fill_null(pc.equal(pc.list_value_length(tasks), 0), fill_value=True), None, tasks)
    return pc.list_element(filled, 0)


def _splits(info: Info, episodes: Episodes) -> list[str | None]:
    """[episodes] the first split whose range holds its number; null where none does."""
    named = np.full(len(episodes), None, object)
    for name, episodes_of in reversed(info.splits().items()):
        if episodes_of is not None:
            named[(episodes.index >= episodes_of.start) & (episodes.index < episodes_of.stop)] = name
    return [None if one is None else str(one) for one in named.tolist()]

"""How the fields of messages become columns: by what their types mean, or as a mapping says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError, InvalidMetadataError, in_line
from seqlake.formats.mcap import pictures
from seqlake.formats.mcap.kinds import (
    MISFITS,
    Group,
    Kind,
    Many,
    Moment,
    Number,
    Octets,
    Words,
    base_name,
    leaves,
    step_into,
    value_at,
)
from seqlake.protocols import Mapped
from seqlake.spec.column_types import ColumnType, Trajectory
from seqlake.spec.schema import Column

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.formats._mapping import Wanted

Role = Literal["signal", "list", "values", "image", "video", "cloud"]
TEXT = "text"
"""The type of columns of texts, one or several a step."""

OPTIONS = ("fields", "resample", "names", "frame")
"""What a mapping says of a column besides its source and its type."""

_MOST_COLUMNS = 64  # that one topic becomes unasked
_MOST_VECTOR = 64  # numbers of one vector
_HEADERS = {"header", "frame_id", "seq", "stamp", "timestamp", "layout", "child_frame_id"}
_JOINTS = {"sensor_msgs/JointState"}
_FRAMES = {"tf2_msgs/TFMessage", "tf/tfMessage", "foxglove/FrameTransforms", "foxglove_msgs/FrameTransforms"}
_POSES = ("translation.x", "translation.y", "translation.z", "rotation.x", "rotation.y", "rotation.z", "rotation.w")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStream:
    """Messages of one topic that share their times: all, those of one frame, or those of some joints.

    Attributes:
        topic: Its name.
        pick: `frame`: transforms to the frame `names[0]`; `joints`: messages with the joints `names`; empty: all.
        names: See `pick`.
        times: The column of its times.
    """

    topic: str
    pick: Literal["", "frame", "joints"] = ""
    names: tuple[str, ...] = ()
    times: str = ""

    def chosen(self, message: dict[str, Any], /) -> dict[str, Any] | None:
        """What of a message counts; None where nothing does."""
        if self.pick == "frame":
            listed = message.get("transforms") or []
            return next((one for one in listed if one.get("child_frame_id") == self.names[0]), None)
        if self.pick == "joints":
            return message if set(self.names) <= set(message.get("name") or ()) else None
        return message


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicColumn:
    """One column and how its steps are read.

    Attributes:
        name: Its name.
        source: Where it comes from, as a mapping would say it.
        stream: The messages.
        role: `signal`: [T] or [T, D] numbers; `list`: [T, N, D] numbers; `values`: texts, bytes or lists of them;
            `image`, `video`, `cloud`.
        paths: The fields that make a step.
        column: Its types.
        resample: How it is brought to another clock.
        kinds: Of the fields, which other recordings must have, too.
    """

    name: str
    source: str
    stream: TopicStream
    role: Role
    paths: tuple[str, ...]
    column: Column
    resample: str = "hold"
    kinds: tuple[Kind, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What is known of a topic after a look at some messages.

    Attributes:
        name: Its name.
        kind: What messages hold.
        samples: Some messages of some recordings.
    """

    name: str
    kind: Group
    samples: Sequence[dict[str, Any]] = field(repr=False)

    @property
    def frame(self) -> str | None:
        """The coordinate frame that the first message names."""
        for path in ("header.frame_id", "frame_id"):
            if self.samples and step_into(self.kind, path) == Words():
                value = value_at(self.samples[0], path)
                return value or None
        return None

    def sizes(self, path: str, /) -> list[int]:
        """The lengths that a list has in the samples."""
        values = (value_at(one, path) for one in self.samples)
        return sorted({len(value) for value in values if value is not None})


def stamp_path(kind: Kind, /) -> str | None:
    """Where a message says its own time; None where it does not.

    Example:
        >>> stamp_path(Group("a", {"timestamp": Moment()}))
        'timestamp'
    """
    return next((one for one in ("header.stamp", "timestamp", "stamp") if step_into(kind, one) == Moment()), None)


# ---- without a mapping
@dataclass(frozen=True, slots=True)
class _Draft:
    """A column before it has a name and a stream."""

    path: str
    role: Role
    paths: tuple[str, ...]
    kind: pa.DataType
    type: ColumnType | None = None
    stream: TopicStream | None = None


def by_default(topic: Looked, /) -> tuple[list[TopicColumn], str]:
    """The columns that a topic becomes unasked, and why some of it is none (or nothing)."""
    if not topic.samples:
        return [], "it has no messages"
    try:
        drafts, why = _drafts(topic)
    except (CorruptFileError, *MISFITS) as error:
        return [], in_line(f"its messages are not what {topic.kind.name} is: {error}")
    if len(drafts) > _MOST_COLUMNS:
        why = f"only the first {_MOST_COLUMNS} of its {len(drafts)} fields are columns: map those that you want"
        drafts = drafts[:_MOST_COLUMNS]
    return [_column(topic, draft) for draft in drafts], why if drafts else why or "it has no fields that can be columns"


def _drafts(topic: Looked) -> tuple[list[_Draft], str]:
    known = base_name(topic.kind)
    picture = pictures.draft(topic.kind, topic.samples[0])
    if picture is not None:
        return ([], picture) if isinstance(picture, str) else ([_Draft("", *picture)], "")
    cloud = pictures.cloud_type(topic.kind, topic.samples[0])
    if cloud is not None:
        return [_Draft("", "cloud", ("",), *cloud)], ""
    if known in _FRAMES:
        return [_of_frame(topic, name) for name in frames_of(topic)], ""
    if known in _JOINTS:
        return list(_of_joints(topic)), ""
    return _of_group(topic, topic.kind, "")


def frames_of(topic: Looked, /) -> list[str]:
    """The frames that transforms lead to."""
    listed = (one for sample in topic.samples for one in sample.get("transforms") or [])
    return sorted({str(one.get("child_frame_id", "")) for one in listed} - {""})


def _of_frame(topic: Looked, name: str) -> _Draft:
    listed = (one for sample in topic.samples for one in sample.get("transforms") or [])
    first = next(one for one in listed if one.get("child_frame_id") == name)
    parent = (first.get("header") or {}).get("frame_id") or first.get("parent_frame_id") or None
    prefix = "transform." if "transform" in first else ""
    kind = Trajectory(dim=7, dtype=pa.float64(), names=list(_POSES), coordinate_frame=parent)
    paths = tuple(prefix + path for path in _POSES)
    stream = TopicStream(topic=topic.name, pick="frame", names=(name,))
    return _Draft(name, "signal", paths, pa.list_(pa.list_(pa.float64(), 7)), kind, stream)


def _of_joints(topic: Looked) -> Iterator[_Draft]:
    """Position, velocity and effort of each set of joints that is published together."""
    sets = list(dict.fromkeys(tuple(sample.get("name") or ()) for sample in topic.samples))
    unordered: dict[frozenset[str], tuple[str, ...]] = {}
    for names in sets:
        if names and not any(set(names) <= known for known in unordered):
            unordered[frozenset(names)] = names
    for number, names in enumerate(unordered.values()):
        for path in ("position", "velocity", "effort"):
            filled = (
                s for s in topic.samples if set(names) <= set(s["name"]) and len(s.get(path, ())) == len(s["name"])
            )
            if next(filled, None) is None:
                continue
            size = len(names)
            kind = Trajectory(dim=size, dtype=pa.float64(), names=list(names))
            stream = TopicStream(topic=topic.name, pick="joints", names=names)
            label = path if number == 0 else f"{path}.{number + 1}"
            yield _Draft(label, "signal", (path,), pa.list_(pa.list_(pa.float64(), size)), kind, stream)


def _of_group(topic: Looked, group: Group, prefix: str) -> tuple[list[_Draft], str]:
    fields = {name: kind for name, kind in group.fields.items() if name not in _HEADERS}
    vector = _vector(Group(group.name, fields))
    if vector:
        return [_numbers(topic, prefix, tuple(_joined(prefix, path) for path in vector), vector)], ""
    drafts, left_out = list[_Draft](), list[str]()
    floats = [name for name, kind in fields.items() if isinstance(kind, Number) and kind.dtype.startswith("float")]
    if len(floats) > 1:
        drafts.append(_numbers(topic, prefix, tuple(_joined(prefix, name) for name in floats), floats))
    for name, kind in fields.items():
        path = _joined(prefix, name)
        if isinstance(kind, Group):
            inner, why = _of_group(topic, kind, path)
            drafts += inner
            left_out += [why] if why else []
        elif len(floats) < 2 or name not in floats:
            one = _of_field(topic, path, kind)
            if isinstance(one, str):
                left_out.append(one)
            else:
                drafts.append(one)
    return drafts, "; ".join(left_out[:4])


def _of_field(topic: Looked, path: str, kind: Kind) -> _Draft | str:
    """The column of one field that is no group; or why it is none."""
    if isinstance(kind, Number | Moment):
        return _scalar(path, kind)
    if isinstance(kind, Words | Octets):
        return _texts(path, kind, many=False)
    assert isinstance(kind, Many)
    if isinstance(kind.of, Number):
        sizes = [kind.size] if kind.size is not None else topic.sizes(path)
        if sizes in ([], [0]):
            return f"{path} is empty"
        return _numbers(topic, path, (path,), [], size=sizes[0] if len(sizes) == 1 else None)
    if isinstance(kind.of, Words | Octets):
        return _texts(path, kind.of, many=True)
    if isinstance(kind.of, Group) and (vector := _vector(kind.of)):
        number = _common([step_into(kind.of, one) for one in vector])
        signal = Trajectory(dtype=number, names=vector, shape=None)
        return _Draft(path, "list", (path, *vector), pa.list_(pa.list_(pa.list_(number))), signal)
    return f"{path} is a list of messages"


def _texts(path: str, kind: Words | Octets, *, many: bool) -> _Draft:
    """Texts or bytes, whose type says no more than when each was."""
    inner = pa.string() if isinstance(kind, Words) else pa.binary()
    named = ColumnType(TEXT if isinstance(kind, Words) else "bytes")
    return _Draft(path, "values", (path,), pa.list_(pa.list_(inner) if many else inner), named)


def _scalar(path: str, kind: Number | Moment) -> _Draft:
    """A time a step, or one number."""
    if isinstance(kind, Moment):
        return _Draft(path, "signal", (path,), pa.list_(pa.int64()), ColumnType("trajectory"))
    labels = {str(value): name for value, name in kind.labels.items()}
    flag = kind.dtype == "bool"
    signal = Trajectory(dim=1, dtype=_arrow(kind), labels=labels or None, flag=flag or None)
    return _Draft(path, "signal", (path,), pa.list_(pa.list_(_arrow(kind), 1)), signal)


def _numbers(
    topic: Looked, path: str, paths: tuple[str, ...], names: Sequence[str], *, size: int | None = None
) -> _Draft:
    kinds = [step_into(topic.kind, one) for one in paths]
    number = _common(kinds)
    size = len(names) if names else size
    if size is None:  # the steps of a sequence are equally long, but the points of a step may be any number
        return _Draft(path, "list", paths, pa.list_(pa.list_(pa.list_(number))), Trajectory(dtype=number))
    signal = Trajectory(dim=size, dtype=number, names=list(names) or None)
    return _Draft(path, "signal", paths, pa.list_(pa.list_(number, size)), signal)


def _arrow(kind: Number) -> pa.DataType:
    # Flags are numbers: windows and statistics take them, and 0 and 1 stay what they are.
    return pa.uint8() if kind.dtype == "bool" else pa.from_numpy_dtype(np.dtype(kind.dtype))


def _common(kinds: Sequence[Kind | None]) -> pa.DataType:
    """The type of numbers that holds all of these."""
    types = [kind.of if isinstance(kind, Many) else kind for kind in kinds]
    dtypes = ["int64" if isinstance(one, Moment) else one.dtype for one in types if isinstance(one, Number | Moment)]
    names = ["uint8" if name == "bool" else name for name in dtypes]
    return pa.from_numpy_dtype(np.result_type(*names))


def _vector(group: Group) -> list[str]:
    """The paths of a group that is nothing but floats; empty where it is anything else."""
    listed = list(leaves(group))
    floats = all(isinstance(kind, Number) and kind.dtype.startswith("float") for _, kind in listed)
    return [path for path, _ in listed] if floats and len(listed) <= _MOST_VECTOR else []


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _column(topic: Looked, draft: _Draft) -> TopicColumn:
    only = [name for name in topic.kind.fields if name not in _HEADERS]
    alone = draft.path if only != [draft.path] or draft.role in {"image", "video", "cloud"} else ""
    stem = _stem(topic.name) + (f"_{_plain(alone)}" if alone else "")
    facts: dict[str, Any] = {"source": f"{topic.name}.{draft.path}" if draft.path else topic.name}
    if draft.stream is not None and draft.stream.pick == "frame":
        facts["source"] = topic.name
    kind = draft.type
    if kind is not None:
        frame = kind.get("coordinate_frame") or topic.frame
        fields = kind.to_json() | facts | ({"coordinate_frame": frame} if frame else {})
        kind = ColumnType.from_json(fields)
    return TopicColumn(
        name=stem,
        source=facts["source"],
        stream=draft.stream or TopicStream(topic=topic.name),
        role=draft.role,
        paths=draft.paths,
        column=Column(stem, draft.kind, kind),
        kinds=kinds_of(topic.kind, draft),
    )


def kinds_of(kind: Group, draft: Any, /) -> tuple[Kind, ...]:
    """The kinds of the fields that a column is made of; whole messages count by their fields."""
    if draft.stream is not None and draft.stream.pick == "frame":
        return ()
    first = draft.paths[:1] if draft.role == "list" else draft.paths
    kinds = (step_into(kind, path) for path in first)
    return tuple(one for one in kinds if one is not None and not isinstance(one, Group))


def fits(one: TopicColumn, kind: Group, /) -> bool:
    """Whether messages of another recording hold the fields of a column."""
    paths = one.paths[:1] if one.role == "list" else one.paths
    return not one.kinds or all(step_into(kind, path) == k for path, k in zip(paths, one.kinds, strict=False))


def _stem(topic: str) -> str:
    return _plain(topic.strip("/")) or "topic"


def _plain(text: str) -> str:
    """A name that SQL takes without quotes."""
    return "".join(one if one.isalnum() else "_" for one in text).strip("_")


# ---- with a mapping
def by_map(wanted: Mapping[str, Wanted], topics: Mapping[str, Looked], /) -> list[TopicColumn]:
    """The columns that a mapping declares.

    Raises:
        InvalidMetadataError: It names a topic or a field that is not there, or one that cannot be a column.
    """
    return [_wanted(one, topics) for one in wanted.values()]


def _wanted(wanted: Wanted, topics: Mapping[str, Looked]) -> TopicColumn:
    topic, path = _topic_of(wanted, topics)
    try:
        draft = _wanted_draft(wanted, topic, path)
    except (CorruptFileError, *MISFITS) as error:
        if isinstance(error, InvalidMetadataError):
            raise
        raise _refused(wanted, f"its messages are not what {topic.kind.name} is: {error}") from None
    if _is_open(wanted, draft):
        draft = _numbers(topic, path, draft.paths, [])
    column = _column(topic, draft)
    kind, arrow = draft.type, draft.kind
    base = column.column.type
    if wanted.type is not None:
        kind, arrow = _declared(wanted, draft)
        base = ColumnType.from_json({**(base.to_json() if base is not None else {}), **kind.to_json()})
    resample = wanted.options.get("resample", "hold")
    if resample not in {"hold", "nearest", "linear"}:
        raise _refused(wanted, f"resample is 'hold', 'nearest' or 'linear', found {resample!r:.40}")
    return replace(
        column,
        name=wanted.column,
        source=wanted.source,
        column=Column(wanted.column, arrow, None if base is None else _with_source(base, wanted.source)),
        resample=resample,
    )


def _is_open(wanted: Wanted, draft: _Draft) -> bool:
    """Whether a list of numbers is wanted without a length: `{"type": "trajectory"}` and no `dim`."""
    kind = wanted.type
    lists = draft.role == "signal" and len(draft.paths) == 1 and pa.types.is_fixed_size_list(draft.kind.value_type)
    return lists and kind is not None and kind.type == "trajectory" and "dim" not in kind.fields


def _with_source(kind: ColumnType, source: str) -> ColumnType:
    return ColumnType.from_json({**kind.to_json(), "source": source})


def _declared(wanted: Wanted, draft: _Draft) -> tuple[ColumnType, pa.DataType]:
    kind = wanted.type
    assert kind is not None
    if draft.role != "signal":
        if draft.type is None or draft.type.type != kind.type:
            expected = "no type" if draft.type is None else draft.type.type
            raise _refused(wanted, f"its messages make a column of {expected!r}, found type {kind.type!r}")
        return kind, draft.kind
    if kind.type != "trajectory":
        raise _refused(wanted, f"numbers make a trajectory, found type {kind.type!r}")
    inner = draft.kind.value_type
    number = inner.value_type if pa.types.is_list(inner) or pa.types.is_fixed_size_list(inner) else inner
    dim = kind.get("dim")
    if dim is None:
        return kind, draft.kind
    fixed = inner.list_size if pa.types.is_fixed_size_list(inner) else None
    if type(dim) is not int or dim < 1 or (fixed is not None and fixed != dim) or (inner == number and dim != 1):
        raise _refused(wanted, f"its messages have {fixed or 1} numbers, found dim {dim!r:.40}")
    return kind, pa.list_(pa.list_(number, dim))


def _topic_of(wanted: Wanted, topics: Mapping[str, Looked]) -> tuple[Looked, str]:
    source = wanted.source
    fitting = [name for name in topics if source == name or source.startswith(f"{name}.")]
    if not fitting:
        raise _refused(wanted, f"no topic is called so; there are {', '.join(sorted(topics)[:20]) or 'none'}")
    topic = topics[max(fitting, key=len)]
    if not topic.samples:
        raise _refused(wanted, "the topic has no messages that can be read")
    return topic, source[len(topic.name) + 1 :]


def _wanted_draft(wanted: Wanted, topic: Looked, path: str) -> _Draft:
    fields, names, frame = (wanted.options.get(key) for key in ("fields", "names", "frame"))
    for key, value in (("fields", fields), ("names", names)):
        texts = isinstance(value, list | tuple) and value and all(isinstance(one, str) for one in value)
        if value is not None and not texts:
            raise _refused(wanted, f"{key} is a list of texts, found {value!r:.60}")
    if base_name(topic.kind) in _FRAMES and not path:
        if frame not in frames_of(topic):
            raise _refused(wanted, f"frame is one of {', '.join(frames_of(topic))}, found {frame!r:.60}")
        return _of_frame(topic, str(frame))
    if names is not None:
        return _wanted_joints(wanted, topic, path, tuple(names))
    if fields is not None:
        return _wanted_fields(wanted, topic, path, list(fields))
    whole = None if path else _whole(topic)
    if isinstance(whole, str):
        raise _refused(wanted, whole)
    return whole or _wanted_field(wanted, topic, path)


def _wanted_field(wanted: Wanted, topic: Looked, path: str) -> _Draft:
    """One field, or the numbers of a group of them."""
    kind = step_into(topic.kind, path)
    if kind is None:
        raise _refused(wanted, f"{topic.kind.name} has no field {path!r}; it has {_listed(topic.kind)}")
    if isinstance(kind, Group):
        numbers = [name for name, one in leaves(kind) if isinstance(one, Number)]
        return _wanted_fields(wanted, topic, path, [one for one in numbers if one.partition(".")[0] not in _HEADERS])
    if base_name(topic.kind) in _JOINTS and path in {"position", "velocity", "effort"}:
        of_joints = next((one for one in _of_joints(topic) if one.path == path), None)
        if of_joints is not None:
            return of_joints
    draft = _of_field(topic, path, kind)
    if isinstance(draft, str) and isinstance(kind, Many) and isinstance(kind.of, Number):
        return _numbers(topic, path, (path,), [])
    if isinstance(draft, str):
        raise _refused(wanted, draft)
    return draft


def _whole(topic: Looked) -> _Draft | str | None:
    """A topic of pictures or clouds; the reason where they cannot be read; None for other topics."""
    picture = pictures.draft(topic.kind, topic.samples[0])
    if picture is not None:
        return picture if isinstance(picture, str) else _Draft("", *picture)
    cloud = pictures.cloud_type(topic.kind, topic.samples[0])
    return None if cloud is None else _Draft("", "cloud", ("",), *cloud)


def _wanted_joints(wanted: Wanted, topic: Looked, path: str, names: tuple[str, ...]) -> _Draft:
    if base_name(topic.kind) not in _JOINTS or path not in {"position", "velocity", "effort"}:
        raise _refused(wanted, "names are of joints: the source is .position, .velocity or .effort of a JointState")
    known = sorted({name for sample in topic.samples for name in sample.get("name") or ()})
    missing = [name for name in names if name not in known]
    if missing:
        raise _refused(wanted, f"no joint is called {missing[0]!r}; there are {', '.join(known)}")
    kind = Trajectory(dim=len(names), dtype=pa.float64(), names=list(names))
    stream = TopicStream(topic=topic.name, pick="joints", names=names)
    return _Draft(path, "signal", (path,), pa.list_(pa.list_(pa.float64(), len(names))), kind, stream)


def _wanted_fields(wanted: Wanted, topic: Looked, path: str, fields: Sequence[str]) -> _Draft:
    paths = tuple(_joined(path, name) for name in fields)
    if not paths:
        raise _refused(wanted, "its fields are no numbers")
    names = list[str]()
    for name, one in zip(fields, paths, strict=True):
        kind = step_into(topic.kind, one)
        sized = isinstance(kind, Many) and isinstance(kind.of, Number)
        if not isinstance(kind, Number | Moment) and not sized:
            raise _refused(wanted, f"{one!r} is no number; there are {_listed(topic.kind)}")
        sizes = topic.sizes(one) if sized else [1]
        if len(sizes) != 1:
            raise _refused(wanted, f"{one!r} has {sizes} numbers, which do not make one vector")
        names += [name] if not sized else [f"{name}[{place}]" for place in range(sizes[0])]
    return _numbers(topic, path, paths, names)


def _listed(kind: Group) -> str:
    return ", ".join(path for path, _ in list(leaves(kind))[:40])


def _refused(wanted: Wanted, why: str) -> InvalidMetadataError:
    text = f"Column {wanted.column!r} of the mapping, source {wanted.source!r}: {why}."
    return InvalidMetadataError(
        in_line(text), hint='A source is a topic or a field of it, as "/joint_states.position".'
    )


# ---- names, times and what became of what
def named(columns: Sequence[TopicColumn], taken: Sequence[str], /) -> list[TopicColumn]:
    """The columns with names of their own."""
    names, result = set(taken), list[TopicColumn]()
    for one in columns:
        name = one.name
        while name in names:
            name += "_"
        names.add(name)
        result.append(replace(one, name=name, column=replace(one.column, name=name)))
    return result


def timed(columns: Sequence[TopicColumn], taken: Sequence[str], /) -> list[TopicColumn]:
    """Each column with the column of its times, which those of one stream share."""
    names = {*taken, *(one.name for one in columns)}
    known: dict[TopicStream, str] = {}
    result = []
    for one in columns:
        stream = replace(one.stream, times="")
        if stream not in known:
            inner = f"_{_plain(stream.names[0])}" if stream.pick == "frame" else ""
            name = f"{_stem(stream.topic)}{inner}_time"
            while name in names:
                name += "_"
            known[stream] = name
            names.add(name)
        result.append(replace(one, stream=replace(stream, times=known[stream])))
    return result


def with_fields(one: TopicColumn, /, **facts: Any) -> TopicColumn:
    """The column with more said of its type, where it has one."""
    if one.column.type is None:
        return one
    kind = ColumnType.from_json({**one.column.type.to_json(), **facts})
    return replace(one, column=replace(one.column, type=kind))


def mapped(columns: Sequence[TopicColumn], topics: Sequence[str], reasons: Mapping[str, str], /) -> list[Mapped]:
    """What became of each topic: one entry for each column, or the reason why there is none."""
    result = []
    for topic in topics:
        of_topic = [one for one in columns if one.stream.topic == topic]
        result += [Mapped(source=one.source, column=one.name, how=_how(one)) for one in of_topic]
        if not of_topic or reasons.get(topic):
            result.append(
                Mapped(source=topic, column=None, how=reasons.get(topic) or "no column of the mapping names it")
            )
    return result


def _how(one: TopicColumn) -> str:
    if one.stream.pick == "frame":
        return f"transforms to the frame {one.stream.names[0]!r}"
    how = {"image": "one image a message", "video": "packets of a video", "cloud": "the points of each message"}
    if one.role == "signal" and len(one.paths) > 1:
        return f"{len(one.paths)} fields side by side"
    return how.get(one.role, "")

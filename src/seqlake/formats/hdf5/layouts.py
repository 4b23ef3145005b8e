"""How the projects that write HDF5 lay out episodes: found by what a file holds, or declared by a mapping."""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import InvalidMetadataError, SchemaMismatchError, SeqlakeError, in_line
from seqlake.formats.hdf5.columns import (
    Hdf5Column,
    Hdf5Source,
    Hdf5Typing,
    NoColumnError,
    literal,
    of_file,
    plain,
    unique,
)
from seqlake.formats.hdf5.nodes import natural
from seqlake.formats.hdf5.reading import Hdf5Episode, keyed
from seqlake.protocols import Mapped
from seqlake.spec.column_types import Video
from seqlake.spec.schema import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from seqlake.formats._mapping import Wanted
    from seqlake.formats.hdf5.nodes import Hdf5File, StoredArray

ENDINGS = (".hdf5", ".h5", ".hdf", ".he5")
_TRAJECTORY = ("trajectory.h5", "trajectory.hdf5")
_DROID_RATE = 15.0  # steps per second, as its makers say; no file does
_CAMERAS = ("wrist", "ext1", "ext2")
_JSON_KEYS = (  # of robomimic and its kin: attribute, key, column
    ("problem_info", "language_instruction", "language_instruction"),
    ("env_args", "env_name", "env_name"),
)
_ENVIRONMENT = "env_args"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFile:
    """One file of a folder.

    Attributes:
        path: Below the root.
        beside: All other files of the folder, with their paths below the root.
    """

    path: str
    beside: Sequence[str] = ()

    @property
    def values(self) -> dict[str, str]:
        """What paths may name of it: `{stem}` and `{folder}`."""
        folder, name = posixpath.split(self.path)
        return {"stem": name.rpartition(".")[0] or name, "folder": folder}


class Hdf5Layout:
    """How one project lays out its episodes; this one is of a file that is one episode, and knows nothing more.

    Args:
        fps: Steps per second, as the user says; None: what the layout knows.
    """

    name = "file"
    omitted: Mapping[str, str] = {}
    """Data sets that become no column, and why."""

    def __init__(self, fps: float | None = None) -> None:
        self.given = fps

    def fps(self, file: Hdf5File) -> float | None:  # noqa: ARG002 - others look into it
        """Steps per second; None where nobody says it."""
        return self.given

    def episodes(self, file: Hdf5File | None, place: PlacedFile, names: EpisodeNames) -> list[Hdf5Episode]:  # noqa: ARG002 - the same
        """The rows of a file, which is None where nobody need look into it."""
        return [Hdf5Episode(id=names.of(place), values=place.values)]

    def sources(self, file: Hdf5File, episode: Hdf5Episode) -> Iterator[tuple[str, Hdf5Source]]:
        """What becomes a column: its short name, and where it is. Paths of data sets come first."""
        for path, _ in file.arrays():
            yield self.short(path), Hdf5Source(path="/" + self.general(path, episode))
        for name in file.attributes("/"):
            yield name, Hdf5Source(path="/", attribute=name)

    def short(self, path: str) -> str:
        """A column's name, out of a path below the episode."""
        return path.rpartition("/")[2]

    def general(self, path: str, episode: Hdf5Episode) -> str:  # noqa: ARG002 - others do
        """A path of one episode as it is in every one."""
        return literal(path)

    def beside(self, episode: Hdf5Episode, place: PlacedFile) -> Iterator[Hdf5Column]:  # noqa: ARG002 - the same
        """Columns that name files beside."""
        yield from ()

    def alike(self, column: Hdf5Column) -> bool:
        """Whether every step of an episode is meant to have an entry in this column."""
        return column.stepped

    def portable(self) -> Hdf5Layout:
        """The same without what cannot be sent to another process."""
        return self

    @property
    def looks(self) -> bool:
        """Whether a file must be looked into to know which episodes it holds."""
        return False

    @property
    def extra(self) -> dict[str, Any]:
        """What the metadata keep of it."""
        return {}


class Aloha(Hdf5Layout):
    """ALOHA and ACT: a folder of `episode_N.hdf5` with /action and /observations."""

    name = "aloha"
    omitted: Mapping[str, str] = {"/compress_len": "lengths of padded pictures, which their own ends tell"}


class Droid(Hdf5Layout):
    """DROID: a folder an episode, with `trajectory.h5`, videos and a JSON of what is known of it."""

    name = "droid"

    def __init__(self, fps: float | None = None, read: Callable[[str], bytes] | None = None) -> None:
        super().__init__(fps)
        self._read = read

    def fps(self, file: Hdf5File) -> float | None:  # noqa: ARG002 - others look into it
        """The rate at which all of it was recorded."""
        return self.given or _DROID_RATE

    def episodes(self, file: Hdf5File | None, place: PlacedFile, names: EpisodeNames) -> list[Hdf5Episode]:  # noqa: ARG002 - the same
        """One, called as its folder, with the serial numbers of its cameras."""
        folder = posixpath.dirname(place.path)
        values = {**place.values, **self._serials(place, folder)}
        return [Hdf5Episode(id=folder or names.of(place), values=values)]

    def portable(self) -> Hdf5Layout:
        """Without what reads files: episodes are known by then."""
        return Droid(self.given)

    def _serials(self, place: PlacedFile, folder: str) -> dict[str, str]:
        notes = [one for one in place.beside if re.fullmatch(r"metadata_.*\.json", posixpath.basename(one))]
        known: Any = {}
        if notes and self._read is not None:
            try:
                known = json.loads(self._read(notes[0]))
            except (ValueError, RecursionError, OSError, SeqlakeError):
                known = {}  # the episode has no cameras: its videos are null, and `check` says so
        serials: dict[str, str] = {}
        for camera in _CAMERAS:
            serial = known.get(f"{camera}_cam_serial") if isinstance(known, dict) else None
            video = known.get(f"{camera}_mp4_path") if isinstance(known, dict) else None
            if serial is None and isinstance(video, str):
                serial = posixpath.basename(video).removesuffix(".mp4")
            if isinstance(serial, (str, int)) and re.fullmatch(r"[\w.+-]{1,64}", str(serial)):
                serials[camera] = str(serial)
        serials["recordings"] = posixpath.join(folder, "recordings/MP4") if folder else "recordings/MP4"
        return serials

    def short(self, path: str) -> str:
        """The whole path with dots, since names repeat: `action.gripper_position`."""
        return path.replace("/", ".")

    def sources(self, file: Hdf5File, episode: Hdf5Episode) -> Iterator[tuple[str, Hdf5Source]]:
        """All of it; serial numbers of cameras become what the cameras are."""
        for path, _ in file.arrays():
            general = self.general(path, episode)
            yield self.short(re.sub(r"[{}]", "", general)), Hdf5Source(path="/" + general)
        for name in file.attributes("/"):
            yield {"current_task": "task"}.get(name, name), Hdf5Source(path="/", attribute=name)

    def general(self, path: str, episode: Hdf5Episode) -> str:
        """A path with `{wrist}` in place of that camera's serial number."""
        general = literal(path)
        for camera in _CAMERAS:
            serial = episode.values.get(camera)
            if serial:
                general = re.sub(rf"(?<![A-Za-z0-9]){re.escape(serial)}(?![A-Za-z0-9])", f"{{{camera}}}", general)
        return general

    def beside(self, episode: Hdf5Episode, place: PlacedFile) -> Iterator[Hdf5Column]:
        """The video of each camera, and that of both its eyes where it is there."""
        for camera in _CAMERAS:
            for suffix, name in (("", camera), ("-stereo", f"{camera}_stereo")):
                source = Hdf5Source(path=f"{{recordings}}/{{{camera}}}{suffix}.mp4", file=True)
                path = source.filled(episode.values)
                if path is not None and (not suffix or path in place.beside):
                    yield Hdf5Column(source=source, role="file", column=Column(name, pa.string(), Video()))


class Robomimic(Hdf5Layout):
    """robomimic and its kin (LIBERO, MimicGen, RoboCasa): files of `data/demo_N`, splits in `mask`."""

    name = "robomimic"

    @property
    def looks(self) -> bool:
        """True: files hold any number of demonstrations."""
        return True

    def fps(self, file: Hdf5File) -> float | None:
        """The control rate of the environment, where its arguments say it."""
        if self.given is not None:
            return self.given
        rate = None
        try:
            text = keyed(plain(file.attribute("data", _ENVIRONMENT)), "env_kwargs.control_freq", file.name, "env_args")
            rate = float(text)
        except (SeqlakeError, TypeError, ValueError):
            return None
        return rate if 0 < rate < 1e6 else None

    def episodes(self, file: Hdf5File | None, place: PlacedFile, names: EpisodeNames) -> list[Hdf5Episode]:
        """The demonstrations, in the order of their numbers."""
        assert file is not None
        splits = self._splits(file)
        demos = [name for name in file.names("data") if file.is_group(f"data/{name}")]
        return [
            Hdf5Episode(id=names.of(place, demo), values={**place.values, "episode": demo}, split=splits.get(demo))
            for demo in demos
        ]

    def _splits(self, file: Hdf5File) -> dict[str, str]:
        """Demonstration -> its split: `train` or `valid` where it is in one of these, else the first that has it."""
        splits: dict[str, str] = {}
        masks = sorted(file.names("mask"), key=lambda name: (name not in {"train", "valid", "test"}, natural(name)))
        for mask in masks:
            array = file.array(f"mask/{mask}")
            if array is None or array.kind != "text" or len(array.shape) != 1:
                continue
            for demo in file.whole(array):
                splits.setdefault(bytes(demo).decode("utf-8", "replace"), mask)
        return splits

    def sources(self, file: Hdf5File, episode: Hdf5Episode) -> Iterator[tuple[str, Hdf5Source]]:
        """All of a demonstration, its attributes, and what the attributes of the file say in JSON."""
        group = f"data/{episode.values['episode']}"
        for path, _ in file.arrays(group):
            yield self.short(path), Hdf5Source(path=f"data/{{episode}}/{literal(path)}")
        for name in file.attributes(group):
            yield name, Hdf5Source(path="data/{episode}", attribute=name)
        for attribute, key, column in _JSON_KEYS:
            if attribute in file.attributes("data"):
                yield column, Hdf5Source(path="data", attribute=attribute, key=key)
        for name in file.attributes("data"):
            yield name, Hdf5Source(path="data", attribute=name)

    def short(self, path: str) -> str:
        """Without `obs/`; `next_obs/x` is `next_x`."""
        first, slash, rest = path.partition("/")
        if slash and first == "obs":
            return rest.replace("/", ".")
        return f"next_{rest}".replace("/", ".") if slash and first == "next_obs" else path.replace("/", ".")


class DeclaredLayout(Hdf5Layout):
    """What a mapping says.

    Args:
        columns: As they were declared.
        episode_ends: Path of a data set of where each episode ends, in data sets that hold the steps of all.
        fps: Steps per second.
    """

    name = "map"

    def __init__(
        self, columns: Mapping[str, Wanted], episode_ends: str | None = None, fps: float | None = None
    ) -> None:
        super().__init__(fps)
        self.columns = columns
        self.parsed: dict[str, Hdf5Source] = {name: Hdf5Source.parse(one.source) for name, one in columns.items()}
        self.episode_ends = episode_ends
        self._pattern = self._group()

    def _group(self) -> str | None:
        """The path of the group that is an episode, with `{episode}` in its last part; None: a file is one."""
        known = {"episode", "stem", "folder"}
        patterns: dict[str, str] = {}
        for name, source in self.parsed.items():
            unknown = [one for one in source.variables if one not in known]
            if unknown:
                raise InvalidMetadataError(
                    f"Column {name!r} of the mapping: paths may name {{episode}}, {{stem}} and {{folder}}, found "
                    f"{{{unknown[0]}}}; write {{{{ for a brace."
                )
            if "episode" in source.variables and not source.file:
                parts = source.path.strip("/").split("/")
                last = next(place for place, part in enumerate(parts) if "{episode}" in part)
                patterns.setdefault("/".join(parts[: last + 1]), name)
        if len(patterns) > 1:
            raise InvalidMetadataError(
                f"Expected one group of the episodes, found {' and '.join(sorted(patterns))} in the mapping."
            )
        if patterns and self.episode_ends is not None:
            raise InvalidMetadataError("{episode} names groups, and episode_ends cuts data sets: give one of them.")
        return next(iter(patterns), None)

    @property
    def looks(self) -> bool:
        """Whether groups, or ends, are episodes."""
        return self._pattern is not None or self.episode_ends is not None

    def episodes(self, file: Hdf5File | None, place: PlacedFile, names: EpisodeNames) -> list[Hdf5Episode]:
        """One a file, one a group, or one for each end."""
        if file is None or not self.looks:
            return super().episodes(file, place, names)
        if self._pattern is not None:
            return self._groups(file, place, names, self._pattern)
        assert self.episode_ends is not None
        array = file.array(self.episode_ends)
        if array is None or array.kind != "number" or len(array.shape) != 1 or array.dtype is None:
            raise InvalidMetadataError(f"{file.name}: expected the ends of episodes in {self.episode_ends!r}, [N].")
        ends = file.whole(array)
        if array.dtype.kind not in "iu" or (np.diff(ends.astype(np.int64), prepend=0) < 0).any():
            raise InvalidMetadataError(f"{file.name}: {self.episode_ends!r} are no ends: they never fall.")
        bounds = [0, *ends.astype(np.int64).tolist()]
        width = max(6, len(str(len(ends))))
        return [
            Hdf5Episode(id=names.of(place, f"episode_{number:0{width}d}"), values=place.values, start=start, stop=stop)
            for number, (start, stop) in enumerate(pairwise(bounds))
        ]

    def _groups(self, file: Hdf5File, place: PlacedFile, names: EpisodeNames, pattern: str) -> list[Hdf5Episode]:
        folder, _, part = pattern.rpartition("/")
        filled = Hdf5Source(path=folder or "/").filled(place.values)
        matching = re.compile("".join("(.+)" if one == "{episode}" else re.escape(one) for one in _split(part)))
        episodes = []
        for name in file.names(filled or "/"):
            match = matching.fullmatch(name)
            if match is not None:
                values = {**place.values, "episode": match[1]}
                episodes.append(Hdf5Episode(id=names.of(place, name), values=values))
        return episodes

    def sources(self, file: Hdf5File, episode: Hdf5Episode) -> Iterator[tuple[str, Hdf5Source]]:  # noqa: ARG002 - others look
        """Those that were declared."""
        yield from ((name, source) for name, source in self.parsed.items() if not source.file)

    def beside(self, episode: Hdf5Episode, place: PlacedFile) -> Iterator[Hdf5Column]:  # noqa: ARG002 - others do
        """Those that were declared as files."""
        for name, source in self.parsed.items():
            if source.file:
                yield of_file(self.columns[name], source, self.given)

    def alike(self, column: Hdf5Column) -> bool:
        """Unless it has a rate of its own."""
        kind = self.columns[column.name].type
        return column.stepped and (kind is None or (kind.get("fps") is None and kind.timestamps is None))

    @property
    def extra(self) -> dict[str, Any]:
        """The mapping that was declared."""
        return {"map": {name: str(source) for name, source in self.parsed.items()}}


def _split(part: str) -> list[str]:
    before, _, after = part.partition("{episode}")
    return [before, "{episode}", after]


@dataclass(slots=True)
class EpisodeNames:
    """Ids of rows: as short as they can be and still differ.

    Attributes:
        single: There is one file, whose name says nothing.
        endings: Files differ in nothing but their endings.
    """

    single: bool
    endings: bool = False

    @staticmethod
    def among(paths: Sequence[str], /, *, single: bool) -> EpisodeNames:
        """How rows in these files are called."""
        stems = Counter(path.rpartition(".")[0] for path in paths)
        return EpisodeNames(single, max(stems.values(), default=0) > 1)

    def of(self, place: PlacedFile, episode: str = "") -> str:
        """The id of a row: file and episode, of what there are several."""
        stem = place.path if self.endings else place.path.rpartition(".")[0] or place.path
        if not episode:
            return stem
        return episode if self.single else f"{stem}/{episode}"


def layout_of(file: Hdf5File, place: PlacedFile, fps: float | None, read: Callable[[str], bytes], /) -> Hdf5Layout:
    """The layout that a file has.

    Raises:
        InvalidMetadataError: None that is known: says what the file holds, and how it is declared.
    """
    top = set(file.names("/"))
    if "data" in top:
        demos = [name for name in file.names("data")[:8] if file.is_group(f"data/{name}")]
        if any(file.array(f"data/{demo}/actions") is not None for demo in demos):
            return Robomimic(fps)
    name = posixpath.basename(place.path)
    if name in _TRAJECTORY and file.is_group("action") and file.is_group("observation"):
        return Droid(fps, read)
    if file.array("action") is not None and file.is_group("observations"):
        return Aloha(fps)
    held = []
    for path, array in file.arrays():
        held.append(f"{path} {list(array.shape)}" if not isinstance(array, SeqlakeError) else path)
        if len(held) > 11:
            held.append("...")
            break
    raise InvalidMetadataError(
        in_line(
            f"{file.name} is laid out neither as ALOHA (/action, /observations), nor as robomimic "
            f"(data/demo_0/actions), nor as DROID (trajectory.h5); it holds {', '.join(held) or 'no data sets'}."
        ),
        path=file.blob.location,
        hint="Say what of it becomes which column: "
        "scan(..., map={'action': '/action'}), or map={'action': 'data/{episode}/actions'} where each group is one.",
    )


def typical(arrays: Iterable[StoredArray], /) -> int | None:
    """The steps of an episode: the first extent that most of its data sets have; None where none has any."""
    counts = Counter(array.shape[0] for array in arrays if array.shape and array.kind != "other")
    return max(counts.items(), key=lambda pair: (pair[1], pair[0]))[0] if counts else None


@dataclass(slots=True)
class Hdf5Columns:
    """The columns of a dataset, as one of its episodes has them.

    Attributes:
        columns: By name.
        mapped: One for each thing that was looked at.
        left_out: Source -> why it is no column.
    """

    columns: dict[str, Hdf5Column] = field(default_factory=dict)
    mapped: list[Mapped] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, column: Hdf5Column) -> None:
        """Take in a column."""
        self.columns[column.name] = column
        self.mapped.append(Mapped(source=str(column.source), column=column.name, how=column.how))

    def leave_out(self, source: Hdf5Source, why: str) -> None:
        """Take in what is none."""
        self.left_out[str(source)] = why
        self.mapped.append(Mapped(source=str(source), column=None, how=why))


def columns_of(
    layout: Hdf5Layout, file: Hdf5File, episode: Hdf5Episode, place: PlacedFile, /, *, without: Sequence[str] = ()
) -> Hdf5Columns:
    """The columns, after one look at an episode.

    Args:
        layout: Of all files.
        file: That of the episode.
        episode: The one that is looked at.
        place: Of the file.
        without: Paths, groups of them, or names, that are left out.

    Raises:
        SchemaMismatchError: No column is left, or one of `without` is nothing.
    """
    columns, unused = Hdf5Columns(), set(without)
    fps, declared = layout.fps(file), layout.columns if isinstance(layout, DeclaredLayout) else {}
    listed = list(layout.sources(file, episode))
    steps = typical(_looked_at(listed, file, episode))
    for name, source in listed:
        named = name if name in declared else unique(name, source.path + source.attribute, columns.columns)
        kind = declared[name].type if name in declared else None
        asked = {one for one in without if _names(one, source, named, episode)}
        unused -= asked
        why = "left out as asked" if asked else layout.omitted.get(str(source), "")
        if not why and named != name and source.attribute:
            why = "an attribute that another column is called as"
        typing = Hdf5Typing(steps=steps, fps=fps, declared=kind)
        column = why or _column_or_why(named, source, typing, file, episode)
        if isinstance(column, Hdf5Column):
            columns.add(column)
        elif name in declared and not asked:
            raise InvalidMetadataError(in_line(f"Column {name!r} of the mapping, from {str(source)!r}: {column}."))
        else:
            columns.leave_out(source, column)
    for column in layout.beside(episode, place):
        if column.name not in without:
            columns.add(column)
        unused.discard(column.name)
    if unused:
        raise SchemaMismatchError(
            f"{place.path}: nothing is called {min(unused)!r}, to leave it out; there are {', '.join(columns.columns)}."
        )
    if not columns.columns:
        raise SchemaMismatchError(f"{place.path}: nothing that can be read is left.", path=file.blob.location)
    return columns


def _looked_at(listed: Iterable[tuple[str, Hdf5Source]], file: Hdf5File, episode: Hdf5Episode) -> Iterator[StoredArray]:
    for _, source in listed:
        path = None if source.attribute else source.filled(episode.values)
        try:
            array = None if path is None else file.array(path)
        except SeqlakeError:
            continue  # it is met again, and said
        if array is not None:
            yield array


def _names(text: str, source: Hdf5Source, column: str, episode: Hdf5Episode) -> bool:
    """Whether a source, or a group that it is in, or its column is called so."""
    path = (source.filled(episode.values) or "").strip("/")
    inner = source.path.strip("/").removeprefix("data/{episode}/")
    wanted = text.strip("/")
    return text in {column, str(source)} or any(
        one == wanted or one.startswith(f"{wanted}/") for one in (path, inner) if not source.attribute and wanted
    )


def _column_or_why(
    name: str, source: Hdf5Source, typing: Hdf5Typing, file: Hdf5File, episode: Hdf5Episode
) -> Hdf5Column | str:
    try:
        return _typed(name, source, typing, file, episode)
    except NoColumnError as error:
        return str(error)
    except SeqlakeError as error:
        return error.message.rstrip(".")


def _typed(name: str, source: Hdf5Source, typing: Hdf5Typing, file: Hdf5File, episode: Hdf5Episode) -> Hdf5Column:
    path = source.filled(episode.values)
    if path is None:
        raise NoColumnError("the first episode does not have it")
    if source.attribute:
        value = plain(file.attribute(path, source.attribute))
        value = keyed(value, source.key, file.name, str(source))
        if value is None:
            raise NoColumnError("no attribute of this name that is read")
        return typing.of_attribute(name, source, value)
    array = file.array(path)
    if array is None:
        raise NoColumnError(f"{file.name} has no data set {path!r}")
    return typing.of_array(name, source, array, file)

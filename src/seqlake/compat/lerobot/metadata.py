"""What `dataset.meta` is asked for: `info.json`, tasks, episodes and statistics, of every version of the layout."""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from seqlake.compat.lerobot.refusing import OF_METADATA, Refuses
from seqlake.errors import DatasetNotFoundError, InvalidMetadataError, MissingDependencyError
from seqlake.files.stores import exists, open_store, read_all
from seqlake.formats.lerobot import episodes as listing
from seqlake.formats.lerobot.layout import EPISODES_STATS_JSONL, STATS, VERSIONS, fill
from seqlake.formats.lerobot.scan import scan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from seqlake.formats.lerobot.metadata import Info
    from seqlake.formats.lerobot.scan import LeRobotFolder
    from seqlake.protocols import Ints

Statistics = dict[str, dict[str, Any]]


def folder_of(repo_id: str | None, root: str | os.PathLike[str] | None, /) -> str:
    """Where a dataset lies: `root`, or where lerobot itself keeps what has that name.

    Raises:
        DatasetNotFoundError: Neither is given, or lerobot has nothing of that name here.
    """
    if root is not None:
        return os.fspath(root)
    if repo_id is None:
        raise DatasetNotFoundError("Expected root=, the folder of a LeRobot dataset, or its repo_id.")
    cache = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser() / "lerobot"
    folder = Path(os.environ.get("HF_LEROBOT_HOME", cache)).expanduser() / repo_id
    if not folder.exists():
        raise DatasetNotFoundError(
            f"{folder} is not there; nothing is downloaded.",
            path=str(folder),
            hint="Give root=, the folder of the dataset, or download it with lerobot first.",
        )
    return str(folder)


_PER_METRE = {"m": 1.0, "mm": 1000.0}
_SAY: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "say",
        "description": "Speak a short utterance to the user via the TTS executor.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "The verbatim text to speak."}},
            "required": ["text"],
        },
    },
}
"""The tool that lerobot 0.6 offers where a dataset declares none, word for word: chat templates show it to models."""


class EpisodeTable:
    """All episodes, by the order of their numbers: `episodes["length"]` is a column, `episodes[3]` a row.

    Args:
        columns: Name -> one value an episode.

    Example:
        >>> EpisodeTable({"length": [30, 41]})[1]
        {'length': 41}
    """

    def __init__(self, columns: Mapping[str, Sequence[Any]], /) -> None:
        self._columns = {name: list(values) for name, values in columns.items()}

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return list(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), []))

    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    def __getitem__(self, key: str | int) -> list[Any] | dict[str, Any]:
        if isinstance(key, str):
            return self._columns[key]
        return {name: values[key] for name, values in self._columns.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"EpisodeTable({len(self)} episodes: {', '.join(self._columns)})"


class LeRobotDatasetMetadata(Refuses):
    """`meta/` of a LeRobot folder, under the names that lerobot's class has; v2.0 and v2.1 give what v3.0 does.

    Args:
        repo_id: The dataset's name; where `root` is not given, also its folder in lerobot's cache.
        root: The folder.
        revision: Not used: what is in the folder is read.
        force_cache_sync: Not used: nothing is downloaded.

    Raises:
        DatasetNotFoundError: No such folder.
        InvalidMetadataError: What is in `meta/` cannot be used.

    Example:
        ```python
        LeRobotDatasetMetadata(root="lerobot/pusht").stats["action"]["mean"]
        ```
    """

    refused = OF_METADATA

    def __init__(
        self,
        repo_id: str | None = None,
        root: str | os.PathLike[str] | None = None,
        revision: str | None = None,
        force_cache_sync: bool = False,  # noqa: FBT001, FBT002 - as the official class has it
    ) -> None:
        del force_cache_sync
        location = folder_of(repo_id, root)
        self._revision = revision
        self._take(scan(location), repo_id or Path(location).name)

    @classmethod
    def of(cls, rows: LeRobotFolder, repo_id: str, /) -> LeRobotDatasetMetadata:
        """Those of a folder that was looked at.

        Args:
            rows: What `scan` gave.
            repo_id: The dataset's name.
        """
        metadata = cls.__new__(cls)
        metadata._take(rows, repo_id)  # noqa: SLF001 - its own class
        return metadata

    _revision: str | None = None
    _depth_unit: str | None = None  # as it was recorded
    repo_type = "dataset"
    """What the Hub calls it; the official class also knows buckets."""

    def _take(self, rows: LeRobotFolder, repo_id: str) -> None:
        self.repo_id: str = repo_id
        self.root: Path = Path(rows.root)
        self._rows = rows

    @property
    def _info(self) -> Info:
        return self._rows.info

    @cached_property
    def info(self) -> dict[str, Any]:
        """`info.json` as it is."""
        return dict(self._info.fields)

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """Name -> dtype, shape and names; shapes are tuples."""
        declared: dict[str, dict[str, Any]] = self.info["features"]
        return {name: {**one, "shape": self._info.features[name].shape} for name, one in declared.items()}

    @property
    def fps(self) -> float:
        """Steps per second, of all features."""
        return self._info.fps

    @property
    def revision(self) -> str:
        """The version that was asked for, else that of the folder's layout."""
        return self._revision or self._info.version

    @property
    def url_root(self) -> str:
        """The dataset on the Hub, by its name."""
        return f"hf://datasets/{self.repo_id}"

    @property
    def data_path(self) -> str:
        """The name of data files, to be filled with numbers."""
        return str(self.info.get("data_path") or VERSIONS[self._info.version].data)

    @property
    def video_path(self) -> str | None:
        """The name of videos, to be filled; None without videos."""
        return (self.info.get("video_path") or VERSIONS[self._info.version].video) if self.video_keys else None

    @property
    def chunks_size(self) -> int:
        """Files of a chunk (v3.0), or episodes."""
        return int(self.info.get("chunks_size", 1000))

    @property
    def data_files_size_in_mb(self) -> int:
        """MB at which a data file is full; of v2 what lerobot takes for v3.0."""
        return int(self.info.get("data_files_size_in_mb", 100))

    @property
    def video_files_size_in_mb(self) -> int:
        """The same of videos."""
        return int(self.info.get("video_files_size_in_mb", 200))

    def get_chunk_settings(self) -> dict[str, int]:
        """The three numbers above, by their names.

        Example:
            ```python
            dataset.meta.get_chunk_settings()["chunks_size"]  # 1000
            ```
        """
        return {
            "chunks_size": self.chunks_size,
            "data_files_size_in_mb": self.data_files_size_in_mb,
            "video_files_size_in_mb": self.video_files_size_in_mb,
        }

    def get_data_file_path(self, ep_index: int) -> Path:
        """Where the steps of an episode lie, relative to the root.

        Args:
            ep_index: The episode's number.

        Raises:
            IndexError: There is no such episode.

        Example:
            ```python
            dataset.meta.get_data_file_path(3)  # PosixPath('data/chunk-000/file-000.parquet')
            ```
        """
        return self._file_path(ep_index, self.data_path, "data", {})

    def get_video_file_path(self, ep_index: int, vid_key: str) -> Path:
        """The same of the video of a camera.

        Args:
            ep_index: The episode's number.
            vid_key: The camera.

        Raises:
            IndexError: There is no such episode.
            KeyError: There is no such camera.

        Example:
            ```python
            dataset.meta.get_video_file_path(3, "observation.images.top")
            ```
        """
        if vid_key not in self.video_keys:
            raise KeyError(f"No video {vid_key!r}; there are {', '.join(self.video_keys) or 'none'}.")
        return self._file_path(ep_index, str(self.video_path), f"videos/{vid_key}", {"video_key": vid_key})

    def _file_path(self, number: int, template: str, prefix: str, values: dict[str, int | str]) -> Path:
        if not 0 <= number < self.total_episodes:
            raise IndexError(f"Episode {number} is none of the {self.total_episodes}.")
        if self._info.shared:
            row = self.episodes[number]
            values |= {name: int(row[f"{prefix}/{name}"]) for name in ("chunk_index", "file_index")}
        else:
            values |= {"episode_chunk": number // self.chunks_size, "episode_index": number}
        return Path(fill(template, values, what="the name of a file"))

    @property
    def robot_type(self) -> str | None:
        """The robot, where it is named."""
        return self._info.robot_type

    @property
    def image_keys(self) -> list[str]:
        """Features that are images in the rows."""
        return [name for name, one in self._info.features.items() if one.stored == "image"]

    @property
    def video_keys(self) -> list[str]:
        """Features that are videos."""
        return [name for name, one in self._info.features.items() if one.stored == "video"]

    @property
    def camera_keys(self) -> list[str]:
        """Both, in the order of the features."""
        return [name for name, one in self._info.features.items() if one.stored in {"image", "video"}]

    @property
    def depth_keys(self) -> list[str]:
        """Cameras of depth among both."""
        flags = ("is_depth_map", "video.is_depth_map")
        every = self._info.features
        return [name for name in self.camera_keys if any(every[name].info.get(flag) is True for flag in flags)]

    @property
    def has_language_columns(self) -> bool:
        """Whether steps carry annotations, which lerobot's own collation puts together."""
        return any(one.stored == "language" for one in self._info.features.values())

    @property
    def tools(self) -> list[dict[str, Any]]:
        """What an assistant may call, as chat templates take it: those of `info.json`, else lerobot's own `say`."""
        declared = self.info.get("tools") or [_SAY]
        return [dict(one) for one in declared]

    @property
    def names(self) -> dict[str, Any]:
        """What the dimensions of each feature are called."""
        return {name: one.names for name, one in self._info.features.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one step of each feature."""
        return {name: one.shape for name, one in self._info.features.items()}

    @property
    def total_episodes(self) -> int:
        """Episodes that are listed."""
        return len(self._rows.files.episodes)

    @property
    def total_frames(self) -> int:
        """Steps of all of them."""
        return int(self._rows.files.episodes.length.sum())

    @property
    def total_tasks(self) -> int:
        """Tasks that are listed."""
        return len(self.task_names)

    @cached_property
    def task_names(self) -> dict[int, str]:
        """Number of each task -> its text."""
        return listing.task_names(open_store(self._rows.root), self._info)

    @cached_property
    def subtask_names(self) -> dict[int, str]:
        """Number of each subtask -> its text; empty where none are listed."""
        return listing.subtask_names(open_store(self._rows.root))

    @property
    def subtasks(self) -> Any:
        """The same of subtasks, `subtask_index` by their text; None where none are listed."""
        return _numbered(self.subtask_names, "subtask") if self.subtask_names else None

    @property
    def tasks(self) -> Any:
        """A pandas frame as lerobot has it: `task_index` by the text of the task.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        return _numbered(self.task_names, "task")

    def get_task_index(self, task: str) -> int | None:
        """The number of a task; None where none is called so."""
        return next((number for number, text in self.task_names.items() if text == task), None)

    @cached_property
    def episodes(self) -> EpisodeTable:
        """Where each episode begins and ends, and what else is known of it."""
        listed = self._rows.files.episodes
        order = np.argsort(listed.index, kind="stable")
        ends = np.cumsum(listed.length)  # rows lie in the order of their files
        columns: dict[str, Any] = {
            name: listed.table[name].take(order).to_pylist() for name in listed.table.schema.names
        }
        columns |= {"episode_index": listed.index[order].tolist(), "length": listed.length[order].tolist()}
        columns["tasks"] = listed.tasks().take(order).to_pylist()
        columns["dataset_from_index"] = (ends - listed.length)[order].tolist()
        columns["dataset_to_index"] = ends[order].tolist()
        return EpisodeTable(columns)

    def filter_episodes(
        self, predicate: Callable[[dict[str, Any]], bool], candidates: Sequence[int] | None = None
    ) -> list[int]:
        """The numbers of the episodes that a function takes, ascending.

        Args:
            predicate: Of one row of `episodes`.
            candidates: Only these are looked at; None: all.

        Example:
            ```python
            LeRobotDataset(root=root, episodes=meta.filter_episodes(lambda one: one["length"] > 100))
            ```
        """
        among = None if candidates is None else set(candidates)
        rows = (one for one in self.episodes if among is None or one["episode_index"] in among)
        return sorted(int(one["episode_index"]) for one in rows if predicate(one))

    def rescale_depth_stats(self, output_unit: str) -> None:
        """Have the statistics of depth in the unit in which frames come; said again, it changes nothing.

        Args:
            output_unit: `"mm"` or `"m"`. Cameras whose `depth_unit` nobody recorded keep theirs.

        Raises:
            ValueError: Another unit.

        Example:
            ```python
            dataset.meta.rescale_depth_stats("m")
            ```
        """
        if output_unit not in _PER_METRE:
            raise ValueError(f"output_unit: expected 'm' or 'mm', found {output_unit!r}.")
        before, self._depth_unit = self._depth_unit, output_unit
        if "stats" in self.__dict__ and self.stats is not None:
            self._rescale(self.stats, before)

    def _rescale(self, stats: Statistics, before: str | None) -> None:
        """Bring statistics of depth from a unit (None: the recorded one) to that in which they are wanted."""
        for name in self.depth_keys if self._depth_unit is not None else ():
            recorded = self._info.features[name].info.get("depth_unit")
            if recorded in _PER_METRE and name in stats:
                factor = _PER_METRE[self._depth_unit or recorded] / _PER_METRE[before or recorded]
                stats[name] = {key: one if key == "count" else one * factor for key, one in stats[name].items()}

    @cached_property
    def stats(self) -> Statistics | None:
        """Feature -> statistic -> array; None where none are kept. Those of v2.1 are put together from its episodes.

        Depth is in the unit in which a `LeRobotDataset` gives its frames, or as it was recorded where nobody said one.

        Raises:
            InvalidMetadataError: They cannot be used.
        """
        stats = self._kept_stats()
        if stats is not None:
            self._rescale(stats, None)
        return stats

    def _kept_stats(self) -> Statistics | None:
        """Those of the folder.

        Raises:
            InvalidMetadataError: They cannot be used.
        """
        store = open_store(self._rows.root)
        if exists(store, STATS):
            try:
                stored = json.loads(read_all(store.blob(STATS)))
                return {name: {key: np.array(value) for key, value in one.items()} for name, one in stored.items()}
            except (ValueError, AttributeError, RecursionError) as error:
                raise InvalidMetadataError(f"{self.root / STATS} holds no statistics: {error}.") from None
        if not exists(store, EPISODES_STATS_JSONL):
            return None
        lines = listing.read_lines(store, EPISODES_STATS_JSONL)
        try:
            return _together([line["stats"] for line in lines])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidMetadataError(
                f"{self.root / EPISODES_STATS_JSONL} holds no statistics of episodes: {error!r}."
            ) from None

    def __repr__(self) -> str:
        return (
            f"LeRobotDatasetMetadata({self.repo_id!r}: {self.total_episodes} episodes, {self.total_frames} frames, "
            f"{', '.join(self.features)})"
        )


def _numbered(names: Mapping[int, str], kind: str) -> Any:
    """Numbers by texts, as a frame of pandas."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingDependencyError("This needs the package 'pandas': pip install pandas") from error
    frame = pd.DataFrame({f"{kind}_index": list(names)}, index=list(names.values()))
    frame.index.name = kind
    return frame


def _together(parts: Sequence[Mapping[str, Mapping[str, Any]]]) -> Statistics:
    """Statistics of all episodes from those of each: exact, but for quantiles, which cannot be had so."""
    whole: Statistics = {}
    for name in parts[0] if parts else ():
        of = [{key: np.asarray(value, np.float64) for key, value in one[name].items()} for one in parts if name in one]
        counts: Ints = np.array([int(one["count"].reshape(-1)[0]) for one in of], np.int64)
        means, deviations = np.stack([one["mean"] for one in of]), np.stack([one["std"] for one in of])
        weights = (counts / max(int(counts.sum()), 1)).reshape(-1, *[1] * (means.ndim - 1))
        mean = (means * weights).sum(0)
        variance = ((deviations**2 + (means - mean) ** 2) * weights).sum(0)
        whole[name] = {
            "min": np.stack([one["min"] for one in of]).min(0),
            "max": np.stack([one["max"] for one in of]).max(0),
            "mean": mean,
            "std": np.sqrt(variance),
            "count": np.array([counts.sum()]),
        }
    return whole

"""`LeRobotDataset`: items as lerobot's class gives them, gathered by the loader from the folder as it is."""

from __future__ import annotations

import operator
from functools import cached_property
from pathlib import Path
from pprint import pformat
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.compat.lerobot.collating import items_of
from seqlake.compat.lerobot.metadata import LeRobotDatasetMetadata, folder_of
from seqlake.compat.lerobot.refusing import OF_DATASET, Refuses
from seqlake.compat.lerobot.steps import hf_features, steps_of
from seqlake.dataset.selection import Selection
from seqlake.errors import ColumnNotFoundError
from seqlake.formats.lerobot.columns import EPISODE
from seqlake.formats.lerobot.scan import scan
from seqlake.plugins import require
from seqlake.training.lending import room
from seqlake.training.loader import Loader
from seqlake.windows.spec import Window

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from seqlake.formats.lerobot.episodes import Episodes
    from seqlake.formats.lerobot.metadata import LeRobotFeature
    from seqlake.protocols import Ints
    from seqlake.training.torch import WindowDataset

Item = dict[str, Any]
_TEXTS = frozenset({"text", "language"})
TIMESTAMP = "timestamp"
_MOST_SAID = 1024  # cells of texts that a process keeps


class LeRobotDataset(Refuses):
    """A map-style dataset with the items, keys, padding and dtypes of lerobot's own class; one item a frame.

    Folders of v2.0, v2.1 and v3.0 are read in place. Signals are gathered by the engine of `Loader`, frames are found
    by their number, not by a time that drifts. torch's `DataLoader` asks for the items of a batch together
    (`__getitems__`); `batch` gives them stacked. Pickles as a description: workers open files for themselves.

    Args:
        repo_id: The dataset's name; where `root` is not given, also its folder in lerobot's cache.
        root: The folder.
        episodes: Numbers of the episodes to keep; all by default. `index` stays that of the whole dataset.
        image_transforms: Called with each camera's frames, float32 [3, height, width] or [W, 3, height, width]; not
            with depth.
        delta_timestamps: Feature -> seconds from the frame, as `{"action": [0.0, 0.1]}`: the item then holds [W, ...]
            and `<feature>_is_pad` [W], True where the episode has no such step and the nearest one stands for it.
        tolerance_s: How far, in seconds, those may be from a multiple of 1/fps, and the `timestamp` of a step from the
            time of the video frame that it is given.
        revision: Not used: what is in the folder is read.
        force_cache_sync: Not used: nothing is downloaded.
        download_videos: Not used.
        video_backend: Kept and not used: frames are decoded by PyAV.
        return_uint8: Frames as uint8 0 to 255 instead of float32 0 to 1: a quarter of the bytes.
        depth_output_unit: Of depth maps, float32 [1, height, width]: `"mm"`, rounded, or `"m"`; as lerobot 0.6 has it.

    Attributes:
        meta: What `meta/` holds.
        delta_indices: Feature -> steps from the frame; None without `delta_timestamps`.

    Raises:
        DatasetNotFoundError: No such folder, or nothing lists its episodes.
        ColumnNotFoundError: `delta_timestamps` names no feature; a `KeyError`, too.
        ValueError: A time is no multiple of 1/fps, or there is no such episode.
        TypeError: `delta_timestamps` names a feature of texts, or `image_transforms` cannot be called.

    Example:
        ```python
        from seqlake.compat.lerobot import LeRobotDataset

        dataset = LeRobotDataset(root="lerobot/pusht", delta_timestamps={"action": [0.0, 0.1, 0.2]})
        dataset[7]["action_is_pad"]                 # tensor([False, False, False])
        ```
    """

    refused = OF_DATASET

    def __init__(
        self,
        repo_id: str | None = None,
        root: str | os.PathLike[str] | None = None,
        episodes: Sequence[int] | None = None,
        image_transforms: Callable[[Any], Any] | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        tolerance_s: float = 1e-4,
        revision: str | None = None,
        force_cache_sync: bool = False,  # noqa: FBT001, FBT002 - as the official class has it
        download_videos: bool = True,  # noqa: FBT001, FBT002 - as the official class has it
        video_backend: str | None = None,
        *,
        return_uint8: bool = False,
        depth_output_unit: str = "mm",
    ) -> None:
        del force_cache_sync, download_videos
        location = folder_of(repo_id, root)
        rows = scan(location)
        self.repo_id: str = repo_id or Path(location).name
        self.root: Path = Path(location)
        self.revision: str = revision or rows.info.version
        self.video_backend: str = video_backend or "pyav"
        self.set_image_transforms(image_transforms)
        self.delta_timestamps: dict[str, Sequence[float]] | None = (
            None if delta_timestamps is None else dict(delta_timestamps)
        )
        self.tolerance_s = tolerance_s
        self.return_uint8 = return_uint8
        if depth_output_unit not in {"m", "mm"}:
            raise ValueError(f"depth_output_unit: expected 'm' or 'mm', found {depth_output_unit!r}.")
        self.depth_output_unit = depth_output_unit
        self.meta: LeRobotDatasetMetadata = LeRobotDatasetMetadata.of(rows, self.repo_id)
        self.meta.rescale_depth_stats(depth_output_unit)
        self.episodes: list[int] | None = None if episodes is None else [int(one) for one in episodes]
        self._rows = rows
        self._columns = {feature.name: name for name, feature in rows.files.columns.steps.items()}
        self._columns |= {feature.name: name for name, feature in rows.files.columns.cameras.items()}
        self.delta_indices: dict[str, list[int]] | None = self._offsets()
        self._kept = self._selected()

    @cached_property
    def _windows(self) -> WindowDataset:
        """The windows of all frames, without their pictures; opened by the process that first asks."""
        columns: dict[str, Any] = {name: _with_now(self._asked(feature)) for feature, name in self._signals.items()}
        if TIMESTAMP in self._columns:
            columns[self._columns[TIMESTAMP]] += [step for one in self.meta.video_keys for step in self._asked(one)]
        return self._opened(columns)

    @cached_property
    def _pictures(self) -> dict[tuple[int, ...], tuple[list[str], WindowDataset]]:
        """Steps -> the features of which these are asked, and their pictures, one a window: several show the same."""
        features: dict[tuple[int, ...], list[str]] = {}
        for name in self.meta.camera_keys:
            if name in self._columns:
                features.setdefault(tuple(self._asked(name)), []).append(name)
        clock = list(self._signals.values())[:1]  # so that these windows are those of `_windows`
        return {
            asked: (names, self._opened({name: [0] for name in (*clock, *map(self._columns.__getitem__, names))}))
            for asked, names in features.items()
        }

    @property
    def _signals(self) -> dict[str, str]:
        """Feature -> column of all that windows hold but pictures."""
        texts = {name for name, feature in self._rows.info.features.items() if feature.stored in _TEXTS}
        others = texts | {*self.meta.camera_keys}
        return {name: column for name, column in self._columns.items() if name not in others}

    def _opened(self, columns: Mapping[str, Any]) -> WindowDataset:
        window = Window({EPISODE: None, **columns}, edges="clamp")
        return Loader(self._kept, window=window, batch_size=1, shuffle=False).dataset()

    @cached_property
    def _said(self) -> dict[tuple[str, str], Any]:
        """Texts of episodes that were asked for, by column and episode."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        made_anew = {"_windows", "_pictures", "_said", "hf_dataset"}
        return {name: value for name, value in self.__dict__.items() if name not in made_anew}

    def _offsets(self) -> dict[str, list[int]] | None:
        """Steps for seconds, refused as the official class refuses them."""
        if self.delta_timestamps is None:
            return None
        fps, wrong = self.fps, {}
        for name, times in self.delta_timestamps.items():
            if name not in self._columns and name != EPISODE:
                raise ColumnNotFoundError(
                    f"delta_timestamps: no feature {name!r}; there are {', '.join(self._columns)}."
                )
            if name != EPISODE and self._rows.info.features[name].stored in _TEXTS:
                raise TypeError(f"delta_timestamps: expected features of numbers or pictures, found texts: {name!r}.")
            outside = [time for time in times if abs(time * fps - round(time * fps)) / fps > self.tolerance_s]
            if outside or not len(times):
                wrong[name] = outside
        if wrong:
            raise ValueError(
                f"delta_timestamps: expected seconds that are multiples of 1/{fps} within {self.tolerance_s} s, at "
                f"least one a feature; found:\n{pformat(wrong)}"
            )
        return {name: [round(time * fps) for time in times] for name, times in self.delta_timestamps.items()}

    def _selected(self) -> Selection:
        every = Selection(self._rows)
        if self.episodes is None:
            return every
        missing = sorted({*self.episodes} - {*self._rows.files.episodes.index.tolist()})
        if missing or not self.episodes:
            named = str(missing[:10]) if missing else "none"
            raise ValueError(
                f"episodes: expected numbers of the {self.meta.total_episodes} episodes of {self.root}, found {named}."
            )
        return every.where(f"{EPISODE} IN ({', '.join(map(str, sorted({*self.episodes})))})")

    # ---- what the official class says of itself

    @property
    def fps(self) -> float:
        """Steps per second, of all features."""
        return self.meta.fps

    @property
    def num_frames(self) -> int:
        """Items: the frames of the selected episodes."""
        return len(self._windows)

    @property
    def num_episodes(self) -> int:
        """Episodes that are selected."""
        return self.meta.total_episodes if self.episodes is None else len({*self.episodes})

    @property
    def absolute_to_relative_idx(self) -> dict[int, int] | None:
        """The `index` of each frame -> its number here; None where all episodes are selected."""
        if self.episodes is None:
            return None
        listed = self._rows.files.episodes
        first, length = listed.whole("dataset_from_index") if self._rows.info.shared else _firsts(listed), listed.length
        kept = np.flatnonzero(np.isin(listed.index, self.episodes))
        indices = np.concatenate([np.arange(first[row], first[row] + length[row]) for row in kept.tolist()])
        return {index: number for number, index in enumerate(indices.tolist())}

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """Name -> dtype, shape and names."""
        return self.meta.features

    @cached_property
    def hf_dataset(self) -> Any:
        """The steps of the selected episodes without videos, as a `datasets.Dataset` of tensors; made when asked for.

        Items do not need it. `datasets` copies the Parquet files into its cache, as for the official class.

        Raises:
            DatasetNotFoundError: The folder is not on this machine.
            MissingDependencyError: `datasets` is not installed.
        """
        return self.load_hf_dataset()

    def load_hf_dataset(self) -> Any:
        """Another one, see `hf_dataset`.

        Example:
            ```python
            dataset.load_hf_dataset().with_format("numpy")["action"]
            ```
        """
        return steps_of(self.root, self.features, episodes=self.episodes)

    def select_columns(self, column_names: str | list[str]) -> Any:
        """Some columns of `hf_dataset`.

        Example:
            ```python
            dataset.select_columns("action")[:]["action"]
            ```
        """
        return self.hf_dataset.select_columns(column_names)

    def get_raw_item(self, idx: int) -> dict[str, Any]:
        """A row of `hf_dataset`: a step without videos, windows and transforms.

        Example:
            ```python
            dataset.get_raw_item(0)["timestamp"]
            ```
        """
        row: dict[str, Any] = self.hf_dataset[idx]
        return row

    @property
    def hf_features(self) -> Any:
        """The features of `hf_dataset`, by their names."""
        return hf_features(self.features)

    @property
    def episode_data_index(self) -> dict[str, Any]:
        """As the class of v2 had it: tensors `from` and `to`, the frames of each selected episode, counted here."""
        torch = require("torch", extra="torch")
        listed = self._rows.files.episodes
        order = np.argsort(listed.index, kind="stable")
        kept = order if self.episodes is None else order[np.isin(listed.index[order], self.episodes)]
        ends = np.cumsum(listed.length[kept])
        return {"from": torch.from_numpy(ends - listed.length[kept]), "to": torch.from_numpy(ends)}

    def get_episodes_file_paths(self) -> list[Path]:
        """The files of the selected episodes, relative to the root, each once.

        Example:
            ```python
            dataset.get_episodes_file_paths()   # [PosixPath('data/chunk-000/file-000.parquet'), ...]
            ```
        """
        numbers = range(self.meta.total_episodes) if self.episodes is None else self.episodes
        paths = [self.meta.get_data_file_path(number) for number in numbers]
        paths += [self.meta.get_video_file_path(number, name) for name in self.meta.video_keys for number in numbers]
        return list(dict.fromkeys(paths))

    def __len__(self) -> int:
        return self.num_frames

    def __repr__(self) -> str:
        return (
            f"LeRobotDataset({self.repo_id!r}: {self.num_episodes} episodes, {self.num_frames} frames, "
            f"{', '.join(self.features)})"
        )

    # ---- items

    def __getitem__(self, index: int) -> Item:
        """One frame with its windows; negative numbers count from the end.

        Raises:
            IndexError: No such frame.
            TypeError: The number is no integer.
            ValueError: The `timestamp` of a step is further than `tolerance_s` from the time of its video frame.
        """
        return self.__getitems__([index])[0]

    def __add__(self, other: Any) -> Any:
        """Both, one after the other: torch's `ConcatDataset`."""
        return require("torch.utils.data", extra="torch").ConcatDataset([self, other])

    def set_image_transforms(self, image_transforms: Callable[[Any], Any] | None) -> None:
        """Have cameras' frames transformed by another function from now on.

        Args:
            image_transforms: See the class; None for none.

        Raises:
            TypeError: It cannot be called.

        Example:
            ```python
            dataset.set_image_transforms(torchvision.transforms.v2.Resize((96, 96)))
            ```
        """
        if image_transforms is not None and not callable(image_transforms):
            raise TypeError(f"image_transforms: expected a function, found {type(image_transforms).__name__}.")
        self.image_transforms = image_transforms

    def clear_image_transforms(self) -> None:
        """Have them as they are.

        Example:
            ```python
            dataset.clear_image_transforms()
            ```
        """
        self.image_transforms = None

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        """The items of a batch, gathered together; their tensors share memory with each other.

        Raises:
            IndexError: There is no such frame.
        """
        whole = self._gathered([operator.index(one) for one in indices])
        items = items_of(whole, len(indices))
        if self.image_transforms is not None:
            transformed = [name for name in self.meta.camera_keys if name not in self.meta.depth_keys]
            for item in items:
                for name in transformed:
                    item[name] = self.image_transforms(item[name])
        return items

    def batch(self, indices: Sequence[int], /) -> Item:
        """The items of these frames stacked: what torch's `DataLoader` makes of them, without its copies.

        Args:
            indices: Which frames, in any order.

        Returns:
            Feature -> tensor [N, ...]; texts are lists.

        Raises:
            IndexError: There is no such frame.

        Example:
            ```python
            dataset.batch([0, 7, 7])["action"].shape        # torch.Size([3, 16, 2])
            ```
        """
        if self.image_transforms is None:
            return self._gathered([operator.index(one) for one in indices])
        stack = require("torch.utils.data", extra="torch").default_collate
        collated: Item = stack(self.__getitems__(indices))
        return collated

    def _gathered(self, indices: list[int]) -> Item:
        windows = self._windows.batch(indices)
        self._check_times(windows)
        seen = self._seen(indices, windows)
        tasks = self.meta.task_names
        pictures, whole, padding = Item(), Item(), Item()
        for feature in self._rows.info.features.values():
            name = EPISODE if feature.name == EPISODE else self._columns.get(feature.name)
            if name is None:
                continue
            asked = (self.delta_indices or {}).get(feature.name)
            if feature.stored in _TEXTS:
                whole[feature.name] = self._texts(name, windows)
                continue
            if name == EPISODE:
                whole[name], inside = self._episodes(windows, asked)
            elif feature.name in seen:
                # A video's window of one frame has no axis of its own there, an image's has.
                alone = asked is None or (feature.stored == "video" and len(asked) == 1)
                into = pictures if feature.stored == "video" else whole
                values, which, inside = seen[feature.name]
                into[feature.name] = self._frames(values, which, alone=alone)
            else:
                whole[feature.name] = self._tensor(windows[name][:, : len(asked or [0])], feature, asked)
                inside = windows[f"{name}_mask"]
            if asked is not None:
                padding[f"{feature.name}_is_pad"] = self._plain(~inside[:, : len(asked)])
        whole |= {key: padding[key] for name in self.delta_indices or () if (key := f"{name}_is_pad") in padding}
        whole["task"] = [tasks.get(number, "") for number in self._current(windows, "task_index")]
        if "subtask_index" in self._columns and (subtasks := self.meta.subtask_names):
            whole["subtask"] = [subtasks.get(number, "") for number in self._current(windows, "subtask_index")]
        return pictures | whole

    def _current(self, windows: Mapping[str, Any], name: str) -> list[int]:
        """[N] a number of the frame itself; as the official class has it, of the step asked for where it is one."""
        numbers, asked = windows[self._columns[name]], self._asked(name)
        place = 0 if len(asked) == 1 else _with_now(asked).index(0)
        current: list[int] = numbers.reshape(len(numbers), -1)[:, place].tolist()
        return current

    def _asked(self, name: str) -> list[int]:
        return (self.delta_indices or {}).get(name, [0])

    def _tensor(self, values: Any, feature: LeRobotFeature, asked: list[int] | None) -> Any:
        """[N, W, ...] as the official class has them: float32, int64 or bool; without W where no window was wanted."""
        kind = {"f": np.float32, "i": np.int64, "u": np.int64}.get(values.dtype.kind)
        values = values if kind is None else values.astype(kind, copy=False)
        shape = () if feature.shape == (1,) else feature.shape
        tensor = self._plain(values.reshape(*values.shape[:2], *shape))
        return tensor[:, 0] if asked is None else tensor

    def _places(self, windows: Mapping[str, Any], asked: Sequence[int]) -> tuple[Ints, Ints]:
        """[N, W] the steps that were asked for, and [N, 1] how many there are."""
        listed = self._rows.files.episodes
        order = np.argsort(listed.index)
        rows = order[np.searchsorted(listed.index, windows[EPISODE], sorter=order)]
        return windows["start"][:, None] + np.array(asked, np.int64), listed.length[rows][:, None]

    def _episodes(self, windows: Mapping[str, Any], asked: list[int] | None) -> tuple[Any, Any]:
        """The number of the episode as often as it was asked for, and which of those steps there are."""
        numbers = windows[EPISODE].astype(np.int64)
        if asked is None:
            return self._plain(numbers), None
        steps, lengths = self._places(windows, asked)
        return self._plain(np.repeat(numbers[:, None], len(asked), 1)), (steps >= 0) & (steps < lengths)

    def _check_times(self, windows: Mapping[str, Any]) -> None:
        """Frames are found by their number; the official class finds them by time, and refuses what is too far off."""
        videos = [(name, step) for name in self.meta.video_keys for step in self._asked(name)]
        if not videos or TIMESTAMP not in self._columns:
            return
        asked = [step for _, step in videos]
        times = windows[self._columns[TIMESTAMP]].reshape(len(windows[EPISODE]), -1)[:, -len(asked) :]
        steps, lengths = self._places(windows, asked)
        steps = np.clip(steps, 0, lengths - 1)
        expected = (steps / self.fps).astype(times.dtype)
        wrong = ~(np.abs(times.astype(np.float64) - expected) < self.tolerance_s)
        if wrong.any():
            row, place = np.argwhere(wrong)[0].tolist()
            raise ValueError(
                f"{videos[place][0]}: step {steps[row, place]} of episode {windows[EPISODE][row]} has the timestamp "
                f"{times[row, place]:.6f} s, its frame is shown at {expected[row, place]:.6f} s: expected them within "
                f"tolerance_s={self.tolerance_s}. A greater one gives frames by their number."
            )

    def _seen(self, indices: Sequence[int], windows: Mapping[str, Any]) -> dict[str, tuple[Any, Ints, Any]]:
        """Feature -> its pictures, each once, [n, height, width, channels]; [N, W] which, and whether they are there.

        Args:
            indices: Of the items.
            windows: Without pictures, of the same.
        """
        numbers = np.asarray(indices, np.int64) % max(1, len(self._windows))
        seen: dict[str, tuple[Any, Ints, Any]] = {}
        for asked, (features, pictures) in self._pictures.items():
            steps, lengths = self._places(windows, asked)
            there = np.clip(steps, 0, lengths - 1)
            # The steps of a row are numbered one after another, and are those that `meta/` counts: signals of another
            # length are refused where they are read.
            unique, which = np.unique((numbers - windows["start"])[:, None] + there, return_inverse=True)
            which = which.reshape(there.shape)
            batch = pictures.batch(unique.tolist())
            for feature in features:
                name = self._columns[feature]
                inside = batch[f"{name}_mask"][:, 0][which] & (steps == there)
                seen[feature] = batch[name][:, 0], which, inside
        return seen

    def _frames(self, values: Any, which: Ints, *, alone: bool) -> Any:
        """[N, W, channels, height, width] as the official class has them; depth, which is metres here, in its unit.

        Args:
            values: Pictures, [n, height, width, channels].
            which: [N, W] numbers of them.
            alone: Without W, which is 1.
        """
        values = np.moveaxis(values, -1, -3)
        shape = (*which.shape[: 1 if alone else 2], *values.shape[1:])
        if values.dtype != np.uint8:
            metres = values.astype(np.float32, copy=False)
            if self.depth_output_unit == "mm":
                metres = np.rint(metres * np.float32(1000)).clip(0, 65535)
            return self._plain(metres[which].reshape(shape))
        torch = require("torch", extra="torch")
        frames = room(shape, torch.uint8 if self.return_uint8 else torch.float32)
        laid = frames.numpy().reshape(-1, *values.shape[1:])
        firsts: dict[int, int] = {}
        for place, number in enumerate(which.reshape(-1).tolist()):
            first = firsts.setdefault(number, place)
            if first != place:
                laid[place] = laid[first]
            elif self.return_uint8:
                laid[place] = values[number]  # NumPy puts channels first in a third of the time that torch takes
            else:  # a picture at a time, which stays in the cache between its steps
                np.divide(np.ascontiguousarray(values[number]), np.float32(255), out=laid[place], dtype=np.float32)
        return frames

    def _plain(self, values: Any) -> Any:
        return require("torch", extra="torch").from_numpy(np.ascontiguousarray(values))

    def _texts(self, name: str, windows: Mapping[str, Any]) -> list[Any]:
        """[N] the text of each frame: windows hold none, so rows are asked."""
        cells, wanted = self._said, dict.fromkeys(windows["sequence_id"].tolist())
        for key in wanted:
            if (name, key) not in cells:
                cells[name, key] = self._kept[key][name]
        said = [
            cells[name, key][step]
            for key, step in zip(windows["sequence_id"].tolist(), windows["start"].tolist(), strict=True)
        ]
        while len(cells) > _MOST_SAID:
            del cells[next(iter(cells))]
        return said


def _firsts(listed: Episodes) -> Ints:
    """[episodes] the first frame of each where all lie one after another in the order of their numbers."""
    order = np.argsort(listed.index)
    firsts = np.zeros(len(listed), np.int64)
    firsts[order] = np.cumsum(listed.length[order]) - listed.length[order]
    return firsts


def _with_now(asked: list[int]) -> list[int]:
    """Offsets of a window that holds the frame itself, too: its task is asked for."""
    return asked if 0 in asked else [*asked, 0]

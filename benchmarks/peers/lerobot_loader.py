"""LeRobot's own dataset with `delta_timestamps` in torch's DataLoader; signals only."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from _importing import imported
from _running import COLUMNS, Epoch, Samples, Source, by_torch, main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FPS = 30
EPISODES = 100  # a part is enough: what it reads does not depend on the number, and it writes slowly


class LeRobot:
    name = f"lerobot {version('lerobot')}"
    sequences = EPISODES

    def write(self, samples: Samples, folder: Path) -> None:
        """Episodes, whatever the windows will be."""
        episodes = folder.with_name("episodes")
        if not episodes.exists():
            features = {
                name: {"dtype": "float32", "shape": values.shape[1:], "names": None}
                for name, values in samples.arrays.items()
            }
            dataset = dataset_class().create("local/arm", fps=FPS, features=features, root=episodes, use_videos=False)
            at = 0
            for steps in samples.lengths[:EPISODES].tolist():
                for t in range(at, at + steps):
                    dataset.add_frame({**{name: values[t] for name, values in samples.arrays.items()}, "task": "pick"})
                dataset.save_episode()
                at += steps
            dataset.finalize()
        folder.symlink_to(episodes)

    def ways(self, source: Source) -> dict[str, Callable[[], Epoch]]:
        if source.local is None or not source.width:
            return {}  # it reads frames with neighbours, and remotely only from the Hub
        return {f"delta_timestamps, {n} workers": partial(opened, source, n) for n in source.workers}


def opened(source: Source, workers: int) -> Epoch:
    offsets = [k / FPS for k in range(source.width)]
    episodes = source.local.with_name("episodes")
    dataset = dataset_class()("local/arm", root=episodes, delta_timestamps=dict.fromkeys(COLUMNS, offsets))
    inside = Inside(dataset, source.width)
    return by_torch(inside, source, workers, shuffle=True)


class Inside:
    """The windows that lie within an episode; at its end LeRobot repeats the last step."""

    def __init__(self, dataset: Any, width: int) -> None:
        self.dataset = dataset
        lengths = [int(n) for n in dataset.meta.episodes["length"]]
        ends = [sum(lengths[: k + 1]) for k in range(len(lengths))]
        self.numbers = [
            t for end, length in zip(ends, lengths, strict=True) for t in range(end - length, end - width + 1)
        ]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.dataset[self.numbers[number]]


def dataset_class() -> Any:
    return imported("lerobot.datasets.lerobot_dataset").LeRobotDataset


main(LeRobot())

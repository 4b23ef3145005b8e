"""Writes LeRobot folders with the official package, and reads them its way or ours; `benchmarks/lerobot.py` runs this.

    python benchmarks/peers/lerobot_folders.py write PLAN.json
    python benchmarks/peers/lerobot_folders.py read TASK.json

Reading answers with a line of JSON: seconds from the folder to the first batch (imports are not counted), windows a
second after some batches, and what is in a window that all ways must agree on.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FPS = 30
WARM = 4  # batches: what workers read ahead is not counted as read in no time
CHECKED = 7  # the frame whose window is compared
CAMERAS = ("observation.images.high", "observation.images.wrist")
SIGNALS = {"observation.state": 48, "action": 12}
MERGED = 10  # datasets merged at a time


# ---- writing
def write(plan: dict[str, Any]) -> None:
    """The folders of a plan that are not there yet."""
    folder = Path(plan["folder"])
    for name, made in plan["folders"].items():
        root = folder / name
        if (root / "meta" / "stats.json").exists():
            continue
        shutil.rmtree(root, ignore_errors=True)
        if made.get("times"):
            repeated(root, made)
        else:
            recorded(root, made)


def recorded(root: Path, made: dict[str, Any]) -> None:
    """Episodes of random signals, and of two cameras where a size is given."""
    from _importing import imported

    kind, size = imported("lerobot.datasets.lerobot_dataset").LeRobotDataset, made.get("size")
    features = {name: {"dtype": "float32", "shape": (count,), "names": None} for name, count in SIGNALS.items()}
    if size:
        axes = ["height", "width", "channels"]
        features |= {name: {"dtype": "video", "shape": (*size, 3), "names": axes} for name in CAMERAS}
    dataset = kind.create("local/arm", fps=FPS, features=features, root=root, use_videos=bool(size))
    random = np.random.default_rng(0)
    for number in range(made["episodes"]):
        films = [film(2 * number + place, made["frames"], size) for place in range(2)] if size else []
        for _ in range(made["frames"]):
            values = {name: random.normal(size=count).astype(np.float32) for name, count in SIGNALS.items()}
            pictures = {name: next(one) for name, one in zip(CAMERAS, films, strict=bool(size))} if size else {}
            dataset.add_frame({**values, **pictures, "task": "pick"})
        dataset.save_episode()
    dataset.finalize()


def film(seed: int, frames: int, size: list[int]) -> Iterator[np.ndarray]:
    """Coarse blocks that move, with noise: uint8 [height, width, 3]."""
    random = np.random.default_rng(seed)
    height, width = size
    ground = np.kron(random.integers(0, 256, (-(-height // 8), -(-width // 8), 3)), np.ones((8, 8, 1)))
    ground = ground[:height, :width]
    for number in range(frames):
        noise = random.normal(0, 3, (height, width, 1))
        yield np.clip(np.roll(ground, 3 * number, 1) + noise, 0, 255).astype(np.uint8)


def repeated(root: Path, made: dict[str, Any]) -> None:
    """A few episodes again and again, put together by the package's own tool, which copies packets."""
    from _importing import imported

    kind = imported("lerobot.datasets.lerobot_dataset").LeRobotDataset
    merge = imported("lerobot.datasets.dataset_tools").merge_datasets
    part = root.with_name(f"{root.name}-part")
    shutil.rmtree(part, ignore_errors=True)
    recorded(part, made)
    times, at = made["times"], part
    while times > 1:
        count = min(MERGED, times)
        target = root if times <= MERGED else root.with_name(f"{root.name}-part{times}")
        shutil.rmtree(target, ignore_errors=True)
        merge([kind("local/arm", root=at) for _ in range(count)], "local/arm", target)
        at, times = target, times // count


# ---- reading
def read(task: dict[str, Any]) -> dict[str, Any]:
    """One way to read windows of one folder."""
    import torch

    torch.set_num_threads(2)
    opened: Callable[[dict[str, Any]], tuple[Any, Callable[[], Any]]]
    opened = {"official": official, "drop-in": drop_in, "loader": loader}[task["way"]]
    if task["way"] == "official":
        official_class()
    else:
        import seqlake.compat.lerobot  # noqa: F401 - so that its import is not counted
    begin = time.perf_counter()
    epochs, window = opened(task)
    batches = forever(epochs)
    next(batches)
    first = time.perf_counter() - begin
    for _ in islice(batches, WARM):
        pass
    name, count, begin = next(iter(task["features"])), 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < task["seconds"]:
        count += len(next(batches)[name])
    return {"first_batch_s": first, "per_second": count / spent, "window": window()}


def forever(epochs: Any) -> Iterator[Any]:
    while True:
        yield from epochs


def official_class() -> Any:
    from _importing import imported

    return imported("lerobot.datasets.lerobot_dataset").LeRobotDataset


def official(task: dict[str, Any]) -> tuple[Any, Callable[[], Any]]:
    return in_data_loader(official_class()("local/arm", root=task["root"], delta_timestamps=times(task)), task)


def drop_in(task: dict[str, Any]) -> tuple[Any, Callable[[], Any]]:
    from seqlake.compat.lerobot import LeRobotDataset

    options = {"return_uint8": True} if task.get("uint8") else {}
    return in_data_loader(LeRobotDataset("local/arm", root=task["root"], delta_timestamps=times(task), **options), task)


def in_data_loader(dataset: Any, task: dict[str, Any]) -> tuple[Any, Callable[[], Any]]:
    import torch

    workers, order = task["workers"], {"shuffle": True}
    if task.get("visits"):
        from seqlake.compat.lerobot import VisitSampler

        order = {"sampler": VisitSampler(dataset, visits=task["visits"])}
    batches = torch.utils.data.DataLoader(
        dataset, batch_size=task["batch"], num_workers=workers, persistent_workers=workers > 0, **order
    )
    return batches, lambda: summed({name: dataset[CHECKED][name] for name in task["features"]})


def loader(task: dict[str, Any]) -> tuple[Any, Callable[[], Any]]:
    import seqlake as sl

    rows = sl.open(task["root"])
    window = sl.Window(dict.fromkeys(task["features"], range(task["width"])), edges="clamp")
    shuffle = sl.Shuffle(visits=task.get("visits", 1))
    made = sl.Loader(rows, window=window, batch_size=task["batch"], shuffle=shuffle)

    def checked() -> Any:
        item = sl.Loader(rows, window=window, batch_size=1, shuffle=False).dataset()[CHECKED]
        return summed({name: np.asarray(item[name]) for name in task["features"]})

    return made, checked


def times(task: dict[str, Any]) -> dict[str, list[float]]:
    return {name: [step / FPS for step in range(task["width"])] for name in task["features"]}


def summed(window: dict[str, Any]) -> dict[str, float]:
    """The mean of each feature, of frames between 0 and 1."""
    found = {}
    for name, values in window.items():
        plain = np.asarray(values)
        found[name] = float(plain.astype(np.float64).mean() / (255 if plain.dtype == np.uint8 else 1))
    return found


if __name__ == "__main__":
    said = json.loads(Path(sys.argv[2]).read_text())
    if sys.argv[1] == "write":
        write(said)
    else:
        print(json.dumps(read(said)), flush=True)

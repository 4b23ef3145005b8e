"""The official package in an environment of its own: writes folders, edits them, and says what it reads from each.

Run as a script by that environment's Python: `official.py OUT [V21]`. It leaves OUT/<name> for each folder, and in
OUT/truth.pkl what the package itself gives for each step of it. V21 is a folder of v2.1, which its converter turns
into v3.0 (the older folder is NAME_old then).
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[3]
VARIABLE = "SEQLAKE_LEROBOT_PYTHON"
FPS, SIZE = 30, (48, 64)
LENGTHS = (12, 41, 7, 25, 3)
TASKS = ("pick", "pick", "place", "wipe", "pick")
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (6,), "names": [f"j{k}" for k in range(6)]},
    "action": {"dtype": "float64", "shape": (3,), "names": None},
    "pose": {"dtype": "float32", "shape": (2, 3), "names": None},
    "touched": {"dtype": "bool", "shape": (4,), "names": None},
    "observation.images.top": {"dtype": "video", "shape": (*SIZE, 3), "names": ["height", "width", "channels"]},
    "observation.images.wrist": {"dtype": "video", "shape": (*SIZE, 3), "names": ["height", "width", "channels"]},
    "observation.images.still": {"dtype": "image", "shape": (*SIZE, 3), "names": ["height", "width", "channels"]},
}


def python() -> str | None:
    """The interpreter that has the package; None where there is none."""
    made = ROOT / "benchmarks" / ".venv-lerobot" / "bin" / "python"
    return os.environ.get(VARIABLE) or (str(made) if made.exists() else None)


def main(out: Path, older: Path | None) -> None:
    package = imported("lerobot.datasets.lerobot_dataset")
    tools = imported("lerobot.datasets.dataset_tools")
    truth = {}
    recorded = written(package.LeRobotDataset, out / "recorded")
    tiny = {"data_files_size_in_mb": 0.001, "video_files_size_in_mb": 0.001, "chunks_size": 2}
    small = written(package.LeRobotDataset, out / "small", seed=7, **tiny)
    truth["recorded"], truth["small"] = items(recorded), items(small)
    # Its tools cannot take matrices.
    flat = [written(package.LeRobotDataset, out / f"flat{seed}", seed=seed, without=("pose",)) for seed in (1, 2)]
    fewer = tools.delete_episodes(flat[0], [1], out / "deleted", "local/deleted")
    truth["deleted"] = items(fewer)
    merged = tools.merge_datasets(flat, "local/merged", out / "merged")
    truth["merged"] = items(merged)
    if older is not None:
        sys.modules.setdefault("requests", SimpleNamespace(HTTPError=OSError))  # only that name of it is imported
        converter = imported("lerobot.datasets.v30.convert_dataset_v21_to_v30")
        converter.convert_dataset(older.name, root=str(older.parent), push_to_hub=False)  # what was goes to NAME_old
        truth[older.name] = truth[f"{older.name}_old"] = items(package.LeRobotDataset("local/older", root=older))
    truth["drawn"] = []
    for name, options in drawn():
        dataset = package.LeRobotDataset("local/arm", root=out / name, **options)
        meta = {
            "fps": dataset.fps,
            "counts": (len(dataset), dataset.num_frames, dataset.num_episodes),
            "keys": (dataset.meta.camera_keys, dataset.meta.video_keys, dataset.meta.image_keys),
            "shapes": dataset.meta.shapes,
            "names": dataset.meta.names,
            "stats": dataset.meta.stats,
            "tasks": dataset.meta.tasks.to_dict(),
            "episodes": [list(dataset.meta.episodes[f"dataset_{one}_index"]) for one in ("from", "to")],
        }
        truth["drawn"].append((name, options, items(dataset), meta))
    truth["sampled"] = [
        (name, options, settings, sampled(out / name, options, settings)) for name, options, settings in sampling()
    ]
    truth["public"] = {"dataset": public(recorded), "meta": public(recorded.meta)}
    truth["steps"] = [
        (one, steps(package.LeRobotDataset("local/arm", root=out / "recorded", episodes=one))) for one in (None, [3, 1])
    ]
    truth["refused"] = [(options, place, refusal(out / "recorded", options, place)) for options, place in refusals()]
    shifted(out / "recorded", out / "late")
    truth["late"] = {tolerance: late(out / "late", tolerance) for tolerance in TOLERANCES}
    (out / "truth.pkl").write_bytes(pickle.dumps(truth))


def imported(name: str) -> Any:
    """A module of the package."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
    from _importing import imported

    return imported(name)


def written(kind: Any, root: Path, *, seed: int = 0, without: tuple[str, ...] = (), **limits: Any) -> Any:
    features = {name: feature for name, feature in FEATURES.items() if name not in without}
    dataset = kind.create("local/arm", fps=FPS, features=features, root=root, robot_type="so100")
    dataset.meta.info |= limits
    rng = np.random.default_rng(seed)
    for number, (length, task) in enumerate(zip(LENGTHS, TASKS, strict=True)):
        for step in range(length):
            picture = np.full((*SIZE, 3), 40 + 30 * number, np.uint8)
            picture[:, : 2 + step] = 220
            values = {
                "observation.state": rng.normal(size=6).astype(np.float32),
                "action": rng.normal(size=3),
                "pose": rng.normal(size=(2, 3)).astype(np.float32),
                "touched": rng.random(4) < 0.5,
                "observation.images.top": picture,
                "observation.images.wrist": picture[:, ::-1].copy(),
                "observation.images.still": picture,
                "task": task,
            }
            dataset.add_frame({name: value for name, value in values.items() if name not in without})
        dataset.save_episode()
    dataset.finalize()
    return kind("local/arm", root=root)


def drawn() -> list[tuple[str, dict[str, Any]]]:
    """Random windows of random features, some over some episodes only."""
    rng = np.random.default_rng(4)
    asked: list[tuple[str, dict[str, Any]]] = []
    for turn in range(12):
        features = rng.permutation([*FEATURES, "frame_index", "index", "episode_index"])[: 1 + turn % 5].tolist()
        steps = {name: rng.integers(-20, 30, rng.integers(1, 6)).tolist() for name in features}
        options: dict[str, Any] = {
            "delta_timestamps": {name: [step / FPS for step in some] for name, some in steps.items()}
        }
        if turn % 2:
            options["episodes"] = rng.permutation(len(LENGTHS))[: 1 + turn % 4].tolist()
        if turn % 3 == 0:
            options["delta_timestamps"]["task_index"] = [float(rng.integers(-9, 9)) / FPS]
        asked.append((("recorded", "small")[turn // 2 % 2], options))
    return asked


def sampling() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Datasets, and settings of the package's own sampler; where it takes some episodes only, the dataset has all."""
    windows = {"delta_timestamps": {"action": [-1 / FPS, 0.0, 4 / FPS], "observation.images.top": [-2 / FPS, 0.0]}}
    settings: list[dict[str, Any]] = [
        {"shuffle": True, "drop_n_last_frames": 3},
        {"shuffle": True, "episode_indices_to_use": [3, 0], "drop_n_first_frames": 2},
        {"episode_indices_to_use": [1]},
    ]
    return [(name, windows, one) for name in ("recorded", "small") for one in settings]


def brightness(picture: Any) -> Any:
    """A transform that draws from torch's own generator, so that the order of its calls shows."""
    import torch

    return picture * torch.rand(1)


def batches(dataset: Any, sampler: Any) -> list[dict[str, Any]]:
    """What torch's `DataLoader` makes of a dataset and a sampler that were drawn from one seed."""
    import torch

    torch.manual_seed(5)
    loader = torch.utils.data.DataLoader(dataset, batch_size=6, sampler=sampler, num_workers=0)
    return [
        {name: value.numpy() if hasattr(value, "numpy") else value for name, value in batch.items()} for batch in loader
    ]


def sampled(root: Path, options: dict[str, Any], settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Batches in the order of the package's sampler."""
    datasets, sampler = imported("lerobot.datasets.lerobot_dataset"), imported("lerobot.datasets.sampler")
    dataset = datasets.LeRobotDataset("local/arm", root=root, image_transforms=brightness, **options)
    firsts, ends = (dataset.meta.episodes[f"dataset_{one}_index"] for one in ("from", "to"))
    return batches(dataset, sampler.EpisodeAwareSampler(firsts, ends, **settings))


def refusals() -> list[tuple[dict[str, Any], Any]]:
    """What is asked for in vain: the arguments, and the frame that is asked for then."""
    return [
        ({"delta_timestamps": {"action": [0.0, 0.05]}}, 0),
        ({"delta_timestamps": {"action": [0.0, 0.05]}, "tolerance_s": 0.02}, 0),
        ({"delta_timestamps": {"action": [0.0], "touched": [1.0, 1.01]}, "tolerance_s": 0.001}, 0),
        ({"delta_timestamps": {"actions": [0.0]}}, 0),
        ({"delta_timestamps": {"action": [float("nan")]}}, 0),
        ({"delta_timestamps": {"action": [float("inf")]}}, 0),
        ({"delta_timestamps": {"action": ["0.0"]}}, 0),
        ({"delta_timestamps": {"action": 0.0}}, 0),
        ({"delta_timestamps": {"task": [0.0]}}, 0),
        ({}, sum(LENGTHS)),
        ({}, -sum(LENGTHS) - 1),
        ({}, -1),
        ({}, 1.5),
        ({}, None),
        ({"image_transforms": "brighter"}, 0),
        ({"episodes": [1]}, 41),
        ({"episodes": [1]}, -41),
    ]


def refusal(root: Path, options: dict[str, Any], place: Any) -> str | None:
    """The names of the error's class and of those it comes from; None where there is an item."""
    kind = imported("lerobot.datasets.lerobot_dataset").LeRobotDataset
    try:
        kind("local/arm", root=root, **options)[place]
    except Exception as error:
        return " ".join(one.__name__ for one in type(error).__mro__)
    return None


TOLERANCES, LATE = (1e-4, 4e-3), (3, 0.004)


def shifted(root: Path, out: Path) -> None:
    """The same folder with one timestamp in five that is LATE[1] seconds off."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    shutil.copytree(root, out)
    for path in sorted(out.glob("data/*/*.parquet")):
        table = pq.read_table(path)
        times = table["timestamp"].to_numpy().copy()
        times[table["frame_index"].to_numpy() % 5 == LATE[0]] += np.float32(LATE[1] - 1e-4)
        place = table.column_names.index("timestamp")
        pq.write_table(table.set_column(place, "timestamp", pa.array(times, pa.float32())), path)


def public(one: Any) -> list[str]:
    """The names that it has for others."""
    return [name for name in dir(one) if not name.startswith("_")]


def steps(dataset: Any) -> dict[str, Any]:
    """What its steps are as a dataset of Hugging Face, and which files they lie in."""
    rows = dataset.hf_dataset
    values = {name: [plain(one) for one in rows[:][name]] for name in rows.column_names}
    paths = sorted(str(path) for path in dataset.get_episodes_file_paths())
    chunks = dataset.meta.get_chunk_settings()
    return {"values": values, "features": str(dataset.hf_features), "paths": paths, "chunks": chunks}


def plain(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value


def late(root: Path, tolerance: float) -> list[bool]:
    """Which items the package gives, where it refuses others for their time."""
    dataset = imported("lerobot.datasets.lerobot_dataset").LeRobotDataset(
        "local/arm", root=root, tolerance_s=tolerance, delta_timestamps={"observation.images.top": [-1 / FPS, 0.0]}
    )
    given = []
    for number in range(20):
        try:
            dataset[number]
        except ValueError:
            given.append(False)
        else:
            given.append(True)
    return given


def items(dataset: Any) -> list[dict[str, Any]]:
    """What the package gives for each step."""
    plain = []
    for item in (dataset[number] for number in range(len(dataset))):
        plain.append({key: value if isinstance(value, str) else value.numpy() for key, value in item.items()})
    return plain


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)

"""The official package in an environment of its own: writes folders, edits them, and says what it reads from each.

Run as a script by that environment's Python: `official.py OUT [V21]`. It leaves OUT/<name> for each folder, and in
OUT/truth.pkl what the package itself gives for each step of it. V21 is a folder of v2.1, which its converter turns
into v3.0 (the older folder is NAME_old then).
"""

from __future__ import annotations

import os
import pickle
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
    sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
    from _importing import imported

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
    (out / "truth.pkl").write_bytes(pickle.dumps(truth))


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
    for turn in range(8):
        features = rng.permutation([*FEATURES, "frame_index", "index"])[: 1 + turn % 5].tolist()
        steps = {name: rng.integers(-20, 30, rng.integers(1, 6)).tolist() for name in features}
        options: dict[str, Any] = {
            "delta_timestamps": {name: [step / FPS for step in some] for name, some in steps.items()}
        }
        if turn % 2:
            options["episodes"] = rng.permutation(len(LENGTHS))[: 1 + turn % 4].tolist()
        asked.append((("recorded", "small")[turn // 2 % 2], options))
    return asked


def items(dataset: Any) -> list[dict[str, Any]]:
    """What the package gives for each step."""
    plain = []
    for item in (dataset[number] for number in range(len(dataset))):
        plain.append({key: value if isinstance(value, str) else value.numpy() for key, value in item.items()})
    return plain


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)

"""lerobot 0.6 in an environment of its own, Python 3.12: depth, language columns, `storage_format: lance`.

Run as a script by that environment's Python: `official06.py OUT`. It leaves OUT/<name> for each folder, and in
OUT/truth.pkl what the package gives for each step of it.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[3]
VARIABLE = "SEQLAKE_LEROBOT06_PYTHON"
FPS, SIZE = 20, (48, 64)
LENGTHS = (9, 14, 5)
RGB, DEPTH, STILL, DEEP = (f"observation.images.{name}" for name in ("top", "depth", "still", "deep"))


def python() -> str | None:
    """The interpreter that has the package; None where there is none."""
    made = ROOT / "benchmarks" / ".venv-lerobot06" / "bin" / "python"
    return os.environ.get(VARIABLE) or (str(made) if made.exists() else None)


def features(*, stills: bool) -> dict[str, Any]:
    """Videos of colours and depth; with `stills` images of both, which Lance cannot hold."""
    axes = ["height", "width", "channels"]
    kinds = {
        "observation.state": {"dtype": "float32", "shape": (6,), "names": None},
        "action": {"dtype": "float32", "shape": (3,), "names": None},
        "pose": {"dtype": "float32", "shape": (2, 3), "names": None},
        RGB: {"dtype": "video", "shape": (*SIZE, 3), "names": axes},
        DEPTH: {"dtype": "video", "shape": (*SIZE, 1), "names": axes, "info": {"is_depth_map": True}},
        STILL: {"dtype": "image", "shape": (*SIZE, 3), "names": axes},
        DEEP: {"dtype": "image", "shape": (*SIZE, 1), "names": axes, "info": {"is_depth_map": True}},
    }
    return {name: kind for name, kind in kinds.items() if stills or name not in {STILL, DEEP, "pose"}}


def written(kind: Any, root: Path, *, stills: bool, seed: int = 0) -> None:
    declared = features(stills=stills)
    dataset = kind.create("local/arm", fps=FPS, features=declared, root=root, robot_type="so101")
    rng = np.random.default_rng(seed)
    for number, length in enumerate(LENGTHS):
        for step in range(length):
            picture = np.full((*SIZE, 3), 40 + 30 * number, np.uint8)
            picture[:, : 2 + step] = 220
            depth = np.linspace(300, 4000, SIZE[0] * SIZE[1]).reshape(*SIZE, 1).astype(np.uint16)
            depth[: 1 + step] = 500 + 100 * number
            values = {
                "observation.state": rng.normal(size=6).astype(np.float32),
                "action": rng.normal(size=3).astype(np.float32),
                "pose": rng.normal(size=(2, 3)).astype(np.float32),
                RGB: picture,
                DEPTH: depth,
                STILL: picture,
                DEEP: depth,
            }
            dataset.add_frame({name: values[name] for name in declared} | {"task": f"task {number % 2}"})
        dataset.save_episode()
    dataset.finalize()


def annotated(root: Path) -> None:
    """Language columns, by the package's own writer."""
    from lerobot.annotations.steerable_pipeline.reader import iter_episodes
    from lerobot.annotations.steerable_pipeline.staging import EpisodeStaging
    from lerobot.annotations.steerable_pipeline.writer import LanguageColumnsWriter
    from lerobot.datasets.language import language_feature_info

    staging = root.parent / f"{root.name}-staging"
    records = list(iter_episodes(root))
    for record in records:
        times = list(record.frame_timestamps)
        row = {"role": "assistant", "camera": None, "tool_calls": None}
        EpisodeStaging(staging, record.episode_index).write(
            "plan",
            [
                {**row, "content": f"do {record.episode_index}", "style": "subtask", "timestamp": times[0]},
                {**row, "content": "then that", "style": "subtask", "timestamp": times[3]},
            ],
        )
        EpisodeStaging(staging, record.episode_index).write(
            "interjections",
            [{**row, "role": "user", "content": "wait", "style": "interjection", "timestamp": times[2]}],
        )
    LanguageColumnsWriter().write_all(records, staging, root)
    place = root / "meta" / "info.json"
    info = json.loads(place.read_text())
    info["features"] |= language_feature_info()  # as the package's own pipeline says it
    place.write_text(json.dumps(info))


def plain(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value.numpy() if hasattr(value, "numpy") else value for key, value in item.items()}


def items(dataset: Any) -> list[dict[str, Any]]:
    """What the package gives for each step."""
    return [plain(dataset[number]) for number in range(len(dataset))]


def public(one: Any) -> list[str]:
    """The names that it has for others."""
    return [name for name in dir(one) if not name.startswith("_")]


def main(out: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from lerobot_lancedb import LanceDBDataset
    from lerobot_lancedb.convert import convert

    written(LeRobotDataset, out / "stills", stills=True)
    written(LeRobotDataset, out / "films", stills=False, seed=1)
    annotated(out / "films")
    convert(out / "lance", root=out / "films")
    times = {"action": [-0.1, 0.0, 0.5], DEPTH: [0.0, 0.05], "observation.state": [0.0]}
    truth: dict[str, Any] = {}
    for name in ("stills", "films"):
        truth[name] = items(LeRobotDataset("local/arm", root=out / name))
        truth[f"{name} windows"] = items(LeRobotDataset("local/arm", root=out / name, delta_timestamps=times))
    truth["films metres"] = items(LeRobotDataset("local/arm", root=out / "films", depth_output_unit="m"))
    truth["lance"] = items(LanceDBDataset(root=out / "lance"))
    truth["times"] = times
    dataset = LeRobotDataset("local/arm", root=out / "films")
    truth["public"] = {"dataset": public(dataset), "meta": public(dataset.meta)}
    truth["rows"] = [plain(dataset.get_raw_item(number)) for number in range(len(dataset))]
    truth["actions"] = [plain(row) for row in dataset.select_columns("action")]
    truth["tools"], truth["repo_type"] = dataset.meta.tools, dataset.meta.repo_type
    truth["long"] = dataset.meta.filter_episodes(lambda one: one["length"] > 6, candidates=[1, 2])
    for unit in ("m", "mm"):
        meta = LeRobotDataset("local/arm", root=out / "films", depth_output_unit=unit).meta
        truth[f"stats {unit}"] = {
            name: {key: np.asarray(v) for key, v in one.items()} for name, one in meta.stats.items()
        }
    (out / "truth.pkl").write_bytes(pickle.dumps(truth))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

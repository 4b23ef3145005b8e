"""The official package over folders that we wrote: `official_exported.py RECORD OUT` records one, `... READ OUT` reads.

`RECORD` leaves OUT/recorded. `READ` opens every other folder of OUT that has `meta/info.json` of v3.0, and leaves in
OUT/read.pkl what the package gives of each: its steps, windows, what it says of itself; and what its own tools
make of `flat`: one episode deleted, and the folder merged with itself.
"""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WINDOWS = {"action": [-2, 0, 5], "observation.state": [-1, 0], "observation.images.top": [-3, 0]}


def main(what: str, out: Path) -> None:
    from official import ROOT, items, written

    sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
    from _importing import imported

    package = imported("lerobot.datasets.lerobot_dataset")
    if what == "RECORD":
        written(package.LeRobotDataset, out / "recorded")
        return
    read: dict[str, Any] = {}
    for folder in sorted(path.parent.parent for path in out.glob("*/meta/info.json")):
        info = json.loads((folder / "meta/info.json").read_text())
        if info["codebase_version"] == "v3.0":
            read[folder.name] = of_folder(package.LeRobotDataset, folder, float(info["fps"]), items)
    tools = imported("lerobot.datasets.dataset_tools")
    ours = package.LeRobotDataset("local/again", root=out / "flat")
    read["deleted"] = items(tools.delete_episodes(ours, [1], out / "tools_deleted", "local/deleted"))
    read["merged"] = items(tools.merge_datasets([ours, ours], "local/merged", out / "tools_merged"))
    (out / "read.pkl").write_bytes(pickle.dumps(read))


def of_folder(kind: Any, folder: Path, fps: float, items: Callable[[Any], Any]) -> dict[str, Any]:
    dataset = kind("local/any", root=folder)
    there = {name: steps for name, steps in WINDOWS.items() if name in dataset.features}
    windowed = kind(
        "local/any", root=folder, delta_timestamps={name: [one / fps for one in steps] for name, steps in there.items()}
    )
    numbers = np.linspace(0, len(dataset) - 1, 12).astype(int).tolist() if len(dataset) else []
    meta = dataset.meta
    return {
        "items": items(dataset),
        "windows": [{key: plain(value) for key, value in windowed[number].items()} for number in numbers],
        "some": kind("local/any", root=folder, episodes=[meta.total_episodes - 1]).num_frames,
        "features": meta.features,
        "tasks": meta.tasks["task_index"].to_dict(),
        "splits": meta.info["splits"],
        "stats": meta.stats,
        "hub": dataset.hf_dataset.features.to_dict(),
        "cameras": (meta.video_keys, meta.image_keys),
        "episodes": [list(meta.episodes[f"dataset_{one}_index"]) for one in ("from", "to")],
    }


def plain(value: Any) -> Any:
    return value if isinstance(value, str) else value.numpy()


if __name__ == "__main__":
    shutil.rmtree(Path(sys.argv[2]) / "tools_deleted", ignore_errors=True)
    main(sys.argv[1], Path(sys.argv[2]))

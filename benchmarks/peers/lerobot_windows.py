"""LeRobot's `delta_timestamps` reads of random windows, state only."""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

# The published torchvision is built for CUDA and cannot register its operators with a CPU build of torch; lerobot
# imports it for images, of which there are none here. Declaring the names it asks for lets the import pass.
if torch.version.cuda is None:
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from lerobot.datasets.lerobot_dataset import LeRobotDataset

FPS = 30


def make(folder: Path, arrays: dict[str, np.ndarray], episodes: int) -> None:
    features = {
        name: {"dtype": "float32", "shape": (arrays[name].shape[1],), "names": None} for name in ("action", "obs_state")
    }
    dataset = LeRobotDataset.create("local/arm", fps=FPS, features=features, root=folder, use_videos=False)
    at = 0
    for steps in arrays["lengths"][:episodes].tolist():
        for t in range(at, at + steps):
            dataset.add_frame({"action": arrays["action"][t], "obs_state": arrays["obs_state"][t], "task": "pick"})
        dataset.save_episode()
        at += steps
    dataset.finalize()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("arrays", type=Path, help="the .npz that benchmarks/windows.py wrote")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--episodes", type=int, default=100, help="a part is enough: reads do not depend on the number")
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    with np.load(args.arrays) as file:
        arrays = {name: file[name] for name in file}
    if not args.folder.exists():
        make(args.folder, arrays, args.episodes)
    offsets = [k / FPS for k in range(args.width)]
    dataset = LeRobotDataset("local/arm", root=args.folder, delta_timestamps={"action": offsets, "obs_state": offsets})
    torch.set_num_threads(2)
    random = np.random.default_rng(0)
    sample = dataset[5]
    assert np.array_equal(sample["action"][0].numpy(), arrays["action"][5])
    assert sample["obs_state"].shape == (args.width, arrays["obs_state"].shape[1])
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        dataset[int(random.integers(len(dataset)))]
        count += 1
    rate = count / (time.perf_counter() - start)
    name = f"lerobot {version('lerobot')} delta_timestamps"
    print(json.dumps({"peer": name, "width": args.width, "windows_per_second": rate, "episodes": args.episodes}))


main()

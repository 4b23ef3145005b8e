"""`examples/lerobot_training.py`: lerobot-train, in the environment of lerobot, on a folder that the package wrote."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ..formats.lerobot import by_hand  # noqa: TID252 - tests are no package that could be named
from ..formats.lerobot.official import VARIABLE, python  # noqa: TID252 - the same

ROOT = Path(__file__).parents[2]
SCRIPT = """
import runpy, sys
from _importing import imported
imported("torchvision")  # also beside a torch that it was not built for
sys.argv[0] = {example!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
SMALL = {
    "dim_model": 32,
    "dim_feedforward": 32,
    "n_heads": 2,
    "n_encoder_layers": 1,
    "n_vae_encoder_layers": 1,
    "chunk_size": 4,
    "n_action_steps": 4,
}


def _needs() -> str:
    """Why it cannot run here; empty where it can."""
    interpreter = python()
    if interpreter is None:
        return f"lerobot is not installed: benchmarks/peers/setup, or name its Python in {VARIABLE}"
    packages = Path(interpreter).parents[1] / "lib"
    asked = ("duckdb", "obstore", "diffusers", "gymnasium", "cv2", "serial", "termcolor")
    there = {path.name for path in packages.glob("python*/site-packages/*")}
    missing = [name for name in asked if name not in there]
    return f"{', '.join(missing)} is not installed beside lerobot: benchmarks/peers/setup" if missing else ""


def normal(folder: Path) -> None:
    """Statistics, which lerobot-train asks for, and no camera that is not called an observation."""
    stats: dict[str, dict[str, object]] = {}
    info = json.loads((folder / "meta/info.json").read_text())
    del info["features"]["picture"]
    (folder / "meta/info.json").write_text(json.dumps(info))
    for name, feature in info["features"].items():
        if feature["dtype"] not in {"string", "language"}:
            zeros = np.zeros((3, 1, 1) if feature["dtype"] in {"image", "video"} else feature["shape"])
            moments = {"mean": zeros, "std": zeros + 1, "min": zeros - 1, "max": zeros + 1}
            stats[name] = {key: value.tolist() for key, value in moments.items()} | {"count": [45]}
    (folder / "meta/stats.json").write_text(json.dumps(stats))


@pytest.mark.soak
def test_lerobot_train_reads_with_the_drop_in(tmp_path: Path) -> None:
    if why := _needs():
        pytest.skip(why)
    interpreter = python()
    assert interpreter is not None
    folder = by_hand.write(tmp_path / "arm", by_hand.four(), "v3.0")
    normal(folder)
    arguments = {
        "dataset.repo_id": "local/arm",
        "dataset.root": folder,
        "dataset.use_imagenet_stats": "false",
        "policy.type": "act",
        **{f"policy.{name}": value for name, value in SMALL.items()},
        "policy.pretrained_backbone_weights": "null",
        "policy.device": "cpu",
        "policy.push_to_hub": "false",
        "wandb.enable": "false",
        "eval_freq": 0,
        "save_checkpoint": "false",
        "num_workers": 0,
        "batch_size": 2,
        "steps": 2,
        "log_freq": 1,
        "output_dir": tmp_path / "out",
    }
    example = str(ROOT / "examples" / "lerobot_training.py")
    done = subprocess.run(
        [
            interpreter,
            "-c",
            SCRIPT.format(example=example),
            *(f"--{name}={value}" for name, value in arguments.items()),
        ],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks" / "peers")]),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "step:2" in done.stderr + done.stdout
    assert "End of training" in done.stderr + done.stdout
    assert list((tmp_path / ".cache" / "seqlake" / "shards").rglob("*.parquet"))  # it was ours that read

"""Runs a peer in its own environment: a plan in, what it measured out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

BENCHMARKS = Path(__file__).parent.parent
PEERS = ("lerobot", "mosaicml", "litdata", "webdataset", "datasets", "lance")
MIXED = 0.5  # of the sequences of a batch that a uniform shuffle gives: below it, an order is no shuffle of samples
LONGEST = 1800  # seconds that a peer may take


def add_peers(parser: argparse.ArgumentParser) -> None:
    """The option that says where the environments are."""
    parser.add_argument(
        "--environments", type=Path, default=BENCHMARKS, help="the folder that was given to peers/setup"
    )


def python_of(name: str, environments: Path) -> Path:
    """The interpreter of a peer."""
    return Path(sys.executable) if name == "seqlake" else environments / f".venv-{name}" / "bin" / "python"


def run_peer(
    name: str, plan: dict[str, Any], args: argparse.Namespace, *, variables: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """What a peer says of each of the plan's tasks; one with `failed` where it could not."""
    python = python_of(name, args.environments).absolute()
    if not python.exists():
        return [{"peer": name, "failed": "run benchmarks/peers/setup"}]
    folder = Path(plan["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(plan))
    # LeRobot would look for a newer version on its hub; `datasets` takes a bucket for the hub's when offline.
    offline = {} if name == "datasets" else {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [python, BENCHMARKS / "peers" / f"{name}_loader.py", folder / "plan.json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
        env={**os.environ, **offline, "HF_HOME": str(folder / "hf"), **(variables or {})},
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"peer"')]
    if done.returncode:
        found.append({"peer": name, "failed": done.stderr[-500:]})
    return found

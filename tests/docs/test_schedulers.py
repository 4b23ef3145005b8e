"""The scripts of the page on schedulers run as written, with plain processes in the place of Slurm and Kubernetes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import seqlake as sl
from seqlake.testing import samples

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "run-on-slurm-or-kubernetes.md"
BLOCK = re.compile(r"^```(?:bash|yaml)\n((?:#!/bin/bash\n)?# (\S+)\n.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = {name: text for text, name in BLOCK.findall(PAGE.read_text())}

SEQLAKE = f"""#!/bin/sh
exec {sys.executable} -c 'from seqlake.cli import main; main()' "$@"
"""

SBATCH = r"""#!/bin/bash
# What Slurm does with these scripts: an array is a process for each of its numbers, and a dependency waits.
set -e
echo "$@" >> sbatch.log
script="${!#}"
options="$* $(grep -h '^#SBATCH' "$script" | sed 's/#SBATCH//' | tr '\n' ' ')"
array=$(sed -n 's/.*--array=\([0-9-]*\).*/\1/p' <<< "$options")
cpus=$(sed -n 's/.*--cpus-per-task=\([0-9]*\).*/\1/p' <<< "$options")
if [ -n "$array" ]; then
    export SLURM_CPUS_PER_TASK=$cpus
    for number in $(seq "${array#*-}" -1 "${array%-*}"); do
        SLURM_ARRAY_TASK_ID=$number bash "$script" >> out.log 2>&1
    done
else
    bash "$script" >> out.log 2>&1
fi
echo 4711
"""

KUBECTL = f"""#!{sys.executable}
# What Kubernetes does with the job: a container for each index, with the number in its environment.
import os, subprocess, sys
import yaml

open("kubectl.log", "a").write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[1] == "apply":
    job = yaml.safe_load(open(sys.argv[3]))
    assert job["spec"]["completionMode"] == "Indexed"
    [container] = job["spec"]["template"]["spec"]["containers"]
    for index in range(job["spec"]["completions"]):
        environment = {{**os.environ, "JOB_COMPLETION_INDEX": str(index)}}
        subprocess.run([*container["command"], *container["args"]], env=environment, check=True)
"""


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder with the scripts of the page and a dataset, and commands that stand in for a scheduler's."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, text in {"seqlake": SEQLAKE, "sbatch": SBATCH, "kubectl": KUBECTL}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    for name, text in BLOCKS.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    samples.arm_dataset(tmp_path / "data" / "arm", count=6, rows_per_shard=2)
    return tmp_path


def test_the_page_has_the_scripts() -> None:
    assert sorted(BLOCKS) == ["finish.sh", "run.sh", "share.sh", "share.yaml", "submit.sh"]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("scheduler", ["slurm", "kubernetes"])
def test_the_scripts_of_the_page_run_as_written(scheduler, place) -> None:
    script = {"slurm": "submit.sh", "kubernetes": "run.sh"}[scheduler]
    ended = subprocess.run(["bash", "-e", script], cwd=place, capture_output=True, text=True, check=False, timeout=300)
    log = (place / "out.log").read_text() if scheduler == "slurm" else ended.stdout + ended.stderr
    assert ended.returncode == 0, log + ended.stderr
    for number in range(4):
        assert f"Share {number} of 4 has done its tasks." in log
    assert "6 sequences at 25 per second at data/arm-25." in log
    if scheduler == "slurm":
        assert (place / "sbatch.log").read_text().splitlines()[1] == "--dependency=afterok:4711 finish.sh"
    new, alone = sl.open(place / "data" / "arm-25"), sl.resample(sl.open(place / "data" / "arm"), place / "one", fps=25)
    assert new.to_arrow().equals(alone.to_arrow())
    assert [path.name for path in (place / "work" / "arm-25").iterdir()] == ["finished.json"]
    again = subprocess.run(["bash", "-e", script], cwd=place, capture_output=True, text=True, check=False, timeout=300)
    assert again.returncode == 0, again.stderr  # started once more, a share says that all is done
    assert [version.operation for version in sl.open(place / "data" / "arm-25").versions()] == ["create", "append"]

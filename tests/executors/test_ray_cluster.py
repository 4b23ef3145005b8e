"""Three Ray nodes on one machine: nodes, workers and drivers are killed, and what a receipt held is not done again."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.receipts import WorkFolder
from seqlake.testing import samples

pytest.importorskip("ray")
DRIVER = Path(__file__).parent / "on_cluster.py"
PATIENCE = 240.0
SETTINGS = {  # a node that is gone is missed after 3 s; one that is slow is waited for
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 20_000,
    "health_check_failure_threshold": 3,
}


class Nodes:
    """A head that runs nothing, and nodes of one core each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        small = {"object_store_memory": 100 << 20, "include_dashboard": False}
        self._small = {"object_store_memory": 100 << 20}
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": SETTINGS, **small}
        )
        self.nodes = [self.add(), self.add()]

    def add(self):
        return self.cluster.add_node(num_cpus=1, **self._small)

    def kill_one(self) -> None:
        """One of them is gone from one moment to the next, and another one comes."""
        self.cluster.remove_node(self.nodes.pop(0), allow_graceful=False)
        self.nodes.append(self.add())

    def driver(self, *arguments: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(DRIVER), *map(str, arguments)]
        environment = {**os.environ, "RAY_ADDRESS": self.cluster.address, "RAY_ENABLE_AUTO_CONNECT": "0"}
        return subprocess.Popen(command, env=environment)


@pytest.fixture(scope="module")
def nodes():
    started = Nodes()
    yield started
    started.cluster.shutdown()


class Work:
    """One verb over one dataset, by one process and on the cluster."""

    def __init__(self, verb: str, folder: Path, *, count: int) -> None:
        self.verb, self.folder, self.work, self.log = verb, folder, folder / "work", folder / "log"
        self.place, self.out = folder / "arm", folder / "out"
        ds = samples.arm_dataset(self.place, count=count, rows_per_shard=16)
        self.ids = ds.to_arrow()["sequence_id"].to_pylist()
        shutil.copytree(self.place, folder / "alone")
        self.log.touch()

    def alone(self) -> sl.Dataset:
        """What one process makes of it."""
        log, work, out = self.folder / "log-alone", self.folder / "work-alone", self.folder / "out-alone"
        place = self.folder / "alone"
        arguments = [self.verb, place, work, log, "processes", *([out] if self.verb == "convert" else [])]
        subprocess.run([sys.executable, str(DRIVER), *map(str, arguments)], check=True)
        return sl.open(out if self.verb == "convert" else place)

    def start(self, nodes: Nodes) -> subprocess.Popen[bytes]:
        arguments = [self.verb, self.place, self.work, self.log, "ray", *([self.out] if self.verb == "convert" else [])]
        return nodes.driver(*arguments)

    def entries(self) -> list[list[str]]:
        return [line.split() for line in self.log.read_text().splitlines()]

    def held(self) -> set[str]:
        """The sequences that a receipt holds now; a receipt that is written just now counts or does not."""
        ids: set[str] = set()
        for path in self.work.glob("part-*.json"):
            with suppress(FileNotFoundError, TypeError):  # the commit takes them away
                receipt = WorkFolder(self.work)._load(path.name)
                if self.verb == "compute":
                    ids |= {*receipt["ids"]}
                else:
                    for written in receipt["written"]:
                        ids |= {*pq.read_table(self.out / written.location)["sequence_id"].to_pylist()}
        return ids

    def wait(self, driver: subprocess.Popen[bytes], *, receipts: int) -> None:
        """Until so many tasks have ended."""
        until = time.monotonic() + PATIENCE
        while len(list(self.work.glob("part-*.json"))) < receipts:
            assert driver.poll() is None, "the driver ended before it could be killed"
            assert time.monotonic() < until
            time.sleep(0.02)

    def check(self, once: set[str]) -> None:
        """The result is that of one process, and what receipts held when something was killed was read once."""
        counts = Counter(key for key, _ in self.entries())
        assert set(counts) == set(self.ids)
        assert once
        assert {key: counts[key] for key in once} == dict.fromkeys(once, 1)
        here, there = sl.open(self.out if self.verb == "convert" else self.place), self.alone()
        names = [name for name in there.schema if name not in {"film", "picture"}]
        assert here.select(*names).to_arrow().equals(there.select(*names).to_arrow())
        if "film" in there.schema:
            for mine, theirs in zip(here, there, strict=True):
                assert np.array_equal(mine["picture"][:], theirs["picture"][:])
                # Not bit for bit: films of so few pixels are not encoded alike by x264 each time.
                assert np.abs(mine["film"][:].astype(int) - theirs["film"][:]).mean() < 8
        assert not here.validate(depth="files").errors
        assert not self.work.exists()
        operations = [version.operation for version in here.versions()]
        assert operations == [version.operation for version in there.versions()]  # one commit


@pytest.mark.parametrize("verb", ["compute", "convert"])
def test_a_node_is_killed_in_the_middle(verb, nodes, tmp_path) -> None:
    work = Work(verb, tmp_path, count=64)
    driver = work.start(nodes)
    work.wait(driver, receipts=2)
    held = work.held()
    nodes.kill_one()
    assert driver.wait(PATIENCE) == 0
    work.check(held)


@pytest.mark.soak
@pytest.mark.parametrize("verb", ["compute", "convert"])
def test_a_driver_is_killed_and_run_again(verb, nodes, tmp_path) -> None:
    work = Work(verb, tmp_path, count=96)
    held: set[str] = set()
    for receipts in (2, 4):  # twice
        driver = work.start(nodes)
        work.wait(driver, receipts=receipts)
        driver.kill()
        assert driver.wait() == -signal.SIGKILL
        held |= work.held()
    assert work.start(nodes).wait(PATIENCE) == 0
    work.check(held)


@pytest.mark.soak
@pytest.mark.parametrize("verb", ["compute", "convert"])
@pytest.mark.parametrize("seed", range(2))
def test_workers_and_nodes_and_drivers_are_killed_at_random(verb, seed, nodes, tmp_path) -> None:
    work, chance = Work(verb, tmp_path, count=160), random.Random(seed)
    held: set[str] = set()
    killed: Counter[str] = Counter()
    driver = work.start(nodes)
    until = time.monotonic() + PATIENCE
    while driver.poll() is None:
        assert time.monotonic() < until
        time.sleep(chance.uniform(0.2, 1.5))
        if work.entries() and killed.total() < 12:
            held |= work.held()
            what = chance.choice(["worker", "worker", "worker", "node", "driver"])
            if what == "worker":
                _, pid = work.entries()[-1]
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue
            elif what == "node":
                nodes.kill_one()
            else:
                driver.kill()
                driver.wait()
                driver = work.start(nodes)
            killed[what] += 1
    assert driver.returncode == 0
    assert len(killed) > 1
    work.check(held)

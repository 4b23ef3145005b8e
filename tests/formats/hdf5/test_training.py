"""Windows over HDF5 where it lies: the steps that they take are those that h5py reads, and no others are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tests.formats.hdf5 import by_hand

import seqlake as sl
from seqlake.formats.hdf5.nodes import Hdf5File
from seqlake.training import slices


def truth(path: Path, name: str) -> dict[str, Any]:
    """Demonstration -> one of its data sets, as h5py reads it."""
    with h5py.File(path) as file:
        return {demo: file[f"data/{demo}/{name}"][()] for demo in file["data"]}


def batches(ds: Any, window: sl.Window, size: int = 3) -> list[dict[str, Any]]:
    return list(sl.Loader(ds, window=window, batch_size=size, shuffle=True, seed=1))


@pytest.mark.parametrize("small", [0, 1 << 30])
def test_windows_of_packed_signals_are_those_of_h5py(tmp_path: Path, monkeypatch: Any, small: int) -> None:
    path = by_hand.robomimic(tmp_path / "demos.hdf5", lengths=(6, 4, 8), images=True)
    monkeypatch.setattr(slices, "SMALL", small - 1)
    reads: list[tuple[str, int, int]] = []
    steps = Hdf5File.steps

    def counted(self: Hdf5File, array: Any, start: int, stop: int) -> Any:
        reads.append((array.path, start, stop))
        return steps(self, array, start, stop)

    monkeypatch.setattr(Hdf5File, "steps", counted)
    window = sl.Window({"object": range(-1, 2), "agentview_depth": range(2), "actions": range(2)}, edges="pad")
    expected = {name: truth(path, f"obs/{name}") for name in ("object", "agentview_depth")}
    seen = 0
    for batch in batches(sl.scan(path), window):
        for place, demo in enumerate(batch["sequence_id"].tolist()):
            start = int(batch["start"][place])
            for name, numbers in (("object", range(-1, 2)), ("agentview_depth", range(2))):
                whole = expected[name][demo]
                for slot, number in enumerate(numbers):
                    there = 0 <= start + number < len(whole)
                    assert batch[f"{name}_mask"][place, slot] == there
                    wanted = whole[start + number] if there else np.zeros_like(whole[0])
                    np.testing.assert_array_equal(batch[name][place, slot], wanted)
            seen += 1
    assert seen == 18
    longest = max((stop - start for path_, start, stop in reads if path_.endswith("depth")), default=0)
    assert longest == (2 if small == 0 else 8)


def test_frames_of_windows_are_those_of_h5py_and_no_whole_episode_is_read(tmp_path: Path, monkeypatch: Any) -> None:
    folder = by_hand.aloha(tmp_path / "aloha", lengths=(40, 30))
    reads: list[int] = []
    steps = Hdf5File.steps

    def counted(self: Hdf5File, array: Any, start: int, stop: int) -> Any:
        if "images" in array.path:
            reads.append(stop - start)
        return steps(self, array, start, stop)

    monkeypatch.setattr(Hdf5File, "steps", counted)
    window = sl.Window({"cam_high": range(2), "action": range(3)}, stride=7, edges="drop")
    seen = 0
    for batch in batches(sl.open(folder), window, 5):
        for place, name in enumerate(batch["sequence_id"].tolist()):
            start = int(batch["start"][place])
            with h5py.File(folder / f"{name}.hdf5") as file:
                np.testing.assert_array_equal(
                    batch["cam_high"][place], file["observations/images/cam_high"][start : start + 2]
                )
                np.testing.assert_array_equal(batch["action"][place], file["action"][start : start + 3])
            seen += 1
    assert seen == 6 + 4
    assert 0 < max(reads) <= 9  # neighbours in a batch may be read together


def test_padded_jpeg_is_decoded_from_its_own_bytes(tmp_path: Path) -> None:
    from simplejpeg import decode_jpeg

    packed = by_hand.aloha_packed(tmp_path / "aloha")
    ds = sl.open(tmp_path / "aloha")
    batch = next(iter(sl.Loader(ds, window={"cam_low": range(2)}, batch_size=4, shuffle=False)))
    for place in range(4):
        expected = np.stack([decode_jpeg(packed[0, "cam_low"][place + k]) for k in range(2)])
        np.testing.assert_array_equal(batch["cam_low"][place], expected)


def test_a_selection_is_windowed_as_the_whole(tmp_path: Path, monkeypatch: Any) -> None:
    path = by_hand.robomimic(tmp_path / "demos.hdf5")
    monkeypatch.setattr(slices, "SMALL", -1)
    valid = sl.scan(path).where("split = 'valid'")
    (batch,) = batches(valid, sl.Window({"object": range(1), "agentview_image": range(1)}, stride=2), 2)
    assert batch["sequence_id"].tolist() == ["demo_1"] * 2
    starts = batch["start"]
    np.testing.assert_array_equal(batch["object"][:, 0], truth(path, "obs/object")["demo_1"][starts])
    np.testing.assert_array_equal(batch["agentview_image"][:, 0], truth(path, "obs/agentview_image")["demo_1"][starts])


def test_what_does_not_fit_into_memory_is_read_step_by_step(tmp_path: Path, monkeypatch: Any) -> None:
    depth = np.random.default_rng(0).random((60, 64, 64), np.float32)
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        file["action"] = np.arange(120.0).reshape(60, 2)
        file.create_dataset("observations/depth", data=depth, chunks=(4, 64, 64), compression="gzip")
    ds = sl.open(tmp_path)
    window = {"depth": range(2), "action": range(2)}
    with pytest.raises(sl.errors.CacheTooSmallError):
        next(iter(sl.Loader(ds, window=window, batch_size=4, cache=sl.Cache(limit="300 kB"))))
    monkeypatch.setattr(slices, "SMALL", 100_000)
    for batch in sl.Loader(ds, window=window, batch_size=4, cache=sl.Cache(limit="300 kB"), seed=0):
        for place, start in enumerate(batch["start"].tolist()):
            there = batch["depth_mask"][place]
            np.testing.assert_array_equal(batch["depth"][place][there], depth[start : start + 2])


def test_a_process_that_ends_with_files_open_ends_well(tmp_path: Path) -> None:
    import subprocess
    import sys

    by_hand.aloha(tmp_path / "aloha")
    script = (
        f"import seqlake as sl\nds = sl.open({str(tmp_path / 'aloha')!r})\nfilm = ds[0]['cam_low']\nfilm[0:2]\n"
        "loader = sl.Loader(ds, window={'cam_low': range(2), 'action': range(2)}, batch_size=2)\n"
        "batches = iter(loader)\nnext(batches)\n"
        "held = [shard.open() for shard in ds.shards()]\n[one.flat('action') for one in held]\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

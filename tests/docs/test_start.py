"""Each page of `docs/start` leads from data of another program to the right first batches, in ten lines."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ..formats import by_hand as mds  # noqa: TID252 - writers that share nothing with ours
from ..formats.l5kit import conftest as l5kit  # noqa: TID252 - as above
from ..formats.lerobot import by_hand as lerobot  # noqa: TID252 - as above
from ..formats.rlds import conftest as rlds  # noqa: TID252 - as above

START = Path(__file__).parents[2] / "docs" / "start"
PAGES = sorted(page.name for page in START.glob("*.md") if page.name != "index.md")
Truth = dict[str, dict[str, np.ndarray]]


def blocks(page: str) -> list[str]:
    return re.findall(r"^```py\n(.*?)^```", (START / page).read_text(), re.MULTILINE | re.DOTALL)


def run(page: str, number: int = 0) -> dict[str, Any]:
    """What the block leaves behind."""
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(blocks(page)[number], f"{page}, block {number}", "exec"), names)
    return names


def compare(batch: dict[str, Any], column: str, truth: Truth, offsets: list[int], *, normal: bool = False) -> int:
    """Each step of each window beside what was written; gives how many were there."""
    steps = np.concatenate([one[column] for one in truth.values()]).astype(np.float64)
    mean, std = (steps.mean(0), steps.std(0)) if normal else (0, 1)
    there = 0
    for place, (name, start) in enumerate(zip(batch["sequence_id"], batch["start"].tolist(), strict=True)):
        values = truth[str(name)][column]
        for slot, offset in enumerate(offsets):
            step = start + offset
            assert bool(batch[f"{column}_mask"][place, slot]) == (0 <= step < len(values))
            expected = (values[step] - mean) / std if 0 <= step < len(values) else np.zeros(values.shape[1:])
            np.testing.assert_allclose(batch[column][place, slot].numpy(), expected, rtol=1e-4, atol=1e-4)
            there += 0 <= step < len(values)
    return there


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_there_are_six_pages_of_ten_lines() -> None:
    assert len(PAGES) == 6
    for page in PAGES:
        assert blocks(page), page
        for code in blocks(page):
            lines = [line for line in code.splitlines() if line.strip() and line.strip() != "break"]
            assert len(lines) <= 10, (page, len(lines))


def test_lerobot() -> None:
    episodes = lerobot.four()
    lerobot.write(Path("lerobot/arm"), episodes, "v3.0")
    names = run("lerobot.md")
    truth = {f"episode_{one.number:06d}": one.values for one in episodes}
    batch = names["batch"]
    assert names["state"].shape == (8, 2, 6)
    assert tuple(names["frames"].shape) == (8, 1, *lerobot.SIZE, 3)
    assert compare(batch, "action", truth, list(range(16)), normal=True) > 30
    assert compare(batch, "observation.state", truth, [-1, 0], normal=True) > 8
    films = {f"episode_{one.number:06d}": lerobot.frames(one.films[lerobot.CAM]) for one in episodes}
    for place, (name, start) in enumerate(zip(batch["sequence_id"], batch["start"].tolist(), strict=True)):
        difference = np.abs(films[str(name)][start].astype(int) - names["frames"][place, 0].numpy().astype(int))
        assert difference.max() <= 3  # of 255: two converters of colours


def jpeg(grey: int) -> bytes:
    import io

    out = io.BytesIO()
    Image.fromarray(np.full((64, 48, 3), grey, np.uint8)).save(out, format="JPEG")
    return out.getvalue()


def test_rlds() -> None:
    rng = np.random.default_rng(1)
    folder = rlds.Folder(
        steps={
            "action": rlds.tensor([7], "float32"),
            "observation": rlds.features_dict({"state": rlds.tensor([7], "float32"), "cam": rlds.image()}),
        },
        episode={"file_path": rlds.text()},
    )
    truth: Truth = {}
    records = []
    for number, steps in enumerate((9, 4, 12)):
        values = {name: rng.normal(size=(steps, 7)).astype(np.float32) for name in ("action", "state")}
        truth[f"arm-train-00000-{number:05d}"] = values
        records.append(
            rlds.example(
                {
                    "steps/action": values["action"],
                    "steps/observation/state": values["state"],
                    "steps/observation/cam": [jpeg(40 * number + step) for step in range(steps)],
                    "episode_metadata/file_path": [f"/data/{number}".encode()],
                }
            )
        )
    folder.files = {"train": [records], "val": [records[:1]]}
    folder.write(Path("bridge/1.0.0"))
    names = run("rlds-or-hdf5.md", 0)
    assert tuple(names["frames"].shape) == (8, 1, 64, 48, 3)
    assert compare(names["batch"], "action", truth, [0, 1, 2, 3]) > 20
    assert compare(names["batch"], "state", truth, [-1, 0]) > 8
    for place, (name, start) in enumerate(
        zip(names["batch"]["sequence_id"], names["batch"]["start"].tolist(), strict=True)
    ):
        grey = 40 * list(truth).index(str(name)) + start
        assert abs(int(names["frames"][place, 0, 30, 20, 0]) - grey) <= 2


def test_hdf5() -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    truth: Truth = {}
    Path("transfer_cube").mkdir()
    for number, steps in enumerate((40, 25)):
        action = np.random.default_rng(number).normal(size=(steps, 14)).astype(np.float32)
        truth[f"episode_{number}"] = {"action": action, "qpos": action * np.float32(0.9)}
        with h5py.File(f"transfer_cube/episode_{number}.hdf5", "w") as root:
            root.attrs["sim"] = True
            root["action"], root["observations/qpos"] = action, truth[f"episode_{number}"]["qpos"]
            frames = np.broadcast_to(np.arange(steps, dtype=np.uint8)[:, None, None, None], (steps, 48, 64, 3))
            root.create_dataset("observations/images/top", data=frames, chunks=(1, 48, 64, 3))
    names = run("rlds-or-hdf5.md", 1)
    assert compare(names["batch"], "action", truth, list(range(16)), normal=True) > 60
    assert compare(names["batch"], "qpos", truth, [0], normal=True) == 8
    assert tuple(names["frames"].shape) == (8, 1, 48, 64, 3)
    assert names["frames"][:, 0, 5, 5, 1].tolist() == names["batch"]["start"].tolist()


def test_mosaicml() -> None:
    columns = {"tokens": "ndarray:uint16:64", "label": "int", "text": "str"}
    samples = [
        {
            "tokens": np.full(64, number, "<u2").tobytes(),
            "label": struct.pack("<q", number % 7),
            "text": f"sample {number}".encode(),
        }
        for number in range(100)
    ]
    mds.write(Path("mds/train"), columns, [samples[:60], samples[60:]], hashes=("sha1",))
    names = run("mosaicml.md")
    assert names["tokens"].shape == (32, 64)
    seen = names["tokens"][:, 0].tolist()
    assert len(set(seen)) == 32
    assert seen != sorted(seen)
    assert (names["tokens"] == names["tokens"][:, :1]).all()
    assert names["label"].tolist() == [number % 7 for number in seen]
    assert names["batch"]["text"] == [f"sample {number}" for number in seen]
    assert len(json.dumps(names["state"])) < 1000


def test_l5kit() -> None:
    pytest.importorskip("numcodecs", reason="numcodecs is not installed")
    drives = l5kit.drives()
    l5kit.write(Path("sample.zarr"), drives, codec=l5kit.CODECS["blosc-1"])
    names = run("l5kit.md")
    batch = names["batch"]
    assert names["history"].shape == (16, 5, 2)
    assert names["target"].shape == (*names["seen"].shape, 2) == (16, 8, 2)
    # Back from the agent's frame: where l5kit's own arrays say that some agent was.
    places = {tuple(np.round(place, 2)) for place in drives["agents"]["centroid"]}
    checked = 0
    for place in range(16):
        world = batch["world_from_agent"][place].numpy()
        for step in range(8):
            if names["seen"][place, step]:
                x, y = (world @ np.array([*names["target"][place, step].numpy(), 1.0]))[:2]
                near = [(round(x + dx, 2), round(y + dy, 2)) for dx in (-0.01, 0, 0.01) for dy in (-0.01, 0, 0.01)]
                assert places.intersection(near), (x, y)
                checked += 1
    assert checked > 50


def test_lake() -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    import polars as pl

    rng = np.random.default_rng(2)
    truth: Truth = {}
    for number in range(12):
        steps = int(rng.integers(10, 30))
        truth[f"ep_{number}"] = {
            "state": rng.normal(size=(steps, 6)).astype(np.float32),
            "action": rng.normal(size=(steps, 3)).astype(np.float32),
        }
    lists = pl.List(pl.List(pl.Float32))
    frame = pl.DataFrame(
        {
            "sequence_id": list(truth),
            "split": ["val" if number % 4 == 3 else "train" for number in range(12)],
            "state": [one["state"].tolist() for one in truth.values()],
            "action": [one["action"].tolist() for one in truth.values()],
        },
        schema_overrides={"state": lists, "action": lists},
    )
    deltalake.write_deltalake("lake/arm", frame.to_arrow())
    files = set(Path("lake/arm").glob("*.parquet"))
    names = run("lake.md")
    kept = {
        name: values
        for (name, values), split in zip(truth.items(), frame["split"], strict=True)
        if split == "train" and len(values["action"]) >= 16
    }
    assert 3 < len(kept) < len(truth)
    assert len(names["train"]) == len(kept)
    assert compare(names["batch"], "action", kept, list(range(16)), normal=True) > 60
    assert compare(names["batch"], "state", kept, [0], normal=True) == 8
    assert set(Path("lake/arm").glob("*.parquet")) == files, "a file was rewritten"
    assert names["ds"].version.id == deltalake.DeltaTable("lake/arm").version() == 1


def test_own_files() -> None:
    truth: Truth = {}
    films = {}
    Path("runs").mkdir()
    for number, steps in enumerate((30, 18, 24)):
        rng = np.random.default_rng(number)
        values = {name: rng.normal(size=(steps, dim)).astype("float32") for name, dim in (("state", 6), ("action", 3))}
        np.savez(f"runs/run_{number}.npz", **values)
        films[f"run_{number}"] = lerobot.film(number, steps, fps=20)
        Path(f"runs/run_{number}.mp4").write_bytes(films[f"run_{number}"])
        truth[f"run_{number}"] = values
    names = run("own-files.md")
    batch = names["batch"]
    assert compare(batch, "action", truth, list(range(16))) > 60
    assert compare(batch, "state", truth, [-1, 0]) > 8
    assert float(names["loss"]) == pytest.approx(float((batch["action"] ** 2)[batch["action_mask"]].mean()))
    pictures = {name: lerobot.frames(film) for name, film in films.items()}
    for place, (name, start) in enumerate(zip(batch["sequence_id"], batch["start"].tolist(), strict=True)):
        difference = np.abs(pictures[str(name)][start].astype(int) - batch["cam"][place, 0].numpy().astype(int))
        assert difference.max() <= 3

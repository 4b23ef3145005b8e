"""The class that stands for lerobot's own, over folders written by hand; the official one is in test_official.py."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from seqlake.compat.lerobot import LeRobotDataset, LeRobotDatasetMetadata, VisitSampler
from seqlake.errors import ColumnNotFoundError, DatasetNotFoundError, InvalidMetadataError
from seqlake.formats.lerobot.reading import EpisodeReader
from seqlake.training.frames.clips import VideoColumn

from . import by_hand
from .by_hand import CAM, FPS, Recorded

torch = pytest.importorskip("torch")

VERSIONS = ["v2.0", "v2.1", "v3.0"]


@pytest.fixture(scope="module")
def episodes() -> list[Recorded]:
    return by_hand.four()


@pytest.fixture(scope="module", params=VERSIONS)
def folder(request: pytest.FixtureRequest, episodes: list[Recorded], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_hand.write(tmp_path_factory.mktemp("lerobot"), episodes, request.param)


def test_windows_repeat_the_nearest_step_and_say_so(folder: Path, episodes: list[Recorded]) -> None:
    steps = [-3, 0, 30, 1]
    times = [step / FPS for step in steps]
    dataset = LeRobotDataset(root=folder, delta_timestamps={"action": times, CAM: times})
    at = 0
    for one in episodes:
        frames = by_hand.frames(one.films[CAM])
        for step in range(one.length):
            item = dataset[at]
            wanted = np.add(steps, step)
            inside = np.clip(wanted, 0, one.length - 1)
            np.testing.assert_array_equal(item["action"].numpy(), one.values["action"][inside])
            np.testing.assert_array_equal(item["action_is_pad"].numpy(), wanted != inside)
            np.testing.assert_array_equal(item[f"{CAM}_is_pad"].numpy(), wanted != inside)
            pictures = np.round(item[CAM].numpy().transpose(0, 2, 3, 1) * 255).astype(np.int64)
            assert np.abs(pictures - frames[inside]).max() <= 3
            assert (int(item["index"]), int(item["episode_index"])) == (at, one.number)
            at += 1
    assert at == len(dataset)


def test_cameras_of_which_different_steps_are_asked(tmp_path: Path) -> None:
    wrist = "observation.images.wrist"
    some = [by_hand.record(number, 6 + number, cameras=(CAM, wrist)) for number in range(3)]
    folder = by_hand.write(tmp_path, some, "v3.0")
    steps = {CAM: [-2, 0], wrist: [0, 1, 40]}
    dataset = LeRobotDataset(
        root=folder, delta_timestamps={name: [step / FPS for step in asked] for name, asked in steps.items()}
    )
    order = [*range(len(dataset))][::-1]
    whole = dataset.batch(order)
    for place, at in enumerate(order):
        assert int(whole["index"][place]) == at
        one = some[int(whole["episode_index"][place])]
        for name, asked in steps.items():
            wanted = np.add(asked, int(whole["frame_index"][place]))
            inside = np.clip(wanted, 0, one.length - 1)
            np.testing.assert_array_equal(whole[f"{name}_is_pad"][place].numpy(), wanted != inside)
            pictures = np.round(whole[name][place].numpy().transpose(0, 2, 3, 1) * 255).astype(np.int64)
            assert np.abs(pictures - by_hand.frames(one.films[name])[inside]).max() <= 3
    assert torch.equal(dataset[-1][wrist], dataset[len(dataset) - 1][wrist])


def test_a_batch_is_the_items_stacked(folder: Path) -> None:
    dataset = LeRobotDataset(root=folder, delta_timestamps={"action": [0.0, 0.1], "task_index": [0.1]})
    numbers = [3, 44, 0, 3, 20]
    stacked = torch.utils.data.default_collate([dataset[number] for number in numbers])
    batch = dataset.batch(numbers)
    assert list(batch) == list(stacked)
    for name, values in stacked.items():
        assert batch[name] == values if isinstance(values, list) else torch.equal(batch[name], values), name


def test_episodes_keep_their_numbers(folder: Path) -> None:
    dataset = LeRobotDataset(root=folder, episodes=[3, 1])
    assert (len(dataset), dataset.num_episodes) == (8, 2)
    assert [int(dataset[number]["index"]) for number in range(8)] == [12, *range(38, 45)]
    assert {dataset[number]["task"] for number in range(1, 8)} == {"place"}


def test_pictures_come_as_they_are_asked_for(folder: Path) -> None:
    seen = []

    def brighter(picture: Any) -> Any:
        seen.append(tuple(picture.shape))
        return picture * 2

    plain = LeRobotDataset(root=folder)[5]
    small = LeRobotDataset(root=folder, return_uint8=True)[5]
    twice = LeRobotDataset(root=folder, image_transforms=brighter)
    for name in ("picture", CAM):
        assert small[name].dtype == torch.uint8
        assert torch.equal(plain[name], small[name].float() / 255)
        assert torch.equal(twice[5][name], plain[name] * 2)
    assert set(seen) == {(3, 6, 8), (3, 48, 64)}
    assert torch.equal(twice.batch([5, 5])[CAM][1], plain[CAM] * 2)


def test_transforms_are_exchanged_and_depth_has_none(folder: Path) -> None:
    dataset = LeRobotDataset(root=folder, image_transforms=lambda picture: picture + 1)
    plain = LeRobotDataset(root=folder)[5][CAM]
    dataset.set_image_transforms(lambda picture: picture * 3)
    assert torch.equal(dataset[5][CAM], plain * 3)
    dataset.clear_image_transforms()
    assert torch.equal(dataset[5][CAM], plain)
    with pytest.raises(TypeError, match="expected a function, found str"):
        dataset.set_image_transforms("brighter")  # type: ignore[arg-type]


def test_numbers_of_episodes_have_windows_too(folder: Path) -> None:
    dataset = LeRobotDataset(root=folder, delta_timestamps={"episode_index": [-0.1, 0.0, 4.0]})
    item = dataset[12]
    assert item["episode_index"].tolist() == [1, 1, 1]
    assert item["episode_index_is_pad"].tolist() == [True, False, True]
    assert LeRobotDataset(root=folder, delta_timestamps={"action": [0.0]})[12]["episode_index"].shape == ()


def test_texts_have_no_windows(folder: Path) -> None:
    with pytest.raises(TypeError, match="found texts: 'note'"):
        LeRobotDataset(root=folder, delta_timestamps={"note": [0.0]})
    for number in (1.5, None, "3"):
        with pytest.raises(TypeError):
            LeRobotDataset(root=folder)[number]  # type: ignore[index]


def test_subtasks_are_named(episodes: list[Recorded], tmp_path: Path) -> None:
    features = {**by_hand.declared(episodes), "subtask_index": by_hand.BOOKKEEPING["task_index"]}
    some = [replace(one, values={**one.values, "subtask_index": np.arange(one.length) % 2}) for one in episodes]
    root = by_hand.write(tmp_path / "arm", some, "v3.0", features=features)
    assert "subtask" not in LeRobotDataset(root=root)[1]
    by_hand.parquet(
        root / "meta/subtasks.parquet", [pa.table({"subtask_index": [0, 1], "subtask": ["reach", "grasp"]})]
    )
    assert [LeRobotDataset(root=root)[number]["subtask"] for number in (0, 1)] == ["reach", "grasp"]


def test_two_datasets_are_added(folder: Path) -> None:
    both = LeRobotDataset(root=folder) + LeRobotDataset(root=folder, episodes=[1])
    assert len(both) == 45 + len(LeRobotDataset(root=folder, episodes=[1]))
    assert int(both[45]["episode_index"]) == 1


def test_it_travels_to_workers_as_a_description(folder: Path) -> None:
    dataset = LeRobotDataset(root=folder, delta_timestamps={"action": [0.0, 0.1]})
    before = dataset[2]["action"]
    assert len(pickle.dumps(dataset)) < 60_000
    assert torch.equal(pickle.loads(pickle.dumps(dataset))[2]["action"], before)


def test_what_is_wrong_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"multiples of 1/10 within 0.0001 s.*\n.*0\.05"):
        LeRobotDataset(root=folder, delta_timestamps={"action": [0.0, 0.05]})
    LeRobotDataset(root=folder, delta_timestamps={"action": [0.0, 0.05]}, tolerance_s=0.06)
    with pytest.raises(ValueError, match="at least one a feature"):
        LeRobotDataset(root=folder, delta_timestamps={"action": []})
    with pytest.raises(ColumnNotFoundError, match="no feature 'actions'; there are .*action"):
        LeRobotDataset(root=folder, delta_timestamps={"actions": [0.0]})
    with pytest.raises(ValueError, match=r"the 4 episodes of .*, found \[4, 9\]"):
        LeRobotDataset(root=folder, episodes=[9, 1, 4])
    with pytest.raises(ValueError, match="found none"):
        LeRobotDataset(root=folder, episodes=[])
    with pytest.raises(IndexError, match="0 to 44"):
        LeRobotDataset(root=folder)[45]
    assert int(LeRobotDataset(root=folder)[-1]["index"]) == 44
    with pytest.raises(DatasetNotFoundError, match=r"info\.json"):
        LeRobotDataset(root=tmp_path)
    with pytest.raises(DatasetNotFoundError, match="root="):
        LeRobotDataset()


def test_a_name_is_looked_for_where_lerobot_keeps_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    with pytest.raises(DatasetNotFoundError, match="nothing is downloaded"):
        LeRobotDataset("some/arm")
    shutil.copytree(folder, tmp_path / "some" / "arm")
    assert len(LeRobotDataset("some/arm")) == 45


def test_statistics_of_episodes_are_put_together(episodes: list[Recorded], tmp_path: Path) -> None:
    root = by_hand.write(tmp_path / "arm", episodes, "v2.1")
    lines = []
    for one in episodes:
        values = one.values["action"].astype(np.float64)
        stats = {name: getattr(values, name)(0).tolist() for name in ("min", "max", "mean", "std")}
        lines.append(json.dumps({"episode_index": one.number, "stats": {"action": {**stats, "count": [one.length]}}}))
    (root / "meta/episodes_stats.jsonl").write_text("\n".join(lines))
    whole = np.concatenate([one.values["action"] for one in episodes]).astype(np.float64)
    found = LeRobotDatasetMetadata(root=root).stats
    assert found is not None
    for name in ("min", "max", "mean", "std"):
        np.testing.assert_allclose(found["action"][name], getattr(whole, name)(0), rtol=1e-12, atol=1e-12)
    assert found["action"]["count"].tolist() == [45]


@pytest.mark.parametrize("text", ["{", "[1]", '{"action": 3}', '{"episode_index": 0}'])
def test_damaged_statistics_are_refused(episodes: list[Recorded], tmp_path: Path, text: str) -> None:
    root = by_hand.write(tmp_path / "arm", episodes, "v2.1")
    (root / "meta/episodes_stats.jsonl").write_text(text)
    with pytest.raises(InvalidMetadataError, match="episodes_stats"):
        _ = LeRobotDatasetMetadata(root=root).stats
    (root / "meta/stats.json").write_text(text)
    with pytest.raises(InvalidMetadataError, match="stats"):
        _ = LeRobotDatasetMetadata(root=root).stats


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_give_what_this_process_gives(episodes: list[Recorded], tmp_path: Path, context: str) -> None:
    root = by_hand.write(tmp_path / "arm", episodes, "v3.0")
    dataset = LeRobotDataset(root=root, delta_timestamps={"action": [0.0, 0.1], CAM: [0.0]})
    expected = [dataset[number] for number in range(12)]  # it was used before: nothing of that travels
    loader = torch.utils.data.DataLoader(
        torch.utils.data.Subset(dataset, range(12)), batch_size=4, num_workers=2, multiprocessing_context=context
    )
    for number, batch in enumerate(loader):
        stacked = torch.utils.data.default_collate(expected[4 * number : 4 * number + 4])
        for name, values in stacked.items():
            assert batch[name] == values if isinstance(values, list) else torch.equal(batch[name], values), name


def test_signals_are_decoded_once_and_kept_in_the_users_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = shutil.copytree(folder, tmp_path / "arm")
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    times = {"action": [0.0, 0.1]}
    before = LeRobotDataset(root=root, delta_timestamps=times).batch(range(45))
    copies = sorted((cache / "seqlake" / "shards" / "shards").glob("*.parquet"))
    assert copies

    def refuse(reader: Any, wanted: list[str], schema: Any, rows: Any) -> Any:
        assert "action" not in wanted, "The data file was decoded again."
        return steps(reader, wanted, schema, rows)

    steps = EpisodeReader._steps
    with monkeypatch.context() as patch:
        patch.setattr("seqlake.formats.lerobot.reading.EpisodeReader._steps", refuse)
        again = LeRobotDataset(root=root, delta_timestamps=times).batch(range(45))
    assert torch.equal(before["action"], again["action"])
    shutil.rmtree(cache)  # nothing is lost
    assert torch.equal(LeRobotDataset(root=root, delta_timestamps=times).batch(range(45))["action"], before["action"])
    shutil.rmtree(cache)
    cache.write_text("no folder")  # nor where there can be none
    assert torch.equal(LeRobotDataset(root=root, delta_timestamps=times).batch(range(45))["action"], before["action"])


def test_items_that_were_changed_or_moved_are_collated_as_they_are(folder: Path) -> None:
    dataset = LeRobotDataset(root=folder, delta_timestamps={"action": [0.0, 0.1]})
    collate = torch.utils.data.default_collate
    plain = [dict(item) for item in dataset.__getitems__([3, 44, 0])]

    def alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
        values = [(one[name], other[name]) for name in other]
        same = all(a == b if isinstance(b, list) else torch.equal(a, b) for a, b in values)
        return list(one) == list(other) and same

    items = dataset.__getitems__([3, 44, 0])
    assert alike(collate(items), collate(plain))
    assert alike(collate(items[::-1]), collate(plain[::-1]))
    assert alike(collate(items[:2]), collate(plain[:2]))
    assert alike(collate([items[0], items[0], items[0]]), collate([plain[0]] * 3))
    items[1]["action"] = plain[1]["action"] = items[1]["action"] + 1
    assert alike(collate(items), collate(plain))
    items[0]["more"], plain[0]["more"] = 1, 1
    for one, other in zip(items[1:], plain[1:], strict=True):
        one["more"], other["more"] = 2, 2
    assert alike(collate(items), collate(plain))
    assert type(pickle.loads(pickle.dumps(items[0]))) is dict


def doubled(one: Recorded) -> dict[str, Any]:
    return {**one.values, "action": 2 * one.values["action"]}


def test_a_changed_folder_is_decoded_anew(episodes: list[Recorded], tmp_path: Path) -> None:
    root = by_hand.write(tmp_path / "arm", episodes, "v3.0")
    assert torch.equal(LeRobotDataset(root=root)[0]["action"], torch.from_numpy(episodes[0].values["action"][0]))
    shutil.rmtree(root)
    by_hand.write(tmp_path / "arm", [replace(one, values=doubled(one)) for one in episodes], "v3.0")
    assert torch.equal(LeRobotDataset(root=root)[1]["action"], 2 * torch.from_numpy(episodes[0].values["action"][1]))


def test_frames_of_selected_episodes_are_found_by_their_index(folder: Path) -> None:
    dataset = LeRobotDataset(root=folder, episodes=[3, 1])
    numbers = dataset.absolute_to_relative_idx
    assert numbers is not None
    assert numbers == {int(dataset[number]["index"]): number for number in range(len(dataset))}
    assert LeRobotDataset(root=folder).absolute_to_relative_idx is None
    assert not dataset.meta.has_language_columns
    assert dataset.meta.depth_keys == []


def test_printing_helps(folder: Path) -> None:
    dataset = LeRobotDataset(root=folder)
    assert "4 episodes, 45 frames" in repr(dataset)
    assert "4 episodes" in repr(dataset.meta)
    assert "4 episodes" in repr(dataset.meta.episodes)
    assert dataset.meta.episodes[2]["tasks"] == ["pick", "place"]
    assert dataset.meta.get_task_index("place") == 1


# ---- the order of visits


def test_neighbours_come_together_and_every_frame_once(folder: Path) -> None:
    dataset = LeRobotDataset(root=folder)
    sampler = VisitSampler(dataset, visits=4, seed=3)
    epochs = [list(sampler), list(sampler)]
    for numbers in epochs:
        assert sorted(numbers) == list(range(len(dataset)))
        whole = len(dataset) // 4 * 4
        visits = np.reshape(numbers[:whole], (-1, 4))
        assert (np.diff(visits, axis=1) == 1).all()
        assert visits[:, 0].tolist() != sorted(visits[:, 0].tolist())
    assert epochs[0] != epochs[1], "each epoch has an order of its own"
    sampler.set_epoch(1)
    assert list(sampler) == epochs[1]
    assert list(VisitSampler(dataset, visits=4, seed=4)) != epochs[0]
    assert (len(sampler), sampler.epoch) == (len(dataset), 2)
    assert repr(sampler) == f"VisitSampler({len(dataset)} frames, Shuffle(visits=4), seed=3, epoch=2)"


def test_visits_of_some_frames(folder: Path) -> None:
    frames = [*range(5), *range(20, 31)]
    assert sorted(VisitSampler(range(45), visits=3, frames=frames)) == frames
    assert list(VisitSampler([], visits=3)) == list(VisitSampler(range(9), frames=[])) == []
    with pytest.raises(ValueError, match="visits: expected a whole number from 1 on, found 0"):
        VisitSampler(range(9), visits=0)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_takes_visits_and_gives_the_same_items(folder: Path, workers: int) -> None:
    times = [step / FPS for step in range(4)]
    dataset = LeRobotDataset(root=folder, delta_timestamps={"action": times, CAM: times})
    sampler = VisitSampler(dataset, visits=4)
    batches = list(torch.utils.data.DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=workers))
    numbers = torch.cat([batch["index"] for batch in batches]).tolist()
    assert numbers == list(VisitSampler(dataset, visits=4))
    for name in (CAM, "action", "action_is_pad"):
        alone = torch.stack([dataset[number][name] for number in numbers[:8]])
        assert torch.equal(batches[0][name], alone), name


def test_what_neighbours_share_is_decoded_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    real = VideoColumn.read

    def counted(self, key, clip, frames, out):
        decoded.extend(frames.tolist())
        return real(self, key, clip, frames, out)

    monkeypatch.setattr(VideoColumn, "read", counted)
    dataset = LeRobotDataset(root=folder, delta_timestamps={CAM: [step / FPS for step in range(8)]})
    gathered: list[int] = []
    laid = LeRobotDataset._frames

    def noted(self, values, which, *, alone):
        gathered.append(len(values))
        return laid(self, values, which, alone=alone)

    monkeypatch.setattr(LeRobotDataset, "_frames", noted)
    dataset.batch([12, 13, 14, 15])
    assert len(decoded) == 8 + 3
    assert max(gathered) == 8 + 3  # and no window has its own

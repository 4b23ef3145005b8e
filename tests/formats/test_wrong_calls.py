"""Arguments of the formats' own functions: whatever is wrong is said in our words."""

from __future__ import annotations

import inspect
import shutil
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import seqlake as sl
from seqlake.formats import jsonl, mds, rlds, xsv

from .rlds.conftest import arm_folder
from .test_wrong_arguments import WRONG, told

if TYPE_CHECKING:
    from collections.abc import Callable

l5 = pytest.importorskip("seqlake.compat.l5kit")
pytest.importorskip("numcodecs")
VALUES: list[Any] = [
    *WRONG,
    None,
    "\0",
    "a\0b",
    "s3://",
    10**30,
    -(10**30),
    np.zeros((2, 2)),
    Path("nowhere"),
    3,
    range(3),
    {},
    [],
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store of each format."""
    place = tmp_path_factory.mktemp("calls")
    frames = np.zeros(40, l5.FRAME_DTYPE)
    frames["timestamp"] = np.arange(40) * 100_000_000
    frames["agent_index_interval"] = np.stack([np.arange(40) * 2, np.arange(40) * 2 + 2], axis=1)
    frames["ego_rotation"] = np.eye(3)
    scenes = np.zeros(2, l5.SCENE_DTYPE)
    scenes["frame_index_interval"] = [[0, 20], [20, 40]]
    agents = np.zeros(80, l5.AGENT_DTYPE)
    agents["track_id"] = np.arange(80) % 2 + 1
    agents["label_probabilities"][:, 3] = 1
    agents["extent"] = 1
    data = {"scenes": scenes, "frames": frames, "agents": agents, "traffic_light_faces": np.zeros(0, l5.FACE_DTYPE)}
    l5.write_store(str(place / "l5"), data)
    for name, options in {
        "mds": {"format": "mds"},
        "csv": {"format": "xsv", "separator": ","},
        "jsonl": {"format": "jsonl"},
    }.items():
        with sl.create(place / name, {"e": "str"}, **options) as writer:
            writer.write({"e": "a"})
    with sl.create(place / "arrays", {"a": "ndarray:int32"}, format="mds") as writer:
        writer.write({"a": np.zeros(3, np.int32)})
    arm_folder().write(place / "rlds")
    return place


def calls(home: Path, fresh: Callable[[], str]) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Each public function with arguments that are right."""
    path = str(home / "l5")
    store = l5.open_store(path)
    scenes, frames, agents = store.scenes[:], store.frames[:], store.agents[:]
    faces = store.tl_faces[:]
    mask = l5.select_agents(store)
    ego = l5.EgoDataset(dataset=store, history_num_frames=2, future_num_frames=3)
    cars = l5.AgentDataset(dataset=store, history_num_frames=2, future_num_frames=3, agents_mask=mask)
    samples = {
        "dataset": store,
        "history_num_frames": 2,
        "future_num_frames": 3,
        "step_time": 0.1,
        "filter_agents_threshold": 0.5,
    }
    numbers, xy = np.arange(2), np.zeros((2, 3, 2))
    table: dict[str, tuple[Any, dict[str, Any]]] = {
        "open_store": (
            l5.open_store,
            {"location": path, "storage": None, "cache_bytes": 1000, "threads": 2, "chunk_bytes": 1 << 30},
        ),
        "store.array": (store.array, {"name": "agents"}),
        "store.get_scene_dataset": (store.get_scene_dataset, {"scene_index": 0}),
        "scene.get": (l5.EgoDataset(dataset=store.get_scene_dataset(0)).get_scene_dataset, {"scene_index": 0}),
        "array": (store.agents.__getitem__, {"index": 1}),
        "get_history_slice": (
            l5.get_history_slice,
            {"frame_index": 3, "history_num_states": 2, "history_step_size": 1, "include_current_state": True},
        ),
        "get_future_slice": (l5.get_future_slice, {"frame_index": 3, "future_num_states": 2, "future_step_size": 1}),
        "generate_agent_sample": (
            l5.generate_agent_sample,
            {
                "state_index": 3,
                "frames": frames,
                "agents": agents,
                "selected_track_id": 1,
                "history_num_frames": 1,
                "future_num_frames": 2,
                "step_time": 0.1,
                "filter_agents_threshold": 0.5,
            },
        ),
        "EgoDataset": (lambda **given: l5.EgoDataset(**given)[3], samples),
        "AgentDataset": (
            lambda **given: l5.AgentDataset(**given)[0],
            {**samples, "agents_mask": mask, "min_frame_history": 1, "min_frame_future": 1},
        ),
        "Thresholds": (
            lambda **given: l5.select_agents(store, thresholds=l5.Thresholds(**given)),
            {"probability": 0.5, "distance": 50.0, "yaw": 30.0, "extent": 1.1},
        ),
        "select_agents": (
            l5.select_agents,
            {"store": store, "thresholds": None, "keep": None, "workers": 2, "storage": None},
        ),
        "windows": (
            lambda **given: l5.windows(given.pop("rows"), **given).lengths("centroid"),
            {
                "rows": sl.scan(path, view="tracks"),
                "history": 2,
                "future": 3,
                "min_frame_history": 1,
                "min_frame_future": 1,
            },
        ),
        "relative_poses": (l5.relative_poses, {"history": 2, "future": 3, "step_time": 0.1, "keep": False}),
        "sized": (
            lambda **given: l5.create_store(fresh(), l5.sized(**given)),
            {"scenes": 1, "frames": 1, "agents": 1, "tl_faces": 1, "chunks": 2, "compressor": None},
        ),
        "create_store": (
            l5.create_store,
            {"location": fresh, "arrays": l5.sized(scenes=1), "attributes": None, "storage": None},
        ),
        "write_store": (
            l5.write_store,
            {
                "location": fresh,
                "data": store.get_scene_dataset(0),
                "attributes": None,
                "chunks": 0,
                "compressor": None,
                "storage": None,
            },
        ),
        "StoreWriter.ranges": (
            lambda **given: l5.create_store(fresh(), l5.sized(agents=9, chunks=2)).ranges(*given.values()),
            {"name": "agents", "parts": 2},
        ),
        "StoreWriter.write": (
            lambda **given: l5.create_store(fresh(), l5.sized(agents=80, chunks=80)).write(*given.values()),
            {"name": "agents", "start": 0, "rows": agents},
        ),
        "StoreWriter.appended": (
            lambda **given: l5.create_store(fresh(), l5.sized(agents=80, chunks=80)).appended(*given.values()),
            {"name": "agents", "parts": [agents]},
        ),
        "uncompressed": (l5.uncompressed, {"input_zarr": path, "output_zarr": fresh, "storage": None}),
        "zarr_concat": (l5.zarr_concat, {"input_zarrs": [path], "output_zarr": fresh, "storage": None}),
        "zarr_scenes_chop": (
            l5.zarr_scenes_chop,
            {"input_zarr": path, "output_zarr": fresh, "num_frames_to_copy": 3, "storage": None},
        ),
        "zarr_split": (
            l5.zarr_split,
            {
                "input_zarr": path,
                "output_path": fresh,
                "split_infos": [{"name": "a", "split_size_GB": 0}, {"name": "b", "split_size_GB": -1}],
                "storage": None,
            },
        ),
        "zarr_split, part": (
            lambda **given: l5.zarr_split(
                path, fresh(), [{"split_size_GB": 0, **given}, {"name": "b", "split_size_GB": -1}]
            ),
            {"name": "a", "split_size_GB": 0},
        ),
        "create_chopped_dataset": (
            l5.create_chopped_dataset,
            {
                "zarr_path": path,
                "out": fresh,
                "num_frames_to_copy": 5,
                "num_frames_gt": 3,
                "min_frame_future": 2,
                "thresholds": None,
            },
        ),
        "export_zarr_to_csv": (
            l5.export_zarr_to_csv,
            {"store": store, "csv_path": fresh, "future_num_frames": 2, "agents_mask": mask, "threshold": 0.5},
        ),
        "write_gt_csv": (
            l5.write_gt_csv,
            {"csv_path": fresh, "timestamps": numbers, "track_ids": numbers, "coords": xy, "avails": np.ones((2, 3))},
        ),
        "write_pred_csv": (
            l5.write_pred_csv,
            {
                "csv_path": fresh,
                "timestamps": numbers,
                "track_ids": numbers,
                "coords": xy[:, None],
                "confs": np.ones((2, 1)),
            },
        ),
        "read_gt_csv": (
            lambda csv_path: list(l5.read_gt_csv(csv_path)),
            {"csv_path": lambda: written(l5.write_gt_csv, fresh(), numbers, numbers, xy, np.ones((2, 3)))},
        ),
        "read_pred_csv": (
            lambda csv_path: list(l5.read_pred_csv(csv_path)),
            {"csv_path": lambda: written(l5.write_pred_csv, fresh(), numbers, numbers, xy)},
        ),
        "get_frames_slice_from_scenes": (l5.get_frames_slice_from_scenes, {"scene_a": scenes[0], "scene_b": scenes[1]}),
        "get_agents_slice_from_frames": (l5.get_agents_slice_from_frames, {"frame_a": frames[0], "frame_b": frames[1]}),
        "get_tl_faces_slice_from_frames": (
            l5.get_tl_faces_slice_from_frames,
            {"frame_a": frames[0], "frame_b": frames[1]},
        ),
        "filter_agents_by_frames": (l5.filter_agents_by_frames, {"frames": frames, "agents": agents}),
        "filter_tl_faces_by_frames": (l5.filter_tl_faces_by_frames, {"frames": frames, "tl_faces": faces}),
        "filter_agents_by_labels": (l5.filter_agents_by_labels, {"agents": agents, "threshold": 0.5}),
        "filter_agents_by_track_id": (l5.filter_agents_by_track_id, {"agents": agents, "track_id": 1}),
        "filter_agents_by_distance": (
            l5.filter_agents_by_distance,
            {"agents": agents, "centroid": np.zeros(2), "max_distance": 3.0},
        ),
        "filter_tl_faces_by_status": (l5.filter_tl_faces_by_status, {"tl_faces": faces, "status": "ACTIVE"}),
        "get_combined_scenes": (l5.get_combined_scenes, {"scenes": scenes}),
    }
    for name, samples_of in {"ego": ego, "agents": cars}.items():
        table |= {
            f"{name}[]": (samples_of.__getitem__, {"index": 1}),
            f"{name}.get_frame": (samples_of.get_frame, {"scene_index": 0, "state_index": 3, "track_id": 1}),
            f"{name}.get_scene_dataset": (samples_of.get_scene_dataset, {"scene_index": 0}),
            f"{name}.get_scene_indices": (samples_of.get_scene_indices, {"scene_idx": 0}),
            f"{name}.get_frame_indices": (samples_of.get_frame_indices, {"frame_idx": 0}),
        }
    return table


def others(home: Path, fresh: Callable[[], str]) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Those of the other formats."""
    table: dict[str, tuple[Any, dict[str, Any]]] = {}
    for room, folder in ((mds, "mds"), (xsv, "csv"), (jsonl, "jsonl"), (rlds, "rlds")):
        name = folder
        table[f"{name}.matches"] = (room.matches, {"location": str(home / folder), "storage": None})
        if room is rlds:
            continue
        extra = {"separator": ","} if room is xsv else {}
        table[f"{name}.writer"] = (
            lambda room=room, extra=extra, **given: room.writer(
                given.pop("out"), given.pop("columns"), **extra, **given
            ),
            {"out": fresh, "columns": {"e": "str"}, "mode": "new", "storage": None},
        )
        table[f"{name}.merge"] = (
            room.merge,
            {"out": lambda folder=folder: parts(home / folder, fresh()), "parts": ["0"], "storage": None},
        )
        table[f"{name}.scan"] = (
            lambda room=room, **given: room.scan(given.pop("location"), **given),
            {"location": str(home / folder), "storage": None},
        )
        table[f"{name}[]"] = (room.scan(str(home / folder)).__getitem__, {"number": 0})
    place = str(home / "rlds")
    table["rlds.scan"] = (
        rlds.scan,
        {"location": place, "storage": None, "split": "train", "keep_constant": True, "without": []},
    )
    table["rlds.lengths"] = (rlds.scan(place).lengths, {"column": "action"})
    table["mds.lengths"] = (mds.scan(str(home / "arrays")).lengths, {"column": "a"})
    return table


def written(write: Any, place: str, *arguments: Any) -> str:
    """A file to be read."""
    write(place, *arguments)
    return place


def parts(source: Path, out: str) -> str:
    """A folder with one part."""
    shutil.copytree(source, Path(out, "0"))
    return out


def bound(call: Any, given: dict[str, Any]) -> Any:
    """Call with these arguments, by position where that is the only way."""
    given = {
        name: value() if inspect.isfunction(value) and value is not len else value for name, value in given.items()
    }
    kinds = {name: one.kind for name, one in inspect.signature(call).parameters.items()}
    plain = [value for name, value in given.items() if kinds.get(name) is inspect.Parameter.POSITIONAL_ONLY]
    return call(
        *plain,
        **{name: value for name, value in given.items() if kinds.get(name) is not inspect.Parameter.POSITIONAL_ONLY},
    )


@pytest.mark.parametrize("of", [calls, others])
def test_arguments_of_public_functions_are_told_in_our_words(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: Any
) -> None:
    monkeypatch.chdir(tmp_path)  # "x" is a name that may be written
    numbers = count()

    def fresh() -> str:
        return str(tmp_path / f"out{next(numbers)}")

    bare = {}
    for name, (call, right) in of(home, fresh).items():
        bound(call, right)
        for argument in right:
            for value in VALUES:
                if why := told(lambda call=call, given={**right, argument: value}: bound(call, given)):
                    bare[name, argument, repr(value)[:30]] = why
                for left in (tmp_path / "x", tmp_path / "nowhere"):
                    if left.is_dir():
                        shutil.rmtree(left)
                    left.unlink(missing_ok=True)
    assert bare == {}

"""Ground truth and predictions as CSV files, as l5kit's evaluation reads them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from seqlake.arguments import COUNT, NUMBER, STEPS, Kind, a, array, takes, whole
from seqlake.compat.l5kit.editing import zarr_scenes_chop
from seqlake.compat.l5kit.poses import transform_points
from seqlake.compat.l5kit.sampling import AgentDataset
from seqlake.errors import DatasetNotFoundError, SchemaMismatchError
from seqlake.files.locations import absolute, local_path
from seqlake.formats.l5kit.converted import ROWS
from seqlake.formats.l5kit.selecting import Thresholds, select_agents
from seqlake.formats.l5kit.store import FRAME_INTERVAL, SceneArrays, get_agents_slice_from_frames, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from seqlake.protocols import Readable

MAX_MODES = 3
_LIST = array("[n]", 1)
_MODES = Kind(
    "an array [n, T, 2] or [n, modes, T, 2]", lambda value: value.ndim in {3, 4} and value.dtype.kind in "biuf"
)


def _coordinates(steps: int, mode: int = 0) -> list[str]:
    return [f"coord_{axis}{mode}{step}" for step in range(steps) for axis in "xy"]


def _gt_header(steps: int) -> list[str]:
    return ["timestamp", "track_id", *(f"avail_{step}" for step in range(steps)), *_coordinates(steps)]


def _pred_header(steps: int) -> list[str]:
    coordinates = [name for mode in range(MAX_MODES) for name in _coordinates(steps, mode)]
    return ["timestamp", "track_id", *(f"conf_{mode}" for mode in range(MAX_MODES)), *coordinates]


def _rows(csv_path: str, header: Callable[[int], list[str]], *, what: str) -> Iterator[tuple[int, list[str]]]:
    """Each row of a file with such a header, after the number of steps that it has."""
    with _opened(csv_path) as file:
        reader = csv.reader(file)
        titles = next(reader, [])
        fixed = len(header(0))
        steps = (len(titles) - fixed) // (len(header(1)) - fixed)
        _check(titles == header(steps), f"the header of {what} of {steps} steps in {csv_path}")
        yield from ((steps, row) for row in reader)


@takes(timestamps=_LIST, track_ids=_LIST, coords=array("[n, T, 2]", 3), avails=array("[n, T]", 2))
def write_gt_csv(
    csv_path: str, timestamps: NDArray[Any], track_ids: NDArray[Any], coords: NDArray[Any], avails: NDArray[Any]
) -> None:
    """Write where agents went.

    Args:
        csv_path: The file.
        timestamps: [n] of the frames.
        track_ids: [n] of the agents.
        coords: [n, T, 2] metres from where each agent is now, along the world's axes.
        avails: [n, T] 1 where a step is known.

    Raises:
        SchemaMismatchError: Arrays that do not fit each other.

    Example:
        ```python
        l5.write_gt_csv("gt.csv", timestamps, track_ids, coords, avails)      # coords [n, T, 2]
        ```
    """
    count, steps = coords.shape[0], coords.shape[1]
    _check(coords.shape == (count, steps, 2) and avails.shape == (count, steps), "coords [n, T, 2] and avails [n, T]")
    _check(timestamps.shape == track_ids.shape == (count,), "n timestamps and n track ids")
    cells = zip(timestamps, track_ids, avails, coords.reshape(count, -1), strict=True)
    rows = ([time, track, *map(str, seen), *_rounded(xy)] for time, track, seen, xy in cells)
    _write(csv_path, _gt_header(steps), rows)


def read_gt_csv(csv_path: str) -> Iterator[dict[str, Any]]:
    """The rows of `write_gt_csv`: `timestamp` and `track_id` as text, `coord` [T, 2], `avail` [T].

    Raises:
        SchemaMismatchError: Not such a file.

    Example:
        ```python
        for row in l5.read_gt_csv("gt.csv"): row["coord"]
        ```
    """
    for steps, row in _rows(csv_path, _gt_header, what="a ground truth"):
        avail, coord = np.array(row[2 : 2 + steps], np.float64), np.array(row[2 + steps :], np.float64)
        yield {"track_id": row[1], "timestamp": row[0], "coord": coord.reshape(steps, 2), "avail": avail}


@takes(timestamps=_LIST, track_ids=_LIST, coords=_MODES, confs=array("[n, modes]", 2).or_none())
def write_pred_csv(
    csv_path: str,
    timestamps: NDArray[Any],
    track_ids: NDArray[Any],
    coords: NDArray[Any],
    confs: NDArray[Any] | None = None,
) -> None:
    """Write where a model says agents go.

    Args:
        csv_path: The file.
        timestamps: [n] of the frames.
        track_ids: [n] of the agents.
        coords: [n, T, 2], or [n, modes, T, 2] with at most three modes.
        confs: [n, modes] how likely each mode is; they sum to 1. Not given with one mode.

    Raises:
        SchemaMismatchError: Arrays that do not fit each other, or confidences that do not sum to 1.

    Example:
        ```python
        l5.write_pred_csv("pred.csv", timestamps, track_ids, coords)          # coords [n, T, 2]
        ```
    """
    if coords.ndim == 3:
        _check(confs is None, "no confidences where there is one mode")
        coords, confs = coords[:, None], np.ones((len(coords), 1))
    count, modes, steps = coords.shape[:3]
    _check(coords.shape == (count, modes, steps, 2) and modes <= MAX_MODES, "coords [n, modes up to 3, T, 2]")
    _check(timestamps.shape == track_ids.shape == (count,), "n timestamps and n track ids")
    _check(confs is not None, "confidences where there are several modes")
    assert confs is not None
    _check(confs.shape == (count, modes) and np.allclose(confs.sum(axis=-1), 1.0), "confidences that sum to 1")
    wide, sure = np.zeros((count, MAX_MODES, steps, 2), coords.dtype), np.zeros((count, MAX_MODES), confs.dtype)
    wide[:, :modes], sure[:, :modes] = coords, confs
    cells = zip(timestamps, track_ids, sure, wide.reshape(count, -1), strict=True)
    rows = ([time, track, *map(str, conf), *_rounded(xy)] for time, track, conf, xy in cells)
    _write(csv_path, _pred_header(steps), rows)


def read_pred_csv(csv_path: str) -> Iterator[dict[str, Any]]:
    """The rows of `write_pred_csv`: `timestamp` and `track_id` as text, `coords` [3, T, 2], `conf` [3].

    Raises:
        SchemaMismatchError: Not such a file.

    Example:
        ```python
        for row in l5.read_pred_csv("pred.csv"): row["conf"]
        ```
    """
    for steps, row in _rows(csv_path, _pred_header, what="predictions"):
        conf = np.array(row[2 : 2 + MAX_MODES], np.float64)
        coords = np.array(row[2 + MAX_MODES :], np.float64).reshape(MAX_MODES, steps, 2)
        yield {"track_id": row[1], "timestamp": row[0], "coords": coords, "conf": conf}


@takes(store=ROWS, future_num_frames=STEPS, threshold=NUMBER)
def export_zarr_to_csv(
    store: SceneArrays[Any] | Readable,
    csv_path: str,
    future_num_frames: int,
    /,
    *,
    agents_mask: NDArray[Any],
    threshold: float = 0.5,
) -> None:
    """Write the ground truth of the sightings that a mask selects.

    Args:
        store: The store, or a dataset that was converted from one.
        csv_path: The file.
        future_num_frames: Steps of the future.
        agents_mask: See `AgentDataset`.
        threshold: Below this an agent counts as not there.

    Example:
        ```python
        l5.export_zarr_to_csv(store, "gt.csv", 50, agents_mask=mask)
        ```
    """
    samples = AgentDataset(
        dataset=store,
        history_num_frames=0,
        future_num_frames=future_num_frames,
        filter_agents_threshold=threshold,
        agents_mask=agents_mask,
    )
    times, tracks, offsets, avails = [], [], [], []
    for number in range(len(samples)):
        one = samples[number]
        times.append(one["timestamp"])
        tracks.append(one["track_id"])
        offsets.append(transform_points(one["target_positions"], one["world_from_agent"]) - one["centroid"])
        avails.append(one["target_availabilities"])
    shape = (len(times), future_num_frames)
    write_gt_csv(
        csv_path,
        np.array(times, np.int64),
        np.array(tracks, np.int64),
        np.array(offsets).reshape(*shape, 2),
        np.array(avails, np.float32).reshape(shape),
    )


@takes(
    num_frames_to_copy=whole(1),
    num_frames_gt=STEPS,
    min_frame_future=COUNT,
    thresholds=a(Thresholds, "Thresholds").or_none(),
)
def create_chopped_dataset(
    zarr_path: str,
    out: str,
    /,
    *,
    num_frames_to_copy: int,
    num_frames_gt: int,
    min_frame_future: int = 10,
    thresholds: Thresholds | None = None,
) -> None:
    """A test set without its future: a chopped store, `mask.npz` of its last frames, `gt.csv` of what came then.

    Args:
        zarr_path: The store.
        out: A new folder; the chopped store keeps its name in it.
        num_frames_to_copy: Frames of each scene that stay.
        num_frames_gt: Steps of the ground truth.
        min_frame_future: Frames for which a selected agent runs on unbroken.
        thresholds: See `select_agents`.

    Example:
        ```python
        l5.create_chopped_dataset("validate.zarr", "test", num_frames_to_copy=100, num_frames_gt=50)
        ```
    """
    store, out = open_store(zarr_path), str(_local(out))
    rules = thresholds or Thresholds()
    runs = select_agents(store, thresholds=rules)
    chopped_path = f"{out}/{Path(zarr_path).name}"
    zarr_scenes_chop(zarr_path, chopped_path, num_frames_to_copy)
    chopped = open_store(chopped_path)
    kept, original = np.zeros(len(chopped.agents), np.bool_), np.zeros(len(store.agents), np.bool_)
    for scene, short in zip(store.scenes[:], chopped.scenes[:], strict=True):
        last = store.frames[int(scene[FRAME_INTERVAL][0]) + num_frames_to_copy - 1]
        agents_now = get_agents_slice_from_frames(last)
        chosen = runs[agents_now, 1] >= min_frame_future
        original[agents_now] = chosen
        kept[get_agents_slice_from_frames(chopped.frames[int(short[FRAME_INTERVAL][1]) - 1])] = chosen
    np.savez(f"{out}/mask", kept)
    export_zarr_to_csv(store, f"{out}/gt.csv", num_frames_gt, agents_mask=original, threshold=rules.probability)


def _write(csv_path: str, header: list[str], rows: Any) -> None:
    with _file(csv_path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def _local(csv_path: str) -> Path:
    """A place of this machine; raises ValueError for what names none."""
    return local_path(absolute(csv_path))


def _file(csv_path: str) -> Path:
    path = _local(csv_path)
    if path.is_dir():
        raise ValueError(f"Expected a file to write, found the folder {path}.")
    return path


def _opened(csv_path: str) -> TextIO:
    path = _local(csv_path)
    if not path.is_file():
        raise DatasetNotFoundError(f"Expected a CSV file at {path}, there is none.", path=str(path))
    return path.open(newline="", encoding="utf-8")


def _rounded(values: NDArray[Any]) -> list[str]:
    return [f"{value:.5f}" for value in values.tolist()]


def _check(right: bool, expected: str) -> None:  # noqa: FBT001 - private
    if not right:
        raise SchemaMismatchError(f"Expected {expected}.")

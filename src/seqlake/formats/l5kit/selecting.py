"""Which sightings of agents can be trusted: how many frames before and after each the same track runs on unbroken.

The rules and thresholds are l5kit's. A sighting does not count where what it may be is too unlikely something that
moves, or where it is too far from the car. A run breaks where the track was not seen in the frame before, turned too
far, or changed its size. Nothing is written into the store.
"""

from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.arguments import INDEX, NUMBER, a, check_fields, takes
from seqlake.files.locations import absolute, local_path, parent
from seqlake.files.stores import exists, open_store, read_all
from seqlake.formats.l5kit.arrays import joined
from seqlake.formats.l5kit.converted import ROWS, as_store
from seqlake.formats.l5kit.layout import CHILDREN, layout_of
from seqlake.formats.l5kit.store import AGENTS, FRAMES, SceneArrays, expect_fields, label_mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from seqlake.formats.l5kit.layout import SceneRows
    from seqlake.protocols import Ints, Readable

_OF_AGENTS = ("centroid", "extent", "yaw", "track_id", "label_probabilities")
MIN_FRAME_HISTORY, MIN_FRAME_FUTURE = 10, 1
TH_YAW_DEGREE = 30.0
TH_EXTENT_RATIO = 1.1
TH_DISTANCE_AV = 50.0
_SMALLEST_AREA = 0.01  # square metres; less is an error of the perception
_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What a sighting and its run must keep to.

    Attributes:
        probability: The labels from `CAR` to `ANIMAL` are together more likely than this.
        distance: Metres from the car, at most and not quite.
        yaw: Degrees between two frames, at most and not quite.
        extent: Ratio of the areas of two frames, the larger to the smaller, at most and not quite.

    Example:
        ```python
        mask = l5.select_agents(store, thresholds=l5.Thresholds(distance=30.0))
        ```
    """

    probability: float = 0.5
    distance: float = TH_DISTANCE_AV
    yaw: float = TH_YAW_DEGREE
    extent: float = TH_EXTENT_RATIO

    def __post_init__(self) -> None:
        check_fields(self, probability=NUMBER, distance=NUMBER, yaw=NUMBER, extent=NUMBER)


@takes(store=ROWS, thresholds=a(Thresholds, "Thresholds").or_none(), workers=INDEX)
def select_agents(
    store: SceneArrays[Any] | Readable,
    /,
    *,
    thresholds: Thresholds | None = None,
    keep: str | None = None,
    workers: int = _THREADS,
    storage: Mapping[str, str] | None = None,
) -> NDArray[np.uint32]:
    """[agents, 2] how many frames before and after each sighting its track runs on unbroken.

    Scenes are looked at side by side. What l5kit calls `agents_mask` is `mask[:, 0] >= 10` and `mask[:, 1] >= 1`.

    Args:
        store: An open store, or a dataset that was converted from one (see `as_store`); it is not changed.
        thresholds: By default l5kit's.
        keep: A file (path or URI) to keep the result in, and to take it from where it is of this store and these
            thresholds already.
        workers: Scenes that are looked at at a time.
        storage: Options of the object store of `keep`.

    Example:
        ```python
        mask = select_agents(store, keep="masks/sample-0.5.npz")
        ```
    """
    rules, store = thresholds or Thresholds(), as_store(store)
    expect_fields(store.agents.dtype, _OF_AGENTS, array=AGENTS, path=store.location)
    expect_fields(store.frames.dtype, ["ego_translation"], array=FRAMES, path=store.location)
    asked = "" if keep is None else json.dumps([store.state, asdict(rules)])
    if keep is not None and (known := _kept(keep, asked, storage)) is not None:
        return known
    mask = np.zeros((len(store.agents), 2), np.uint32)

    def look(row: SceneRows) -> None:
        chosen, at = _one_scene(store, row, rules), 0
        for first, stop in row.runs.get(AGENTS, np.zeros((0, 2), np.int64)).tolist():
            mask[first:stop] = chosen[at : at + stop - first]
            at += stop - first

    with ThreadPoolExecutor(max(1, workers)) as pool:
        list(pool.map(look, (row for row in layout_of(store).rows if row.scene >= 0)))
    if keep is not None:
        _keep(keep, mask, asked, storage)
    return mask


def _one_scene(store: SceneArrays[Any], row: SceneRows, rules: Thresholds) -> NDArray[np.uint32]:
    runs = row.runs.get(AGENTS, np.zeros((0, 2), np.int64)).tolist()
    spans = [store.agents.rows(a, b) for a, b in runs]
    agents = spans[0] if len(spans) == 1 else joined(spans, store.agents.metadata)
    frames = [store.frames.rows(a, b) for a, b in row.runs[FRAMES].tolist()]
    if not len(agents) or not frames:
        return np.zeros((len(agents), 2), np.uint32)
    intervals = frames[0][CHILDREN[AGENTS]].astype(np.int64)
    frame = np.repeat(np.arange(len(intervals)), intervals[:, 1] - intervals[:, 0])
    return runs_of(agents, frame, frames[0]["ego_translation"][frame, :2], rules)


def selected(mask: NDArray[Any], min_frame_history: int, min_frame_future: int, /) -> NDArray[np.bool_]:
    """[agents] which sightings a mask selects; see `AgentDataset`."""
    if mask.ndim == 1:
        return mask.astype(np.bool_)
    chosen: NDArray[np.bool_] = (mask[:, 0] >= min_frame_history) & (mask[:, 1] >= min_frame_future)
    return chosen


def runs_of(agents: NDArray[Any], frame: Ints, car: NDArray[Any], rules: Thresholds, /) -> NDArray[np.uint32]:
    """[n, 2] sightings before and after each in its unbroken run.

    Args:
        agents: [n] sightings of one scene, in the order of frames.
        frame: [n] the frame of each.
        car: [n, 2] where the car was then.
        rules: The thresholds.
    """
    good = label_mask(agents["label_probabilities"], rules.probability)
    good &= np.sqrt(((car - agents["centroid"]) ** 2).sum(axis=1)) < rules.distance
    order = np.argsort(agents["track_id"], kind="stable")
    track, at, good = agents["track_id"][order], frame[order], good[order]
    linked = np.zeros(len(order), np.bool_)
    linked[1:] = (track[1:] == track[:-1]) & (at[1:] == at[:-1] + 1) & good[1:] & good[:-1]
    linked[1:] &= _turned(agents["yaw"][order]) < rules.yaw
    linked[1:] &= _resized(agents["extent"][order]) < rules.extent
    heads = np.flatnonzero(~linked)
    number = np.cumsum(~linked) - 1
    size = np.diff(np.concatenate([heads, [len(order)]]))
    before = np.arange(len(order)) - heads[number]
    out = np.zeros((len(order), 2), np.uint32)
    out[order, 0] = np.where(good, before, 0)
    out[order, 1] = np.where(good, size[number] - before - 1, 0)
    return out


def _turned(yaw: NDArray[Any]) -> NDArray[Any]:
    """[n - 1] degrees from each to the next, at most 180."""
    step = (yaw[1:] - yaw[:-1]).astype(np.float64)
    turned: NDArray[np.float64] = np.abs((step + np.pi) % (2 * np.pi) - np.pi) * 180 / np.pi
    return turned


def _resized(extent: NDArray[Any]) -> NDArray[Any]:
    """[n - 1] the ratio of the areas of each and the next; infinite where one is an error."""
    area = extent[:, 0] * extent[:, 1]
    low, high = np.minimum(area[1:], area[:-1]), np.maximum(area[1:], area[:-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: NDArray[np.float64] = (high / low).astype(np.float64)
    ratio[low.astype(np.float64) < _SMALLEST_AREA] = np.inf
    return ratio


def _kept(keep: str, asked: str, storage: Mapping[str, str] | None) -> NDArray[np.uint32] | None:
    root, name = _split(keep)
    store = open_store(root, storage=storage)
    if not exists(store, name):
        return None
    try:
        with np.load(io.BytesIO(read_all(store.blob(name)))) as held:
            mask: NDArray[np.uint32] = held["arr_0"]
            return mask if str(held["told"]) == asked else None
    except (KeyError, ValueError, OSError):
        return None


def _keep(keep: str, mask: NDArray[np.uint32], asked: str, storage: Mapping[str, str] | None) -> None:
    root, name = _split(keep)
    file = io.BytesIO()
    np.savez_compressed(file, mask, told=np.array(asked))
    open_store(root, storage=storage).put(name, file.getvalue())


def _split(location: str) -> tuple[str, str]:
    place = absolute(location)
    if "://" in place:
        return parent(place)
    if local_path(place).is_dir():
        raise ValueError(f"keep: expected a file, found the folder {place}.")
    root, _, name = place.replace("\\", "/").rpartition("/")
    return root or "/", name

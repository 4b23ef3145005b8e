"""Stores made from stores: joined, split, cut short, or laid out for memory mapping; all intervals re-based.

Masks are left behind, as l5kit does: they belong to the rows of one store.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.arguments import Kind, takes, whole
from seqlake.errors import SchemaMismatchError
from seqlake.files.locations import absolute
from seqlake.formats.l5kit.store import (
    AGENT_INTERVAL,
    AGENTS,
    FACE_INTERVAL,
    FACES,
    FRAME_INTERVAL,
    FRAMES,
    SCENES,
    SceneData,
    Store,
    frames_of,
    open_store,
    scene_of,
    spans_of,
)
from seqlake.formats.l5kit.writing import Appender, metadata_of, refuse_taken, remove_store, whole_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_GIGABYTE = 1 << 30
_STORES = Kind(
    "a list of stores' locations, at least one",
    lambda value: not isinstance(value, (str, bytes, dict)) and len(value) > 0,
)
_PARTS = Kind(
    "a list of {'name': 'train', 'split_size_GB': 10.0}, of which the last has the size -1",
    lambda value: (
        all(isinstance(one["name"], str) and one["name"].strip("./") for one in value)
        and all(one["split_size_GB"] >= 0 for one in value[:-1])
        and value[-1]["split_size_GB"] == -1
    ),
)


@takes(input_zarrs=_STORES)
def zarr_concat(input_zarrs: Sequence[str], output_zarr: str, /, *, storage: Mapping[str, str] | None = None) -> None:
    """Join stores into one, scene after scene.

    Args:
        input_zarrs: Folders, URIs or zip archives, all with the same dtypes.
        output_zarr: A folder or URI that holds nothing yet.
        storage: Options of the object store, for all of them.

    Raises:
        DatasetNotFoundError: One of them is no store.
        SchemaMismatchError: Stores of unlike dtypes.

    Example:
        ```python
        l5.zarr_concat(["monday.zarr", "tuesday.zarr"], "both.zarr")
        ```
    """
    stores = [open_store(one, storage=storage) for one in input_zarrs]
    _write([(store, range(len(store.scenes))) for store in stores], output_zarr, storage=storage)


@takes(split_infos=_PARTS)
def zarr_split(
    input_zarr: str,
    output_path: str,
    split_infos: Sequence[Mapping[str, Any]],
    /,
    *,
    storage: Mapping[str, str] | None = None,
) -> list[tuple[int, int]]:
    """Split a store into several, by whole scenes.

    Args:
        input_zarr: The store.
        output_path: The folder that the new ones are put into.
        split_infos: `{"name": ..., "split_size_GB": ...}` of each; the size of the last one is -1, for what remains.
        storage: Options of the object store.

    Returns:
        (first scene, scene after the last) of each part.

    Raises:
        ValueError: The sizes leave nothing for the last part, or the last size is not -1.
        DatasetExistsError: Something is where a part would be.
    """
    store, output_path = open_store(input_zarr, storage=storage), absolute(output_path)
    whole = sum(size for _, size in store.place.list()) / _GIGABYTE
    scenes = len(store.scenes)
    counts = [int(scenes * one["split_size_GB"] / whole) for one in split_infos[:-1]]
    if sum(counts) >= scenes:
        raise ValueError(f"The sizes take {sum(counts)} of {scenes} scenes and leave none for the last part.")
    edges = np.cumsum([0, *counts, scenes - sum(counts)]).tolist()
    places = [refuse_taken(f"{output_path}/{info['name']}", storage=storage) for info in split_infos]
    written: list[str] = []
    try:
        for place, (start, stop) in zip(places, pairwise(edges), strict=True):
            _write([(store, range(start, stop))], place, storage=storage)
            written.append(place)
    except BaseException:
        for place in written:
            remove_store(place, storage=storage)
        raise
    return list(pairwise(edges))


@takes(num_frames_to_copy=whole(1))
def zarr_scenes_chop(
    input_zarr: str, output_zarr: str, num_frames_to_copy: int, /, *, storage: Mapping[str, str] | None = None
) -> None:
    """Keep the first frames of every scene. Times of scenes stay as they are, as l5kit leaves them.

    Args:
        input_zarr: The store.
        output_zarr: A folder or URI that holds nothing yet.
        num_frames_to_copy: Frames of each scene that stay.
        storage: Options of the object store.

    Raises:
        ValueError: A scene that has not more frames than that.

    Example:
        ```python
        l5.zarr_scenes_chop("sample.zarr", "short.zarr", 100)
        ```
    """
    store = open_store(input_zarr, storage=storage)
    counts = np.diff(store.scenes[FRAME_INTERVAL], axis=1)[:, 0]
    if (counts <= num_frames_to_copy).any():
        short = int(np.argmax(counts <= num_frames_to_copy))
        raise ValueError(f"Scene {short} has {counts[short]} frames; more than {num_frames_to_copy} are needed.")
    _write([(store, range(len(counts)))], output_zarr, frames=num_frames_to_copy, storage=storage)


def uncompressed(input_zarr: str, output_zarr: str, /, *, storage: Mapping[str, str] | None = None) -> Store:
    """A copy with every array in one plain file, which `Array.mapped()` shows without reading it.

    Args:
        input_zarr: The store.
        output_zarr: A folder that holds nothing yet.
        storage: Options of the object store of `input_zarr`.

    Example:
        ```python
        fast = uncompressed("sample.zarr", "/nvme/sample.zarr")
        fast.agents.mapped()["centroid"].mean(axis=0)
        ```
    """
    store = open_store(input_zarr, storage=storage)
    arrays = {
        name: replace(array.metadata, chunks=(max(1, len(array)), *array.shape[1:]), compressor=None, text="")
        for name, array in store.arrays.items()
    }
    with whole_store(output_zarr, arrays, attributes=store.attributes_text) as writer:
        for name, array in store.arrays.items():
            writer.appended(name, array.each_chunk())
    return open_store(output_zarr)


def _write(
    parts: Sequence[tuple[Store, range]],
    location: str,
    *,
    frames: int | None = None,
    storage: Mapping[str, str] | None = None,
) -> None:
    """The scenes of some stores as a new store; each array is written in one pass, at its known size."""
    first = parts[0][0]
    _check_alike([store for store, _ in parts])
    counts = _counts(parts, frames)
    arrays = {
        name: metadata_of(name, first.arrays[name].dtype, (count,))
        for name, count in counts.items()
        if name in first.arrays
    }
    with whole_store(location, arrays, attributes=first.attributes_text, storage=storage) as writer:
        appenders = {name: Appender(writer, name) for name in arrays}
        for rows in _moved(_scenes(parts, frames)):
            for name, appender in appenders.items():
                appender.add(rows[name])
        for appender in appenders.values():
            appender.close()


def _counts(parts: Sequence[tuple[Store, range]], frames: int | None) -> dict[str, int]:
    """Rows of the new arrays, without a look at agents and traffic lights."""
    counts = dict.fromkeys((SCENES, FRAMES, AGENTS, FACES), 0)
    for store, scenes in parts:
        for number, scene in enumerate(store.scenes[scenes.start : scenes.stop], scenes.start):
            whole = store.frames[frames_of(store, scene, number)]
            spans_of(store, whole)  # what cannot be is told before anything is written
            frames_kept = whole[:frames]
            counts[SCENES] += 1
            counts[FRAMES] += len(frames_kept)
            for name, interval in ((AGENTS, AGENT_INTERVAL), (FACES, FACE_INTERVAL)):
                if len(frames_kept) and interval in (frames_kept.dtype.names or ()):
                    counts[name] += int(frames_kept[interval][-1, 1] - frames_kept[interval][0, 0])
    return counts


def _check_alike(stores: Sequence[Store]) -> None:
    for store in stores[1:]:
        for name in (SCENES, FRAMES, AGENTS, FACES):
            mine, theirs = (one.arrays[name].dtype if name in one.arrays else None for one in (stores[0], store))
            if mine != theirs:
                raise SchemaMismatchError(
                    f"{name}: rows of {stores[0].location} are {mine}, those of {store.location} {theirs}."
                )


def _scenes(parts: Sequence[tuple[Store, range]], frames: int | None) -> Iterator[SceneData]:
    for store, scenes in parts:
        for scene in scenes:
            data = scene_of(store, scene)
            yield data if frames is None else _cut(data, frames)


def _cut(data: SceneData, frames: int) -> SceneData:
    """The first frames of one scene."""
    kept = data.frames[:frames]
    scenes = data.scenes.copy()
    scenes[FRAME_INTERVAL] = [0, len(kept)]
    ends = [int(kept[name][-1, 1]) if name in kept.dtype.names else 0 for name in (AGENT_INTERVAL, FACE_INTERVAL)]  # type: ignore[operator]  # structured
    return SceneData(scenes=scenes, frames=kept, agents=data.agents[: ends[0]], tl_faces=data.tl_faces[: ends[1]])


def _rows(data: SceneData) -> dict[str, Any]:
    return {SCENES: data.scenes, FRAMES: data.frames, AGENTS: data.agents, FACES: data.tl_faces}


def _moved(scenes: Iterator[SceneData]) -> Iterator[dict[str, Any]]:
    """The rows of each scene, its intervals counted from the first scene on."""
    before = dict.fromkeys((FRAMES, AGENTS, FACES), 0)
    for data in scenes:
        data.scenes[FRAME_INTERVAL] += before[FRAMES]
        for name, interval in ((AGENTS, AGENT_INTERVAL), (FACES, FACE_INTERVAL)):
            if interval in (data.frames.dtype.names or ()):
                data.frames[interval] += before[name]
        rows = _rows(data)
        for name in before:
            before[name] += len(rows[name])
        yield rows

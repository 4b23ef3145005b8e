"""l5kit 1.5.0 on one store: what `benchmarks/l5kit.py` compares with. Run by the python of .venv-l5kit.

    .venv-l5kit/bin/python peers/l5kit_reads.py STORE MASK.npy READS SAMPLES CACHE_BYTES

Prints one JSON object: seconds of wall and CPU time for each task.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import numpy as np

warnings.simplefilter("ignore")

from l5kit.data import ChunkedDataset  # noqa: E402 - its imports warn
from l5kit.dataset import AgentDataset  # noqa: E402 - its imports warn
from l5kit.rasterization import RenderContext, StubRasterizer  # noqa: E402 - its imports warn

SIZE, PIXEL, CENTRE = (100, 100), (0.5, 0.5), (0.5, 0.5)


def timed(work):
    began, cpu = time.perf_counter(), time.process_time()
    count = work()
    return {"count": count, "wall": time.perf_counter() - began, "cpu": time.process_time() - cpu}


def main():
    path, mask, reads, samples, cache = sys.argv[1], np.load(sys.argv[2]), *map(int, sys.argv[3:])

    def opened():
        return ChunkedDataset(path).open(cached=True, cache_size_bytes=cache)

    warm = opened()
    scenes = np.random.default_rng(0).integers(0, len(warm.scenes), reads).tolist()

    def random_scenes():
        for scene in scenes:
            warm.get_scene_dataset(scene)
        return len(scenes)

    def cold():
        for scene in scenes[: max(1, reads // 4)]:
            opened().get_scene_dataset(scene)
        return max(1, reads // 4)

    def in_order():
        store, total = opened(), 0
        for scene in range(len(store.scenes)):
            total += len(store.get_scene_dataset(scene).agents)
        return total

    def by_chunk():
        store, total = opened(), 0
        for at in range(0, len(store.agents), 20_000):
            total += len(store.agents[at : at + 20_000])
        return total

    found = {"random scenes": None}
    random_scenes()  # what the cache can hold, it holds
    for name, work in (("random scenes", random_scenes), ("cold scenes", cold), ("agents, scene by scene", in_order)):
        found[name] = timed(work)
    found["agents, chunk by chunk"] = timed(by_chunk)
    config = {
        "raster_params": {
            "raster_size": SIZE,
            "pixel_size": np.array(PIXEL),
            "ego_center": np.array(CENTRE),
            "filter_agents_threshold": 0.5,
            "disable_traffic_light_faces": True,
            "set_origin_to_bottom": True,
        },
        "model_params": {"history_num_frames": 10, "future_num_frames": 50, "step_time": 0.1},
    }
    stub = StubRasterizer(RenderContext(np.array(SIZE), np.array(PIXEL), np.array(CENTRE), True))
    dataset = AgentDataset(config, opened(), stub, agents_mask=(mask[:, 0] >= 10) * (mask[:, 1] >= 1))
    numbers = np.random.default_rng(1).integers(0, len(dataset), samples).tolist()
    digest = 0.0

    def windows():
        nonlocal digest
        for number in numbers:
            digest += float(np.abs(dataset[number]["target_positions"]).sum())
        return len(numbers)

    found["agent windows"] = timed(windows)
    found["samples"] = len(dataset)
    found["checksum"] = digest / len(numbers)
    print(json.dumps(found))


main()

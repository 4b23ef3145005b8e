"""torchcodec by hand on the videos of a LeRobot folder: windows of frames in two threads, decoders kept open."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import numpy as np


def main(task: dict) -> None:
    from torchcodec.decoders import VideoDecoder

    paths = sorted(str(path) for path in Path(task["root"], "videos").rglob("*.mp4"))
    width, counts = task["width"], [0] * task["workers"]

    def work(number: int, stop: float | None) -> None:
        random, open_files = np.random.default_rng(number), decoders[number]
        while stop is None or time.perf_counter() < stop:
            start = int(random.integers(task["frames"] - width + 1))
            for path in paths:  # one file a camera: the same window of both
                if path not in open_files:
                    open_files[path] = VideoDecoder(path, dimension_order="NHWC", num_ffmpeg_threads=1)
                counts[number] += len(open_files[path].get_frames_at(list(range(start, start + width))).data)
            if stop is None:
                return

    decoders: list[dict] = [{} for _ in counts]
    for number in range(len(counts)):
        work(number, None)  # files are open
    counts[:] = [0] * len(counts)
    begin = time.perf_counter()
    threads = [threading.Thread(target=work, args=(n, begin + task["seconds"])) for n in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    windows = sum(counts) / width / len(paths)
    print(json.dumps({"per_second": windows / (time.perf_counter() - begin)}), flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))

"""Ways to read windows of frames from the same files; `benchmarks/video.py` runs this in the environment of each.

    python benchmarks/peers/video_readers.py READER PLAN.json

Answers each line `{"order": ..., "width": ..., "files": ..., "seconds": ...}` on stdin with one of
`{"frames_per_second": ..., "cpu_ms_per_frame": ...}` on stdout. A sample is the same window of both cameras of an
episode; two threads take samples, each with decoders of its own that stay open. Every frame is delivered as RGB in
memory of its own. A plan with a `size` has frames delivered at that size; then `copies` among the files are seqlake's
training copies, and `pictures` JPEGs of that size.
"""

from __future__ import annotations

import io
import json
import math
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

READ_AHEAD = 4  # batches
SAMPLES = 64  # of libraries that keep files in samples: the same episodes again and again


class Seqlake:
    """What a user of seqlake writes: views of the files, kept, sliced."""

    def __init__(self, files: dict[str, Any], plan: dict[str, Any]) -> None:
        import seqlake as sl

        rows = sl.open(files["dataset"])
        self.views = {
            rows[name][camera].location: rows[name][camera]
            for name in plan["episodes"]
            for camera in plan["cameras"]
        }  # fmt: skip
        self.close = lambda: None

    def read(self, path: str, start: int, stop: int) -> np.ndarray:
        return self.views[path][start:stop]


class PyAv:
    """What an expert writes by hand: containers kept open, one seek, a converter of one's own without threads."""

    def __init__(self, _files: dict[str, Any], plan: dict[str, Any]) -> None:
        from av.video.reformatter import VideoReformatter

        self.fps = plan["fps"]
        self.converter = VideoReformatter()
        self.open: dict[str, Any] = {}

    def read(self, path: str, start: int, stop: int) -> np.ndarray:
        import av
        from av.video.reformatter import Interpolation

        if path not in self.open:
            container = av.open(path)
            stream = container.streams.video[0]
            stream.codec_context.thread_type, stream.codec_context.thread_count = "NONE", 1
            self.open[path] = [container, stream, int(1 / (self.fps * stream.time_base)), None, 0]
        container, stream, ticks, frames, at = self.open[path]
        if frames is None or at != start:
            container.seek(start * ticks, stream=stream)
            frames = container.decode(stream)
        out = np.empty((stop - start, stream.height, stream.width, 3), np.uint8)
        for frame in frames:
            number = frame.pts // ticks
            if number < start:
                continue
            made = self.converter.reformat(frame, format="rgb24", interpolation=Interpolation.BICUBIC, threads=1)
            plane = made.planes[0]
            rows = np.frombuffer(plane, np.uint8).reshape(made.height, plane.line_size)
            out[number - start] = rows[:, : 3 * made.width].reshape(made.height, made.width, 3)
            if number == stop - 1:
                break
        self.open[path][3:] = frames, stop
        return out


class TorchCodec:
    """torchcodec: a decoder a file, kept; one FFmpeg thread, channels last."""

    seek_mode = "exact"

    def __init__(self, _files: dict[str, Any], _plan: dict[str, Any]) -> None:
        self.open: dict[str, Any] = {}

    def read(self, path: str, start: int, stop: int) -> np.ndarray:
        from torchcodec.decoders import VideoDecoder

        if path not in self.open:
            self.open[path] = VideoDecoder(
                path, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode=self.seek_mode
            )  # fmt: skip
        return self.open[path].get_frames_at(list(range(start, stop))).data.numpy()


class TorchCodecApproximate(TorchCodec):
    """The same without the scan of the file that makes it exact."""

    seek_mode = "approximate"


class LeRobot:
    """LeRobot's own function over torchcodec; float32 between 0 and 1, channels first."""

    def __init__(self, _files: dict[str, Any], plan: dict[str, Any]) -> None:
        from _importing import imported

        self.fps = plan["fps"]
        self.module = imported("lerobot.datasets.video_utils")
        self.cache = self.module.VideoDecoderCache()  # its own one, shared by threads, gives wrong timestamps

    def read(self, path: str, start: int, stop: int) -> np.ndarray:
        times = [number / self.fps for number in range(start, stop)]
        return self.module.decode_video_frames_torchcodec(path, times, 1e-4, decoder_cache=self.cache).numpy()


READERS = {
    "seqlake": Seqlake,
    "pyav": PyAv,
    "torchcodec": TorchCodec,
    "torchcodec approximate": TorchCodecApproximate,
    "lerobot": LeRobot,
}


def samples(plan: dict[str, Any], task: dict[str, Any], seed: int) -> Any:
    """Episodes and first frames: at random, or each episode from its start to its end."""
    width, count = task["width"], plan["frames"]
    random = np.random.default_rng(seed)
    while True:
        if task["order"] == "random":
            yield int(random.integers(len(plan["episodes"]))), int(random.integers(count - width + 1))
        else:
            episode = int(random.integers(len(plan["episodes"])))
            yield from ((episode, start) for start in range(0, count - width + 1, width))


class Threads:
    """Windows by number, each thread with decoders of its own."""

    def __init__(self, kind: type, plan: dict[str, Any], files: dict[str, Any], threads: int) -> None:
        self.plan, self.files = plan, files
        self.readers = [kind(files, plan) for _ in range(threads)]
        self.seed = 0

    def rate(self, task: dict[str, Any]) -> tuple[float, float]:
        counts = [0] * len(self.readers)
        self.seed += len(self.readers)
        stop = time.perf_counter() + task["seconds"]

        def work(number: int) -> None:
            counts[number] = self.until(stop, self.readers[number], task, self.seed + number)

        begin, spent = time.perf_counter(), time.process_time()
        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(self.readers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        count = sum(counts)
        return count / (time.perf_counter() - begin), 1e3 * (time.process_time() - spent) / count

    def until(self, stop: float, reader: Any, task: dict[str, Any], seed: int) -> int:
        """How many frames were read when the time was over."""
        count = 0
        for episode, start in samples(self.plan, task, seed):
            for path in self.files["videos"][episode]:
                count += len(reader.read(path, start, start + task["width"]))
            if time.perf_counter() > stop:
                break
        return count

    def check(self, expected: np.ndarray, first: int) -> float:
        """The largest difference to frames that were decoded in sequence; also opens every file, as a warm start."""
        for reader in self.readers:
            for episode in self.files["videos"]:
                for path in episode:
                    reader.read(path, 0, 1)
        found = self.readers[0].read(self.files["videos"][0][0], first, first + len(expected))
        if found.dtype == np.float32:
            found = (found * 255).round().transpose(0, 2, 3, 1)
        return difference(found, expected)


def batch_of(plan: dict[str, Any], width: int) -> int:
    """Windows of a batch: of small pictures as many more as batches of them have."""
    return max(4, (256 if "size" in plan else 64) // width)


class SeqlakeLoader:
    """The training loader over both cameras, as it comes."""

    def __init__(self, plan: dict[str, Any], files: dict[str, Any], _threads: int) -> None:
        import seqlake as sl

        self.plan, self.rows, self.batches = plan, sl.open(files["dataset"]), {}
        self.copies = files.get("copies", False)

    def rate(self, task: dict[str, Any]) -> tuple[float, float]:
        import seqlake as sl

        width, cameras = task["width"], self.plan["cameras"]
        if width not in self.batches:
            window = sl.Window(dict.fromkeys(cameras, range(width)), edges="drop")
            loader = sl.Loader(self.rows, window=window, batch_size=batch_of(self.plan, width), shuffle=True)
            self.batches[width] = self.forever(self.sized(loader))
            next(self.batches[width])
        for _ in range(READ_AHEAD):
            next(self.batches[width])  # made while others were measured
        count, begin, cpu = 0, time.perf_counter(), time.process_time()
        while (spent := time.perf_counter() - begin) < task["seconds"]:
            batch = next(self.batches[width])
            count += sum(batch[camera].shape[0] * batch[camera].shape[1] for camera in cameras)
        return count / spent, 1e3 * (time.process_time() - cpu) / count

    def sized(self, loader: Any) -> Any:
        """The same at the plan's size, out of copies where there are any."""
        if "size" not in self.plan:
            return loader
        return loader.frames(size=tuple(self.plan["size"]), copies=self.copies)

    @staticmethod
    def forever(loader: Any) -> Any:
        while True:
            yield from loader

    def check(self, expected: np.ndarray, first: int) -> float:
        import seqlake as sl

        camera = self.plan["cameras"][0]
        window = sl.Window({camera: range(len(expected))}, edges="drop")
        for batch in self.sized(sl.Loader(self.rows, window=window, batch_size=16, shuffle=False)):
            for name, start, frames in zip(batch["sequence_id"], batch["start"], batch[camera], strict=True):
                if name == self.plan["episodes"][0] and start == first:
                    return difference(frames, expected)
        raise AssertionError("The window that is checked never came.")


class LeRobotDataLoader:
    """LeRobot's function in torch's DataLoader with two worker processes, as its training script reads."""

    def __init__(self, plan: dict[str, Any], files: dict[str, Any], threads: int) -> None:
        self.plan, self.files, self.threads = plan, files, threads

    def rate(self, task: dict[str, Any]) -> tuple[float, float]:
        import torch

        width = task["width"]
        windows = LeRobotWindows(self.plan, self.files, task)
        loader = torch.utils.data.DataLoader(windows, batch_size=max(2, 16 // width), num_workers=self.threads)
        batches = iter(loader)  # anew each time: workers that wait would go on reading while others are measured
        for _ in range(4 * self.threads):
            next(batches)  # what they read ahead, and their opening of files, is not counted
        return frames_per_second(batches, task["seconds"]), 0.0  # its workers' time is their own

    def check(self, expected: np.ndarray, first: int) -> float:
        reader, path = LeRobot(self.files, self.plan), self.files["videos"][0][0]
        frames = at_size(reader.read(path, first, first + len(expected)), self.plan)
        return difference((frames * 255).round().transpose(0, 2, 3, 1), expected)


class LeRobotWindows:
    """A torch IterableDataset in all but name, which would have to be imported for every reader."""

    def __new__(cls, plan: dict[str, Any], files: dict[str, Any], task: dict[str, Any]) -> Any:
        import torch

        class Windows(torch.utils.data.IterableDataset):
            def __iter__(self) -> Any:
                reader = LeRobot(files, plan)
                worker = torch.utils.data.get_worker_info()
                for episode, start in samples(plan, task, worker.id):
                    read = [reader.read(path, start, start + task["width"]) for path in files["videos"][episode]]
                    yield torch.from_numpy(np.stack([at_size(frames, plan) for frames in read]))

        return Windows()


def at_size(frames: np.ndarray, plan: dict[str, Any]) -> np.ndarray:
    """Float frames, channels first, as torchvision's `Resize` scales them, which stands on this function of torch."""
    import torch

    if "size" not in plan:
        return frames
    tensor = torch.from_numpy(frames)
    return torch.nn.functional.interpolate(tensor, plan["size"], mode="bilinear", antialias=True).numpy()


class InSamples:
    """A library that knows no video: both files of an episode are a sample; torchcodec decodes a window in its workers.

    A sample is visited for one window, so that the shuffle is as good as everybody's. Of JPEGs a sample holds those of
    one window and no other.
    """

    def __init__(self, name: str, plan: dict[str, Any], files: dict[str, Any]) -> None:
        import _samples

        self.plan, self.files, self.threads = plan, files, plan["threads"]
        self.folder = Path(files["dataset"]).with_name(f"{name.partition(' ')[0]}-samples")
        self.kind = _samples.KINDS[name.partition(" ")[0]]
        if not self.folder.exists() and "pictures" not in files:
            videos = [[Path(path).read_bytes() for path in pair] for pair in files["videos"]]
            self.kind.write(self.folder, videos * -(-SAMPLES // len(videos)))

    def rate(self, task: dict[str, Any]) -> tuple[float, float]:
        width = task["width"]
        if "pictures" in self.files:
            folder = self.folder.with_name(f"{self.folder.name}-{width}")
            if not folder.exists():
                self.kind.write(folder, list(windows_of_pictures(self.files["pictures"], width)))
            loader = self.kind.loader(folder, partial(pictures, width=width), self.threads, batch_of(self.plan, width))
        else:
            loader = self.kind.loader(self.folder, window_of(self.plan["frames"], width), self.threads, 2)
        batches = (batch for _ in iter(int, 1) for batch in loader)  # epoch after epoch
        for _ in range(4 * self.threads):
            next(batches)  # what workers read ahead, and their opening of files, is not counted
        return frames_per_second(batches, task["seconds"]), 0.0  # its workers' time is their own

    def check(self, expected: np.ndarray, first: int) -> float:
        if "pictures" in self.files:
            files = jpegs(self.files["pictures"][0][0])[first : first + len(expected)]
            return difference(pictures(files, width=len(files))[0], expected)
        return difference(
            decoded([Path(path).read_bytes() for path in self.files["videos"][0]], first, len(expected))[0], expected
        )


class Memcpy:
    """As many consecutive bytes as the loader's batches have, into memory that is there already."""

    def __init__(self, plan: dict[str, Any], files: dict[str, Any], threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.plan = plan
        self.frame = math.prod(plan["size"]) * 3
        self.source = torch.zeros(len(files["videos"]) * 2 * plan["frames"] * self.frame, dtype=torch.uint8).fill_(7)
        self.at = 0

    def rate(self, task: dict[str, Any]) -> tuple[float, float]:
        import torch

        size = batch_of(self.plan, task["width"]) * task["width"] * self.frame  # of a batch of one camera
        target = torch.ones(size, dtype=torch.uint8)
        count, begin, cpu = 0, time.perf_counter(), time.process_time()
        while (spent := time.perf_counter() - begin) < task["seconds"]:
            self.at = (self.at + size) % (len(self.source) - size)
            target.copy_(self.source[self.at : self.at + size])
            count += size // self.frame
        return count / spent, 1e3 * (time.process_time() - cpu) / count

    def check(self, _expected: np.ndarray, _first: int) -> float:
        return 0.0


def difference(frames: np.ndarray, expected: np.ndarray) -> float:
    """The largest, of any channel of any pixel."""
    return float(np.abs(frames.astype(int) - expected.astype(int)).max())


def jpegs(path: str) -> list[bytes]:
    """The pictures of one camera of one episode."""
    with np.load(path) as saved:
        return [part.tobytes() for part in np.split(saved["data"], saved["ends"][:-1])]


def windows_of_pictures(places: list[list[str]], width: int) -> Any:
    """Windows that do not overlap, of each the pictures of both cameras."""
    for pair in places:
        cameras = [jpegs(path) for path in pair]
        for start in range(0, len(cameras[0]) - width + 1, width):
            yield [picture for camera in cameras for picture in camera[start : start + width]]


def pictures(files: list[bytes], *, width: int) -> np.ndarray:
    """[files, width, height, width, 3], as both libraries' own decoders of pictures do it."""
    from PIL import Image

    frames = np.stack([np.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in files])
    return frames.reshape(-1, width, *frames.shape[1:])


def frames_per_second(batches: Any, seconds: float) -> float:
    """Of batches [samples, files, frames, ...]."""
    count, begin = 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds:
        count += math.prod(next(batches).shape[:3])
    return count / spent


def window_of(frames: int, width: int) -> Any:
    """A function of a sample's files that decodes a random window of them."""
    return partial(some_window, frames=frames, width=width)


def some_window(files: list[bytes], *, frames: int, width: int) -> np.ndarray:
    import torch

    return decoded(files, int(torch.randint(frames - width + 1, ())), width)


def decoded(files: list[bytes], start: int, width: int) -> np.ndarray:
    """[files, width, height, width, 3]"""
    from torchcodec.decoders import VideoDecoder

    options: dict[str, Any] = {"dimension_order": "NHWC", "num_ffmpeg_threads": 1, "seek_mode": "approximate"}
    decoders = [VideoDecoder(file, **options) for file in files]
    return np.stack([one.get_frames_in_range(start, start + width).data.numpy() for one in decoders])


def main() -> None:
    name, plan_path = sys.argv[1:]
    plan = json.loads(Path(plan_path).read_text())
    expected = np.load(plan["expected"])
    opened: dict[str, Any] = {}
    answers, sys.stdout = sys.stdout, sys.stderr  # some libraries talk
    if name.startswith(("torchcodec", "lerobot")) or name.endswith("samples"):
        import torch

        torch.set_num_threads(1)
    for text in sys.stdin:
        task = json.loads(text)
        files = task["files"]
        if files not in opened:
            made = plan["files"][files]
            if name == "seqlake Loader":
                reader: Any = SeqlakeLoader(plan, made, plan["threads"])
            elif name.endswith("samples"):
                reader = InSamples(name, plan, made)
            elif name == "memcpy":
                reader = Memcpy(plan, made, plan["threads"])
            elif name == "lerobot DataLoader":
                reader = LeRobotDataLoader(plan, made, plan["threads"])
            else:
                reader = Threads(READERS[name], plan, made, plan["threads"])
            opened[files] = reader
            worst = reader.check(expected[files], plan["first"])
            if worst > made.get("tolerance", plan["tolerance"]):
                raise AssertionError(f"{name} reads other frames from {files}: off by {worst}")
        rate, cpu = opened[files].rate(task)
        print(json.dumps({"frames_per_second": rate, "cpu_ms_per_frame": cpu}), file=answers, flush=True)


if __name__ == "__main__":
    main()

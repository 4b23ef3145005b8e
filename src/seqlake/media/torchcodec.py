"""Video by torchcodec (extra `torchcodec`): taken for CUDA devices, and on the CPU where it is chosen by name.

Frames have the numbers that the packet index gives them: torchcodec is told where they are, and the time of each that
it hands out is compared. Where that cannot be promised (rotated pictures, edit lists, damage, containers without
times) it refuses, and PyAV, the default, reads the file. CRCs of packets are not compared: torchcodec reads the file
itself. It needs FFmpeg's libraries in the system. Decoding on a GPU has not been run yet by this project's tests.

```python
from seqlake import media

decoder = media.open(ds["a"]["cam"].source(), decoder="torchcodec")
```
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake import plugins
from seqlake.errors import CorruptFrameError, DecodeError, MissingDependencyError
from seqlake.media._bytes import BlobBytes, blob_of
from seqlake.media._containers import open_container
from seqlake.media._frames import room_for
from seqlake.media.image import scaled
from seqlake.media.video.codes import Codes, converter_of
from seqlake.media.video.demuxing import picture_streams
from seqlake.media.video.opening import open_video
from seqlake.media.video.packets import DAMAGED, HIDDEN

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from numpy.typing import NDArray

    from seqlake.media.video.packets import PacketIndex
    from seqlake.protocols import Blob, Ints, Source

DEVICES = ("cuda",)  # for which it is taken without being chosen
_BOXES = frozenset({b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide"})  # what an MP4 or MOV may begin with
_MATROSKA = b"\x1a\x45\xdf\xa3"


def types() -> tuple[str, ...]:
    """The column types that it opens."""
    return ("video",)


def index(source: Source, /) -> Mapping[int, bytes]:  # noqa: ARG001 - the protocol's
    """Nothing of its own: the packet index of PyAV's plug is its index too."""
    return {}


def open(source: Source, /, *, threads: int = 1, device: str = "cpu") -> TorchDecoder:  # noqa: A001 - the protocol's
    """Open one stream of a video.

    Args:
        source: The file, as PyAV's plug takes it.
        threads: FFmpeg's threads; 1 is best where several decoders work.
        device: `"cpu"`, `"cuda"` or `"cuda:0"`; frames come back to the CPU's memory.

    Raises:
        MissingDependencyError: torchcodec, or FFmpeg's libraries, are not installed.
        DecodeError: There is no such device, frames are codes and no RGB, or torchcodec cannot be held to this file's
            frames.
        CorruptFileError: The container is damaged.
    """
    decoders = _decoders()
    if device != "cpu":
        torch = plugins.require("torch", extra="torchcodec")
        if not device.startswith("cuda") or not torch.cuda.is_available():
            raise DecodeError(f"Expected device='cpu', or a CUDA device on a machine with a GPU; found {device!r}.")
    blob = blob_of(source)
    frames = open_video(source)
    stored = isinstance(converter_of(frames.packets.stream, source.column, blob.location), Codes)
    why = "is read as stored codes" if stored else _refusal(frames.packets) or _unsure(blob)
    if why:
        raise DecodeError(f"{blob.location} {why}: torchcodec cannot be held to its frames. Open it with PyAV.")
    data: Any = bytes(source.blob) if isinstance(source.blob, (bytes, bytearray, memoryview)) else BlobBytes(blob)
    decoder = decoders.VideoDecoder(
        data,
        stream_index=_container_index(blob, frames.packets),
        dimension_order="NHWC",
        num_ffmpeg_threads=threads,
        device=device,
        custom_frame_mappings=_mappings(frames.packets),
    )
    return TorchDecoder(decoder, frames.packets, blob.location, first=source.first, count=len(frames))


class TorchDecoder:
    """The frames of one video stream by number; for one thread at a time.

    Args:
        decoder: torchcodec's, open.
        packets: The stream's packet index.
        location: What errors call the file.
        first: The first frame that belongs to this source.
        count: How many do.
    """

    def __init__(self, decoder: Any, packets: PacketIndex, location: str, /, *, first: int, count: int) -> None:
        self._decoder = decoder
        self._packets = packets
        self._location = location
        self._first = first
        self._count = count

    def __len__(self) -> int:
        return self._count

    @property
    def pts(self) -> Ints:
        """[frames] when each frame is shown, in ticks of `time_base`, strictly ascending."""
        return self._packets.pts[self._packets.order][self._first :][: self._count]

    @property
    def time_base(self) -> Fraction:
        """Seconds of one tick."""
        return self._packets.stream.time_base

    def read(
        self, indices: Ints, /, *, size: tuple[int, int] | None = None, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Frames as RGB.

        Args:
            indices: [N] frame numbers, in any order, repeats allowed.
            size: Height and width to scale to, after the conversion to RGB: averaged down, bicubic up.
            out: [N, height, width, 3] uint8 to write into.

        Returns:
            uint8 [N, height, width, 3].

        Raises:
            CorruptFrameError: torchcodec cannot decode a frame, or hands out another one.
            IndexError: There is no such frame.
        """
        wanted = np.asarray(indices, np.int64)
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < len(self):
            span = f"{wanted.min()} to {wanted.max()}"
            raise IndexError(f"{self._location} has frames 0 to {len(self) - 1}, found {span}.")
        stream = self._packets.stream
        height, width = size or (stream.height, stream.width)
        out = room_for(out, (len(wanted), height, width, 3), np.uint8)
        if wanted.size:
            numbers, places = np.unique(wanted, return_inverse=True)
            frames = self._frames(numbers)
            if (height, width) != frames.shape[1:3]:
                frames = np.stack([scaled(frame, (height, width)) for frame in frames])
            np.take(frames, places, axis=0, out=out)
        return out

    def close(self) -> None:
        """Nothing is held beside the decoder itself."""

    def _frames(self, numbers: Ints) -> NDArray[Any]:
        """[numbers, height, width, 3], each compared with the time it should have."""
        try:
            batch = self._decoder.get_frames_at((numbers + self._first).tolist())
        except RuntimeError as error:
            raise CorruptFrameError(
                f"{self._location}: torchcodec cannot decode frames {numbers[0]} to {numbers[-1]}: {error}. The file "
                "is damaged; frames in other groups of pictures can still be read.",
                path=self._location,
            ) from error
        expected = self.pts[numbers] * float(self.time_base)
        seconds = batch.pts_seconds.cpu().numpy()
        tick = float(self.time_base)
        wrong = np.flatnonzero(np.abs(seconds - expected) > tick / 2)
        if wrong.size:
            number, at = int(numbers[wrong[0]]), float(seconds[wrong[0]])
            raise CorruptFrameError(
                f"{self._location}: torchcodec gave another picture for frame {number}: expected the one shown at "
                f"{expected[wrong[0]]:.6f} s, found {at:.6f} s. Open it with PyAV.",
                path=self._location,
            )
        frames: NDArray[Any] = batch.data.cpu().numpy()
        return frames


def _decoders() -> Any:
    """The decoders of torchcodec, whose import fails where it finds no FFmpeg."""
    plugins.require("torch", extra="torchcodec")
    try:
        return plugins.require("torchcodec.decoders", extra="torchcodec")
    except (RuntimeError, OSError) as error:
        raise MissingDependencyError(
            "torchcodec is installed, but finds no FFmpeg libraries that it can use. Install FFmpeg (4 to 8) in the "
            "system, or run: pip install 'seqlake[torchcodec]'"
        ) from error


def _refusal(packets: PacketIndex) -> str:
    """Why torchcodec cannot be told where the frames are; empty where it can."""
    stream = packets.stream
    if stream.turn != (1, 0, 0, 1):
        return "is rotated"
    if (packets.flags & (HIDDEN | DAMAGED)).any():
        return "has packets that are never shown, or damaged"
    if stream.changes or not stream.placed:
        return "changes its parameters, or lies in pieces"
    return ""


def _unsure(blob: Blob) -> str:
    """Why nobody knows as what its FFmpeg would open the file; empty where the first bytes leave no choice.

    It takes every kind that FFmpeg knows, lists of other files among them, and is of another version than PyAV's.
    """
    head = BlobBytes(blob).between(0, 12)
    sure = head[4:8] in _BOXES or head.startswith(_MATROSKA) or (head[:4], head[8:]) == (b"RIFF", b"AVI ")
    return "" if sure else "is neither MP4, MOV, MKV, WebM nor AVI"


def _container_index(blob: Blob, packets: PacketIndex) -> int:
    """The stream's number among all of the container's, as torchcodec counts."""
    with open_container(BlobBytes(blob), blob.location) as container:
        return int(picture_streams(container)[packets.stream.number].index)


def _mappings(packets: PacketIndex) -> str:
    """Time, duration and keyframe of every frame, as torchcodec takes them."""
    order = packets.order
    pts = packets.pts[order]
    steps = np.diff(pts, append=pts[-1:] + (int(np.median(np.diff(pts))) if len(pts) > 1 else 1))
    key = np.isin(order, packets.starts)
    rows = zip(pts.tolist(), steps.tolist(), key.tolist(), strict=True)
    return json.dumps({"frames": [{"pts": p, "duration": d, "key_frame": int(k)} for p, d, k in rows]})

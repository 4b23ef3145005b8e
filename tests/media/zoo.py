"""A zoo of videos that the system's `ffmpeg` command makes: each encoder, in each container that it goes into, and
each way in which files are cut, joined, shortened, delayed and damaged on their way to a dataset.

What a clip is to show is what a plain, sequential decode of the whole file shows, by PyAV and packet by packet.
"""

from __future__ import annotations

import hashlib
import io
import random
import subprocess
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import av
import numpy as np

from seqlake.errors import CorruptFrameError, SeqlakeError
from seqlake.media import video
from seqlake.media._containers import any_titles
from seqlake.protocols import Source
from seqlake.spec.column_types import Video

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

FRAMES = 30
SIZE = "176x144"

OPEN = "open-gop=1:keyint=10:min-keyint=10:bframes=3"
# (name, encoder, pixel format, more options); what an encoder cannot do is no clip
ENCODERS: list[tuple[str, str, str, str]] = [
    ("h264", "libx264", "yuv420p", "-bf 3 -g 12"),
    ("h264-nob", "libx264", "yuv420p", "-bf 0 -g 8 -sc_threshold 0"),
    ("h264-open", "libx264", "yuv420p", f"-x264-params {OPEN}:b-adapt=0:scenecut=0"),
    ("h264-refresh", "libx264", "yuv420p", "-x264-params intra-refresh=1:keyint=12:bframes=0"),
    ("h264-fields", "libx264", "yuv420p", "-x264-params interlaced=1:keyint=10"),
    ("h264-rgb", "libx264rgb", "rgb24", "-g 10"),
    ("h264-10", "libx264", "yuv420p10le", "-bf 2 -g 10"),
    ("hevc", "libx265", "yuv420p", "-x265-params keyint=10:bframes=3:log-level=none:pools=1"),
    ("hevc-open", "libx265", "yuv420p", f"-x265-params {OPEN}:log-level=none:pools=1"),
    ("av1", "libsvtav1", "yuv420p", "-preset 10 -g 10 -svtav1-params lp=1"),
    ("av1-aom", "libaom-av1", "yuv420p", "-cpu-used 8 -g 10 -b:v 200k"),
    ("vp9", "libvpx-vp9", "yuv420p", "-g 10 -deadline realtime -cpu-used 8"),
    ("vp9-alt", "libvpx-vp9", "yuv420p", "-g 12 -deadline good -cpu-used 5 -auto-alt-ref 1 -lag-in-frames 12"),
    ("vp8", "libvpx", "yuv420p", "-g 10 -deadline realtime -cpu-used 8"),
    ("vp8-alt", "libvpx", "yuv420p", "-g 12 -deadline good -cpu-used 5 -auto-alt-ref 1 -lag-in-frames 12"),
    ("mpeg4", "mpeg4", "yuv420p", "-g 10"),
    ("mpeg4-b", "mpeg4", "yuv420p", "-bf 2 -g 10"),
    ("xvid", "libxvid", "yuv420p", "-g 10"),
    ("xvid-b", "libxvid", "yuv420p", "-bf 2 -g 12"),
    ("divx-b", "libxvid", "yuv420p", "-bf 2 -g 12 -vtag DX50"),
    ("mpeg1", "mpeg1video", "yuv420p", "-bf 2 -g 10"),
    ("mpeg2", "mpeg2video", "yuv420p", "-g 10"),
    ("mpeg2-b", "mpeg2video", "yuv420p", "-bf 2 -g 10"),
    ("mpeg2-fields", "mpeg2video", "yuv422p", "-bf 2 -g 10 -flags +ilme+ildct"),
    ("mjpeg", "mjpeg", "yuvj420p", ""),
    ("mjpeg-huff", "mjpeg", "yuvj422p", "-huffman optimal"),
    ("ljpeg", "ljpeg", "yuvj420p", ""),
    ("jpegls", "jpegls", "rgb24", ""),
    ("jpeg2000", "jpeg2000", "yuv420p", ""),
    ("prores", "prores_ks", "yuv422p10le", ""),
    ("prores-4444", "prores_ks", "yuva444p10le", "-profile:v 4444"),
    ("dnxhr", "dnxhd", "yuv422p", "-profile:v dnxhr_sq -s 256x144"),
    ("dv", "dvvideo", "yuv420p", "-s 720x576 -r 25"),
    ("ffv1", "ffv1", "yuv420p", "-g 5"),
    ("ffv1-crc", "ffv1", "yuv420p", "-g 5 -level 3 -slicecrc 1 -slices 4"),
    ("ffv1-rgb", "ffv1", "bgr0", "-level 3 -g 1"),
    ("ffv1-grey16", "ffv1", "gray16le", "-level 3"),
    ("ffvhuff", "ffvhuff", "yuv420p", ""),
    ("huffyuv", "huffyuv", "yuv422p", ""),
    ("huffyuv-rgb", "huffyuv", "rgb24", ""),
    ("utvideo", "utvideo", "yuv420p", ""),
    ("utvideo-rgb", "utvideo", "gbrp", ""),
    ("magicyuv", "magicyuv", "yuv420p", ""),
    ("png", "png", "rgb24", ""),
    ("png-pal", "png", "pal8", ""),
    ("png-grey", "png", "gray", "-pred mixed"),
    ("apng", "apng", "rgb24", ""),
    ("gif", "gif", "pal8", ""),
    ("bmp", "bmp", "bgr24", ""),
    ("bmp-pal", "bmp", "pal8", ""),
    ("tiff", "tiff", "rgb24", ""),
    ("targa", "targa", "bgr24", ""),
    ("sgi", "sgi", "rgb24", ""),
    ("qoi", "qoi", "rgb24", ""),
    ("webp", "libwebp", "yuv420p", ""),
    ("qtrle", "qtrle", "rgb24", "-g 10"),
    ("qtrle-grey", "qtrle", "gray", "-g 10"),
    ("rpza", "rpza", "rgb555le", ""),
    ("smc", "smc", "pal8", "-g 10"),
    ("svq1", "svq1", "yuv410p", "-g 10"),
    ("cinepak", "cinepak", "rgb24", "-g 10"),
    ("msvideo1", "msvideo1", "rgb555le", "-g 10"),
    ("zmbv", "zmbv", "pal8", "-g 10"),
    ("zmbv-rgb", "zmbv", "bgr0", "-g 10"),
    ("zlib", "zlib", "bgr24", ""),
    ("flashsv", "flashsv", "bgr24", "-g 10"),
    ("flashsv2", "flashsv2", "bgr24", "-g 10"),
    ("flv1", "flv", "yuv420p", "-g 10"),
    ("h261", "h261", "yuv420p", "-g 10"),
    ("h263", "h263", "yuv420p", "-g 10"),
    ("h263p", "h263p", "yuv420p", "-g 10"),
    ("msmpeg4v2", "msmpeg4v2", "yuv420p", "-g 10"),
    ("msmpeg4v3", "msmpeg4", "yuv420p", "-g 10"),
    ("wmv1", "wmv1", "yuv420p", "-g 10"),
    ("wmv2", "wmv2", "yuv420p", "-g 10"),
    ("rv10", "rv10", "yuv420p", "-g 10"),
    ("rv20", "rv20", "yuv420p", "-g 10"),
    ("theora", "libtheora", "yuv420p", "-g 10"),
    ("snow", "snow", "yuv420p", "-g 10"),
    ("asv1", "asv1", "yuv420p", ""),
    ("asv2", "asv2", "yuv420p", ""),
    ("amv", "amv", "yuvj420p", "-ar 22050"),
    ("roq", "roqvideo", "yuvj444p", "-s 128x128"),
    ("hap", "hap", "rgba", ""),
    ("hap-alpha", "hap", "rgba", "-format hap_alpha"),
    ("hap-q", "hap", "rgba", "-format hap_q -chunks 2"),
    ("cfhd", "cfhd", "yuv422p10le", ""),
    ("dirac", "vc2", "yuv420p", ""),
    ("speedhq", "speedhq", "yuv422p", ""),
    ("cljr", "cljr", "yuv411p", ""),
    ("avui", "avui", "uyvy422", "-s 720x576"),
    ("raw", "rawvideo", "yuv420p", ""),
    ("raw-rgb", "rawvideo", "rgb24", ""),
    ("raw-bgr", "rawvideo", "bgr24", ""),
    ("raw-pal", "rawvideo", "pal8", ""),
    ("raw-uyvy", "rawvideo", "uyvy422", ""),
    ("raw-yuyv", "rawvideo", "yuyv422", ""),
    ("raw-grey", "rawvideo", "gray", ""),
    ("raw-nv12", "rawvideo", "nv12", ""),
    ("raw-555", "rawvideo", "rgb555le", ""),
    ("v308", "v308", "yuv444p", ""),
    ("v408", "v408", "yuva444p", ""),
    ("yuv4", "yuv4", "yuv420p", ""),
    ("y41p", "y41p", "yuv411p", ""),
    ("v210", "v210", "yuv422p10le", ""),
    ("v410", "v410", "yuv444p10le", ""),
    ("r210", "r210", "gbrp10le", ""),
]  # fmt: skip
ANY = ("avi", "mov", "matroska", "nut")  # containers into which nearly everything goes
# Containers that hold some codecs only: families of encoders, the part of a name before "-"; "1" is its first alone.
HOLDS: dict[str, str] = {
    "asf": "h264 mpeg4 xvid divx mjpeg msmpeg4v2 msmpeg4v3 wmv1 wmv2 raw",
    "mp4": "h264 hevc av1 vp9 mpeg4 xvid mpeg1 mpeg2 mjpeg jpeg2000 png",
    "mxf": "h264 mpeg2 dnxhr dv jpeg2000 prores",
    "mpegts": "h264 hevc mpeg4 mpeg1 mpeg2 jpeg2000 dirac",
    "flv": "h264 flv1 flashsv flashsv2",
    "ogg": "theora vp8 dirac",
    "webm": "vp8 vp9 av1",
    "ivf": "vp8 vp9 av1",
    "3gp": "h263 mpeg4",
    "ismv": "h264",
    "f4v": "h264",
    "gxf": "dv",
    "mpeg": "mpeg1 mpeg2",
    "vob": "mpeg2 h264",
    "wtv": "mpeg2 h264",
    "rm": "rv10 rv20",
    "swf": "flv1",
    "film_cpk": "cinepak",
    "dv": "dv",
    "roq": "roq",
    "h264": "h264",
    "hevc": "hevc",
    "obu": "av1",
    "mjpeg": "mjpeg",
    "m4v": "mpeg4 xvid",
    "h261": "h261",
    "h263": "h263",
    "mpeg1video": "mpeg1",
    "mpeg2video": "mpeg2",
    "gif": "gif",
    "apng": "apng",
    "dnxhd": "dnxhr",
    "dirac": "dirac",
    "amv": "amv",
    "smjpeg": "mjpeg",
    "yuv4mpegpipe": "raw",
}


@dataclass(frozen=True, slots=True)
class Clip:
    """One file.

    Attributes:
        name: `encoder.container`, and `+how` it was treated.
        data: Its bytes.
        whole: What they were before the end was cut off.
    """

    name: str
    data: bytes
    whole: bytes = b""


def ffmpeg(*arguments: str, out: Path) -> bytes:
    """What the command writes; empty where it cannot."""
    out.unlink(missing_ok=True)
    command = ["ffmpeg", "-v", "quiet", "-nostdin", "-y", "-threads", "1", *arguments, str(out)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return b""
    return out.read_bytes() if done.returncode == 0 and out.exists() else b""


def film(folder: Path, seed: int = 0, frames: int = FRAMES) -> list[str]:
    """The input of an encoder: no two frames are alike; another film for each seed."""
    path = folder / f"film-{seed}-{frames}.nut"
    if not path.exists():
        source = f"testsrc2=size={SIZE}:rate=30,hue=h={seed * 37 % 360},noise=alls=8:allf=t:all_seed={seed + 1}"
        writing = ["-frames:v", str(frames), "-c:v", "rawvideo", "-pix_fmt", "yuv444p", "-f", "nut"]
        ffmpeg("-f", "lavfi", "-i", source, *writing, out=path)
    return ["-i", str(path)]


def encoded(encoder: tuple[str, str, str, str], container: str, folder: Path, *, seed: int = 0) -> bytes:
    """One clip; empty where the encoder, or the container, does not take it."""
    _, codec, pixels, options = encoder
    arguments = ["-c:v", codec, "-pix_fmt", pixels, "-threads", "1", "-strict", "-2", *options.split()]
    arguments += ["-flags", "+bitexact", "-fflags", "+bitexact", "-f", container]
    return ffmpeg(*film(folder, seed), *arguments, out=folder / "made")


def bred(folder: Path) -> Iterator[Clip]:
    """Each encoder in each container that takes it and that PyAV plays."""
    for encoder in ENCODERS:
        family = encoder[0].split("-")[0]
        for container in (*ANY, *(one for one, families in HOLDS.items() if family in families.split())):
            data = encoded(encoder, container, folder)
            if data and played(data):
                yield Clip(f"{encoder[0]}.{container}", data)


# ---- what happens to files on their way
def copied(clip: Clip, folder: Path, how: str, reading: list[str], writing: list[str], container: str) -> Clip | None:
    """The same packets in another file."""
    (folder / "given").write_bytes(clip.data)
    arguments = [*reading, "-i", str(folder / "given"), "-map", "0:v:0", "-c", "copy", "-fflags", "+bitexact"]
    data = ffmpeg(*arguments, *writing, "-f", container, out=folder / "made")
    return Clip(f"{clip.name}+{how}", data) if data else None


def joined(clip: Clip, folder: Path) -> Clip | None:
    """A file and another film of the same kind, behind each other in one stream, by FFmpeg's own tool."""
    name, container = clip.name.split(".")
    other = encoded(next(one for one in ENCODERS if one[0] == name), container, folder, seed=1)
    (folder / "one").write_bytes(clip.data)
    (folder / "two").write_bytes(other)
    (folder / "list").write_text("ffconcat version 1.0\nfile one\nfile two\n")
    reading = ["-f", "concat", "-safe", "0", "-i", str(folder / "list"), "-c", "copy"]
    data = ffmpeg(*reading, "-fflags", "+bitexact", "-f", container, out=folder / "made")
    return Clip(f"{clip.name}+joined", data) if data else None


def places(data: bytes) -> list[tuple[int, int]]:
    """(first byte, length) of the packets of the first video stream that lie in the file as they are."""
    found = []
    with suppress(av.FFmpegError), opened(data) as container:  # some demuxers end so
        for packet in container.demux(container.streams.video[0]):
            if packet.size and packet.pos is not None:
                head = bytes(packet)
                near = data[packet.pos : packet.pos + 64 + packet.size].find(head)
                if near >= 0:
                    found.append((packet.pos + near, packet.size))
    return found


def damaged(clip: Clip, seed: int, how: str) -> Clip | None:
    """Bytes within some packets are others: one, a dozen, or a run of zeros."""
    rng = random.Random(zlib.crc32(f"{clip.name}{seed}{how}".encode()))
    data = bytearray(clip.data)
    found = places(clip.data)
    if len(found) < 6:
        return None
    start, length = found[rng.randrange(len(found) // 4, len(found) - 2)]
    if how == "zeros":
        at = start + rng.randrange(max(1, length // 2))
        data[at : min(at + 64, start + length)] = bytes(min(at + 64, start + length) - at)
    else:
        for _ in range(1 if how == "flip" else 12):
            data[start + rng.randrange(length)] ^= 1 << rng.randrange(8)
    return Clip(f"{clip.name}+{how}{seed}", bytes(data)) if data != clip.data else None


def lost_parts(clip: Clip, seed: int, size: int = 188) -> Clip:
    """A transport stream that lost some of its packets on the way."""
    rng = random.Random(seed)
    parts = [clip.data[at : at + size] for at in range(0, len(clip.data), size)]
    gone = set(rng.sample(range(len(parts) // 5, len(parts)), 1 + seed % 3))
    return Clip(f"{clip.name}+lost{seed}", b"".join(part for n, part in enumerate(parts) if n not in gone))


OTHERS = ("matroska", "mp4", "avi", "mpegts", "nut", "asf", "mxf")
DAMAGE = ("flip0", "flips0", "zeros0")
STREAMS = frozenset({"mpegts", "vob", "mpeg", "h264", "hevc", "mjpeg", "m4v", "mpeg2video", "mpeg1video", "dv"})


def treatments(clip: Clip) -> list[str]:
    """What may become of a file: cut, joined, late, in another container, shortened, with losses, damaged."""
    container = clip.name.split(".")[1]
    names = ["cut", "late", "drop", "joined", "short", *DAMAGE, *(f"to-{one}" for one in OTHERS if one != container)]
    names += ["twice"] if container in STREAMS else []
    return names + (["lost0", "lost1", "lost2"] if container == "mpegts" else [])


def treatment(clip: Clip, how: str, folder: Path) -> Clip | None:
    """One of these; None where FFmpeg cannot, or nothing changes."""
    container, kind = clip.name.split(".")[1], how.rstrip("0123456789")
    seed = int(how[len(kind) :] or 0)
    copies: dict[str, tuple[list[str], list[str]]] = {
        "cut": (["-ss", "0.45"], []),
        "late": (["-itsoffset", "5.5"], ["-copyts"]),
        "drop": ([], ["-bsf:v", r"noise=drop=eq(n\,13)+eq(n\,17)"]),
    }
    if how in copies:
        return copied(clip, folder, how, *copies[how], container)
    if how.startswith("to-"):
        return copied(clip, folder, how, [], ["-strict", "-2"], how.removeprefix("to-"))
    if how == "short":
        return Clip(f"{clip.name}+short", clip.data[: len(clip.data) * 7 // 10], whole=clip.data)
    if how == "twice":
        return Clip(f"{clip.name}+twice", clip.data * 2)
    if how == "joined":
        return joined(clip, folder)
    return lost_parts(clip, seed) if kind == "lost" else damaged(clip, seed, kind)


# ---- the truth, and what is compared with it
@dataclass(frozen=True, slots=True)
class Shown:
    """One frame of a plain decode.

    Attributes:
        pts: Its time.
        planes: A digest of what was decoded.
        corrupt: FFmpeg says so.
        frame: The frame itself, where it was asked for.
    """

    pts: int | None
    planes: bytes
    corrupt: bool
    frame: av.VideoFrame | None = None


def opened(data: bytes) -> av.container.InputContainer:
    return av.open(io.BytesIO(data), "r", **any_titles())


def largest(container: av.container.InputContainer) -> av.VideoStream:
    known = [one for one in container.streams.video if one.codec_context is not None]
    return max(known, key=lambda one: (one.width * one.height, -one.index))


def digest(parts: Iterable[object]) -> bytes:
    made = hashlib.blake2b(digest_size=12)
    for part in parts:
        made.update(np.ascontiguousarray(part))
    return made.digest()


def rows(frame: av.VideoFrame) -> list[np.ndarray]:
    """Each plane without what pads its rows; a palette as it is."""
    kept = []
    for number, plane in enumerate(frame.planes):
        if frame.format.name == "pal8" and number:
            kept.append(np.frombuffer(plane, np.uint8))
            continue
        lines = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
        used = [part for part in frame.format.components if part.plane == number]
        bits = frame.format.padded_bits_per_pixel if len(frame.planes) == 1 else 0
        wide = (bits + 7) // 8 or (1 + (max(part.bits for part in used) > 8)) * len(used)
        kept.append(lines[:, : plane.width * wide])
    return kept


def played(data: bytes, *, keep: bool = False) -> list[Shown]:
    """Every frame as FFmpeg gives them out from the start, going on after what it cannot decode."""
    shown = []
    try:
        with opened(data) as container:
            stream = largest(container)
            stream.thread_type = "NONE"
            if stream.codec_context.name == "svq1":  # FFmpeg 8.1 errs with what Matroska keeps: see test_rare_codecs.py
                stream.codec_context.extradata = None
            for packet in container.demux(stream):
                try:
                    frames = packet.decode()
                except av.FFmpegError:
                    continue
                shown += [Shown(f.pts, digest(rows(f)), f.is_corrupt, f if keep else None) for f in frames]
    except (av.FFmpegError, ValueError, IndexError):
        return shown  # no video, or damage of the container
    return shown


@dataclass(slots=True)
class Verdict:
    """What became of one clip.

    Attributes:
        frames: How many there are in a plain decode.
        right: Comparisons of one frame that were equal.
        refused: Comparisons where an error of ours came instead.
        wrong: What was delivered and is not what a plain decode shows.
        error: Why the file as a whole was refused.
    """

    frames: int = 0
    right: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)
    error: str = ""


def ways(total: int, seed: int) -> dict[str, list[list[int]]]:
    """Orders in which frames are asked for, some at a time."""
    rng = random.Random(seed)
    mixed = rng.sample(range(total), total)
    windows = [[n for n in range(a, a + 4) if n < total] for a in (rng.randrange(total) for _ in range(8))]
    return {
        "forwards": [[n] for n in range(total)],
        "backwards": [[n] for n in reversed(range(total))],
        "mixed": [[n] for n in mixed],
        "windows": windows,
        "all": [list(range(total))],
    }


def judged(clip: Clip, *, seed: int = 0) -> Verdict:
    """Compare a clip with its sequential decode by every way to its frames."""
    truth = played(clip.data)
    verdict = Verdict(frames=len(truth))
    try:
        kept = video.index(Source(blob=clip.data, column=Video()))
        decoder = video.open(Source(blob=clip.data, column=Video(), index=kept))
        total, seen = len(decoder), meant(decoder, truth, played(clip.whole) if clip.whole else [])
    except SeqlakeError as error:
        verdict.error = str(error)
        return verdict
    expected = {number: one.planes for number, one in seen.items()}
    timed = decoder.packets.stream.proof == "times"
    missing = len({one.planes for one in truth} - set(expected.values())) if timed else 0
    missing = missing or len(truth) - len(expected)
    if missing > clip.name.endswith("+short"):  # of which the last picture may be left out
        verdict.wrong.append(f"{missing} of {len(truth)} frames missing")
    for name, asked in ways(total, seed).items() if total else ():
        decoder = video.open(Source(blob=clip.data, column=Video(), index=kept))
        for numbers in asked:
            _compare(decoder, numbers, expected, verdict, name)
        decoder.close()
    return verdict


def meant(decoder: video.VideoDecoder, truth: list[Shown], uncut: list[Shown]) -> dict[int, Shown]:
    """Number to what is to be seen: by their times where these are what names frames, else one after another.

    At a cut a plain decode may lose whole pictures that were still inside the decoder: those are of the uncut file.
    A frame that a plain decode leaves out, for what it refers to is lost, is in none; it must be an error.
    """
    if decoder.packets.stream.proof != "times":
        return dict(enumerate(truth[: len(decoder)]))
    shown = {one.pts: one for one in (*uncut, *truth)}
    return {number: shown[pts] for number, pts in enumerate(decoder.pts.tolist()) if pts in shown}


def _compare(
    decoder: video.VideoDecoder, numbers: list[int], expected: dict[int, bytes], verdict: Verdict, way: str
) -> None:
    try:
        got = {number: digest(rows(frame)) for number, frame in decoder.planes(np.array(numbers, np.int64))}
    except SeqlakeError:
        verdict.refused += len(numbers)
        return
    for number in numbers:
        if number in got and got[number] == expected.get(number):
            verdict.right += 1
        else:
            verdict.wrong.append(f"{way} {number}")


# ---- another release of FFmpeg
ROUNDED = frozenset(
    {"mpeg4", "xvid", "divx", "h263p", "msmpeg4v2", "msmpeg4v3", "wmv1", "wmv2"}
)  # of which releases round the transform differently, by one
HURT = ("drop", "short", "lost", "flip", "flips", "zeros")


def by_the_command(data: bytes, folder: Path) -> bytes:
    """Every frame that the system's `ffmpeg` shows, as raw pixels of the file's own kind, one behind the other."""
    with opened(data) as container:
        stream = largest(container).index
    path = folder / "shown"
    path.write_bytes(data)
    reading = ["ffmpeg", "-v", "quiet", "-nostdin", "-threads", "1", "-noautorotate", "-i", str(path)]
    writing = ["-map", f"0:{stream}", "-fps_mode", "passthrough", "-autoscale", "0", "-f", "rawvideo", "-"]
    return subprocess.run([*reading, *writing], capture_output=True, timeout=60, check=False).stdout


def pixels_by_the_command(folder: Path) -> str:
    """What the system's FFmpeg calls the pixels of the file that `by_the_command` wrote there."""
    asking = ["ffprobe", "-v", "quiet", "-select_streams", "V", "-show_entries", "stream=pix_fmt", "-of", "csv=p=0"]
    done = subprocess.run([*asking, str(folder / "shown")], capture_output=True, timeout=60, check=False, text=True)
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""


def beside(clip: Clip, folder: Path) -> str:
    """What seqlake delivers beside what the system's `ffmpeg` shows.

    Returns:
        `same`; `rounded`, if by one step of a sample; `other count`, if the command shows more or fewer frames;
        `other pictures`; `other pixels`, if the two releases have other names for the file's own kind; `not read`, if
        one of the two shows nothing.
    """
    delivered, kinds = list[bytes | None](), set[str]()
    try:
        decoder = video.open(Source(blob=clip.data, column=Video()))
        for number in range(len(decoder)):
            try:
                ((_, frame),) = decoder.planes(np.array([number]))
                kinds.add(frame.format.name)
                delivered.append(b"".join(np.ascontiguousarray(row).tobytes() for row in rows(frame)))
            except CorruptFrameError:
                delivered.append(None)
        command = by_the_command(clip.data, folder)
    except (SeqlakeError, av.FFmpegError):
        return "not read"
    size = max((len(one) for one in delivered if one is not None), default=0)
    if not size or not command:
        return "not read"
    if kinds != {pixels_by_the_command(folder)}:
        return "other pixels"
    if size * len(delivered) != len(command):
        return "other count"
    most = 0
    for number, one in enumerate(delivered):
        other = command[number * size :][:size]
        if one is not None and one != other:
            apart = np.frombuffer(one, np.uint8).astype(np.int16) - np.frombuffer(other, np.uint8)
            most = max(most, int(np.abs(apart).max()))
    if most > (clip.name.split(".")[0].split("-")[0] in ROUNDED):
        return "other pictures"
    return "rounded" if most else "same"


def comparable(clip: Clip, found: str) -> bool:
    """Whether two releases are to agree: not on what is damaged, which each conceals in its way, and not where one
    shows nothing, nor where 5.1 shows what an edit list hides (AV1), one frame of many (GIF in Matroska, AVI), AMV the
    other way up, or knows the pixels by another name.
    """
    bred, _, how = clip.name.partition("+")
    if found in {"same", "rounded"}:
        return True
    one = bred == "gif.matroska" or (bred.startswith("gif.") and how == "to-avi")
    one = one or bred.startswith("amv.")
    known = found in {"not read", "other pixels"} or one or (bred.startswith("av1") and how == "cut")
    return not known and how.rstrip("0123456789") not in HURT

"""Valid files of rare kinds: read as FFmpeg reads them, or refused by their true reason and never called damaged."""

from __future__ import annotations

import io
import shutil
import subprocess
from functools import cache
from typing import TYPE_CHECKING

import av
import numpy as np
import pytest

import seqlake as sl
from seqlake import media
from seqlake.errors import CorruptFileError, CorruptFrameError, DecodeError
from seqlake.media import image, video
from seqlake.media.video.packets import PacketIndex
from seqlake.protocols import Source
from seqlake.spec.column_types import Video

from . import clips

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EXIF = b"\xff\xe1\x00\x22Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"  # a quarter turn


def mjpeg_with_exif() -> bytes:
    """Each picture with an orientation of its own, in a container."""
    raw = clips.encode("mjpeg", container="mjpeg", pix_fmt="yuvj420p").replace(
        b"\xff\xd8\xff", b"\xff\xd8" + EXIF + b"\xff"
    )
    file = io.BytesIO()
    with av.open(io.BytesIO(raw), format="mjpeg") as source, av.open(file, "w", format="matroska") as out:
        copy = out.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(one for one in source.demux(video=0) if one.size):
            packet.pts = packet.dts = number
            packet.time_base, packet.stream = 1 / clips.Fraction(30), copy
            out.mux(packet)
    return file.getvalue()


def tiff() -> bytes:
    """One still, whose notes FFmpeg hands out as EXIF."""
    codec = av.CodecContext.create("tiff", "w")
    codec.width, codec.height, codec.pix_fmt, codec.time_base = 96, 64, "rgb24", clips.Fraction(1, 30)
    frame = av.VideoFrame.from_ndarray(clips.picture(1), format="rgb24")
    return b"".join(map(bytes, [*codec.encode(frame), *codec.encode(None)]))


def by_ffmpeg(*options: str, container: str) -> bytes:
    """What the wheel has no encoder for, by the system's command."""
    if shutil.which("ffmpeg") is None:
        pytest.skip("needs the ffmpeg command")
    command = [
        "ffmpeg",
        "-v",
        "error",
        "-nostdin",
        "-f",
        "lavfi",
        "-i",
        "testsrc2=size=96x64:rate=30",
        "-frames:v",
        "20",
    ]
    ends = ["-f", container, "-movflags", "frag_keyframe+empty_moov", "-"]
    return subprocess.run([*command, *options, *ends], check=True, capture_output=True, timeout=60).stdout


READ: dict[str, Callable[[], bytes]] = {
    **{
        f"qtrle {pix_fmt}": lambda pix_fmt=pix_fmt: clips.encode("qtrle", container="mov", pix_fmt=pix_fmt, g="8")
        for pix_fmt in ("rgb24", "argb", "rgb555be")
    },
    **{
        f"utvideo {pix_fmt}, {container}": lambda pix_fmt=pix_fmt, container=container: clips.encode(
            "utvideo", container=container, pix_fmt=pix_fmt
        )
        for pix_fmt in ("gbrp", "gbrap", "yuv422p", "yuv420p", "yuv444p")
        for container in ("avi", "nut")
    },
    "svq1": lambda: clips.encode("svq1", container="mov", pix_fmt="yuv410p", g="8"),
    "prores 4444": lambda: clips.encode("prores_ks", container="mov", pix_fmt="yuv444p10le", profile="4444"),
    "prores 4444, alpha": lambda: clips.encode("prores_ks", container="mov", pix_fmt="yuva444p10le", profile="4444"),
    "hap": lambda: by_ffmpeg("-c:v", "hap", container="mov"),
    "hap with alpha": lambda: by_ffmpeg("-c:v", "hap", "-format", "hap_alpha", container="mov"),
    "mjpeg with EXIF": mjpeg_with_exif,
    "tiff": tiff,
    "raw yuv420p, avi": lambda: clips.encode("rawvideo", container="avi", pix_fmt="yuv420p"),
    "raw uyvy422, mov": lambda: clips.encode("rawvideo", container="mov", pix_fmt="uyvy422"),
}


@cache
def clip(name: str) -> bytes:
    return READ[name]()


def opened(data: bytes, **fields: object) -> video.VideoDecoder:
    return video.open(Source(blob=data, column=Video(), **fields))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", READ)
def test_each_frame_is_the_one_of_a_sequential_decode(name: str) -> None:
    expected = clips.sequential(clip(name))
    decoder = opened(clip(name))
    assert len(decoder) == len(expected) > 0
    for number in reversed(range(len(expected))):
        ((_, frame),) = decoder.planes(np.array([number]))
        for found, plane in zip(clips.planes(frame), expected[number], strict=True):
            np.testing.assert_array_equal(found, plane)


def test_svq1_in_matroska_is_that_of_mov() -> None:
    """Matroska keeps private data of it, with which FFmpeg 8.1 shows other pictures of the same packets."""
    expected, decoder = (
        opened(by_ffmpeg("-c:v", "svq1", "-g", "10", container=container)) for container in ("mov", "matroska")
    )
    numbers = np.arange(len(expected))
    assert len(decoder) == len(numbers) > 0
    np.testing.assert_array_equal(decoder.read(numbers), expected.read(numbers))


def test_an_index_that_lacks_what_its_decoder_must_know_is_made_again() -> None:
    """Those that were kept before it was noted."""
    data = clip("qtrle rgb24")
    kept = opened(data).packets.to_bytes()
    older = kept.replace(b'"proof"', b'"proox"')  # of equal length: a header of Arrow counts its bytes
    assert older != kept
    with pytest.raises(CorruptFileError, match="says too little about qtrle"):
        PacketIndex.from_bytes(older)
    assert opened(data, index={0: older}).read(np.arange(3)).shape == (3, clips.HEIGHT, clips.WIDTH, 3)


def test_an_index_by_a_stranger_names_no_power_of_ten_to_compute() -> None:
    """`Fraction("1e999999999")` takes hours."""
    data = clips.clip("h264 with B-frames")
    kept = opened(data).packets.to_bytes()
    begin = kept.index(b'"time_base": "') + 14
    end = kept.index(b'"', begin)
    forged = kept[:begin] + b"1e" + b"9" * (end - begin - 2) + kept[end:]  # of equal length
    assert end - begin > 2
    with pytest.raises(CorruptFileError, match="expected a ratio"):
        PacketIndex.from_bytes(forged)


def test_an_index_of_open_groups_that_only_times_proved_is_made_again() -> None:
    """Damage that FFmpeg does not notice gives other pictures from each of them."""
    data = clips.clip("h264 open groups")
    kept = opened(data).packets.to_bytes()
    older = kept.replace(b'"decoded"', b'"times"  ')  # of equal length
    assert older != kept
    with pytest.raises(CorruptFileError, match="says too little about h264"):
        PacketIndex.from_bytes(older)
    assert opened(data, index={0: older}).packets.stream.proof == "decoded"


def raw_in_mov() -> bytes:
    data = clips.encode("rawvideo", container="mov", pix_fmt="uyvy422")
    return data.replace(b"2vuy", b"raw ").replace(b"\0\x18\xff\xff", b"\0\x0c\xff\xff")  # of 12 bits: no such pixels


KEY, KID = "76a6c65c5ea762046bd749a2e632ccbb", "a7e61c373e219033c21091fa607bf3b8"
CENC = {"encryption_scheme": "cenc-aes-ctr", "encryption_key": KEY, "encryption_kid": KID}
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "raw yuv420p in MOV": (raw_in_mov, "does not take this variant"),
    "encrypted": (lambda: clips.encode(muxer=CENC), "is encrypted"),
    "animated WebP": (lambda: clips.encode("libwebp_anim", container="webp"), "animated WebP"),
    "YCgCo": (lambda: clips.encode(pix_fmt="yuv444p", **{"x264-params": "colormatrix=YCgCo"}), "colour space 8"),
    "ICtCp": (lambda: clips.encode(pix_fmt="yuv444p", **{"x264-params": "colormatrix=ICtCp"}), "colour space 14"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_by_its_true_reason(name: str, tmp_path: Path) -> None:
    make, why = REFUSED[name]
    file = tmp_path / "clip.bin"
    file.write_bytes(make())
    ds = sl.create(str(tmp_path / "ds"), sl.Schema({"cam": sl.Video()}))
    ds.append([{"sequence_id": "a", "cam": sl.File(str(file))}])
    with pytest.raises(DecodeError, match=why) as caught:
        ds["a"]["cam"][0]
    assert not isinstance(caught.value, CorruptFrameError | CorruptFileError)
    said = [str(one) for one in ds.validate(depth="decode").findings if one.column == "cam"]
    assert said
    assert not [one for one in said if "damaged" in one]


def test_sound_that_is_encrypted_is_refused_by_that_reason() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4", options=CENC) as out:
        stream = out.add_stream("aac", rate=16_000, layout="mono")
        block = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), format="fltp", layout="mono")
        block.sample_rate = 16_000
        out.mux(stream.encode(block))
        out.mux(stream.encode(None))
    with pytest.raises(DecodeError, match="is encrypted"):
        len(media.open(Source(blob=file.getvalue(), column=sl.ColumnType("audio"))))


def test_a_still_of_another_kind_is_called_by_its_name() -> None:
    with pytest.raises(DecodeError, match="expected JPEG, PNG, .*found gif"):
        image.decode(b"GIF89a" + bytes(40))

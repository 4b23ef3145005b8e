"""torchcodec as a decoder: the same frames as PyAV's, or a refusal; and what is said where it is not installed."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from seqlake import media
from seqlake.errors import CorruptFrameError, DecodeError, MissingDependencyError, UnknownPluginError
from seqlake.files.blobs import MemoryBlob
from seqlake.protocols import Source
from seqlake.spec.column_types import Image, Video
from seqlake.testing.media import DecoderTests

from . import clips

if TYPE_CHECKING:
    from seqlake.protocols import Decoder


@cache
def missing() -> str:
    """Why torchcodec cannot be used here; empty where it can."""
    try:
        import torchcodec.decoders  # noqa: F401 - whether it can be imported is the question
    except (ImportError, RuntimeError, OSError) as error:
        return f"needs torchcodec and FFmpeg's libraries: {str(error).splitlines()[0][:80]}"
    return ""


there = pytest.mark.skipif(bool(missing()), reason=missing() or "torchcodec is here")


def source(name: str, **fields: object) -> Source:
    return Source(blob=clips.clip(name), column=Video(**fields))


@there
class TestLaws(DecoderTests):
    @pytest.fixture
    def decoder(self) -> Decoder:
        return media.open(source("h264 with B-frames"), decoder="torchcodec")


SAME = [
    "h264 with B-frames", "h264 with a pyramid, mkv", "h264 training profile", "h264 open groups",
    "hevc open groups", "av1", "vp9, odd size", "mpeg4 with B-frames", "uneven times, mp4",
    "uneven times, mkv", "late start, mp4", "fragmented by key frame", "head first",
]  # fmt: skip
REFUSED = [
    "rotated", "edit list", "edit list, hevc", "hevc cut at an open group", "two parameter sets, apart",
    "late start, ts",
]  # fmt: skip


@there
@pytest.mark.parametrize("name", SAME)
def test_the_frames_are_those_of_pyav(name: str) -> None:
    expected, found = media.open(source(name)), media.open(source(name), decoder="torchcodec")
    np.testing.assert_array_equal(found.pts, expected.pts)
    assert found.time_base == expected.time_base
    every = expected.read(np.arange(len(expected)))
    np.testing.assert_array_equal(found.read(np.arange(len(expected))), every)
    for number in np.random.default_rng(0).permutation(len(expected))[:25].tolist():
        np.testing.assert_array_equal(found.read(np.array([number]))[0], every[number], str(number))


@there
@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_be_held_to_is_refused(name: str) -> None:
    with pytest.raises(DecodeError, match="torchcodec cannot be held to its frames"):
        media.open(source(name), decoder="torchcodec")


@there
def test_streams_and_parts_are_counted_alike() -> None:
    for stream in (0, 1):
        found = media.open(source("several streams", stream=stream), decoder="torchcodec")
        expected = media.open(source("several streams", stream=stream))
        np.testing.assert_array_equal(found.read(np.array([3, 9])), expected.read(np.array([3, 9])))
    part = Source(blob=clips.clip("h264 with B-frames"), column=Video(), first=12, count=9)
    found = media.open(part, decoder="torchcodec")
    assert len(found) == len(found.pts) == 9
    np.testing.assert_array_equal(found.read(np.array([0, 8])), media.open(part).read(np.array([0, 8])))


@there
def test_it_reads_by_range_and_scales() -> None:
    class Ranged(MemoryBlob):
        def view(self) -> None:
            return None

    blob = Source(blob=Ranged(clips.clip("head first")), column=Video())
    found = media.open(blob, decoder="torchcodec")
    np.testing.assert_array_equal(found.read(np.array([30])), media.open(blob).read(np.array([30])))
    small = found.read(np.array([3]), size=(32, 48))
    near = media.open(blob).read(np.array([3]), size=(32, 48))
    assert small.shape == near.shape
    assert np.abs(small.astype(int) - near).mean() < 4  # scaled after the conversion, not in it


@there
def test_another_picture_is_never_handed_out() -> None:
    """An index that belongs to other times is noticed."""
    decoder = media.open(source("uneven times, mp4"), decoder="torchcodec")
    decoder._packets = replace(decoder._packets, pts=decoder._packets.pts + 512)
    with pytest.raises(CorruptFrameError, match="another picture for frame 4"):
        decoder.read(np.array([4]))


@there
def test_without_a_gpu_the_device_is_named() -> None:
    torch = pytest.importorskip("torch", reason="brings the devices")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    for device in ("cuda", "cuda:0"):
        with pytest.raises(DecodeError, match=f"a machine with a GPU; found '{device}'"):
            media.open(source("head first"), device=device)


def test_without_the_extra_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)
    for chosen in ({"decoder": "torchcodec"}, {"device": "cuda"}):
        with pytest.raises(MissingDependencyError, match=r"pip install 'seqlake\[torchcodec\]'"):
            media.open(source("head first"), **chosen)


def test_a_decoder_is_chosen_by_name_or_by_device() -> None:
    assert type(media.open(source("head first"), decoder="video")) is type(media.open(source("head first")))
    with pytest.raises(UnknownPluginError, match="torchcodec"):
        media.open(source("head first"), decoder="torchcodecs")
    with pytest.raises(DecodeError, match="on 'tpu'"):
        media.open(source("head first"), device="tpu")
    still = Source(blob=b"", column=Image())
    assert len(media.open(still, device="cpu")) == 1

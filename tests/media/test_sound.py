"""A cut of a sound holds exactly its samples, or is refused."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from seqlake.errors import DecodeError
from seqlake.files.blobs import MemoryBlob
from seqlake.media import _sound, audio
from seqlake.protocols import Source
from seqlake.spec.column_types import Audio

RATE, COUNT = 16_000, 20_000


def sound(codec: str, container: str, kind: str, layout: str = "stereo") -> bytes:
    """Noise over all bits of the sample format, encoded."""
    channels = {"mono": 1, "stereo": 2}[layout]
    rng = np.random.default_rng(3)
    numbers: Any
    if kind.startswith("flt"):
        numbers = rng.uniform(-0.5, 0.5, (1, COUNT * channels)).astype(np.float32)
    else:
        bits = {"s16": 16, "s32": 24}[kind]
        numbers = rng.integers(-(1 << bits - 1), 1 << bits - 1, (1, COUNT * channels))
        numbers = (numbers << (0 if kind == "s16" else 8)).astype({"s16": np.int16, "s32": np.int32}[kind])
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=RATE, layout=layout)
        stream.codec_context.format = kind
        for start in range(0, COUNT, 1000):
            part = np.ascontiguousarray(numbers[:, start * channels : (start + 1000) * channels])
            frame = av.AudioFrame.from_ndarray(part, format=kind, layout=layout)
            frame.sample_rate, frame.pts, frame.time_base = RATE, start, Fraction(1, RATE)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return file.getvalue()


@pytest.mark.parametrize(
    ("codec", "container", "kind", "layout"),
    [
        ("pcm_s16le", "wav", "s16", "stereo"),
        ("pcm_s24le", "wav", "s32", "mono"),
        ("pcm_f32le", "matroska", "flt", "stereo"),
        ("pcm_s16be", "aiff", "s16", "mono"),
        ("pcm_s16le", "mov", "s16", "stereo"),
        ("flac", "flac", "s16", "stereo"),
        ("flac", "matroska", "s32", "mono"),
    ],
)
def test_samples_are_those_that_were_cut(codec: str, container: str, kind: str, layout: str, tmp_path: Path) -> None:
    source = Source(blob=MemoryBlob(sound(codec, container, kind, layout), location="sound"), column=Audio())
    before = audio.open(source).read(np.arange(COUNT))
    for start, stop in ((0, COUNT), (1, 2), (4_321, 17_654)):
        made = _sound.cut(source, tmp_path / "cut", start=start, stop=stop)
        data = (tmp_path / "cut").read_bytes()
        with av.open(io.BytesIO(data)) as container_made:
            stream = container_made.streams.audio[0]
            assert (stream.codec_context.name, stream.rate) == (codec, RATE)
            parts = [frame.to_ndarray() for frame in container_made.decode(stream)]
        assert np.concatenate(parts, axis=1).shape[1] == (stop - start) * stream.channels
        after = audio.open(Source(blob=MemoryBlob(data), column=Audio()))
        np.testing.assert_array_equal(after.read(np.arange(len(after))), before[start:stop])
        assert made.frames == stop - start


def test_a_shared_file_is_counted_from_its_first_sample(tmp_path: Path) -> None:
    data = MemoryBlob(sound("pcm_s16le", "wav", "s16"), location="sound")
    whole = audio.open(Source(blob=data, column=Audio())).read(np.arange(COUNT))
    _sound.cut(Source(blob=data, column=Audio(), first=500, count=900), tmp_path / "cut", start=100, stop=300)
    after = audio.open(Source(blob=MemoryBlob((tmp_path / "cut").read_bytes()), column=Audio()))
    np.testing.assert_array_equal(after.read(np.arange(len(after))), whole[600:800])


def test_lossy_sounds_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    source = Source(blob=MemoryBlob(sound("libopus", "ogg", "flt"), location="a.opus"), column=Audio())
    with pytest.raises(DecodeError, match="opus cannot be cut to the sample"):
        _sound.cut(source, tmp_path / "cut", start=0, stop=100)
    with pytest.raises(IndexError):
        _sound.cut(source, tmp_path / "cut", start=0, stop=10**9)
    assert not list(tmp_path.iterdir())

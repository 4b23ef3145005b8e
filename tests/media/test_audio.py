"""Audio samples by number equal FFmpeg's sequential decode, for exact codecs the samples that went in."""

from __future__ import annotations

import io
from fractions import Fraction
from functools import cache

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqlake import media
from seqlake.errors import CorruptFileError, DecodeError
from seqlake.media import audio
from seqlake.protocols import Source
from seqlake.spec.column_types import Audio, ColumnType
from seqlake.testing.media import DecoderTests

from . import clips

RATE, COUNT = 48_000, 20_000


def sound() -> np.ndarray:
    """[2, COUNT] two tones with noise, full scale 1."""
    time = np.arange(COUNT) / RATE
    noise = np.random.default_rng(0).normal(0, 0.02, (2, COUNT))
    return np.clip(np.stack([np.sin(2764 * time), np.sin(1500 * time**2 * 9)]) * 0.6 + noise, -1, 1)


@cache
def encoded(codec: str, container: str, kind: str) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=RATE)
        stream.layout, stream.format = "stereo", kind
        values = sound()
        if kind.startswith("s16"):
            values = np.round(values * 32767).astype(np.int16)
        elif kind.startswith("s32"):
            values = np.round(values * 32767).astype(np.int32) << 16
        else:
            values = values.astype(np.float32)
        planar = kind.endswith("p")
        size = stream.codec_context.frame_size or 1000
        for start in range(0, COUNT, size):
            part = values[:, start : start + size]
            frame = av.AudioFrame.from_ndarray(
                np.ascontiguousarray(part if planar else part.T.reshape(1, -1)), format=kind, layout="stereo"
            )
            frame.sample_rate, frame.pts = RATE, start
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return file.getvalue()


KINDS = {
    "pcm": ("pcm_s16le", "wav", "s16"),
    "pcm float": ("pcm_f32le", "wav", "flt"),
    "flac": ("flac", "flac", "s16"),
    "flac 24": ("flac", "matroska", "s32"),
    "aac": ("aac", "mp4", "fltp"),
    "mp3": ("libmp3lame", "mp3", "s16p"),
    "opus": ("libopus", "matroska", "flt"),
}


def opened(name: str, **fields: object) -> audio.AudioDecoder:
    return media.open(Source(blob=encoded(*KINDS[name]), column=Audio(), **fields))


def sequential(data: bytes) -> np.ndarray:
    """[samples, channels] by a resampler to interleaved float: another way than the one that is tested."""
    resampler = av.AudioResampler(format="flt", layout="stereo")
    with av.open(io.BytesIO(data)) as container:
        frames = [one for frame in container.decode(audio=0) for one in resampler.resample(frame)]
        frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray().reshape(-1, 2) for frame in frames])


class TestLaws(DecoderTests):
    @pytest.fixture
    def decoder(self) -> audio.AudioDecoder:
        return opened("pcm", first=100, count=50)


@pytest.mark.parametrize("name", KINDS)
def test_samples_equal_a_sequential_decode_at_random_too(name: str) -> None:
    expected = sequential(encoded(*KINDS[name]))
    decoder = opened(name)
    assert len(decoder) == len(expected) >= COUNT
    assert decoder.time_base == Fraction(1, RATE)
    wanted = np.random.default_rng(1).permutation(len(decoder))
    found = decoder.read(wanted)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected[wanted], atol=1e-7, rtol=0)


@pytest.mark.parametrize("name", ["pcm", "pcm float", "flac", "flac 24"])
def test_lossless_samples_are_those_that_went_in(name: str) -> None:
    values = sound().T
    expected = values.astype(np.float32) if name == "pcm float" else np.round(values * 32767) / 32768
    np.testing.assert_array_equal(opened(name).read(np.arange(COUNT)), expected.astype(np.float32))


KEPT = {"WAV": ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"], "FLAC": ["PCM_16", "PCM_24"]}
LOSSY = {"OGG": ["VORBIS"], "MP3": ["MPEG_LAYER_III"]}


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from([(form, sub) for form, subs in (KEPT | LOSSY).items() for sub in subs]),
    channels=st.integers(1, 6),
    rate=st.sampled_from([8000, 16_000, 22_050, 44_100, 48_000]),
    count=st.integers(1, 9000),
    seed=st.integers(0, 9),
)
def test_sounds_of_libsndfile_are_what_it_reads_back(
    kind: tuple[str, str], channels: int, rate: int, count: int, seed: int
) -> None:
    """Another library with decoders of its own; of lossy sound these round in other ways than FFmpeg's.

    FFmpeg, here and on the command line, gives a Vorbis file of one page up to a block more than went in, and an MP3 of
    one frame too: so lossy sounds are longer than that. Vorbis orders more than two channels in its own way.
    """
    soundfile = pytest.importorskip("soundfile")
    form, subtype = kind
    count += 0 if form in KEPT else 50_000
    channels = channels if form in KEPT else min(channels, 2)
    random, file = np.random.default_rng(seed), io.BytesIO()
    walk = np.cumsum(random.normal(0, 0.01, (count, channels)), axis=0)
    soundfile.write(file, np.sin(walk) * random.choice([0.2, 1.0]), rate, format=form, subtype=subtype)
    expected, read_rate = soundfile.read(io.BytesIO(file.getvalue()), dtype="float32", always_2d=True)
    decoder = media.open(Source(blob=file.getvalue(), column=Audio()))
    assert decoder.time_base == Fraction(1, read_rate)
    assert len(decoder) == len(expected)
    wanted = random.permutation(len(decoder))
    np.testing.assert_allclose(decoder.read(wanted), expected[wanted], atol=0 if form in KEPT else 1e-3, rtol=0)


def test_a_shared_file_has_parts() -> None:
    part = opened("pcm", first=100, count=50)
    np.testing.assert_array_equal(part.read(np.arange(50)), opened("pcm").read(np.arange(100, 150)))
    assert part.pts.tolist() == list(range(100, 150))


def test_sound_beside_video_is_found_and_what_is_not_there_is_said() -> None:
    data = clips.clip("several streams")
    decoder = media.open(Source(blob=data, column=Audio()))
    assert decoder.time_base == Fraction(1, 16_000)
    assert 16_000 <= len(decoder) < 18_100
    with pytest.raises(DecodeError, match="1 audio streams, found stream=1"):
        len(media.open(Source(blob=data, column=Audio(stream=1))))
    with pytest.raises(CorruptFileError):
        len(media.open(Source(blob=b"nothing to hear" * 9, column=Audio())))
    with pytest.raises(ValueError, match="size"):
        decoder.read(np.array([0]), size=(2, 2))
    with pytest.raises(DecodeError, match="columns of type 'mcap'"):
        media.open(Source(blob=b"", column=ColumnType("mcap")))

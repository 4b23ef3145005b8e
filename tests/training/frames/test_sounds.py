"""Sound in windows equals what the system's ffmpeg makes of the whole file, whatever is jumped to, cut or resampled."""

from __future__ import annotations

import json
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import seqlake as sl
from seqlake.errors import SchemaMismatchError
from seqlake.files.blobs import LocalBlob
from seqlake.media.audio import AudioDecoder
from seqlake.protocols import Source
from seqlake.spec.column_types import Audio
from seqlake.windows.sounds import SoundSpan

pytestmark = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="the system's ffmpeg is the truth here")
RATE, SECONDS = 48_000, 4
CODECS = {
    "aac.m4a": ["aac"],
    "no noise.m4a": ["aac", "-aac_pns", "0"],
    "vbr.mp3": ["libmp3lame", "-q:a", "3"],
    "opus.opus": ["libopus"],
    "vorbis.ogg": ["libvorbis"],
    "flac.flac": ["flac"],
    "24.wav": ["pcm_s24le"],
    "float.wav": ["pcm_f32le"],
}


def ffmpeg(*args: str, stdin: bytes = b"") -> bytes:
    return subprocess.run(["ffmpeg", "-v", "error", "-y", *args], input=stdin, capture_output=True, check=True).stdout


def heard(path: Path, *args: str, channels: int = 2) -> np.ndarray:
    """[samples, channels] of the whole file."""
    return np.frombuffer(ffmpeg("-i", str(path), *args, "-f", "f32le", "-"), np.float32).reshape(-1, channels)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sounds")
    time = np.arange(SECONDS * RATE) / RATE
    noise = np.random.default_rng(0).normal(0, 0.05, (len(time), 2)) * (np.sin(3 * time) > 0)[:, None]
    tones = np.stack([np.sin(2000 * time * (1 + 0.1 * np.sin(time))), np.sin(900 * time)], axis=1)
    data = (0.4 * tones + noise).astype(np.float32).tobytes()
    raw = ["-f", "f32le", "-ar", str(RATE), "-ac", "2", "-i", "-"]
    for name, codec in CODECS.items():
        ffmpeg(*raw, "-c:a", *codec, str(root / name), stdin=data)
    ffmpeg(*raw, "-f", "lavfi", "-i", "testsrc=d=4:s=64x48:r=30", "-c:a", "aac", str(root / "film.mp4"), stdin=data)
    ffmpeg(*raw, "-ar", "44100", str(root / "other.wav"), stdin=data)
    return root


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", [*CODECS, "film.mp4"])
def test_a_jump_gives_what_a_decode_from_the_start_gives(files: Path, name: str) -> None:
    whole, source = heard(files / name), Source(blob=LocalBlob(files / name), column=Audio())
    known = AudioDecoder(source, keep=0).index
    decoder = AudioDecoder(source, known=known)
    assert len(decoder) in {len(whole), SECONDS * RATE}  # with PyAV 19 FFmpeg leaves out what fills AAC's last block
    whole = whole[: len(decoder)]
    assert known.plain == name.endswith(".wav")
    numbers = np.random.default_rng(1)
    for start in [len(whole) - 900, 0, *numbers.integers(0, len(whole) - 5000, 6).tolist()]:
        stop = min(len(whole), start + 4000)
        np.testing.assert_allclose(decoder.span(start, stop), whole[start:stop], atol=3e-7, rtol=0)
        if name in ("vorbis.ogg", "vbr.mp3", "no noise.m4a", "24.wav"):
            assert decoder._held is None  # it did jump


def dataset(files: Path, at: Path, names: list[str | None], **fields: object) -> sl.Dataset:
    schema = sl.Schema({"action": sl.Trajectory(dim=1, fps=30), "mic": sl.Audio(**fields)})
    with sl.create(at, schema).writer(rows_per_shard=2) as writer:
        for number, name in enumerate(names):
            mic = None if name is None else sl.File(files / name)
            writer.add(f"ep_{number}", action=np.zeros((100, 1), np.float32), mic=mic)
    return sl.open(at)


@pytest.mark.sampled
@pytest.mark.parametrize("edges", ["pad", "clamp"])
@pytest.mark.parametrize("rate", [None, 16_000, 44_100])
def test_windows_are_the_same_span_of_the_whole_file(files: Path, tmp_path: Path, rate: int | None, edges: str) -> None:
    names = ["no noise.m4a", "24.wav", None, "vbr.mp3"]
    ds = dataset(files, tmp_path / "ds", names)
    window = sl.Window({"action": range(5), "mic": range(-3, 4)}, stride=3, edges=edges)
    loader = sl.Loader(ds, window=window, batch_size=16, seed=2).audio(rate=rate)
    after = rate or RATE
    wholes = [None if name is None else heard(files / name, *(("-ar", str(rate)) if rate else ())) for name in names]
    width, windows = -(-7 * after // 30), 0
    for batch in loader:
        assert batch["mic"].shape == (16, width, 2)
        assert batch["mic"].dtype == np.float32
        for name, start, values, mask in zip(
            batch["sequence_id"], batch["start"].tolist(), batch["mic"], batch["mic_mask"], strict=True
        ):
            whole = wholes[int(name[-1])]
            windows += 1
            if whole is None:
                assert not mask.any()
                assert not values.any()
                continue
            first, last = (-(-(start + step) * after // 30) for step in (-3, 4))
            numbers = np.arange(first, first + width)
            there = (numbers >= 0) & (numbers < -(-100 * after // 30))
            expected = whole[np.clip(numbers, 0, -(-100 * after // 30) - 1)]
            if edges == "pad":
                expected = np.where(there[:, None], expected, 0)
            np.testing.assert_array_equal(mask, there & (numbers < last))
            np.testing.assert_allclose(values, expected, atol=1e-6, rtol=0)
    assert windows == 128
    if rate is None:
        one = ds["ep_1"].window(0, 7, columns=["mic", "action"], edges=edges)
        window = sl.Window({"action": range(7), "mic": range(7)}, stride=3, edges=edges)
        again = next(iter(sl.Loader(ds, window=window, batch_size=35, shuffle=False)))
        assert (again["sequence_id"][34], again["start"][34]) == ("ep_1", 0)
        np.testing.assert_array_equal(one["mic_mask"], again["mic_mask"][34])
        np.testing.assert_array_equal(one["mic"], again["mic"][34])


def test_windows_side_by_side_have_every_sample_once_for_hours() -> None:
    span = SoundSpan.of(sl.Schema({"mic": sl.Audio()})["mic"], range(7), Fraction(30_000, 1001))
    firsts, lasts = span.samples(np.arange(0, 7 * 40_000, 7), 16_000)  # 2.6 hours
    np.testing.assert_array_equal(firsts[1:], lasts[:-1])
    assert firsts[0] == 0
    assert lasts[-1] == -(-7 * 40_000 * 16_000 * 1001 // 30_000)
    assert set(lasts - firsts) == {span.width(16_000), span.width(16_000) - 1}


def test_only_windows_with_all_their_sound_come_where_edges_are_dropped(files: Path, tmp_path: Path) -> None:
    ds = dataset(files, tmp_path / "ds", ["24.wav", None, "flac.flac"])
    window = sl.Window({"mic": sl.seconds(-0.1, 0.4, every=0.5)}, edges="drop", clock=30)
    loader = sl.Loader(ds, window=window, batch_size=5, shuffle=False).tail("drop")
    starts = [
        (name, start) for batch in loader for name, start in zip(batch["sequence_id"], batch["start"], strict=True)
    ]
    assert {name for name, _ in starts} == {"ep_0", "ep_2"}
    assert {start for name, start in starts if name == "ep_0"} == set(range(3, 109))  # of 120 steps
    assert all(batch["mic_mask"].all() for batch in loader)


def test_order_state_mixtures_and_torch(files: Path, tmp_path: Path) -> None:
    ds = dataset(files, tmp_path / "ds", ["24.wav", "vbr.mp3"])
    loader = sl.Loader(ds, window={"mic": range(4)} | {"action": [0]}, batch_size=20, seed=4).audio(
        rate=8000, channels=1
    )
    batches = iter(loader)
    next(batches)
    state, second = json.loads(json.dumps(loader.state_dict())), next(batches)
    assert second["mic"].shape == (20, 1067, 1)
    loader.load_state_dict(state)
    np.testing.assert_array_equal(next(iter(loader))["mic"], second["mic"])
    windows = loader.dataset()
    whole = heard(files / "24.wav", "-af", "pan=mono|c0=0.5*c0+0.5*c1", "-ar", "8000", channels=1)
    np.testing.assert_allclose(np.asarray(windows[30]["mic"]), whole[8000 : 8000 + 1067], atol=1e-6)
    mix = sl.Mix({"a": (ds.where("sequence_id = 'ep_0'"), 1), "b": (ds.where("sequence_id = 'ep_1'"), 1)})
    mixed = next(iter(sl.Loader(mix, window={"mic": range(4)}, batch_size=8).audio(channels=1)))
    assert mixed["mic"].shape == (8, 6400, 1)


def test_torch_takes_sound_as_tensors(files: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
    ds = dataset(files, tmp_path / "ds", ["24.wav", "vbr.mp3", None])

    def loader() -> sl.Loader:
        window = {"mic": range(4), "action": [0]}
        return sl.Loader(ds, window=window, batch_size=60, seed=4).audio(rate=8000, channels=1)

    given = torch.utils.data.DataLoader(
        loader().torch(), batch_size=None, num_workers=2, multiprocessing_context="forkserver", timeout=100
    )
    for ours, theirs in zip(loader(), given, strict=True):
        for name in ("mic", "mic_mask", "action"):
            assert isinstance(theirs[name], torch.Tensor)
            np.testing.assert_array_equal(theirs[name].numpy(), ours[name])
        assert theirs["mic"].dtype == torch.float32
        assert list(theirs["sequence_id"]) == list(ours["sequence_id"])


def test_what_cannot_be_delivered_says_why(files: Path, tmp_path: Path) -> None:
    ds = dataset(files, tmp_path / "ds", ["24.wav", "other.wav"], sample_rate=RATE)
    with pytest.raises(
        SchemaMismatchError, match=r"44100 samples a second, and the column has 48000.*\n?.*audio\(rate"
    ):
        list(sl.Loader(ds, window={"mic": range(4), "action": [0]}, batch_size=8))
    together = next(iter(sl.Loader(ds, window={"mic": range(4), "action": [0]}, batch_size=8).audio(rate=16_000)))
    assert together["mic"].shape == (8, 2134, 2)
    with pytest.raises(SchemaMismatchError, match="one span"):
        sl.Loader(ds, window={"mic": [0, 2, 5]}, batch_size=8).plan()
    with pytest.raises(ValueError, match="1000 to 768000"):
        sl.Loader(ds, window={"mic": range(4)}, batch_size=8).audio(rate=3)
    broken_file = Path(sl.open(tmp_path / "ds")["ep_0"]["mic"].location)
    head = broken_file.read_bytes()[:9]
    broken_file.unlink()  # not cut: a thread of a loader above may still read what is mapped
    broken_file.write_bytes(head)
    masked = sl.Loader(sl.open(tmp_path / "ds"), window={"mic": range(4), "action": [0]}, batch_size=50)
    for batch in masked.audio(rate=16_000).on_error("mask", budget=None):
        broken = batch["sequence_id"] == "ep_0"
        assert not batch["valid"][broken].any()
        assert not batch["mic_mask"][broken].any()
        assert batch["mic_mask"][~broken].any(axis=1).all()


def test_a_view_gives_samples_of_a_time(files: Path, tmp_path: Path) -> None:
    mic = dataset(files, tmp_path / "ds", ["vbr.mp3"])["ep_0"]["mic"]
    assert (mic.rate, mic.channels) == (RATE, 2)
    whole = heard(files / "vbr.mp3", "-ar", "16000")
    np.testing.assert_allclose(mic.samples(seconds=(0.5, 1.25), rate=16_000), whole[8000:20_000], atol=1e-6)
    np.testing.assert_allclose(mic.samples(rate=16_000), whole, atol=1e-6)
    assert mic.samples(seconds=(3.9, 9)).shape == (RATE // 10, 2)
    assert (mic.samples(seconds=(0, 0.1), channels=1)[:, 0] == mic[:4800].mean(axis=1)).all()

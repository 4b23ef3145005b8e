"""Loaders over datasets whose rows are samples: order, state, forms of columns, damage, mixtures, workers."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import CacheTooSmallError, CorruptFileError, SchemaMismatchError
from seqlake.spec.schema import Column, Schema
from seqlake.training.cache import Cache
from seqlake.training.loader import Loader
from seqlake.training.mixtures.schedule import Mix
from seqlake.training.order import Shuffle

COUNT = 60
COLUMNS = {
    "n": "int",
    "text": "str",
    "raw": "bytes",
    "tokens": "ndarray:uint16:8",
    "frame": "ndarray:float32:3,2",
    "free": "ndarray:int32",
}


def sample(n: int) -> dict:
    return {
        "n": n,
        "text": f"sample {n}",
        "raw": bytes([n]) * (n % 7),
        "tokens": np.arange(8, dtype=np.uint16) + np.uint16(n),
        "frame": np.full((3, 2), n, np.float32),
        "free": np.arange(n % 5 + 1, dtype=np.int32),
    }


def write(folder, *, count=COUNT, first=0, columns=COLUMNS, **options):
    with sl.create(folder, columns, format="mds", **{"size_limit": 1500, **options}) as writer:
        for n in range(first, first + count):
            writer.write({name: sample(n)[name] for name in columns})
    return sl.scan(folder, storage=options.get("storage"))


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    return write(tmp_path_factory.mktemp("samples") / "mds")


def check(batch, numbers=None):
    numbers = batch["n"].tolist() if numbers is None else numbers
    assert batch["text"] == [f"sample {n}" for n in numbers]
    assert batch["raw"] == [sample(n)["raw"] for n in numbers]
    np.testing.assert_array_equal(batch["tokens"], np.stack([sample(n)["tokens"] for n in numbers]))
    np.testing.assert_array_equal(batch["frame"], np.stack([sample(n)["frame"] for n in numbers]))
    assert batch["tokens"].dtype == np.uint16
    assert [cell.tolist() for cell in batch["free"]] == [sample(n)["free"].tolist() for n in numbers]


def test_all_columns_of_every_sample_once_an_epoch(samples):
    loader = Loader(samples, window=None, batch_size=8, seed=1).tail("pad")
    epochs = []
    for _ in range(2):
        found = []
        for batch in loader:
            check(batch)
            assert list(batch) == [*sorted(COLUMNS), "valid"]
            found += batch["n"][batch["valid"]].tolist()
        assert sorted(found) == list(range(COUNT))
        epochs.append(found)
    assert epochs[0] != epochs[1]


def test_some_columns_in_the_order_they_were_asked_for(samples):
    (batch,) = Loader(samples, window=["text", "n"], batch_size=COUNT, shuffle=False)
    assert list(batch)[:2] == ["text", "n"]
    assert batch["n"].tolist() == list(range(COUNT))
    with pytest.raises(SchemaMismatchError, match="Did you mean 'tokens'"):
        len(Loader(samples, window=["token"], batch_size=1))
    for wrong in ("tokens", 3, []):
        with pytest.raises((TypeError, ValueError), match="window|distinct"):
            Loader(samples, window=wrong, batch_size=1)


def test_the_order_is_that_of_windows_of_the_same_rows(samples, readable):
    """Rows in shards of the same sizes come in the same order, whatever they are."""
    sizes = [shard.rows for shard in samples.shards()]
    schema = Schema({"n": pa.int64()}, id=None)
    other = readable(schema, [{"n": n} for n in range(COUNT)], shards=1, kind="arrow")
    from seqlake.shards.memory import ArrowShard

    table = pa.table({"n": pa.array(range(COUNT), pa.int64())})
    ends = np.cumsum(sizes)
    other.parts = [
        ArrowShard(table.slice(end - size, size), key=f"a#{end}")
        for end, size in zip(ends.tolist(), sizes, strict=True)
    ]
    for shuffle in (True, False, Shuffle(lanes=3, block=7)):
        mine = [batch["n"].tolist() for batch in Loader(samples, window=["n"], batch_size=7, shuffle=shuffle)]
        windows = [batch["n"].tolist() for batch in Loader(other, window={"n": None}, batch_size=7, shuffle=shuffle)]
        assert mine == windows


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_equal_global_batches_are_equal_steps_and_a_state_goes_on(samples, world_size):
    whole = [sorted(batch["n"].tolist()) for batch in Loader(samples, window=["n"], batch_size=12)]
    ranks = [
        Loader(samples, window=["n"], batch_size=12 // world_size, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    state = None
    for step, parts in enumerate(zip(*ranks, strict=True)):
        assert sorted(np.concatenate([part["n"] for part in parts]).tolist()) == whole[step]
        if step == 2:
            state = ranks[0].state_dict()
    later = Loader(samples, window=["n"], batch_size=12)
    later.load_state_dict(state)
    assert [sorted(batch["n"].tolist()) for batch in later] == whole[3:]
    assert sorted(state) == sorted(Loader(samples, window=["n"], batch_size=1).state_dict())


def test_arrays_are_copied_as_they_lie_and_decoded_alike(samples, tmp_path, monkeypatch):
    packed = write(tmp_path / "zstd", compression="zstd")
    plain = list(Loader(samples, window=None, batch_size=16, shuffle=False))
    for loader in (
        Loader(packed, window=None, batch_size=16, shuffle=False),
        Loader(samples, window=None, batch_size=16, shuffle=False).on_error("mask"),
        Loader(samples, window=None, batch_size=16, shuffle=False).reuse_buffers(),
    ):
        for batch, expected in zip(loader, plain, strict=True):
            check(batch, expected["n"].tolist())
    monkeypatch.setattr("seqlake.training.rows.batches._PORTION", 1)
    for batch in Loader(packed, window=None, batch_size=16):
        check(batch)


@pytest.mark.parametrize("kind", ["flat", "arrow", "parquet"])
def test_any_readable_of_samples(readable, kind):
    columns = {
        "n": Column("n", pa.int32(), nullable=False),
        "maybe": Column("maybe", pa.float32()),
        "vector": Column("vector", pa.list_(pa.float32()), sl.Embedding(dim=2), nullable=False),
        "ragged": Column("ragged", pa.list_(pa.list_(pa.float32(), 3)), sl.Trajectory(dim=3), nullable=False),
        "done": Column("done", pa.bool_(), nullable=False),
        "words": Column("words", pa.list_(pa.string()), nullable=False),
    }
    rows = [
        {
            "n": n,
            "maybe": None if n % 3 == 0 else n / 2,
            "vector": [n, -n],
            "ragged": np.full((n % 4 + 1, 3), n, "f4"),
            "done": n % 2 == 0,
            "words": ["a"] * (n % 3),
        }
        for n in range(20)
    ]
    source = readable(Schema(columns, id=None), rows, shards=3, kind=kind)
    found = []
    for batch in Loader(source, window=None, batch_size=5, seed=3):
        numbers = batch["n"].tolist()
        found += numbers
        assert batch["maybe_mask"].tolist() == [n % 3 != 0 for n in numbers]
        assert batch["maybe"].tolist() == [0 if n % 3 == 0 else n / 2 for n in numbers]
        assert batch["vector"].tolist() == [[n, -n] for n in numbers]
        assert [cell.shape for cell in batch["ragged"]] == [(n % 4 + 1, 3) for n in numbers]
        assert batch["done"].dtype == np.bool_
        assert batch["words"] == [["a"] * (n % 3) for n in numbers]
        assert "n_mask" not in batch
    assert sorted(found) == list(range(20))


def test_selections_of_samples(samples):
    some = samples.where("n >= 20").select("n", "text")
    found = [n for batch in Loader(some, window=None, batch_size=8).tail("pad") for n in batch["n"][batch["valid"]]]
    assert sorted(found) == list(range(20, COUNT))


def test_streams_are_mixed_by_proportion(samples, tmp_path):
    other = write(tmp_path / "other", count=20, first=100)
    mix = Mix({"big": (samples, 3), "small": (other, 1)}, samples=80)
    loader = Loader(mix, window=None, batch_size=8)
    found = []
    for batch in loader:
        assert sorted(batch["mix_source"].tolist()) == ["big"] * 6 + ["small"] * 2
        found += batch["n"].tolist()
        expected = [sample(n)["text"] for n in batch["n"].tolist()]
        assert batch["text"] == expected
    assert sorted(found) == [*range(COUNT), *range(100, 120)]


@pytest.fixture
def broken(tmp_path):
    """Two samples whose lengths do not make their bytes, and a shard that is cut off."""
    source = write(tmp_path / "broken", columns={"n": "int", "text": "str"}, size_limit=700)
    folder = tmp_path / "broken"
    first = folder / "shard.00000.mds"
    data = bytearray(first.read_bytes())
    for row in (1, 4):
        at = int.from_bytes(data[4 + 4 * row : 8 + 4 * row], "little")
        data[at] = 0xFF
    first.write_bytes(data)
    bad = {1, 4}
    second = folder / "shard.00001.mds"
    second.write_bytes(second.read_bytes()[:-1])
    rows = [shard.rows for shard in source.shards()]
    return sl.scan(folder), bad | set(range(rows[0], rows[0] + rows[1]))


def test_a_damaged_sample_raises_by_name(broken):
    source, _ = broken
    with pytest.raises(CorruptFileError, match="shard.0000"):
        list(Loader(source, window=None, batch_size=4))


@pytest.mark.parametrize("policy", ["mask", "substitute"])
def test_damaged_samples_are_counted_and_masked_or_replaced(broken, policy):
    source, bad = broken
    loader = Loader(source, window=None, batch_size=6, seed=2).on_error(policy, budget=None)
    good: list[int] = []
    for batch in loader:
        if policy == "mask":
            assert all(text is None for text, fine in zip(batch["text"], batch["valid"], strict=True) if not fine)
            good += batch["n"][batch["valid"]].tolist()
        else:
            assert batch["valid"].all()
            assert batch["text"] == [f"sample {n}" for n in batch["n"].tolist()]
            good += batch["n"][~batch["substituted"]].tolist()
    assert sorted(good) == sorted(set(range(COUNT)) - bad)
    assert len(loader.ledger) == len(bad)


def test_compressed_shards_that_do_not_fit_are_refused_with_the_way_out(tmp_path):
    packed = write(tmp_path / "zstd", compression="zstd")
    with pytest.raises(CacheTooSmallError, match=r"Cache\(\"/nvme/cache\"\)"):
        list(Loader(packed, window=None, batch_size=4, cache=Cache(limit=2000)))
    for batch in Loader(packed, window=None, batch_size=4, shuffle=False, cache=Cache(limit=4000)):
        check(batch)


def test_samples_by_number_need_room_for_one_shard_at_a_time(tmp_path):
    packed = write(tmp_path / "zstd", compression="zstd")
    dataset = Loader(packed, window=None, batch_size=4, shuffle=False, cache=Cache(limit=4000)).dataset()
    assert sum(shard.nbytes for shard in packed.shards()) > 4000
    for numbers in (range(0, COUNT, 7), range(COUNT - 1, 0, -5)):
        for number in numbers:
            check(dataset.batch([number]), [number])


@pytest.mark.sampled
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("folder", [True, False])
def test_remote_shards_are_fetched_whole_once(s3_bucket, tmp_path, compression, folder):
    uri = f"{s3_bucket.uri}/samples"
    write(uri, compression=compression, hashes=["sha1"], storage=s3_bucket.storage)
    source = sl.scan(uri, storage=s3_bucket.storage)
    cache = Cache(tmp_path / "cache", limit="1 GB") if folder else None
    loader = Loader(source, window=None, batch_size=8, cache=cache)
    for _ in range(2):
        for batch in loader:
            check(batch)
    assert loader.report().fetched.requests == len(source.shards())
    if folder:  # other columns, other loader: the same copies
        again = Loader(source, window=["n"], batch_size=8, cache=cache)
        assert sum(len(batch["n"]) for batch in again) == COUNT // 8 * 8
        assert again.report().fetched.requests == 0


def test_compressed_shards_are_decompressed_into_the_folder(tmp_path):
    packed = write(tmp_path / "zstd", compression="zstd")
    loader = Loader(packed, window=None, batch_size=4, cache=Cache(tmp_path / "cache", limit="1 GB"))
    for batch in loader:
        check(batch)
    assert len(list(tmp_path.glob("cache/**/*"))) > len(packed.shards())
    some = packed.where("n < 30").select("n", "text")
    mine = Loader(some, window=None, batch_size=5, cache=Cache(tmp_path / "cache"))
    found = [n for batch in mine for n in batch["n"]]
    assert sorted(found) == list(range(30))


def test_a_copy_that_arrives_damaged_is_refused(tmp_path):
    packed = write(tmp_path / "zstd", compression="zstd", hashes=["sha1"])
    path = tmp_path / "zstd" / packed.shards()[1].entry.stored[0].name
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match="shard.00001.mds"):
        list(Loader(sl.scan(tmp_path / "zstd"), window=None, batch_size=4, cache=Cache(tmp_path / "cache")))


@pytest.mark.parametrize("kind", ["xsv", "jsonl"])
def test_lines_are_samples_too(s3_bucket, tmp_path, kind):
    uri = f"{s3_bucket.uri}/lines"
    options = {"format": kind, "size_limit": 300, "compression": "zstd", "storage": s3_bucket.storage}
    with sl.create(uri, {"n": "int", "text": "str"}, **options) as writer:
        writer.write_all({"n": n, "text": f"sample {n}"} for n in range(COUNT))
    for cache in (None, Cache(tmp_path / "cache")):
        found = []
        for batch in Loader(sl.scan(uri, storage=s3_bucket.storage), window=None, batch_size=10, cache=cache):
            assert batch["text"] == [f"sample {n}" for n in batch["n"].tolist()]
            found += batch["n"].tolist()
        assert sorted(found) == list(range(COUNT))


def test_loaders_travel_to_workers_and_give_tensors(samples):
    torch = pytest.importorskip("torch")
    loader = Loader(samples, window=None, batch_size=8, seed=4)
    expected = [batch["n"].tolist() for batch in pickle.loads(pickle.dumps(loader))]
    found = torch.utils.data.DataLoader(loader.torch(), batch_size=None, num_workers=2)
    numbers = []
    for batch in found:
        assert batch["tokens"].dtype == torch.uint16
        assert batch["text"] == [f"sample {n}" for n in batch["n"].tolist()]
        numbers.append(batch["n"].tolist())
    assert numbers == expected


def test_single_samples_and_transforms(samples):
    loader = Loader(samples, window=None, batch_size=4, shuffle=False)
    windows = loader.dataset()
    assert len(windows) == COUNT
    assert windows[-1]["text"] == f"sample {COUNT - 1}"
    assert windows.batch([5, 3, 5])["n"].tolist() == [5, 3, 5]
    mapped = next(iter(loader.map(lambda one: {"length": len(one["raw"]), "frame": one["frame"]})))
    assert mapped["length"].tolist() == [0, 1, 2, 3]
    assert mapped["frame"].shape == (4, 3, 2)
    assert next(iter(loader.map_batch(lambda batch: {"n": batch["n"] * 2})))["n"].tolist() == [0, 2, 4, 6]


@pytest.fixture
def photos(tmp_path):
    """Pictures of one colour each, in two sizes; of every second sample also a list of them."""
    simplejpeg = pytest.importorskip("simplejpeg")

    def jpeg(n):
        return simplejpeg.encode_jpeg(np.full((16 + 8 * (n % 2), 32, 3), 10 * n, np.uint8), quality=95)

    with sl.create(tmp_path / "photos", {"n": "int", "photo": "jpeg", "more": "list[jpeg]"}, format="mds") as writer:
        for n in range(20):
            more = (0).to_bytes(4, "little") + (1).to_bytes(4, "little") + len(jpeg(n)).to_bytes(4, "little") + jpeg(n)
            writer.write({"n": n, "photo": jpeg(n), "more": more})
    return tmp_path / "photos"


def test_images_come_decoded(photos):
    loader = Loader(sl.scan(photos), window=None, batch_size=5, seed=1)
    for batch in loader:
        for n, photo, more in zip(batch["n"].tolist(), batch["photo"], batch["more"], strict=True):
            assert photo.shape == (16 + 8 * (n % 2), 32, 3)
            assert abs(int(photo.mean()) - 10 * n) <= 2
            np.testing.assert_array_equal(more[0], photo)
    for batch in loader.frames(size=(8, 12), layout="TCHW", threads=2):
        assert batch["photo"].shape == (5, 3, 8, 12)
        assert np.abs(batch["photo"].mean(axis=(1, 2, 3)) - 10 * batch["n"]).max() <= 2
    plain = Loader(sl.scan(photos, encodings={"photo": "bytes"}), window=["photo"], batch_size=5, shuffle=False)
    assert next(iter(plain))["photo"][0][:2] == b"\xff\xd8"


def test_pictures_that_cannot_be_decoded_are_bad_samples(photos):
    path = photos / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    at = data.index(b"\xff\xd8\xff")  # of a list: its picture comes first in a sample
    data[at : at + 2] = b"\x00\x00"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="JPEG") as caught:
        list(Loader(sl.scan(photos), window=None, batch_size=5))
    assert "shard.00000.mds" in "".join(caught.value.__notes__)
    loader = Loader(sl.scan(photos), window=None, batch_size=5).on_error("mask", budget=1)
    assert sum(int(batch["valid"].sum()) for batch in loader) == 19
    assert len(loader.ledger) == 1
    single = Loader(sl.scan(photos), window=None, batch_size=5).on_error("mask", budget=1).dataset()
    assert sum(bool(sample["valid"]) for sample in single.__getitems__(list(range(20)))) == 19

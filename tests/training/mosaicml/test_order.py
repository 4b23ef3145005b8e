"""`StreamingOrder`: the batches that `StreamingDataset` delivers, over mixtures, worlds, resumptions and methods."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.compat.mosaicml import Stream, StreamingOrder, World
from seqlake.compat.mosaicml.order import NAMES as METHODS
from seqlake.compat.mosaicml.shuffles import NAMES
from seqlake.errors import LoaderStateError
from seqlake.spec.schema import Schema
from seqlake.training.loader import Loader
from seqlake.training.mixtures.schedule import Mix

THEIRS = """
import numpy as np
from streaming.base.batching import generate_work
from streaming.base.dataset import StreamingDataset
from streaming.base.stream import Stream
from streaming.base.world import World


class Named:  # what `generate_work` looks at, without files and shared memory
    resample_streams = StreamingDataset.resample_streams


class Weights:
    pass


def one(sizes, weights, options, world, epoch, drop):
    data = Named()
    data.streams = []
    for given in weights:
        stream = Weights()
        vars(stream).update(given)
        data.streams.append(stream)
    data.num_streams = len(sizes)
    data.samples_per_shard = np.concatenate(sizes)
    data.shards_per_stream = np.array([len(own) for own in sizes])
    data.shard_offset_per_stream = np.cumsum(data.shards_per_stream) - data.shards_per_stream
    data.sample_offset_per_shard = np.cumsum(data.samples_per_shard) - data.samples_per_shard
    data.samples_per_stream = np.array([own.sum() for own in sizes])
    vars(data).update(options)
    data.epoch_seed_change = data.shuffle and data.sampling_method == 'balanced'
    data.epoch_size = Stream.apply_weights(
        data.streams, data.samples_per_stream, options['epoch_size'], data.shuffle_seed)
    nodes, ranks, workers = world
    return generate_work(options['batching_method'], data, World(nodes, ranks, workers, 0), epoch, drop)


def tried(case):
    try:
        return one(*case)
    except Exception as error:
        return repr(error)


result = [tried(case) for case in cases]
"""


def random_case(random: np.random.Generator) -> tuple:
    streams = int(random.integers(1, 4))
    sizes = [random.integers(20, 90, random.integers(1, 6)) for _ in range(streams)]
    kind = random.choice(["none", "proportion", "absolute"])
    weights: list[dict] = []
    for own in sizes:
        if kind == "proportion":
            weights.append({"proportion": float(random.integers(1, 5))})
        elif kind == "absolute":
            weights.append(
                {"repeat": float(random.choice([0.5, 1.0, 2.25]))}
                if random.random() < 0.5
                else {"choose": int(random.integers(20, 2 * own.sum()))}
            )
        else:
            weights.append({})
    nodes = int(random.choice([1, 2]))
    options = {
        "shuffle": bool(random.random() < 0.85),
        "shuffle_algo": str(random.choice(NAMES)),
        "shuffle_seed": int(random.integers(0, 10_000)),
        "shuffle_block_size": int(random.integers(40, 300)),
        "partition_algo": str(random.choice(["orig", "relaxed"])),
        "num_canonical_nodes": int(random.choice([1, 2, 4])) * (2 if nodes == 2 else 1),
        "initial_physical_nodes": None if random.random() < 0.5 else 1,
        "batch_size": int(random.integers(1, 7)),
        "batching_method": str(random.choice(METHODS)),
        "sampling_method": str(random.choice(["balanced", "fixed"])),
        "sampling_granularity": int(random.choice([1, 5])),
        "epoch_size": int(random.integers(60, 300)) if kind != "absolute" and random.random() < 0.4 else None,
    }
    world = (nodes, int(random.integers(1, 4)), int(random.integers(1, 4)))
    return sizes, weights, options, world, int(random.integers(0, 4)), int(random.choice([0, 0, 12, 24]))


def order_of(sizes, weights, options, world) -> StreamingOrder:
    nodes, ranks, workers = world
    return StreamingOrder(
        streams=[Stream(sizes=own, **given) for own, given in zip(sizes, weights, strict=True)],
        batch_size=options["batch_size"],
        world=World(nodes=nodes, ranks=ranks, workers=workers),
        shuffle=options["shuffle_algo"] if options["shuffle"] else None,
        seed=options["shuffle_seed"],
        block_size=options["shuffle_block_size"],
        partition=options["partition_algo"],
        canonical_nodes=options["num_canonical_nodes"],
        initial_nodes=options["initial_physical_nodes"],
        batching=options["batching_method"],
        epoch_size=options["epoch_size"],
        fixed=options["sampling_method"] == "fixed",
        granularity=options["sampling_granularity"],
    )


def test_epochs_equal_the_official_ones(official):
    random = np.random.default_rng(3)
    cases = [random_case(random) for _ in range(250)]
    compared: dict[str, int] = dict.fromkeys(METHODS, 0)
    for case, theirs in zip(cases, official(THEIRS, cases=cases), strict=True):
        sizes, weights, options, world, epoch, drop = case
        order = order_of(sizes, weights, options, world)
        if isinstance(theirs, str) or not theirs.size:  # it does not say that there is no stratified batch at all
            with pytest.raises(ValueError, match="partition|batching|py1e"):
                order.deal(epoch, drop_first=drop)
            continue
        np.testing.assert_array_equal(order.deal(epoch, drop_first=drop), theirs, err_msg=str(case))
        compared[order.batching] += 1
    assert min(compared.values()) > 20


WRITE = """
from streaming import MDSWriter
with MDSWriter(out=folder, columns={'n': 'int'}, size_limit=1 << 9) as writer:
    for n in range(count):
        writer.write({'n': first + n})
from streaming.base.format import reader_from_json
import json
result = [shard['samples'] for shard in json.load(open(folder + '/index.json'))['shards']]
"""

READ = """
from streaming import StreamingDataset, StreamingDataLoader, Stream
dataset = StreamingDataset(
    streams=[Stream(local=folder, **given) for folder, given in streams], batch_size=6, shuffle=True, **options
)
loader = StreamingDataLoader(dataset, batch_size=6, num_workers=workers)
result = [[batch['n'].tolist() for batch in loader] for _ in range(2)]
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_the_official_loader(official, tmp_path, workers):
    folders = [str(tmp_path / name) for name in ("a", "b")]
    sizes = [
        official(WRITE, folder=folders[0], first=0, count=100),
        official(WRITE, folder=folders[1], first=100, count=37),
    ]
    weights = [{"repeat": 1.5}, {"choose": 20}]
    options = {"shuffle_algo": "py1e", "shuffle_seed": 5, "shuffle_block_size": 60, "num_canonical_nodes": 2}
    expected = official(READ, streams=list(zip(folders, weights, strict=True)), options=options, workers=workers)
    order = StreamingOrder(
        streams=[Stream(sizes=np.array(own), **given) for own, given in zip(sizes, weights, strict=True)],
        batch_size=6,
        world=World(workers=max(1, workers)),
        seed=5,
        block_size=60,
        canonical_nodes=2,
    )
    for epoch, theirs in enumerate(expected):
        assert [batch.tolist() for batch in order.batches(epoch=epoch)] == theirs


def test_defaults_are_those_of_the_official_package():
    streams = [Stream(sizes=np.array([8]))]
    order = StreamingOrder(streams=streams, batch_size=2, world=World(nodes=3))
    assert (order.parts, order.block) == (3, 4_000_000 // 3)
    assert StreamingOrder(streams=streams, batch_size=2, shuffle="py1s").parts == 64
    assert StreamingOrder(streams=streams, batch_size=2, canonical_nodes=64).block == 1 << 18


def test_ranks_together_have_every_sample_and_a_saved_position_goes_on(readable, arm):
    order = StreamingOrder(streams=[Stream(sizes=np.array([30, 18]))], batch_size=4, world=World(ranks=2, workers=2))
    ranks = [list(order.batches(epoch=1, rank=rank)) for rank in range(2)]
    assert sorted(np.concatenate([*ranks[0], *ranks[1]]).tolist()) == list(range(48))
    later = [list(order.batches(epoch=1, rank=rank, drop_first=16)) for rank in range(2)]
    assert [batch.tolist() for batch in later[0]] == [batch.tolist() for batch in ranks[0][2:]]
    with pytest.raises(ValueError, match="rank"):
        next(order.batches(epoch=0, rank=2))


def test_weights_that_cannot_be_meant_are_refused():
    sizes = np.array([8])
    with pytest.raises(ValueError, match="at most one"):
        _ = StreamingOrder(streams=[Stream(sizes=sizes, repeat=2, choose=3)], batch_size=1).chosen
    with pytest.raises(ValueError, match="Stream 1 has no proportion"):
        _ = StreamingOrder(streams=[Stream(sizes=sizes, proportion=1), Stream(sizes=sizes)], batch_size=1).chosen
    with pytest.raises(ValueError, match="epoch_size"):
        _ = StreamingOrder(streams=[Stream(sizes=sizes, repeat=2)], batch_size=1, epoch_size=9).chosen
    with pytest.raises(ValueError, match="stratified"):
        StreamingOrder(streams=[Stream(sizes=sizes)], batch_size=1, batching="new").deal(0)


def test_a_loader_delivers_the_batches_of_an_order(readable):
    schema = Schema({"n": pa.int64()}, id=None)
    first = readable(schema, [{"n": n} for n in range(20)], shards=4, kind="arrow")
    second = readable(schema, [{"n": n} for n in range(20, 29)], shards=2, kind="arrow")
    order = StreamingOrder(
        streams=[Stream.of(first), Stream.of(second)], batch_size=5, shuffle="py2s", canonical_nodes=2
    )
    mixed = Loader(Mix({"a": (first, 1), "b": (second, 1)}), window={"n": None}, batch_size=5).dataset()
    found = []
    for samples in order.batches(epoch=0):
        batch = mixed.batch(samples)
        assert batch["n"].tolist() == samples.tolist()
        found += samples.tolist()
    assert sorted(set(found)) == list(range(29))  # and one twice: canonical nodes have equally many


def test_shards_without_samples_take_part_in_shuffles(tmp_path):
    with sl.create(tmp_path / "a", {"x": "bytes"}, format="mds", size_limit=1) as writer:
        writer.write_all({"x": bytes([n])} for n in range(5))
    source = sl.scan(tmp_path / "a")
    assert Stream.of(source).sizes.tolist() == [0, 1, 1, 1, 1, 1]  # the first sample was above the limit
    assert Stream.of(source.where("octet_length(x) = 1")[1:3]).sizes.sum() == 2


SAVE = """
from streaming import StreamingDataset, StreamingDataLoader, Stream
from streaming.base.util import clean_stale_shared_memory
def begun():
    dataset = StreamingDataset(
        streams=[Stream(local=folder, **given) for folder, given in streams], batch_size=6, shuffle=True, **options)
    return StreamingDataLoader(dataset, batch_size=6, num_workers=workers)
loader = begun()
if state is not None:
    loader.load_state_dict(state)
result = []
for _ in range(2):
    for batch in loader:
        result.append((batch['n'].tolist(), loader.state_dict()))
loader = None
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_goes_on_from_the_state_of_the_other_package(official, tmp_path, workers):
    """Either way, at every batch: the same batches, and the same states."""
    folders = [str(tmp_path / name) for name in ("a", "b")]
    for folder, first, count in ((folders[0], 0, 50), (folders[1], 50, 27)):
        official(WRITE, folder=folder, first=first, count=count)
    weights = [{"repeat": 1.5}, {"choose": 20}]
    options = {"shuffle_algo": "py1e", "shuffle_block_size": 60}
    given = {
        "streams": list(zip(folders, weights, strict=True)),
        "workers": workers,
        "options": {**options, "shuffle_seed": 5, "num_canonical_nodes": 2},
    }
    whole = official(SAVE, state=None, **given)
    sources = [sl.scan(folder) for folder in folders]
    samples = Loader(
        Mix({str(k): (source, 1) for k, source in enumerate(sources)}), window=["n"], batch_size=6
    ).dataset()
    settings = {
        "streams": [Stream.of(source, **weight) for source, weight in zip(sources, weights, strict=True)],
        "batch_size": 6,
        "world": World(workers=max(1, workers)),
        "block_size": 60,
    }

    def ours(batches, epochs=2):
        return [(batch["n"].tolist(), batches.state_dict()) for _ in range(epochs) for batch in batches]

    parallel = {"num_workers": workers, "multiprocessing_context": "forkserver"} if workers else {}
    order = StreamingOrder(**settings, seed=5, canonical_nodes=2)
    assert ours(order.loader(samples, **parallel)) == whole
    for done in (3, len(whole) // 2 + 2):
        state = whole[done - 1][1]
        resumed = StreamingOrder.from_state(state, **settings)
        epochs = 2 - state["epoch"]
        assert ours(resumed.loader(samples), epochs) == whole[done:]
        later = StreamingOrder(**settings).loader(samples)
        next(iter(later))  # begun somewhere else, with another seed
        later.load_state_dict(state)
        assert ours(later, epochs) == whole[done:]
    assert official(SAVE, state=whole[2][1], **{**given, "options": options})[: len(whole) - 3] == whole[3:]


def test_a_state_of_something_else_is_refused():
    settings = {"streams": [Stream(sizes=np.array([8]))], "batch_size": 2}
    good = {"epoch": 1, "sample_in_epoch": 4, "num_canonical_nodes": 2, "shuffle_seed": 7, "initial_physical_nodes": 1}
    old = {name: value for name, value in good.items() if name != "initial_physical_nodes"}  # before it was saved
    order = StreamingOrder.from_state(old, **settings)
    assert (order.epoch, order.sample, order.parts, order.seed, order.initial_nodes) == (1, 4, 2, 7, None)
    with pytest.raises(LoaderStateError, match=r"without 'epoch'") as raised:
        StreamingOrder.from_state({"format": 1}, **settings)
    assert "load_state_dict" in str(raised.value.hint)
    for wrong in (None, [], "state"):
        with pytest.raises(LoaderStateError, match="found"):
            StreamingOrder.from_state(wrong, **settings)
    for name in good:
        with pytest.raises(LoaderStateError, match=f"state {name}"):
            StreamingOrder.from_state({**good, name: -1}, **settings)
    for name in ("num_canonical_nodes", "initial_physical_nodes"):  # one turn of a loop each, for hours
        with pytest.raises(LoaderStateError, match=f"state {name}"):
            StreamingOrder.from_state({**good, name: 1 << 31}, **settings)


def test_words_of_the_official_package_are_refused_with_those_of_here(readable):
    sizes = [Stream(sizes=np.array([8]))]
    words = {
        "shuffle_seed": "seed=", "shuffle_algo": "shuffle=", "num_canonical_nodes": "canonical_nodes=",
        "partition_algo": "partition=", "batching_method": "batching=", "shuffle_block_size": "block_size=",
        "sampling_method": "fixed=", "sampling_granularity": "granularity=",
    }  # fmt: skip
    for word, here in words.items():
        with pytest.raises(TypeError, match=f"StreamingOrder takes no option '{word}'.*{here}"):
            StreamingOrder(streams=sizes, batch_size=2, **{word: 1})
        with pytest.raises(TypeError, match=f"StreamingOrder takes no option '{word}'"):
            StreamingOrder.from_state(
                {"epoch": 0, "sample_in_epoch": 0, "shuffle_seed": 1}, streams=sizes, batch_size=2, **{word: 1}
            )
    with pytest.raises(TypeError, match="expected None, or one of .*py1e.*found True"):
        StreamingOrder(streams=sizes, batch_size=2, shuffle=True)
    source = readable(Schema({"n": pa.int64()}, id=None), [{"n": n} for n in range(20)], shards=4, kind="arrow")
    here = {
        "shuffle_seed": "seed=", "num_workers": "DataLoader", "cache_limit": "sl.Cache", "predownload": "leave it out",
        "shuffle_algo": "StreamingOrder", "drop_last": "tail", "collate_fn": "map_batch", "epoch_size": "of_streams",
        "pin_memory": "torch", "replication": "rank // k",
    }  # fmt: skip
    for word, text in here.items():
        with pytest.raises(TypeError, match=f"Loader takes no option '{word}'.*{text}"):
            Loader(source, window=None, batch_size=2, **{word: 1})
    with pytest.raises(TypeError, match=r"found 'py1e'.*StreamingOrder\(shuffle"):
        Loader(source, window=None, batch_size=2, shuffle="py1e")
    with pytest.raises(TypeError, match="unexpected keyword"):  # nobody's word
        Loader(source, window=None, batch_size=2, nonsense=1)

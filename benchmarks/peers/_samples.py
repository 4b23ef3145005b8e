"""Samples that hold files, in formats of libraries that know no video: films of an episode, pictures of a window."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path


class Kind(Protocol):
    """How a library writes and reads them."""

    @staticmethod
    def write(folder: Path, samples: Sequence[Sequence[bytes]]) -> None:
        """Write them into a new folder: of each its files, as many in all."""

    @staticmethod
    def loader(folder: Path, window: Callable[[list[bytes]], Any], workers: int, batch: int) -> Iterable[Any]:
        """Batches of windows, in another order each epoch."""


class Decoded:
    """A map-style dataset whose samples are windows; everything else is the library's own."""

    def __init__(self, dataset: Any, window: Callable[[list[bytes]], Any]) -> None:
        self.dataset, self.window = dataset, window

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> Any:
        sample = self.dataset[number]
        return of_sample(sample, window=self.window)


def torch_loader(dataset: Any, workers: int, batch: int, **options: Any) -> Iterable[Any]:
    import torch

    return torch.utils.data.DataLoader(
        dataset, batch_size=batch, num_workers=workers, persistent_workers=True, **options
    )


class MosaicML:
    @staticmethod
    def write(folder: Path, samples: Sequence[Sequence[bytes]]) -> None:
        from official import streaming

        with streaming.MDSWriter(out=str(folder), columns=dict.fromkeys(named(samples[0]), "bytes")) as writer:
            for files in samples:
                writer.write(named(files))

    @staticmethod
    def loader(folder: Path, window: Callable[[list[bytes]], Any], workers: int, batch: int) -> Iterable[Any]:
        from official import streaming

        streaming.base.util.clean_stale_shared_memory()

        class Windows(streaming.StreamingDataset):
            def __getitem__(self, number: int) -> Any:
                return of_sample(super().__getitem__(number), window=window)

        return torch_loader(Windows(local=str(folder), shuffle=True, batch_size=batch), workers, batch)


class LitData:
    @staticmethod
    def write(folder: Path, samples: Sequence[Sequence[bytes]]) -> None:
        from litdata import optimize

        optimize(
            fn=same,
            inputs=[named(files) for files in samples],
            output_dir=str(folder),
            chunk_bytes="64MB",
            num_workers=1,
        )

    @staticmethod
    def loader(folder: Path, window: Callable[[list[bytes]], Any], workers: int, batch: int) -> Iterable[Any]:
        from litdata import StreamingDataLoader, StreamingDataset

        dataset = StreamingDataset(str(folder), shuffle=True, transform=partial(of_sample, window=window))
        return StreamingDataLoader(dataset, batch_size=batch, num_workers=workers, persistent_workers=True)


class WebDataset:
    @staticmethod
    def write(folder: Path, samples: Sequence[Sequence[bytes]]) -> None:
        import webdataset as wds

        folder.mkdir()
        with wds.ShardWriter(str(folder / "%05d.tar"), maxsize=64 << 20, verbose=0) as writer:
            for number, files in enumerate(samples):
                writer.write({"__key__": f"{number:08d}", **named(files)})

    @staticmethod
    def loader(folder: Path, window: Callable[[list[bytes]], Any], workers: int, batch: int) -> Iterable[Any]:
        import webdataset as wds

        transform = partial(of_sample, window=window)
        urls = sorted(map(str, folder.glob("*.tar")))
        dataset = wds.WebDataset(urls, shardshuffle=100, empty_check=False).shuffle(16).map(transform)
        dataset = dataset.batched(batch, collation_fn=stacked)
        return wds.WebLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=True)


class HuggingFace:
    @staticmethod
    def write(folder: Path, samples: Sequence[Sequence[bytes]]) -> None:
        from datasets import Dataset

        columns = {name: [files[at] for files in samples] for at, name in enumerate(named(samples[0]))}
        Dataset.from_dict(columns).save_to_disk(str(folder))

    @staticmethod
    def loader(folder: Path, window: Callable[[list[bytes]], Any], workers: int, batch: int) -> Iterable[Any]:
        from datasets import load_from_disk

        return torch_loader(Decoded(load_from_disk(str(folder)), window), workers, batch, shuffle=True)


class Lance:
    @staticmethod
    def write(folder: Path, samples: Sequence[Sequence[bytes]]) -> None:
        import lance
        import pyarrow as pa

        columns = {
            name: pa.array([files[at] for files in samples], pa.large_binary())
            for at, name in enumerate(named(samples[0]))
        }
        lance.write_dataset(pa.table(columns), str(folder))

    @staticmethod
    def loader(folder: Path, window: Callable[[list[bytes]], Any], workers: int, batch: int) -> Iterable[Any]:
        from lance.torch.data import SafeLanceDataset, get_safe_loader

        dataset = Decoded(SafeLanceDataset(str(folder)), window)
        return get_safe_loader(dataset, batch_size=batch, num_workers=workers, shuffle=True)


def same(sample: Any) -> Any:
    return sample


def named(files: Sequence[bytes]) -> dict[str, bytes]:
    """The files of a sample by names that sort as they stand."""
    return {f"{number:03d}": data for number, data in enumerate(files)}


def of_sample(sample: dict[str, bytes], *, window: Callable[[list[bytes]], Any]) -> Any:
    return window([bytes(sample[name]) for name in sorted(sample) if name.isdigit()])


def stacked(windows: list[Any]) -> Any:
    import torch

    return torch.stack([torch.from_numpy(one) for one in windows])


KINDS: dict[str, type[Kind]] = {
    "mosaicml": MosaicML,
    "litdata": LitData,
    "webdataset": WebDataset,
    "datasets": HuggingFace,
    "lance": Lance,
}

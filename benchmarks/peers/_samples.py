"""Episodes as samples that hold their two files, in the formats of libraries that know no video."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

BATCH = 2
NAMES = ("high", "wrist")


class Kind(Protocol):
    """How a library writes and reads them."""

    @staticmethod
    def write(folder: Path, episodes: Sequence[Sequence[bytes]]) -> None:
        """Write them into a new folder."""

    @staticmethod
    def loader(folder: Path, window: Callable[[list[bytes]], Any], workers: int) -> Iterable[Any]:
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


def torch_loader(dataset: Any, workers: int, **options: Any) -> Iterable[Any]:
    import torch

    return torch.utils.data.DataLoader(
        dataset, batch_size=BATCH, num_workers=workers, persistent_workers=True, **options
    )


class MosaicML:
    @staticmethod
    def write(folder: Path, episodes: Sequence[Sequence[bytes]]) -> None:
        from official import streaming

        with streaming.MDSWriter(out=str(folder), columns=dict.fromkeys(NAMES, "bytes")) as writer:
            for files in episodes:
                writer.write(dict(zip(NAMES, files, strict=True)))

    @staticmethod
    def loader(folder: Path, window: Callable[[list[bytes]], Any], workers: int) -> Iterable[Any]:
        from official import streaming

        streaming.base.util.clean_stale_shared_memory()

        class Windows(streaming.StreamingDataset):
            def __getitem__(self, number: int) -> Any:
                return of_sample(super().__getitem__(number), window=window)

        return torch_loader(Windows(local=str(folder), shuffle=True, batch_size=BATCH), workers)


class LitData:
    @staticmethod
    def write(folder: Path, episodes: Sequence[Sequence[bytes]]) -> None:
        from litdata import optimize

        samples = [dict(zip(NAMES, files, strict=True)) for files in episodes]
        optimize(fn=same, inputs=samples, output_dir=str(folder), chunk_bytes="64MB", num_workers=1)

    @staticmethod
    def loader(folder: Path, window: Callable[[list[bytes]], Any], workers: int) -> Iterable[Any]:
        from litdata import StreamingDataLoader, StreamingDataset

        dataset = StreamingDataset(str(folder), shuffle=True, transform=partial(of_sample, window=window))
        return StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, persistent_workers=True)


class WebDataset:
    @staticmethod
    def write(folder: Path, episodes: Sequence[Sequence[bytes]]) -> None:
        import webdataset as wds

        folder.mkdir()
        with wds.ShardWriter(str(folder / "%05d.tar"), maxsize=64 << 20, verbose=0) as writer:
            for number, files in enumerate(episodes):
                named = {f"{name}.mp4": data for name, data in zip(NAMES, files, strict=True)}
                writer.write({"__key__": f"{number:08d}", **named})

    @staticmethod
    def loader(folder: Path, window: Callable[[list[bytes]], Any], workers: int) -> Iterable[Any]:
        import webdataset as wds

        transform = partial(of_sample, window=window, suffix=".mp4")
        urls = sorted(map(str, folder.glob("*.tar")))
        dataset = wds.WebDataset(urls, shardshuffle=100, empty_check=False).shuffle(16).map(transform)
        dataset = dataset.batched(BATCH, collation_fn=stacked)
        return wds.WebLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=True)


class HuggingFace:
    @staticmethod
    def write(folder: Path, episodes: Sequence[Sequence[bytes]]) -> None:
        from datasets import Dataset

        columns = {name: [files[place] for files in episodes] for place, name in enumerate(NAMES)}
        Dataset.from_dict(columns).save_to_disk(str(folder))

    @staticmethod
    def loader(folder: Path, window: Callable[[list[bytes]], Any], workers: int) -> Iterable[Any]:
        from datasets import load_from_disk

        return torch_loader(Decoded(load_from_disk(str(folder)), window), workers, shuffle=True)


class Lance:
    @staticmethod
    def write(folder: Path, episodes: Sequence[Sequence[bytes]]) -> None:
        import lance
        import pyarrow as pa

        columns = {
            name: pa.array([files[at] for files in episodes], pa.large_binary()) for at, name in enumerate(NAMES)
        }
        lance.write_dataset(pa.table(columns), str(folder))

    @staticmethod
    def loader(folder: Path, window: Callable[[list[bytes]], Any], workers: int) -> Iterable[Any]:
        from lance.torch.data import SafeLanceDataset, get_safe_loader

        dataset = Decoded(SafeLanceDataset(str(folder)), window)
        return get_safe_loader(dataset, batch_size=BATCH, num_workers=workers, shuffle=True)


def same(sample: Any) -> Any:
    return sample


def of_sample(sample: dict[str, bytes], *, window: Callable[[list[bytes]], Any], suffix: str = "") -> Any:
    return window([bytes(sample[f"{name}{suffix}"]) for name in NAMES])


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

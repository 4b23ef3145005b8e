"""Which files of a folder are which split of which configuration, as the Hub and `datasets` lay them out."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seqlake.errors import ColumnNotFoundError, InvalidMetadataError, MissingFileError
from seqlake.files.locations import checked
from seqlake.files.stores import read_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from seqlake.protocols import Store

DICT, STATE, INFO = "dataset_dict.json", "state.json", "dataset_info.json"
"""What `save_to_disk` writes: of a DatasetDict the names of its splits; of a Dataset its files, and its features."""

DEFAULT = "default"
_SHARDED = re.compile(r"(?P<split>\w+(?:\.\w+)*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?:-[0-9a-f]+)?")
_KEYWORDS = {"train", "training", "validation", "valid", "val", "dev", "test", "testing", "eval", "evaluation"}
_MOST_JSON = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFile:
    """One data file.

    Attributes:
        path: Below the root.
        split: As in `train`; None where nothing says it.
        config: The configuration.
        shard: (number, count) where its name says that it is one of several.
    """

    path: str
    split: str | None = None
    config: str = DEFAULT
    shard: tuple[int, int] | None = None


def of_path(path: str, /) -> SplitFile:
    """What the name of a Parquet file says.

    Example:
        >>> of_path("en/validation-00000-of-00002.parquet")
        SplitFile(path='en/validation-00000-of-00002.parquet', split='validation', config='en', shard=(0, 2))
    """
    *folders, name = path.split("/")
    stem = name.rpartition(".")[0]
    sharded = _SHARDED.fullmatch(stem)
    split = None
    if sharded is not None:
        split = sharded["split"]
    elif stem in _KEYWORDS:
        split = stem
    elif folders and folders[-1] in _KEYWORDS:
        split = folders.pop()
    config = "/".join(folders)
    shard = None if sharded is None else (int(sharded["number"]), int(sharded["count"]))
    return SplitFile(path=path, split=split, config=DEFAULT if config in {"", "data"} else config, shard=shard)


def chosen(
    paths: Iterable[str], /, *, root: str, split: str | None, config: str | None, alone: bool = False
) -> list[SplitFile]:
    """The files of one configuration, and of one split where that is wanted.

    Args:
        paths: Of Parquet files, below the root.
        root: For messages.
        split: Only this one.
        config: Only this one.
        alone: One file was named, whichever others belong to it.

    Raises:
        InvalidMetadataError: Several configurations are there, and none was named.
        ColumnNotFoundError: No such configuration or split.
        MissingFileError: A split lacks some of its files.
    """
    files = [of_path(path) for path in paths]
    configs = sorted({file.config for file in files})
    named = {file.config for file in files if file.split is not None}
    if config is None and len(named) > 1:
        raise InvalidMetadataError(
            f"{root} has several configurations: {', '.join(configs[:20])}.",
            path=root,
            hint=f"Say which: sl.scan(..., config={configs[0]!r}).",
        )
    if config is not None and config not in configs:
        raise ColumnNotFoundError(f"{root} has no configuration {config!r}; it has {', '.join(configs)}.", path=root)
    files = files if config is None else [file for file in files if file.config == config]
    if not alone:
        _refuse_gaps(files)
    splits = list(dict.fromkeys(str(file.split) for file in files if file.split is not None))
    if split is not None and split not in splits:
        raise ColumnNotFoundError(f"{root} has no split {split!r}; it has {', '.join(splits) or 'none'}.", path=root)
    return files if split is None else [file for file in files if file.split == split]


def _refuse_gaps(files: Sequence[SplitFile]) -> None:
    """Of a split in so many files, each is there: a part would be taken for the whole."""
    there: dict[tuple[str, str | None, int], set[int]] = {}
    for file in files:
        if file.shard is not None:
            there.setdefault((file.path.rpartition("/")[0], file.split, file.shard[1]), set()).add(file.shard[0])
    for (folder, split, count), numbers in there.items():
        missing = next((number for number in range(min(count, len(numbers) + 1)) if number not in numbers), None)
        if missing is not None and len(numbers) < count:
            path = f"{folder}{'/' if folder else ''}{split}-{missing:05d}-of-{count:05d}.parquet"
            raise MissingFileError(
                f"{path} is not there: {len(numbers)} of {count} files are.",
                path=path,
                hint="The folder was copied in part: fetch it again, or scan the files that you want by name.",
            )


def saved(store: Store, /) -> list[SplitFile]:
    """The files of a folder of `save_to_disk`, in their order; nothing where it is none.

    Raises:
        InvalidMetadataError: `dataset_dict.json` or `state.json` cannot be used.
        UnsafeReferenceError: They name what lies outside.
    """
    splits = _document(store, DICT)
    if splits is not None:
        names = splits.get("splits")
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise InvalidMetadataError(f"{DICT}: expected splits as ['train', 'test'], found {names!r:.80}.", path=DICT)
        return [file for name in names for file in _of_state(store, f"{checked(name)}/", name)]
    state = _document(store, STATE)
    return [] if state is None else _of_state(store, "", None)


def _of_state(store: Store, folder: str, split: str | None) -> list[SplitFile]:
    state = _document(store, f"{folder}{STATE}")
    if state is None:
        raise MissingFileError(
            f"{folder}{STATE} is not there, which says what files {folder or 'the folder'} has.",
            path=f"{folder}{STATE}",
            hint="The folder was copied in part: fetch it again.",
        )
    listed = state.get("_data_files")
    names = [one.get("filename") if isinstance(one, dict) else None for one in listed] if type(listed) is list else []
    if type(listed) is not list or not all(isinstance(name, str) for name in names):
        text = f"{folder}{STATE}: expected _data_files with names, found {listed!r:.80}."
        raise InvalidMetadataError(text, path=f"{folder}{STATE}")
    named = split or (state.get("_split") if isinstance(state.get("_split"), str) else None)
    return [SplitFile(path=checked(f"{folder}{name}"), split=named) for name in names]


def _document(store: Store, path: str) -> dict[str, Any] | None:
    try:
        text = read_all(store.blob(path), most=_MOST_JSON)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidMetadataError(f"{path} is no JSON.", path=path, hint="Fetch the file again.") from None
    if not isinstance(document, dict):
        raise InvalidMetadataError(f"{path}: expected a JSON object, found {type(document).__name__}.", path=path)
    return document

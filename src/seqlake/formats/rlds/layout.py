"""The folder of a tfds dataset: which version lies there, and which files hold which split."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from seqlake.errors import DatasetNotFoundError, InvalidMetadataError
from seqlake.files.locations import is_local, local_path
from seqlake.files.stores import exists, read_all
from seqlake.spec.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from seqlake.protocols import Store

FEATURES, INFO = "features.json", "dataset_info.json"
_LOOKED_AT = 10_000  # names of a bucket, to find a version folder
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_PLAIN = re.compile(r"^(?P<dataset>.+)-(?P<split>[^-]+)\.tfrecord-\d{5}-of-\d{5}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """One file that should be there.

    Attributes:
        path: Below the root of the store.
        split: Its split.
        expected: The records it should hold; None where `dataset_info.json` does not say.
    """

    path: str
    split: str
    expected: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What `dataset_info.json` and the listing say.

    Attributes:
        folder: Of the version, below the root of the store; empty or ending in a slash.
        info: The content of `dataset_info.json`.
        files: The files that are there, in the order of splits and shards.
        findings: Splits and files that are named and not there.
    """

    folder: str
    info: Mapping[str, object]
    files: tuple[ShardFile, ...]
    findings: tuple[Finding, ...]


def version_folder(store: Store, location: str, /) -> str:
    """The folder of the only version: the location itself, or the one folder below it.

    Raises:
        DatasetNotFoundError: No `features.json` with a `dataset_info.json`, or several versions.
    """
    if exists(store, FEATURES) and exists(store, INFO):
        return ""
    found = [folder for folder in _folders(store, location) if exists(store, folder + INFO)]
    if len(found) == 1:
        return found[0]
    if found:
        versions = ", ".join(folder.rstrip("/") for folder in found)
        raise DatasetNotFoundError(
            f"{location} holds several versions: {versions}.", path=location, hint="Name the folder of one of them."
        )
    raise DatasetNotFoundError(f"{location} holds no tfds dataset: {FEATURES} and {INFO} were expected.", path=location)


def _folders(store: Store, location: str) -> list[str]:
    """The folders one level down that hold a `features.json`; never walks through a tree to find them."""
    if is_local(location):
        return sorted(f"{path.parent.name}/" for path in local_path(location).glob(f"*/{FEATURES}"))
    names = (path for path, _ in islice(store.list(), _LOOKED_AT))
    return [path.removesuffix(FEATURES) for path in names if path.count("/") == 1 and path.endswith(f"/{FEATURES}")]


def layout(store: Store, location: str, /, *, split: str | Collection[str] | None) -> Layout:
    """Find the files of a dataset.

    Args:
        store: Opened at `location`.
        location: For messages.
        split: The splits to read; None for all.

    Raises:
        DatasetNotFoundError: Nothing there, or no file of the splits asked for.
        InvalidMetadataError: `dataset_info.json` cannot be used.
    """
    folder = version_folder(store, location)
    info = _info(store, folder, location)
    present = [path.removeprefix(folder) for path, _ in store.list(folder.rstrip("/"))]
    named = _named(info, present, f"{location.rstrip('/')}/{folder}{INFO}")
    splits = list(dict.fromkeys(file.split for file in named))
    wanted = splits if split is None else [split] if isinstance(split, str) else list(split)
    unknown = [name for name in wanted if name not in splits]
    if unknown:
        raise DatasetNotFoundError(
            f"{location} has no split {unknown[0]!r}; it has {', '.join(splits) or 'none'}.", path=location
        )
    there = set(present)
    files = tuple(
        ShardFile(path=folder + file.path, split=file.split, expected=file.expected)
        for file in named
        if file.split in wanted and file.path in there
    )
    if not files:
        raise DatasetNotFoundError(
            f"{location} holds no file of the splits {', '.join(wanted)}.",
            path=location,
            hint=f"The first one would be {next((f.path for f in named if f.split in wanted), 'a .tfrecord file')}.",
        )
    findings = tuple(_missing([file for file in named if file.split in wanted], there))
    return Layout(folder=folder, info=info, files=files, findings=findings)


def _info(store: Store, folder: str, location: str) -> dict[str, object]:
    try:
        info = json.loads(read_all(store.blob(folder + INFO)))
    except (ValueError, RecursionError) as error:
        raise InvalidMetadataError(f"{location}: {folder}{INFO} is not JSON: {error}.", path=location) from error
    if not isinstance(info, dict):
        raise InvalidMetadataError(f"{location}: {folder}{INFO} is not a JSON object.", path=location)
    if info.get("fileFormat", "tfrecord") != "tfrecord":
        raise InvalidMetadataError(
            f"{location}: the records are kept as {info['fileFormat']!r}; only 'tfrecord' can be read.",
            path=location,
            hint="Write the dataset again with file_format='tfrecord'.",
        )
    return info


def _named(info: Mapping[str, object], present: list[str], place: str) -> list[ShardFile]:
    splits = info.get("splits")
    if not isinstance(splits, list) or not splits:
        matched = [(name, _PLAIN.match(name)) for name in sorted(present)]
        return [ShardFile(path=name, split=match["split"], expected=None) for name, match in matched if match]
    try:
        return [file for split in splits for file in _of_split(str(info["name"]), split)]
    except (KeyError, OverflowError, ValueError, TypeError, AttributeError) as error:
        raise InvalidMetadataError(f"{place}: the splits cannot be understood ({error!r}).", path=place) from error


def _of_split(dataset: str, split: Mapping[str, object]) -> list[ShardFile]:
    lengths = split.get("shardLengths") or []
    if not isinstance(lengths, list):
        raise TypeError(f"'shardLengths' is {type(lengths).__name__}, no list")
    files = []
    for number, length in enumerate(lengths):
        path = str(split.get("filepathTemplate") or _TEMPLATE)
        shard, total = f"{number:05d}", f"{len(lengths):05d}"
        for word, value in {
            "DATASET": dataset,
            "SPLIT": str(split["name"]),
            "FILEFORMAT": "tfrecord",
            "SHARD_INDEX": shard,
            "NUM_SHARDS": total,
            "SHARD_X_OF_Y": f"{shard}-of-{total}",
        }.items():
            path = path.replace(f"{{{word}}}", value)
        if "/" in path or "\\" in path or path in {"", ".", ".."}:
            raise ValueError(f"{path!r} is not the name of a file in this folder")
        files.append(ShardFile(path=path, split=str(split["name"]), expected=int(length)))
    return files


def _missing(named: list[ShardFile], there: set[str]) -> list[Finding]:
    findings = []
    for split in dict.fromkeys(file.split for file in named):
        files = [file for file in named if file.split == split]
        absent = [file for file in files if file.path not in there]
        if len(absent) == len(files):
            text = f"{INFO} names the split {split!r}, but none of its {len(files)} files is here"
            findings.append(
                Finding(code="rlds-missing-split", severity="warning", message=text, location=absent[0].path)
            )
        else:
            text = f"{INFO} names this file of the split {split!r}, but it is not here"
            findings += [
                Finding(code="rlds-missing-file", severity="error", message=text, location=file.path) for file in absent
            ]
    return findings

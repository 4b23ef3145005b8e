"""One pass over the headers of all shards: which samples there are, and which files each has."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import CorruptFileError
from seqlake.formats.rlds.tfrecord import BytesAhead
from seqlake.formats.webdataset.places import is_shard, open_shard
from seqlake.formats.webdataset.tar import GZIPPED, UNMARKED, members, unpacked
from seqlake.spec.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from seqlake.files.blobs import MemoryBlob
    from seqlake.formats.webdataset.places import NamedShard
    from seqlake.formats.webdataset.tar import TarMember
    from seqlake.protocols import Blob, Ints, Store

__all__ = ["TarShard", "TarSurvey", "head_of", "is_shard", "survey"]

_SPLIT = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")  # as the webdataset package splits a name
_META = re.compile(r"__[^/]*__($|/)")
_HEAD = 1 << 12  # bytes of an array's file that say its dtype and shape
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TarShard:
    """What one pass learned of a shard.

    Attributes:
        blob: Its file.
        name: Below the root.
        split: Its split.
        keys: [samples] what the files of a sample are called before the first dot.
        files: Ending -> ([samples] first byte, -1 where the sample has none; [samples] bytes).
        begins: [samples] byte at which the headers of each begin.
        digest: Changes with any name, place or size.
        limit: Bytes that it may make, where it is compressed.
    """

    blob: Blob
    name: str
    split: str | None
    keys: tuple[str, ...]
    files: dict[str, tuple[Ints, Ints]]
    begins: Ints
    digest: str
    limit: int

    @property
    def sizes(self) -> Ints:
        """[samples] bytes of all files of each."""
        return sum((size.clip(0) for _, size in self.files.values()), np.zeros(len(self.keys), np.int64))

    def opened(self) -> Blob | MemoryBlob:
        """The archive as it is read."""
        return opened(copy(self.blob), limit=self.limit)


@dataclass(slots=True, kw_only=True)
class TarSurvey:
    """All shards.

    Attributes:
        shards: In their order.
        heads: Ending -> the first bytes of each array's file, every distinct one once.
        findings: What was passed over, and keys that come twice.
    """

    shards: list[TarShard] = field(default_factory=list)
    heads: dict[str, set[bytes]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def endings(self) -> list[str]:
        """Of all files, in the order in which they come first."""
        return list(dict.fromkeys(ending for shard in self.shards for ending in shard.files))


def opened(blob: Blob, /, *, limit: int) -> Blob:
    """An archive that is not compressed any more."""
    return unpacked(blob, most=limit) if blob.location.lower().endswith(GZIPPED) else blob


def survey(store: Store, shards: Iterable[NamedShard], /, *, limit: int) -> TarSurvey:
    """Read the headers of all shards.

    Args:
        store: Of the root.
        shards: Those that are wanted.
        limit: Bytes that a compressed shard may make.

    Raises:
        DatasetNotFoundError: A shard is not there.
        CorruptFileError: One is damaged, or has two files of one name in a sample.
    """
    gathered = TarSurvey()
    for named in shards:
        gathered.shards.append(_shard(open_shard(store, named.name), named, gathered, limit))
    return gathered


def _shard(blob: Blob, named: NamedShard, gathered: TarSurvey, limit: int) -> TarShard:
    archive = opened(blob, limit=limit)
    samples: list[tuple[str, int, dict[str, tuple[int, int]]]] = []
    digest, left = hashlib.sha256(blob.token.encode()), list[tuple[str, str]]()
    ahead = BytesAhead(archive)
    for one in members(archive, ahead):
        digest.update(f"{one.name}\0{one.start}\0{one.size}\n".encode())
        match = _SPLIT.match(one.name)
        if one.why or match is None:
            left.append((one.name, one.why or "a name without an ending"))
            continue
        if _META.match(one.name):
            continue
        key, ending = match[1], match[2].lower()
        if key in named.without:
            continue
        if not samples or samples[-1][0] != key:
            samples.append((key, one.begin, {}))
        files = samples[-1][2]
        if ending in files:
            raise CorruptFileError(
                f"{blob.location}: the sample {key!r} has two files that end in {ending!r}; the second begins at byte "
                f"{one.begin}.",
                path=blob.location,
                hint="Which of them counts nobody knows: write the shard anew without one.",
            )
        files[ending] = (one.start, one.size)
        if ending.rpartition(".")[2] == "npy":
            gathered.heads.setdefault(ending, set()).add(head_of(ahead, one))
    _report(blob, samples, left, gathered)
    return TarShard(
        blob=copy(blob),
        name=named.name,
        split=named.split,
        keys=tuple(key for key, _, _ in samples),
        files=_columns([files for _, _, files in samples]),
        begins=np.array([begin for _, begin, _ in samples], np.int64),
        digest=digest.hexdigest()[:32],
        limit=limit,
    )


def head_of(ahead: BytesAhead, member: TarMember, /) -> bytes:
    """What the head of a file of numpy says, without its values."""
    stop = member.start + min(member.size, _HEAD)
    read = bytes(ahead.read(member.start, stop))
    wide = read[6:7] != b"\x01"
    length = int.from_bytes(read[8 : 12 if wide else 10], "little") + (12 if wide else 10)
    return read[:length]


def _columns(samples: list[dict[str, tuple[int, int]]]) -> dict[str, tuple[Ints, Ints]]:
    files: dict[str, tuple[Ints, Ints]] = {}
    for row, sample in enumerate(samples):
        for ending, (start, size) in sample.items():
            if ending not in files:
                files[ending] = np.full(len(samples), -1, np.int64), np.full(len(samples), -1, np.int64)
            files[ending][0][row], files[ending][1][row] = start, size
    return files


def _report(
    blob: Blob,
    samples: list[tuple[str, int, dict[str, tuple[int, int]]]],
    left: list[tuple[str, str]],
    gathered: TarSurvey,
) -> None:
    if any(why == UNMARKED for _, why in left):
        finding = Finding(code="webdataset-end", severity="warning", message=UNMARKED, location=blob.location)
        gathered.findings.append(finding)
    for why in dict.fromkeys(why for _, why in left if why != UNMARKED):
        names = [name for name, reason in left if reason == why]
        shown_names = ", ".join(f"{name[:100]!r}" for name in names[:_SHOWN])
        text = f"{len(names)} entries are left out, {why}: {shown_names}"
        severity = "note" if why == "a name without an ending" else "warning"
        gathered.findings.append(
            Finding(code="webdataset-left-out", severity=severity, message=text, location=blob.location)  # type: ignore[arg-type]  # one of the words
        )
    keys = [key for key, _, _ in samples]
    if len(set(keys)) != len(keys):
        twice = Counter(keys).most_common(1)[0][0]
        text = f"files of the sample {twice[:100]!r} do not lie together: they are samples of their own"
        gathered.findings.append(
            Finding(code="webdataset-scattered", severity="warning", message=text, location=blob.location)
        )
    odd = [key for key in keys if key.startswith(("/", "\\")) or ".." in key.split("/")]
    if odd:
        text = f"{len(odd)} samples are named as paths that leave a folder, the first {odd[0][:100]!r}; none is made"
        gathered.findings.append(
            Finding(code="webdataset-name", severity="warning", message=text, location=blob.location)
        )

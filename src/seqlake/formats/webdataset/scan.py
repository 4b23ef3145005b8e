"""Tar shards as samples: looked at, read by range, and checked."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.arguments import TEXT_OR_TEXTS, TEXTS, Kind, takes, whole
from seqlake.errors import SeqlakeError, UnsafeReferenceError
from seqlake.files.locations import absolute
from seqlake.files.stores import open_store
from seqlake.formats._mapping import MAP, wanted
from seqlake.formats.webdataset.columns import TarColumns, columns_of, is_json
from seqlake.formats.webdataset.places import ShardPlace, holds_shards, look, offsets_beside
from seqlake.formats.webdataset.reading import TarReader, field_of
from seqlake.formats.webdataset.survey import TarSurvey, survey
from seqlake.shards.scanned import ScannedDataset, ScannedShard
from seqlake.spec.findings import Finding

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from seqlake.formats._mapping import Wanted
    from seqlake.formats.webdataset.survey import TarShard
    from seqlake.protocols import Depth, Mapped
    from seqlake.spec.schema import Schema

SHARD_BYTES = 4 << 30  # of a compressed shard, unpacked


def _groups(value: Any) -> bool:
    return bool(re.compile(value).groupindex) if isinstance(value, (str, re.Pattern)) else False


_PATTERN = Kind(r"a regular expression with named groups, as r'(?P<episode>.*)_(?P<step>\d+)'", _groups)


def matches(location: str, /, *, storage: Mapping[str, str] | None = None) -> bool:
    """Whether a location is a tar shard, names some in braces, or is a folder that holds one."""
    try:
        return holds_shards(absolute(location), storage)
    except UnsafeReferenceError:
        raise  # what it is can be said once that is allowed
    except (SeqlakeError, OSError, ValueError):
        return False


@takes(map=MAP.or_none(), split=TEXT_OR_TEXTS.or_none(), without=TEXTS, key=_PATTERN.or_none(), shard_bytes=whole(1))
def scan(
    location: str,
    /,
    *,
    split: str | Collection[str] | None = None,
    key: str | None = None,
    map: Mapping[str, Any] | str | os.PathLike[str] | None = None,  # noqa: A002 - the word of every format
    without: Collection[str] = (),
    shard_bytes: int = SHARD_BYTES,
    storage: Mapping[str, str] | None = None,
) -> TarDataset:
    r"""Look at tar shards; every row is a sample, nothing is converted.

    The headers of all shards are read once, contents are left where they are. A shard in a bucket is read for this in
    pieces of 8 MiB; files that are longer are passed over.

    Args:
        location: A folder or URI with `.tar`, `.tar.gz` or `.tgz` files, one of them, or several as `d-{000..012}.tar`.
            Energon's `.nv-meta` says which shards count, where it is there.
        split: One of Energon's splits, or several.
        key: A regular expression that fits whole keys; its named groups become columns, numbers where all are digits.
        map: Columns by the endings of files, as `{"label": "cls", "cam": {"source": "jpg", "type": "image"}}`; fields
            of JSON as `{"episode": "json/meta/episode"}`. None: every ending by its own name.
        without: Endings to leave out.
        shard_bytes: What a compressed shard may unpack to.
        storage: Options of the object store.

    Returns:
        A `Readable` of samples with `check` and `mapping`. `sequence_id=` and `steps=` of `sl.convert` make sequences.

    Raises:
        DatasetNotFoundError: No shard, or no such split.
        InvalidMetadataError: Energon's metadata, the mapping or the pattern cannot be used.
        CorruptFileError: A shard is cut off or damaged.

    Example:
        ```python
        sl.scan("shards", key=r"(?P<episode>.*)_(?P<step>\d+)")
        sl.convert("shards", "data/arm", key=r"(?P<ep>.*)_(?P<t>\d+)", sequence_id="ep", steps="t")
        ```
    """
    splits = [split] if isinstance(split, str) else split
    place = look(absolute(location), storage=storage, split=splits)
    surveyed = survey(open_store(place.root, storage=storage), place.shards, limit=shard_bytes)
    declared = None if map is None else wanted(map)
    pattern = None if key is None else re.compile(key)
    columns = columns_of(
        surveyed, declared=declared, without=without, pattern=pattern, values=_values(surveyed, declared or {})
    )
    schema = columns.schema()
    return TarDataset(
        root=place.root,
        schema=schema,
        parts=list(_shards(surveyed, columns, schema)),
        place=place,
        survey=surveyed,
        columns=columns,
        storage=storage,
    )


def _values(surveyed: TarSurvey, declared: Mapping[str, Wanted]) -> dict[str, list[Any]]:
    """The values of declared fields of JSON in all samples."""
    values: dict[str, list[Any]] = {}
    for source in {one.source for one in declared.values() if "/" in one.source}:
        ending, _, path = source.partition("/")
        values[source] = []
        if not is_json(ending):
            continue  # told where columns are chosen
        for shard in surveyed.shards:
            if ending not in shard.files:
                continue
            starts, sizes = (part[shard.files[ending][0] >= 0] for part in shard.files[ending])
            for data in shard.opened().ranges(starts, starts + sizes):
                values[source].append(field_of(bytes(data), path.split("/"), shard.name))
    return values


def _shards(surveyed: TarSurvey, columns: TarColumns, schema: Schema) -> Iterator[ScannedShard]:
    described = json.dumps([schema.to_json(), columns.pattern and columns.pattern.pattern], sort_keys=True)
    for number, shard in enumerate(surveyed.shards):
        roles = [[name, one.role, one.endings, one.path] for name, one in columns.chosen.items()]
        state = repr([shard.digest, shard.split, described, roles, number]).encode()
        yield ScannedShard(
            key=f"{shard.name}#{hashlib.sha256(state).hexdigest()[:16]}",
            rows=len(shard.keys),
            nbytes=int(shard.sizes.sum()),
            reader=partial(TarReader, shard, columns, schema.arrow),
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TarDataset(ScannedDataset):
    """Scanned tar shards: a `Readable` of samples, `Checked`, `SaysMapping`, `HasStorage` and picklable.

    Attributes:
        place: Which shards there are.
        survey: What was learned of them.
        columns: How columns are made of files.
        storage: Options of the store; never printed.
    """

    place: ShardPlace
    survey: TarSurvey
    columns: TarColumns
    storage: Mapping[str, str] | None = field(default=None, repr=False)

    @property
    def allow_outside(self) -> bool:
        """False: rows name no files."""
        return False

    def mapping(self) -> Sequence[Mapped]:
        """What became of the files, by their endings."""
        return list(self.columns.mapping)

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What only this format knows: entries that are no files, scattered samples, Energon's counts and indexes.

        From depth `rows` on, every cell is decoded.
        """
        yield from self.survey.findings
        store = open_store(self.place.root, storage=self.storage)
        for named, shard in zip(self.place.shards, self.survey.shards, strict=True):
            whole_count = named.count is None or named.without
            if not whole_count and named.count != len(shard.keys):
                text = f"Energon's metadata say {named.count} samples, the shard has {len(shard.keys)}"
                yield Finding(code="webdataset-count", severity="error", message=text, location=shard.name)
            if not named.without and (data := offsets_beside(store, named.name)) is not None:
                yield from _offsets(data, shard)
            if depth != "metadata":
                yield from self._decoded(shard)

    def _decoded(self, shard: TarShard) -> Iterator[Finding]:
        decoding = [name for name, one in self.columns.chosen.items() if one.role not in {"bytes", "frames"}]
        with closing(TarReader(shard, self.columns, self.schema.arrow)) as reader:
            for name in decoding:
                for row in range(len(shard.keys)):
                    try:
                        list(reader.batches([name], rows=np.array([row], np.int64)))
                    except SeqlakeError as error:
                        yield Finding(
                            code="webdataset-cell",
                            severity="error",
                            message=str(error),
                            location=shard.name,
                            column=name,
                        )
                        break


def _offsets(data: bytes, shard: TarShard) -> Iterator[Finding]:
    """Whether Energon's index of a shard names the samples that are there."""
    text = ""
    if len(data) % 8 or len(data) < 8 * len(shard.begins):
        text = f"Energon's index has {len(data)} bytes for {len(shard.begins)} samples"
    else:
        said = np.frombuffer(data, "<u8").astype(np.int64)[: len(shard.begins)]
        wrong = np.flatnonzero(said != shard.begins)
        if len(wrong):
            at = int(wrong[0])
            text = f"Energon's index says that sample {at} begins at byte {said[at]}; it begins at {shard.begins[at]}"
    if text:
        yield Finding(code="webdataset-index", severity="error", message=text, location=shard.name)

"""A version record: one JSON object of the log, written once and never changed."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.files.checksums import digest_of, seal
from seqlake.versions import names
from seqlake.versions.format import (
    FORMAT,
    UNSEALED,
    damaged,
    parse_time,
    refuse_requirements,
    refuse_unknown_format,
    stamp,
)
from seqlake.versions.state import SideEntry
from seqlake.versions.tags import is_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


_KEYS = frozenset(
    {
        *("format", "version", "transaction", "time", "operation", "writer", "rows"),
        *("add", "remove", "schema", "mixtrain", "renamed", "side", "aborted", "oldest"),
    }
)
_ENTRY_KEYS = frozenset({"name", "rows", "nbytes", "columns", "statistics"})
_SIDE_KEYS = frozenset({"name", "of", "columns", "stored", "nbytes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """A shard of a version. Both texts are JSON, parsed only where needed.

    Attributes:
        name: As in `data/`; adopted shards keep the name they had.
        transaction: The one that added it to the log.
        rows: Its rows.
        nbytes: Its size; an adopted name must also have this size.
        columns: Physical to logical column name where they differ, null for dropped ones; "" for none.
        statistics: Scalar column -> [min, max, nulls]; "" where there are none.
    """

    name: str
    transaction: str
    rows: int
    nbytes: int
    columns: str = ""
    statistics: str = ""

    @property
    def mapping(self) -> dict[str, str | None]:
        """Physical to logical column name where they differ."""
        return json.loads(self.columns) if self.columns else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """One version; see `docs/reference/commits.md` for what each field means.

    `format` and `digest` are those of the bytes it was read from; what is written has the newest format.
    """

    version: int
    transaction: str
    time: datetime
    operation: str
    writer: str
    rows: int
    add: tuple[ShardEntry, ...] = ()
    remove: tuple[str, ...] = ()
    schema: bytes | None = None
    mixtrain: Mapping[str, Any] | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    side: tuple[SideEntry, ...] = ()
    aborted: tuple[str, ...] = ()
    oldest: int | None = None
    previous: str = ""
    requires: tuple[str, ...] = ()
    tags: Mapping[str, int | None] = field(default_factory=dict)
    message: str | None = None
    format: int = field(default=FORMAT, compare=False)
    digest: str = field(default="", compare=False)

    def encode(self) -> bytes:
        """The bytes of the file, sealed."""
        document: dict[str, Any] = {
            "format": FORMAT,
            "version": self.version,
            "transaction": self.transaction,
            "time": stamp(self.time),
            "operation": self.operation,
            "writer": self.writer,
            "rows": self.rows,
        }
        rest = {
            "requires": list(self.requires),
            "add": list(map(_encode_entry, self.add)),
            "remove": list(self.remove),
            "schema": None if self.schema is None else base64.b64encode(self.schema).decode("ascii"),
            "mixtrain": None if self.mixtrain is None else dict(self.mixtrain),
            "renamed": dict(self.renamed),
            "side": list(map(encode_side, self.side)),
            "aborted": list(self.aborted),
            "oldest": self.oldest,
            "tags": dict(self.tags),
            "message": self.message,
            "previous": self.previous or None,
        }
        document |= {key: value for key, value in rest.items() if value is not None and value not in ([], {})}
        if self.mixtrain is not None:
            document["mixtrain"] = dict(self.mixtrain)
        return seal(document)


def parse(data: bytes, /, *, version: int, path: str) -> VersionRecord:
    """Read a record.

    Unknown keys are skipped where the digest shows that the writer wrote them; in a record without one they may be
    known keys that rotted.

    Args:
        data: The bytes of the file.
        version: The number in its name, which it must repeat.
        path: Where it lies, for messages.

    Raises:
        UnsupportedVersionError: A `format`, or something that it `requires`, which this package does not know.
        DamagedTableError: Not a record, one whose bytes changed, or one that names what no writer of ours would name.
    """
    document = json_object(data, path=path)
    number = refuse_unknown_format(document.get("format"), path=path)
    if number == UNSEALED:
        digest = hashlib.sha256(data).hexdigest()
        _refuse_unknown_keys(document, path=path)
    else:
        digest = digest_of(data) or ""
        if not digest:
            raise damaged(path, "its bytes are not those that its digest was made of")
        if "requires" in document:
            refuse_requirements(document["requires"], path=path)
    try:
        record = _parse(document, number, digest)
    except (KeyError, TypeError, ValueError, binascii.Error, RecursionError, OverflowError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error
    if record.version != version:
        raise damaged(path, f"it says version {record.version}")
    return record


def json_object(data: bytes, /, *, path: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        DamagedTableError: It is none.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is not JSON ({error})") from error
    if not isinstance(document, dict):
        raise damaged(path, "it is not a JSON object")
    return document


def _refuse_unknown_keys(document: dict[str, Any], *, path: str) -> None:
    """In a record without a digest an unknown key may be a known one with a changed letter."""
    unknown = set(document) - _KEYS
    for kind, known in (("add", _ENTRY_KEYS), ("side", _SIDE_KEYS)):
        items = document.get(kind)
        for item in items if isinstance(items, list) else ():
            unknown |= set(item) - known if isinstance(item, dict) else set()
    if unknown:
        listed = ", ".join(map(repr, sorted(unknown)[:5]))
        raise damaged(path, f"it has keys that no record of format {UNSEALED} has ({listed})")


def _parse(document: dict[str, Any], number: int, digest: str) -> VersionRecord:
    transaction = _transaction(document["transaction"])
    schema = document.get("schema")
    mixtrain = document.get("mixtrain")
    oldest = document.get("oldest")
    return VersionRecord(
        version=count(document["version"]),
        transaction=transaction,
        time=parse_time(document["time"]),
        operation=_text(document["operation"]),
        writer=_text(document["writer"]),
        rows=count(document["rows"]),
        add=tuple(map(partial(_parse_entry, transaction=transaction), _list(document, "add"))),
        remove=tuple(map(_shard_name, _list(document, "remove"))),
        schema=None if schema is None else parse_schema(schema),
        mixtrain=None if mixtrain is None else _object(mixtrain),
        renamed={_text(old): _text(new) for old, new in _object(document.get("renamed", {})).items()},
        side=tuple(map(parse_side, _list(document, "side"))),
        aborted=tuple(map(_transaction, _list(document, "aborted"))),
        oldest=None if oldest is None else count(oldest),
        previous=_text(document.get("previous", "")),
        requires=tuple(_list(document, "requires")),
        tags={
            _tag(name): None if number is None else count(number)
            for name, number in _object(document.get("tags", {})).items()
        },
        message=None if document.get("message") is None else _text(document["message"]),
        format=number,
        digest=digest,
    )


def parse_schema(text: object) -> bytes:
    """An Arrow schema as records and checkpoints carry it.

    Raises:
        ValueError: It is none.
    """
    data = base64.b64decode(_text(text), validate=True)
    try:
        pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, TypeError) as error:
        raise ValueError(f"an Arrow schema was expected ({error})") from error
    return data


def _encode_entry(entry: ShardEntry) -> dict[str, Any]:
    item: dict[str, Any] = {"name": entry.name, "rows": entry.rows, "nbytes": entry.nbytes}
    if entry.columns:
        item["columns"] = json.loads(entry.columns)
    if entry.statistics:
        item["statistics"] = json.loads(entry.statistics)
    return item


def _parse_entry(item: dict[str, Any], transaction: str) -> ShardEntry:
    item = _object(item)
    columns = _object(item.get("columns", {}))
    return ShardEntry(
        name=_shard_name(item["name"]),
        transaction=transaction,
        rows=count(item["rows"]),
        nbytes=count(item["nbytes"]),
        columns=encode_mapping({_text(k): None if v is None else _text(v) for k, v in columns.items()}),
        statistics=json.dumps(item["statistics"], ensure_ascii=False) if item.get("statistics") else "",
    )


def parse_tags(tags: object) -> dict[str, int]:
    """The names of versions as checkpoints carry them.

    Raises:
        ValueError: They are none.
    """
    return {_tag(name): count(number) for name, number in _object(tags).items()}


def _tag(name: object) -> str:
    return _checked(name, is_name, "a tag")


def encode_mapping(mapping: Mapping[str, str | None]) -> str:
    """A column mapping as an entry carries it."""
    return json.dumps(dict(sorted(mapping.items())), ensure_ascii=False) if mapping else ""


def encode_side(side: SideEntry) -> dict[str, Any]:
    """A side shard as records and checkpoints have it."""
    item: dict[str, Any] = {"name": side.name, "of": side.of, "columns": list(side.columns)}
    stored = {logical: physical for logical, physical in side.columns.items() if logical != physical}
    if stored:
        item["stored"] = stored
    if side.nbytes:
        item["nbytes"] = side.nbytes
    if side.sha256:
        item["sha256"] = side.sha256
    return item


def parse_side(item: dict[str, Any]) -> SideEntry:
    """The side shard back.

    Raises:
        ValueError, KeyError, TypeError: It is none.
    """
    stored = _object(_object(item).get("stored", {}))
    return SideEntry(
        name=_checked(item["name"], names.side_owner, "a side shard's name"),
        of=_shard_name(item["of"]),
        columns={_text(column): _text(stored.get(column, column)) for column in _list(item, "columns")},
        nbytes=count(item.get("nbytes", 0)),
        sha256=_text(item.get("sha256", "")),
    )


def _checked(value: Any, accepts: Any, what: str) -> str:
    if not accepts(value):
        raise ValueError(f"{what} was expected, found {value!r}")
    return str(value)


def _shard_name(value: Any) -> str:
    return _checked(value, names.is_shard_name, "a shard's name")


def _transaction(value: Any) -> str:
    return _checked(value, names.is_transaction, "a transaction id")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"text was expected, found {value!r}")  # noqa: TRY004 - one error for all bad fields
    return value


def _list(item: dict[str, Any], key: str) -> list[Any]:
    items = item.get(key, [])
    if not isinstance(items, list):
        raise ValueError(f"a list was expected, found {items!r}")  # noqa: TRY004 - one error for all bad fields
    return items


def count(value: Any, /) -> int:
    """A number of rows, bytes or versions.

    Raises:
        ValueError: It is none.
    """
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"a count was expected, found {value!r}")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"an object was expected, found {value!r}")  # noqa: TRY004 - one error for all bad fields
    return value

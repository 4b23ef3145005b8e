"""A version record: one JSON object of the log, written once and never changed."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from seqlake.errors import DamagedTableError, UnsupportedVersionError
from seqlake.tables.standalone import names

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1
OPERATIONS = ("create", "adopt", "append", "rewrite", "delete", "upsert", "evolve", "metadata", "rollback", "collect")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
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
class SideEntry:
    """Columns beside a shard, its rows in the shard's order.

    Attributes:
        name: Of the side shard, below `_seqlake/side/`.
        of: The shard's name.
        columns: Logical column -> the column of the side shard that holds it.
        nbytes: Its size; 0 where the record does not say.
    """

    name: str
    of: str
    columns: Mapping[str, str]
    nbytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One version; see `docs/reference/commits.md` for what each field means."""

    version: int
    transaction: str
    time: datetime
    operation: str
    writer: str
    rows: int
    add: tuple[Entry, ...] = ()
    remove: tuple[str, ...] = ()
    schema: bytes | None = None
    mixtrain: Mapping[str, Any] | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    side: tuple[SideEntry, ...] = ()
    aborted: tuple[str, ...] = ()
    oldest: int | None = None

    def encode(self) -> bytes:
        """The bytes of the file."""
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
            "add": [_encode_entry(entry) for entry in self.add],
            "remove": list(self.remove),
            "schema": None if self.schema is None else base64.b64encode(self.schema).decode("ascii"),
            "mixtrain": None if self.mixtrain is None else dict(self.mixtrain),
            "renamed": dict(self.renamed),
            "side": [encode_side(side) for side in self.side],
            "aborted": list(self.aborted),
            "oldest": self.oldest,
        }
        document |= {key: value for key, value in rest.items() if value is not None and value not in ([], {})}
        if self.mixtrain is not None:
            document["mixtrain"] = dict(self.mixtrain)
        return (json.dumps(document, ensure_ascii=False, separators=(", ", ": ")) + "\n").encode()


def stamp(time: datetime) -> str:
    """A time as records and markers have it: UTC with microseconds and a Z."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: object) -> datetime:
    """The time back.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(text, str):
        raise ValueError(f"a time was expected, found {text!r}")  # noqa: TRY004 - one error for all bad fields
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def parse(data: bytes, /, *, version: int, path: str) -> Record:
    """Read a record; unknown keys are ignored.

    Args:
        data: The bytes of the file.
        version: The number in its name, which it must repeat.
        path: Where it lies, for messages.

    Raises:
        UnsupportedVersionError: A `format` that this package does not know.
        DamagedTableError: Not a record, or one that names what no writer of ours would name.
    """
    try:
        document = json.loads(data)
    except ValueError as error:
        raise damaged(path, f"it is not JSON ({error})") from error
    if not isinstance(document, dict):
        raise damaged(path, "it is not a JSON object")
    refuse_unknown_format(document.get("format"), path=path)
    try:
        record = _parse(document)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error
    if record.version != version:
        raise damaged(path, f"it says version {record.version}")
    return record


def refuse_unknown_format(number: object, *, path: str) -> None:
    """Raise unless these bytes are of the format this package reads.

    Raises:
        UnsupportedVersionError: A format newer than ours.
        DamagedTableError: No format at all.
    """
    if type(number) is int and number > FORMAT:
        raise UnsupportedVersionError(
            f"{path} has format {number}; this seqlake reads format {FORMAT}.", path=path, hint="Update seqlake."
        )
    if number != FORMAT or type(number) is not int:
        raise damaged(path, f"expected format {FORMAT}, found {number!r}")


def damaged(path: str, why: str) -> DamagedTableError:
    """The error for bytes of ours that cannot be used."""
    return DamagedTableError(
        f"{path} cannot be used: {why}.",
        path=path,
        hint="Something other than seqlake changed the table's log; restore the file from a backup or a copy.",
    )


def _parse(document: dict[str, Any]) -> Record:
    transaction = _checked(document["transaction"], names.is_transaction, "a transaction id")
    schema = document.get("schema")
    mixtrain = document.get("mixtrain")
    oldest = document.get("oldest")
    return Record(
        version=_count(document["version"]),
        transaction=transaction,
        time=parse_time(document["time"]),
        operation=_text(document["operation"]),
        writer=_text(document["writer"]),
        rows=_count(document["rows"]),
        add=tuple(_parse_entry(item, transaction) for item in document.get("add", ())),
        remove=tuple(_checked(name, names.is_shard_name, "a shard's name") for name in document.get("remove", ())),
        schema=None if schema is None else base64.b64decode(_text(schema), validate=True),
        mixtrain=None if mixtrain is None else _object(mixtrain),
        renamed={_text(old): _text(new) for old, new in _object(document.get("renamed", {})).items()},
        side=tuple(parse_side(item) for item in document.get("side", ())),
        aborted=tuple(_checked(t, names.is_transaction, "a transaction id") for t in document.get("aborted", ())),
        oldest=None if oldest is None else _count(oldest),
    )


def _encode_entry(entry: Entry) -> dict[str, Any]:
    item: dict[str, Any] = {"name": entry.name, "rows": entry.rows, "nbytes": entry.nbytes}
    if entry.columns:
        item["columns"] = json.loads(entry.columns)
    if entry.statistics:
        item["statistics"] = json.loads(entry.statistics)
    return item


def _parse_entry(item: dict[str, Any], transaction: str) -> Entry:
    item = _object(item)
    columns = _object(item.get("columns", {}))
    return Entry(
        name=_checked(item["name"], names.is_shard_name, "a shard's name"),
        transaction=transaction,
        rows=_count(item["rows"]),
        nbytes=_count(item["nbytes"]),
        columns=encode_mapping({_text(k): None if v is None else _text(v) for k, v in columns.items()}),
        statistics=json.dumps(item["statistics"], ensure_ascii=False) if item.get("statistics") else "",
    )


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
    return item


def parse_side(item: dict[str, Any]) -> SideEntry:
    """The side shard back.

    Raises:
        ValueError, KeyError, TypeError: It is none.
    """
    stored = _object(_object(item).get("stored", {}))
    return SideEntry(
        name=_checked(item["name"], names.side_owner, "a side shard's name"),
        of=_checked(item["of"], names.is_shard_name, "a shard's name"),
        columns={_text(column): _text(stored.get(column, column)) for column in item["columns"]},
        nbytes=_count(item.get("nbytes", 0)),
    )


def _checked(value: Any, accepts: Any, what: str) -> str:
    if not accepts(value):
        raise ValueError(f"{what} was expected, found {value!r}")
    return str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"text was expected, found {value!r}")  # noqa: TRY004 - one error for all bad fields
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"a count was expected, found {value!r}")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"an object was expected, found {value!r}")  # noqa: TRY004 - one error for all bad fields
    return value

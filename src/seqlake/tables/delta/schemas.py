"""Columns in a Delta log: field by field, so that what others noted on a field stays; and how they may change."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from seqlake import plugins
from seqlake.errors import SchemaMismatchError
from seqlake.tables._lakes import types

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from seqlake.tables._lakes.engine import LakeProposal

_NAME = "delta.columnMapping.physicalName"
_ID = "delta.columnMapping.id"
_MODE = "delta.columnMapping.mode"
_LARGEST = "delta.columnMapping.maxColumnId"


def fields_of(table: Any, /) -> list[dict[str, Any]]:
    """The fields of the table's schema, as the log has them."""
    fields: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
    return fields


def physical(fields: Sequence[Mapping[str, Any]], /) -> dict[str, str]:
    """Logical column -> its name in the files, where column mapping has given it another."""
    named = {field["name"]: field.get("metadata", {}).get(_NAME) for field in fields}
    return {name: stored for name, stored in named.items() if stored is not None and stored != name}


def renamed_inside(fields: Sequence[Mapping[str, Any]], /) -> list[str]:
    """The columns with a struct whose inner fields have other names in the files, which only the outer ones may."""
    return [field["name"] for field in fields if _renames(field["type"])]


def _renames(kind: Any) -> bool:
    if not isinstance(kind, dict):
        return False
    inner = kind.get("fields", ())
    if physical(inner):
        return True
    inside = [field["type"] for field in inner] + [kind.get(key) for key in ("elementType", "keyType", "valueType")]
    return any(map(_renames, inside))


def is_mapped(table: Any, /) -> bool:
    """Whether names of columns and names in files are two things, so that columns can be renamed and dropped."""
    return table.metadata().configuration.get(_MODE, "none") in {"name", "id"}


def metadata_action(table: Any, proposal: LakeProposal, /) -> dict[str, Any] | None:
    """The table's metadata after a change; None where it stays."""
    if proposal.schema is None and proposal.mixtrain is None:
        return None
    metadata = table.metadata()
    configuration = dict(metadata.configuration)
    if proposal.mixtrain is not None:
        configuration[types.PROPERTY] = proposal.mixtrain
    fields = fields_of(table) if proposal.schema is None else evolved(table, proposal)
    if is_mapped(table):
        ids = [int(field["metadata"].get(_ID, 0)) for field in fields]
        configuration[_LARGEST] = str(max([int(configuration.get(_LARGEST, 0)), *ids]))
    return {
        "id": str(metadata.id),
        "name": metadata.name,
        "description": metadata.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}, ensure_ascii=False),
        "partitionColumns": list(metadata.partition_columns),
        "configuration": configuration,
        "createdTime": metadata.created_time,
    }


def evolved(table: Any, proposal: LakeProposal, /) -> list[dict[str, Any]]:
    """The fields after a change of the schema.

    Raises:
        SchemaMismatchError: A change that Delta cannot make without rewriting every file.
    """
    assert proposal.schema is not None
    before = {field["name"]: field for field in fields_of(table)}
    after = {field["name"]: field for field in _fields(proposal.schema)}
    free = proposal.replaces_all
    _refuse_partition(table, after)
    if not free:
        _refuse_types(before, after, proposal.renamed)
        if not is_mapped(table):
            _refuse_names(before, after, proposal.renamed)
    old_name = {new: old for old, new in proposal.renamed.items()}
    mapped = is_mapped(table)
    largest = int(table.metadata().configuration.get(_LARGEST, 0))
    fields = []
    for name, field in after.items():
        known = before.get(old_name.get(name, name if name not in proposal.renamed else ""))
        metadata = dict(known["metadata"]) if known is not None else {}
        if mapped and known is None:
            largest += 1
            metadata |= {_ID: largest, _NAME: f"col-{uuid.uuid4()}"}
        # A field whose type stays is repeated as it was, with what others noted inside it.
        kind = known["type"] if known is not None and _same(known["type"], field["type"]) else field["type"]
        fields.append({"name": name, "type": kind, "nullable": field["nullable"], "metadata": metadata})
    return fields


def _fields(schema: pa.Schema) -> list[dict[str, Any]]:
    deltalake = plugins.require("deltalake", extra="delta")
    fields: list[dict[str, Any]] = json.loads(deltalake.Schema.from_arrow(schema).to_json())["fields"]
    return fields


def _same(one: Any, other: Any) -> bool:
    """Whether two types of the log are one, but for nullability inside lists and notes on inner fields."""
    if isinstance(one, dict) and isinstance(other, dict):
        if one.get("type") != other.get("type"):
            return False
        if one["type"] == "array":
            return _same(one["elementType"], other["elementType"])
        if one["type"] == "struct":
            mine, theirs = one["fields"], other["fields"]
            return len(mine) == len(theirs) and all(
                a["name"] == b["name"] and _same(a["type"], b["type"]) for a, b in zip(mine, theirs, strict=True)
            )
    return bool(one == other)


def _refuse_names(before: Mapping[str, Any], after: Mapping[str, Any], renamed: Mapping[str, str]) -> None:
    gone = [name for name in before if name not in after]
    if gone or renamed:
        pairs = ", ".join(f"{old!r} to {new!r}" for old, new in renamed.items()) or ", ".join(map(repr, gone))
        raise SchemaMismatchError(
            f"Delta cannot {'rename' if renamed else 'drop'} a column ({pairs}) without rewriting every file, because "
            "this table has no column mapping.",
            hint="Pass rewrite=True to write every shard anew in one commit.",
        )
    required = [name for name, field in after.items() if name not in before and not field["nullable"]]
    if required:
        raise SchemaMismatchError(f"A new column is nullable, because old rows lack it; found {', '.join(required)}.")


def _refuse_types(before: Mapping[str, Any], after: Mapping[str, Any], renamed: Mapping[str, str]) -> None:
    changed = [
        name
        for name, field in before.items()
        if (new := renamed.get(name, name)) in after and not _same(field["type"], after[new]["type"])
    ]
    if changed:
        raise SchemaMismatchError(
            f"Delta cannot change the type of {', '.join(map(repr, changed))} without rewriting every file.",
            hint="Pass rewrite=True to write every shard anew in one commit.",
        )


def _refuse_partition(table: Any, after: Mapping[str, Any]) -> None:
    lost = [name for name in table.metadata().partition_columns if name not in after]
    if lost:
        raise SchemaMismatchError(f"The table is partitioned by {', '.join(lost)}, which must keep name and place.")

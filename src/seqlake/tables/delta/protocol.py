"""What a table's protocol asks of a writer; a table that asks for more than we do is refused, never damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seqlake.errors import ReadOnlyError, UnsupportedVersionError
from seqlake.tables.delta import schemas

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.tables._lakes.engine import LakeProposal

_READ = {
    "columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening",
    "typeWidening-preview",
}  # fmt: skip
_WRITTEN = {
    *_READ, "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "identityColumns",
    "domainMetadata",
}  # fmt: skip
_MOST_READER, _MOST_WRITER = 3, 7
_CHECKPOINT = "delta.checkpointInterval"


def refuse_to_read(protocol: Any, /, *, root: str) -> None:
    """Raise `UnsupportedVersionError` for a table whose rows we would not read right."""
    unknown = sorted(set(protocol.reader_features or ()) - _READ)
    if unknown or protocol.min_reader_version > _MOST_READER:
        raise UnsupportedVersionError(
            f"{root} has Delta reader version {protocol.min_reader_version}"
            f"{' with ' + ', '.join(unknown) if unknown else ''}, which seqlake does not read.",
            path=root,
            hint="Write it with an engine that knows the feature into a table without it.",
        )


def refuse_inner_names(columns: Sequence[str], /, *, root: str) -> None:
    """Raise `UnsupportedVersionError` for structs whose fields have other names in the files: they would be null."""
    if columns:
        raise UnsupportedVersionError(
            f"{root} has column mapping inside {', '.join(columns)}, which seqlake does not read.",
            path=root,
            hint="Write the table with an engine that knows column mapping into one without it.",
        )


def refuse_to_write(table: Any, proposal: LakeProposal, /, *, root: str) -> None:
    """Raise `ReadOnlyError` for a change that the table's features forbid, or ask more for than we do."""
    reasons = list(_reasons(table, proposal))
    if reasons:
        raise ReadOnlyError(
            f"{root} cannot be changed by seqlake: {'; '.join(reasons)}. This change was not committed.",
            path=root,
            hint="Make this change with deltalake or Spark; seqlake reads the table all the same.",
        )


def _reasons(table: Any, proposal: LakeProposal) -> Iterator[str]:
    protocol, configuration = table.protocol(), table.metadata().configuration
    unknown = sorted(set(protocol.writer_features or ()) - _WRITTEN)
    if unknown or protocol.min_writer_version > _MOST_WRITER:
        yield f"it asks writers for {', '.join(unknown) or f'version {protocol.min_writer_version}'}"
    yield from _asked(configuration, proposal)
    noted = {key for field in schemas.fields_of(table) for key in field.get("metadata", {})}
    for key, what in (
        ("delta.invariants", "an invariant"),
        ("delta.generationExpression", "a generated column"),
        ("delta.identity.start", "an identity column"),
    ):
        if key in noted and proposal.add:
            yield f"{what} must be checked for every row"
    if proposal.add and schemas.is_mapped(table):
        yield "its files have names of columns of their own (column mapping)"


def _asked(configuration: Mapping[str, str], proposal: LakeProposal) -> Iterator[str]:
    """What the table's properties forbid."""
    if _yes(configuration.get("delta.appendOnly")) and proposal.remove:
        yield "delta.appendOnly lets no row leave"
    if _yes(configuration.get("delta.enableChangeDataFeed")) and proposal.add and proposal.remove:
        yield "its change data feed must list every changed row"
    if proposal.add and (named := sorted(key for key in configuration if key.startswith("delta.constraints."))):
        yield f"{', '.join(named)} must be checked for every row"
    for key in ("delta.enableRowTracking", "delta.enableInCommitTimestamps"):
        if _yes(configuration.get(key)):
            yield f"{key} must be kept up"


def checkpoint_is_due(table: Any, number: int, /) -> bool:
    """Whether a checkpoint belongs after this version: every 100 where the table does not say."""
    interval = table.metadata().configuration.get(_CHECKPOINT) or "100"
    return number > 0 and number % max(int(interval) if interval.isdecimal() else 100, 1) == 0


def _yes(value: str | None) -> bool:
    return (value or "").lower() == "true"

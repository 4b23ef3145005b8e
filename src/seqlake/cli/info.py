"""`seqlake info`: say what a dataset holds."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from typing import Any

import click

from seqlake.cli import _options
from seqlake.cli._output import Output, cell_text, output_options, size
from seqlake.errors import in_line

_NAMED = 8  # of other places; the JSON has all of them


@click.command()
@_options.source
@_options.version
@output_options
def command(source: str, *, version: int | str | None, output: Output) -> None:
    """Say what DATASET holds: sequences, columns, bytes, shards, and whether windows read it without decoding.

    Of files of media it says whether they stand better in the rows or beside them, by the sizes of some.
    """
    from seqlake.dataset.reading.inventory import elsewhere, hints, media_places

    selection = _options.opened(source, version=version)
    places = elsewhere(selection)
    shards = selection.shards()
    facts: dict[str, Any] = {
        "location": source,
        "kind": type(selection).__name__.lower(),
        "rows": len(selection),
        "shards": len(shards),
        "nbytes": sum(shard.nbytes for shard in shards),
        "columns": {name: selection.schema[name].category for name in selection.schema.names},
        "fingerprint": selection.fingerprint,
        **(_of_table(selection) or _of_format(selection)),
        **_flatness(selection),
        "elsewhere": places,
        "hints": hints(selection),
        "media": {name: place.to_json() for name, place in media_places(selection).items()},
    }
    unit = "samples" if selection.schema.id is None else "sequences"
    lines = [repr(selection), "", f"{facts['rows']} {unit} in {facts['shards']} shards, {size(facts['nbytes'])}"]
    if facts["not_flat"]:
        lines.append(
            f"{facts['shards_not_flat']} shards are decoded before training ({', '.join(facts['not_flat'])}): "
            f"`seqlake repack {source} OUT` makes them direct"
        )
    if facts.get("metadata"):
        lines.append("metadata: " + ", ".join(f"{key}={cell_text(value)}" for key, value in facts["metadata"].items()))
    if places:
        named = [f"{count} in {place}" for place, count in islice(places.items(), _NAMED)]
        more = f" and {len(places) - _NAMED} places more" if len(places) > _NAMED else ""
        lines.append(f"references to other places: {', '.join(named)}{more}")
    lines += [f"{in_line(name)}: {in_line(hint)}" for name, hint in facts["hints"].items()]
    lines += [_media_line(source, name, place) for name, place in facts["media"].items()]
    lines += [f"note: {note}" for note in facts.get("notes", ())]
    output.document(facts, text="\n".join(lines))


def _media_line(source: str, name: str, place: dict[str, Any]) -> str:
    """Where the files of a column stand, and the command that puts them where they stand better."""
    now, better = "inline" if place["inline"] else "files", place["better"]
    files = "1 file" if place["files"] == 1 else f"{place['files']} files"
    stands = "in the rows" if place["inline"] else "as files"
    line = f"{in_line(name)}: {stands}, {size(place['mean'])} each ({files} looked at)"
    if better in {now, "either"}:
        return f"{line}, which is well: {place['why']}"
    verb = "--inline" if better == "inline" else "--extract"
    where = "in the rows" if better == "inline" else "as files"
    return f"{line}, better {where} (`seqlake relocate {in_line(source)} {verb} {in_line(name)}`): {place['why']}"


def _of_table(selection: Any) -> dict[str, Any]:
    from seqlake import abilities

    whole = abilities.ability(selection, abilities.OfATable)
    if whole is None:
        return {}
    notes = []
    folder = abilities.ability(whole.table, abilities.HasStrangers)
    strangers = [] if folder is None else folder.strangers()
    lake = abilities.ability(whole.table.snapshot(whole.version), abilities.MayBeUntyped)
    if lake is not None and not lake.is_typed:
        notes.append("untyped: the table has no property mixtrain; `seqlake init` makes it a dataset")
    if strangers:
        notes.append(f"{len(strangers)} files in data/ were put there by others; `seqlake adopt` takes them in")
    if folder is not None and folder.metadata_edited():
        notes.append("mixtrain.json was edited by hand and is not used; `seqlake adopt` takes it in")
    if whole.unfolded:
        why = "; ".join(whole.unfolded.lines())
        notes.append(f"readers of data/*.parquet alone see other columns ({why}); `seqlake fold` writes them anew")
    return {
        "version": whole.version.id,
        "metadata": dict(selection.schema.metadata.extra),
        "unfolded": whole.unfolded.to_json(),
        "notes": notes,
    }


def _of_format(selection: Any) -> dict[str, Any]:
    """What a folder of another format says of itself without its rows being read."""
    from seqlake.abilities import Checked, ability

    checked = ability(selection, Checked)
    findings = () if checked is None else checked.check("metadata")
    notes = [f"{f.severity}, {f.location}: {f.message}{f' (column {f.column})' if f.column else ''}" for f in findings]
    return {"notes": notes} if notes else {}


def _flatness(selection: Any) -> dict[str, Any]:
    """Which temporal columns of how many shards need decoding; opens each shard's footer."""
    wanted = [n for n in selection.schema.names if selection.schema[n].category == "temporal"]
    columns: set[str] = set()
    count = 0
    for shard in selection.shards():
        with closing(shard.open()) as reader:
            decoded = {name for name in wanted if reader.flat(name) is None}
        columns |= decoded
        count += bool(decoded)
    return {"not_flat": sorted(columns), "shards_not_flat": count}

"""`seqlake convert`: turn any dataset that seqlake reads into another one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seqlake import plugins
from seqlake.abilities import Creates, ability
from seqlake.cli import _format_options, _options, _output

if TYPE_CHECKING:
    from seqlake.conversion.convert import Conversion
    from seqlake.executors import Executor


@click.command()
@click.argument("source", metavar="SRC", shell_complete=_options.complete_paths)
@click.argument("out", metavar="DST", shell_complete=_options.complete_paths)
@click.option("--from", "from_", metavar="FORMAT", help="What SRC is (default: found out).")
@click.option("--to", metavar="FORMAT", help="What to write (default: a Mixtrain dataset).")
@click.option(
    "--option",
    "options",
    metavar="NAME=VALUE",
    multiple=True,
    help="An option of the format that is written, with --to, or else read. Repeatable.",
)
@click.option(
    "--map",
    "mapped",
    metavar="FILE|COLUMN=SOURCE",
    multiple=True,
    help="What becomes of what: a JSON or TOML file, or one column. Repeatable.",
)
@click.option(
    "--images",
    type=click.Choice(["bytes", "video", "files"]),
    help="What becomes of images in rows, one a step: they stay, become H.264 videos, or a file each.",
)
@click.option("--fps", type=float, help="Steps per second, where the source tells none.")
@click.option("--sequence-id", metavar="COLUMN", help="Of samples: names the sequence that each belongs to.")
@click.option("--steps", metavar="COLUMN", help="Of samples: orders those of a sequence.")
@click.option(
    "--videos", metavar="[COLUMN=]PATH", multiple=True, help="With --steps: files as {episode}.mp4. Repeatable."
)
@click.option("--timestamps", metavar="COLUMN", help="With --steps: the time of each step.")
@click.option("--shards", type=click.Choice(["parquet", "lance", "vortex"]), help="Their format (default: as it is).")
@_options.executor
@click.option("--work", type=click.Path(path_type=Path), help="Where receipts lie (default: in the user's cache).")
@click.option("--fresh", is_flag=True, help="Begin anew: forget what an interrupted run has finished.")
@click.option("--adopt", is_flag=True, help="Take shards over as they are where they can be, without rewriting.")
@_options.where
@_options.commits
def command(
    source: str,
    out: str,
    *,
    to: str | None,
    where: str | None,
    on: Executor | None,
    work: Path | None,
    fresh: bool,
    dry_run: bool,
    output: _options.Output,
    **given: Any,
) -> None:
    """Convert SRC into DST. `import` and `export` are the same command.

    Run again after an interruption, the same command goes on where it was. At the end a report says what was mapped to
    what, and what was left out.
    """
    from seqlake.conversion.convert import executor_for, start_early
    from seqlake.executors import kept
    from seqlake.versions.messages import message

    to = None if to == "mixtrain" else to
    if to is not None and message() is not None:
        raise click.UsageError(f"A dataset of the format {to} has no versions, so none can carry a --message.")
    with kept(executor_for(on or "processes", None)) as executor:
        if not dry_run and not given["adopt"]:
            start_early(executor, source)
        try:
            conversion, count = _prepared(source, out, to=to, where=where, given=given)
        except TypeError as error:
            raise click.UsageError(str(error)) from None
        if dry_run:
            plan = conversion.rehearsed(work=True if work is None else work)
            output.document(plan.to_json(), text=str(plan))
            return
        written = conversion.run(executor, work=True if work is None else work, fresh=fresh, progress=output.progress)
    rows = count if written is None else len(written)
    unit = "samples" if conversion.planned.read.id is None else "sequences"
    if output.format == "table" and not output.quiet:
        _output.say("\n".join(["Columns:", *conversion.planned.report()]), err=True)
    said = conversion.planned.to_json()
    report = {name: said[name] for name in ("mapped", "dropped", "findings")}
    output.document({"rows": rows, "out": out, **report}, text=f"{rows} {unit} at {out}.")


def _prepared(
    source: str, out: str, *, to: str | None, where: str | None, given: dict[str, Any]
) -> tuple[Conversion, int]:
    """The conversion, and the rows of its source."""
    from seqlake.conversion.convert import prepare

    images, fps = given["images"], given["fps"]
    texts = _format_options.pairs("--option", given["options"])
    writing: dict[str, Any] = {}
    if to is not None:
        writes = ability(plugins.load("formats", to), Creates)
        known = {} if writes is None else plugins.options_of(writes.create)
        mine = {name: text for name, text in texts.items() if given["from_"] is None or name in known}
        texts = {name: text for name, text in texts.items() if name not in mine}
        writing = {} if writes is None else _format_options.typed(writes.create, mine, what=f"The format {to!r}")
        if fps is not None and "fps" in known:
            writing["fps"] = fps
    videos = [text if "=" in text.partition("{")[0] else f"video={text}" for text in given["videos"]]
    rows = {
        "sequence_id": given["sequence_id"],
        "steps": given["steps"],
        "videos": _format_options.pairs("--videos", videos) or None,
        "timestamps": given["timestamps"],
        "fps": fps if images != "video" and "fps" not in writing else None,
        "map": _format_options.mapping(given["mapped"]),
    }
    rows = {name: value for name, value in rows.items() if value is not None}
    if rows.keys() == {"fps"}:
        raise click.UsageError(
            "--fps is for --images video, for --steps, and for formats that are written with a rate."
        )
    selection = _opened(source, given["from_"], texts, rows)
    if where:
        selection = selection.where(where)
    ours = {"images": images, "fps": fps if images == "video" else None, "shards": given["shards"]}
    conversion = prepare(
        selection,
        out,
        to=to,
        ours={name: value for name, value in ours.items() if value is not None},
        adopt=given["adopt"],
        options=writing,
    )
    return conversion, len(selection)


def _opened(source: str, name: str | None, texts: dict[str, str], rows: dict[str, Any]) -> Any:
    """The rows of the source, as its format and the user show them."""
    from seqlake.dataset.opening import format_of, place_of, scan

    if name is None and not texts and not rows:
        return _options.opened(source, asks=False)
    if name in {None, "mixtrain"} and not texts and rows.keys() <= {"sequence_id", "steps"}:
        selection = _options.opened(source, asks=False)
        if selection.schema.id is not None and selection.schema.id != rows.get("sequence_id"):
            raise click.UsageError("--sequence-id and --steps are for samples; the rows of this source are sequences.")
        return scan(selection, **rows)
    known = name if name is not None else format_of(place_of(source), None)
    plug = None if known in {None, "parquet"} else plugins.load("formats", str(known))
    if texts and plug is None:
        raise click.UsageError(f"--option is for a format, and {source} is of none; name it with --from.")
    typed = {} if plug is None else _format_options.typed(plug.scan, texts, what=f"The format {known!r}")
    return scan(source, format=name, **_options.allowed(), **typed, **rows)

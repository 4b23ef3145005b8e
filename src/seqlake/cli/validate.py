"""`seqlake validate`: check a dataset against the format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from seqlake.cli import _options, _remote
from seqlake.cli._output import Output, output_options, say

if TYPE_CHECKING:
    from seqlake.executors import Executor
    from seqlake.protocols import Depth

DEPTHS = ("metadata", "rows", "files", "decode")


@click.command()
@_options.source
@_options.version
@click.option(
    "--depth",
    type=click.Choice(DEPTHS),
    default="files",
    show_default=True,
    help="How deep to look: each includes those before it.",
)
@click.option("--strict", is_flag=True, help="Warnings count as errors for the exit code.")
@_options.executor
@output_options
def command(
    source: str, *, version: int | str | None, depth: Depth, strict: bool, on: Executor | None, output: Output
) -> int:
    """Check DATASET against the format; prints every finding. Exit code 1 when there is an error.

    `metadata`: mixtrain.json, the schema, the table's log. `rows`: every cell, the checksum of every page. `files`:
    every file that a row names is opened and compared with what its column declares. `decode`: every frame, picture
    and sample is decoded.
    """
    from seqlake.dataset.validation import validate
    from seqlake.errors import DatasetNotFoundError
    from seqlake.files.locations import is_local

    if depth != "metadata" and not is_local(source):
        _remote.permit_rows(source, _options.opened(source, version=version))
    try:
        report = validate(source, depth=depth, version=version, on=on)
    except DatasetNotFoundError:
        # Perhaps somebody else's format, which is looked at as it is.
        report = validate(_options.opened(source, version=version), depth=depth, on=on)
    if output.format == "json":
        output.document(report.to_json(), text="")
    elif output.format == "table" and not output.quiet:
        for finding in report:
            say(str(finding))
        counts = f"{len(report.errors)} errors, {len(report.warnings)} warnings, {len(report.notes)} notes"
        say(f"{counts} at depth {depth}.", err=True)
    else:
        rows = [finding.to_json() for finding in report]
        output.rows(
            rows, key="code", columns=["code", "severity", "location", "sequence_id", "column", "step", "message"]
        )
    return 1 if report.errors or (strict and report.warnings) else 0

"""`seqlake view`: look at a dataset in the browser."""

from __future__ import annotations

import click

from seqlake.cli import _options
from seqlake.cli._output import Output, output_options


@click.command()
@_options.source
@click.argument("sequence_id", metavar="[ID]", required=False, shell_complete=_options.complete_ids)
@_options.version
@_options.where
@click.option("--host", default="127.0.0.1", help="What to bind to; others than loopback let other machines in.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0 for a free one.")
@click.option("--open/--no-open", "opens", default=True, help="Open the browser.")
@click.option("--no-token", is_flag=True, help="Ask for no secret; on loopback only.")
@output_options
def command(
    source: str,
    sequence_id: str | None,
    *,
    version: int | str | None,
    where: str | None,
    host: str,
    port: int,
    opens: bool,
    no_token: bool,
    output: Output,
) -> None:
    """Serve DATASET to a browser: filter it, see signals and films in step, find what is wrong, label.

    Nothing of the dataset changes until labels are committed. Ctrl-C ends it.
    """
    from seqlake.viewer.serving import view

    selection = _options.opened(source, version=version)
    if where is not None:
        selection.where(where)
    try:
        link = view(selection, sequence_id, where=where, host=host, port=port, token=not no_token)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    output.document({"url": link.url}, text=link.url)
    if opens:
        import webbrowser

        webbrowser.open(link.url)
    try:
        link.wait()
    finally:
        link.close()

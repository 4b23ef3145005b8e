"""`seqlake rollback`: make an old version the newest one."""

from __future__ import annotations

import click

from seqlake.cli import _options


@click.command()
@_options.source
@click.argument("version", metavar="VERSION", callback=lambda _c, _p, v: _options.version_of(v))
@_options.commits
def command(source: str, version: int | str, *, dry_run: bool, output: _options.Output) -> None:
    """Commit a new version of DATASET with the rows, schema and metadata of VERSION."""
    dataset = _options.opened_dataset(source)
    if dry_run:
        old = _options.opened_dataset(source, version=version)
        output.document(
            {"rows": len(old), "rows_now": len(dataset), "dry_run": True},
            text=f"Would go from {len(dataset)} sequences back to {len(old)}, those of version {version}.",
        )
        return
    restored = dataset.rollback(version)
    output.document(
        {"version": restored.id, "rows": restored.rows},
        text=f"Version {restored.id}: {restored.rows} sequences, as in version {version}.",
    )

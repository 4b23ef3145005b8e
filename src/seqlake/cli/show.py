"""`seqlake show`: one sequence, or a picture of many."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from seqlake.cli import _files, _options
from seqlake.cli._output import Output, cell_text, output_options, plain
from seqlake.cli.frames import colours, film_strips, sparkline
from seqlake.errors import in_line

_DIMS = 16  # of a signal, for people; programs get all


@click.command()
@_options.source
@click.argument("sequence_id", metavar="[ID]", required=False, shell_complete=_options.complete_ids)
@_options.version
@click.option("--png", type=click.Path(path_type=Path), metavar="FILE", help="Write a contact sheet as a PNG picture.")
@click.option(
    "--sheet",
    type=click.Path(path_type=Path),
    is_flag=False,
    flag_value=Path("sheet.png"),
    metavar="[FILE]",
    help="Write one PNG picture of many sequences, one in a row, in place of ID (default: sheet.png).",
)
@_options.where
@click.option("-n", "--rows", type=click.IntRange(min=1), default=24, help="So many sequences in a sheet, the first.")
@click.option(
    "--frames",
    "count",
    type=click.IntRange(0, 64),
    metavar="N",
    help="So many frames of each camera (default: 8 in a picture of one sequence, else 4); 0 for none.",
)
@_options.overwrite
@output_options
def command(
    source: str,
    sequence_id: str | None,
    *,
    version: int | str | None,
    png: Path | None,
    sheet: Path | None,
    where: str | None,
    rows: int,
    count: int | None,
    overwrite: bool,
    output: Output,
) -> None:
    """Show one sequence of DATASET: scalars, and for each signal its shape, range, mean and a sparkline.

    A terminal with colours shows frames of the cameras too. The contact sheet of --png has them with their times, and
    the signals as plots; --sheet has many sequences, one in a row.
    """
    if (sequence_id is None) == (sheet is None):
        raise click.UsageError(
            "Expected the ID of a sequence, or --sheet for a picture of many; `seqlake ls` lists ids."
        )
    if sheet is None and where is not None:
        raise click.UsageError("--where chooses the sequences of a --sheet; one that is named by its ID needs none.")
    if sheet is not None and png is not None:
        raise click.UsageError("Expected --png for one sequence or --sheet for many, not both.")
    selection = _options.opened(source, version=version)
    if sheet is not None:
        chosen = selection.where(where) if where else selection
        _draw(chosen, sheet, count=count, rows=rows, overwrite=overwrite)
        drawn = min(rows, len(chosen))
        document = {"png": str(sheet), "sequences": drawn, "of": len(chosen)}
        output.document(document, text=in_line(f"{drawn} of {len(chosen)} sequences: {sheet}"))
        return
    with _options.sequences(selection, [sequence_id]):
        view = selection.sequence(sequence_id)
    if png is not None:
        _draw(view, png, count=count, rows=rows, overwrite=overwrite)
    document, lines = _facts(view, most=_DIMS if output.format == "table" and output.truncate else None)
    if png is not None:
        document["png"] = str(png)
        lines.append(in_line(f"contact sheet: {png}"))
    elif output.format == "table" and not output.quiet and colours():
        lines += film_strips(view, count=count)  # in colours
    output.document(document, text="\n".join(lines), styled=True)


def _draw(drawn: Any, path: Path, *, count: int | None, rows: int, overwrite: bool) -> None:
    """A contact sheet, as a file."""
    from seqlake.dataset.drawing import contact_sheet
    from seqlake.media import encode_image

    if path.suffix.lower() != ".png":
        raise click.UsageError(f"Pictures are written as PNG: expected a name that ends in .png, found {str(path)!r}.")
    _files.refuse_existing([path], overwrite=overwrite)
    _files.save(path, encode_image(contact_sheet(drawn, frames=count, rows=rows)), overwrite=overwrite)


def _facts(view: Any, *, most: int | None) -> tuple[dict[str, Any], list[str]]:
    """What there is to say, for programs and for people: of each signal so many dimensions."""
    from seqlake.dataset.reading.views import FileView

    scalars: dict[str, Any] = {}
    signals: list[dict[str, Any]] = []
    others: dict[str, str] = {}
    hints: dict[str, str] = {}
    for name in view.schema.names:
        category = view.schema[name].category
        value = view[name]
        if category in {"temporal", "vector"} and value is not None and not isinstance(value, list):  # of unlike steps
            signals.append({"column": name, "array": cell_text(value), **_statistics(value, most=most)})
        elif isinstance(value, FileView):
            scalars[name] = str(value) if value.inline else value.location
            hints.update({name: hint} if (hint := value.hint()) else {})
        elif category in {"scalar", "file"}:
            scalars[name] = value
        else:
            others[name] = cell_text(value)
    document = {"sequence_id": view.id, "scalars": plain(scalars), "signals": signals, "others": others, "hints": hints}
    lines = [
        f"{in_line(name)}: {cell_text(value)}" + (f"  ({in_line(hints[name])})" if name in hints else "")
        for name, value in {**scalars, **others}.items()
    ]
    for signal in signals:
        lines.append(f"{in_line(signal['column'])}: {signal['array']}")
        lines += [
            f"  {d['dim']:>3}  {d['curve']}  min {d['min']:.4g}  max {d['max']:.4g}  mean {d['mean']:.4g}"
            + (f"  {d['not_finite']} not finite" if d["not_finite"] else "")
            for d in signal["dims"]
        ]
        if most is not None and signal["dims_total"] > most:
            lines.append(f"  the first {most} of {signal['dims_total']} dimensions; --no-truncate shows all")
    return document, lines


def _statistics(array: Any, *, most: int | None) -> dict[str, Any]:
    """Range, mean and a sparkline for so many dimensions of a [T, D] or [D] array."""
    import numpy as np

    steps = np.asarray(array, np.float64)
    steps = steps.reshape(len(steps), math.prod(steps.shape[1:]))
    dims = []
    for d in range(steps.shape[1])[:most]:
        curve = steps[:, d]
        finite = curve[np.isfinite(curve)]
        if not finite.size:
            continue
        dims.append(
            {
                "dim": d,
                "min": float(finite.min()),
                "max": float(finite.max()),
                "mean": float(finite.mean()),
                "not_finite": int(curve.size - finite.size),
                "curve": sparkline(curve),
            }
        )
    return {"dims": dims, "dims_total": int(steps.shape[1])}

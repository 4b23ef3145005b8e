"""`seqlake show`: one sequence."""

from __future__ import annotations

from typing import Any

import click

from seqlake.cli import _options
from seqlake.cli._output import Output, output_options, plain, shown

BARS = "▁▂▃▄▅▆▇█"


@click.command()
@_options.source
@click.argument("sequence_id", metavar="ID", shell_complete=_options.complete_ids)
@_options.version
@output_options
def command(source: str, sequence_id: str, *, version: int | str | None, output: Output) -> None:
    """Show one sequence of DATASET: scalars, and for each signal its shape, range, mean and a sparkline."""
    selection = _options.opened(source, version=version)
    view = selection.sequence(sequence_id)
    scalars: dict[str, Any] = {}
    signals: list[dict[str, Any]] = []
    others: dict[str, str] = {}
    for name in selection.schema.names:
        category = selection.schema[name].category
        value = view[name]
        if category in {"temporal", "vector"} and value is not None:
            signals.append({"column": name, "array": shown(value), **_statistics(value)})
        elif category in {"scalar", "file"}:
            scalars[name] = getattr(value, "location", value)
        else:
            others[name] = shown(value)
    document = {"sequence_id": sequence_id, "scalars": plain(scalars), "signals": signals, "others": others}
    lines = [f"{name}: {shown(value)}" for name, value in {**scalars, **others}.items()]
    for signal in signals:
        lines.append(f"{signal['column']}: {signal['array']}")
        lines += [
            f"  {d['dim']:>3}  {d['curve']}  min {d['min']:.4g}  max {d['max']:.4g}  mean {d['mean']:.4g}"
            + (f"  {d['not_finite']} not finite" if d["not_finite"] else "")
            for d in signal["dims"]
        ]
    output.document(document, text="\n".join(lines))


def _statistics(array: Any) -> dict[str, Any]:
    """Range, mean and a sparkline for at most 16 dimensions of a [T, D] or [D] array."""
    import numpy as np

    steps = np.asarray(array, np.float64)
    steps = steps.reshape(len(steps), -1) if steps.ndim != 1 else steps[:, None]
    dims = []
    for d in range(min(steps.shape[1], 16)):
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


def sparkline(curve: Any, *, width: int = 32) -> str:
    """A curve as block characters; a gap where nothing is finite."""
    import numpy as np

    parts = np.array_split(np.asarray(curve, np.float64), min(width, len(curve)))
    means = np.array([p[np.isfinite(p)].mean() if np.isfinite(p).any() else np.nan for p in parts])
    low, high = np.nanmin(means), np.nanmax(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if np.isnan(m) else BARS[round((m - low) * scale)] for m in means)

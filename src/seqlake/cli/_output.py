"""How results are printed: tables for people, JSON, CSV and Parquet for programs."""

from __future__ import annotations

import json
import math
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

from seqlake.errors import in_line, visible

SCHEMA_VERSION = 1
_SHORT = 8  # values of a list that are shown
FORMATS = ("table", "json", "ndjson", "csv", "tsv", "parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where and how one command prints its result."""

    format: str
    quiet: bool = False
    truncate: bool = True
    no_progress: bool = False

    @property
    def progress(self) -> bool | None:
        """Whether long work shows progress: never for programs, else as the terminal decides."""
        return False if self.no_progress or self.quiet or self.format == "json" else None

    def document(self, value: Mapping[str, Any], /, *, text: str, styled: bool = False) -> None:
        """One result: JSON for programs, `text` for people; see `say` for `styled`."""
        if self.format in {"json", "ndjson"}:
            say_json({"schema_version": SCHEMA_VERSION, **plain(value)})
        elif text:
            say(text, styled=styled)

    def plan(self, rows: int, out: str, /, *, verb: str = "write", what: str = "sequences") -> None:
        """What a dry run says of a new dataset."""
        self.document({"rows": rows, "out": out, "dry_run": True}, text=f"Would {verb} {rows} {what} to {out}.")

    def rows(self, rows: Iterable[Mapping[str, Any]], /, *, key: str, columns: Sequence[str]) -> None:
        """Many results of one kind.

        Args:
            rows: One mapping each, with all of `columns`.
            key: What `--quiet` prints of each, and what the list is called in JSON (with an s).
            columns: In the order to show.
        """
        if self.quiet:
            for row in rows:
                click.echo(_cell(str(row[key])), color=True)  # click would take escapes out of ids
        elif self.format == "ndjson":
            for row in rows:
                say_json(plain(row))
        elif self.format == "json":
            self.document({"rows": [dict(row) for row in rows]}, text="")
        elif self.format in {"csv", "tsv"}:
            self._separated(rows, columns)
        elif self.format == "parquet":
            import pyarrow as pa

            self.arrow(pa.Table.from_pylist([plain(row) for row in rows]))
        else:
            cells = [[cell_text(row[c], whole=not self.truncate) for c in columns] for row in rows]
            say(table(cells, head=columns, fit=self.truncate))

    def _separated(self, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
        import csv

        writer = csv.writer(sys.stdout, delimiter="\t" if self.format == "tsv" else ",", lineterminator="\n")
        writer.writerow(map(_cell, columns))
        for row in rows:
            cells = [plain(row[c]) for c in columns]
            texts = [json.dumps(c) if isinstance(c, (dict, list)) else c for c in cells]
            writer.writerow([_cell(text) if isinstance(text, str) else text for text in texts])

    def arrow(self, result: Any, /, *, out: Path | None = None) -> None:
        """An Arrow table, as Parquet in a file or on a stdout that is no terminal."""
        import pyarrow.parquet as pq

        if out is not None:
            pq.write_table(result, out)
            return
        if sys.stdout.isatty():
            raise click.UsageError("Parquet is not for a terminal: redirect it, or name a file with -o.")
        pq.write_table(result, sys.stdout.buffer)


def say(text: str, /, *, err: bool = False, styled: bool = False) -> None:
    """Print text: the one place through which names and texts of a dataset reach a terminal.

    Args:
        text: One line or several.
        err: To stderr.
        styled: It has colours of ours in it, and has been made visible before they came in.
    """
    click.echo(text if styled else visible(text), err=err)


def say_json(value: Mapping[str, Any], /, *, err: bool = False) -> None:
    """Print a JSON object in one line of ASCII."""
    # The one control character that `json` leaves as it is; it can only stand in a string.
    click.echo(json.dumps(value, allow_nan=False).replace("\x7f", "\\u007f"), err=err)


def _cell(text: str) -> str:
    """A value by itself: as it is for a program, so that ids stay ids; made visible on a terminal."""
    return in_line(text) if sys.stdout.isatty() else text


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--format`, `--json`, `-q`, `--no-truncate` and `--no-progress`, handed over as one `output`."""

    @click.option("--format", "output_format", type=click.Choice(FORMATS), default="table", show_default=True)
    @click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
    @click.option("-q", "--quiet", is_flag=True, help="Only the essential, one per line.")
    @click.option("--no-truncate", is_flag=True, help="Show all of every cell, and lists whole.")
    @click.option("--no-progress", is_flag=True, help="Show no progress on stderr.")
    def wrapped(
        *, output_format: str, as_json: bool, quiet: bool, no_truncate: bool, no_progress: bool, **others: Any
    ) -> Any:
        from seqlake.dataset.progress import enabled as showing

        kind = "json" if as_json else output_format
        output = Output(format=kind, quiet=quiet, truncate=not no_truncate, no_progress=no_progress)
        with showing(output.progress):
            return command(output=output, **others)

    return with_options_of(command, wrapped)


def with_options_of(command: Callable[..., Any], wrapped: Callable[..., Any], /) -> Callable[..., Any]:
    """A wrapper that carries a command's own options, which click collects on the function itself."""
    wrapped.__name__ = command.__name__
    wrapped.__doc__ = command.__doc__
    options = getattr(wrapped, "__click_params__", [])
    wrapped.__click_params__ = [*getattr(command, "__click_params__", []), *options]  # type: ignore[attr-defined]
    return wrapped


def plain(value: Any) -> Any:
    """A value as JSON can hold it: arrays by shape, non-finite numbers as null, times as ISO 8601."""
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "shape"):
        return plain(value.item()) if value.shape == () else cell_text(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value)} bytes"
    return str(value)


def cell_text(value: Any, /, *, whole: bool = False) -> str:
    """A value in a table's cell; arrays as `f32[200,12]`, lists by their length unless they are short or asked for."""
    if value is None:
        return "–"
    if hasattr(value, "shape") and value.shape != ():
        kind = {"f": "f", "i": "i", "u": "u", "b": "b"}.get(value.dtype.kind, value.dtype.kind)
        return f"{kind}{value.dtype.itemsize * 8}[{','.join(map(str, value.shape))}]"
    if isinstance(value, list):
        if whole or (len(value) <= _SHORT and not any(isinstance(one, (list, dict, bytes)) for one in value)):
            return f"[{', '.join(cell_text(one, whole=whole) for one in value)}]"
        return f"[{len(value)}]"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return size(len(value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return visible(str(value)).replace("\n", "⏎")


def size(count: int) -> str:
    """Bytes for people, in binary units."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError


def table(rows: Sequence[Sequence[str]], /, *, head: Sequence[str] = (), fit: bool = True) -> str:
    """Columns side by side; fitted to the terminal where there is one."""
    everything = [[in_line(one) for one in row] for row in ([head, *rows] if head else rows)]
    if not everything:
        return ""
    widths = [max(len(row[i]) for row in everything) for i in range(len(everything[0]))]
    if fit and sys.stdout.isatty():
        room = shutil.get_terminal_size().columns - 2 * (len(widths) - 1)
        while sum(widths) > room and max(widths) > 8:
            widths[widths.index(max(widths))] -= 1

    def cell(text: str, width: int) -> str:
        return (text if len(text) <= width else text[: width - 1] + "…").ljust(width)

    return "\n".join("  ".join(map(cell, row, widths)).rstrip() for row in everything)

"""The `seqlake` command itself: finds commands, shows errors, decides exit codes."""

from __future__ import annotations

import difflib
import io
import logging
import os
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

import click

from seqlake import plugins
from seqlake.cli._output import say, say_json
from seqlake.errors import ColumnNotFoundError, QueryError, SeqlakeError, UnknownPluginError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Names people know from other tools; they run the same command.
ALIASES = {"import": "convert", "export": "convert", "collect": "vacuum"}

# Help must not import every command, so what each is for stands here; a test compares.
SUMMARIES = {
    "adopt": "Take in shards and metadata that others put into a dataset's folder.",
    "bench": "Measure how fast a dataset trains on this machine.",
    "compact": "Write small shards, and those of other engines, anew in place: one commit.",
    "completion": "Print the completion script of a shell.",
    "convert": "Turn any dataset that seqlake reads into another one.",
    "delete": "Remove sequences; older versions keep them.",
    "demo": "See seqlake work: simulate, write, validate, query, train.",
    "diff": "Show what differs between two versions or datasets.",
    "doctor": "Say what is installed, what is missing and how large it is.",
    "drop": "Drop columns; older versions keep them.",
    "files": "List the files that rows name, those that are missing, and those that no row names.",
    "fold": "Write labels, renames and drops into a dataset's shards: one commit.",
    "frames": "Write frames of one sequence as pictures.",
    "index": "Add the sequence offset index to plain uncompressed Parquet.",
    "info": "Say what a dataset holds.",
    "init": "Make a plain Parquet folder or a lake's table a Mixtrain dataset.",
    "label": "Fill a column: from SQL, with a value, or from a CSV file.",
    "ls": "List sequences.",
    "merge": "Join several datasets into a new one.",
    "prepare": "Make training copies of videos: smaller pictures, beside the originals.",
    "push": "Upload a dataset to the Hugging Face Hub.",
    "relocate": "Make references lead to another place, with their files or without.",
    "rename": "Give a column another name.",
    "repack": "Rewrite a dataset's shards into a new dataset.",
    "resample": "Write signals at another rate, as a new dataset.",
    "rollback": "Make an old version the newest one.",
    "schema": "Show columns, Arrow types and column types, or set types and metadata.",
    "segment": "Cut sequences into pieces, as a new dataset of one row each.",
    "set": "Change cells of one sequence.",
    "show": "Show one sequence, in the terminal or as a picture.",
    "split": "Assign train, validation and test, or write one dataset per split.",
    "sql": "Ask a dataset in SQL; the relation is called `dataset`.",
    "similar": "List the sequences whose embeddings are nearest to that of one.",
    "stats": "Show what the numbers of a dataset are like, and its oddest sequences.",
    "subset": "Copy some sequences or columns into a new dataset.",
    "tag": "Give a version a name, by which commands take it and which vacuum honours.",
    "trim": "Cut sequences down to some of their steps, as a new dataset.",
    "vacuum": "Remove what seqlake wrote and no kept version needs.",
    "view": "Look at a dataset in the browser: filter, play, compare, label.",
    "validate": "Check a dataset against the format and report every finding.",
    "versions": "List a dataset's versions.",
}


class Commands(click.Group):
    """The commands in this folder and those of installed packages, imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return plugins.names("cli")

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        name = ALIASES.get(cmd_name, cmd_name)
        try:
            command: click.Command = plugins.load("cli", name).command
        except UnknownPluginError:
            return None
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], [*self.list_commands(ctx), *ALIASES], n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, SUMMARIES.get(name, "")) for name in self.list_commands(ctx)]
        rows += [(alias, f"The same as {name}.") for alias, name in sorted(ALIASES.items())]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Results go to stdout, everything else to stderr. Every command has --json. See `seqlake COMMAND --help`.",
)
@click.version_option(package_name="seqlake", prog_name="seqlake")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.option(
    "--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True, help="Use colours."
)
@click.pass_context
def cli(ctx: click.Context, *, debug: bool, color: str) -> None:
    """Datasets of multimodal temporal sequences: look at them, check them, change them, train on them."""
    ctx.obj = {"debug": debug}
    # Click itself ignores NO_COLOR and FORCE_COLOR.
    ctx.color = {"always": True, "never": False, "auto": _color_wanted()}[color]


def _color_wanted() -> bool | None:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return False if os.environ.get("TERM") == "dumb" else None


def run(arguments: Sequence[str] | None) -> NoReturn:
    """Run the command line; never returns."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _show_warnings_in_one_line()
    try:
        code = cli.main(given, prog_name="seqlake", standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        message = io.StringIO()
        error.show(message)
        say(message.getvalue().rstrip("\n"), err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        say("seqlake: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has seen enough; flushing at exit would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (SeqlakeError, OSError, ValueError) as error:
        wrong = isinstance(error, (ColumnNotFoundError, QueryError))  # what was typed, not what is there
        if "--debug" in given:
            say(traceback.format_exc().rstrip(), err=True)
        else:
            _show(error, as_json="--json" in given)
        sys.exit(2 if wrong else 1)
    sys.exit(code if isinstance(code, int) else 0)


def _show(error: Exception, *, as_json: bool) -> None:
    code = error.code if isinstance(error, SeqlakeError) else "error"
    if as_json:
        text: dict[str, Any] = {
            "code": code,
            "message": error.message if isinstance(error, SeqlakeError) else str(error),
            "path": error.path if isinstance(error, SeqlakeError) else None,
            "hint": error.hint if isinstance(error, SeqlakeError) else None,
        }
        say_json({"error": text}, err=True)
    else:
        say(f"seqlake: error: {error}", err=True)


def _show_warnings_in_one_line() -> None:
    def show(message: Warning | str, *_: object, **__: object) -> None:
        say(f"seqlake: warning: {message}", err=True)

    warnings.showwarning = show
    ours = logging.getLogger("seqlake")
    if not any(isinstance(handler, _Told) for handler in ours.handlers):
        ours.addHandler(_Told(logging.WARNING))


class _Told(logging.Handler):
    """What the library logs, as one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"seqlake: {record.levelname.lower()}: {record.getMessage()}", err=True)

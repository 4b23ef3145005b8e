"""Arguments and options that several commands share."""

from __future__ import annotations

import difflib
import threading
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from seqlake.cli import _output, _remote
from seqlake.errors import SequenceNotFoundError, in_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from seqlake.executors import Executor

Output = _output.Output
output_options = _output.output_options

_PATIENCE = 10.0  # seconds that completion may take, on a busy machine or of a slow bucket; usually it is one
_NEAR = 10_000  # ids among which the nearest to an unknown one is looked for; of more that takes seconds
_NAMING = {
    "host": "A web server on this machine or in a private network that DATASET may name. Repeatable.",
    "bucket": "A bucket that DATASET may name; with this option, no others but its own. Repeatable.",
}


def _naming(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option `--allow-host` or `--allow-bucket`: what the dataset may name, for whatever opens it."""

    def remember(context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> None:
        if given:
            context.meta[f"seqlake.allow_{what}s"] = given

    unseen: Any = {"multiple": True, "expose_value": False, "callback": remember}
    return click.option(f"--allow-{what}", metavar=what.upper(), help=_NAMING[what], **unseen)


def allowed() -> dict[str, Any]:
    """What the dataset of this command may name, as options of `open` and `scan`."""
    context = click.get_current_context(silent=True)
    names = ("allow_hosts", "allow_buckets")
    return {} if context is None else {n: context.meta[f"seqlake.{n}"] for n in names if f"seqlake.{n}" in context.meta}


def source(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument DATASET, what may be read of it, and what it may name."""
    dataset = click.argument("source", metavar="DATASET", shell_complete=complete_paths)
    return dataset(_remote.option(_naming("host")(_naming("bucket")(command))))


def complete_paths(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files and folders, which the shell itself lists."""
    return [CompletionItem(incomplete, type="file")]


out = click.argument("out", metavar="OUT", shell_complete=complete_paths)
dry_run = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
overwrite = click.option("--overwrite", is_flag=True, help="Replace what seqlake wrote there before.")
jobs = click.option(
    "-j", "--jobs", "--workers", "workers", type=click.IntRange(min=1), help="Tasks at a time (default: one a core)."
)
where = click.option("--where", metavar="SQL", help="Only rows for which this holds.")


rewrite = click.option(
    "--rewrite", is_flag=True, help="Write every shard anew, so that all readers see it in the files."
)


@contextmanager
def rehearsed(dry_run: bool, /) -> Iterator[None]:
    """With `--dry-run` the block ends at its first write, so that what refuses it is said; else it just runs."""
    from seqlake.dataset.writing.rehearsal import rehearsing

    with rehearsing() if dry_run else nullcontext():
        yield


ids_option = click.option("--ids", type=click.File(), help="A file with one sequence_id a line; - for stdin.")


def message(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--message`: every commit of the command carries it."""

    def said(context: click.Context, _parameter: click.Parameter, text: str | None) -> None:
        if text is not None:
            from seqlake.versions.messages import saying

            context.with_resource(saying(text))

    unseen: Any = {"expose_value": False, "callback": said}
    return click.option("-m", "--message", metavar="TEXT", help="What the commit is for.", **unseen)(command)


def commits(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--message`, `--dry-run` and the options of output: for commands that change a dataset."""
    return message(dry_run(output_options(command)))


def writes(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--overwrite` to the options of `commits`: for commands that write a new dataset."""
    return overwrite(commits(command))


def version_of(text: str | None) -> int | str | None:
    """A version as given on the command line: a number where it is one, else a tag."""
    if text is None:
        return None
    return int(text) if text.isascii() and text.isdecimal() else text


def as_version(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | str | None:
    """The callback of an option that names a version."""
    return version_of(text)


version = click.option(
    "--version",
    "version",
    metavar="V",
    callback=as_version,
    help="Look at this version, a number or a tag, instead of the newest.",
)


def _within(seconds: float, work: Callable[[], list[str]]) -> list[str]:
    """What `work` finds in so much time, else nothing: a shell that waits is worse than one that does not know."""
    names: list[str] = []
    thread = threading.Thread(target=lambda: names.extend(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    return list(names)


def _complete(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def names(location: str) -> list[str]:
        try:
            selection = opened(location)
            if kind == "columns":
                return list(selection.schema)
            if kind == "cells":
                return [f"{name}=" for name in selection.schema if name != selection.schema.id]
            column: list[str] = selection.select(selection.schema.id).to_arrow().column(0).to_pylist()
        except Exception:  # noqa: BLE001 - whatever is wrong, completion is silent
            return []
        return column

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        # An option that waits for its value ends click's parsing: arguments are what is left of it then.
        location = ctx.params.get("source") or next(iter(ctx.args), None)
        if (ctx.params.get("assignments") or ("",))[-1].endswith("=") or "=" in incomplete:
            return []  # a value, which bash may hand over apart
        before, comma, last = incomplete.rpartition(",") if kind == "columns" else ("", "", incomplete)
        names_there = _within(_PATIENCE, lambda: names(location)) if location else []
        # A shell would take what such a name says for its own.
        plain = [name for name in names_there if name.startswith(last) and in_line(name) == name]
        return [f"{before}{comma}{name}" for name in plain[:200]]

    return complete


complete_ids = _complete("ids")
complete_columns = _complete("columns")
complete_cells = _complete("cells")


def columns_option(text: str, /, *, name: str = "--columns") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option that takes names of columns with commas between them, handed over as a list."""

    def names(_context: click.Context, _parameter: click.Parameter, given: str | None) -> list[str] | None:
        return given.split(",") if given else None

    return click.option(name, metavar="A,B", shell_complete=complete_columns, callback=names, help=text)


def opened(location: str, *, asks: bool = True, version: int | str | None = None, where: str | None = None) -> Any:
    """The dataset at a location, or a foreign one as it is.

    Args:
        location: As given on the command line.
        asks: All of a remote dataset is only read with leave; not for commands that are told to copy it.
        version: Of a dataset: this one instead of the newest.
        where: Only rows for which this holds.
    """
    everything = _opened(location, asks=asks, version=version)
    return everything.where(where) if where else everything


def _opened(location: str, *, asks: bool, version: int | str | None) -> Any:
    from seqlake.dataset.opening import open as open_dataset
    from seqlake.dataset.opening import scan
    from seqlake.errors import DatasetNotFoundError

    rules = allowed()
    try:
        return open_dataset(location, version=version, **rules)
    except DatasetNotFoundError as missing:
        if version is not None:
            raise
        if asks:
            _remote.permit_format(location)
        try:
            return scan(location, **rules)
        except DatasetNotFoundError:
            raise missing from None


def opened_dataset(location: str, *, version: int | str | None = None, allow_outside: bool = False) -> Any:
    """The dataset at a location, for commands that take nothing else.

    Args:
        location: As given on the command line.
        version: This one instead of the newest.
        allow_outside: Whether references may leave its folder.
    """
    from seqlake.dataset.opening import open as open_dataset

    return open_dataset(location, version=version, allow_outside=allow_outside, **allowed())


@contextmanager
def sequences(selection: Any, ids: Sequence[str | None], /) -> Iterator[None]:
    """While rows are looked up by ids that were typed: an unknown one has the nearest beside it, and the way to all."""
    key = _key_of(selection)
    try:
        yield
    except SequenceNotFoundError as error:
        there = selection.select(key).to_arrow().column(0).to_pylist() if len(selection) <= _NEAR else []
        known = set(there)
        unknown = next((one for one in ids if one not in known), "")
        near = "".join(f"Did you mean {one!r}? " for one in difflib.get_close_matches(str(unknown), there, n=1))
        source = in_line(click.get_current_context().params["source"])
        raise SequenceNotFoundError(error.message, hint=f"{near}`seqlake ls {source} -q` lists the ids.") from None


def _key_of(selection: Any, /) -> str:
    """The column of ids, which samples do not have."""
    key: str | None = selection.schema.id
    if key is None:
        raise click.UsageError(
            "An ID, --ids, --columns and --drop are for rows with ids, and these are samples without; `seqlake convert "
            "--sequence-id COLUMN` makes sequences of them."
        )
    return key


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The rows and columns that `--where`, `--ids`, `--columns` and `--drop` name."""

    where: str | None
    ids: IO[str] | None
    columns: list[str] | None = None
    drop: bool = False

    @property
    def everything(self) -> bool:
        """Whether nothing was named."""
        return not self.where and self.ids is None and not self.columns

    def of(self, everything: Any, /) -> Any:
        """The chosen part of a dataset; its ids are always in it."""
        key = _key_of(everything) if self.ids is not None or self.drop or self.columns else None
        selection = everything.where(self.where) if self.where else everything
        if self.ids is not None:
            ids = [line.rstrip("\n") for line in self.ids if line.strip()]
            with sequences(selection, ids):
                selection = selection.where(ids=ids)
        if self.drop:
            gone = set(selection.select(key).to_arrow().column(0).to_pylist())
            kept = everything.select(key).to_arrow().column(0).to_pylist()
            selection = everything.where(ids=[one for one in kept if one not in gone])
        if self.columns:
            selection = selection.select(key, *(c for c in self.columns if c != key))
        return selection


def executor(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--on`, `--jobs` and `--address`, and those of receipts and shares.

    They are handed over as `on`: an executor, or None where none is given. A share ends the command once its tasks are
    done.
    """
    takes_work = any(one.name == "work" for one in getattr(command, "__click_params__", []))

    @click.option("--on", metavar="ENGINE", help="What runs it: processes or ray.")
    @jobs
    @click.option("--address", help="With --on ray: of the cluster.")
    @click.option("--task", metavar="K/N", callback=_share, help="Only share K of N, from 0, into the folder --work.")
    @click.option("--finish", is_flag=True, help="Take what all shares left in the folder --work, and end the run.")
    @click.option("--wait", type=click.FloatRange(min=0), default=0, metavar="SECONDS", help=_WAIT)
    def wrapped(*, work: Any = None, **given: Any) -> Any:
        from seqlake.shares import Ended

        engine = {name: given.pop(name) for name in ("on", "workers", "address")}
        parts = {name: given.pop(name) for name in ("task", "finish", "wait")}
        shared = parts["task"] is not None or parts["finish"]
        _check_shares(work, **parts, others=given)
        kept = work is not None and not takes_work and not given.get("dry_run")
        if takes_work:
            given["work"] = work
        chosen = _engine(**engine) if shared or kept or any(one is not None for one in engine.values()) else None
        try:
            return command(on=_receiving(chosen, work, **parts) if shared or kept else chosen, **given)
        except Ended as ended:
            _output.say(str(ended), err=True)

    if not takes_work:
        wrapped = click.option("--work", metavar="FOLDER", help=_WORK)(wrapped)
    return _output.with_options_of(command, wrapped)


def within(on: Executor | None, name: str, /) -> Executor | None:
    """What runs a second verb of one command: it has receipts of its own, in a folder of the first one's."""
    from seqlake.shares import subfolder

    return None if on is None else subfolder(on, name)


def _engine(*, on: str | None, workers: int | None, address: str | None) -> Executor:
    from seqlake.executors import executor_of

    try:
        return executor_of(on or "processes", workers=workers, address=address)
    except TypeError as error:
        raise click.UsageError(str(error)) from None


def _check_shares(
    work: object, *, task: tuple[int, int] | None, finish: bool, wait: float, others: Mapping[str, Any]
) -> None:
    """Refuse options of shares that do not go together."""
    shared = task is not None or finish
    if (shared and work is None) or (task is not None and finish):
        raise click.UsageError("--task K/N, and --finish once all are done, need --work FOLDER, which all reach.")
    if wait and task is None:
        raise click.UsageError("--wait is for --task.")
    if shared and others.get("dry_run"):
        raise click.UsageError("--dry-run is for the whole; leave --task and --finish out.")
    if work is not None and others.get("overwrite"):
        raise click.UsageError("--overwrite replaces a dataset at the end of one process; write to a new place.")


def _receiving(chosen: Any, work: Any, *, task: tuple[int, int] | None, finish: bool, wait: float) -> Executor:
    """An executor that keeps receipts around another."""
    from seqlake.shares import Finish, Resumable, Share

    if task is not None:
        return Share(folder=work, number=task[0], of=task[1], wait=wait, on=chosen)
    return Finish(folder=work) if finish else Resumable(folder=work, on=chosen)


_WORK = "Keep what is finished there: the same command after an interruption does the rest."
_WAIT = "With --task: for the others, where a second pass needs what they gave."


def _share(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[int, int] | None:
    """The share's number and how many there are."""
    if text is None:
        return None
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise click.BadParameter(f"expected a share from 0 and how many there are, as in 3/64, found {text!r}.")
    return int(number), int(count)


def choice(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--where`, `--ids`, `--columns` and `--drop`, handed over as one `choice`."""

    @where
    @ids_option
    @columns_option("Only these columns.")
    @click.option("--drop", is_flag=True, help="Leave the chosen sequences out instead.")
    def wrapped(*, where: str | None, ids: IO[str] | None, columns: list[str] | None, drop: bool, **others: Any) -> Any:
        return command(choice=Choice(where=where, ids=ids, columns=columns, drop=drop), **others)

    return _output.with_options_of(command, wrapped)


def rows(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--where` and `--ids`, handed over as one `choice`."""

    @where
    @ids_option
    def wrapped(*, where: str | None, ids: IO[str] | None, **others: Any) -> Any:
        return command(choice=Choice(where=where, ids=ids), **others)

    return _output.with_options_of(command, wrapped)

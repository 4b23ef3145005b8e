"""`push`: the files of a dataset, as they are, into a dataset on the Hugging Face Hub, in one commit, with a card."""

from __future__ import annotations

import io
import os
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from seqlake import plugins
from seqlake.abilities import HasUnfolded, OfATable, ability
from seqlake.conversion.cards import CardFacts, card_of
from seqlake.dataset.dataset import Dataset
from seqlake.dataset.in_place import InPlace
from seqlake.dataset.opening import METADATA, format_of, open, place_of, scan  # noqa: A004 - as `sl` calls it
from seqlake.dataset.progress import enabled, over
from seqlake.dataset.selection import Selection
from seqlake.errors import (
    DatasetNotFoundError,
    MissingFileError,
    SchemaMismatchError,
    SeqlakeError,
    UnsafeReferenceError,
)
from seqlake.files.blobs import MemoryBlob
from seqlake.files.locations import inside, is_local, local_path
from seqlake.files.reading import BlobFile
from seqlake.files.stores import list_without_links, open_store
from seqlake.shards.columns import Columns
from seqlake.shards.files import ParquetShard, innermost
from seqlake.shards.rows import Rows
from seqlake.stores.hf.hub import Hub
from seqlake.stores.hf.places import MAIN, HubPlace, parse
from seqlake.versions import messages
from seqlake.versions.shard_formats import PluggedShard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.protocols import Blob, Readable, Store

CARD = "README.md"
_KEPT = {CARD, ".gitattributes"}
_LAST = {METADATA, "meta/info.json", "dataset_dict.json", "state.json", "index.json"}  # by which readers know a dataset
LOG = "_seqlake"
_OURS = {"data", "files", LOG}
_MOST_IN_COMMIT = 10_000
_AT_A_TIME = 200  # files that are asked about, and sent, together


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """What was pushed, or in a dry run would be.

    Attributes:
        repo: `owner/name`.
        branch: As in `main`.
        files: (path, bytes) of each file, without the card.
        removed: Files of before that are no longer part of the dataset.
        card: The text of README.md; None where it is left as it is.
        created: Whether there was no such dataset before.
        commit: The new commit; None in a dry run, and where nothing had changed.
        url: Of its page.
    """

    repo: str
    branch: str
    files: Sequence[tuple[str, int]] = field(repr=False)
    removed: Sequence[str] = ()
    card: str | None = field(default=None, repr=False)
    created: bool = False
    commit: str | None = None
    url: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(size for _, size in self.files)

    @property
    def location(self) -> str:
        """Where it opens: at the new commit, where there is one."""
        return str(HubPlace(repo=self.repo, revision=self.commit or self.branch))

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "repo": self.repo,
            "branch": self.branch,
            "url": self.url,
            "location": self.location,
            "commit": self.commit,
            "created": self.created,
            "nbytes": self.nbytes,
            "files": [list(one) for one in self.files],
            "removed": list(self.removed),
            "card": self.card,
        }


def push(
    dataset: str | os.PathLike[str] | Dataset,
    to: str,
    /,
    *,
    private: bool | None = None,
    message: str | None = None,
    license: str | None = None,  # noqa: A002 - the Hub's own word
    tasks: Sequence[str] = (),
    card: bool | str | None = None,
    storage: Mapping[str, str] | None = None,
    progress: bool | None = None,
    dry_run: bool = False,
) -> Push:
    """Upload the files of a dataset to the Hugging Face Hub, as they are.

    Of a Mixtrain dataset these are `mixtrain.json`, the shards of the version that is open and the files that its rows
    name; not the log. A folder of another format, as of LeRobot, goes as it is. What is on the Hub already is not sent
    again, so after an interruption the same call goes on.

    Args:
        dataset: A dataset, or its location.
        to: `hf://datasets/owner/name`, with `@branch` behind it or without. It is made where it is not there.
        private: Whether a dataset that is made is private; None: as the account has it.
        message: Of the commit.
        license: For the card, as in `"cc-by-4.0"`.
        tasks: The Hub's task categories for the card, as in `["robotics"]`.
        card: True writes a card anew, False none, a text is one; None: one is made where there is none.
        storage: `hf_token`, `hf_endpoint`, and options of the store that the dataset lies in.
        progress: Show bars on stderr; None: where it is a terminal.
        dry_run: Send nothing, and say what would be.

    Raises:
        ValueError: `to` is no dataset on the Hub, or a folder or commit of one.
        DatasetNotFoundError: There is nothing to push.
        AccessDeniedError: The login may not write there.
        SchemaMismatchError: The files alone do not say what the rows say; `seqlake fold` writes them anew.
        MissingFileError: A row names a file that is not there.
        UnsafeReferenceError: A row names a file of this machine outside the dataset.

    Example:
        ```python
        sl.push("data/pick-n-place", "hf://datasets/owner/pick-n-place", private=True, license="cc-by-4.0")
        sl.open("hf://datasets/owner/pick-n-place")
        ```
    """
    place = parse(to)
    if place.path or place.is_pinned:
        raise ValueError(f"{to}: expected a dataset, hf://datasets/owner/name or with @branch; found more.")
    messages.check(message)
    source, location = _source(dataset, storage)
    content, facts = _content(source, location, storage)
    hub = Hub(storage)
    if hub.offline:
        raise OSError(5, "HF_HUB_OFFLINE is set, so nothing can be pushed", to)
    there = _there(hub, place)
    kept: Mapping[str, Any] = {} if there is None else there[1]
    facts = replace(facts, name=place.repo, license=license, tasks=tuple(tasks))
    planned = Push(
        repo=place.repo,
        branch=place.revision or MAIN,
        files=[(path, one.size) for path, one in sorted(content.items())],
        removed=_removed(content, kept),
        card=_card(card, facts, has_card=CARD in kept or CARD in content),
        created=there is None,
        url=f"{hub.endpoint}/datasets/{place.repo}",
    )
    if dry_run:
        return planned
    if planned.card is not None:
        content.pop(CARD, None)
    said = message or messages.message() or "Upload with seqlake"
    with enabled(progress), _bars(progress):
        return replace(planned, commit=_sent(hub, place, planned, content, said, private=private, there=there))


def _source(dataset: Any, storage: Mapping[str, str] | None) -> tuple[Any, str]:
    """The dataset that is open, and where it lies."""
    if isinstance(dataset, Dataset):
        return dataset, dataset.table.root
    if isinstance(dataset, (str, os.PathLike)):
        place = place_of(dataset)
        try:
            return open(place, storage=storage), place
        except DatasetNotFoundError as missing:
            try:
                return scan(place, storage=storage), place
            except DatasetNotFoundError:
                raise missing from None
    what = "some rows of a dataset" if isinstance(dataset, Selection) else type(dataset).__name__
    raise TypeError(f"push uploads the files of a whole dataset, found {what}. Convert it first: sl.convert(it, OUT).")


def _content(source: Any, location: str, storage: Mapping[str, str] | None) -> tuple[dict[str, Blob], CardFacts]:
    """Path -> file, of all that is pushed; and what its card says."""
    known = ability(source, OfATable)
    if known is None or isinstance(known.table, InPlace):
        store = open_store(location, storage=storage) if known is None else known.table.store
        paths = [path for path, _ in list_without_links(store) if not _is_hidden(path)]
        kind = known.table.kind if known is not None else format_of(location, storage) or "parquet"
        return {path: store.blob(path) for path in paths}, CardFacts.of(source, kind=kind, paths=paths)
    if known.table.kind != "standalone":
        raise SeqlakeError(
            f"{location} is a table of {known.table.kind}, whose files are no dataset without its log.",
            hint=f"Convert it first: sl.convert({location!r}, OUT).",
        )
    content = {**_shards(source, location), **_files(source, location, known.table.store)}
    content[METADATA] = MemoryBlob(source.schema.metadata.to_json().encode(), location=METADATA)
    return content, CardFacts.of(source, kind="mixtrain", paths=list(content))


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def _shards(source: Readable, location: str) -> dict[str, Blob]:
    unfolded = ability(source, HasUnfolded)
    if unfolded is not None and unfolded.unfolded:
        raise SchemaMismatchError(
            f"{location}: columns were renamed, dropped or added without writing the shards anew "
            f"({'; '.join(unfolded.unfolded.lines())}), and who reads its files alone sees others.",
            path=location,
            hint="Run `seqlake fold` first: ds.fold().",
        )
    shards: dict[str, Blob] = {}
    for shard in source.shards():
        file = innermost(shard)
        whole = not isinstance(shard, Rows) and not (isinstance(shard, Columns) and isinstance(shard.shard, Rows))
        if not whole or not isinstance(file, (ParquetShard, PluggedShard)):
            raise SchemaMismatchError(
                f"{location}: the file of {shard.key} holds other rows than the dataset.",
                path=location,
                hint="Write it anew: `seqlake compact`, or convert it.",
            )
        path = file.blob.location.replace("\\", "/").removeprefix(f"{location.rstrip('/')}/".replace("\\", "/"))
        kept = path.startswith(("_seqlake/", "/")) or "://" in path  # shards of older versions have no name of theirs
        name = f"data/{shard.key.rpartition('#')[0]}" if kept else path
        if name in shards:
            raise SchemaMismatchError(f"{location}: two shards are called {name}.", path=location)
        shards[name] = file.blob
    return shards


def _files(source: Any, location: str, store: Store) -> dict[str, Blob]:
    """The files that rows name, but for those that lie elsewhere."""
    files: dict[str, Blob] = {}
    for entry in source.files():
        if entry.state == "missing":
            rows = ", ".join(entry.rows[:3])
            text = f"{entry.reference}, which {rows} of {', '.join(entry.columns)} names, is not there."
            raise MissingFileError(text, path=entry.reference, hint="`seqlake validate --depth files` lists all.")
        if entry.state == "outside":
            raise UnsafeReferenceError(
                f"{entry.reference} lies outside the dataset, on this machine, where nobody else finds it.",
                path=entry.reference,
                hint="Take it in first: `seqlake relocate DS --from PLACE --copy`.",
            )
        if entry.state == "present" and inside(location, f"{location}/{entry.reference}"):
            files[entry.reference] = store.blob(entry.reference)
    return files


def _there(hub: Hub, place: HubPlace) -> tuple[str, dict[str, Any]] | None:
    """The commit that the branch has now, or will begin at, and its files; None where there is no such dataset."""
    for branch in dict.fromkeys([place.revision or MAIN, MAIN]):  # a new branch begins at the main one
        try:
            commit = hub.commit(place.at(branch))
        except DatasetNotFoundError:
            continue  # no such branch; or no such dataset, which the next one says, too
        return commit, hub.list(place.at(commit))
    return None


def _removed(content: Mapping[str, Blob], there: Mapping[str, Any]) -> list[str]:
    """Files of before that are no longer part of it: in the folders that it has, and what made it another dataset."""
    folders = {path.partition("/")[0] for path in content if "/" in path}
    folders |= _OURS if METADATA in content else {LOG}
    gone = (path for path in there if path in _LAST or ("/" in path and path.partition("/")[0] in folders))
    return sorted(path for path in gone if path not in content and path not in _KEPT)


def _card(card: bool | str | None, facts: CardFacts, *, has_card: bool) -> str | None:  # noqa: FBT001 - as `push` takes it
    if isinstance(card, str):
        return card
    return card_of(facts) if card or (card is None and not has_card) else None


@contextmanager
def _bars(progress: bool | None) -> Iterator[None]:  # noqa: FBT001 - as `push` takes it
    """Bars of `huggingface_hub`, for files that are large, shown or not."""
    utils = plugins.require("huggingface_hub.utils", extra="hub")
    hidden = progress is False and not utils.are_progress_bars_disabled()
    if hidden:
        utils.disable_progress_bars()
    try:
        yield
    finally:
        if hidden:
            utils.enable_progress_bars()


def _sent(
    hub: Hub,
    place: HubPlace,
    planned: Push,
    content: Mapping[str, Blob],
    message: str,
    *,
    private: bool | None,
    there: tuple[str, Mapping[str, Any]] | None,
) -> str | None:
    """Send the files and make the commit; of very many files several, and what makes it a dataset in the last one."""
    api, client = hub.api, plugins.require("huggingface_hub", extra="hub")
    options = {"repo_type": "dataset", "revision": planned.branch}
    with hub.translated(place):
        if planned.created:
            api.create_repo(place.repo, repo_type="dataset", private=private, exist_ok=True)
        if planned.branch != MAIN:
            api.create_branch(place.repo, branch=planned.branch, repo_type="dataset", exist_ok=True)
        paths = sorted(content, key=lambda path: (path in _LAST, path))
        additions = [client.CommitOperationAdd(path, _readable(content[path])) for path in paths]
        # Not what makes it a dataset: it may be removed before it comes, and the client would know it as unchanged.
        early = [one for one in additions if one.path_in_repo not in _LAST]
        chunks = [early[at : at + _AT_A_TIME] for at in range(0, len(early), _AT_A_TIME)]
        for chunk in over(chunks, "sending files", unit="portions"):
            api.preupload_lfs_files(place.repo, chunk, **options)
        if planned.card is not None:
            additions.insert(0, client.CommitOperationAdd(CARD, planned.card.encode()))
        parts = [additions[at : at + _MOST_IN_COMMIT] for at in range(0, len(additions), _MOST_IN_COMMIT)]
        parent, known = (None, {}) if there is None else there
        marks = [path for path in _LAST if len(parts) > 1 and path in content and path in known]
        operations = [client.CommitOperationDelete(path) for path in (*planned.removed, *marks)]
        for number, part in enumerate(parts, 1):
            counted = message if len(parts) == 1 else f"{message} ({number} of {len(parts)})"
            parent = str(  # nobody else's commit comes between: what is removed was seen
                api.create_commit(
                    place.repo, [*operations, *part], commit_message=counted, parent_commit=parent, **options
                ).oid
            )
            operations = []
    return parent


def _readable(blob: Blob) -> Any:
    """A file as the client takes it: its path where it lies on this machine."""
    if isinstance(blob, MemoryBlob):
        return bytes(blob.view())
    if is_local(blob.location) and local_path(blob.location).is_file():
        return str(local_path(blob.location))
    return io.BufferedReader(BlobFile(blob), 1 << 20)

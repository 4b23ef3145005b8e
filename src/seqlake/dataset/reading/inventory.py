"""The files of a dataset: which rows name each, which are missing, and which no row names."""

from __future__ import annotations

import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from seqlake.abilities import HasStrangers, OfATable, ability
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.reading.views import FileView, MediaView, StepsView
from seqlake.dataset.writing.references import refers
from seqlake.errors import SeqlakeError
from seqlake.files.locations import inside, is_local, join, local_path, redacted, scheme
from seqlake.files.stores import open_blob, open_store
from seqlake.spec.column_types import INLINE_TYPES
from seqlake.spec.rules.references import paths_in
from seqlake.spec.schema import is_binary, is_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from seqlake.protocols import Readable

State: TypeAlias = Literal["present", "missing", "outside", "elsewhere", "kept", "orphan", "stranger"]

_PARALLEL = 12
_LOOKED = 16  # rows, for the first file of a column
_MEASURED = 32  # rows whose files are asked for their sizes
_MEASURED_ELSEWHERE = 8  # likewise, where that is a request for each
_STEPS = 4  # of each row's images
SMALL_FILE = 256 << 10  # bytes below which a file is better in its row
LARGE_FILE = 4 << 20  # above which it is better beside it
_MANY = 200  # references; listing a folder of a bucket is cheaper than asking for so many by name


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file, and who names it.

    Attributes:
        reference: What cells say; of a file that no row names, its path below the root.
        state: `present`; `missing`: rows name it and nothing is there; `outside`: it leaves the dataset's root and was
            not looked at; `elsewhere`: on another store or server, and not asked for. Of files that were copied in and
            that no row of this version names: `kept`: another version needs it; `orphan`: none does, and `vacuum`
            removes it; `stranger`: seqlake did not put it there.
        size: Bytes; None where nobody looked, or nothing is there.
        columns: Which columns name it.
        rows: The ids of the sequences that name it, each once, in order; row numbers as text where rows have no ids.
    """

    reference: str
    state: State
    size: int | None = None
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The file as plain values."""
        return {
            "reference": self.reference,
            "state": self.state,
            "size": self.size,
            "columns": list(self.columns),
            "rows": list(self.rows),
        }


def files(selection: Readable, /, *, elsewhere: bool = False) -> list[FileEntry]:
    """The old name of `Selection.files`, for one release more."""
    warnings.warn("seqlake.dataset.reading.inventory.files is Selection.files now.", DeprecationWarning, stacklevel=2)
    return entries_of(selection, elsewhere=elsewhere)


def entries_of(selection: Readable, /, *, elsewhere: bool) -> list[FileEntry]:
    """The files of a dataset, or of some of its rows and columns; what `Selection.files` gives."""
    excerpt = Excerpt.of(selection)
    named = references(excerpt)
    states = _found(excerpt, named, elsewhere=elsewhere)
    entries = [
        FileEntry(
            reference=reference,
            state=states[reference][0],
            size=states[reference][1],
            columns=tuple(use.columns),
            rows=tuple(use.rows),
        )
        for reference, use in named.items()
    ]
    return entries + list(_unnamed(selection, named))


def totals(entries: Iterable[FileEntry], /) -> dict[str, dict[str, int]]:
    """State -> how many files and bytes."""
    count: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    for one in entries:
        count[one.state] += 1
        nbytes[one.state] += one.size or 0
    return {state: {"files": count[state], "bytes": nbytes[state]} for state in count}


@dataclass(slots=True)
class Use:
    """Who names a file.

    Attributes:
        columns: Names, in order; a dict for its order.
        rows: Ids, in order.
    """

    columns: dict[str, None] = field(default_factory=dict)
    rows: dict[str, None] = field(default_factory=dict)


def references(excerpt: Excerpt, /) -> dict[str, Use]:
    """Every reference that the rows hold, in the order they hold it; empty ones are left out."""
    schema = excerpt.schema
    columns = [name for name in schema if refers(schema[name])]
    if not columns:
        return {}
    everything = excerpt.with_id()
    key = everything.schema.id
    named: dict[str, Use] = {}
    start = 0
    for batch in everything.batches(columns if key is None else [key, *columns]):
        ids = [str(start + row) for row in range(batch.num_rows)] if key is None else batch.column(0).to_pylist()
        for name in columns:
            for one, cell in zip(ids, batch.column(batch.schema.get_field_index(name)).to_pylist(), strict=True):
                for reference, _ in paths_in(cell):
                    if reference.strip():
                        use = named.setdefault(reference, Use())
                        use.columns[name] = None
                        use.rows[one] = None
        start += batch.num_rows
    return named


def sizes(
    locations: Sequence[str], /, *, storage: Mapping[str, str] | None = None, named_by: str | None = None
) -> Iterator[tuple[str, int | None]]:
    """(location, bytes) of files anywhere; None where nothing is there.

    Args:
        locations: Where they are.
        storage: Options of the store.
        named_by: The root of the dataset that names them; None: somebody who may name any.

    Raises:
        OSError, SeqlakeError: A store or server does not answer, or refuses.
    """

    def size(location: str) -> tuple[str, int | None]:
        try:
            if is_local(location):
                path = local_path(location)
                return location, path.stat().st_size if path.is_file() else None
            return location, open_blob(location, storage=storage, named_by=named_by).size
        except (FileNotFoundError, NotADirectoryError):
            return location, None

    if all(is_local(one) for one in locations):
        yield from map(size, locations)
        return
    with ThreadPoolExecutor(_PARALLEL) as pool:
        yield from pool.map(size, locations)


def _found(excerpt: Excerpt, named: Iterable[str], *, elsewhere: bool) -> dict[str, tuple[State, int | None]]:
    """What is at each reference, and its size."""
    root = excerpt.root
    states: dict[str, tuple[State, int | None]] = {}
    ask: dict[str, list[str]] = {}
    for reference in named:
        try:
            location = join(root, reference)
            here = inside(root, location)
        except (SeqlakeError, ValueError):  # a NUL, a file: URI of another machine: no name of a file
            states[reference] = ("missing", None)
            continue
        own_scheme = scheme(reference) != "file"
        if here or (is_local(location) and excerpt.allow_outside) or (own_scheme and elsewhere):
            ask.setdefault(location, []).append(reference)
        else:
            states[reference] = ("elsewhere" if own_scheme else "outside", None)
    for location, size in _looked_for(list(ask), root, excerpt.storage):
        for reference in ask[location]:
            states[reference] = ("missing" if size is None else "present", size)
    return states


def _looked_for(
    locations: Sequence[str], root: str, storage: Mapping[str, str] | None
) -> Iterator[tuple[str, int | None]]:
    """As `sizes`; many files of one bucket are listed, folder by folder."""
    top = f"{root.rstrip('/')}/"
    listed = [one for one in locations if one.startswith(top) and scheme(root) not in {"file", "http", "https"}]
    if len(listed) < _MANY:
        yield from sizes(locations, storage=storage, named_by=root)
        return
    store = open_store(root, storage=storage)
    there: dict[str, int] = {}
    for folder in sorted({one.removeprefix(top).rpartition("/")[0].partition("/")[0] for one in listed}):
        there.update(store.list(folder))
    for one in listed:
        yield one, there.get(one.removeprefix(top))
    rest = set(listed)
    yield from sizes([one for one in locations if one not in rest], storage=storage, named_by=root)


def _unnamed(selection: Readable, named: Mapping[str, object]) -> Iterator[FileEntry]:
    """Copied-in files that no row of this version names; only a whole dataset can tell."""
    whole = ability(selection, OfATable)
    folder = None if whole is None else ability(whole.table, HasStrangers)
    if folder is None:
        return
    for path, size, need in folder.copied_files():
        if path not in named and need != "staged":
            yield FileEntry(reference=path, state="kept" if need == "needed" else need, size=size)


def hints(selection: Readable, /) -> dict[str, str]:
    """What the files of a column are and how they are read, where its type does not decode them.

    The first file of each column, in the first rows, is looked at, as `FileView.hint` does it.

    Example:
        ```python
        hints(ds)                           # {'log': 'It is an MCAP log, read by `sl.open(file.location)`.'}
        ```
    """
    excerpt = Excerpt.of(selection)
    known = {}
    for name in (name for name in excerpt.schema if excerpt.schema[name].category == "file"):
        cells = (excerpt[row][name] for row in range(min(_LOOKED, len(excerpt))))
        view = next((cell for cell in cells if cell is not None), None)
        if view is not None and (hint := view.hint()):
            known[name] = hint
    return known


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPlace:
    """Where the files of a column stand, and where they would stand better.

    Attributes:
        inline: Whether the rows hold them now.
        looked_at: How many files were looked at.
        mean: Bytes of one, on average of these.
        better: `inline`, `files`, or `either`.
        why: In a sentence.
    """

    inline: bool
    looked_at: int
    mean: int
    better: Literal["inline", "files", "either"]
    why: str

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "inline": self.inline,
            "files": self.looked_at,
            "mean": self.mean,
            "better": self.better,
            "why": self.why,
        }


def media_places(selection: Readable, /) -> dict[str, MediaPlace]:
    """Whether files of media stand better in the rows or beside them, by the sizes of some.

    The files of up to 32 rows, spread evenly, are asked for their sizes and not read; of fewer where that is a request.
    References that lead out of the dataset, or nowhere, are left out.

    Example:
        ```python
        media_places(ds)["photo"].better    # 'inline'
        ```
    """
    schema = selection.schema
    if schema.id is None:
        return {}
    places = {}
    for name in (name for name in schema if schema[name].type is not None):
        column = schema[name]
        steps = column.category == "frames" and is_list(column.arrow)
        if column.type is None or column.type.type not in INLINE_TYPES or not (column.medium or steps):
            continue
        inline = column.inline or (steps and is_binary(column.arrow.value_type))
        sizes_seen, shared = _some_sizes(selection, name)
        if sizes_seen:
            mean = sum(sizes_seen) // len(sizes_seen)
            better, why = _better(mean, shared=shared)
            places[name] = MediaPlace(inline=inline, looked_at=len(sizes_seen), mean=mean, better=better, why=why)
    return places


def _some_sizes(selection: Readable, name: str) -> tuple[list[int], bool]:
    """Bytes of some files of a column, and whether rows have only parts of them."""
    excerpt = Excerpt.of(selection)
    most = _MEASURED if is_local(selection.root) else _MEASURED_ELSEWHERE
    rows = range(0, len(excerpt), -(-len(excerpt) // most) or 1)
    measured: dict[object, int] = {}
    shared = False
    for row in rows:
        cell = excerpt[row][name]
        for number, file in enumerate(cell.cells[:_STEPS] if isinstance(cell, StepsView) else [cell]):
            if isinstance(file, bytes):
                measured[row, number] = len(file)
            elif isinstance(file, FileView):
                with suppress(SeqlakeError, OSError, ValueError):
                    if not file.inline and not inside(selection.root, file.location):
                        continue
                    measured[(row, number) if file.inline else file.reference] = file.size
                shared = shared or (isinstance(file, MediaView) and (file.first > 0 or file.count is not None))
    return list(measured.values()), shared


def _better(mean: int, *, shared: bool) -> tuple[Literal["inline", "files", "either"], str]:
    least, most = f"{SMALL_FILE >> 10} KiB", f"{LARGE_FILE >> 20} MiB"
    if shared:
        return "files", "rows have parts of shared files, and each would hold all of its file"
    if mean > LARGE_FILE:
        return "files", f"above {most} every new version of a shard copies much, and loaders fetch shards whole"
    if mean < SMALL_FILE:
        return "inline", f"below {least} each file by itself is mostly a request; in rows they come with their shard"
    return "either", f"from {least} to {most} they are read as fast in the rows as beside them"


_PLACE = r"^(?P<place>[A-Za-z][A-Za-z0-9+.-]+://[^/?#\\]*)"


def elsewhere(selection: Readable, /) -> dict[str, int]:
    """How many references name each bucket or web server that is not the root's own, most first.

    Only the columns that hold references are read; nothing is asked of the places.

    Example:
        ```python
        elsewhere(ds)                       # {'s3://films': 1200, 'https://cams.lab.example': 3}
        ```
    """
    columns = [name for name in selection.schema if refers(selection.schema[name])]
    counts: Counter[str] = Counter()
    for batch in Excerpt.of(selection).batches(columns) if columns else ():
        for column in batch.columns:
            places = pc.struct_field(pc.extract_regex(_texts(column), _PLACE), "place")
            for one in pc.value_counts(places).to_pylist():
                if one["values"] is not None:
                    counts[redacted(one["values"]).lower()] += one["counts"]
    home = pc.extract_regex(pa.scalar(selection.root), _PLACE).as_py()
    if home is not None:
        counts.pop(redacted(home["place"]).lower(), None)
    counts.pop("file://", None)
    return dict(counts.most_common())


def _texts(column: pa.Array) -> pa.Array:
    """The references of a column's cells: text, a list of texts, or a struct with `url`."""
    kind = column.type
    if pa.types.is_struct(kind):
        place = kind.get_field_index("url")
        if place < 0 and kind.get_field_index("bytes") >= 0 and kind.get_field_index("path") >= 0:
            paths = pc.struct_field(column, "path").cast(pa.string())
            return pc.if_else(pc.struct_field(column, "bytes").is_valid(), pa.scalar(None, pa.string()), paths)
        return pa.nulls(len(column), pa.string()) if place < 0 else pc.struct_field(column, place).cast(pa.string())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _texts(column.flatten())
    return column.cast(pa.string())

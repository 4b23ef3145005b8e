"""An HDF5 file that strangers wrote, open to read: every link that is followed stays in it, no size is believed.

h5py opens whatever a link names, other files too, and allocates whatever a shape declares. So paths are walked here
link by link, and a data set is looked at before any of its values is read.
"""

from __future__ import annotations

import importlib.util
import weakref
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake import plugins
from seqlake.errors import CorruptFileError, SeqlakeError, UnsafeReferenceError, in_line
from seqlake.formats.hdf5.files import bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from seqlake.protocols import Blob

MAGIC = b"\x89HDF\r\n\x1a\n"
_LINKS = 16  # soft links that lead to each other
_DEPTH = 16  # groups in groups that are walked
_MOST_NODES = 100_000  # of one file, that are walked
_KEPT = 4096  # data sets that stay open
_GROUPS = 64  # groups that stay open
_LOOSE = 256 << 20  # bytes that values of any length, read together, may take if all stand for the whole file
_TEXTS = 1024  # of one attribute
_SMALL = 64 << 20  # bytes that are read whatever a file stores of them
_RATIO = 2048  # bytes that one stored byte may stand for: deflate gives 1032
_NAMED = {1: "deflate", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf",
          32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd", 32026: "blosc2"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredArray:
    """A data set that was looked at.

    Attributes:
        path: In the file.
        shape: As it declares.
        kind: `number`, `text` (strings of any kind), `bytes` (runs of bytes of any length, as encoded images), or
            `other`, which is not read.
        dtype: Of one number, native; bytes and texts have none.
        dataset: h5py's own.
        what: What it is, where it is `other`.
        loose: Values lie apart from the data set, each of any length.
        offset: Where its numbers lie in the file, raw and one after the other; None where they do not.
        stored: Of a number as it lies there.
    """

    path: str
    shape: tuple[int, ...]
    kind: str
    dtype: np.dtype[Any] | None
    dataset: Any = field(repr=False)
    what: str = ""
    loose: bool = False
    offset: int | None = None
    stored: np.dtype[Any] | None = None

    @property
    def step(self) -> tuple[int, ...]:
        """The shape behind the first axis."""
        return self.shape[1:]

    @property
    def step_bytes(self) -> int:
        """Of one step, as it is read; of texts and bytes about."""
        return prod(self.step) * (self.dtype.itemsize if self.dtype is not None else 64)


class Hdf5File:
    """One file; for one thread at a time.

    Args:
        blob: Its bytes.
        name: What messages call it.

    Raises:
        MissingDependencyError: h5py is not installed.
        CorruptFileError: It is no HDF5 file, or a damaged one.
    """

    def __init__(self, blob: Blob, name: str, /) -> None:
        self.name = name
        self.blob = blob
        self._h5py = plugins.require("h5py", extra="hdf5")
        self._arrays: OrderedDict[str, StoredArray | None] = OrderedDict()
        self._groups: OrderedDict[str, Any] = OrderedDict()
        self._bytes = bytes_of(blob)
        try:
            with self.reading("the file"):
                self._file = self._h5py.File(self._bytes, "r")
                # At the latest when Python ends: HDF5 ends later, and would ask a file of Python's for what is left.
                self._closing = weakref.finalize(self, _close, self._file, self._bytes)
                self._root = self._h5py.h5g.open(self._file.id, b"/")
        except BaseException:
            self._bytes.close()
            raise

    @contextmanager
    def reading(self, what: str, /) -> Iterator[None]:
        """Within the block the errors of h5py become ours.

        Args:
            what: What is read, for messages.

        Raises:
            CorruptFileError: It cannot be read.
        """
        try:
            yield
        except SeqlakeError:
            raise
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError, MemoryError) as error:
            said = str(error.args[0] if error.args else error) or type(error).__name__
            raise CorruptFileError(
                in_line(f"{self.name}: {what} cannot be read: {said}."),
                path=self.blob.location,
                hint="The file is damaged, or was cut off while it was written or copied: fetch it again.",
            ) from error

    def close(self) -> None:
        """Close the file for good."""
        self._arrays.clear()
        self._groups.clear()
        self._closing()

    # ---- nodes

    def node(self, path: str, /) -> Any:
        """The group or data set at a path; None where nothing is.

        Raises:
            UnsafeReferenceError: A link on the way leaves the file.
            CorruptFileError: It cannot be opened.
        """
        with self.reading(f"{path!r}"):
            folder, _, name = path.rstrip("/").rpartition("/")
            group = self._group(folder)
            identifier = None if group is None else self._walk(group, name, _LINKS)
            return None if identifier is None else self._wrapped(identifier)

    def _group(self, path: str) -> Any:
        """The group at a path, kept since what lies in it is asked for one by one; None where there is none."""
        if path not in self._groups:
            self._groups[path] = self._walk(self._root, path, _LINKS)
            if len(self._groups) > _GROUPS:
                self._groups.popitem(last=False)
        return self._groups[path]

    def _wrapped(self, identifier: Any) -> Any:
        if isinstance(identifier, self._h5py.h5d.DatasetID):
            return self._h5py.Dataset(identifier)
        return self._h5py.Group(identifier) if isinstance(identifier, self._h5py.h5g.GroupID) else None

    def _walk(self, group: Any, path: str, links: int) -> Any:
        here = self._root if path.startswith("/") else group
        for name in path.split("/"):
            if name in {"", "."}:
                continue
            if not isinstance(here, self._h5py.h5g.GroupID):
                return None
            here = self._child(here, name.encode("utf-8", "surrogateescape"), links)
            if here is None:
                return None
        return here

    def _child(self, group: Any, name: bytes, links: int) -> Any:
        h5l, links_of = self._h5py.h5l, group.links
        if not links_of.exists(name):
            return None
        kind = links_of.get_info(name).type
        if kind == h5l.TYPE_HARD:
            return self._h5py.h5o.open(group, name)
        if kind == h5l.TYPE_SOFT and links:
            return self._walk(group, links_of.get_val(name).decode("utf-8", "surrogateescape"), links - 1)
        name_text = name.decode("utf-8", "backslashreplace")
        if kind == h5l.TYPE_SOFT:
            raise CorruptFileError(
                in_line(f"{self.name}: the link {name_text!r} leads to more than {_LINKS} others, or to itself."),
                path=self.blob.location,
            )
        target = links_of.get_val(name)[0] if kind == h5l.TYPE_EXTERNAL else b"something else"
        raise UnsafeReferenceError(
            in_line(f"{self.name}: the link {name_text!r} leaves the file, for {target!r}; it is not followed."),
            path=self.blob.location,
            hint="Copy what it names into the file (h5repack, or h5py with expand_external=True), or leave it out.",
        )

    def names(self, path: str, /) -> list[str]:
        """Names in a group, in their natural order; none where it is not there."""
        group = self.node(path)
        with self.reading(f"{path!r}"):
            if not isinstance(group, self._h5py.Group):
                return []
            if len(group.id) > _MOST_NODES:
                raise CorruptFileError(f"{self.name}: {path!r} holds {len(group.id):,} names, which is not read.")
            return sorted((str(name) for name in group), key=natural)

    def is_group(self, path: str, /) -> bool:
        """Whether a group is there."""
        return isinstance(self.node(path), self._h5py.Group)

    def arrays(self, path: str = "/", /) -> Iterator[tuple[str, StoredArray | SeqlakeError]]:
        """Paths of all data sets in a group and in its groups, in natural order, and what they are; or what is wrong.

        Groups are walked once, however many links lead to them.
        """
        left, seen, count = [("", 0)], set[Any](), 0
        while left:
            inner, depth = left.pop()
            groups: list[tuple[str, int]] = []
            for name in self.names(f"{path}/{inner}"):
                place = f"{inner}/{name}" if inner else name
                count += 1
                try:
                    node = self.node(f"{path}/{place}")
                    array = self.array(f"{path}/{place}") if isinstance(node, self._h5py.Dataset) else None
                except SeqlakeError as error:
                    yield place, error
                    continue
                if array is not None:
                    yield place, array
                elif isinstance(node, self._h5py.Group) and depth < _DEPTH:
                    mark = hash(node.id)
                    if mark not in seen:
                        seen.add(mark)
                        groups.append((place, depth + 1))
            if count > _MOST_NODES:
                raise CorruptFileError(f"{self.name}: it holds more than {_MOST_NODES:,} data sets and groups.")
            left += reversed(groups)

    # ---- data sets

    def array(self, path: str, /) -> StoredArray | None:
        """A data set, looked at: what it is and where it lies; None where there is none.

        Raises:
            UnsafeReferenceError: It, or its values, lie in another file.
            CorruptFileError: It declares more than it can hold, or cannot be opened.
            MissingDependencyError: It is packed by a filter that is not installed.
        """
        if path not in self._arrays:
            node = self.node(path)
            with self.reading(f"{path!r}"):
                is_there = isinstance(node, self._h5py.Dataset)
                self._arrays[path] = self._looked_at(path, node) if is_there else None
            if len(self._arrays) > _KEPT:  # each holds a handle of HDF5
                self._arrays.popitem(last=False)
        return self._arrays[path]

    def _looked_at(self, path: str, dataset: Any) -> StoredArray:
        plist = dataset.id.get_create_plist()
        self._refuse_elsewhere(path, plist)
        kind, dtype, what = self._kind(dataset)
        shape = tuple(int(extent) for extent in dataset.shape or ())
        if dataset.shape is None:
            kind, what = "other", "empty"
        if kind != "other":
            missing_filter(self.name, path, plist, self._h5py)
            self._refuse_bomb(path, dataset, plist, shape)
        raw = kind == "number" and plist.get_layout() == self._h5py.h5d.CONTIGUOUS
        nbytes = prod(shape) * (dataset.dtype.itemsize if raw else 0)
        # Of values that were never written the offset is any number.
        offset = dataset.id.get_offset() if nbytes and dataset.id.get_storage_size() == nbytes else None
        if offset is not None and not 0 <= offset <= self.blob.size - nbytes:
            raise CorruptFileError(
                in_line(f"{self.name}: {path!r} lies at byte {offset:,}, behind the {self.blob.size:,} of the file."),
                path=self.blob.location,
                hint="The file was cut off: fetch it again.",
            )
        return StoredArray(
            path=path,
            shape=shape,
            kind=kind,
            dtype=dtype,
            dataset=dataset,
            what=what,
            loose=kind in {"text", "bytes"} and dataset.dtype.kind == "O",
            offset=offset,
            stored=dataset.dtype if kind == "number" else None,
        )

    def _refuse_elsewhere(self, path: str, plist: Any) -> None:
        """Values in files of their own, and views of other files' data sets."""
        elsewhere = [plist.get_external(n)[0] for n in range(plist.get_external_count())]
        if plist.get_layout() == self._h5py.h5d.VIRTUAL:
            for number in range(plist.get_virtual_count()):
                file, source = plist.get_virtual_filename(number), plist.get_virtual_dsetname(number)
                inner = self.node(source) if file == "." else None
                if inner is None or inner.id.get_create_plist().get_layout() == self._h5py.h5d.VIRTUAL:
                    elsewhere.append(f"{file}:{source}")
                else:
                    self._refuse_elsewhere(source, inner.id.get_create_plist())
        if elsewhere:
            raise UnsafeReferenceError(
                in_line(f"{self.name}: the values of {path!r} lie elsewhere, in {elsewhere[0]!r}; they are not read."),
                path=self.blob.location,
                hint="Write them into the file, or leave it out: scan(..., without=[...]).",
            )

    def _kind(self, dataset: Any) -> tuple[str, np.dtype[Any] | None, str]:
        try:
            dtype = dataset.dtype
        except TypeError as error:
            return "other", None, f"of a type that numpy does not have ({error})"
        if self._h5py.check_string_dtype(dtype) is not None:
            return "text", None, ""
        inner = self._h5py.check_vlen_dtype(dtype)
        if inner is not None:
            plain = inner in {np.dtype(np.uint8), np.dtype(np.int8)} and len(dataset.shape or ()) <= 1
            return ("bytes", None, "") if plain else ("other", None, f"runs of {inner} of any length")
        if self._h5py.check_ref_dtype(dtype) is not None:
            return "other", None, "references"
        if dtype.names is not None:
            return "other", None, f"compound: {', '.join(dtype.names)}"
        if dtype.kind in "iufb" and dtype.subdtype is None and dtype.itemsize <= 8:
            return "number", dtype.newbyteorder("="), ""
        return "other", None, f"of type {dtype}"

    def _refuse_bomb(self, path: str, dataset: Any, plist: Any, shape: tuple[int, ...]) -> None:
        """Compare what is declared with what is stored, before anybody allocates it."""
        size, stored = dataset.id.get_type().get_size(), dataset.id.get_storage_size()
        if plist.get_layout() == self._h5py.h5d.VIRTUAL:
            stored = self.blob.size
        declared = prod(shape) * size
        if plist.get_layout() == self._h5py.h5d.CHUNKED:
            declared = max(declared, prod(plist.get_chunk()) * size)
        if stored > self.blob.size or declared > max(_SMALL, stored * _RATIO):
            raise CorruptFileError(
                in_line(
                    f"{self.name}: {path!r} declares {' x '.join(map(str, shape))} values, {declared:,} bytes; the "
                    f"{self.blob.size:,} bytes of the file store {stored:,} of it, which cannot hold them."
                ),
                path=self.blob.location,
                hint="It was cut off, or made to harm: fetch it again, or leave this out: scan(..., without=[...]).",
            )

    # ---- values

    def steps(self, array: StoredArray, start: int, stop: int, /) -> NDArray[Any]:
        """[stop - start, ...] values along the first axis: numbers native; texts and bytes as objects.

        Raises:
            CorruptFileError: They cannot be read, or are more bytes than the file has.
        """
        with self.reading(f"{array.path!r}"):
            if array.kind == "number":
                return self._numbers(array, start, stop)
            values = np.empty(stop - start, object)
            nbytes = 0
            at_once = max(1, min(64, _LOOSE // max(1, self.blob.size))) if array.loose else 64
            for begin in range(start, stop, at_once):  # each value may stand for the same many bytes
                part = array.dataset[begin : min(begin + at_once, stop)]
                cells = [one.tobytes() if isinstance(one, np.ndarray) else bytes(one) for one in np.ravel(part)]
                nbytes += sum(map(len, cells))
                if array.loose and nbytes > self.blob.size:
                    raise ValueError(f"it holds more than the {self.blob.size:,} bytes of the file")
                values[begin - start : begin - start + len(cells)] = cells
            return values

    def _numbers(self, array: StoredArray, start: int, stop: int) -> NDArray[Any]:
        h5s, dtype = self._h5py.h5s, array.dataset.dtype
        values = np.empty((stop - start, *array.step), dtype)
        if values.size:
            space = array.dataset.id.get_space()
            space.select_hyperslab((start, *(0 for _ in array.step)), values.shape)
            array.dataset.id.read(h5s.create_simple(values.shape), space, values)
        assert array.dtype is not None
        return values.astype(array.dtype, copy=False)

    def whole(self, array: StoredArray, /) -> Any:
        """All of it: an array of numbers, or of bytes as objects; what has no axes is one value."""
        with self.reading(f"{array.path!r}"):
            if array.shape and array.kind == "number":
                return self._numbers(array, 0, array.shape[0])
            if array.shape:
                return self.steps(array, 0, array.shape[0])
            return array.dataset[()]

    def attribute(self, path: str, name: str, /) -> Any:
        """An attribute of a group or data set; None where there is none, or it is of a kind that is not read."""
        node = self.node(path)
        with self.reading(f"the attribute {name!r} of {path!r}"):
            if node is None or name not in node.attrs:
                return None
            stored = node.attrs.get_id(name)
            size = prod(stored.shape or ()) * stored.get_type().get_size()
            if size > _SMALL or size > max(self.blob.size, 1 << 16):
                raise ValueError(f"it declares {size:,} bytes")
            if stored.dtype.kind == "O" and prod(stored.shape or ()) > _TEXTS:
                raise ValueError(f"it holds {prod(stored.shape):,} values of any length")
            value = node.attrs[name]
            return None if isinstance(value, self._h5py.Empty) else value

    def attributes(self, path: str, /) -> list[str]:
        """Names of the attributes of a group or data set."""
        node = self.node(path)
        with self.reading(f"the attributes of {path!r}"):
            return [] if node is None else [str(name) for name in node.attrs]


def _close(file: Any, data: Any) -> None:
    file.close()
    data.close()


def missing_filter(name: str, path: str, plist: Any, h5py: Any, /) -> None:
    """Raise `MissingDependencyError` where a data set is packed by a filter that is not installed.

    Args:
        name: Of the file.
        path: Of the data set.
        plist: How it was created.
        h5py: The package.
    """
    for number in range(plist.get_nfilters()):
        code, _, _, said = plist.get_filter(number)
        if h5py.h5z.filter_avail(code):
            continue
        if importlib.util.find_spec("hdf5plugin") is not None:
            plugins.require("hdf5plugin", extra="hdf5")  # it registers its filters
            if h5py.h5z.filter_avail(code):
                continue
        title = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said or "")
        known = _NAMED.get(code, title or "unknown")
        raise UnavailableFilterError(
            in_line(
                f"{name}: {path!r} is packed by the HDF5 filter {known} (number {code}), which is not installed. "
                "Install its plugin, as in: pip install hdf5plugin"
            )
        )


class UnavailableFilterError(CorruptFileError):
    """Values are packed by a filter that this HDF5 does not have; the message names it."""


def natural(name: str, /) -> tuple[tuple[int, int, str], ...]:
    """Sorts names as people count: `demo_9` before `demo_10`.

    Example:
        >>> sorted(["demo_10", "demo_9"], key=natural)
        ['demo_9', 'demo_10']
    """
    parts: list[tuple[int, int, str]] = []
    text = ""
    digits = ""
    for letter in f"{name}\0":
        if letter.isascii() and letter.isdigit() and len(digits) < 18:
            digits += letter
            continue
        if digits:
            parts += [(1, 0, text), (0, int(digits), digits)]
            text, digits = "", ""
        text += letter
    return (*parts, (1, 0, text))

"""A dataset on the Hub as a store, and its files as blobs."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from seqlake.errors import ReadOnlyError, UnsafeReferenceError
from seqlake.files.blobs import LocalBlob
from seqlake.files.limits import refuse_more_than_memory
from seqlake.files.locations import checked, folder, redacted
from seqlake.files.web import HEADERS, AnyHost, WebBlob, total_of
from seqlake.stores.hf.hub import Hub, Listed
from seqlake.stores.hf.places import ROOT, HubPlace, parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from seqlake.protocols import Ints

_LAPSED = {400, 401, 403, 404, 410}  # what an address that was signed for an hour answers later


class _ToItsStorage(AnyHost):
    """Follows the Hub to where it keeps the bytes; the login goes to the Hub alone."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        followed = super().redirect_request(req, fp, code, msg, headers, newurl)
        if followed is None:
            return None
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if (old.scheme, new.scheme) == ("https", "http"):
            raise UnsafeReferenceError(f"{redacted(req.full_url)} sends its readers on to plain http.")
        login = req.unredirected_hdrs.get("Authorization")
        if login is not None and (old.scheme, old.netloc) == (new.scheme, new.netloc):
            followed.add_unredirected_header("Authorization", login)
        return followed


class HubBlob(WebBlob):
    """A file of one commit. Read from the cache of `huggingface_hub` where it was downloaded, else by range.

    Args:
        hub: Which is asked.
        place: The file, at its commit.
        listed: Its size, and the hash of its content.
    """

    __slots__ = ("_direct", "_hub", "_local", "_place")

    def __init__(self, hub: Hub, place: HubPlace, listed: Listed, /) -> None:  # nothing is asked for
        self._set(hub, place, listed.size, listed.tag)

    def _set(self, hub: Hub, place: HubPlace, size: int, tag: str) -> None:
        self.location: str = str(place)
        self.size = size
        self._hub = hub
        self._place = place
        self._storage = hub.storage
        self._tag = tag
        self._whole = None
        self._direct: str | None = None  # where the Hub sent us; signed, so it goes into no message and no pickle
        self._local: LocalBlob | bool = True  # True: nobody looked yet

    def _downloaded(self) -> LocalBlob | None:
        if self._local is True:
            path = self._hub.kept(self._place)
            blob = None if path is None else LocalBlob(path)
            self._local = False if blob is None or blob.size != self.size else blob
        return self._local if isinstance(self._local, LocalBlob) else None

    def view(self) -> memoryview | None:
        """All of it where it was downloaded before; else None: only ranges can be had."""
        local = self._downloaded()
        return None if local is None else local.view()

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Parts of it; neighbours are fetched together, up to 12 requests at once.

        Raises:
            ShardChangedError: A part lies outside the file.
            AccessDeniedError: The login is refused.
            OSError: The Hub does not answer, or nothing may be asked for (`HF_HUB_OFFLINE`).
        """
        local = self._downloaded()
        if local is not None:
            return local.ranges(starts, stops)
        if self._hub.offline:
            raise FileNotFoundError(2, "HF_HUB_OFFLINE is set, and the file was not downloaded before", self.location)
        return super().ranges(starts, stops)

    def request(self, headers: Mapping[str, str], /) -> urllib.request.Request:
        """The Hub with the login, or where it sent us before, without."""
        address = self._direct or self._place.address(self._hub.endpoint)
        request = urllib.request.Request(address, headers={**headers, **HEADERS})  # noqa: S310 - http and https alone
        if self._direct is None and self._hub.token:
            request.add_unredirected_header("Authorization", f"Bearer {self._hub.token}")
        return request

    def redirects(self) -> urllib.request.HTTPRedirectHandler:
        """To any host that may be asked: the Hub says where it keeps its bytes."""
        return _ToItsStorage()

    def again(self, answer: urllib.error.HTTPError, /) -> bool:
        """Where a signed address has lapsed, the Hub gives another one."""
        if self._direct is not None and answer.code in _LAPSED:
            self._direct = None
            return True
        return super().again(answer)

    def refusal(self, answer: urllib.error.HTTPError, /) -> OSError:
        """The error that an answer means."""
        if urlsplit(answer.url).netloc != urlsplit(self._hub.endpoint).netloc:
            return OSError(5, f"the storage of the Hub answers HTTP {answer.code}", self.location)
        return self._hub.problem(self._place, answer.code, answer.headers)

    def is_same(self, answer: Any, /) -> bool:
        """By its size: a commit never changes, and the storage of the Hub has ETags of its own."""
        if urlsplit(answer.url).netloc != urlsplit(self._hub.endpoint).netloc:
            self._direct = answer.url
        return total_of(answer) == self.size

    def __getstate__(self) -> Any:
        return (self._hub, self._place, self.size, self._tag)

    def __setstate__(self, state: Any) -> None:
        self._set(*state)

    def __repr__(self) -> str:
        return f"HubBlob({self.location!r}, {self.size} bytes)"


class HubStore:
    """A dataset on the Hub, or a folder in it, at one commit: what it holds is listed and read, never written.

    Args:
        root: As in `hf://datasets/owner/name@v1.0`; `hf://datasets` alone is a store of names that say the rest.
        storage: As for `stores.hf.open`.

    Raises:
        ValueError: No such address.
    """

    def __init__(self, root: str, /, *, storage: Mapping[str, str] | None = None) -> None:
        self.root: str = root.rstrip("/")
        self._hub = Hub(storage)
        self._place = None if self.root.lower() == ROOT else parse(self.root)

    def pinned(self) -> str:
        """Its root at the commit that is read."""
        return str(self._at_commit())

    def _at_commit(self) -> HubPlace:
        if self._place is None:
            raise ValueError(f"{self.root}: expected {ROOT}/owner/name: all datasets of the Hub are none.")
        if not self._place.is_pinned:
            self._place = self._place.at(self._hub.commit(self._place))
        return self._place

    def blob(self, path: str, /) -> HubBlob:
        """The file of that name.

        Raises:
            FileNotFoundError: There is none.
            DatasetNotFoundError: No such dataset, or no such revision.
            AccessDeniedError: It is gated, or the login is refused.
        """
        name = checked(path)
        place = parse(f"{ROOT}/{name}") if self._place is None else self._at_commit().under(name)
        return HubBlob(self._hub, *self._hub.file(place))

    def read(self, path: str, /) -> bytes:
        """All of a small file; `FileNotFoundError`."""
        blob = self.blob(path)
        view = blob.view()
        if view is None:
            refuse_more_than_memory(blob.size, blob.location)
            [view] = blob.ranges(np.array([0], np.int64), np.array([blob.size], np.int64))
        return bytes(view)

    def known(self, path: str, size: int, /) -> HubBlob:  # noqa: ARG002 - the commit knows it
        """The file of that name; of one that was listed nothing is asked."""
        return self.blob(path)

    def stamp(self, path: str, /) -> str:
        """Its token: a commit never changes."""
        return self.blob(path).token

    def list(self, prefix: str = "", /, *, after: str = "") -> Iterator[tuple[str, int]]:
        """(path, size) of the files below a folder, in the order of their names, those up to `after` left out."""
        inner, place = folder(prefix).rstrip("/"), self._at_commit()
        start = f"{place.path}/" if place.path else ""
        listed = self._hub.list(place.under(inner))
        paths = {path.removeprefix(start): one.size for path, one in listed.items()}
        return iter(sorted((path, size) for path, size in paths.items() if path > after))

    def put(self, path: str, data: bytes | Path, /, *, if_absent: bool = False, temporary: str = "") -> None:  # noqa: ARG002 - the contract's arguments
        """Not possible; raises `ReadOnlyError`."""
        raise self._read_only(path)

    def local(self, path: str, /) -> Path | None:  # noqa: ARG002 - the same
        """None: nothing here can be written."""
        return None

    def copy(self, source: str, target: str, /) -> None:  # noqa: ARG002 - the same
        """Not possible; raises `ReadOnlyError`."""
        raise self._read_only(target)

    def sync(self, *folders: str) -> None:
        """Nothing to do: nothing is written."""

    def move(self, source: str, target: str, /) -> None:  # noqa: ARG002 - the same
        """Not possible; raises `ReadOnlyError`."""
        raise self._read_only(target)

    def delete(self, paths: Iterable[str], /) -> None:
        """Not possible; raises `ReadOnlyError`."""
        for path in paths:
            raise self._read_only(path)

    def _read_only(self, path: str) -> ReadOnlyError:
        checked(path)
        return ReadOnlyError(
            f"{self.root} is on the Hugging Face Hub, where files are not written one by one.",
            path=self.root,
            hint="Write to a folder, then: sl.push(folder, 'hf://datasets/owner/name'), `seqlake push`.",
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "_hub": self._hub, "_place": self._place}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HubStore) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    def __repr__(self) -> str:
        return f"HubStore({self.root!r})"

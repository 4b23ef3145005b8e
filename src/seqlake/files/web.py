"""Files on a web server: read by range, by our own client, which goes to no host that was not named.

Not through obstore, which follows a redirect to anywhere and does not show whom it talks to: a dataset that somebody
sent could reach into your network with it. The address that is connected to is the one that was judged: a name is
looked up once and its addresses are tried in their order, so no second answer of a name server can lead elsewhere.
Through a proxy the peer is the proxy, which the environment names: then what the name means here is judged. Nothing
here has threads of its own, so forked workers may read the web.
"""

from __future__ import annotations

import re
import socket
import time
import urllib.error
import urllib.request
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from seqlake.errors import ReadOnlyError, SeqlakeError, ShardChangedError, UnsafeReferenceError
from seqlake.files.allowed import refuse_private
from seqlake.files.credentials import Storage
from seqlake.files.locations import checked, redacted, web_url
from seqlake.files.ranges import fetched, plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from seqlake.protocols import Ints

_TIMEOUT = 30.0
_ATTEMPTS = 4
_AGAIN = {408, 425, 429, 500, 502, 503, 504}
_MOST_WHOLE = 256 << 20  # of a server that cannot serve ranges
_PATIENCE = 300.0  # seconds for one answer, of 16 MiB at most or of a whole file: a server that trickles is none
_CHUNK = 1 << 20
_LONGEST_WAIT = 60.0  # seconds, that a server may ask for before it is asked again
HEADERS = {"Accept-Encoding": "identity", "User-Agent": "seqlake"}
"""What every request says."""


def misspelled(location: str, /) -> str:
    """Why this is no address that can be asked for; empty where it is one.

    Example:
        >>> misspelled("https://host:8080/a.mp4"), misspelled("https://me:secret@host/a.mp4")
        ('', 'leave user and password out of an address')
    """
    try:
        parts = urlsplit(location)
        host, _ = (parts.hostname or "").encode("idna"), parts.port
    except ValueError as error:  # a label of 64 letters, a port of 70 000, half an IPv6 address
        return str(error)
    if "@" in parts.netloc:
        return "leave user and password out of an address"
    return "" if host and parts.scheme in {"http", "https"} else "it names no web server"


def opener_of(storage: Storage, redirects: urllib.request.HTTPRedirectHandler, /) -> urllib.request.OpenerDirector:
    """What opens addresses of web servers and no others.

    Args:
        storage: Options, with what may be asked.
        redirects: Says which redirects are followed.
    """
    opener = urllib.request.OpenerDirector()
    for one in (
        urllib.request.ProxyHandler(),
        Judging(storage),
        redirects,
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(one)
    return opener


class _Judged(HTTPConnection):
    """A connection to an address that may be talked to."""

    storage: Storage

    def connect(self) -> None:
        """Connect, and send nothing yet; of HTTPS this is the part before the handshake."""
        self.sock = _connected(self.host, self.port, self.timeout, self.storage)


class _JudgedSecurely(HTTPSConnection, _Judged):
    """The same for https: its `connect` calls the one above and wraps what that made."""


class Judging(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens addresses with such connections.

    Args:
        storage: Options, with what may be asked.
    """

    def __init__(self, storage: Storage, /) -> None:
        urllib.request.HTTPHandler.__init__(self)
        urllib.request.HTTPSHandler.__init__(self)
        self._storage = storage

    def http_open(self, req: urllib.request.Request) -> Any:
        """Open an http address."""
        return self._opened(req, HTTPConnection, _Judged)

    def https_open(self, req: urllib.request.Request) -> Any:
        """Open an https address."""
        return self._opened(req, HTTPSConnection, _JudgedSecurely)

    def _opened(self, req: urllib.request.Request, plain: type[HTTPConnection], judged: type[_Judged]) -> Any:
        asked = urlsplit(req.full_url)
        if asked.netloc.rpartition("@")[2].lower() != req.host.lower():
            self._judge_name(asked.hostname or "", asked.port or req.type)
            return self.do_open(plain, req)

        def judged_connection(host: str, /, **options: Any) -> HTTPConnection:
            connection = judged(host, **options)
            connection.storage = self._storage
            return connection

        return self.do_open(judged_connection, req)

    def _judge_name(self, host: str, port: int | str) -> None:
        """What a proxy is asked for; it may know names that this machine does not."""
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            return
        for one in addresses:
            refuse_private(str(one[4][0]), host, self._storage)


def _connected(host: str, port: int, timeout: Any, storage: Storage) -> socket.socket:
    """A connection to the first address of a host that answers.

    Raises:
        UnsafeReferenceError: An address is not public, and the host is none that may be asked.
        OSError: None answers.
    """
    problem: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        refuse_private(str(address[0]), host, storage)
        connection = socket.socket(family, kind, protocol)
        try:
            if isinstance(timeout, (int, float)):
                connection.settimeout(timeout)
            connection.connect(address)
            refuse_private(str(connection.getpeername()[0]), host, storage)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            connection.close()
            problem = error
            if not isinstance(error, (ConnectionError, TimeoutError)):
                raise
        else:
            return connection
    raise problem or OSError(f"{host} has no address")


class AnyHost(urllib.request.HTTPRedirectHandler):
    """Follows a redirect to any web server that may be asked."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """The request that follows; UnsafeReferenceError where it leads to no web server."""
        if why := misspelled(newurl):
            raise UnsafeReferenceError(f"{redacted(req.full_url)} sends its readers to no address: {why}.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _SameHost(AnyHost):
    """Follows a redirect within its host, and from http to https."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        followed = super().redirect_request(req, fp, code, msg, headers, newurl)
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        upgraded = (old.scheme, new.scheme) == ("http", "https") and not (old.port or new.port)
        if old.hostname != new.hostname or not ((old.scheme, old.port) == (new.scheme, new.port) or upgraded):
            raise UnsafeReferenceError(
                f"{redacted(req.full_url)} sends its readers on to {new.scheme}://{new.hostname}. If you trust that, "
                'pass storage={"allow_redirects": "true"}, or name the other address itself.',
                path=redacted(req.full_url),
            )
        return followed


class WebBlob:
    """A file on a web server that does not change.

    Args:
        location: Its address; what is quoted in it stays so.
        storage: `allow_redirects="true"` follows redirects to other hosts; `allow_hosts` names hosts, by commas, that
            may be on this machine or in a private network.

    Raises:
        FileNotFoundError: Nothing is there.
        PermissionError: The server refuses.
        UnsafeReferenceError: It sends us to another host, or is at an address that is not public.
    """

    __slots__ = ("_storage", "_tag", "_whole", "location", "size")

    def __init__(self, location: str, /, *, storage: Mapping[str, str] | None = None) -> None:
        if why := misspelled(location):
            raise ValueError(f"{redacted(location)}: {why}.")
        self.location: str = location
        self._storage = storage if isinstance(storage, Storage) else Storage(storage)
        self._whole: memoryview | None = None
        with self._answer({"Range": "bytes=0-0"}) as answer:
            self.size: int = total_of(answer)
            self._tag = _tag(answer)

    @property
    def token(self) -> str:
        """The ETag, else the time of the last change, and the size."""
        return f"{self._tag}-{self.size}"

    def view(self) -> memoryview | None:
        """None: only ranges can be had."""
        return None

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Parts of it; neighbours are fetched together, up to 12 requests at once.

        Raises:
            ShardChangedError: The file changed on the server.
        """
        return fetched(plan(starts, stops, self.size, redacted(self.location)), self._fetch)

    def _fetch(self, start: int, stop: int) -> memoryview:
        if self._whole is not None:
            return self._whole[start:stop]
        problem: Exception | None = None
        for attempt in range(_ATTEMPTS):
            _wait(attempt)
            try:
                with self._answer({"Range": f"bytes={start}-{stop - 1}"}) as answer:
                    if not self.is_same(answer):
                        raise self._changed()
                    if answer.status == 206:
                        self._refuse_another_part(answer, start, stop)
                        data = memoryview(_body(answer, stop - start))
                    else:
                        data = self._all_of(answer)[start:stop]
            except (HTTPException, TimeoutError, ConnectionError) as error:
                problem = error
                continue
            if len(data) == stop - start:
                return data
        raise OSError(
            5, f"the connection broke {_ATTEMPTS} times ({problem or 'short answer'})", redacted(self.location)
        )

    def _all_of(self, answer: Any) -> memoryview:
        """The whole file, of a server that knows no ranges; kept, or every range would fetch it again."""
        if self.size > _MOST_WHOLE:
            raise OSError(5, "the server cannot serve parts of a large file; copy it first", redacted(self.location))
        data = memoryview(_body(answer, self.size))
        if len(data) == self.size:
            self._whole = data
        return data

    def _answer(self, headers: Mapping[str, str]) -> Any:
        """An open answer; waits and asks again where the server says that it is busy."""
        opener = opener_of(self._storage, self.redirects())
        place, wait = redacted(self.location), 0.0
        for attempt in range(_ATTEMPTS):
            _wait(attempt, least=wait)
            last = attempt == _ATTEMPTS - 1
            try:
                return opener.open(self.request(headers), timeout=_TIMEOUT)
            except urllib.error.HTTPError as error:
                if error.code == 416 and error.headers.get("Content-Range", "").endswith("/0"):
                    return error  # an empty file has no first byte
                with error:
                    if not self.again(error) or last:
                        raise self.refusal(error) from None
                    wait = _asked_to_wait(error)
            except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
                reason = getattr(error, "reason", error)
                if isinstance(reason, SeqlakeError):
                    raise reason from None
                if last:
                    raise OSError(5, f"the server does not answer ({reason})", place) from None
        raise AssertionError("unreachable")  # pragma: no cover

    def request(self, headers: Mapping[str, str], /) -> urllib.request.Request:
        """What is asked for, with these headers besides."""
        return urllib.request.Request(  # noqa: S310 - stores.open_blob dispatches http and https alone
            web_url(self.location), headers={**headers, **HEADERS}
        )

    def redirects(self) -> urllib.request.HTTPRedirectHandler:
        """Which redirects are followed."""
        return AnyHost() if self._storage.allows("allow_redirects") else _SameHost()

    def again(self, answer: urllib.error.HTTPError, /) -> bool:
        """Whether an answer that refuses may be another one in a moment."""
        return answer.code in _AGAIN

    def refusal(self, answer: urllib.error.HTTPError, /) -> OSError:
        """The error that an answer means."""
        return _refusal(answer.code, redacted(self.location))

    def is_same(self, answer: Any, /) -> bool:
        """Whether an answer is of the file that was seen first."""
        return bool(_tag(answer) == self._tag and total_of(answer) == self.size)

    def _refuse_another_part(self, answer: Any, start: int, stop: int) -> None:
        """Other bytes than were asked for are no answer, however many they are."""
        said = re.match(r"bytes (\d{1,18})-(\d{1,18})/", answer.headers.get("Content-Range", ""))
        if said is None or (int(said[1]), int(said[2])) != (start, stop - 1):
            sent = answer.headers.get("Content-Range", "no Content-Range")[:80]
            raise OSError(5, f"asked for bytes {start}-{stop - 1}, the server sends {sent!r}", redacted(self.location))

    def _changed(self) -> ShardChangedError:
        place = redacted(self.location)
        return ShardChangedError(f"{place} changed on its server while it was open; open it again.", path=place)

    def __getstate__(self) -> tuple[str, Storage, int, str]:
        return (self.location, self._storage, self.size, self._tag)

    def __setstate__(self, state: tuple[str, Storage, int, str]) -> None:
        self.location, self._storage, self.size, self._tag = state
        self._whole = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WebBlob) and (self.location, self.token) == (other.location, other.token)

    def __hash__(self) -> int:
        return hash((self.location, self.token))

    def __repr__(self) -> str:
        return f"WebBlob({redacted(self.location)!r}, {self.size} bytes)"


class WebStore:
    """A folder on a web server: to read from by name; it cannot be listed or written.

    Args:
        root: Its address.
        storage: As for `WebBlob`.
    """

    def __init__(self, root: str, /, *, storage: Mapping[str, str] | None = None) -> None:
        self.root: str = root.rstrip("/")
        self._storage = Storage(storage)

    def blob(self, path: str, /) -> WebBlob:
        """The file of that name; raises `FileNotFoundError`."""
        return WebBlob(f"{self.root}/{quote(checked(path))}", storage=self._storage)

    def list(self, prefix: str = "", /, *, after: str = "") -> Iterator[tuple[str, int]]:  # noqa: ARG002 - the contract's arguments
        """Not possible; raises `ReadOnlyError`."""
        raise ReadOnlyError(f"{redacted(self.root)}: HTTP cannot list. Name the files, or use the store's own URI.")

    def put(self, path: str, data: bytes | Path, /, *, if_absent: bool = False, temporary: str = "") -> None:  # noqa: ARG002 - the same
        """Not possible; raises `ReadOnlyError`."""
        raise self._read_only()

    def local(self, path: str, /) -> Path | None:  # noqa: ARG002 - the same
        """None: nothing here can be written."""
        return None

    def copy(self, source: str, target: str, /) -> None:  # noqa: ARG002 - the same
        """Not possible; raises `ReadOnlyError`."""
        raise self._read_only()

    def sync(self, *folders: str) -> None:
        """Nothing to do: nothing is written."""

    def move(self, source: str, target: str, /) -> None:  # noqa: ARG002 - the same
        """Not possible; raises `ReadOnlyError`."""
        raise self._read_only()

    def delete(self, paths: Iterable[str], /) -> None:  # noqa: ARG002 - the same
        """Not possible; raises `ReadOnlyError`."""
        raise self._read_only()

    def _read_only(self) -> ReadOnlyError:
        place = redacted(self.root)
        return ReadOnlyError(f"{place}: HTTP is read-only. Use the store's own URI, as in s3://bucket/...", path=place)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WebStore) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    def __repr__(self) -> str:
        return f"WebStore({redacted(self.root)!r})"


def _wait(attempt: int, *, least: float = 0.0) -> None:
    if attempt:
        time.sleep(max(0.1 * 4 ** (attempt - 1), least))


def _asked_to_wait(answer: urllib.error.HTTPError) -> float:
    """The seconds that a busy server asks for, within reason."""
    asked = str(answer.headers.get("Retry-After") or "")
    return min(float(asked), _LONGEST_WAIT) if re.fullmatch(r"[0-9]{1,6}", asked) else 0.0


def _tag(answer: Any) -> str:
    return str(answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "")


def total_of(answer: Any, /) -> int:
    """The size of the whole file, as the head of an answer says."""
    match = re.search(r"/(\d+)$", answer.headers.get("Content-Range", ""))
    length = match.group(1) if match else answer.headers.get("Content-Length")
    if length is None:
        raise OSError(5, "the server does not say how large the file is", redacted(answer.url))
    if not re.fullmatch(r"[0-9]{1,18}", length):  # what a file can be, and an int64 hold
        raise OSError(5, f"the server says that the file has {length[:40]!r} bytes", redacted(answer.url))
    return int(length)


def _body(answer: Any, size: int) -> bytes:
    """So many bytes of an answer, or those there are; memory is taken for what has come, not for what was said."""
    parts, missing, until = [], size, time.monotonic() + _PATIENCE
    while missing:
        part = answer.read1(min(missing, _CHUNK))
        if not part:
            break
        parts.append(part)
        missing -= len(part)
        if time.monotonic() > until:
            raise TimeoutError(f"{size - missing} of {size} bytes came in {_PATIENCE:.0f} s")
    return b"".join(parts)


def _refusal(status: int, place: str) -> OSError:
    if status in {404, 410}:
        return FileNotFoundError(2, f"not there (HTTP {status})", place)
    if status in {401, 403}:
        return PermissionError(13, f"the server refuses (HTTP {status})", place)
    return OSError(5, f"the server answers HTTP {status}", place)

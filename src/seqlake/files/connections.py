"""Connections of the web client: the address that is connected to is the one that was judged.

A name is looked up once and its addresses are tried in their order, so no second answer of a name server can lead
elsewhere. Through a proxy the peer is the proxy, which the environment names: then what the name means here is judged.
"""

from __future__ import annotations

import socket
import urllib.request
from http.client import HTTPConnection, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from seqlake.files.allowed import refuse_private

if TYPE_CHECKING:
    from seqlake.files.credentials import Storage


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
    made = urllib.request.OpenerDirector()
    for one in (
        urllib.request.ProxyHandler(),
        Judging(storage),
        redirects,
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        made.add_handler(one)
    return made


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
        """Of an http address."""
        return self._opened(req, HTTPConnection, _Judged)

    def https_open(self, req: urllib.request.Request) -> Any:
        """Of an https address."""
        return self._opened(req, HTTPSConnection, _JudgedSecurely)

    def _opened(self, req: urllib.request.Request, plain: type[HTTPConnection], judged: type[_Judged]) -> Any:
        asked = urlsplit(req.full_url)
        if asked.netloc.rpartition("@")[2].lower() != req.host.lower():
            self._judge_name(asked.hostname or "", asked.port or req.type)
            return self.do_open(plain, req)

        def made(host: str, /, **options: Any) -> HTTPConnection:
            connection = judged(host, **options)
            connection.storage = self._storage
            return connection

        return self.do_open(made, req)

    def _judge_name(self, host: str, port: int | str) -> None:
        """What a proxy is asked for; it may know names that this machine does not."""
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            return
        for one in found:
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
        made = socket.socket(family, kind, protocol)
        try:
            if isinstance(timeout, (int, float)):
                made.settimeout(timeout)
            made.connect(address)
            refuse_private(str(made.getpeername()[0]), host, storage)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            made.close()
            problem = error
            if not isinstance(error, (ConnectionError, TimeoutError)):
                raise
        else:
            return made
    raise problem or OSError(f"{host} has no address")

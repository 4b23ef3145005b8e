"""Where things are: paths and URIs, references relative to a dataset's root, and names inside a store.

Specification: "File Reference Columns". A reference with a scheme is used as it is; one without is resolved against
the dataset's root. `/abs` and `file:` are absolute and mean the same.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from seqlake.errors import UnsafeReferenceError

# `task: pick.mp4` is a name and `C:\data` a Windows path, so only `//` makes a scheme; `file:` may do without.
_SCHEME = re.compile(r"^(?:([A-Za-z][A-Za-z0-9+.-]+)://|(file):)", re.IGNORECASE)
_WEB = {"http", "https"}
OBJECT_STORES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")
"""Schemes that obstore opens."""


def scheme(location: str, /) -> str:
    """The scheme of a location in lower case; `file` for a path.

    Example:
        >>> scheme("s3://bucket/data"), scheme("data/arm"), scheme("C:/data")
        ('s3', 'file', 'file')
    """
    match = _SCHEME.match(location)
    return (match.group(1) or "file").lower() if match else "file"


def is_local(location: str, /) -> bool:
    """Whether the bytes lie in a file system of this machine."""
    return scheme(location) == "file"


def local_path(location: str, /) -> Path:
    """The path of a local location, which may be a `file:` URI.

    Raises:
        ValueError: A URI of another scheme, or a `file:` URI that names another machine.

    Example:
        >>> local_path("file:///data/pick%20and%20place").as_posix()
        '/data/pick and place'
    """
    if not is_local(location):
        raise ValueError(f"{location}: expected a path or a file: URI, found the scheme {scheme(location)!r}.")
    if not _SCHEME.match(location):
        return Path(location)
    rest = location[len("file:") :]
    if rest.startswith("//"):
        host, slash, rest = rest[2:].partition("/")
        if host.lower() not in {"", "localhost"}:
            raise ValueError(f"{location}: a file: URI cannot name the machine {host!r}. Write file:///path.")
        rest = slash + rest
    path = unquote(rest)
    # `file:` is absolute by definition; `/C:/data` is how it spells a Windows path.
    return Path(path[1:] if re.match(r"^/[A-Za-z]:", path) else f"/{path.lstrip('/')}")


def absolute(location: str | os.PathLike[str], /) -> str:
    """An absolute path for local locations, the URI itself (without a final slash) for others.

    Args:
        location: A path (`~` is the home folder), a `PathLike` or a URI.

    Raises:
        ValueError: Nothing of that kind, or it holds a NUL.

    Example:
        >>> absolute("s3://bucket/data/")
        's3://bucket/data'
    """
    text = os.fspath(location) if isinstance(location, (str, os.PathLike)) else None
    if not isinstance(text, str) or "\0" in text:
        raise ValueError(f"Expected a path or a URI, as 'data/arm' or 's3://bucket/arm', found {location!r}.")
    if is_local(text):
        return os.path.abspath(local_path(os.path.expanduser(text)))  # noqa: PTH100, PTH111 - resolve() follows links
    kind, _, rest = text.partition("://")
    return f"{kind}://{rest.rstrip('/')}"


def join(root: str, reference: str, /) -> str:
    """A reference as an absolute location; `..` is resolved, so that `inside` can judge it.

    A relative reference names a file, so its `%`, `?` and spaces mean themselves: below an HTTP root they are quoted.

    Args:
        root: The dataset's root, absolute.
        reference: What a cell holds: a path, or a URI, which is used as it is.

    Raises:
        UnsafeReferenceError: It holds a NUL, which no file system takes.

    Example:
        >>> join("s3://bucket/arm", "files/cam/1.mp4")
        's3://bucket/arm/files/cam/1.mp4'
    """
    if "\0" in reference:
        raise UnsafeReferenceError(f"{reference!r} holds a NUL and names no file.", path=root)
    if _SCHEME.match(reference):
        return absolute(local_path(reference)) if is_local(reference) else reference
    if is_local(root) or os.path.isabs(reference):  # noqa: PTH117 - Path would normalize
        return os.path.abspath(os.path.join(local_path(root) if is_local(root) else "/", reference))  # noqa: PTH100, PTH118 - lexical
    kind, place, path = _parts(root)
    name = quote(reference, safe="/~!$&'()*+,;=:@") if kind in _WEB else reference
    return f"{kind}://{place}{posixpath.normpath(posixpath.join(path or '/', name))}"


def inside(root: str, location: str, /) -> bool:
    """Whether a location lies at or below a root.

    Local links are followed: a link in a dataset that somebody sent may point at your own files.

    Example:
        >>> inside("s3://bucket/arm", "s3://bucket/arm2/x.mp4")
        False
    """
    if is_local(root) != is_local(location):
        return False
    if is_local(root):
        top, path = os.path.realpath(local_path(root)), os.path.realpath(local_path(location))
        return path == top or path.startswith(top.rstrip(os.sep) + os.sep)
    (kind, place, top), (other, elsewhere, path) = _normal(root), _normal(location)
    return (kind, place) == (other, elsewhere) and (path == top or path.startswith(top.rstrip("/") + "/"))


def redacted(location: str, /) -> str:
    """A location as messages may show it: without user, password and the signature of a signed URL.

    Example:
        >>> redacted("https://me:secret@host/cam.mp4?X-Amz-Signature=abc")
        'https://host/cam.mp4?...'
    """
    if is_local(location):
        return location
    kind, place, path = _parts(location)
    if kind in _WEB and ("?" in path or "#" in path):
        path = re.split(r"[?#]", path, maxsplit=1)[0] + "?..."
    return f"{kind}://{place.rpartition('@')[2]}{path}"


def parent(location: str, /) -> tuple[str, str]:
    """The root and the name of an object: what `s3://bucket/a/b` is to its bucket.

    Example:
        >>> parent("s3://bucket/a/b")
        ('s3://bucket', 'a/b')
    """
    kind, place, path = _parts(location)
    return f"{kind}://{place}", path.lstrip("/")


def has_bucket(uri: str, /) -> bool:
    """Whether a URI names a bucket in letters that a bucket can have.

    Some stores make the bucket a part of the host that is asked, so nothing that ends a host's name may be in it.

    Example:
        >>> has_bucket("s3://films/a"), has_bucket("az://films@lab.dfs.core.windows.net"), has_bucket("s3://evil.org:80#/a")
        (True, True, False)
    """
    return re.fullmatch(r"[\w$][\w$.-]*(@[\w.-]+)?", _parts(uri)[1], re.ASCII) is not None


def web_url(location: str, /) -> str:
    """A web address that can be sent: spaces and letters outside ASCII quoted, what is quoted already left alone."""
    parts = urlsplit(location)
    safe = "/~!$&'()*+,;=:@%"
    return urlunsplit((parts.scheme, parts.netloc, quote(parts.path, safe), quote(parts.query, safe + "?"), ""))


def _parts(uri: str) -> tuple[str, str, str]:
    """(scheme, bucket or host, path); not `urlsplit`, since `?` and `#` are letters in the name of an object."""
    kind, _, rest = uri.partition("://")
    place, slash, path = rest.partition("/")
    return kind.lower(), place, slash + path


def _normal(uri: str) -> tuple[str, str, str]:
    kind, place, path = _parts(uri)
    if kind in _WEB:
        # Servers and clients read `%2e%2e` and backslashes as `..` and slashes.
        path = unquote(re.split(r"[?#]", path, maxsplit=1)[0]).replace("\\", "/")
        place = place.lower()
    return kind, place, posixpath.normpath("/" + path.lstrip("/"))


def checked(path: str, /) -> str:
    """The name itself, if it stays below the root.

    Names come out of manifests and indexes that others may have written, so they are input like any other.

    Raises:
        UnsafeReferenceError: Absolute, or with `..`, an empty part, a drive, a backslash or a NUL.

    Example:
        >>> checked("data/part-0.parquet")
        'data/part-0.parquet'
    """
    climbs = not {"", ".", ".."}.isdisjoint(path.split("/"))
    if climbs or "\0" in path or "\\" in path or path[1:2] == ":":
        raise UnsafeReferenceError(
            f"{path!r} is no name inside a dataset: expected a relative path with '/' between its parts and without "
            "'..'. The file that names it is damaged, or was made to reach outside.",
            path=path,
        )
    return path


def folder(prefix: str, /) -> str:
    """What every name below a folder begins with: `data` and `data/` give `data/`, the root gives nothing."""
    name = prefix.rstrip("/")
    return f"{checked(name)}/" if name else ""

"""Which hosts and buckets a dataset may name: what somebody sends you must not reach into your own network.

Who names a location counts. What you give yourself is asked for wherever it is. What a cell, a manifest or a log says
is asked for on public addresses, on the host of the dataset's root and on hosts in `allow_hosts`; and in any bucket,
unless `allow_buckets` names those that may be read. Both travel as options of `storage=`, and so to every worker.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from seqlake import plugins
from seqlake.errors import UnsafeReferenceError
from seqlake.files import locations
from seqlake.files.credentials import Storage, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable

HOSTS, BUCKETS, OUTSIDE, FOLDERS = "allow_hosts", "allow_buckets", "allow_outside", "allow_folders"
ANYWHERE = {OUTSIDE: "true"}
"""For a look at what is there, before anything of it is read."""
HUB = "hf"
"""The scheme of datasets on the Hugging Face Hub: what a bucket is elsewhere is one of them there."""
_WEB = {"http", "https"}
_LOCAL = (
    ipaddress.IPv6Network("64:ff9b:1::/48"),
    ipaddress.IPv6Network("fec0::/10"),
)  # which older Pythons call public
_TRANSLATED = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))  # IPv4 in the last four bytes


def with_rules(
    storage: Mapping[str, str] | None,
    /,
    *,
    hosts: Iterable[str] = (),
    buckets: Iterable[str] | None = None,
    outside: bool = False,
    folders: Iterable[str] = (),
) -> Mapping[str, str] | None:
    """Options of stores that also say what a dataset may name.

    Args:
        storage: Options, as given.
        hosts: Names or addresses of web servers that a dataset may name although they are on this machine or in a
            private network.
        buckets: The only buckets that a dataset may name, besides its root's; None: any.
        outside: Links, and paths in metadata, may lead out of a root on this machine.
        folders: Absolute paths of this machine: cells may name what lies in them, links followed.

    Raises:
        ValueError: A name that is none, as an address with a path; or options that are no names with values.

    Example:
        >>> dict(with_rules(None, hosts=["NAS.local"], buckets=["s3://films/"]))
        {'allow_hosts': 'nas.local', 'allow_buckets': 's3://films'}
    """
    if storage is not None and not (isinstance(storage, Mapping) and all(isinstance(name, str) for name in storage)):
        raise ValueError(f"storage is a dict of options, as {{'region': 'us-east-1'}}, found {type(storage).__name__}.")
    names = [_host(one) for one in _listed(hosts)]
    places = None if buckets is None else [_bucket(one) for one in _listed(buckets)]
    trusted = "\0".join(folders)
    if not names and places is None and not outside and not trusted:
        return storage
    given = {**({HOSTS: ",".join(names)} if names else {}), **(ANYWHERE if outside else {})}
    given |= {FOLDERS: trusted} if trusted else {}
    return {**(storage or {}), **given, **({} if places is None else {BUCKETS: ",".join(places)})}


def in_allowed_folder(location: str, storage: Mapping[str, str] | None, /) -> bool:
    """Whether a path of this machine lies in a folder that was allowed, links followed."""
    if locations.scheme(location) != "file":
        return False
    return any(locations.inside(one, location) for one in Storage(storage).get(FOLDERS, "").split("\0") if one)


def trusting(storage: Mapping[str, str] | None, location: str | None, /) -> Storage:
    """Options that let the host of a location be asked, wherever it is; None trusts nobody more."""
    options = Storage(storage)
    if location is None or locations.scheme(location) not in _WEB:
        return options
    host = _plain(urlsplit(location).hostname or "")
    return Storage({**options, HOSTS: ",".join(dict.fromkeys([*sorted(hosts_of(options)), host]))})


def hosts_of(storage: Storage, /) -> frozenset[str]:
    """The hosts that may be asked wherever they are."""
    return frozenset(filter(None, storage.get(HOSTS, "").split(",")))


def refuse_bucket(location: str, storage: Mapping[str, str] | None, /, *, named_by: str) -> None:
    """Refuse an object of a bucket that `allow_buckets` does not name.

    Args:
        location: Of the object.
        storage: Options, with the rules.
        named_by: The root of the dataset that names it, whose own bucket may be read.

    Raises:
        UnsafeReferenceError: It is in another bucket, or in a store of a plug that is not the dataset's own.
    """
    said = Storage(storage).get(BUCKETS)
    kind, place = _place(location)
    if kind in {"file", *_WEB} or (kind, place) == _place(named_by):
        return
    if said is None:
        if kind in {*locations.OBJECT_STORES, HUB} or kind not in plugins.names("stores"):
            return
        raise UnsafeReferenceError(
            f"{locations.redacted(location)} is in a store of scheme {kind!r}, and a dataset that lies elsewhere names "
            "it: what such a store reaches is not known.",
            path=locations.redacted(location),
            hint=f"If you trust the dataset, open it with allow_buckets=['{kind}://{place}'].",
        )
    if {place, f"{kind}://{place}"}.isdisjoint(said.split(",")):
        raise UnsafeReferenceError(
            f"{locations.redacted(location)} is in another bucket than the dataset that names it, and allow_buckets "
            f"names {said.replace(',', ', ') or 'none'}.",
            path=locations.redacted(location),
            hint=f"If you trust the dataset, open it with allow_buckets=[..., {place!r}] (--allow-bucket {place}).",
        )


def refuse_private(address: str, host: str, storage: Storage, /) -> None:
    """Refuse to talk to an address of this machine or of a private network, unless its host may be asked.

    Args:
        address: Of the peer, as digits.
        host: What was asked for.
        storage: Options, with the rules.

    Raises:
        UnsafeReferenceError: The address is not public, and nobody named the host.
    """
    if _plain(host) not in hosts_of(storage) and not is_public(address):
        raise UnsafeReferenceError(
            f"{host} is at {address}, on this machine or in a private network, and a dataset that lies elsewhere names "
            "it: what it answers could be meant for you alone.",
            path=host,
            hint=f"If you trust the dataset, open it with allow_hosts=[{host!r}] (--allow-host {host}).",
        )


def is_public(address: str, /) -> bool:
    """Whether an IP address is one of the public internet.

    Example:
        >>> is_public("93.184.215.14"), is_public("::ffff:127.0.0.1"), is_public("fe80::1%eth0")
        (True, False, False)
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if any(ip in one for one in _LOCAL):
            return False
        inner = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
        inner += [ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) for one in _TRANSLATED if ip in one]
        if any(one is not None and not is_public(str(one)) for one in inner):
            return False
        if any(one is not None for one in inner):
            return True
    return ip.is_global and not ip.is_multicast


def _listed(names: Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _host(name: str) -> str:
    host = _plain(name)
    if not host or any(letter in host for letter in "/,@ ") or (host.count(":") == 1):
        raise ValueError(f"allow_hosts takes names or addresses, as 'nas.local' or '10.0.0.7', found {name!r}.")
    return host


def _plain(host: str) -> str:
    return host.strip("[]").rstrip(".").lower()


def _bucket(name: str) -> str:
    kind, place = kind_of(locations.scheme(name)) if "://" in name else "", name.rpartition("://")[2].rstrip("/")
    if kind == HUB and place.count("/") == 2 and "," not in place:
        return f"{kind}://{place}"
    if not place or "/" in place or "," in place or kind in _WEB:
        raise ValueError(f"allow_buckets takes buckets, as 'films' or 's3://films', found {name!r}.")
    return f"{kind}://{place}" if kind else place


def _place(location: str) -> tuple[str, str]:
    """Scheme and bucket; the names that one cloud has for itself are one."""
    kind = locations.scheme(location)
    rest = location.partition("://")[2]
    if kind == HUB:  # datasets/owner/name, at whichever revision
        return HUB, "/".join(rest.split("/")[:3]).partition("@")[0]
    return ("file", "") if kind == "file" else (kind_of(kind), rest.partition("/")[0])

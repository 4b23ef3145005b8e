"""Addresses on the Hub: whose dataset, at which revision, which file."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

ROOT = "hf://datasets"
MAIN = "main"
_NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]{0,94}[\w])?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ODD = re.compile(r"[\x00-\x20\x7f?#\\^~:*\[]|\.\.")  # what git refuses in the name of a branch
_FORM = f"{ROOT}/owner/name, with @revision behind it or without, and a path"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPlace:
    """Something on the Hub.

    Attributes:
        repo: `owner/name`.
        revision: A branch, a tag or a commit; None: what the branch `main` is.
        path: Below the root of the dataset; empty for all of it.
    """

    repo: str
    revision: str | None = None
    path: str = ""

    @property
    def is_pinned(self) -> bool:
        """Whether its revision is a commit, which never changes."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None

    def at(self, revision: str, /) -> HubPlace:
        """The same at another revision."""
        return replace(self, revision=revision)

    def under(self, path: str, /) -> HubPlace:
        """A file or folder in it."""
        return replace(self, path=f"{self.path}/{path}" if self.path and path else self.path or path)

    def address(self, endpoint: str, /) -> str:
        """Where the Hub serves the file."""
        return f"{endpoint}/datasets/{self.repo}/resolve/{quote(self.revision or MAIN, safe='')}/{quote(self.path)}"

    def __str__(self) -> str:
        mark = "" if self.revision is None else f"@{quote(self.revision, safe='')}"
        return f"{ROOT}/{self.repo}{mark}{'/' if self.path else ''}{self.path}"


def parse(location: str, /) -> HubPlace:
    """What an address names.

    Args:
        location: `hf://datasets/owner/name[@revision][/path]`. A slash in a revision is written `%2F`, but for those
            that begin with `refs/pr` and `refs/convert`.

    Raises:
        ValueError: It names no dataset on the Hub.

    Example:
        >>> parse("hf://datasets/lerobot/pusht@v3.0/meta/info.json")
        HubPlace(repo='lerobot/pusht', revision='v3.0', path='meta/info.json')
    """
    scheme, _, rest = location.partition("://")
    parts = rest.split("/")
    if scheme.lower() != "hf" or parts[0] != "datasets" or len(parts) < 3:
        raise ValueError(f"{location}: expected {_FORM}.")
    owner, (name, at, revision), path = parts[1], parts[2].partition("@"), parts[3:]
    if not (_NAME.fullmatch(owner) and _NAME.fullmatch(name)):
        raise ValueError(f"{location}: expected {_FORM}; {owner}/{name} is no name on the Hub.")
    if at and revision == "refs" and path[:1] in (["pr"], ["convert"]) and len(path) > 1:
        revision, path = f"refs/{path[0]}/{path[1]}", path[2:]
    revision = unquote(revision)
    if (at and not revision) or _ODD.search(revision):
        raise ValueError(f"{location}: expected {_FORM}; {revision!r} is no branch, tag or commit.")
    inner = "/".join(path).strip("/")
    if inner and not {"", ".", ".."}.isdisjoint(inner.split("/")):
        raise ValueError(f"{location}: expected {_FORM} without '..' and empty parts.")
    return HubPlace(repo=f"{owner}/{name}", revision=revision or None, path=inner)

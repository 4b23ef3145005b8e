"""Which Hub is asked, as whom, and what its answers mean: all that `huggingface_hub` is asked for."""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from seqlake import plugins
from seqlake.errors import AccessDeniedError, DatasetNotFoundError, SeqlakeError, causes
from seqlake.files.allowed import trusting
from seqlake.files.credentials import Storage
from seqlake.stores.hf.places import MAIN, HubPlace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_HUB = "https://huggingface.co"
_MOST_TREES = 64  # that a process remembers
_TOP = 1000  # names in the root of a dataset, which one answer holds
_MOST_BYTES = 1 << 62  # of a file, whatever a server says
_MOST_LISTED = 1 << 30  # bytes of a listing that was kept
_LOGIN = "Log in with `hf auth login`, or set HF_TOKEN to a token that may read it"
_NO_HUB = "HF_HUB_OFFLINE is set, so nothing is asked for"


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as a commit has it.

    Attributes:
        size: Its bytes.
        tag: The hash of its content, which the Hub serves as its ETag.
    """

    size: int
    tag: str


@dataclass(slots=True)
class Tree:
    """What a process knows of the files of one commit, which never change.

    Attributes:
        files: Path -> the file.
        whole: Folders of which all files are known; the empty name is the root.
        top: Names in the root; None where they are too many, or nobody asked.
        asked: Whether somebody asked for them.
    """

    files: dict[str, Listed] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    top: frozenset[str] | None = None
    asked: bool = False

    def knows(self, path: str, /) -> bool:
        """Whether it is known if there is a file of this name."""
        if path in self.files or (self.top is not None and ("/" not in path or path.partition("/")[0] not in self.top)):
            return True
        return self.has_whole(path.rpartition("/")[0])

    def has_whole(self, folder: str, /) -> bool:
        """Whether all files below a folder are known."""
        parts = folder.split("/")
        return "" in self.whole or any("/".join(parts[:end]) in self.whole for end in range(1, len(parts) + 1))


_TREES: dict[tuple[str, str, str, str], Tree] = {}


class Hub:
    """One Hub and one login.

    Args:
        storage: Options, as `stores.hf.open` takes them.
    """

    def __init__(self, storage: Mapping[str, str] | None = None, /) -> None:
        options = storage if isinstance(storage, Storage) else Storage(storage)
        self.endpoint: str = (options.get("hf_endpoint") or os.environ.get("HF_ENDPOINT") or _HUB).rstrip("/")
        self.storage: Storage = trusting(options, self.endpoint)

    @cached_property
    def _client(self) -> Any:
        return plugins.require("huggingface_hub", extra="hub")

    @cached_property
    def _constants(self) -> Any:
        return plugins.require("huggingface_hub.constants", extra="hub")

    @cached_property
    def _errors(self) -> Any:
        return plugins.require("huggingface_hub.errors", extra="hub")

    @cached_property
    def api(self) -> Any:
        """The client of `huggingface_hub`."""
        return self._client.HfApi(endpoint=self.endpoint, token=self.token or False, library_name="seqlake")

    @cached_property
    def token(self) -> str:
        """What it is asked with; empty for nobody's."""
        given = self.storage.get("hf_token")
        if given is not None:
            return "" if given.lower() == "false" else given
        return self._client.get_token() or ""

    @property
    def offline(self) -> bool:
        """Whether nothing may be asked for, as `HF_HUB_OFFLINE` says."""
        return bool(self._constants.HF_HUB_OFFLINE)

    # ---- what the Hub knows
    def commit(self, place: HubPlace, /) -> str:
        """The commit that a revision means.

        Raises:
            DatasetNotFoundError: No such dataset, or no such revision.
            AccessDeniedError: It is gated, or the login is refused.
        """
        if place.is_pinned:
            return str(place.revision)
        if self.offline:
            return self._commit_kept(place)
        with self.translated(place):
            commit = self.api.dataset_info(place.repo, revision=place.revision or MAIN).sha
        if not isinstance(commit, str) or not place.at(commit).is_pinned:
            raise OSError(5, f"the Hub says that the revision is {commit!r:.60}, no commit", str(place))
        return commit

    def tree(self, place: HubPlace, /) -> Tree:
        """What is known of a commit's files."""
        who = sha256(self.token.encode()).hexdigest()
        key = self.endpoint, place.repo, str(place.revision), who
        if key not in _TREES:
            if len(_TREES) >= _MOST_TREES:
                _TREES.clear()
            kept = self._kept_listing(place)
            _TREES[key] = Tree() if kept is None else Tree(files=kept, whole={""})
        return _TREES[key]

    def file(self, place: HubPlace, /) -> tuple[HubPlace, Listed]:
        """A file, at its commit.

        Raises:
            FileNotFoundError: There is none.
            DatasetNotFoundError: No such dataset, or no such revision.
            AccessDeniedError: It is gated, or the login is refused.
        """
        if not place.is_pinned:
            if self.offline:
                return self.file(place.at(self.commit(place)))
            return self._asked(place)
        tree = self.tree(place)
        if not tree.asked and not tree.whole and not self.offline:
            self._look_at_top(place, tree)
        if tree.knows(place.path):
            if place.path not in tree.files:
                raise FileNotFoundError(2, "not there", str(place))
            return place, tree.files[place.path]
        if self.offline:
            return place, self._file_kept(place)
        asked, tree.files[place.path] = self._asked(place)
        return asked, tree.files[place.path]

    def list(self, place: HubPlace, /) -> dict[str, Listed]:
        """Path -> file, of all files below a folder of a commit."""
        tree, folder = self.tree(place), place.path
        if not tree.has_whole(folder):
            if self.offline:
                raise self._unlisted(place)
            tree.files.update(self._asked_below(place))
            tree.whole.add(folder)
        start = f"{folder}/" if folder else ""
        return {path: one for path, one in tree.files.items() if path.startswith(start)}

    def _look_at_top(self, place: HubPlace, tree: Tree) -> None:
        """The names in the root, in one request: most files that are looked for are not there."""
        with self.translated(place):
            listed = self.api.list_repo_tree(place.repo, repo_type="dataset", revision=place.revision)
            entries = list(islice(listed, _TOP))
            files = self._files(entries)
        tree.asked = True
        tree.files.update(files)
        if len(entries) < _TOP:
            tree.top = frozenset(entry.path for entry in entries)

    def _asked(self, place: HubPlace) -> tuple[HubPlace, Listed]:
        with self.translated(place):
            meta = self._client.get_hf_file_metadata(
                place.address(self.endpoint), token=self.token or False, library_name="seqlake"
            )
        size, tag, commit = meta.size, meta.etag, meta.commit_hash
        there = place if place.is_pinned else place.at(str(commit))
        if type(size) is not int or not 0 <= size < _MOST_BYTES or not tag or not there.is_pinned:
            said = f"{size!r}, {tag!r}, {commit!r}"
            raise OSError(5, f"the Hub says no size, ETag and commit, but {said:.120}", str(place))
        return there, Listed(size, str(tag))

    def _asked_below(self, place: HubPlace) -> dict[str, Listed]:
        try:
            with self.translated(place):
                listed = self.api.list_repo_tree(
                    place.repo, place.path or None, recursive=True, repo_type="dataset", revision=place.revision
                )
                return self._files(listed)
        except FileNotFoundError as error:
            if isinstance(error, SeqlakeError):
                raise
            return {}  # no such folder

    def _files(self, entries: Iterable[Any]) -> dict[str, Listed]:
        """The files among what a tree lists, by path."""
        kind = plugins.require("huggingface_hub.hf_api", extra="hub").RepoFile
        files = {
            str(one.path): Listed(int(one.size), str(one.lfs.sha256 if one.lfs else one.blob_id))
            for one in entries
            if isinstance(one, kind)
        }
        wrong = next(
            (f"{path} has {one.size} bytes" for path, one in files.items() if not 0 <= one.size < _MOST_BYTES), ""
        )
        if wrong:
            raise ValueError(wrong)
        return files

    # ---- what was downloaded before
    def kept(self, place: HubPlace, /) -> Path | None:
        """The file of a commit in the cache of `huggingface_hub`; None where it is not there."""
        folder = self._folder(place) / "snapshots" / str(place.revision)
        path = folder / place.path
        return path if path.is_file() else None

    def _folder(self, place: HubPlace) -> Path:
        return Path(self._constants.HF_HUB_CACHE) / f"datasets--{place.repo.replace('/', '--')}"

    def _commit_kept(self, place: HubPlace) -> str:
        try:
            commit = (self._folder(place) / "refs" / (place.revision or MAIN)).read_text().strip()
        except (OSError, UnicodeDecodeError):
            commit = ""
        if not place.at(commit).is_pinned:
            raise DatasetNotFoundError(
                f"{place}: {_NO_HUB}, and this revision was never downloaded on this machine.",
                path=str(place),
                hint=f"With a network: hf download --repo-type dataset {place.repo}",
            )
        return commit

    def _kept_listing(self, place: HubPlace) -> dict[str, Listed] | None:
        """What `huggingface_hub` wrote down of a commit's files when all of them were asked for."""
        path = self._folder(place) / "trees" / f"{place.revision}.json"
        try:
            if path.stat().st_size > _MOST_LISTED:
                return None
            document = json.loads(path.read_bytes())
            if document["format_version"] != 1:
                return None
            return {
                str(name): Listed(int(one["size"]), str(one.get("lfs_sha256") or one["blob_id"]))
                for name, one in document["files"].items()
            }
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None

    def _file_kept(self, place: HubPlace) -> Listed:
        path = self.kept(place)
        if path is None:
            raise self._unlisted(place)
        return Listed(path.stat().st_size, path.resolve().name)  # a link to `blobs/<ETag>`, where links can be made

    def _unlisted(self, place: HubPlace) -> FileNotFoundError:
        return DatasetNotFoundError(
            f"{place}: {_NO_HUB}, and what this commit holds is not known on this machine.",
            path=str(place),
            hint=f"With a network and huggingface_hub 2: hf download --repo-type dataset {place.repo}",
        )

    # ---- what answers mean
    @contextmanager
    def translated(self, place: HubPlace, /) -> Iterator[None]:
        """Errors of `huggingface_hub` as ours."""
        errors = self._errors
        try:
            yield
        except errors.HfHubHTTPError as error:
            answer = error.response
            headers: Mapping[str, str] = {} if answer is None else answer.headers
            self.refuse(place, 0 if answer is None else int(answer.status_code), headers)
        except errors.OfflineModeIsEnabled:
            raise OSError(5, _NO_HUB, str(place)) from None
        except errors.HFValidationError as error:
            raise ValueError(f"{place}: {error}") from None
        except (SeqlakeError, FileNotFoundError):
            raise
        except RuntimeError as error:  # what went wrong with an upload is its cause
            answered = next((one for one in causes(error) if isinstance(one, errors.HfHubHTTPError)), None)
            status = "" if answered is None or answered.response is None else f" (HTTP {answered.response.status_code})"
            reason = self.storage.redacted(str(error).partition("\n")[0])[:200]
            raise OSError(5, f"a file could not be sent{status}: {reason}", str(place)) from None
        except (ValueError, TypeError, LookupError, AttributeError) as error:  # of an answer in another form
            reason = self.storage.redacted(f"{type(error).__name__}: {error}")[:200]
            raise OSError(5, f"what the Hub at {self.endpoint} answers cannot be used ({reason})", str(place)) from None
        except Exception as error:  # the packages below it have changed, and with them what they raise
            if type(error).__module__.partition(".")[0] not in {"httpx", "httpx2", "httpcore", "httpcore2", "requests"}:
                raise
            reason = self.storage.redacted(f"{type(error).__name__}: {error}")[:200]
            raise OSError(5, f"the Hub at {self.endpoint} does not answer ({reason})", str(place)) from None

    def refuse(self, place: HubPlace, status: int, headers: Any, /) -> NoReturn:
        """Raise the error that an answer means, which says what to do.

        Raises:
            FileNotFoundError: No such file.
            DatasetNotFoundError: No such dataset, or no such revision.
            AccessDeniedError: It is gated, or the login is refused.
            OSError: Another answer.
        """
        raise self.problem(place, status, headers) from None

    def problem(self, place: HubPlace, status: int, headers: Any, /) -> OSError:
        """The error that an answer means."""
        code, where = headers.get("X-Error-Code", ""), str(place)
        page = f"{self.endpoint}/datasets/{place.repo}"
        if code == "EntryNotFound":
            return FileNotFoundError(2, "not there", where)
        if code == "RevisionNotFound":
            text = f"The dataset {place.repo} at {self.endpoint} has no branch, tag or commit {place.revision!r}."
            return DatasetNotFoundError(text, path=where, hint=f"{page}/tree/main names those that it has.")
        if code == "GatedRepo":
            text = f"The dataset {place.repo} at {self.endpoint} is gated: its owner lets in who accepts conditions."
            ask = "" if self.token else f"; then: {_LOGIN[0].lower()}{_LOGIN[1:]}"
            return AccessDeniedError(text, path=where, hint=f"Accept them at {page}{ask}.")
        if "Invalid credentials" in headers.get("X-Error-Message", "") or (status == 401 and self.token):
            text = f"The Hub at {self.endpoint} does not take the token that it was asked with (HTTP {status})."
            return AccessDeniedError(text, path=where, hint=f"{_LOGIN}; without any: storage={{'hf_token': 'false'}}.")
        if code == "RepoNotFound" or status in {401, 404}:
            text = f"No dataset {place.repo} is at {self.endpoint}, or it is private and "
            text += "the token that it was asked with may not see it." if self.token else "nobody is logged in."
            return DatasetNotFoundError(text, path=where, hint=f"Check the name at {page}. {_LOGIN}.")
        if status == 403:
            text = f"The Hub at {self.endpoint} refuses {place.repo} (HTTP 403)."
            return AccessDeniedError(text, path=where, hint="The token may lack the right: see its page of settings.")
        if status == 429:
            wait = re.search(r"\bt=(\d{1,6})\b", headers.get("RateLimit", ""))
            seconds = headers.get("Retry-After", "") or ("" if wait is None else wait[1])
            when = f"in {seconds} s" if seconds.isdecimal() else "in some minutes"
            who = "" if self.token else "; who is logged in may ask more often"
            return OSError(5, f"the Hub was asked too often (HTTP 429): try again {when}{who}", where)
        if status in {409, 412}:
            return OSError(5, f"somebody else changed it meanwhile (HTTP {status}): try again", where)
        return OSError(5, f"the Hub at {self.endpoint} answers HTTP {status}", where)

    def __getstate__(self) -> dict[str, Any]:
        return {"endpoint": self.endpoint, "storage": self.storage}

    def __repr__(self) -> str:
        return f"Hub({self.endpoint!r})"

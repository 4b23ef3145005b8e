"""A Hub on loopback: the HTTP API of huggingface.co as far as its client and we use it, and a storage on another port.

Files of `lfs` (by size) are served as there: the Hub sends on to a signed address of the storage, which knows no login.
Whatever is asked is recorded, with the login it came with.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.xet import XetStorage

LFS = 1000
"""Bytes from which a file lies in the storage."""


@dataclass
class Repo:
    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def at(self, revision: str) -> str | None:
        return self.refs.get(revision) or (revision if revision in self.commits else None)

    def commit(self, changes: dict[str, bytes | None], *, branch: str = "main", message: str = "") -> str:
        """The files of before with some changed, None: removed; a new commit."""
        files = {**self.commits.get(self.refs.get(branch, ""), {}), **changes}
        kept = {path: data for path, data in files.items() if data is not None}
        state = repr([len(self.commits), sorted((p, hashlib.sha256(d).hexdigest()) for p, d in kept.items())])
        sha = hashlib.sha1(state.encode()).hexdigest()
        self.commits[sha] = kept
        self.refs[branch] = sha
        self.messages.append(message)
        return sha


def oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Hub:
    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.tokens = {"hf_reader": "read", "hf_writer": "write"}
        self.accepted: set[str] = set()  # tokens whose owners accepted conditions
        self.asked: list[tuple[str, str, str | None]] = []  # method, path, login: of the Hub
        self.stored: list[tuple[str, str, str | None]] = []  # the same of the storage
        self.objects: dict[str, bytes] = {}
        self.busy: list[tuple[int, dict[str, str]]] = []  # what is answered before all else
        self.lapsed = 0  # so many requests of the storage are answered as if their signature were too old
        self.replies: dict[str, bytes] = {}  # part of a path -> what is answered in place of the truth
        self.full = False  # uploads are refused
        self.page = 1000
        self.moved: dict[str, str] = {}
        self.xet = XetStorage()
        self.endpoint = self.storage = ""

    def repo(self, name: str, files: dict[str, bytes] | None = None, **options: Any) -> Repo:
        self.repos[name] = Repo(**options)
        self.repos[name].commit(files or {})
        return self.repos[name]

    def upload(self, name: str, folder: Path, **options: Any) -> Repo:
        """All files of a folder, as one commit."""
        return self.repo(name, files_in(folder), **options)


class Handler(BaseHTTPRequestHandler):
    @property
    def hub(self) -> Hub:
        return self.server.hub

    def log_message(self, *_) -> None:
        return

    def answer(self, status: int, data: bytes | Any = b"", **headers: str) -> None:
        if not isinstance(data, bytes):
            data, headers = json.dumps(data).encode(), {"Content_Type": "application/json", **headers}
        self.send_response(status)
        for name, value in {"Content_Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def part(self, data: bytes, **headers: str) -> None:
        asked = self.headers["Range"]
        if asked is None or not data:
            return self.answer(200, data, **headers)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last or len(data) - 1), len(data) - 1) + 1
        self.answer(206, data[start:stop], Content_Range=f"bytes {start}-{stop - 1}/{len(data)}", **headers)
        return None

    def body(self) -> bytes:
        if self.headers["Transfer-Encoding"] == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers["Content-Length"] or 0))


class StorageHandler(Handler):
    def do_GET(self) -> None:
        self.hub.stored.append((self.command, self.path, self.headers["Authorization"]))
        name, _, query = self.path.partition("?")
        if name.startswith("/cas/"):
            return self.answer(404)
        if self.hub.lapsed:
            self.hub.lapsed -= 1
            return self.answer(403, b"<Error>Request has expired</Error>")
        if "Signature=" not in query or name.strip("/") not in self.hub.objects:
            return self.answer(403, b"")
        return self.part(self.hub.objects[name.strip("/")], ETag='"of the storage"')

    def do_POST(self) -> None:
        """What `hf_xet` uploads; it asks for newer addresses first and takes these where they are not there."""
        self.hub.stored.append((self.command, self.path, self.headers["Authorization"]))
        data, path = self.body(), urlsplit(self.path).path
        if self.hub.full:
            return self.answer(403, b"")
        if path.startswith("/cas/v1/xorbs/default/"):
            self.hub.xet.add_xorb(path.rpartition("/")[2], data)
            return self.answer(200, {"was_inserted": True})
        if path == "/cas/v1/shards":
            self.hub.xet.add_shard(data)
            self.hub.objects |= self.hub.xet.files
            return self.answer(200, {"result": 1})
        return self.answer(404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.hub.stored.append((self.command, self.path, self.headers["Authorization"]))
        data = self.body()
        if self.hub.full:
            return self.answer(403, b"<Error>no</Error>")
        self.hub.objects[hashlib.sha256(data).hexdigest()] = data
        return self.answer(200)


class HubHandler(Handler):
    def begins(self) -> bool:
        """Whether the request is answered as always; else it is already."""
        self.hub.asked.append((self.command, self.path, self.headers["Authorization"]))
        self.token = (self.headers["Authorization"] or "").removeprefix("Bearer ")
        if self.hub.busy:
            status, headers = self.hub.busy.pop(0)
            self.answer(status, b"", **headers)
            return False
        if self.token and self.token not in self.hub.tokens:
            message = "Invalid credentials in Authorization header"
            self.answer(401, {"error": message}, X_Error_Message=message)
            return False
        return True

    def allowed(self, name: str, *, content: bool = True) -> Repo | None:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and not self.token):
            status = 404 if self.token else 401
            self.answer(status, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
            return None
        if repo.gated and content and self.token not in self.hub.accepted:
            self.answer(403 if self.token else 401, {"error": "gated"}, X_Error_Code="GatedRepo")
            return None
        return repo

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if not self.begins():
            return None
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        for part, data in self.hub.replies.items():
            if part in path:
                return self.answer(200, data, Content_Type="application/json")
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "whoami-v2"]:
            return self.answer(200, {"name": "owner", "type": "user", "orgs": []})
        if parts[:2] == ["api", "datasets"]:
            return self.api("/".join(parts[2:4]), [unquote(one) for one in parts[4:]], query)
        if parts[0] == "datasets" and parts[3:4] == ["resolve"]:
            return self.resolve("/".join(parts[1:3]), unquote(parts[4]), unquote("/".join(parts[5:])))
        return self.answer(404, {"error": "no such page"})

    def api(self, name: str, rest: list[str], query: dict[str, list[str]]) -> None:
        repo = self.allowed(name, content=rest[:1] == ["tree"])
        if repo is None:
            return None
        if rest[:1] == ["xet-write-token"]:
            if self.hub.tokens.get(self.token) != "write":
                return self.answer(403, {"error": "You may not write here"})
            return self.answer(
                200, {"casUrl": f"{self.hub.storage}/cas", "accessToken": "of the storage", "exp": 4_000_000_000}
            )
        sha = repo.at(rest[1] if len(rest) > 1 else "main")
        if sha is None:
            return self.answer(404, {"error": "revision"}, X_Error_Code="RevisionNotFound")
        files = repo.commits[sha]
        if rest[:1] != ["tree"]:
            siblings = [{"rfilename": path} for path in files]
            fields = {"id": name, "sha": sha, "private": repo.private, "gated": repo.gated, "siblings": siblings}
            return self.answer(200, {**fields, "tags": [], "downloads": 0, "likes": 0})
        folder = "/".join(rest[2:])
        start = f"{folder}/" if folder else ""
        inner = {path: data for path, data in sorted(files.items()) if path.startswith(start)}
        if folder and not inner:
            return self.answer(404, {"error": "entry"}, X_Error_Code="EntryNotFound")
        listed: dict[str, dict[str, Any]] = {}
        for path, data in inner.items():
            names = path.removeprefix(start).split("/")
            for depth in range(1, len(names)):
                one = start + "/".join(names[:depth])
                listed.setdefault(one, {"type": "directory", "oid": oid(one.encode()), "size": 0, "path": one})
            listed[path] = {"type": "file", "oid": oid(data), "size": len(data), "path": path}
            if len(data) >= LFS:
                lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
                listed[path]["lfs"] = lfs
        if query.get("recursive", ["false"])[0].lower() != "true":
            listed = {path: one for path, one in listed.items() if "/" not in path.removeprefix(start)}
        at = int(query.get("cursor", ["0"])[0])
        page = list(listed.values())[at : at + self.hub.page]
        headers = {}
        if at + self.hub.page < len(listed):
            recursive = query.get("recursive", ["false"])[0]
            address = f"{self.hub.endpoint}{urlsplit(self.path).path}?recursive={recursive}&cursor={at + self.hub.page}"
            headers["Link"] = f'<{address}>; rel="next"'
        return self.answer(200, page, **headers)

    def resolve(self, name: str, revision: str, path: str) -> None:
        if name in self.hub.moved:
            address = self.path.replace(f"/datasets/{name}/", f"/datasets/{self.hub.moved[name]}/")
            return self.answer(307, b"", Location=address)
        repo = self.allowed(name)
        if repo is None:
            return None
        sha = repo.at(revision)
        if sha is None:
            return self.answer(404, b"", X_Error_Code="RevisionNotFound")
        if path not in repo.commits[sha]:
            return self.answer(404, b"", X_Error_Code="EntryNotFound", X_Repo_Commit=sha)
        data = repo.commits[sha][path]
        if len(data) < LFS:
            return self.part(data, ETag=f'"{oid(data)}"', X_Repo_Commit=sha, Accept_Ranges="bytes")
        digest = hashlib.sha256(data).hexdigest()
        self.hub.objects[digest] = data
        headers = {"X_Linked_Size": str(len(data)), "X_Linked_ETag": f'"{digest}"', "X_Repo_Commit": sha}
        address = f"{self.hub.storage}/{digest}?X-Amz-Signature=SIGNED{len(self.hub.asked)}"
        return self.answer(302, b"", Location=address, ETag=f'"{digest}"', **headers)

    def do_POST(self) -> None:
        if not self.begins():
            return None
        data, path = self.body(), urlsplit(self.path).path
        parts = path.strip("/").split("/")
        if parts == ["api", "validate-yaml"]:
            return self.answer(200, {"errors": [], "warnings": []})
        if self.hub.tokens.get(self.token) != "write":
            return self.answer(403 if self.token else 401, {"error": "You may not write here"})
        if parts == ["api", "repos", "create"]:
            fields = json.loads(data)
            name = f"{fields.get('organization') or 'owner'}/{fields['name']}"
            if name in self.hub.repos:
                return self.answer(409, {"error": "exists", "url": f"{self.hub.endpoint}/datasets/{name}"})
            private = fields.get("private") or fields.get("visibility") == "private"
            self.hub.repo(name, {".gitattributes": b""}, private=bool(private))
            return self.answer(200, {"url": f"{self.hub.endpoint}/datasets/{name}", "name": name, "id": "1"})
        if path.endswith(".git/info/lfs/objects/batch"):
            return self.batch(json.loads(data))
        name = "/".join(parts[2:4])
        repo = self.allowed(name)
        if repo is None:
            return None
        if parts[4] == "preupload":
            return self.preupload(repo, unquote(parts[5]), json.loads(data)["files"])
        if parts[4] == "branch":
            wanted = unquote(parts[5])
            repo.refs.setdefault(wanted, repo.refs["main"])
            return self.answer(200, {})
        if parts[4] == "commit":
            return self.commit(name, repo, unquote(parts[5]), data)
        return self.answer(404, {"error": "no such page"})

    def preupload(self, repo: Repo, revision: str, files: list[dict[str, Any]]) -> None:
        there = repo.commits.get(repo.at(revision) or "", {})
        said = [
            {
                "path": one["path"],
                "uploadMode": "lfs" if one["size"] >= LFS else "regular",
                "shouldIgnore": False,
                "oid": self.known(there.get(one["path"])),
            }
            for one in files
        ]
        self.answer(200, {"files": said})

    @staticmethod
    def known(data: bytes | None) -> str | None:
        if data is None:
            return None
        return hashlib.sha256(data).hexdigest() if len(data) >= LFS else oid(data)

    def batch(self, asked: dict[str, Any]) -> None:
        objects = []
        for one in asked["objects"]:
            entry = {"oid": one["oid"], "size": one["size"]}
            if one["oid"] not in self.hub.objects:
                entry["actions"] = {"upload": {"href": f"{self.hub.storage}/{one['oid']}?Signature=UP", "header": {}}}
            objects.append(entry)
        self.answer(200, {"transfer": "basic", "objects": objects}, Content_Type="application/vnd.git-lfs+json")

    def commit(self, name: str, repo: Repo, branch: str, data: bytes) -> None:
        changes: dict[str, bytes | None] = {}
        message = ""
        for line in data.splitlines():
            one = json.loads(line)
            value = one["value"]
            if one["key"] == "header":
                message = value["summary"]
                if value.get("parentCommit") not in {None, repo.refs[branch]}:
                    return self.answer(412, {"error": "A commit has happened since"})
            elif one["key"] == "file":
                changes[value["path"]] = base64.b64decode(value["content"])
            elif one["key"] == "lfsFile":
                changes[value["path"]] = self.hub.objects[value["oid"]]
            elif one["key"] == "deletedFile":
                changes[value["path"]] = None
            else:
                return self.answer(400, {"error": one["key"]})
        sha = repo.commit(changes, branch=branch, message=message)
        address = f"{self.hub.endpoint}/datasets/{name}/commit/{sha}"
        return self.answer(200, {"success": True, "commitOid": sha, "commitUrl": address, "hookOutput": ""})


@contextmanager
def serving():
    """A running `Hub`."""
    hub = Hub()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), kind) for kind in (HubHandler, StorageHandler)]
    threads = []
    for server in servers:
        server.hub = hub
        threads.append(threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}))
        threads[-1].start()
    hub.endpoint, hub.storage = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()

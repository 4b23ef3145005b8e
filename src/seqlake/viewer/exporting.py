"""Some sequences as a folder of static files, which opens from a disk or any web server without seqlake."""

from __future__ import annotations

import base64
import importlib.metadata
import json
import os
import re
import secrets
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import numpy as np

from seqlake.dataset.drawing.strips import READ_ERRORS
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.errors import DatasetExistsError, DecodeError, QueryError, SequenceNotFoundError
from seqlake.files.blobs import LocalBlob
from seqlake.files.locations import scheme
from seqlake.media.video import cutting
from seqlake.media.video.opening import open_video
from seqlake.protocols import Source
from seqlake.viewer import scenes, sequences, space, tables
from seqlake.viewer.asking import Parameters, finite
from seqlake.viewer.joining import LIBRARIES, STATIC, joined

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from seqlake.dataset.selection import Selection

MOST = 1 << 30
"""Bytes that an export has at most, unless more is asked for."""
_FRAMES = 120  # decoded pictures of one film
_HEIGHT = 360
_POINTS = 2000  # of the envelope of a sound
_CLOUDS, _CLOUD = 120, 8_000  # clouds of one column, and points of each
_POINTS_ALONE = 20_000  # of the only cloud of a cell
_PLACES = 20_000  # of a path
_SCENES = 300  # steps of a scene
_SIGN = "seqlake-export"
_POLICY = (
    "default-src 'none'; script-src 'self' file:; style-src 'self' file: 'unsafe-inline'; "
    "img-src 'self' file: data: blob:; media-src 'self' file: blob:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'"
)
_ENDINGS = {"video/mp4": "mp4", "video/webm": "webm"}
_KNOWN = frozenset(
    ["mp4", "m4v", "mov", "webm", "jpg", "jpeg", "png", "gif", "webp", "avif", "wav", "mp3", "ogg", "flac", "m4a"]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesPlan:
    """What an export will hold, found out before anything is written.

    Attributes:
        items: Each sequence with what is told of it.
        nbytes: About how large the folder will be.
        most: The bound that it keeps to.
    """

    items: list[_Item]
    nbytes: int
    most: int

    def __str__(self) -> str:
        films = sum(len(item.videos) for item in self.items)
        return f"{len(self.items)} sequences with {films} films, about {self.nbytes / 1e6:,.1f} MB"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """One sequence of a plan: how it is named, and the small replies about it."""

    row: int
    key: dict[str, str]
    facts: dict[str, Any]
    videos: dict[str, dict[str, Any]]

    def asked(self, **more: object) -> Parameters:
        return Parameters({**self.key, **{name: str(one) for name, one in more.items()}})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedPages:
    """A folder that was written.

    Attributes:
        folder: Where it lies.
        sequences: How many it holds.
        nbytes: How large it is.
    """

    folder: Path
    sequences: int
    nbytes: int

    @property
    def index(self) -> Path:
        """The page to open."""
        return self.folder / "index.html"

    def __str__(self) -> str:
        return str(self.index)

    def _repr_html_(self) -> str:
        link = f'<a href="{escape(self.index.resolve().as_uri())}">{escape(str(self.index))}</a>'
        return f"<p>{self.sequences} sequences, {self.nbytes / 1e6:,.1f} MB: {link}</p>"


def plan(
    selection: Selection, sequence_id: str | None = None, /, *, where: str | None = None, most: int = MOST
) -> PagesPlan:
    """What an export of some sequences will hold and how large it will be; nothing is written.

    Args:
        selection: A dataset, a selection, a scanned format.
        sequence_id: This sequence alone.
        where: Only sequences for which this holds.
        most: Bytes that it may have.

    Raises:
        QueryError: It would be larger; or no sequence is chosen.
    """
    chosen = selection.where(where) if where else selection
    if sequence_id is not None:
        chosen = chosen.where(ids=[sequence_id]) if selection.schema.id else _numbered(chosen, sequence_id)
    shelf, shows = tables.Shelf(chosen), Excerpt.of(chosen)
    rows = range(len(shows)) if shows.rows is None else shows.rows.tolist()
    if not len(rows):
        raise QueryError("No sequence is chosen, so that there is nothing to export.", hint="Look at --where.")
    items: list[_Item] = []
    total = sum((STATIC / "vendor" / name).stat().st_size for name in LIBRARIES) + 400_000
    for row in rows:
        item = _item(shelf, row)
        items.append(item)
        total += _size(item)
        if total > most:
            raise QueryError(
                f"An export has at most {most / 1e6:,.0f} MB, and {len(items)} of {len(rows)} sequences have more.",
                hint="Choose fewer by --where (where=), or allow more by --max-mb (most=).",
            )
    return PagesPlan(items=items, nbytes=total, most=most)


def _numbered(chosen: Selection, name: str) -> Selection:
    if not (name.isascii() and name.isdecimal() and int(name) < len(chosen)):
        raise SequenceNotFoundError(f"There is no sequence {name!r:.80}.")
    return chosen[int(name) : int(name) + 1]  # type: ignore[no-any-return]  # a slice gives a selection


def _item(shelf: tables.Shelf, row: int) -> _Item:
    facts = sequences.sequence(shelf, Parameters({"row": str(row)}))
    key = {"row": str(row)}
    if facts["id"]:
        with suppress(SequenceNotFoundError):
            if shelf.row(Parameters({"id": facts["id"]}))[1] == row:
                key = {"id": facts["id"]}
    videos: dict[str, dict[str, Any]] = {}
    for one in facts["media"]:
        if one["kind"] in {"video", "depth", "frames"} and one["state"] in {"present", "inline"}:
            videos[one["name"]] = _film(sequences.video(shelf, Parameters({**key, "col": one["name"]})))
    return _Item(row=row, key=key, facts=facts, videos=videos)


def _film(facts: dict[str, Any]) -> dict[str, Any]:
    """What a player has to know, with the frames that the export will hold as pictures."""
    if facts["state"] != "ok" or facts["play"] == "browser":
        return facts
    if "share" in facts:  # its packets will be cut out
        return {**facts, "play": "browser"}
    first = facts.get("browser_frames", 0)
    count = max(0, facts["frames"] - first)
    every = max(1, -(-count // _FRAMES))
    return {**facts, "exported_frames": list(range(first, facts["frames"], every))}


def _size(item: _Item) -> int:
    """About how many bytes a sequence takes, never fewer than its films and signals do."""
    total = len(json.dumps(finite(item.facts))) * 2
    for one in item.facts["signals"]:
        total += min(one["bytes"], 8 * sequences.MOST) * 4 // 3
    for one in item.facts["media"]:
        about = item.videos.get(one["name"], {})
        if about.get("play") != "frames" and one["kind"] != "clouds":
            total += int(one.get("bytes", 0) * min(1.0, 1.2 * about.get("share", 1.0)))
        total += _size_in_space(item, one)
        if about.get("exported_frames"):
            high, wide = about.get("height") or _HEIGHT, about.get("width") or _HEIGHT
            scale = min(1.0, _HEIGHT / high)
            each = high * wide * scale * scale * (2 if one["kind"] == "depth" else 0.3)
            total += int(each) * len(about["exported_frames"])
    return total


def _size_in_space(item: _Item, one: dict[str, Any]) -> int:
    """About how many bytes clouds and scenes take."""
    if one["kind"] == "points":
        return _POINTS_ALONE * (72 if one.get("mesh") else 24) * 4 // 3
    if one["kind"] == "clouds":
        return int(min(one["count"] or 0, _CLOUDS)) * _CLOUD * 24 * 4 // 3
    if one["kind"] == "scene":
        lengths: dict[str, int] = {signal["name"]: signal["length"] for signal in item.facts["signals"]}
        return 150 * lengths.get("agents_centroid", 0) + 6000 * min(lengths.get(one["columns"][0], 0), _SCENES)
    return 0


def _spread(count: int, most: int) -> list[int]:
    """At most so many numbers below `count`, evenly from the first on."""
    return list(range(0, count, max(1, -(-count // most))))


def write(plan: PagesPlan, selection: Selection, folder: Path, /, *, overwrite: bool = False) -> ExportedPages:
    """Write what was planned. The folder appears whole, at the end.

    Args:
        plan: What `plan` gave for the same selection.
        selection: Where the sequences come from.
        folder: Not there yet, or empty.
        overwrite: Replace an export that is there.

    Raises:
        DatasetExistsError: Something else is there.
        QueryError: It becomes larger than the plan's bound.
    """
    _refuse_taken(folder, overwrite=overwrite)
    with _beside(folder, overwrite=overwrite) as place:
        work = _Writing(place=place, shelf=tables.Shelf(selection), plan=plan)
        work.page()
        rows: list[dict[str, Any]] = []
        ids: dict[str, str] = {}
        numbers: dict[str, str] = {}
        for number, item in enumerate(plan.items):
            name = f"data/{number}.js"
            work.script(name, f'(window.seqlakeLoaded ??= {{}})["{name}"] = ', work.replies(number, item))
            rows.append(work.listed(number, item))
            (ids if "id" in item.key else numbers)[next(iter(item.key.values()))] = name
        lone = rows[0]["id"] if len(rows) == 1 and "id" in plan.items[0].key else None
        replies = {
            "api/dataset": work.about(lone),
            "api/rows": {"total": len(rows), "matched": len(rows), "rows": rows},
        }
        whole = {"format": 1, "seqlake": importlib.metadata.version("seqlake"), "replies": {**replies, **work.strips}}
        work.script("data.js", "window.seqlakeExport = ", {**whole, "sequences": ids, "rows": numbers})
        size = work.nbytes
    return ExportedPages(folder=folder, sequences=len(rows), nbytes=size)


def _refuse_taken(folder: Path, *, overwrite: bool) -> None:
    if not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return
    ours = (folder / "index.html").is_file() and _SIGN in (folder / "index.html").read_text(errors="replace")[:2000]
    if not (overwrite and ours and not folder.is_symlink()):
        raise DatasetExistsError(
            f"{folder} is there already{', and is an export' if ours else ''}.",
            path=str(folder),
            hint="Give another folder, or replace it by --overwrite." if ours else "Give another folder.",
        )


@contextmanager
def _beside(folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """A folder that takes the name of another when all went well, and is gone where it did not."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    passing = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    passing.mkdir()
    try:
        yield passing
        old = None
        if overwrite and folder.is_dir():
            old = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.old")
            folder.rename(old)
        elif folder.is_dir():
            folder.rmdir()  # it is empty
        try:
            passing.rename(folder)
        except OSError:
            if old is not None:
                old.rename(folder)
            raise
        if old is not None:
            shutil.rmtree(old)
    finally:
        shutil.rmtree(passing, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Clip:
    """A film that was cut out of a larger one."""

    place: str
    ends: NDArray[np.float64]
    facts: dict[str, Any]


@dataclass(slots=True, kw_only=True)
class _Writing:
    """An export on its way: counts what it has written, and stops at its bound."""

    place: Path
    shelf: tables.Shelf
    plan: PagesPlan
    nbytes: int = 0
    strips: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, data: bytes, /) -> str:
        """One more file; its name."""
        with self.room(name, len(data)) as target:
            target.write_bytes(data)
        return name

    @contextmanager
    def room(self, name: str, size: int) -> Iterator[Path]:
        self.nbytes += size
        if self.nbytes > self.plan.most:
            raise QueryError(
                f"The export becomes larger than {self.plan.most / 1e6:,.0f} MB; nothing was written.",
                hint="Choose fewer sequences by --where (where=), or allow more by --max-mb (most=).",
            )
        target = self.place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        yield target

    def script(self, name: str, head: str, value: Any, /) -> None:
        """A script that says one value. It is parsed, so that no name in it means more than itself."""
        text = json.dumps(json.dumps(finite(value), allow_nan=False, default=str))
        self.put(name, f"{head}JSON.parse({text});\n".encode())

    def page(self) -> None:
        """Everything that is the same in all exports."""
        for name in ("app.css", "icon.svg"):
            self.put(name, (STATIC / name).read_bytes())
        for path in sorted((STATIC / "vendor").iterdir()):
            self.put(f"vendor/{path.name}", path.read_bytes())
        self.put("app.js", joined().encode())
        self.put("index.html", _index().encode())

    def about(self, lone: str | None) -> dict[str, Any]:
        """The dataset, without the place where it lay and without what is not part of an export."""
        facts = tables.dataset(self.shelf, Parameters({}))
        for name in ("commands", "read_only_why", "shards", "bytes", "version", "newest"):
            facts.pop(name, None)
        return {
            **facts,
            "root": f"export of {len(self.plan.items)} of {facts['rows']:,} sequences",
            "rows": len(self.plan.items),
            "bytes": self.nbytes,
            "hours": None,
            "format": "export",
            "writable": False,
            "where": None,
            "sequence": lone,
            "label_columns": [],
            "seqlake": importlib.metadata.version("seqlake"),
        }

    def listed(self, number: int, item: _Item) -> dict[str, Any]:
        """The row of the table."""
        values = {one["name"]: one["value"] for one in item.facts["scalars"]}
        lines = {}
        for one in item.facts["signals"][:8]:
            asked = Parameters({"rows": str(item.row), "col": one["name"]})
            lines[one["name"]] = sequences.sparklines(self.shelf, asked)["rows"][str(item.row)]
        film = next((name for name, about in item.videos.items() if about["state"] == "ok"), None)
        if film is not None:
            with suppress(*READ_ERRORS):  # the tile says what is wrong
                data, _, _ = sequences.film(self.shelf, item.asked(col=film, n=4, height=88))
                name = self.put(f"media/{number}-strip.jpg", data)
                self.strips[address("api/strip", {"col": film, "height": "88", "n": "4", "row": str(item.row)})] = name
        states = [*item.facts["media"], *item.facts["files"]]
        return {
            "row": item.row,
            "id": item.facts["id"],
            "twice": "id" not in item.key,
            "values": values,
            "lengths": {one["name"]: one["length"] for one in item.facts["signals"]},
            "sparklines": lines,
            "files": {one["name"]: {"state": one["state"], "bytes": one.get("bytes")} for one in states},
        }

    def replies(self, number: int, item: _Item) -> dict[str, Any]:
        """All that the page asks about one sequence, by its address."""
        facts = {**item.facts, "clock": {**item.facts["clock"], "choices": []}, "media": []}
        replies: dict[str, Any] = {}
        for k, one in enumerate(item.facts["media"]):
            facts["media"].append(_shared(one))
            if one["state"] not in {"present", "inline"}:
                continue
            if one["kind"] in {"points", "clouds", "scene"}:
                more, held = self._in_space(f"data/{number}-{k}", item, one)
                facts["media"][-1]["exported"] = held
                replies |= more
            else:
                replies |= self._medium(f"media/{number}-{k}-{_slug(one['name'])}", item, one)
        facts["files"] = [_shared(one) for one in facts["files"]]
        drawn_above = {name for one in item.facts["media"] if one["kind"] == "scene" for name in one["columns"]}
        for one in item.facts["signals"]:
            if one["name"] not in drawn_above:
                replies |= self._signal(item, one)
        replies[address("api/sequence", item.key)] = facts
        return replies

    def _signal(self, item: _Item, one: dict[str, Any]) -> dict[str, Any]:
        asked = {**item.key, "col": one["name"]}
        array, head = sequences.signal(self.shelf, Parameters(asked))
        reply: Any = _text(array)
        if "X-Seqlake-Envelope" in head:
            reply = {"npy": reply, "envelope": True, "length": int(head["X-Seqlake-Length"])}
        replies = {address("api/signal", asked): reply}
        if not one["aligned"]:
            replies[address("api/align", asked)] = _text(sequences.align(self.shelf, Parameters(asked))[0])
        if one["pose"]:
            places, head = space.poses(self.shelf, Parameters({**asked, "max": str(_PLACES)}))
            replies[address("api/poses", asked)] = {"npy": _text(places), **_placed(head)}
        return replies

    def _in_space(self, name: str, item: _Item, one: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        """Clouds or scenes, each in a script of its own, and the numbers of those that are held."""
        replies: dict[str, Any] = {}
        scene = one["kind"] == "scene"
        key = item.key if scene else {**item.key, "col": one["name"]}
        if one["kind"] == "points":
            wanted = [0]
        elif scene:
            lengths = {signal["name"]: signal["length"] for signal in item.facts["signals"]}
            wanted = _spread(lengths.get(one["columns"][0], 0), _SCENES)
        else:
            wanted = _spread(one["count"] or 0, _CLOUDS)
        if one["kind"] != "points":
            along = {**item.key, "col": one["columns"][0] if scene else one["name"]}
            with suppress(*READ_ERRORS):  # then a step's number is its own
                replies[address("api/align", along)] = _text(sequences.align(self.shelf, Parameters(along))[0])
        held = []
        for k in wanted:
            asked = key if one["kind"] == "points" else {**key, "k": str(k)}
            try:
                shape = scenes.scene(self.shelf, Parameters(asked)) if scene else self._cloud(asked, len(wanted))
            except READ_ERRORS:
                continue  # the others are shown
            where, place = address("api/scene" if scene else "api/points", asked), f"{name}-{k}.js"
            self.script(place, f'(window.seqlakeLoaded ??= {{}})["{place}"] = ', {where: shape})
            replies[where] = {"script": place}
            held.append(k)
        if one.get("mesh") and held:
            with suppress(*READ_ERRORS):  # then it is its points
                array, head = space.faces(self.shelf, Parameters(key))
                replies[address("api/faces", key)] = {"npy": _text(array), "of": len(array), **_placed(head)}
        return replies, held

    def _cloud(self, asked: dict[str, str], count: int) -> dict[str, Any]:
        most = _POINTS_ALONE if count == 1 else _CLOUD
        array, head = space.points(self.shelf, Parameters({**asked, "max": str(most)}))
        by = unquote(head["X-Seqlake-Color"])
        facts = {"npy": _text(array), "by": by, "choices": [by], "lost": int(head["X-Seqlake-Lost"])}
        span = [float(one) for one in head["X-Seqlake-Range"].split(",")]
        return {**facts, **_placed(head), "of": int(head["X-Seqlake-Of"]), "span": span}

    def _medium(self, name: str, item: _Item, one: dict[str, Any]) -> dict[str, Any]:
        """Replies about a film, a picture or a sound, and the files they name."""
        asked, about = {**item.key, "col": one["name"]}, item.videos.get(one["name"])
        if about is None:
            return self._whole(name, asked, one) if one["kind"] in {"image", "audio"} else {}
        clip = self._clip(name, asked, about) if "share" in about else None
        if "share" in about:
            about = {**about, **clip.facts} if clip else _film({**_without(about, "share"), "play": "frames"})
        replies: dict[str, Any] = {address("api/video", asked): _shared(about)}
        if about["state"] != "ok":
            return replies
        if not about["aligned"]:
            replies[address("api/align", asked)] = _text(sequences.align(self.shelf, Parameters(asked))[0])
        if clip:
            replies |= {address("api/pts", asked): _text(clip.ends), address("media", asked): clip.place}
        elif about["play"] != "frames":
            replies[address("api/pts", asked)] = _text(sequences.pts(self.shelf, Parameters(asked))[0])
            replies[address("media", asked)] = self._copy(f"{name}.{_ENDINGS.get(about['type'], 'mp4')}", asked)
        for k in about.get("exported_frames", ()):
            replies[address("api/frame", {**asked, "k": str(k)})] = self._picture(f"{name}-{k}", asked, k)
        return replies

    def _clip(self, name: str, asked: dict[str, str], about: dict[str, Any]) -> _Clip | None:
        """The frames of a sequence cut out of a file that others share; None where that cannot be."""
        shows, row = self.shelf.row(Parameters(asked))
        source = shows[shows.index_of(row)][asked["col"]].source()
        target = self.place / f"{name}.mp4"
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            clip = cutting.cut(source, target, start=0, stop=about["frames"])
            if clip.suffix != ".mp4":
                target.unlink()
                return None
            with self.room(f"{name}.mp4", target.stat().st_size):
                decoder = open_video(Source(blob=LocalBlob(target), column=source.column))
            try:
                ends = sequences.ends_of(decoder)
            finally:
                decoder.close()
        except (DecodeError, IndexError):
            return None
        facts = {"start": 0.0, "end": float(ends[-1]), "type": "video/mp4"}
        return _Clip(place=f"{name}.mp4", ends=ends, facts=facts)

    def _whole(self, name: str, asked: dict[str, str], one: dict[str, Any]) -> dict[str, Any]:
        ending = str(one.get("place", "")).rpartition(".")[2].lower()
        try:
            replies = {address("media", asked): self._copy(f"{name}.{ending if ending in _KNOWN else 'bin'}", asked)}
            if one["kind"] == "audio":
                points = {**asked, "points": str(_POINTS)}
                array, head = sequences.audio(self.shelf, Parameters(points))
                sound = {"rate": float(head["X-Seqlake-Rate"]), "seconds": float(head["X-Seqlake-Seconds"])}
                replies[address("api/audio", points)] = {"npy": _text(array), **sound}  # type: ignore[assignment]
        except READ_ERRORS:
            return {}
        return replies

    def _picture(self, name: str, asked: dict[str, str], k: int) -> Any:
        data, kind, head = sequences.frame(self.shelf, Parameters({**asked, "k": str(k), "height": str(_HEIGHT)}))
        place = self.put(f"{name}.{'png' if kind.endswith('png') else 'jpg'}", data)
        if "X-Seqlake-Range" not in head:
            return place
        low, high = map(float, head["X-Seqlake-Range"].split(","))
        return {"src": place, "low": low, "high": high, "unit": head["X-Seqlake-Unit"]}

    def _copy(self, name: str, asked: dict[str, str]) -> str:
        """The file of a cell, as it is."""
        shows, row = self.shelf.row(Parameters(asked))
        blob = shows[shows.index_of(row)][asked["col"]].blob()
        with self.room(name, blob.size) as target, target.open("wb") as file:
            for at in range(0, blob.size, 1 << 20):
                file.write(bytes(blob.ranges(np.array([at]), np.array([min(at + (1 << 20), blob.size)]))[0]))
        return name


def _shared(facts: dict[str, Any]) -> dict[str, Any]:
    """What is told of a file, without where it lay on the machine that it comes from."""
    kept = {name: value for name, value in facts.items() if name not in {"path", "resolved", "why", "hint"}}
    if "place" in kept and (scheme(kept["place"]) != "file" or Path(kept["place"]).is_absolute()):
        kept.pop("place")
    return kept


def _without(facts: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if key != name}


def _placed(head: dict[str, str]) -> dict[str, Any]:
    """Where the numbers of a cloud or a path are counted from."""
    facts: dict[str, Any] = {"origin": [float(one) for one in head["X-Seqlake-Origin"].split(",")]}
    return facts if "X-Seqlake-Each" not in head else {**facts, "each": int(head["X-Seqlake-Each"])}


def address(route: str, parameters: dict[str, str], /) -> str:
    """A route and its parameters as the page writes them: sorted, each by `encodeURIComponent`."""
    parts = [f"{name}={_component(value)}" for name, value in sorted(parameters.items()) if value]
    return f"{route}?{'&'.join(parts)}"


def _component(text: str) -> str:
    return quote(text, safe="!'()*-._~")


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:40]


def _text(array: Any) -> str:
    return base64.b64encode(sequences.npy(array)).decode()


def _index() -> str:
    """The page, with classic scripts in the place of its module."""
    page = (STATIC / "index.html").read_text(encoding="utf-8").replace("static/", "")
    policy = (
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n<meta name="generator" content="{_SIGN}">'
    )
    page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{policy}')
    scripts = '<script defer src="data.js"></script>\n<script defer src="app.js"></script>'
    return page.replace('<script type="module" src="main.js"></script>', scripts)

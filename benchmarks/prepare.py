"""Training copies of videos: two 640x480 cameras delivered at 224x224, beside what else is done, in one run.

Episodes of two cameras as in `video.py`, H.264 by seqlake's training profile. Prints a table and writes
`benchmarks/results/prepare.json` and `prepare.md`.

    benchmarks/peers/setup                              once, before: the environments of the others
    python benchmarks/prepare.py --folder DIR           ten minutes on two cores
    python benchmarks/prepare.py --small                that it works, in two; its numbers mean little

How it is measured. Every reader runs in a process of its own that stays, with two threads or two workers, and delivers
random windows of both cameras, shuffled. *Originals* is seqlake's Loader with `frames(size=(224, 224))`; *copies* the
same loader with `copies=`, of each codec. *Chosen* is the codec that `sl.prepare` takes by itself on this machine, and
*chosen small* the one that it takes within four times the bytes of the originals. *lerobot DataLoader*
is LeRobot's decoding function as its users run it, in torch's DataLoader, scaled as torchvision's `Resize` does it.
*litdata* and *webdataset* hold JPEGs of 224x224, a sample the pictures of one window and no other, which is the most
that can be done for them, decoded by Pillow in their workers; the JPEGs are of the SSIM (of luma, to the scaled
originals) that the small chosen copies have. *memcpy* moves as many consecutive bytes as a batch has into memory that
is there already. One reader works at a time; rounds alternate between all; ratios are taken within a round and the
median counts. Before, each is held to the scaled originals.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import statistics
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import av
import films
import numpy as np
from loading.runs import add_peers
from pages import Checks, conditions, save, verdicts
from PIL import Image
from video import Reader, in_rounds

import seqlake as sl

HERE = Path(__file__).parent
SIZE = (224, 224)
CODECS = ("h264", "mjpeg", "ffv1", "raw")
WIDTHS = (2, 16)
OFTEN = 16
SMALL = 4  # times the bytes of the originals
ORIGINALS, LEROBOT, LITDATA, WEBDATASET = "originals", "lerobot DataLoader", "litdata JPEG", "webdataset JPEG"
NEAR = (
    90  # grey levels that a pixel may be off where a codec loses something or another filter scales; another frame: 160
)


def pictures(dataset: sl.Dataset, name: str, camera: str, copies: Path | bool) -> np.ndarray:
    """[frames, 224, 224, 3] of one video, as the loader delivers them."""
    loader = sl.Loader(
        dataset.where(f"sequence_id = '{name}'"), window={camera: range(1)}, batch_size=50, shuffle=False
    )
    loader = loader.frames(size=SIZE, copies=False if copies is False else str(copies))
    return np.concatenate([batch[camera][:, 0] for batch in loader])


def likeness(frames: np.ndarray, exact: np.ndarray) -> float:
    """Mean SSIM of luma."""
    count = min(films.COMPARED, len(exact))
    pairs = zip(films.luma(iter(frames[:count])), films.luma(iter(exact[:count])), strict=True)
    return statistics.fmean(films.ssim(a, b) for a, b in pairs)


def as_jpeg(frame: np.ndarray, quality: int) -> bytes:
    """One picture."""
    target = io.BytesIO()
    Image.fromarray(frame).save(target, "JPEG", quality=quality)
    return target.getvalue()


def matched(exact: np.ndarray, target: float) -> int:
    """The JPEG quality that comes nearest to a given SSIM."""

    @cache
    def seen(quality: int) -> float:
        frames = [np.asarray(Image.open(io.BytesIO(as_jpeg(one, quality)))) for one in exact[: films.COMPARED]]
        return likeness(np.stack(frames), exact)

    return min(range(50, 100), key=lambda quality: abs(seen(quality) - target))


def make(folder: Path, *, episodes: int, frames: int) -> dict[str, Any]:
    """Every file that readers read, and what they are told of them; kept in the folder, made once."""
    saved = folder / "prepare.json"
    if saved.exists():
        return dict(json.loads(saved.read_text()))
    plan = films.prepare(folder, episodes=episodes, frames=frames, alike=False)
    original = plan["files"]["h264"]
    dataset = often(original["dataset"], plan["episodes"])
    exact = {(name, cam): pictures(dataset, name, cam, False) for name in plan["episodes"] for cam in films.CAMERAS}
    first = plan["episodes"][0], films.CAMERAS[0]
    videos = dict.fromkeys(films.CAMERAS, SIZE)
    small = SMALL * sum(Path(path).stat().st_size for pair in original["videos"] for path in pair)
    choices = [sl.prepare(dataset, videos, budget=budget, dry_run=True) for budget in (None, small)]
    chosen, chosen_small = (choice.columns[0].settings.codec for choice in choices)
    files: dict[str, Any] = {ORIGINALS: original | {"ssim": 1.0, "tolerance": NEAR}}
    for codec in CODECS:
        copies = folder / f"copies-{codec}"
        begin = time.perf_counter()
        done = sl.prepare(dataset, videos, codec=codec, out=copies, budget="1TB")
        seconds = time.perf_counter() - begin
        files[codec] = {
            **{key: original[key] for key in ("dataset", "videos")},
            "copies": str(copies),
            "seconds": seconds,
            "bytes_per_frame": sum(one.nbytes for one in done.columns) / sum(one.frames for one in done.columns),
            "ssim": likeness(pictures(dataset, *first, copies), exact[first]),
            "tolerance": 0 if codec in {"ffv1", "raw"} else NEAR,
        }
    quality = matched(exact[first], files[chosen_small]["ssim"])
    places, sizes = [], []
    for name in plan["episodes"]:
        pair = []
        for camera in films.CAMERAS:
            parts = [as_jpeg(frame, quality) for frame in exact[name, camera]]
            sizes += [len(part) for part in parts]
            pair.append(str(folder / f"jpeg-{name}-{camera}.npz"))
            np.savez(pair[-1], data=np.frombuffer(b"".join(parts), np.uint8), ends=np.cumsum([len(p) for p in parts]))
        places.append(pair)
    scaled = np.stack([np.asarray(Image.open(io.BytesIO(as_jpeg(one, quality)))) for one in exact[first]])
    files["jpeg"] = {
        "dataset": str(folder / "jpeg"),
        "videos": original["videos"],
        "pictures": places,
        "quality": quality,
        "bytes_per_frame": statistics.fmean(sizes),
        "ssim": likeness(scaled, exact[first]),
        "tolerance": NEAR,
    }
    expected = exact[first][plan["first"] : plan["first"] + 5]
    np.savez(folder / "expected-small.npz", **dict.fromkeys(files, expected))
    plan |= {"files": files, "size": SIZE, "expected": str(folder / "expected-small.npz")}
    plan |= {"chosen": chosen, "chosen_small": chosen_small, "choice": "\n\n".join(map(str, choices))}
    saved.write_text(json.dumps(plan))
    return plan


def often(place: str, episodes: list[str]) -> sl.Dataset:
    """The dataset with each film in `OFTEN` rows, so that the beginning of an epoch does not count for much."""
    dataset = sl.open(place)
    rows = {name: {camera: dataset[name][camera].reference for camera in films.CAMERAS} for name in episodes}
    dataset.append([{"sequence_id": f"{name}_{turn}", **rows[name]} for turn in range(1, OFTEN) for name in episodes])
    return sl.open(place)


def label(codec: str) -> str:
    """What copies are called."""
    return f"copies, {codec}"


def asked_of(plan: Path, environments: Path) -> list[tuple[str, dict[str, Any], Reader]]:
    """Every width by every reader."""
    ways = [(ORIGINALS, ORIGINALS, "seqlake Loader")]
    ways += [(label(codec), codec, "seqlake Loader") for codec in CODECS]
    ways += [(LEROBOT, ORIGINALS, LEROBOT), (LITDATA, "jpeg", "litdata samples")]
    ways += [(WEBDATASET, "jpeg", "webdataset samples"), ("memcpy", "raw", "memcpy")]
    readers = [(files, Reader(way, plan, environments, label=name)) for name, files, way in ways]
    return [
        (f"windows of {width}", {"order": "random", "width": width, "files": files}, reader)
        for width in WIDTHS
        for files, reader in readers
    ]


def conclusions(report: dict[str, Any]) -> list[dict[str, Any]]:
    """What was to be reached, and what was."""
    checks = Checks()
    for width in WIDTHS:
        task = f"windows of {width}"
        of = {r["reader"]: r["seqlake_of_it"] for r in report["results"] if r["task"] == task}
        for codec in dict.fromkeys((report["chosen"], report["chosen_small"])):
            for name, target in ((ORIGINALS, 5), (LEROBOT, 10), (LITDATA, 2), (WEBDATASET, 2)):
                if name in of and label(codec) in of:
                    checks.check(f"copies, {codec}, of {name}, {task}", of[name] / of[label(codec)], target)
        if "memcpy" in of and label("raw") in of:
            checks.check(f"raw copies of memcpy, {task}", of["memcpy"] / of[label("raw")], 0.5)
    return checks


def page(report: dict[str, Any]) -> str:
    names = list(dict.fromkeys(r["reader"] for r in report["results"]))
    rounds = max(r["rounds"] for r in report["results"])
    lines = [
        "# Training copies of videos",
        "",
        f"{report['when']}, {report['machine']}, {report['python']}, PyAV {report['pyav']}.",
        f"Load {report['load_before']:.1f} before.",
        f"Two cameras of 640x480 delivered at {SIZE[0]}x{SIZE[1]}; medians of {rounds} rounds. RGB frames per",
        f"second on two threads. In brackets the chosen copies, {report['chosen']}, of each in the same rounds; within",
        f"four times the originals the choice is {report['chosen_small']}.",
        "`benchmarks/prepare.py` writes this page and says how it measures.",
        "",
        "| | " + " | ".join(names) + " |",
        "|---" * (1 + len(names)) + "|",
    ]
    for task in dict.fromkeys(r["task"] for r in report["results"]):
        by = {r["reader"]: r for r in report["results"] if r["task"] == task}
        cells = [f"{by[n]['frames_per_second']:,.0f} ({by[n]['seqlake_of_it']:.2f})" if n in by else "" for n in names]
        lines.append(f"| {task} | " + " | ".join(cells) + " |")
    lines += [f"\n{name}: {why}." for name, why in report["missing"].items()]
    lines += [
        "",
        "| files | bytes a frame | SSIM of luma to the scaled originals | made, frames/s |",
        "|---|---|---|---|",
    ]
    for name, one in report["files"].items():
        made = f"{report['frames'] / one['seconds']:,.0f}" if name in CODECS else ""
        what = f"JPEG, quality {one['quality']}" if "quality" in one else name
        lines.append(f"| {what} | {one['bytes_per_frame']:,.0f} | {one['ssim']:.4f} | {made} |")
    lines += [
        "",
        "What `sl.prepare` says of its choices, of its own and within four times the originals:",
        "",
        "```text",
        report["choice"],
        "```",
        *verdicts(report["checks"]),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement in each round")
    parser.add_argument("--minutes", type=float, default=10, help="no round begins that would go beyond")
    parser.add_argument("--small", action="store_true", help="little data, one round")
    add_peers(parser)
    parser.add_argument("--folder", type=Path, help="where the files are kept; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "prepare.json")
    args = parser.parse_args()
    folder = (args.folder or Path(tempfile.mkdtemp(prefix="seqlake-prepare-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        shape = {"episodes": 2, "frames": 96} if args.small else {"episodes": films.EPISODES, "frames": films.FRAMES}
        plan = make(folder, **shape)
        report: dict[str, Any] = {
            **conditions(),
            "pyav": av.__version__,
            "chosen": plan["chosen"],
            "chosen_small": plan["chosen_small"],
            "choice": plan["choice"],
            "frames": len(plan["episodes"]) * len(films.CAMERAS) * plan["frames"],
            "files": {
                name: {key: one[key] for key in ("bytes_per_frame", "ssim", "seconds", "quality") if key in one}
                for name, one in plan["files"].items()
            },
        }
        report["results"], report["missing"] = in_rounds(
            asked_of(folder / "prepare.json", args.environments),
            rounds=1 if args.small else args.rounds,
            seconds=args.seconds,
            minutes=args.minutes,
            ours=label(plan["chosen"]),
        )
        report["checks"] = conclusions(report)
    finally:
        if args.folder is None:
            shutil.rmtree(folder)
    save(args.out, report, page(report))


if __name__ == "__main__":
    main()

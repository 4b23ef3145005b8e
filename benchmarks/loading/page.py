"""The page of `benchmarks/loader.py`: what it says of its numbers, and what was to be reached."""

from __future__ import annotations

from typing import Any

from loading.runs import MIXED
from pages import Checks, verdicts


def best(report: dict[str, Any], work: str, width: int | None = None) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Ours and the quickest peer that shuffles samples."""
    found = [
        one
        for one in report.get("peers", [])
        if one.get("work") == work and one.get("width") == width and one.get("mixture", 0) > MIXED
    ]
    own = [one for one in found if one["peer"].startswith("seqlake")]
    others = [one for one in found if not one["peer"].startswith("seqlake")]
    return (own[0], max(others, key=lambda one: one["samples_per_second"])) if own and others else None


def conclusions(report: dict[str, Any]) -> list[dict[str, Any]]:
    """What was to be reached, and what was."""
    checks = Checks()
    for r in report.get("windows", []):
        if r["width"] != 16:
            continue
        where = f"{r['shards']} shards, W=16, {r['cores']} cores"
        checks.check(f"loader of memcpy, {where}", r["of_memcpy"], 0.5 if r["cores"] > 1 else 0.35)
        checks.check(f"loader of an expert's memmap, {where}", r["of_expert"], 0.8)
    if pair := best(report, "windows", 16):
        ratio = pair[0]["samples_per_second"] / pair[1]["samples_per_second"]
        checks.check(f"loader of the best peer ({pair[1]['peer']}, {pair[1]['settings']}), W=16", ratio, 20)
    films = {(one["task"], one["reader"]): one["seqlake_of_it"] for one in report.get("cameras", {}).get("results", [])}
    for task in dict.fromkeys(task for task, _ in films):
        checks.check(f"loader of PyAV by hand, {task} of two cameras", films.get((task, "pyav")), 0.9)
        others = {name: ratio for (one, name), ratio in films.items() if one == task and not name.startswith("seqlake")}
        for no_loader in ("pyav", "lerobot"):  # it decodes a window; LeRobot's loader is the one with a DataLoader
            others.pop(no_loader, None)
        if others:
            name = min(others, key=others.__getitem__)
            checks.check(f"loader of the best peer ({name}), {task} of two cameras", others[name], 2.5)
    bucket = report.get("remote", {})
    checks.check("first epoch from S3 of plain parallel GETs, by time", bucket.get("of_plain_gets"), 0.8)
    checks.check("its bytes of the least possible", bucket.get("of_least_bytes"), 1.1, at_most=True)
    checks.check("its requests of the least possible", bucket.get("of_least_requests"), 1.5, at_most=True)
    checks.check("first epoch from S3 of parallel GETs into files, by time", bucket.get("of_gets_to_files"), 0.8)
    for name, how in (("of_plain_gets", ""), ("of_plain_gets_in_lanes", ", two lanes")):
        far = bucket.get("far", {}).get(name)
        checks.check(f"first epoch from a store that is far away of plain parallel GETs, by time{how}", far, 0.8)
    growth = report.get("growth", [])
    if len(growth) > 1:
        small, large = growth[0], growth[-1]
        more = large["sequences"] - small["sequences"]
        label = f"{large['windows']:,} windows instead of {small['windows']:,}, for each sequence more"
        us, nbytes = (1e6 * (large[name] - small[name]) / more for name in ("first_batch_s", "peak_mb"))
        checks.check(f"us to the first batch, {label}", us, 10, at_most=True)
        checks.check(f"bytes of memory, {label}", nbytes, 500, at_most=True)
    return checks


def table(report: dict[str, Any]) -> str:
    lines = [
        "# The training loader",
        "",
        f"{report['when']}, {report['machine']}, {report['python']}; load {report['load_before']:.1f} before;",
        f"{report['sequences']} sequences. `benchmarks/loader.py` writes this page and says how it measures.",
    ]
    if report["small"]:
        lines += ["", "Measured with `--small`, which shows that each part works: its numbers mean little."]
    for part in (windows, peers, compressed, cameras, remote, growth):
        if report.get(part.__name__):
            lines += ["", *part(report[part.__name__])]
    return "\n".join([*lines, *verdicts(report["checks"])]) + "\n"


def windows(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "## State-only windows",
        "",
        "1 000 windows/s through the whole loader as torch tensors, the order of each epoch computed anew, beside an",
        "expert's memmap; bytes per second as a part of memcpy's.",
        "",
        "| shards | W | cores | memcpy GB/s | loader | of memcpy | expert | of memcpy | loader of expert |",
        "|---" * 9 + "|",
    ]
    for r in rows:
        lines.append(
            f"| {r['shards']} | {r['width']} | {r['cores']} | {r['memcpy_gb_s']:.1f} | "
            f"{r['windows_per_second'] / 1e3:,.0f} | {r['of_memcpy']:.2f} | "
            f"{r['expert_windows_per_second'] / 1e3:,.0f} | {r['expert_of_memcpy']:.2f} | {r['of_expert']:.2f} |"
        )
    return lines


def kind(one: dict[str, Any]) -> tuple[Any, Any]:
    return one.get("work"), one.get("width")


def peers(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "## Beside peers, from a local disk",
        "",
        "Samples a second (windows of W steps, or whole sequences), CPU seconds for a million, memory that came to",
        "the process and its workers, distinct sequences of a batch as a part of a uniform shuffle's, and how many",
        "times as quick seqlake is.",
        "",
        "| | | samples/s | CPU s per million | memory MB | mixture | seqlake of it |",
        "|---" * 7 + "|",
    ]
    for one in rows:
        what = f"W={one['width']}" if one.get("width") else one.get("work", "")
        name = f"{one['peer']}: {one.get('settings', '')}"
        if "failed" in one:
            lines.append(f"| {what} | {name} | failed: {' '.join(one['failed'].split())[-120:]} | | | | |")
            continue
        own = [
            r for r in rows if r["peer"].startswith("seqlake") and kind(r) == kind(one) and "samples_per_second" in r
        ]
        ratio = f"{own[0]['samples_per_second'] / one['samples_per_second']:,.1f}" if own else ""
        lines.append(
            f"| {what} | {name} | {one['samples_per_second']:,.0f} | {one['cpu_s_per_million']:,.1f} | "
            f"{one['peak_mb']:,.0f} | {one['mixture']:.2f} | {ratio} |"
        )
    return lines


def compressed(rows: list[dict[str, Any]]) -> list[str]:
    """Windows out of compressed local files."""
    return [
        "## Compressed local files, larger than the memory given",
        "",
        f"Windows of 16, {rows[0]['memory_mb']:,.0f} MB for what is decoded, less than all takes; columns as above.",
        "",
        *peers(rows)[6:],
    ]


def cameras(part: dict[str, Any]) -> list[str]:
    lines = [
        "## Windows of two 640x480 cameras, the same MP4 files",
        "",
        "RGB frames a second on two threads; seqlake's loader as a multiple of each in the same rounds.",
        "",
        "| | | frames/s | CPU ms a frame | seqlake of it |",
        "|---" * 5 + "|",
    ]
    for one in part["results"]:
        cpu = f"{one['cpu_ms_per_frame']:.2f}" if one["cpu_ms_per_frame"] else ""
        lines.append(
            f"| {one['task']} | {one['reader']} | {one['frames_per_second']:,.0f} | {cpu} | "
            f"{one['seqlake_of_it']:.2f} |"
        )
    return lines + [f"\n{name}: {why}." for name, why in part["missing"].items()]


def remote(part: dict[str, Any]) -> list[str]:
    lines = ["## Two epochs from S3 on loopback", ""]
    if "plain_gets_s" in part:
        megabytes = part["object_bytes"] / 1e6
        lines += [
            f"{part['objects']} objects of {megabytes:,.0f} MB in all. Plain parallel GETs of them take",
            f"{part['plain_gets_s']:.2f} s, {part['of_plain_gets']:.2f} of seqlake's first epoch in memory;",
            f"into files {part['plain_gets_to_files_s']:.2f} s, {part['of_gets_to_files']:.2f} of the one in a folder.",
            "",
        ]
    head = ("first epoch s", "first batch s", "MB", "requests", "second epoch s", "MB", "requests")
    lines += ["| | " + " | ".join([*head, "CPU s per million", "memory MB", "missing"]) + " |", "|---" * 11 + "|"]
    for one in [*part["seqlake"], *part.get("peers", [])]:
        name = f"{one['peer']}: {one.get('settings', '')}"
        if "failed" in one:
            lines.append(f"| {name} | failed: {' '.join(one['failed'].split())[-120:]} |" + " |" * 9)
            continue
        first, second = one["epochs"]
        lines.append(
            f"| {name} | {first['seconds']:.2f} | {first['first_batch_s']:.2f} | {first['bytes'] / 1e6:,.0f} | "
            f"{first['requests']} | {second['seconds']:.2f} | {second['bytes'] / 1e6:,.0f} | {second['requests']} | "
            f"{one['cpu_s_per_million']:,.1f} | {one['peak_mb']:,.0f} | {first['missing']} |"
        )
    far = part.get("far", {})
    if "plain_gets_s" in far:
        lines += [
            "",
            "From a store that is far away (20 ms to the first byte, then 85 MB/s a request) plain parallel GETs take",
            f"{far['plain_gets_s']:.2f} s.",
            "",
            "| | first epoch s | first batch s |",
            "|---" * 3 + "|",
        ]
        for one in far["seqlake"]:
            first = one["epochs"][0]
            lines.append(f"| {one['settings']} | {first['seconds']:.2f} | {first['first_batch_s']:.2f} |")
    return lines


def growth(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "## Growth",
        "",
        "| windows | sequences | open s | first batch s | memory MB | torch.randperm s | its MB |",
        "|---" * 7 + "|",
    ]
    for r in rows:
        lines.append(
            f"| {r['windows']:,} | {r['sequences']:,} | {r['open_s']:.3f} | {r['first_batch_s']:.3f} | "
            f"{r['peak_mb']:,.0f} | {r['randperm_s']:.3f} | {r['randperm_mb']:,.1f} |"
        )
    return lines

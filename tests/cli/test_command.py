from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import seqlake as sl
from seqlake import plugins

from .conftest import run_as_process


def test_help_lists_every_command(run) -> None:
    told = run("--help")
    assert told.code == 0
    for name in [*plugins.names("cli"), "import", "export"]:
        assert f"  {name} " in told.out


@pytest.mark.parametrize("name", plugins.names("cli"))
def test_every_command_has_help(run, name) -> None:
    assert run(name, "--help").code == 0


def test_unknown_command_guesses(run) -> None:
    told = run("validat")
    assert told.code == 2
    assert "validate" in told.err


def test_a_missing_dataset_is_one_line_and_json_on_request(run, tmp_path) -> None:
    told = run("info", tmp_path / "nowhere")
    assert told.code == 1
    assert told.err.startswith("seqlake: error:")
    assert told.out == ""
    error = json.loads(run("info", tmp_path / "nowhere", "--json").err)["error"]
    assert error["code"] == "dataset-not-found"


def test_debug_shows_the_traceback(tmp_path) -> None:
    told = run_as_process("--debug", "info", tmp_path / "nowhere")
    assert told.code == 1
    assert "Traceback" in told.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(run, shell) -> None:
    assert "_SEQLAKE_COMPLETE" in run("completion", shell).out


def test_doctor_lists_core_packages(run) -> None:
    facts = run("doctor", "--json").json
    versions = {p["package"]: p["version"] for p in facts["packages"]}
    assert versions["pyarrow"]
    assert facts["core_nbytes"] < 450_000_000
    assert "core packages" in run("doctor").out


def test_a_closed_pipe_is_no_traceback(dataset) -> None:
    import subprocess
    import sys

    code = "from seqlake.cli import main; main()"
    reader = subprocess.Popen(["head", "-c", "1"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    writer = subprocess.run(
        [sys.executable, "-c", code, "sql", str(dataset), "SELECT * FROM range(200000)", "--format", "csv"],
        stdout=reader.stdin, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    reader.communicate()
    assert b"Traceback" not in writer.stderr


def test_bench_compares_with_copying_memory(run, dataset) -> None:
    facts = run("bench", dataset, "--seconds", 0.3, "--batch-size", 8, "--window", 4, "--json").json
    assert facts["windows"] > 0
    assert facts["memcpy_bytes_per_second"] > 0
    assert facts["wait_share"] <= 1
    assert facts["bytes_by_origin"].keys() == {"mapped"}
    told = run("bench", dataset, "--seconds", 0.3, "--batch-size", 8, "--window", 4)
    assert "of copying memory" in told.out
    assert "stages     order" in told.out


def test_demo_does_what_it_says(run, tmp_path) -> None:
    facts = run("demo", tmp_path / "demo", "--episodes", 8, "--json").json
    assert facts["episodes"] == 8
    assert facts["errors"] == 0
    assert facts["kept"] >= facts["killed_after"] >= 3
    assert (tmp_path / "demo" / "episodes.svg").read_text().startswith("<svg")
    for name in ("episodes.png", "contact-sheet.png"):
        assert (tmp_path / "demo" / name).read_bytes().startswith(b"\x89PNG")
    assert run("validate", tmp_path / "demo" / "dataset", "--depth", "decode").code == 0
    ds = sl.open(tmp_path / "demo" / "dataset")
    assert len(ds) == 8 + facts["kept"]
    frames = [(len(episode["cam_front"]), len(episode["cam_wrist"]), episode["length"]) for episode in ds]
    assert all((front, wrist) == (steps, (steps + 1) // 2) for front, wrist, steps in frames)
    assert sum(front + wrist for front, wrist, _ in frames[:8]) == facts["frames"]
    assert {ds.schema[name].type.get("fps") for name in ("cam_front", "cam_wrist")} == {30, 15}
    assert len(facts["statistics"]["cam_front"]) == 3
    assert facts["windows_with_frames_per_second"] > 0


def test_demo_of_an_rlds_folder(run, tmp_path) -> None:
    place = Path(__file__).parents[3] / "shared" / "data" / "bridge_rlds"
    if not place.is_dir():
        pytest.skip(f"the real set is not at {place}")
    facts = run("demo", tmp_path / "demo", "--from", place, "--json").json
    assert (facts["episodes"], facts["errors"]) == (25, 0)
    assert (tmp_path / "demo" / "contact-sheet.png").read_bytes().startswith(b"\x89PNG")
    assert facts["windows_with_frames_per_second"] > 0


def completed(*words: str) -> list[str]:
    env = {**os.environ, "COMP_WORDS": " ".join(["seqlake", *words]), "COMP_CWORD": str(len(words))}
    env["_SEQLAKE_COMPLETE"] = "bash_complete"
    told = run_as_process(env=env)
    return [line.partition(",")[2] for line in told.out.splitlines()]


def test_ids_and_columns_are_completed(dataset, monkeypatch) -> None:
    from seqlake.cli import _options

    # A busy machine may need longer than a shell should wait; what is found is the point here.
    context = type("Context", (), {"params": {"source": str(dataset)}})()
    monkeypatch.setattr(_options, "_within", lambda _, work: work())
    assert _options.complete_ids(context, None, "ep_1") == ["ep_10", "ep_11"]
    assert _options.complete_columns(context, None, "task,re") == ["task,reward"]
    context.params["source"] = str(dataset / "nowhere")
    assert _options.complete_ids(context, None, "") == []


def test_commands_are_completed() -> None:
    assert completed("val") == ["validate"]


def _imported(*arguments: str) -> set[str]:
    """The modules that a command line loads beside those of Python itself."""
    script = f"""
import sys
before = set(sys.modules)
from seqlake.cli import main
try:
    main({[*arguments]!r})
finally:
    print(*sorted(set(sys.modules) - before), file=sys.stderr)
"""
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr.split()
    )


def test_help_imports_little() -> None:
    """Counted in modules, since times differ from machine to machine."""
    loaded = _imported("--help")
    assert len(loaded) < 170, loaded
    assert not loaded & {"numpy", "pyarrow", "duckdb", "asyncio", "ssl", "multiprocessing"}
    # What other packages bring is asked for where all commands are listed, and not to find one of ours.
    assert "importlib.metadata" not in _imported("tag", "--help")

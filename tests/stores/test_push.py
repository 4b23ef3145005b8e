"""What is pushed: by the official client to a server that speaks its API, and read back by the official packages."""

from __future__ import annotations

import hashlib
import sys

import huggingface_hub
import huggingface_hub.constants
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.formats.lerobot import by_hand
from tests.hub import files_in

import seqlake as sl
from seqlake.cli import main
from seqlake.conversion import pushing
from seqlake.errors import (
    AccessDeniedError,
    DatasetNotFoundError,
    MissingFileError,
    SchemaMismatchError,
    UnsafeReferenceError,
)
from seqlake.testing import samples

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # the official client's own


@pytest.fixture(autouse=True)
def _writer(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_writer")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    datasets.disable_progress_bars()


@pytest.fixture
def arm(tmp_path):
    ds = sl.create(tmp_path / "arm", samples.arm_schema())
    ds.append(list(samples.arm_episodes(4)), message="first")
    return ds


def pushed(hub, name="owner/arm", branch="main") -> dict[str, bytes]:
    repo = hub.repos[name]
    return {path: data for path, data in repo.commits[repo.refs[branch]].items() if path != ".gitattributes"}


def test_a_dataset_is_pushed_and_opens_as_it_was(hub, arm, tmp_path) -> None:
    arm.delete(ids=["ep_0001"])
    arm.append([{**next(iter(samples.arm_episodes(1, first=9))), "sequence_id": "more"}])
    (tmp_path / "arm" / "notes.txt").write_text("mine alone")
    done = sl.push(
        arm, "hf://datasets/owner/arm", private=True, message="Two arms", license="cc-by-4.0", progress=False
    )
    repo = hub.repos["owner/arm"]
    assert repo.private
    assert repo.messages[-1] == "Two arms"
    assert len(repo.commits) == 2  # that of the Hub, and one
    files = pushed(hub)
    assert set(files) == {"README.md", "mixtrain.json", *(path for path in files if path.startswith("data/"))}
    assert len(files) == 4
    assert done.commit == repo.refs["main"]
    remote = sl.open("hf://datasets/owner/arm")
    assert remote.to_arrow().equals(arm.to_arrow())
    assert sl.open(done.location).validate(depth="rows").ok
    assert {login for method, _, login in hub.stored if method == "PUT"} == {None}


def test_the_card_leads_the_viewer_and_datasets_to_the_rows(hub, arm, tmp_path) -> None:
    sl.push(arm, "hf://datasets/owner/arm", license="mit", tasks=["robotics"], progress=False)
    card = huggingface_hub.DatasetCard(pushed(hub)["README.md"].decode())
    assert card.data.to_dict() == {
        "license": "mit",
        "task_categories": ["robotics"],
        "size_categories": ["n<1K"],
        "tags": ["mixtrain", "seqlake"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}],
    }
    assert "4 sequences" in card.text
    assert 'sl.open("hf://datasets/owner/arm")' in card.text
    for path, data in pushed(hub).items():
        (tmp_path / "copy" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / path).write_bytes(data)
    loaded = datasets.load_dataset(str(tmp_path / "copy"), cache_dir=str(tmp_path / "cache"))["train"]
    assert loaded["sequence_id"][:] == arm.to_arrow()["sequence_id"].to_pylist()
    np.testing.assert_array_equal(np.asarray(loaded[2]["action"], np.float32), arm[2]["action"])


def test_a_second_push_sends_what_is_new_and_removes_what_is_gone(hub, arm) -> None:
    sl.push(arm, "hf://datasets/owner/arm", progress=False)
    repo = hub.repos["owner/arm"]
    repo.commit({"README.md": b"# My own card", "LICENSE": b"mine", "data/README.md": b"x"})
    old = {path for path in pushed(hub) if path.endswith(".parquet")}
    arm.delete(ids=["ep_0001"])
    hub.stored.clear()
    again = sl.push(arm, "hf://datasets/owner/arm", progress=False)
    assert set(again.removed) == old | {"data/README.md"}
    assert again.card is None
    files = pushed(hub)
    assert (files["README.md"], files["LICENSE"]) == (b"# My own card", b"mine")
    assert len(sl.open("hf://datasets/owner/arm")) == 3
    assert len([one for one in hub.stored if one[0] == "PUT"]) == 1
    hub.stored.clear()
    sl.push(arm, "hf://datasets/owner/arm", progress=False)
    assert hub.stored == []
    assert sl.push(arm, "hf://datasets/owner/arm", card=True, progress=False).card
    assert pushed(hub)["README.md"] != b"# My own card"


def test_an_interrupted_push_goes_on(hub, arm, monkeypatch) -> None:
    create = huggingface_hub.HfApi.create_commit
    monkeypatch.setattr(
        huggingface_hub.HfApi, "create_commit", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        sl.push(arm, "hf://datasets/owner/arm", progress=False)
    assert set(pushed(hub)) == set()
    monkeypatch.setattr(huggingface_hub.HfApi, "create_commit", create)
    hub.stored.clear()
    sl.push(arm, "hf://datasets/owner/arm", progress=False)
    assert hub.stored == []  # the shards were there
    assert len(sl.open("hf://datasets/owner/arm")) == 4


def test_very_many_files_are_several_commits_and_a_dataset_after_the_last(hub, arm, monkeypatch) -> None:
    arm.append(list(samples.arm_episodes(4, first=4)), rows_per_shard=1)
    monkeypatch.setattr(pushing, "_MOST_IN_COMMIT", 3)
    monkeypatch.setattr(pushing, "_AT_A_TIME", 2)
    sl.push(arm, "hf://datasets/owner/arm", message="Many", progress=False)
    repo = hub.repos["owner/arm"]
    assert repo.messages[1:] == ["Many (1 of 3)", "Many (2 of 3)", "Many (3 of 3)"]
    assert ["mixtrain.json" in files for files in repo.commits.values()] == [False, False, False, True]
    assert len(sl.open("hf://datasets/owner/arm")) == 8


def test_several_commits_are_no_dataset_between_the_first_and_the_last(hub, arm, monkeypatch) -> None:
    sl.push(arm, "hf://datasets/owner/arm", progress=False)
    repo = hub.repos["owner/arm"]
    before = len(repo.commits)
    arm.delete(ids=["ep_0001"])
    arm.append(list(samples.arm_episodes(4, first=4)), rows_per_shard=1)
    monkeypatch.setattr(pushing, "_MOST_IN_COMMIT", 3)
    sl.push(arm, "hf://datasets/owner/arm", progress=False)
    assert ["mixtrain.json" in files for files in list(repo.commits.values())[before:]] == [False, True]
    assert len(sl.open("hf://datasets/owner/arm")) == 7


def test_what_was_another_dataset_is_none_afterwards(hub, arm, tmp_path) -> None:
    repo = hub.upload("owner/arm", tmp_path / "arm")  # with its log, as a tool that copies files does it
    assert any(path.startswith("_seqlake/") for path in pushed(hub))
    arm.delete(ids=["ep_0001"])
    sl.push(arm, "hf://datasets/owner/arm", progress=False)
    assert len(sl.open("hf://datasets/owner/arm")) == 3
    assert not any(path.startswith("_seqlake/") for path in pushed(hub))
    by_hand.write(tmp_path / "robot", by_hand.four(), "v3.0")
    (tmp_path / "robot" / "README.md").write_text("of the folder")
    repo.commit({"README.md": None})
    sl.push(tmp_path / "robot", "hf://datasets/owner/arm", progress=False)
    assert "mixtrain.json" not in pushed(hub)
    assert pushed(hub)["README.md"] == b"of the folder"
    assert len(sl.open("hf://datasets/owner/arm")) == 4
    sl.push(tmp_path / "robot", "hf://datasets/owner/arm", card=True, progress=False)
    assert b"LeRobot" in pushed(hub)["README.md"]


def test_a_dry_run_sends_nothing(hub, arm) -> None:
    planned = sl.push(arm, "hf://datasets/owner/arm", dry_run=True)
    assert planned.created
    assert planned.commit is None
    assert planned.card
    assert {path for path, _ in planned.files} == {
        "mixtrain.json",
        *(p for p, _ in planned.files if p.startswith("data/")),
    }
    assert "owner/arm" not in hub.repos
    assert {method for method, _, _ in hub.asked} <= {"GET", "HEAD"}


def test_shards_in_folders_and_of_other_formats_keep_their_names(hub, arm, tmp_path) -> None:
    table = arm.to_arrow()
    for folder in ("task=a/data", "task=b", "c"):
        (tmp_path / "plain" / "data" / folder).mkdir(parents=True)
        ids = pa.array([f"{folder} {number}" for number in range(2)])
        pq.write_table(
            pa.table({"sequence_id": ids, "action": table["action"][:2]}), tmp_path / f"plain/data/{folder}/x.parquet"
        )
    (tmp_path / "plain" / "data" / "c" / "x.parquet").unlink()
    (tmp_path / "plain" / "mixtrain.json").write_text('{"mixtrain": "1.0"}')
    plain = sl.open(tmp_path / "plain")
    sl.push(plain, "hf://datasets/owner/plain", progress=False)
    assert {"data/task=a/data/x.parquet", "data/task=b/x.parquet"} < set(pushed(hub, "owner/plain"))
    assert sl.open("hf://datasets/owner/plain").to_arrow().equals(plain.to_arrow())
    lance = sl.create(tmp_path / "lance", samples.arm_schema(), shards="lance")
    lance.append(list(samples.arm_episodes(3)))
    sl.push(lance, "hf://datasets/owner/lance", progress=False)
    assert sl.open("hf://datasets/owner/lance").to_arrow().equals(lance.to_arrow())


def test_older_versions_and_datasets_elsewhere(hub, arm, tmp_path) -> None:
    arm.delete(ids=["ep_0001"])
    sl.push(sl.open(tmp_path / "arm", version=1), "hf://datasets/owner/old", progress=False)
    assert all(path.endswith((".parquet", ".json", ".md")) for path in pushed(hub, "owner/old"))
    old = sl.open("hf://datasets/owner/old")
    assert len(old) == 4
    sl.push(old, "hf://datasets/owner/copy", progress=False)
    assert sl.open("hf://datasets/owner/copy").to_arrow().equals(old.to_arrow())


def test_plain_parquet_goes_as_it_is(hub, tmp_path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "x.parquet")
    (tmp_path / "plain").mkdir()
    (tmp_path / "x.parquet").rename(tmp_path / "plain" / "x.parquet")
    sl.push(tmp_path / "plain", "hf://datasets/owner/plain", progress=False)
    assert sl.scan("hf://datasets/owner/plain").to_arrow()["a"].to_pylist() == [1, 2]


def test_branches(hub, arm) -> None:
    sl.push(arm, "hf://datasets/owner/arm", progress=False)
    arm.delete(ids=["ep_0001"])
    done = sl.push(arm, "hf://datasets/owner/arm@trial", progress=False)
    assert (done.branch, done.created) == ("trial", False)
    assert len(sl.open("hf://datasets/owner/arm@trial")) == 3
    assert len(sl.open("hf://datasets/owner/arm")) == 4
    for wrong in ("hf://datasets/owner/arm/data", f"hf://datasets/owner/arm@{'0' * 40}", "s3://bucket/arm"):
        with pytest.raises(ValueError, match="expected"):
            sl.push(arm, wrong)


def test_files_that_rows_name_go_along(hub, tmp_path) -> None:
    ds = sl.create(tmp_path / "ds", {"log": sl.ColumnType("mcap")})
    for name in "ab":
        (tmp_path / f"{name}.mcap").write_bytes(name.encode() * 2000)
        ds.append([{"sequence_id": name, "log": sl.File(tmp_path / f"{name}.mcap")}])
    ds.append([{"sequence_id": "c", "log": "https://example.com/c.mcap"}])
    ds.delete(ids=["b"])
    sl.push(ds, "hf://datasets/owner/logs", progress=False)
    assert len([path for path in pushed(hub, "owner/logs") if path.startswith("files/")]) == 1
    assert sl.open("hf://datasets/owner/logs")["a"]["log"].read() == b"a" * 2000


def test_what_nobody_else_could_read_is_refused(hub, arm, tmp_path) -> None:
    ds = sl.create(tmp_path / "ds", {"log": sl.ColumnType("mcap")})
    (tmp_path / "out.mcap").write_bytes(b"x")
    ds.append([{"sequence_id": "a", "log": str(tmp_path / "out.mcap")}])
    with pytest.raises(UnsafeReferenceError, match="nobody else finds it"):
        sl.push(ds, "hf://datasets/owner/logs")
    ds.upsert([{"sequence_id": "a", "log": sl.File(tmp_path / "out.mcap")}])
    next((tmp_path / "ds" / "files").rglob("*.mcap")).unlink()
    with pytest.raises(MissingFileError, match="which a of log names, is not there"):
        sl.push(ds, "hf://datasets/owner/logs")
    arm.rename_column("action", "torque")
    with pytest.raises(SchemaMismatchError, match="seqlake fold"):
        sl.push(arm, "hf://datasets/owner/arm")
    arm.fold()
    assert sl.push(arm, "hf://datasets/owner/arm", dry_run=True).files
    with pytest.raises(TypeError, match="whole dataset"):
        sl.push(arm.where("length > 0"), "hf://datasets/owner/arm")
    with pytest.raises(DatasetNotFoundError):
        sl.push(tmp_path / "nothing", "hf://datasets/owner/arm")
    assert "owner/arm" not in hub.repos


def test_the_login_is_needed_and_never_printed(hub, arm, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_reader")
    with pytest.raises(AccessDeniedError, match="HTTP 403") as error:
        sl.push(arm, "hf://datasets/owner/arm", progress=False)
    assert "hf_reader" not in str(error.value)


def test_a_commit_of_somebody_else_meanwhile_is_not_overwritten(hub, arm, monkeypatch) -> None:
    sl.push(arm, "hf://datasets/owner/arm", progress=False)
    arm.delete(ids=["ep_0001"])
    repo = hub.repos["owner/arm"]
    upload = huggingface_hub.HfApi.preupload_lfs_files
    rival = {"data/theirs.parquet": b"theirs"}
    monkeypatch.setattr(
        huggingface_hub.HfApi, "preupload_lfs_files", lambda *a, **o: (repo.commit(rival), upload(*a, **o))[1]
    )
    with pytest.raises(OSError, match="somebody else changed it meanwhile"):
        sl.push(arm, "hf://datasets/owner/arm", progress=False)
    assert pushed(hub)["data/theirs.parquet"] == b"theirs"


def test_a_storage_that_refuses_is_an_error_of_ours(hub, arm) -> None:
    hub.full = True
    with pytest.raises(OSError, match=r"HTTP 403|could not be sent") as error:
        sl.push(arm, "hf://datasets/owner/arm", progress=False)
    assert "Signature" not in str(error.value)


def test_a_lerobot_folder_goes_as_it_is(hub, tmp_path) -> None:
    by_hand.write(tmp_path / "robot", by_hand.four(), "v3.0")
    (tmp_path / "robot" / ".cache").mkdir()
    (tmp_path / "robot" / ".cache" / "x").write_bytes(b"x")
    sl.push(tmp_path / "robot", "hf://datasets/owner/robot", progress=False)
    files = pushed(hub, "owner/robot")
    card = huggingface_hub.DatasetCard(files.pop("README.md").decode()).data.to_dict()
    assert "LeRobot" in card["tags"]
    assert card["task_categories"] == ["robotics"]
    assert files == {path: data for path, data in files_in(tmp_path / "robot").items() if not path.startswith(".cache")}
    remote = sl.open("hf://datasets/owner/robot")
    assert remote.to_arrow().equals(sl.open(tmp_path / "robot").to_arrow())


def test_links_that_lead_out_are_not_pushed(hub, tmp_path) -> None:
    by_hand.write(tmp_path / "robot", by_hand.four(), "v3.0")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("hush")
    (tmp_path / "robot" / "meta" / "key").symlink_to(tmp_path / "secret" / "key")
    (tmp_path / "robot" / "more").symlink_to(tmp_path / "secret")
    try:
        sl.push(tmp_path / "robot", "hf://datasets/owner/robot", progress=False)
    except UnsafeReferenceError:
        return
    assert b"hush" not in pushed(hub, "owner/robot").values()


def test_a_hugging_face_folder_is_pushed_with_its_splits(hub, tmp_path) -> None:
    ds = sl.create(tmp_path / "ds", {"split": pa.string(), "x": pa.int64()})
    ds.append([{"sequence_id": f"e{n}", "split": s, "x": n} for n, s in enumerate(["train", "test", "train"])])
    sl.convert(ds, tmp_path / "out", to="huggingface", workers=1, progress=False)
    sl.push(tmp_path / "out", "hf://datasets/owner/splits", progress=False)
    card = huggingface_hub.DatasetCard(pushed(hub, "owner/splits")["README.md"].decode()).data.to_dict()
    patterns = {one["split"]: one["path"] for one in card["configs"][0]["data_files"]}
    assert patterns == {"train": "data/train-*.parquet", "test": "data/test-*.parquet"}
    assert sl.scan("hf://datasets/owner/splits", split="test").to_arrow()["x"].to_pylist() == [1]


def test_the_command(hub, arm, tmp_path, capsys) -> None:
    def run(*arguments) -> tuple[str, int]:
        with pytest.raises(SystemExit) as stop:
            main(["push", str(tmp_path / "arm"), "hf://datasets/owner/arm", *arguments])
        return capsys.readouterr().out, stop.value.code or 0

    said, code = run("--dry-run")
    assert (code, "Would push 2 files" in said, "(new)" in said) == (0, True, True)
    said, code = run("-m", "From the shell", "--private", "--license", "mit", "--no-progress")
    assert (code, "Pushed 2 files" in said, "and a card" in said) == (0, True, True)
    assert (hub.repos["owner/arm"].messages[-1], hub.repos["owner/arm"].private) == ("From the shell", True)
    assert b'license: "mit"' in pushed(hub)["README.md"]
    assert '"commit"' in run("--json", "--no-card")[0]


def test_files_go_as_chunks_where_hf_xet_is_installed_and_are_read_without_it(hub, tmp_path, monkeypatch) -> None:
    """The client's own upload to a storage that puts files together from chunks; of a copy nothing is sent again."""
    pytest.importorskip("hf_xet")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", False)
    monkeypatch.setenv("HF_XET_CACHE", str(tmp_path / "xet"))
    ds = sl.create(tmp_path / "arm", {"x": sl.Trajectory(8, dtype="float64")})
    rng = np.random.default_rng(3)
    ds.append([{"sequence_id": f"ep{number}", "x": rng.normal(size=(5000, 8))} for number in range(4)])
    sl.push(ds, "hf://datasets/owner/arm", progress=False)
    large = {path: data for path, data in pushed(hub).items() if path.endswith(".parquet")}
    assert {hashlib.sha256(data).hexdigest() for data in large.values()} <= hub.xet.files.keys()
    assert [one for one in hub.stored if one[0] == "PUT"] == []
    assert len([chunk for chunks in hub.xet.xorbs.values() for chunk in chunks]) > 5
    assert {one[2] for one in hub.stored} <= {None, "Bearer of the storage"}  # the Hub's token stays with the Hub
    monkeypatch.setitem(sys.modules, "hf_xet", None)
    hub.stored.clear()
    assert sl.open("hf://datasets/owner/arm").to_arrow().equals(ds.to_arrow())
    assert {one[0] for one in hub.stored} == {"GET"}
    assert all("/cas/" not in one[1] for one in hub.stored)

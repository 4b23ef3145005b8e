"""HDF5 that is damaged, lies, or was made to harm: errors and findings that say which episode, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tests.formats.hdf5 import by_hand

import seqlake as sl
from seqlake.errors import (
    CorruptFileError,
    DatasetNotFoundError,
    InvalidMetadataError,
    SchemaMismatchError,
    SeqlakeError,
)
from seqlake.formats import hdf5


def findings(location: Path, **options: Any) -> list[tuple[str, str, str]]:
    """Codes, sequences and columns of what `check` says at depth `rows`."""
    source = hdf5.scan(str(location), **options)
    return [(one.code, one.sequence_id, one.column) for one in source.check("rows")]


def change(path: Path) -> h5py.File:
    return h5py.File(path, "r+")


def test_a_healthy_dataset_has_no_findings(tmp_path: Path) -> None:
    assert findings(by_hand.aloha(tmp_path / "aloha"), without=["sim"]) == [("hdf5-left-out", "", "")]
    assert findings(by_hand.aloha(tmp_path / "other")) == []


def test_links_that_leave_the_file_are_not_followed(tmp_path: Path) -> None:
    folder = by_hand.aloha(tmp_path / "aloha")
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["x"] = np.full((5, 14), 42.0, "f4")
    with change(folder / "episode_1.hdf5") as file:
        del file["observations/qpos"]
        file["observations/qpos"] = h5py.ExternalLink("../secret.h5", "/x")
    assert ("hdf5-leaves-file", "episode_1", "qpos") in findings(folder)
    ds = sl.open(folder)
    with pytest.raises(SeqlakeError, match="leaves the file"):
        _ = ds["episode_1"]["qpos"]
    assert ds["episode_0"]["qpos"].shape == (7, 14)
    with change(folder / "episode_1.hdf5") as file:  # by way of a soft link to a group that is elsewhere
        del file["observations/qpos"]
        file["outside"] = h5py.ExternalLink("../secret.h5", "/")
        file["observations/qpos"] = h5py.SoftLink("/outside/x")
    assert ("hdf5-leaves-file", "episode_1", "qpos") in findings(folder)


def test_soft_links_within_the_file_are_followed_and_circles_end(tmp_path: Path) -> None:
    folder = by_hand.aloha(tmp_path / "aloha")
    with change(folder / "episode_0.hdf5") as file:
        file.move("observations/qpos", "kept")
        file["observations/qpos"] = h5py.SoftLink("/kept")
        file["observations/again"] = h5py.SoftLink("/observations/again")
        file["observations/itself"] = file["observations"]
        expected = file["kept"][()]
    source = hdf5.scan(str(folder))
    left_out = {one.source: one.how for one in source.mapping() if one.column is None}
    assert not left_out or "to itself" in left_out["/observations/again"]
    np.testing.assert_array_equal(sl.scan(source)["episode_0"]["qpos"], expected)


def test_values_in_files_of_their_own_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "raw.bin").write_bytes(np.arange(70, dtype="<f8").tobytes())
    folder = by_hand.aloha(tmp_path / "aloha")
    with change(folder / "episode_0.hdf5") as file:
        file.create_dataset("stolen", (7, 10), "<f8", external=[(str(tmp_path / "raw.bin"), 0, h5py.h5f.UNLIMITED)])
        layout = h5py.VirtualLayout((7, 14), "f4")
        layout[:] = h5py.VirtualSource(str(folder / "episode_2.hdf5"), "action", (9, 14))[:7]
        file.create_virtual_dataset("seen", layout)
        inner = h5py.VirtualLayout((7, 14), "f4")
        inner[:] = h5py.VirtualSource(".", "action", (7, 14))[:]
        file.create_virtual_dataset("inner", inner)
    source = hdf5.scan(str(folder))
    left_out = {one.source: one.how for one in source.mapping() if one.column is None}
    assert "lie elsewhere" in left_out["/stolen"]
    assert "lie elsewhere" in left_out["/seen"]
    episode = sl.scan(source)["episode_0"]
    np.testing.assert_array_equal(episode["inner"], episode["action"])
    with pytest.raises(InvalidMetadataError, match="lie elsewhere"):
        hdf5.scan(str(folder), map={"x": "/stolen"})


@pytest.mark.parametrize("name", ["huge", "chunk", "filled"])
def test_declared_sizes_are_compared_with_what_is_stored(tmp_path: Path, name: str) -> None:
    folder = by_hand.aloha(tmp_path / "aloha")
    with change(folder / "episode_1.hdf5") as file:
        del file["action"]
        if name == "huge":
            file.create_dataset("action", (1 << 40, 14), "f4", chunks=(1024, 14), compression="gzip")
        elif name == "chunk":
            file.create_dataset("action", (5, 14), "f4", chunks=(1 << 22, 14), maxshape=(None, 14), compression="gzip")
        else:
            file.create_dataset("action", (1 << 36, 14), "f4", fillvalue=1)  # contiguous, and never written
    codes = findings(folder)
    assert ("hdf5-cell", "episode_1", "action") in codes
    with pytest.raises(CorruptFileError, match="cannot hold them"):
        _ = sl.open(folder)["episode_1"]["action"]


def test_a_small_data_set_that_was_never_written_has_its_fill_values(tmp_path: Path) -> None:
    folder = by_hand.aloha(tmp_path / "aloha", lengths=(7,))
    with change(folder / "episode_0.hdf5") as file:
        file.create_dataset("reward", (7,), "f4", fillvalue=2.5)
    ds = sl.open(folder)
    assert ds["episode_0"]["reward"].tolist() == [2.5] * 7
    batch = next(iter(sl.Loader(ds, window={"reward": range(2)}, batch_size=2)))
    assert batch["reward"].tolist() == [[2.5, 2.5]] * 2


def test_values_of_any_length_that_stand_for_more_than_the_file_are_refused(tmp_path: Path) -> None:
    folder = by_hand.aloha(tmp_path / "aloha", lengths=(5, 4000))
    with change(folder / "episode_1.hdf5") as file:
        note = file.create_dataset("note", (4000,), dtype=h5py.string_dtype())
        note[0] = "x" * 1_000_000
    with change(folder / "episode_0.hdf5") as file:
        file.create_dataset("note", data=["a"] * 5, dtype=h5py.string_dtype())
    path = folder / "episode_1.hdf5"
    with h5py.File(path) as file:
        start = file["note"].id.get_offset()
    data = bytearray(path.read_bytes())
    for step in range(4000):  # each names the same value
        data[start + 16 * step : start + 16 * step + 16] = data[start : start + 16]
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptFileError, match="more than the"):
        _ = sl.open(folder)["episode_1"]["note"]


def test_lengths_and_types_that_differ_are_said_of_their_episode(tmp_path: Path) -> None:
    folder = by_hand.aloha(tmp_path / "aloha")
    with change(folder / "episode_1.hdf5") as file:
        del file["observations/qpos"], file["observations/qvel"], file["observations/images/cam_low"]
        file["observations/qpos"] = np.zeros((4, 14), "f4")
        file["observations/qvel"] = np.zeros((5, 13), "f4")
    with change(folder / "episode_2.hdf5") as file:
        del file["action"]
        file["action"] = np.zeros((9, 14), "f8")
        file["extra"] = np.zeros((9, 2))
    codes = findings(folder)
    assert set(codes) == {
        ("hdf5-length", "episode_1", "qpos"),
        ("hdf5-cell", "episode_1", "qvel"),
        ("hdf5-missing", "episode_1", "cam_low"),
        ("hdf5-cell", "episode_2", "action"),
        ("hdf5-more", "episode_2", ""),
    }
    ds = sl.open(folder)
    assert ds["episode_1"]["cam_low"] is None
    for episode, column in (("episode_1", "qvel"), ("episode_2", "action")):
        with pytest.raises(CorruptFileError, match=episode):
            _ = ds[episode][column]
    report = ds.validate(depth="rows")
    assert {"hdf5-length", "hdf5-cell"} <= {one.code for one in report.findings}


def test_the_first_episode_may_be_the_damaged_one(tmp_path: Path) -> None:
    folder = by_hand.aloha(tmp_path / "aloha")
    with change(folder / "episode_0.hdf5") as file:
        del file["action"]
        file["action"] = np.zeros((6, 14), "f4")
    assert findings(folder) == [("hdf5-length", "episode_0", "action")]


def test_kinds_that_are_not_read_are_left_out_and_said(tmp_path: Path) -> None:
    folder = by_hand.aloha(tmp_path / "aloha", lengths=(7,))
    with change(folder / "episode_0.hdf5") as file:
        file["pair"] = np.zeros(7, [("x", "f4"), ("y", "i4")])
        file.create_dataset("link", (7,), h5py.ref_dtype)
        file["complex"] = np.zeros(7, np.complex64)
        file.create_dataset("ragged", (7,), h5py.vlen_dtype(np.float32))
        file["nothing"] = h5py.Empty("f4")
        file["none"] = np.zeros((7, 0))
        file["matrix"] = np.eye(3)
    source = hdf5.scan(str(folder))
    left_out = {one.source: one.how for one in source.mapping() if one.column is None}
    assert left_out.keys() == {
        f"/{name}" for name in ("pair", "link", "complex", "ragged", "nothing", "none", "matrix")
    }
    assert "compound: x, y" in left_out["/pair"]
    assert [one.severity for one in source.check("metadata")] == ["warning"] * 7


def test_nan_and_texts_and_values_come_as_they_are(tmp_path: Path) -> None:
    folder = by_hand.aloha(tmp_path / "aloha", lengths=(7,))
    with change(folder / "episode_0.hdf5") as file:
        file["action"][3] = np.nan
        file.create_dataset("phase", data=[f"é{k}" for k in range(7)], dtype=h5py.string_dtype())
        file["fixed"] = np.array([b"ab", b"c"] * 3 + [b""])
        file["task"] = "open the door"
        file["success"] = True
        file["goal"] = np.arange(4, dtype=">i2")
        file["flags"] = np.arange(7) % 2 == 0
        file["big"] = np.arange(14, dtype=">f8").reshape(7, 2)
    episode = sl.open(folder)["episode_0"]
    assert np.isnan(episode["action"][3]).all()
    assert episode["phase"] == [f"é{k}" for k in range(7)]
    assert episode["fixed"] == ["ab", "c"] * 3 + [""]
    assert episode["task"] == "open the door"
    assert episode["success"] is True
    assert episode["goal"].tolist() == [0, 1, 2, 3]
    assert episode["flags"].tolist() == [True, False] * 3 + [True]
    assert episode["big"].tolist() == np.arange(14).reshape(7, 2).tolist()


def test_a_filter_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    folder = by_hand.aloha(tmp_path / "aloha")
    with change(folder / "episode_1.hdf5") as file:
        del file["action"]
        file.create_dataset("action", data=np.zeros((5, 14), "f4"), compression="lzf")
    available = h5py.h5z.filter_avail
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: code != h5py.h5z.FILTER_LZF and available(code))
    with pytest.raises(SeqlakeError, match=r"filter lzf \(number 32000\), which is not installed.*hdf5plugin"):
        _ = sl.open(folder)["episode_1"]["action"]
    assert ("hdf5-cell", "episode_1", "action") in findings(folder)


def test_a_file_that_was_cut_off_says_so(tmp_path: Path) -> None:
    folder = by_hand.aloha(tmp_path / "aloha")
    path = folder / "episode_1.hdf5"
    path.write_bytes(path.read_bytes()[:-2000])
    ds = sl.open(folder)  # the first one tells the columns
    assert ds["episode_0"]["action"].shape == (7, 14)
    with pytest.raises(CorruptFileError, match="episode_1"):
        _ = ds["episode_1"]["action"]
    assert ("hdf5-damaged", "episode_1", "") in findings(folder) or ("hdf5-cell", "episode_1", "action") in findings(
        folder
    )
    (tmp_path / "x.hdf5").write_bytes(b"no HDF5 at all")
    with pytest.raises(CorruptFileError, match="cannot be read"):
        sl.open(tmp_path / "x.hdf5")
    (tmp_path / "empty.h5").write_bytes(b"")
    with pytest.raises(CorruptFileError, match="cannot be read"):
        sl.scan(tmp_path / "empty.h5")


def test_names_with_odd_characters_are_names(tmp_path: Path) -> None:
    folder = by_hand.aloha(tmp_path / "aloha", lengths=(7, 5))
    (folder / "episode_0.hdf5").rename(folder / "a b#%{x}?é'\n.hdf5")
    with change(folder / "episode_1.hdf5") as file:
        file["observations/images/{odd} @#"] = file["observations/images/cam_low"][()]
        file["observations/images/../x"] = file["action"][()]
    names = [view.id for view in sl.open(folder)]
    assert names == ["a b#%{x}?é'\n", "episode_1"]
    assert len(sl.open(folder)["a b#%{x}?é'\n"]["action"]) == 7
    alone = sl.open(folder / "episode_1.hdf5")
    assert len(alone[0]["{odd} @#"]) == 5


def test_same_names_in_other_files_are_other_sequences(tmp_path: Path) -> None:
    for name in ("a.hdf5", "a.h5", "b/a.h5"):
        by_hand.robomimic(tmp_path / "demos" / name, lengths=(3,), images=False)
    ids = [view.id for view in sl.open(tmp_path / "demos")]
    assert ids == ["a.h5/demo_0", "a.hdf5/demo_0", "b/a.h5/demo_0"]


def test_a_layout_that_is_not_known_says_what_is_there(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["steps/pos"] = np.zeros((5, 3))
    with pytest.raises(InvalidMetadataError, match=r"steps/pos \[5, 3\].*map="):
        sl.open(tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_group("data")
    with pytest.raises(InvalidMetadataError, match="no data sets"):
        sl.open(tmp_path / "x.h5")
    with pytest.raises(DatasetNotFoundError, match="no episode that fits"):
        sl.scan(tmp_path / "x.h5", map={"a": "data/{episode}/a"})
    with pytest.raises(SchemaMismatchError, match="nothing is called 'velocity'"):
        sl.scan(by_hand.aloha(tmp_path / "aloha"), without=["velocity"])


def test_a_folder_with_tables_is_not_taken_for_hdf5(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    by_hand.aloha(tmp_path, lengths=(2,))
    pq.write_table(pa.table({"sequence_id": ["a"]}), tmp_path / "x.parquet")
    assert not hdf5.matches(str(tmp_path))
    assert len(sl.scan(tmp_path)) == 1


def test_without_h5py_the_error_names_the_extra(tmp_path: Path, monkeypatch: Any) -> None:
    import sys

    folder = by_hand.aloha(tmp_path / "aloha", lengths=(2,))
    monkeypatch.setitem(sys.modules, "h5py", None)
    for place in (folder, folder / "episode_0.hdf5"):
        with pytest.raises(sl.errors.MissingDependencyError, match=r"pip install 'seqlake\[hdf5\]'"):
            sl.open(place)


def test_a_file_without_episodes_is_said(tmp_path: Path) -> None:
    by_hand.robomimic(tmp_path / "demos" / "a.hdf5", images=False)
    by_hand.aloha(tmp_path / "demos" / "b", lengths=(3,))
    source = hdf5.scan(str(tmp_path / "demos"))
    assert len(sl.scan(source)) == 3
    assert [(one.code, one.location) for one in source.check("metadata")] == [("hdf5-no-episode", "b/episode_0.hdf5")]


def test_one_trajectory_of_droid_has_its_videos(tmp_path: Path) -> None:
    folder = by_hand.droid(tmp_path / "droid", lengths=(5,))
    (path,) = folder.rglob("trajectory.h5")
    (view,) = sl.open(path)
    assert len(view["wrist"]) == 5


def test_lists_of_texts_that_stand_for_more_than_they_store_are_not_read(tmp_path: Path) -> None:
    folder = by_hand.aloha(tmp_path / "aloha", lengths=(3,))
    with change(folder / "episode_0.hdf5") as file:
        file.attrs.create("names", ["a"] * 2000, dtype=h5py.string_dtype())
        file.attrs["few"] = ["a", "b"]
    source = hdf5.scan(str(folder))
    left_out = {one.source: one.how for one in source.mapping() if one.column is None}
    assert "2,000 values of any length" in left_out["/@names"]
    assert sl.scan(source)[0]["few"] == ["a", "b"]

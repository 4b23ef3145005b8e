"""`EgoDataset` and `AgentDataset` as users of l5kit write them; what they give is compared in `test_peer.py`."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from seqlake.compat import l5kit as l5

CFG = {
    "model_params": {"history_num_frames": 3, "future_num_frames": 5, "step_time": 0.2},
    "raster_params": {
        "raster_size": [40, 30], "pixel_size": [1, 1], "ego_center": [0.5, 0.5], "set_origin_to_bottom": False,
        "filter_agents_threshold": 0.5, "disable_traffic_light_faces": True,
    },
}  # fmt: skip
KEYWORDS = {**CFG["model_params"], "filter_agents_threshold": 0.5}


class Faces:
    """Draws how many faces and agents it is shown."""

    def rasterize(self, history_frames, history_agents, history_tl_faces, agent=None):
        counts = [len(history_frames), sum(map(len, history_agents)), sum(map(len, history_tl_faces)), agent is None]
        return np.array(counts, np.float32).reshape(1, 2, 2)


def test_a_configuration_says_what_keywords_say(drive):
    store = l5.open_store(str(drive))
    mask = l5.select_agents(store)
    for kind, more in ((l5.EgoDataset, {}), (l5.AgentDataset, {"agents_mask": mask})):
        one, two = kind(CFG, store, **more), kind(dataset=store, **KEYWORDS, **more)
        assert len(one) == len(two) > 20
        for number in (0, 7, -1):
            sample, other = one[number], two[number]
            assert sample.keys() - other.keys() == {"raster_from_agent", "raster_from_world", "world_to_image"}
            for name, value in other.items():
                np.testing.assert_array_equal(sample[name], value, err_msg=name)
        assert (kind(CFG, store, history_num_frames=2, **more)[5]["history_positions"].shape) == (3, 2)
        again = pickle.loads(pickle.dumps(one))
        np.testing.assert_array_equal(again[7]["raster_from_agent"], one[7]["raster_from_agent"])
        scene = one.get_scene_dataset(1)
        first = int(one.get_scene_indices(1)[0])
        np.testing.assert_array_equal(scene[0]["raster_from_world"], one[first]["raster_from_world"])


def test_the_agent_lies_where_the_configuration_puts_it(drive):
    sample = l5.EgoDataset(CFG, l5.open_store(str(drive)))[7]
    place = sample["raster_from_world"] @ [*sample["centroid"], 1]
    np.testing.assert_allclose(place, [20, 15, 1], atol=1e-9)
    np.testing.assert_allclose(sample["raster_from_agent"] @ [4, 3, 1], [24, 18, 1], atol=1e-6)
    flipped = copy.deepcopy(CFG)
    flipped["raster_params"]["set_origin_to_bottom"] = True
    sample = l5.EgoDataset(flipped, l5.open_store(str(drive)))[7]
    np.testing.assert_allclose(sample["raster_from_agent"] @ [4, 3, 1], [24, 12, 1], atol=1e-6)


def test_lights_are_shown_unless_the_configuration_switches_them_off(drive):
    store = l5.open_store(str(drive))
    lit = copy.deepcopy(CFG)
    lit["raster_params"]["disable_traffic_light_faces"] = False
    frames = store.frames[4:8]
    agents, faces = (np.diff(frames[name], axis=1).sum() for name in
                     ("agent_index_interval", "traffic_light_faces_index_interval"))  # fmt: skip
    assert faces > 0
    for cfg, shown in ((lit, faces), (CFG, 0)):
        image = l5.EgoDataset(cfg, store, Faces())[7]["image"]
        assert image.shape == (2, 1, 2)
        assert image.transpose(1, 2, 0).ravel().tolist() == [4, agents, shown, 1]


def test_agents_are_chosen_by_the_stores_mask_or_by_the_rules(zarr, tmp_path):
    drives = zarr.drives()
    bare = zarr.write(tmp_path / "bare.zarr", drives)
    store = l5.open_store(str(bare))
    before = zarr.read(bare)
    rules = l5.select_agents(store)
    expected = np.flatnonzero((rules[:, 0] >= 10) & (rules[:, 1] >= 1))
    np.testing.assert_array_equal(l5.AgentDataset(CFG, store).agents_indices, expected)
    zarr.same(zarr.read(bare), before)
    mask = np.zeros((len(drives["agents"]), 2), np.uint32)
    mask[5:9] = 20
    held = l5.open_store(str(zarr.write(tmp_path / "held.zarr", {**drives, "agents_mask/0.5": mask})))
    assert l5.AgentDataset(CFG, held).agents_indices.tolist() == [5, 6, 7, 8]
    other = copy.deepcopy(CFG)
    other["raster_params"]["filter_agents_threshold"] = 0.25
    np.testing.assert_array_equal(
        l5.AgentDataset(other, held).agents_mask, l5.select_agents(store, thresholds=l5.Thresholds(probability=0.25))
    )


def test_what_is_missing_is_named(drive):
    store = l5.open_store(str(drive))
    for group, name in (("model_params", "step_time"), ("raster_params", "ego_center")):
        cfg = copy.deepcopy(CFG)
        del cfg[group][name]
        with pytest.raises(ValueError, match=f"expected {group}.{name}"):
            l5.EgoDataset(cfg, store)
    with pytest.raises(ValueError, match="cfg: expected a configuration of l5kit"):
        l5.EgoDataset({"model_params": {}}, store)
    with pytest.raises(ValueError, match="rasterizer: expected an object with l5kit's method rasterize"):
        l5.EgoDataset(CFG, store, object())
    with pytest.raises(ValueError, match="zarr_dataset: expected a store"):
        l5.EgoDataset(CFG)
    with pytest.raises(ValueError, match="zarr_dataset: expected a store"):
        l5.EgoDataset(CFG, "sample.zarr")
    with pytest.raises(ValueError, match="agents_mask: scenes in memory"):
        l5.AgentDataset(CFG, store.get_scene_dataset(0))
    cfg = copy.deepcopy(CFG)
    cfg["raster_params"]["pixel_size"] = [0.5, 0.25]
    with pytest.raises(ValueError, match="two equal numbers"):
        l5.EgoDataset(cfg, store)

"""What people who work with l5kit's data call by name, in one place: no PyTorch, no zarr, no l5kit."""

from __future__ import annotations

from seqlake.compat.l5kit.editing import uncompressed, zarr_concat, zarr_scenes_chop, zarr_split
from seqlake.compat.l5kit.poses import relative_poses
from seqlake.compat.l5kit.rasters import BoxRasterizer, Rasterizer, RenderContext
from seqlake.compat.l5kit.results import (
    create_chopped_dataset,
    export_zarr_to_csv,
    read_gt_csv,
    read_pred_csv,
    write_gt_csv,
    write_pred_csv,
)
from seqlake.compat.l5kit.sampling import (
    AgentDataset,
    EgoDataset,
    generate_agent_sample,
    get_future_slice,
    get_history_slice,
)
from seqlake.formats.l5kit.converted import as_store
from seqlake.formats.l5kit.selecting import Thresholds, select_agents
from seqlake.formats.l5kit.store import (
    AGENT_DTYPE,
    FACE_DTYPE,
    FRAME_DTYPE,
    PERCEPTION_LABEL_TO_INDEX,
    PERCEPTION_LABELS,
    SCENE_DTYPE,
    TL_FACE_LABELS,
    SceneData,
    Store,
    filter_agents_by_distance,
    filter_agents_by_frames,
    filter_agents_by_labels,
    filter_agents_by_track_id,
    filter_tl_faces_by_frames,
    filter_tl_faces_by_status,
    get_agents_slice_from_frames,
    get_combined_scenes,
    get_frames_slice_from_scenes,
    get_tl_faces_slice_from_frames,
    open_store,
)
from seqlake.formats.l5kit.tracks import tracks_of
from seqlake.formats.l5kit.windows import windows
from seqlake.formats.l5kit.writing import StoreWriter, create_store, growing_store, sized, write_store

__all__ = [
    "AGENT_DTYPE",
    "FACE_DTYPE",
    "FRAME_DTYPE",
    "PERCEPTION_LABELS",
    "PERCEPTION_LABEL_TO_INDEX",
    "SCENE_DTYPE",
    "TL_FACE_LABELS",
    "AgentDataset",
    "BoxRasterizer",
    "EgoDataset",
    "Rasterizer",
    "RenderContext",
    "SceneData",
    "Store",
    "StoreWriter",
    "Thresholds",
    "as_store",
    "create_chopped_dataset",
    "create_store",
    "export_zarr_to_csv",
    "filter_agents_by_distance",
    "filter_agents_by_frames",
    "filter_agents_by_labels",
    "filter_agents_by_track_id",
    "filter_tl_faces_by_frames",
    "filter_tl_faces_by_status",
    "generate_agent_sample",
    "get_agents_slice_from_frames",
    "get_combined_scenes",
    "get_frames_slice_from_scenes",
    "get_future_slice",
    "get_history_slice",
    "get_tl_faces_slice_from_frames",
    "growing_store",
    "open_store",
    "read_gt_csv",
    "read_pred_csv",
    "relative_poses",
    "select_agents",
    "sized",
    "tracks_of",
    "uncompressed",
    "windows",
    "write_gt_csv",
    "write_pred_csv",
    "write_store",
    "zarr_concat",
    "zarr_scenes_chop",
    "zarr_split",
]

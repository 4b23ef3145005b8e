"""What people who train with lerobot call by name: its dataset class, over folders that are read in place."""

from __future__ import annotations

from seqlake.compat.lerobot.dataset import LeRobotDataset
from seqlake.compat.lerobot.metadata import EpisodeTable, LeRobotDatasetMetadata
from seqlake.compat.lerobot.sampling import VisitSampler

__all__ = ["EpisodeTable", "LeRobotDataset", "LeRobotDatasetMetadata", "VisitSampler"]

"""What the numbers of a dataset are like, per column and dimension, and which sequences are unlike the others."""

from __future__ import annotations

from seqlake.dataset.statistics.outliers import Outlier, outliers
from seqlake.dataset.statistics.scan import statistics
from seqlake.dataset.statistics.summary import ColumnStatistics, Statistics

__all__ = ["ColumnStatistics", "Outlier", "Statistics", "outliers", "statistics"]

# What editors and type checkers see of `sl`, whose names resolve on first use. `x as x` is what Jedi takes for public.

from seqlake import abilities as abilities
from seqlake import compat as compat
from seqlake import errors as errors
from seqlake import formats as formats
from seqlake import media as media
from seqlake import protocols as protocols
from seqlake import ray as ray
from seqlake import shares as shares
from seqlake import spark as spark
from seqlake import testing as testing
from seqlake.computing import compute as compute
from seqlake.conversion.convert import convert as convert
from seqlake.conversion.pushing import push as push
from seqlake.copies.preparing import drop_copies as drop_copies
from seqlake.copies.preparing import prepare as prepare
from seqlake.dataset.changing.indexing import index as index
from seqlake.dataset.changing.inlining import extract_files as extract_files
from seqlake.dataset.changing.inlining import inline_files as inline_files
from seqlake.dataset.changing.inlining import plan_inlining as plan_inlining
from seqlake.dataset.changing.relocating import plan_relocation as plan_relocation
from seqlake.dataset.changing.relocating import relocate as relocate
from seqlake.dataset.dataset import Dataset as Dataset
from seqlake.dataset.drawing import contact_sheet as contact_sheet
from seqlake.dataset.init import init as init
from seqlake.dataset.opening import create as create
from seqlake.dataset.opening import open as open  # noqa: A004 - its name in `sl`
from seqlake.dataset.opening import scan as scan
from seqlake.dataset.reading.difference import diff as diff
from seqlake.dataset.reading.sequence import SequenceView as SequenceView
from seqlake.dataset.reshaping import assign_splits as assign_splits
from seqlake.dataset.reshaping import compact as compact
from seqlake.dataset.reshaping import merge as merge
from seqlake.dataset.reshaping import plan_splits as plan_splits
from seqlake.dataset.reshaping import repack as repack
from seqlake.dataset.reshaping import resample as resample
from seqlake.dataset.reshaping import segment as segment
from seqlake.dataset.reshaping import split as split
from seqlake.dataset.reshaping import subset as subset
from seqlake.dataset.reshaping import trim as trim
from seqlake.dataset.selection import Selection as Selection
from seqlake.dataset.similarity import VectorIndex as VectorIndex
from seqlake.dataset.similarity import duplicates as duplicates
from seqlake.dataset.similarity import nearest as nearest
from seqlake.dataset.similarity import vector_index as vector_index
from seqlake.dataset.statistics import Statistics as Statistics
from seqlake.dataset.statistics import outliers as outliers
from seqlake.dataset.statistics import statistics as statistics
from seqlake.dataset.validation import validate as validate
from seqlake.dataset.writing.ingest import File as File
from seqlake.dataset.writing.writer import Writer as Writer
from seqlake.media import Encoding as Encoding
from seqlake.protocols import Version as Version
from seqlake.spec.alignment import clock_of as clock_of
from seqlake.spec.alignment import sample_at as sample_at
from seqlake.spec.column_types import Audio as Audio
from seqlake.spec.column_types import ColumnType as ColumnType
from seqlake.spec.column_types import Depth as Depth
from seqlake.spec.column_types import Embedding as Embedding
from seqlake.spec.column_types import Image as Image
from seqlake.spec.column_types import Spatial3D as Spatial3D
from seqlake.spec.column_types import Spatial4D as Spatial4D
from seqlake.spec.column_types import Trajectory as Trajectory
from seqlake.spec.column_types import Video as Video
from seqlake.spec.findings import Finding as Finding
from seqlake.spec.findings import Report as Report
from seqlake.spec.metadata import Metadata as Metadata
from seqlake.spec.schema import Column as Column
from seqlake.spec.schema import Schema as Schema
from seqlake.training.cache import Cache as Cache
from seqlake.training.distributed import ranks as ranks
from seqlake.training.loader import Loader as Loader
from seqlake.training.mixtures.schedule import Mix as Mix
from seqlake.training.order import Shuffle as Shuffle
from seqlake.viewer.serving import view as view
from seqlake.windows.spec import Whole as Whole
from seqlake.windows.spec import Window as Window
from seqlake.windows.spec import seconds as seconds

__version__: str

__all__ = [
    "Audio",
    "Cache",
    "Column",
    "ColumnType",
    "Dataset",
    "Depth",
    "Embedding",
    "Encoding",
    "File",
    "Finding",
    "Image",
    "Loader",
    "Metadata",
    "Mix",
    "Report",
    "Schema",
    "Selection",
    "SequenceView",
    "Shuffle",
    "Spatial3D",
    "Spatial4D",
    "Statistics",
    "Trajectory",
    "VectorIndex",
    "Version",
    "Video",
    "Whole",
    "Window",
    "Writer",
    "abilities",
    "assign_splits",
    "clock_of",
    "compact",
    "compat",
    "compute",
    "contact_sheet",
    "convert",
    "create",
    "diff",
    "drop_copies",
    "duplicates",
    "errors",
    "extract_files",
    "formats",
    "index",
    "init",
    "inline_files",
    "media",
    "merge",
    "nearest",
    "open",
    "outliers",
    "plan_inlining",
    "plan_relocation",
    "plan_splits",
    "prepare",
    "protocols",
    "push",
    "ranks",
    "ray",
    "relocate",
    "repack",
    "resample",
    "sample_at",
    "scan",
    "seconds",
    "segment",
    "shares",
    "spark",
    "split",
    "statistics",
    "subset",
    "testing",
    "trim",
    "validate",
    "vector_index",
    "view",
]

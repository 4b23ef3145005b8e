"""What files are that are carried as they are, and how each is read: logs, arrays, tables, archives, scenes.

A file is known by how it begins, then by how its name ends; a container (ZIP, HDF5, SQLite) is what its name says. What
we decode where the column says so is named with the type that says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from seqlake.media._bytes import BlobBytes
from seqlake.media._containers import BEGIN, kind_of

if TYPE_CHECKING:
    from seqlake.protocols import Blob
    from seqlake.spec.column_types import ColumnType

_HEAD = 64  # bytes of a file's beginning, which are enough


class Carried(NamedTuple):
    """A kind of file.

    Attributes:
        what: Its name, as in `an MCAP log`.
        call: The call that reads it, of `file`, which is the `FileView` that the row gives.
        endings: How names of such files end.
        magic: How such files begin; empty for text.
        note: What else to know.
    """

    what: str
    call: str
    endings: tuple[str, ...]
    magic: tuple[bytes, ...] = ()
    note: str = ""

    def __str__(self) -> str:
        here = " of a copy on this disk" if "file.location" in self.call and not self.call.startswith("sl.") else ""
        return f"{self.what}, read by `{self.call}`{here}{self.note}"


_ZIP, _HDF5, _SQLITE, _GZIP = b"PK\x03\x04", b"\x89HDF\r\n\x1a\n", b"SQLite format 3\0", b"\x1f\x8b"
_PICKLE = tuple(bytes([0x80, version]) for version in range(2, 6))
_TRUST = "; a pickle runs whatever its writer put in: only from people you trust"
_H5PY = "h5py.File(file.open())"
_EPISODES = "; h5py comes with pip install 'seqlake[hdf5]', and a file of robot episodes opens by sl.open"
_BAG = "sl.open(file.location)"
# Of what begins alike the container comes first: it is what is said where the name says nothing more.
KINDS = (
    Carried("an MCAP log", "sl.open(file.location)", (".mcap",), (b"\x89MCAP0\r\n",)),
    Carried("a ROS 1 bag", _BAG, (".bag",), (b"#ROSBAG V",)),
    Carried("an SQLite database", "sqlite3.connect(file.location)", (".sqlite", ".sqlite3", ".db"), (_SQLITE,)),
    Carried("a ROS 2 bag", _BAG, (".db3",), (_SQLITE,)),
    Carried("an HDF5 file", _H5PY, (".h5", ".hdf5", ".hdf", ".nc"), (_HDF5,), _EPISODES),
    Carried("a MATLAB file", "scipy.io.loadmat(file.open())", (".mat",), (b"MATLAB 5.0",)),
    Carried("a MATLAB 7.3 file (HDF5)", _H5PY, (".mat",), (b"MATLAB 7.3", _HDF5)),
    Carried("a numpy array", "numpy.load(file.open(), allow_pickle=False)", (".npy",), (b"\x93NUMPY",)),
    Carried("a ZIP archive", "zipfile.ZipFile(file.open())", (".zip",), (_ZIP,)),
    Carried("numpy arrays", "numpy.load(file.open(), allow_pickle=False)", (".npz",), (_ZIP,)),
    Carried("a PyTorch file", "torch.load(file.open(), weights_only=True)", (".pt", ".pth", ".ckpt"), (_ZIP, *_PICKLE)),
    Carried("a zarr store in a ZIP archive", "zarr.storage.ZipStore(file.location, mode='r')", (".zarr.zip",), (_ZIP,)),
    Carried("a zarr store", "zarr.open(file.location, mode='r')", (".zarr",)),
    Carried("tensors", "safetensors.numpy.load(file.read())", (".safetensors",)),
    Carried("a pickle", "pickle.load(file.open())", (".pkl", ".pickle", ".p"), _PICKLE, _TRUST),
    Carried("a Parquet file", "pyarrow.parquet.read_table(file.open())", (".parquet", ".pq"), (b"PAR1",)),
    Carried("an Arrow file", "pyarrow.ipc.open_file(file.open())", (".arrow", ".feather"), (b"ARROW1",)),
    Carried("a table as text", "pyarrow.csv.read_csv(file.open())", (".csv",)),
    Carried(
        "a table as text",
        "pyarrow.csv.read_csv(file.open(), parse_options=pyarrow.csv.ParseOptions(delimiter='\\t'))",
        (".tsv",),
    ),
    Carried("JSON", "json.load(file.open())", (".json",)),
    Carried("lines of JSON", "pyarrow.json.read_json(file.open())", (".jsonl", ".ndjson")),
    Carried("YAML", "yaml.safe_load(file.open())", (".yaml", ".yml")),
    Carried("text", "file.read().decode()", (".txt", ".md", ".xml", ".urdf", ".log", ".srt", ".vtt")),
    Carried("a Rerun recording", "rerun.chunk.RrdReader(file.location)", (".rrd",), (b"RRF",)),
    Carried("bytes packed by gzip", "gzip.open(file.open())", (".gz",), (_GZIP,)),
    Carried("a tar archive", "tarfile.open(fileobj=file.open())", (".tar", ".tar.bz2", ".tar.xz")),
    Carried("a tar archive", "tarfile.open(fileobj=file.open())", (".tar.gz", ".tgz"), (_GZIP,)),
    Carried("a NIfTI volume", "nibabel.load(file.location)", (".nii.gz",), (_GZIP,)),
    Carried("a NIfTI volume", "nibabel.load(file.location)", (".nii",)),
    Carried("a scene in USD", "pxr.Usd.Stage.Open(file.location)", (".usdc", ".usd"), (b"PXR-USDC",)),
    Carried("a scene in USD", "pxr.Usd.Stage.Open(file.location)", (".usda", ".usd"), (b"#usda ",)),
    Carried("a scene in USD", "pxr.Usd.Stage.Open(file.location)", (".usdz",), (_ZIP,)),
    Carried("a survey in E57", "pye57.E57(file.location)", (".e57",), (b"ASTM-E57",)),
)
_DECODED = {"image": "sl.Image()", "video": "sl.Video()", "audio": "sl.Audio()", "3d": "sl.Spatial3D()"}


def carried(name: str, head: bytes = b"", /) -> Carried | None:
    """The kind of a file that nothing here decodes; None where it is none of those that are known.

    Args:
        name: What it is called, or where it is.
        head: How it begins; nothing where only its name is known, which then decides.

    Example:
        >>> carried("takes/a.zip", bytes([0x89]) + b"MCAP0" + bytes([13, 10])).what
        'an MCAP log'
    """
    plain = (name.partition("?")[0] if "://" in name else name).rstrip("/").lower()
    begun = [one for one in KINDS if head.startswith(one.magic)]
    able = begun or [one for one in KINDS if not (head and one.magic)]
    named = [(len(end), one) for one in able for end in one.endings if plain.endswith(end)]
    if named:
        return max(named, key=lambda pair: pair[0])[1]
    return begun[0] if begun else None


def hint(name: str, blob: Blob | None = None, column: ColumnType | None = None, /) -> str:
    """What a file is and how it is read, in one sentence; empty where nothing is known of its kind.

    Args:
        name: What it is called, or where it is.
        blob: Its bytes, of which the first few are read; None where only the name shall count.
        column: The type of its column: of a file that this type decodes there is nothing to say.

    Example:
        >>> hint("a.npy")
        'It is a numpy array, read by `numpy.load(file.open(), allow_pickle=False)`.'
    """
    head = b"" if blob is None else BlobBytes(blob).between(0, _HEAD)
    kind = carried(name, head)
    if kind is not None:
        return f"It is {kind}."
    medium = kind_of(head) or ("3d" if head.startswith(tuple(magic for magic, _ in BEGIN)) else None)
    if medium is None or (column is not None and column.type == medium):
        return ""
    return f"It is decoded where the type of its column is `{_DECODED[medium]}`."

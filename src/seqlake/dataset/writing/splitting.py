"""Videos that rows share on their way into a dataset: every row gets a file of its own, by copied packets."""

from __future__ import annotations

import logging
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.dataset.writing.ingest import Encoded
from seqlake.errors import DecodeError, ValidationError
from seqlake.files.references import open_reference
from seqlake.media.video.cutting import VideoCutter
from seqlake.protocols import Source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seqlake.abilities import OpensFiles
    from seqlake.dataset.writing.staging import Staging
    from seqlake.spec.schema import Column, Schema

_log = logging.getLogger(__name__)
_THREADS = 4  # that cut files
_KEPT = 16  # files that several rows share, with their packet indexes


def shares(column: Column, /) -> bool:
    """Whether cells of a column may name a part of a video: `{url, first_frame, num_frames}`."""
    kind = column.arrow
    return column.medium == "video" and pa.types.is_struct(kind) and kind.get_field_index("first_frame") >= 0


def declared(schema: Schema, columns: Sequence[str], /) -> Schema:
    """The columns as they will be: a reference to a whole file where there was one to a part."""
    return schema.with_columns({name: replace(schema[name], arrow=pa.string()) for name in columns})


class Splitter:
    """Cuts the parts that rows name out of videos.

    Args:
        schema: Of the rows as they will be.
        columns: Those whose cells name parts of files.
        root: What their references resolve against.
        staging: Where the files go.
        storage: Options of the store that the root lies in.
        inside: Opens those that lie in other files.
    """

    def __init__(
        self,
        schema: Schema,
        columns: Sequence[str],
        /,
        *,
        root: str,
        staging: Staging,
        storage: Mapping[str, str] | None = None,
        inside: OpensFiles | None = None,
    ) -> None:
        self._schema = schema
        self._inside = inside
        self._columns = columns
        self._root = root
        self._staging = staging
        self._storage = storage
        self._files: OrderedDict[str, VideoCutter] = OrderedDict()
        self._lock = Lock()

    def turned(self, batch: pa.RecordBatch, /) -> pa.RecordBatch:
        """The rows with references to files of their own, which lie in the dataset already.

        Raises:
            ValidationError: A video is not there, or has not the frames that a row names.
        """
        ids = [""] * batch.num_rows if self._schema.id is None else batch.column(self._schema.id).to_pylist()
        for name in self._columns:
            cells = batch.column(name).to_pylist()
            with ThreadPoolExecutor(_THREADS) as pool:
                references = list(pool.map(partial(self._reference, name), cells, ids))
            field = pa.field(name, pa.string(), self._schema[name].nullable)
            batch = batch.set_column(batch.schema.get_field_index(name), field, pa.array(references, pa.string()))
        return batch

    def _reference(self, name: str, cell: Mapping[str, Any] | None, sequence_id: str) -> str | None:
        """The file of one row; null where it names none, or no frame."""
        url = None if cell is None else cell.get("url")
        if cell is None or url is None or cell.get("num_frames") == 0:
            return None
        where = f"Sequence {sequence_id!r}, column {name!r}"
        try:
            cutter = self._opened(name, url)
            first = cell.get("first_frame") or 0
            count = cell.get("num_frames")
            stop = first + count if count is not None else len(cutter)
            path = self._staging.scratch()
            try:
                clip = cutter.cut(path, start=first, stop=stop)
                if clip.encoded:
                    _log.warning(
                        "%s: %d of %d frames were encoded again: %s", where, clip.encoded, clip.frames, clip.note
                    )
                return self._staging.take_in(name, sequence_id, Encoded(path, suffix=clip.suffix, packets=clip.index))
            finally:
                path.unlink(missing_ok=True)
        except FileNotFoundError as error:
            raise ValidationError(
                f"{where}: the file {url!r} is not there.",
                hint="Run validate(depth='files') to list all that are missing; leave the rows or the column out.",
            ) from error
        except IndexError as error:
            raise ValidationError(f"{where}: {error}", hint="Mend first_frame and num_frames of the row.") from error
        except DecodeError as error:
            raise ValidationError(f"{where}: {error}") from error

    def _opened(self, name: str, url: str) -> VideoCutter:
        """What cuts a file that rows share, which is indexed once."""
        with self._lock:
            if url not in self._files:
                within = None if self._inside is None else self._inside.file_within(url)
                blob = open_reference(self._root, url, storage=self._storage) if within is None else within
                column = self._schema[name].type
                assert column is not None  # a medium has one
                self._files[url] = VideoCutter(Source(blob=blob, column=column))
                while len(self._files) > _KEPT:
                    self._files.popitem(last=False)
            self._files.move_to_end(url)
            return self._files[url]

"""All columns of frames and of sound that a loader delivers, as one process sees them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from seqlake.spec.column_types import as_codes
from seqlake.training.fetching.transfers import Transfers
from seqlake.training.frames.clips import (
    CloudColumn,
    EncodedCells,
    ImageColumn,
    InlineColumn,
    MeteredFiles,
    VideoColumn,
)
from seqlake.training.frames.copied import CopiedColumn, copy_set
from seqlake.training.frames.decoding import DecoderPool, cores
from seqlake.training.frames.sounds import SoundColumn
from seqlake.windows.frames import is_clouds
from seqlake.windows.sources import MediaFiles
from seqlake.windows.spec import Window

if TYPE_CHECKING:
    from seqlake.protocols import Readable
    from seqlake.spec.schema import Column
    from seqlake.training.frames.clips import FrameColumn
    from seqlake.training.opened import Opened
    from seqlake.training.settings import FrameOptions, LoaderSettings
    from seqlake.training.survey import WindowSurvey

_DECODERS = 64  # at hand for each thread; one that has decoded 640 x 480 holds about 1.3 MB
_INLINE_DECODERS = 4  # likewise, where each holds the bytes of its video
_SOUND_DECODERS = 2  # likewise, where each may hold samples of its file


class FrameColumns:
    """The columns of frames and of sound of one loader in one process; passes share what is known and open.

    Args:
        source: The dataset.
        settings: How frames are delivered, and what becomes of those that cannot be.
        survey: The dataset through the window.
        opened: Its shards in use.

    Attributes:
        transfers: What reads videos, images and sounds that lie in stores.
    """

    def __init__(self, source: Readable, settings: LoaderSettings, survey: WindowSurvey, opened: Opened) -> None:
        self.survey = survey
        self.opened = opened
        self.options: FrameOptions = settings.frames
        self.tolerant: bool = settings.on_error.tolerant
        self.transfers: Transfers = Transfers()
        self._id = source.schema.id
        schema, files = source.schema, MeteredFiles(MediaFiles.of(source), self.transfers)
        pool = DecoderPool(most=_DECODERS * (self.options.threads or cores()))
        self.columns: list[FrameColumn | SoundColumn] = []
        for track in self.survey.framed:
            column, size = self._shown(schema[track.column]), self.options.size
            if column.category == "frames":
                cells = EncodedCells(column.name, self.survey, self.opened)
                if is_clouds(column):
                    clouds = CloudColumn(track, column, self.opened, cells=cells, files=files, size=None)
                    clouds.options = self.options.points
                    self.columns.append(clouds)
                    continue
                self.columns.append(ImageColumn(track, column, self.opened, cells=cells, files=files, size=size))
                continue
            device = self.options.device
            if column.inline:
                cells = EncodedCells(column.name, self.survey, self.opened)
                few = DecoderPool(most=_INLINE_DECODERS * (self.options.threads or cores()))
                self.columns.append(
                    InlineColumn(
                        track, column, self.opened, cells=cells, files=files, pool=few, size=size, device=device
                    )
                )
                continue
            kind = CopiedColumn if self.options.copies else VideoColumn
            video = kind(track, column, self.opened, files=files, pool=pool, size=size, device=device)
            if isinstance(video, CopiedColumn):
                video.copies = copy_set(source, column.name, self.options)
            self.columns.append(video)

        for span in self.survey.sounds:
            column = schema[span.column]
            self.columns.append(
                SoundColumn(
                    span,
                    column,
                    self.opened,
                    files=files,
                    pool=DecoderPool(most=_SOUND_DECODERS * (self.options.threads or cores())),
                    options=settings.audio,
                    cells=EncodedCells(column.name, self.survey, self.opened) if column.inline else None,
                )
            )

    def _shown(self, column: Column) -> Column:
        """A column of depth maps as that of what is delivered of them."""
        if self.options.depth == "metres" or column.type is None or not column.type.is_depth:
            return column
        return replace(column, type=as_codes(column.type))

    @property
    def clamp(self) -> bool:
        """Whether missing frames are the nearest that exist."""
        return isinstance(self.survey.window, Window) and self.survey.window.edges == "clamp"

    def name(self, row: int) -> str:
        """What messages call a row."""
        values = None if self._id is None else self.opened.values[self._id].values
        return f"Row {row}" if values is None else f"Sequence {values[row]!r}"

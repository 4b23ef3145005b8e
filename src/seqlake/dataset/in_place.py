"""A folder of another format, opened as it is: a table of one version, whose rows are only read."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from seqlake import plugins
from seqlake.abilities import OpensInPlace, TakesObjects, ability
from seqlake.errors import ReadOnlyError, VersionNotFoundError
from seqlake.files.stores import open_store
from seqlake.protocols import Version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from seqlake.abilities import Kind
    from seqlake.protocols import Ints, Readable, Shard, Store
    from seqlake.spec.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlace:
    """What `Dataset` asks of a table, answered for a folder that others write; picklable.

    Attributes:
        root: The folder.
        kind: The format's name.
        storage: Options of its store; never printed.
    """

    root: str
    kind: str
    storage: Mapping[str, str] | None = field(default=None, repr=False)

    @property
    def store(self) -> Store:
        """The store of its root."""
        return open_store(self.root, storage=self.storage)

    def versions(self) -> Sequence[Version]:
        """The one that is there."""
        return [self.snapshot().version]

    def snapshot(self, version: Version | int | str | datetime | None = None, /) -> RowsInPlace:
        """The rows as they are now.

        Raises:
            VersionNotFoundError: Any version but that of these rows is wanted.
        """
        plug = ability(plugins.load("formats", self.kind), OpensInPlace)
        assert plug is not None  # `matching` chose it
        rows = RowsInPlace(plug.open(self.root, storage=self.storage))
        wanted = version.id if isinstance(version, Version) else version
        if wanted not in {None, rows.version.id}:
            raise VersionNotFoundError(
                f"{self.root} is a folder of the format {self.kind!r}, which keeps no versions; found {wanted!r}.",
                path=self.root,
                hint="Open it without a version, or convert it into a dataset, which keeps them.",
            )
        return rows

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse what writes.

        Raises:
            ReadOnlyError: Always; says what to do instead.
        """
        raise ReadOnlyError(
            f"{self.root} is a folder of the format {self.kind!r}, which is read in place and never written.",
            path=self.root,
            hint=f"Convert it first: sl.convert({self.root!r}, OUT).",
        )

    begin: ClassVar[Callable[..., NoReturn]] = _refuse
    place: ClassVar[Callable[..., NoReturn]] = _refuse
    stage: ClassVar[Callable[..., NoReturn]] = _refuse
    files: ClassVar[Callable[..., NoReturn]] = _refuse
    temporary: ClassVar[Callable[..., NoReturn]] = _refuse
    renew: ClassVar[Callable[..., NoReturn]] = _refuse
    commit: ClassVar[Callable[..., NoReturn]] = _refuse
    discard: ClassVar[Callable[..., NoReturn]] = _refuse
    rollback: ClassVar[Callable[..., NoReturn]] = _refuse
    adopt: ClassVar[Callable[..., NoReturn]] = _refuse
    vacuum: ClassVar[Callable[..., NoReturn]] = _refuse

    def read_derived(self, _: str, /) -> bytes | None:
        """None: nothing is kept beside the files of others."""
        return None

    def write_derived(self, name: str, data: bytes, /) -> None:
        """Nothing is kept beside the files of others."""


class RowsInPlace:
    """Rows of another format as a snapshot, with every ability that they have.

    Args:
        rows: What the format's plug shows.
    """

    def __init__(self, rows: Readable, /) -> None:
        self._rows = rows
        self._version = Version(
            id=rows.fingerprint,
            time=datetime.now(UTC),
            operation="read",
            rows=sum(shard.rows for shard in rows.shards()),
        )

    @property
    def version(self) -> Version:
        """Its id follows from the bytes that were looked at; its time is that of the look."""
        return self._version

    @property
    def schema(self) -> Schema:
        """As the plug shows it."""
        return self._rows.schema

    @property
    def root(self) -> str:
        """What references resolve against."""
        return self._rows.root

    @property
    def fingerprint(self) -> str:
        """Changes with the bytes."""
        return self._rows.fingerprint

    def shards(self) -> Sequence[Shard]:
        """Those of the plug."""
        return self._rows.shards()

    def lengths(self, column: str, /) -> Ints:
        """As the plug knows them."""
        return self._rows.lengths(column)

    def ability(self, kind: type[Kind], /) -> Kind | None:
        """That it has a version, and whatever the plug's rows can."""
        return self if isinstance(self, kind) else ability(self._rows, kind)


def matching(place: str, storage: Mapping[str, str] | None, /) -> InPlace | None:
    """A folder of a format that is opened in place; None where it is none."""
    for name in plugins.names("formats"):
        plug = plugins.load("formats", name)
        if ability(plug, OpensInPlace) is not None and plug.matches(place, storage=storage):
            return InPlace(root=place, kind=name, storage=storage)
    return None


def taking(source: object, /) -> str | None:
    """The format that scans an object of another package; None where none does."""
    for name in plugins.names("formats"):
        plug = ability(plugins.load("formats", name), TakesObjects)
        if plug is not None and plug.takes(source):
            return name
    return None

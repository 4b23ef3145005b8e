"""Statistics as a value: a mapping of columns that prints, is kept as JSON, merges and normalises batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.dataset.statistics.moments import Moments, merged, none_yet
from seqlake.errors import SchemaMismatchError

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = 1
_NUMBERS = ("count", "min", "max", "mean", "std", "nan", "inf")
_KEYS = ("category", *_NUMBERS, "quantiles")
_SHOWN = 16  # dimensions of a column that are printed


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnStatistics(Mapping[str, Any]):
    """What the numbers of one column are like; also a mapping of these names to their values.

    Every array has the shape of one step: `(D,)`, `()` for a column of single numbers. Numbers that are not finite are
    counted apart and enter nothing else. Where a dimension has no finite number, the others are NaN; so are mean and
    std where float64 cannot hold the sums.

    Attributes:
        category: `temporal`, `vector` or `scalar`; of pictures `file` or `frames`.
        dtype: Type of the column's numbers; booleans count as 0 and 1 of uint8.
        nulls: Cells without a value.
        count: Finite numbers.
        min: The smallest, in the column's own type.
        max: The largest.
        mean: float64.
        std: Standard deviation of the population (`ddof=0`), float64; exactly 0 for a constant dimension.
        nan: Numbers that are NaN.
        inf: Numbers that are infinite.
        quantiles: For each quantile asked for, the smallest number that so large a part is not larger than, as
            `numpy.quantile(..., method="inverted_cdf")`: one that occurs, in the column's own type.
        frames: Of images and videos, whose values are scaled to [0, 1] and counted by channel: how many frames were
            looked at. None for all other columns.
    """

    category: str
    dtype: np.dtype[Any]
    nulls: int
    count: NDArray[np.int64]
    min: NDArray[Any]
    max: NDArray[Any]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    nan: NDArray[np.int64]
    inf: NDArray[np.int64]
    quantiles: Mapping[float, NDArray[Any]] = field(default_factory=dict)
    frames: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one step."""
        return self.count.shape

    @property
    def constant(self) -> NDArray[np.bool_]:
        """Which dimensions have only one number, however often."""
        return np.asarray((self.count > 0) & (self.min == self.max))

    def __getitem__(self, key: str, /) -> Any:
        if key not in _KEYS:
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(_KEYS)

    def __len__(self) -> int:
        return len(_KEYS)

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values; NaN becomes null."""
        return {
            "category": self.category,
            "dtype": self.dtype.name,
            "shape": list(self.shape),
            "nulls": self.nulls,
            **{name: _plain(getattr(self, name)) for name in _NUMBERS},
            "quantiles": [[quantile, _plain(values)] for quantile, values in self.quantiles.items()],
            **({} if self.frames is None else {"frames": self.frames}),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any], /) -> ColumnStatistics:
        """The statistics that `to_json` gave."""
        dtype, shape = np.dtype(value["dtype"]), tuple(value["shape"])
        count = np.array(value["count"], np.int64).reshape(shape)
        stored = dtype if count.all() or dtype.kind == "f" else np.dtype(np.float64)
        kinds = {"count": np.int64, "nan": np.int64, "inf": np.int64, "mean": np.float64, "std": np.float64}
        numbers = {name: np.array(value[name], kinds.get(name, stored)).reshape(shape) for name in _NUMBERS}
        quantiles = {float(q): np.array(values, stored).reshape(shape) for q, values in value["quantiles"]}
        return ColumnStatistics(
            category=value["category"],
            dtype=dtype,
            nulls=value["nulls"],
            quantiles=quantiles,
            frames=value.get("frames"),
            **numbers,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ColumnStatistics) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.category, self.dtype, self.nulls, self.count.tobytes(), self.mean.tobytes()))


class Statistics(Mapping[str, ColumnStatistics]):
    """Column -> what its numbers are like; made by `statistics`, taken by `Loader.normalize`.

    Args:
        columns: The columns, in order.
        rows: Sequences looked at.

    Example:
        ```python
        stats = statistics(ds)
        stats["action"].mean, stats["action"].quantiles[0.5]
        ```
    """

    def __init__(self, columns: Mapping[str, ColumnStatistics], /, *, rows: int) -> None:
        self._columns = dict(columns)
        self.rows = rows

    def __getitem__(self, name: str, /) -> ColumnStatistics:
        if name not in self._columns:
            raise KeyError(f"No statistics of {name!r}; there are those of {', '.join(self._columns) or 'no column'}.")
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def select(self, *columns: str) -> Statistics:
        """The statistics of some columns.

        Example:
            >>> import seqlake as sl
            >>> list(sl.statistics(dataset).select("reward"))
            ['reward']
        """
        return Statistics({name: self[name] for name in columns}, rows=self.rows)

    def merge(self, other: Statistics, /) -> Statistics:
        """The statistics of both sets of sequences together, without reading them again.

        Quantiles cannot be had from those of the parts: the result has none. `statistics` of both together finds them.

        Raises:
            SchemaMismatchError: Other columns, types or shapes.

        Example:
            >>> import seqlake as sl
            >>> sl.statistics(dataset[:32]).merge(sl.statistics(dataset[32:])).rows
            64
        """
        if set(self) != set(other):
            raise SchemaMismatchError(
                f"Statistics of the same columns can be merged, found {', '.join(sorted(set(self) ^ set(other)))} in "
                "one only; use select()."
            )
        columns = {name: _merged(name, column, other[name]) for name, column in self.items()}
        return Statistics(columns, rows=self.rows + other.rows)

    def records(self) -> Iterator[dict[str, Any]]:
        """One dict for each column and dimension, with plain numbers, the quantiles as `q0.5`, and a note.

        Example:
            >>> import seqlake as sl
            >>> [(one["column"], one["count"]) for one in sl.statistics(dataset).select("reward").records()]
            [('reward', 64)]
        """
        for name, column in self.items():
            flat = {key: np.ravel(column[key]).tolist() for key in _NUMBERS}
            quantiles = {f"q{q:g}": np.ravel(values).tolist() for q, values in column.quantiles.items()}
            constant = np.ravel(column.constant)
            for dim, place in enumerate(np.ndindex(column.shape)):
                record = {key: values[dim] for key, values in {**flat, **quantiles}.items()}
                notes = ["constant"] if constant[dim] else []
                notes += [f"{record[key]} {text}" for key, text in (("nan", "NaN"), ("inf", "infinite")) if record[key]]
                notes += [f"{column.nulls} null"] if column.nulls else []
                notes += [f"{column.frames} frames"] if column.frames is not None else []
                where = ",".join(map(str, place))
                yield {"column": name, "dim": where, **record, "note": ", ".join(notes)}

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values; `from_json` gives it back bit by bit.

        Example:
            >>> import seqlake as sl
            >>> list(sl.statistics(dataset).to_json())
            ['format', 'rows', 'columns']
        """
        columns = {name: column.to_json() for name, column in self.items()}
        return {"format": FORMAT, "rows": self.rows, "columns": columns}

    @staticmethod
    def from_json(value: Mapping[str, Any], /) -> Statistics:
        """What `to_json` gave.

        Raises:
            ValueError: Not that, or of a later format.

        Example:
            >>> import seqlake as sl
            >>> known = sl.statistics(dataset)
            >>> sl.Statistics.from_json(known.to_json()) == known
            True
        """
        if value.get("format") != FORMAT or not isinstance(value.get("columns"), Mapping):
            raise ValueError(f"Expected statistics of format {FORMAT}, found format {value.get('format')!r}.")
        columns = {name: ColumnStatistics.from_json(column) for name, column in value["columns"].items()}
        return Statistics(columns, rows=value["rows"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Statistics) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((tuple(self._columns.items()), self.rows))

    def __repr__(self) -> str:
        head = f"Statistics of {self.rows} sequences"
        lines: dict[str, list[dict[str, Any]]] = {}
        for record in self.records():
            lines.setdefault(record["column"], []).append(record)
        points = dict.fromkeys(f"q{q:g}" for one in self.values() for q in one.quantiles)
        names = ["column", "dim", "count", "min", "max", "mean", "std", *points, "note"]
        table = [names]
        for name, records in lines.items():
            table += [[_text(record.get(key, "")) for key in names] for record in records[:_SHOWN]]
            if len(records) > _SHOWN:
                table.append([name, "…", *[""] * (len(names) - 3), f"{len(records) - _SHOWN} more dimensions"])
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join([head, *("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)])


def finished(
    moments: Moments,
    /,
    *,
    category: str,
    shape: tuple[int, ...],
    nulls: int,
    quantiles: Mapping[float, NDArray[Any]],
) -> ColumnStatistics:
    """Moments as they are shown: NaN where there is no number, no deviation where there is but one."""
    some = moments.count > 0
    constant = some & (moments.min == moments.max)
    dtype = moments.min.dtype

    def numbers(values: NDArray[Any]) -> NDArray[Any]:
        # An integer has no NaN; without any number the type does not matter.
        wide = values if some.all() else np.where(some, values, dtype.type(np.nan) if dtype.kind == "f" else np.nan)
        return np.asarray(wide + 0).reshape(shape)  # minus zero is zero

    def known(values: NDArray[np.float64], exactly: NDArray[Any] | float) -> NDArray[np.float64]:
        exact = np.where(constant, exactly, values).astype(np.float64)
        return np.asarray(np.where(some & np.isfinite(exact), exact, np.nan)).reshape(shape)

    std = np.sqrt(moments.m2 / np.maximum(moments.count, 1))
    return ColumnStatistics(
        category=category,
        dtype=dtype,
        nulls=nulls,
        count=moments.count.reshape(shape),
        min=numbers(moments.min),
        max=numbers(moments.max),
        mean=known(moments.mean + moments.rest, moments.min),
        std=known(std, 0.0),
        nan=moments.nan.reshape(shape),
        inf=moments.inf.reshape(shape),
        quantiles={q: numbers(values) for q, values in quantiles.items()},
    )


def _moments(column: ColumnStatistics) -> Moments:
    """The moments that these statistics came from."""
    count, blank = column.count.ravel(), none_yet(column.count.size, column.dtype)
    known = {key: np.where(count > 0, column[key].ravel(), 0.0) for key in ("mean", "std")}
    some = replace(blank, count=count, nan=column.nan.ravel(), inf=column.inf.ravel())
    if not count.any():
        return some  # the type of numbers that are not there is not kept
    return replace(
        some,
        mean=known["mean"],
        m2=np.square(known["std"]) * count,
        min=np.where(count > 0, column.min.ravel(), blank.min),
        max=np.where(count > 0, column.max.ravel(), blank.max),
    )


def _merged(name: str, one: ColumnStatistics, two: ColumnStatistics) -> ColumnStatistics:
    if (one.category, one.dtype, one.shape) != (two.category, two.dtype, two.shape):
        raise SchemaMismatchError(
            f"Statistics of {name!r} cannot be merged: {one.category} {one.dtype} {list(one.shape)} and "
            f"{two.category} {two.dtype} {list(two.shape)}."
        )
    both = merged([_moments(one), _moments(two)])
    joined = finished(both, category=one.category, shape=one.shape, nulls=one.nulls + two.nulls, quantiles={})
    return joined if one.frames is None else replace(joined, frames=one.frames + (two.frames or 0))


def _plain(values: NDArray[Any]) -> Any:
    """Nested lists, None for NaN."""
    if values.dtype.kind == "f" and np.isnan(values).any():
        held = values.astype(object)
        held[np.isnan(values)] = None
        return held.tolist()
    return values.tolist()


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)

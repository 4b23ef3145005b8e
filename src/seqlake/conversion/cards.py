"""Dataset cards: README.md with the front matter by which the Hub's viewer and `datasets` find the Parquet files."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seqlake.errors import in_line

if TYPE_CHECKING:
    from collections.abc import Sequence

_SIZES = [
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
]
_SPLIT = re.compile(r"(data/)(\w+(?:\.\w+)*)-\d{5}-of-\d{5}(?:-[0-9a-f]+)?\.parquet")
_MEDIA = {"video", "image", "audio"}
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """What a card says.

    Attributes:
        kind: The format: `mixtrain`, `lerobot`, ...
        rows: Sequences or samples.
        unit: Which of the two.
        nbytes: Of the shards.
        columns: (name, what it is) of each.
        data: (split, pattern) of the Parquet files; empty where there are none.
        media: Kinds of media that columns hold or name.
        name: `owner/name` on the Hub.
        license: As the Hub calls it.
        tasks: The Hub's task categories.
    """

    kind: str
    rows: int
    unit: str
    nbytes: int
    columns: Sequence[tuple[str, str]]
    data: Sequence[tuple[str, str]]
    media: Sequence[str]
    name: str = ""
    license: str | None = None
    tasks: Sequence[str] = ()

    @classmethod
    def of(cls, source: Any, /, *, kind: str, paths: Sequence[str]) -> CardFacts:
        """The facts of a dataset, as `seqlake info` knows them.

        Args:
            source: The dataset.
            kind: Its format.
            paths: All of its files.
        """
        schema, shards = source.schema, source.shards()
        return cls(
            kind=kind,
            rows=len(source),
            unit="samples" if schema.id is None else "sequences",
            nbytes=sum(shard.nbytes for shard in shards),
            columns=[(name, _what(schema[name])) for name in schema.names],
            data=_data(paths),
            media=sorted({one.type.type for one in schema.values() if one.type is not None} & _MEDIA),
        )


def _what(column: Any) -> str:
    shape = "" if column.category not in {"temporal", "vector"} or column.dim is None else f" of {column.dim}"
    kind = column.type.type if column.type is not None else str(column.arrow)
    fields = {} if column.type is None else {name: column.type.get(name) for name in ("fps", "units", "codec")}
    more = ", ".join(f"{name} {value}" for name, value in fields.items() if isinstance(value, (int, float, str)))
    return f"{kind}{shape}{f' ({more})' if more else ''}"


def _data(paths: Sequence[str]) -> list[tuple[str, str]]:
    """The splits whose files are named so; else all Parquet of the folder of data, as one."""
    parquet = [path for path in paths if path.endswith(".parquet")]
    named = [_SPLIT.fullmatch(path) for path in parquet]
    if parquet and all(named):
        splits = dict.fromkeys(one[2] for one in named if one is not None)
        return [(split, f"data/{split}-*.parquet") for split in splits]
    inner = [path for path in parquet if path.startswith("data/")]
    if not inner:
        return []
    return [("train", "data/*.parquet" if all(path.count("/") == 1 for path in inner) else "data/**/*.parquet")]


def card_of(facts: CardFacts, /) -> str:
    """The text of README.md.

    Example:
        >>> facts = CardFacts(kind="mixtrain", rows=3, unit="sequences", nbytes=9, columns=[], data=[], media=[])
        >>> card_of(facts).splitlines()[:3]
        ['---', 'size_categories:', '- "n<1K"']
    """
    tasks = list(facts.tasks) or (["robotics"] if facts.kind == "lerobot" else [])
    lines = ["---"]
    if facts.license:
        lines.append(f"license: {json.dumps(facts.license)}")
    lines += _listed("task_categories", tasks)
    lines += _listed("size_categories", [next((name for most, name in _SIZES if facts.rows < most), "n>10M")])
    lines += _listed("tags", _tags(facts))
    if facts.data:
        lines += ["configs:", "- config_name: default", "  data_files:"]
        for split, pattern in facts.data:
            lines += [f"  - split: {json.dumps(split)}", f"    path: {json.dumps(pattern)}"]
    return "\n".join([*lines, "---", "", *_text(facts)])


def _tags(facts: CardFacts) -> list[str]:
    named = {"mixtrain": ["mixtrain"], "lerobot": ["LeRobot"]}.get(facts.kind, [facts.kind])
    return [*named, "seqlake", *facts.media]


def _listed(name: str, values: Sequence[str]) -> list[str]:
    return [f"{name}:", *(f"- {json.dumps(value)}" for value in values)] if values else []


def _text(facts: CardFacts) -> list[str]:
    opening = "open" if facts.kind in {"mixtrain", "lerobot"} else "scan"
    place = f"hf://datasets/{facts.name}"
    table = [f"| `{_cell(name)}` | {_cell(what)} |" for name, what in facts.columns]
    return [
        f"# {facts.name.rpartition('/')[2] or 'Dataset'}",
        "",
        f"{facts.rows:,} {facts.unit}, {_size(facts.nbytes)} of shards, {len(facts.columns)} columns.",
        "",
        "| column | what it is |",
        "|---|---|",
        *table,
        "",
        "```py",
        "import seqlake as sl",
        "",
        f'ds = sl.{opening}("{place}")',
        "```",
        "",
    ]


def _cell(text: str) -> str:
    """Text that ends no cell of a table and no code."""
    return in_line(text).replace("`", "'").replace("|", "/")


def _size(nbytes: int) -> str:
    amount, unit = float(nbytes), 0
    while amount >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.3g} {_UNITS[unit]}"

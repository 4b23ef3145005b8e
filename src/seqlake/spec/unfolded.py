"""Where the data files say otherwise than the dataset: columns renamed, dropped or labelled without writing a shard.

Readers that know only the format see the files and `mixtrain.json`. Its key `x_seqlake` tells them, and the column type
of a renamed column stands there under both names, so that nothing in it contradicts the files. `fold` writes the shards
anew, and the key is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

KEY = "x_seqlake"
SIDE = "_seqlake/side"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfolded:
    """What data files hold otherwise than the dataset shows it.

    Attributes:
        renamed: Name in some files -> what the column is called now.
        dropped: Names in some files whose column is gone.
        beside: Columns that lie, for some files, beside them in `_seqlake/side`.
        added: Columns that came later; files without them read null.
        reused: Names that were given before, to a column that is gone or called otherwise; a file may hold that one.

    Example:
        ```python
        ds.rename_column("reward", "score")
        ds.unfolded.renamed        # {'reward': 'score'}, until ds.fold()
        ```
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: Sequence[str] = ()
    beside: Sequence[str] = ()
    added: Sequence[str] = ()
    reused: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.renamed or self.dropped or self.beside or self.added or self.reused)

    @staticmethod
    def of(mixtrain: Mapping[str, Any], /) -> Unfolded:
        """What the object of a `mixtrain.json` says; nothing where it says nothing that can be used."""
        said = mixtrain.get(KEY)
        if not isinstance(said, dict):
            return Unfolded()
        return Unfolded(
            renamed={old: new for old, new in _object(said.get("renamed")).items() if isinstance(new, str)},
            dropped=_texts(said.get("dropped")),
            beside=_texts(list(_object(said.get("beside")))),
            added=_texts(said.get("added")),
            reused=_texts(said.get("reused")),
        )

    def to_json(self) -> dict[str, Any]:
        """The object that stands under the key; what is empty is left out."""
        said = {
            "renamed": dict(self.renamed),
            "dropped": list(self.dropped),
            "beside": dict.fromkeys(self.beside, SIDE),
            "added": list(self.added),
            "reused": list(self.reused),
        }
        return {name: value for name, value in said.items() if value}

    def lines(self) -> list[str]:
        """What there is to fold, one line for each kind."""
        old = ", ".join(f"{old} (now {new})" for old, new in self.renamed.items())
        said = {
            "columns under older names": old,
            "dropped columns": ", ".join(self.dropped),
            "labels beside the files": ", ".join(self.beside),
            "columns that older files lack": ", ".join(self.added),
            "names given a second time": ", ".join(self.reused),
        }
        return [f"{what}: {names}" for what, names in said.items() if names]


def meant(mixtrain: Mapping[str, Any], columns: Collection[str], /) -> dict[str, Any]:
    """What an object means for a dataset with these columns: without the key, and without types that only it explains.

    Args:
        mixtrain: The object of a `mixtrain.json`.
        columns: Of the dataset. Where the folder has no log, those of its files.
    """
    meaning = {name: value for name, value in mixtrain.items() if name != KEY}
    types = meaning.get("column_types")
    if KEY in mixtrain and isinstance(types, dict):
        said = Unfolded.of(mixtrain)
        explained = {*said.renamed, *said.renamed.values(), *said.beside, *said.added} - set(columns)
        kept = {name: kind for name, kind in types.items() if name not in explained}
        if kept:
            meaning["column_types"] = kept
        else:
            del meaning["column_types"]
    return meaning


def published(meaning: Mapping[str, Any], unfolded: Unfolded, /) -> dict[str, Any]:
    """What `mixtrain.json` says for everybody: the meaning, and where the files say otherwise.

    Args:
        meaning: What `meant` gave.
        unfolded: Where they do.
    """
    if not unfolded:
        return dict(meaning)
    said = dict(meaning)
    types = _object(said.get("column_types"))
    old = {name: types[now] for name, now in unfolded.renamed.items() if now in types and name not in types}
    if old:
        said["column_types"] = {**types, **old}
    return {**said, KEY: unfolded.to_json()}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()

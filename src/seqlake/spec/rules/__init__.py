"""The format's rules, each a small numbered function that cites its section and yields findings.

`metadata`: what `mixtrain.json` and the schema say; `rows`: ids, and columns against each other; `signals`: what cells
hold; `references`: what paths say; `files`: what the files are, and what they give, counted and decoded. `facts`: what
the rules judge. Every rule has a code; `RULES` lists them.
"""

from __future__ import annotations

from seqlake.spec.rules._rule import RULES, Rule
from seqlake.spec.rules.facts import Batch, Gathered, SeenIds, SeenPictures
from seqlake.spec.rules.files import check_cell, check_decoded, check_notes, check_row
from seqlake.spec.rules.metadata import check_arrow, check_metadata, check_places, check_schema, check_types
from seqlake.spec.rules.references import References, check_references
from seqlake.spec.rules.rows import check_rows
from seqlake.spec.rules.signals import gather_constant

__all__ = [
    "RULES",
    "Batch",
    "Gathered",
    "References",
    "Rule",
    "SeenIds",
    "SeenPictures",
    "check_arrow",
    "check_cell",
    "check_decoded",
    "check_metadata",
    "check_notes",
    "check_places",
    "check_references",
    "check_row",
    "check_rows",
    "check_schema",
    "check_types",
    "gather_constant",
]

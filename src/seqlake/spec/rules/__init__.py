"""The format's rules, each a small numbered function that cites its section and yields findings.

`metadata`: what `mixtrain.json` and the schema say; `rows`: ids, and columns against each other; `signals`: what cells
hold; `references`: what paths say; `batch`: the rows that they are shown. Every rule has a code; `RULES` lists them.
"""

from __future__ import annotations

from seqlake.spec.rules._rule import RULES, Rule
from seqlake.spec.rules.batch import Batch, Ids
from seqlake.spec.rules.metadata import check_arrow, check_metadata, check_places, check_schema, check_types
from seqlake.spec.rules.references import References, check_references
from seqlake.spec.rules.rows import check_rows

__all__ = [
    "RULES",
    "Batch",
    "Ids",
    "References",
    "Rule",
    "check_arrow",
    "check_metadata",
    "check_places",
    "check_references",
    "check_rows",
    "check_schema",
    "check_types",
]

"""The format's rules, each a small numbered function that cites its section and yields findings.

`metadata`: what `mixtrain.json` and the schema say; `rows`: what cells hold; `references`: what paths say. Every rule
has a code; `RULES` lists them all, in the order of their codes.
"""

from __future__ import annotations

from seqlake.spec.rules._rule import RULES, Rule
from seqlake.spec.rules.metadata import check_metadata, check_schema
from seqlake.spec.rules.references import References, check_references
from seqlake.spec.rules.rows import Batch, Ids, check_rows

__all__ = [
    "RULES",
    "Batch",
    "Ids",
    "References",
    "Rule",
    "check_metadata",
    "check_references",
    "check_rows",
    "check_schema",
]

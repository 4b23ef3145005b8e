"""What all kinds of tables share: names, index files, markers of transactions, staging, ids.

A table keeps its versions in a log of its own (`tables/standalone`) or in a lake's (`tables/delta`);
what lies beside the data in `_seqlake/` is the same in all of them. See `docs/design/versions.md`.
"""

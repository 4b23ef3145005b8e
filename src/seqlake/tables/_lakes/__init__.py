"""What all lakes share: staging, ids, sidecar indexes, snapshots, retries, vacuum; a lake adds an `LakeEngine`.

`LakeTable` offers the protocol of a table over an `LakeEngine`, which is the little that differs from lake to lake:
which files a version has, and one commit. See `docs/design/lakes.md`.
"""

from __future__ import annotations

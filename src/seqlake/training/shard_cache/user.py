"""This process as one of the users of a shard cache."""

from __future__ import annotations

import errno
import os
import secrets
from typing import TYPE_CHECKING

from seqlake.training.shard_cache.folder import Claims, Folder, Inventory, write_claims
from seqlake.training.shard_cache.local import enough

if TYPE_CHECKING:
    from collections import Counter

MOST_NEXT = 4096  # shards of a schedule that are told to the others
FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


class User:
    """This process as a user of the folder; used under its lock, which also keeps threads apart."""

    def __init__(self, folder: Folder, holding: Counter[str]) -> None:
        self.folder = folder
        self.pid = os.getpid()
        self.name = f"{self.pid}-{secrets.token_hex(8)}"
        self.file = folder.join(self.name)
        self.holding = holding
        self.claims = Claims(held=sorted(+holding))
        self.tell()
        self.inventory()  # what dead users left goes

    def is_there(self) -> bool:
        """Whether the user's file is still in the folder: people remove caches."""
        try:
            return os.path.samestat(os.fstat(self.file.fd), (self.folder.users / f"{self.name}.user").stat())
        except OSError:
            return False

    def tell(self) -> None:
        """Write the claims where others read them."""
        try:
            write_claims(self.file, self.claims)
        except OSError as error:
            if error.errno not in FULL or not self.claims.next:
                raise
            self.claims.next = []  # a shorter text fits where the longer one lay
            write_claims(self.file, self.claims)

    def inventory(self) -> Inventory:
        """Everything that counts."""
        return self.folder.inventory(self.name)

    def maker(self, key: str) -> str | None:
        """The user that makes this shard, alive; another thread of this process counts as well."""
        return next((name for name, claims in self.folder.claims(self.name).items() if key in claims.making), None)

    def make(self, key: str) -> None:
        """Begin a shard."""
        self.claims.making.setdefault(key, 0)
        self.tell()

    def made(self, key: str, *, hold: bool = False) -> None:
        """End a shard, made or given up."""
        self.claims.making.pop(key, None)
        if hold:
            self.hold(key)
        else:
            self.tell()

    def hold(self, key: str) -> None:
        """Hold a shard once more."""
        self.holding[key] += 1
        self.claims.held = sorted(+self.holding)
        self.tell()

    def let_go(self, key: str) -> None:
        """Hold it once less."""
        self.holding[key] -= 1
        self.holding = +self.holding
        self.claims.held = sorted(self.holding)
        self.tell()

    def free(self, nbytes: int, *, than: str | None, found: Inventory | None = None) -> bool:
        """Remove shards that nobody holds until so many bytes are free, those needed farthest ahead first.

        Args:
            nbytes: How many.
            than: Only what is needed later than this one.
            found: The inventory, where it was just made.

        Returns:
            Whether there were as many; if not, none was removed.
        """
        found = found or self.inventory()
        distance, held = found.distance(), found.held
        far = len(distance) + MOST_NEXT
        bound = -1 if than is None else distance.get(than, far)
        order = sorted(
            (
                (distance.get(key, far), 0 if key in distance else -self.folder.used(key), key)
                for key in found.entries
                if key not in held
            ),
            reverse=True,
        )
        gone = enough(((at, key, found.entries[key]) for at, _, key in order), nbytes, beyond=bound)
        for key in gone or ():
            self.folder.remove(key)
        return gone is not None

"""What you hold in your hand: a table opened for you."""

from seqlake.moved import keep_old_paths

keep_old_paths(__name__)

"""`seqlake demo`: simulate, write, survive a kill, validate, query, train, plot."""

from seqlake.cli.demo._command import command

__all__ = ["command"]

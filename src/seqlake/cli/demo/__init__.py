"""`seqlake demo`: simulate, record, survive a kill, validate, query, train, draw."""

from seqlake.cli.demo._command import command

__all__ = ["command"]

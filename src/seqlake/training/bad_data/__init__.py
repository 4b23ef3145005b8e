"""Samples that cannot be read: found, masked or substituted, and written into a ledger."""

"""Batches of datasets whose rows are samples: each row once an epoch, and nothing kept of a row that was delivered."""

"""From RLDS to training windows: 25 episodes of BridgeData V2 become a Mixtrain dataset, are checked, asked, streamed.

    python examples/bridge.py PATH/bridge_rlds/1.0.0 --out data/bridge

PATH is an RLDS folder as tfds writes it; no TensorFlow is needed. The new dataset is standard Parquet.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import seqlake as sl

WINDOW = {"state": range(-1, 1), "action": range(4)}


def convert(source: Path, out: Path) -> sl.Dataset:
    """Turn the RLDS folder into a dataset: one row an episode."""
    plan = sl.convert(source, out, dry_run=True)
    print(plan, end="\n\n")
    dataset = sl.convert(source, out)
    print(dataset, end="\n\n")
    return dataset


def look(dataset: sl.Dataset) -> None:
    """One episode, by its arrays."""
    episode = dataset[0]
    first = episode["image_0"]
    print(f"{episode['sequence_id']}: {episode['language_instruction']!r}")
    print(f"  action {episode['action'].shape} {episode['action'].dtype}, {len(first)} frames of the main camera")
    print(f"  instruction embedding {episode['language_embedding'].shape}", end="\n\n")


def ask(dataset: sl.Dataset) -> list[tuple[str, int, int]]:
    """The commonest instructions, in SQL over the Parquet files."""
    relation = dataset.sql(
        "SELECT language_instruction, count(*) AS episodes, sum(len(action))::BIGINT AS steps FROM dataset "
        "GROUP BY language_instruction ORDER BY episodes DESC, language_instruction LIMIT 5"
    )
    rows = relation.fetchall()
    for instruction, episodes, steps in rows:
        print(f"{episodes:3} episodes, {steps:4} steps: {instruction}")
    print()
    return rows


def validate(dataset: sl.Dataset) -> sl.Report:
    """Every rule of the format, over all rows."""
    report = dataset.validate(depth="rows")
    print(f"validate: {len(report.errors)} errors, {len(report.warnings)} warnings", end="\n\n")
    report.raise_for_errors()
    return report


def windows(dataset: sl.Dataset, *, epoch: int = 0, seed: int = 7) -> list[tuple[str, int]]:
    """All windows of one epoch in the order of training: (episode, first step)."""
    loader = sl.Loader(dataset, window=WINDOW, batch_size=32, seed=seed).tail("pad")
    loader.set_epoch(epoch)
    order: list[tuple[str, int]] = []
    for batch in loader:
        real = batch["valid"]
        order += zip(batch["sequence_id"][real].tolist(), batch["start"][real].tolist(), strict=True)
    return order


def main(arguments: list[str]) -> int:
    """Run it all and say what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="an RLDS folder, with features.json")
    parser.add_argument("--out", type=Path, default=Path("data/bridge"), help="where the dataset is made (%(default)s)")
    given = parser.parse_args(arguments)
    dataset = convert(given.source, given.out)
    look(dataset)
    ask(dataset)
    validate(dataset)
    for epoch in range(2):
        order = windows(dataset, epoch=epoch)
        twice = sum(count - 1 for count in Counter(order).values())
        print(f"epoch {epoch}: {len(order)} windows of {WINDOW}, {twice} twice, the first {order[:2]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

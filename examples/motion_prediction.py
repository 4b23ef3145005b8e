"""From a recorded drive to a motion model: agent windows of an l5kit store train a small network, a plot shows it.

    python examples/motion_prediction.py PATH/lyft_single_scene.zarr --out predicted.png

PATH is a store as l5kit writes it; neither l5kit nor zarr is needed, but torch is. The model sees where an agent was in
the last second and predicts where it will be in the next two, in the agent's own coordinates.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

import seqlake as sl
from seqlake.compat.l5kit.poses import relative_poses
from seqlake.dataset.drawing.canvas import Canvas, save

HISTORY, FUTURE = 10, 20
STEPS = range(HISTORY + 1 + FUTURE)
WINDOW = sl.Window(dict.fromkeys(("centroid", "yaw", "extent", "available"), STEPS), stride=len(STEPS))
POSES = relative_poses(history=HISTORY, future=FUTURE)
PIXELS = 300  # of one drawn agent


def sightings(store: Path) -> sl.Selection:
    """Every trusted sighting of an agent, one window each: the samples of l5kit's AgentDataset."""
    return sl.scan(store, view="agents", history=HISTORY, future=FUTURE, min_frame_future=FUTURE)


class Motion(torch.nn.Module):
    """Positions of the past second and their availability in; positions of the next two seconds out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3 * (HISTORY + 1), 128),
            torch.nn.ReLU(),
            torch.nn.Linear(128, 128),
            torch.nn.ReLU(),
            torch.nn.Linear(128, 2 * FUTURE),
        )

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """[B, FUTURE, 2] metres, added to going on as fast as in the last step."""
        past, seen = batch["history_positions"], batch["history_availabilities"]
        steps = torch.arange(1, FUTURE + 1, dtype=past.dtype)
        onward = -past[:, 1:2] * steps[None, :, None]
        found = self.layers(torch.cat([past.flatten(1), seen], dim=1))
        return onward + found.reshape(-1, FUTURE, 2)


def error(model: Motion, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The mean distance in metres between where agents went and where the model says they go."""
    away = torch.linalg.vector_norm(model(batch) - batch["target_positions"], dim=-1)
    seen = batch["target_availabilities"]
    return (away * seen).sum() / seen.sum()


def train(source: sl.Selection, *, epochs: int) -> tuple[Motion, list[float]]:
    """A model, and its mean error in metres after each epoch."""
    torch.manual_seed(0)
    model = Motion()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = sl.Loader(source, window=WINDOW, batch_size=64, seed=0).map_batch(POSES)
    losses = []
    for _ in range(epochs):
        total = 0.0
        for batch in loader.torch():
            loss = error(model, batch)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += float(loss.detach())
        losses.append(total / len(loader))
    return model, losses


def plot(model: Motion, source: sl.Selection, out: Path, *, agents: int = 6) -> None:
    """Predicted (red) beside true tracks (black), the past in grey: agents that swerve most, each in its own scale."""
    loader = sl.Loader(source, window=WINDOW, batch_size=256, shuffle=False).map_batch(POSES)
    found = [{name: values for name, values in batch.items() if values.dtype == np.float32} for batch in loader]
    whole = {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}
    chosen = np.argsort(-np.abs(whole["target_positions"][:, -1, 1]))[: 8 * agents : 8]
    batch = {name: torch.from_numpy(values[chosen]) for name, values in whole.items()}
    with torch.no_grad():
        predicted = model(batch).numpy()
    canvas = Canvas(PIXELS * 3, PIXELS * -(-agents // 3))
    for number, window in enumerate(predicted):
        seen = batch["history_availabilities"][number].numpy() > 0
        lines = {
            "#999999": batch["history_positions"][number].numpy()[seen],
            "#202020": np.concatenate([[[0, 0]], batch["target_positions"][number].numpy()]),
            "#b00020": np.concatenate([[[0, 0]], window]),
        }
        draw(canvas, (PIXELS * (number % 3), PIXELS * (number // 3)), lines)
    canvas.text(8, 8, f"grey: the past, black: the next {FUTURE} steps, red: predicted")
    save(canvas.pixels, out)


def draw(canvas: Canvas, corner: tuple[int, int], lines: dict[str, np.ndarray]) -> None:
    """Some tracks in a square, each point a dot, in a scale that shows them all."""
    points = np.concatenate(list(lines.values()))
    low, high = points.min(axis=0), points.max(axis=0)
    metres = max(float((high - low).max()), 1.0)
    scale = 0.8 * PIXELS / metres
    for color, track in lines.items():
        places = (track - (low + high) / 2) * [scale, -scale] + np.array(corner) + PIXELS / 2
        canvas.line(places, color=color)
        for x, y in places.astype(int).tolist():
            canvas.fill(x - 1, y - 1, 3, 3, color=color)
    frame = np.array([[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]) * (PIXELS - 1) + np.array(corner)
    canvas.line(frame, width=1)
    canvas.text(corner[0] + 8, corner[1] + PIXELS - 18, f"{metres:.1f} m")


def main(arguments: list[str]) -> int:
    """Run it all and say what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path, help="a store of l5kit")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("predicted.png"), help="the plot (%(default)s)")
    given = parser.parse_args(arguments)
    source = sightings(given.store)
    print(f"{len(source)} sightings with {HISTORY} frames before and {FUTURE} after them")
    model, losses = train(source, epochs=given.epochs)
    print(f"mean error: {losses[0]:.2f} m after the first epoch, {losses[-1]:.2f} m after the last")
    plot(model, source, given.out)
    print(f"{given.out}: predicted against true tracks")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

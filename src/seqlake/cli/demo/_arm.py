"""A small simulated robot arm: three joints in a plane, with mass, friction and a PD controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

RATE = 30
"""Control steps per second."""

_INSIDE = 10  # steps of the simulation in one of the controller

LINKS = np.array([0.35, 0.30, 0.20])
"""Lengths of the three links, in metres."""

TASKS = ("reach", "draw-circle", "wave")


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One simulated episode of T control steps."""

    sequence_id: str
    task: str
    action: NDArray[np.float32]
    """[T, 3] joint torques, in newton metres."""
    obs_state: NDArray[np.float32]
    """[T, 8]: joint angles (rad), joint speeds (rad/s), position of the hand (m)."""
    reward: float
    success: bool


def hand(angles: NDArray[Any]) -> NDArray[Any]:
    """Joint angles [..., 3] -> position of the hand [..., 2], in metres."""
    total = np.cumsum(angles, axis=-1)
    return np.stack([(LINKS * np.cos(total)).sum(-1), (LINKS * np.sin(total)).sum(-1)], -1)


def episodes(count: int, /, *, seed: int = 0) -> Iterator[Episode]:
    """Simulate `count` episodes; the same seed gives the same episodes."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        task = TASKS[number % len(TASKS)]
        steps = int(rng.integers(60, 180))
        yield _episode(f"ep_{number:04d}", task, _plan(task, steps, rng), rng)


def _plan(task: str, steps: int, rng: np.random.Generator) -> NDArray[Any]:
    """Wanted joint angles [T, 3] over the episode."""
    t = np.linspace(0, 1, steps)[:, None]
    start, goal = rng.uniform(-1.2, 1.2, (2, 3))
    if task == "reach":
        smooth = t**3 * (10 - 15 * t + 6 * t**2)  # the minimum-jerk profile
        return np.asarray(start + (goal - start) * smooth)
    turns = rng.uniform(1.5, 3.0)
    phase = np.array([0.0, np.pi / 2, np.pi]) if task == "draw-circle" else np.array([0.0, 0.0, 0.3])
    size = np.array([0.3, 0.4, 0.5]) if task == "draw-circle" else np.array([0.05, 0.3, 0.8])
    return np.asarray(start + size * np.sin(2 * np.pi * turns * t + phase))


def _episode(name: str, task: str, wanted: NDArray[Any], rng: np.random.Generator) -> Episode:
    angle, speed = wanted[0].copy(), np.zeros(3)
    inertia, friction = np.array([0.09, 0.05, 0.02]), np.array([0.25, 0.2, 0.1])
    gain, damping = 90 * inertia, 9 * inertia  # a controller of so few steps a second must not pull harder
    actions, states = np.empty((len(wanted), 3), np.float32), np.empty((len(wanted), 8), np.float32)
    error = 0.0
    for step, target in enumerate(wanted):
        torque = np.clip(gain * (target - angle) - damping * speed, -4, 4) + rng.normal(0, 0.02, 3)
        states[step] = np.concatenate([angle, speed, hand(angle)])
        actions[step] = torque
        error += float(np.abs(target - angle).mean())
        for _ in range(_INSIDE):
            # Semi-implicit Euler stays stable where explicit Euler gains energy.
            speed += (torque - friction * speed) / inertia / (RATE * _INSIDE)
            angle = angle + speed / (RATE * _INSIDE)
    reward = 1.0 - error / len(wanted)
    return Episode(sequence_id=name, task=task, action=actions, obs_state=states, reward=reward, success=reward > 0.9)

"""The smallest possible time of a private step, from rates measured on this machine.

A step reads the rows of its batch from memory, multiplies them twice by a matrix of the shape
of the weights, and draws one secret normal for each weight. Nothing else is counted.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.training_peers import Problem
from veracal._random import secret_generator


@dataclass(frozen=True)
class Limit:
    """What one step needs and what one core does, each rate the best seen."""

    megabytes: float
    megaflops: float
    normals: int
    gigabytes_a_second: float
    gigaflops_a_second: float
    nanoseconds_a_normal: float

    @property
    def arithmetic(self) -> float:
        """Seconds to read and multiply, on one core."""
        reading = self.megabytes / 1e3 / self.gigabytes_a_second
        return reading + self.megaflops / 1e3 / self.gigaflops_a_second

    @property
    def noise(self) -> float:
        """Seconds to draw the noise, on one core."""
        return self.normals * self.nanoseconds_a_normal / 1e9

    def least(self, cores: int) -> float:
        """Seconds of a step that loses nothing, all its work shared evenly."""
        return (self.arithmetic + self.noise) / cores


def fastest(work: Callable[[int], object], *, rounds: int = 5, turns: int = 40) -> float:
    """Seconds of one call, in the best of several rounds; calls are numbered from 0."""
    work(0)
    best = float("inf")
    for number in range(rounds):
        start = time.perf_counter()
        for turn in range(turns):
            work(number * turns + turn)
        best = min(best, (time.perf_counter() - start) / turns)
    return best


def limit_of(problem: Problem) -> Limit:
    """Measure the rates of one core, and count what a step needs."""
    shape = problem.shape
    d, k, b = shape.features, shape.classes, shape.batch
    rng, normals = secret_generator(), np.empty((k, d + 1))
    rows, full = [batch[:b] for batch in problem.batches], np.empty((b, d), np.float32)

    def read(turn: int) -> None:
        chosen = rows[turn % len(rows)]
        np.take(problem.X, chosen, axis=0, out=full[: len(chosen)], mode="clip")

    reading = fastest(read) / (sum(map(len, rows)) * d * 4 / len(rows))
    flops = 4 * b * d * k  # two products, each with one addition for each multiplication
    return Limit(
        b * d * 4 / 1e6,
        flops / 1e6,
        normals.size,
        1e-9 / reading,
        flops / _products(full, problem.start) / 1e9,
        fastest(lambda _: rng.standard_normal(out=normals)) / normals.size * 1e9,
    )


def _products(rows: np.ndarray, weights: np.ndarray) -> float:
    """Seconds of the two products of a step, by whichever library does each faster."""
    residual = np.ascontiguousarray(rows @ weights.T)
    arrays = rows, weights, residual
    X, W, R = map(torch.from_numpy, arrays)
    forward = fastest(lambda _: rows @ weights.T), fastest(lambda _: X @ W.T)
    backward = fastest(lambda _: residual.T @ rows), fastest(lambda _: R.T @ X)
    return min(forward) + min(backward)

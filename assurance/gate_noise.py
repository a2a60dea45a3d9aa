"""Gradient noise has the distribution that is charged, and no other process repeats it.

The noisy sums of a descent over no records are noise alone: 60,000 draws from the entropy of
the operating system, tested at alpha = 1e-6 for their shape, their spread and that steps are
independent, then compared between runs and between forked children.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from randomgen import AESCounter
from scipy import stats

from veracal import _random
from veracal.mechanisms.clipping import ClippedSum, Flat
from veracal.mechanisms.dp_sgd import DPSGD
from veracal.mechanisms.optimizers import SGD
from veracal.mechanisms.sampling import FullBatch

NAME = "noise"
ALPHA = 1e-6
MULTIPLIER, BOUND = 1.3, 0.7


@dataclass(frozen=True)
class Subject:
    """A descent, and where it takes its randomness from."""

    descent: type[DPSGD] = DPSGD
    generator: Callable[[], np.random.Generator] = _random.secret_generator


def scaled(factor: float) -> Subject:
    """Noise of another size."""

    class Scaled(DPSGD):
        def _add_noise(self, total: Any, noise_std: float, rng: Any) -> Any:
            return super()._add_noise(total, factor * noise_std, rng)

    return Subject(Scaled)


class Uniform(DPSGD):
    """Noise of the right spread and the wrong shape."""

    def _add_noise(self, total: Any, noise_std: float, rng: Any) -> Any:
        uniform = 2 * stats.norm.cdf(rng.add_to(0 * total, 1.0)) - 1
        return total + noise_std * 3**0.5 * uniform


class Reused(DPSGD):
    """Noise drawn once and added at every step."""

    def _add_noise(self, total: Any, noise_std: float, rng: Any) -> Any:
        if "drawn" not in self.__dict__:
            self.__dict__["drawn"] = rng.add_to(0 * total, noise_std)
        return total + self.__dict__["drawn"]


class Mirrored(DPSGD):
    """Every second step takes the noise of the last one away again."""

    def _add_noise(self, total: Any, noise_std: float, rng: Any) -> Any:
        last = self.__dict__.pop("last", None)
        noise = rng.add_to(0 * total, noise_std) if last is None else -last
        if last is None:
            self.__dict__["last"] = noise
        return total + noise


class SeededByDefault(DPSGD):
    """A seed where the caller names no generator."""

    def run(self, *arguments: Any, rng: np.random.Generator | None = None, **more: Any) -> Any:
        return super().run(*arguments, rng=rng or np.random.default_rng(2026), **more)


CORRECT = Subject()
MUTANTS = {
    "M1 no noise": scaled(1e-9),
    "M2 half the noise": scaled(0.5),
    "M3 noise times 0.85": scaled(0.85),
    "noise times 0.97": scaled(0.97),
    "uniform noise": Subject(Uniform),
    "M15 fixed seed": Subject(generator=lambda: np.random.Generator(AESCounter(seed=7))),
    "M15 fixed seed by default": Subject(SeededByDefault),
    "M16 noise reused at every step": Subject(Reused),
    "noise undone by the next step": Subject(Mirrored),
    "the stream survives a fork": Subject(
        generator=lambda: np.random.Generator(AESCounter(seed=secrets.randbits(256)))
    ),
}


def run(subject: Subject, *, long: bool) -> str:
    """Test the distribution, then that no draw is repeated."""
    steps = 960 if long else 60
    draws = noise(subject, subject.generator(), steps)
    law, spread, shift = pvalues(draws / (MULTIPLIER * BOUND))
    assert law > ALPHA, f"the noise is not Gaussian: p = {law:.1e}"
    assert spread > ALPHA, f"the noise has another spread: p = {spread:.1e}"
    assert shift > ALPHA, f"steps are not independent: p = {shift:.1e}"
    others = [noise(subject, rng, steps) for rng in (subject.generator(), None, None)]
    everything = np.concatenate([draws, *others]).ravel()
    # On a grid a number may come twice by chance, but hardly two of them in a row.
    pairs = everything[::2] + 1j * everything[1::2]
    shared = pairs.size - len(np.unique(pairs))
    assert not shared, f"{shared} pairs of draws came twice"
    children = [*forked(subject, 8)]
    twice = len(children) - len(set(children))
    assert not twice, f"{twice} of {len(children)} relatives drew the same noise"
    return f"{draws.size:,} draws at p = {law:.2f}, {spread:.2f}, {shift:.2f}; forks share 0"


def noise(subject: Subject, rng: np.random.Generator | None, steps: int) -> np.ndarray:
    """Noisy sums of a descent without records: one row for each step."""
    descent = subject.descent(
        FullBatch(), Flat(BOUND), SGD(0.1), MULTIPLIER, steps=steps, expected_batch=10
    )
    sums: list[np.ndarray] = []
    descent.run(
        np.zeros(1_000), no_gradient, 0, rng=rng, on_step=lambda s: sums.append(s.noisy_sum)
    )
    return np.array(sums)


def no_gradient(weights: Any, rows: Any, clip: Any) -> ClippedSum:
    """No records."""
    return ClippedSum(np.zeros(weights.shape))


def pvalues(draws: np.ndarray) -> tuple[float, float, float]:
    """Kolmogorov and Smirnov's test, the sum of squares, and the correlation of steps.

    At 60,000 draws the first cannot tell 3 % of spread; the second, a chi-squared of as many
    degrees, tells it at ten standard deviations.
    """
    law = float(stats.kstest(draws.ravel(), "norm").pvalue)
    squares = stats.chi2(draws.size)
    total = float((draws**2).sum())
    spread = 2 * min(float(squares.cdf(total)), float(squares.sf(total)))
    products = float((draws[1:] * draws[:-1]).sum()) / (draws[1:].size ** 0.5)
    shift = 2 * float(stats.norm.sf(abs(products)))
    return law, spread, shift


def forked(subject: Subject, children: int) -> Iterator[bytes]:
    """What a generator and its copies in forked children draw, as noise of a descent."""
    rng = subject.generator()
    for _ in range(children):
        read, write = os.pipe()
        if (child := os.fork()) == 0:  # pragma: no cover - runs in the child
            try:
                os.write(write, noise(subject, rng, 1)[0, :16].tobytes())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        yield os.read(read, 1_024)
        os.close(read)
        os.close(write)
    yield noise(subject, rng, 1)[0, :16].tobytes()

"""Discrete noise that follows a label, in place of OpenDP's, for tests and gates.

OpenDP takes its randomness from OpenSSL, which replacing ``os.urandom`` does not reach. Here
the two constructors of ``veracal.mechanisms.discrete_noise`` are replaced by samplers of the
same distributions. The library itself keeps one source of noise that nothing can set.
"""

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np

Sampler = Callable[[float, int, np.random.Generator], np.ndarray]


def sample_laplace(scale: float, size: int, rng: np.random.Generator) -> np.ndarray:
    r"""Draw integers with :math:`P(k) \propto e^{-|k|/s}`: the difference of two geometrics."""
    success = -np.expm1(-1 / scale)
    return rng.geometric(success, size) - rng.geometric(success, size)


def sample_gaussian(scale: float, size: int, rng: np.random.Generator) -> np.ndarray:
    r"""Draw integers with :math:`P(k) \propto e^{-k^2/2s^2}`.

    By rejection from the discrete Laplace distribution of scale :math:`t = \lfloor s \rfloor +
    1`, with acceptance :math:`e^{-(|k| - s^2/t)^2 / 2 s^2}` (Canonne, Kamath and Steinke 2020,
    Algorithm 3).
    """
    t = np.floor(scale) + 1
    drawn = np.zeros(size, dtype=np.int64)
    left = np.arange(size)
    while len(left):
        candidate = sample_laplace(t, len(left), rng)
        with np.errstate(over="ignore", under="ignore"):
            accept = np.exp(-((np.abs(candidate) / scale - scale / t) ** 2) / 2)
        accepted = rng.random(len(left)) < accept
        drawn[left[accepted]] = candidate[accepted]
        left = left[~accepted]
    return drawn


class RepeatableNoise:
    """Noise that is determined by a label and by the integers that it is added to.

    The n-th time that noise of one kind and scale is added to the same integers under a label,
    it is the same noise. Neither other releases nor the order in which threads arrive change
    it. A forked child draws noise of its own, which follows from how many forks came before.
    """

    def __init__(self) -> None:
        self._label = "outside of tests"
        self._real = False
        self._forks = 0
        self._counts: Counter[bytes] = Counter()
        self._lock = threading.Lock()
        self._modules: list[ModuleType] = []
        os.register_at_fork(before=self._before_fork, after_in_child=self._after_fork)

    def install(self, module: ModuleType) -> None:
        """Replace the constructors of OpenDP's mechanisms in a module, once."""
        if module in self._modules:
            return
        self._modules.append(module)
        module.make_laplace = self._replacement("laplace", sample_laplace, module.make_laplace)
        module.make_gaussian = self._replacement(
            "gaussian", sample_gaussian, module.make_gaussian
        )

    @contextmanager
    def named(self, label: str, *, real: bool = False) -> Iterator[None]:
        """Begin at the start of a label, or leave the noise to OpenDP; afterwards go back."""
        before = self._label, self._real, self._counts, self._forks
        self._label, self._real, self._counts, self._forks = label, real, Counter(), 0
        try:
            yield
        finally:
            self._label, self._real, self._counts, self._forks = before

    def _replacement(
        self, kind: str, sample: Sampler, original: Callable[..., object]
    ) -> Callable[..., object]:
        def make(scale: float) -> object:
            measurement = original(scale)  # refuses what OpenDP refuses

            def noised(units: list[int]) -> list[int]:
                exact = np.array(units, dtype=np.int64)
                rng = self._generator(kind, scale, exact)
                return (exact + sample(scale, len(exact), rng)).tolist()

            return measurement if self._real else noised

        return make

    def _generator(self, kind: str, scale: float, exact: np.ndarray) -> np.random.Generator:
        release = hashlib.sha256(f"{kind}\0{scale!r}\0".encode() + exact.tobytes()).digest()
        with self._lock:
            self._counts[release] += 1
            count = self._counts[release]
        text = f"{self._label}\0{count}\0".encode() + release
        return np.random.default_rng(int.from_bytes(hashlib.sha256(text).digest()))

    def _before_fork(self) -> None:
        self._forks += 1

    def _after_fork(self) -> None:
        self._label += f"\0fork {self._forks}"
        self._counts, self._forks = Counter(), 0
        self._lock = threading.Lock()


NOISE = RepeatableNoise()

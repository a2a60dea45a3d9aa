"""Noise for coming steps, drawn while the present one is computed."""

import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from veracal._types import Array

_LEAST = 4_096  # entries of a step below which a second thread costs more than it saves
_DRAWN = 1 << 20  # entries that are drawn together: to wake a thread is dear
_MOST = 64  # steps that are drawn for together
_WAIT = 0.5  # seconds between two looks at whether the other thread lives


class NoiseAhead:
    """The normals of one generator, step after step, drawn ahead on a second thread.

    Secret normals take as long to draw as the gradient of a linear model takes to compute,
    and numpy lets go of the interpreter while it draws. Whoever takes the noise gets what the
    generator would have given: number by number the same stream, however it is cut.

    Parameters
    ----------
    shape : tuple of int
        Of the noise of one step.
    steps : int
        How many steps there will be; no more is drawn.
    rng : Generator
        Nobody else may draw from it.

    Guarantees
    ----------
    No number is given out twice, not to a forked child either, and what was drawn for steps
    that do not come is forgotten.
    """

    def __init__(self, shape: tuple[int, ...], steps: int, rng: np.random.Generator) -> None:
        self._shape, self._process = shape, os.getpid()
        entries = int(np.prod(shape, dtype=np.int64))
        self._together = min(_MOST, max(1, _DRAWN // max(1, entries)))
        self._steps, self._rng = steps, rng
        self._stock: Iterator[Array] = iter(())  # one array of several steps
        self._threaded = entries >= _LEAST and steps > 1
        self._drawn: queue.Queue[Array | BaseException] = queue.Queue(maxsize=1)
        self._over = threading.Event()
        self._worker = threading.Thread(target=self._work, name="noise", daemon=True)

    def normal(self, mean: float, std: float, shape: tuple[int, ...]) -> Array:
        """Noise of the next step, as ``Generator.normal`` would give it."""
        assert shape == self._shape, "noise was announced for another shape"
        if os.getpid() != self._process:
            # What is in stock would hide the steps of the parent, too.
            raise RuntimeError("Expected no fork within a step; noise is not shared.")
        noise = next(self._stock, None)
        if noise is None:
            self._stock = iter(self._next())
            noise = next(self._stock)
        scaled: Array = noise * std  # a copy: a step must not show the next one's
        if mean:
            scaled += mean
        return scaled

    def _next(self) -> Array:
        """Normals of several steps."""
        if not self._threaded:
            now = max(1, min(self._together, self._steps))
            self._steps -= now
            return self._fresh(now)
        while True:
            try:
                drawn = self._drawn.get(timeout=_WAIT)
            except queue.Empty:
                assert self._worker.is_alive(), "the thread that draws the noise is gone"
                continue
            if isinstance(drawn, BaseException):
                raise drawn
            return drawn

    def _fresh(self, steps: int) -> Array:
        """Draw for that many steps, in one call: each waits for the other thread twice."""
        return self._rng.standard_normal((steps, *self._shape))

    def _work(self) -> None:
        """Draw until all is drawn or nobody wants more."""
        left, now = self._steps, 1
        try:
            while left > 0 and not self._over.is_set():
                now = min(left, now, self._together)
                self._give(self._fresh(now))
                left, now = left - now, 2 * now  # the first step need not wait for many
        except BaseException as problem:  # the other thread is the one to stop
            self._give(problem)

    def _give(self, drawn: Array | BaseException) -> None:
        """Hand over, unless nobody wants more."""
        while not self._over.is_set():
            try:
                return self._drawn.put(drawn, timeout=_WAIT)
            except queue.Full:
                continue

    @contextmanager
    def drawing(self) -> Iterator["NoiseAhead"]:
        """Draw for as long as the block runs."""
        if self._threaded:
            self._worker.start()
        try:
            yield self
        finally:
            self._over.set()
            if self._threaded:
                _emptied(self._drawn)  # so that the worker need not wait for room
                self._worker.join()


def _emptied(drawn: "queue.Queue[Array | BaseException]") -> None:
    """Take out what is left."""
    while True:
        try:
            drawn.get_nowait()
        except queue.Empty:
            return

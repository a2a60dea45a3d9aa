"""Noise for coming steps, drawn while the present one is computed."""

import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, repeat

import numpy as np

from veracal._types import Array

_LEAST = 4_096  # entries of a step below which a second thread costs more than it saves
_DRAWN = 1 << 20  # entries that are drawn together: to wake a thread is dear
_MOST = 64  # steps that are drawn for together
_PIECE = 1 << 18  # entries of a piece, where one step has more than are drawn together
_STOCK = 8  # pieces that are kept in stock: those of a whole step would take much room
_WAIT = 0.5  # seconds between two looks at whether the other thread lives


class NoiseAhead:
    r"""The normals of one generator, step after step, drawn ahead on a second thread.

    They are rounded to multiples of :math:`2^{-m}` and kept as integers, which are added to
    sums in units of :math:`2^{-m}` standard deviations.

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
    digits : int
        Binary digits m that normals keep after the point.
    overwrite : bool
        Whether noise is added to sums in their place.

    Guarantees
    ----------
    No number is given out twice, not to a forked child either, and what was drawn for steps
    that do not come is forgotten. A noisy sum is a function of an integer, the sum of the
    rounded sum and the rounded noise: its low-order bits show no more than that integer does.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        steps: int,
        rng: np.random.Generator,
        *,
        digits: int = 30,
        overwrite: bool = False,
    ) -> None:
        self._scale = 2.0**digits
        self._shape, self._process = shape, os.getpid()
        entries = int(np.prod(shape, dtype=np.int64))
        self._together = min(_MOST, max(1, _DRAWN // max(1, entries)))
        self._rng = rng
        self._stock: Iterator[Array] = iter(())  # one array of several steps
        self._threaded = entries >= _LEAST and steps > 1
        # Pieces of the noise of each step; a single one if there are few entries.
        cut = _PIECE if entries > _DRAWN else max(1, entries)
        self._pieces = [slice(i, min(i + cut, entries)) for i in range(0, entries, cut)] or [
            slice(0, 0)
        ]
        self._plan = self._planned(steps)
        self._overwrite = overwrite
        stock = 1 if len(self._pieces) == 1 else _STOCK
        self._drawn: queue.Queue[Array | BaseException] = queue.Queue(maxsize=stock)
        self._over = threading.Event()
        self._worker = threading.Thread(target=self._work, name="noise", daemon=True)

    def units(self) -> Array:
        """Noise of the next step, in units of 2^-digits standard deviations."""
        if len(self._pieces) == 1:
            return self._taken().copy()  # a step must not show the next one's
        many = np.empty(self._shape)
        flat = many.reshape(-1)
        for piece in self._pieces:
            flat[piece] = self._taken()
        return many

    def onto(self, total: Array, std: float) -> Array:
        """A sum with the noise of the next step, in its place where that was announced."""
        step = std / self._scale
        if not (self._overwrite and total.flags.c_contiguous and total.flags.writeable):
            noisy: Array = np.asarray(total * (1 / step))
            np.rint(noisy, out=noisy)
            noisy += self._taken() if len(self._pieces) == 1 else self.units()
            noisy *= step
            return noisy
        assert total.shape == self._shape, "noise was announced for another shape"
        flat = total.reshape(-1)
        for piece in self._pieces:
            part = flat[piece]
            part *= 1 / step
            np.rint(part, out=part)
            part += self._taken().reshape(-1)
            part *= step
        return total

    def _taken(self) -> Array:
        """Rounded normals of the next step, or of the next piece of it."""
        if os.getpid() != self._process:
            # What is in stock would hide the steps of the parent, too.
            raise RuntimeError("Expected no fork within a step; noise is not shared.")
        noise = next(self._stock, None)
        if noise is None:
            self._stock = iter(self._next())
            noise = next(self._stock)
        return noise

    def _next(self) -> Array:
        """Normals of several steps, or of one piece, in an array of one row for each."""
        if not self._threaded:
            return self._draw(next(self._plan, (1, *self._shape)))
        while True:
            try:
                drawn = self._drawn.get(timeout=_WAIT)
            except queue.Empty:
                assert self._worker.is_alive(), "the thread that draws the noise is gone"
                continue
            if isinstance(drawn, BaseException):
                raise drawn
            return drawn

    def _draw(self, shape: tuple[int, ...]) -> Array:
        """Rounded normals."""
        drawn: Array = self._rng.standard_normal(shape)
        drawn *= self._scale
        return np.rint(drawn, out=drawn)

    def _planned(self, steps: int) -> Iterator[tuple[int, ...]]:
        """Shapes of what is drawn in one call, in which each waits for the other thread twice.

        The first step need not wait for many to be drawn.
        """
        if len(self._pieces) > 1:
            for piece in chain.from_iterable(repeat(self._pieces, steps)):
                yield 1, piece.stop - piece.start
        now = 1 if self._threaded else self._together
        while len(self._pieces) == 1 and steps > 0:
            now = min(steps, now, self._together)
            yield now, *self._shape
            steps, now = steps - now, 2 * now

    def _work(self) -> None:
        """Draw until all is drawn or nobody wants more."""
        try:
            for shape in self._plan:
                if self._over.is_set():
                    return
                self._give(self._draw(shape))
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

"""Every sum that a method can query, for all trials at once.

A trial takes the first n pictures of a random order for its sources and the rest for the test.
Temperatures are those of a fine public grid, so that what all trials and sizes need is a table
of sums by temperature and bin, made in one pass by counting. The error on the test part is
that of all pictures minus that of the sources', exactly.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from benchmarks.shift.grid import (
    BINS,
    EACH,
    FIRST,
    MOST,
    PICTURES,
    RANGE,
    SIZES,
    STEP,
    TRIALS,
)
from veracal._types import Array, Bools, Floats, Ints
from veracal.calibration.bins import Bins, bin_indices

CLAMP = 10.0  # of the negative log likelihood of one record, as in the paper
COLUMNS = 256
TEMPERATURES: Floats = np.exp(np.linspace(*np.log(RANGE), COLUMNS))


@dataclass(frozen=True, eq=False)
class Tables:
    """Sums for one network and corruption.

    Attributes
    ----------
    gaps : array of shape (temperatures, trials, sizes, bins)
        Right predictions minus confidences, of the sources' records.
    all_gaps : array of shape (temperatures, bins)
        The same of all pictures.
    losses : array of shape (temperatures, trials, sizes)
        Clamped negative log likelihood.
    counts, all_counts : arrays of shape (trials, sizes, bins, 2) and (bins, 2)
        Right and wrong predictions by confidence at a temperature of 1.
    plain : array of shape (bins,), and of shape (trials, sizes, bins)
        Gaps at a temperature of 1, of all pictures and of the sources' records.
    first : array of shape (temperatures, trials, sizes of one source)
        Gaps of the first source.
    hottest : array of shape (pictures,)
        Confidences at the largest temperature.
    correct : array of bool of shape (pictures,)
    order : array of shape (trials, most records)
        Pictures of each trial.
    """

    gaps: Floats
    all_gaps: Floats
    losses: Floats
    counts: Ints
    all_counts: Ints
    plain: tuple[Floats, Floats]
    first: Floats
    hottest: Floats
    correct: Bools
    order: Ints

    @property
    def trials(self) -> int:
        """How many."""
        return len(self.order)


def column(temperatures: Floats) -> Ints:
    """The nearest temperature of the grid."""
    step = np.log(RANGE[1] / RANGE[0]) / (COLUMNS - 1)
    place = np.rint(np.log(np.asarray(temperatures) / RANGE[0]) / step)
    result: Ints = np.clip(place, 0, COLUMNS - 1).astype(np.int64)
    return result


def tables(logits: Floats, labels: Ints, seed: str, trials: int = TRIALS) -> Tables:
    """Count everything once.

    Parameters
    ----------
    logits : array of shape (pictures, classes)
    labels : array of ints of shape (pictures,)
    seed : str
        Names the random orders.
    trials : int
    """
    assert len(labels) == PICTURES
    order = orders(seed, trials)
    below = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    correct = logits.argmax(axis=1) == labels
    sums = _Sums.over(order)
    gaps = np.empty((COLUMNS, trials, len(SIZES), BINS), np.float32)
    all_gaps = np.empty((COLUMNS, BINS))
    losses = np.empty((COLUMNS, trials, len(SIZES)), np.float32)
    first = np.empty((COLUMNS, trials, len(FIRST)), np.float32)
    for i, temperature in enumerate(TEMPERATURES):
        total = np.exp(below / temperature).sum(axis=1)
        by_bin = _by_cell(correct - 1 / total, bin_indices(1 / total, Bins(BINS)), BINS)
        gaps[i] = sums.of(by_bin)
        all_gaps[i] = by_bin.sum(axis=0)
        loss = np.log(total) - below[np.arange(PICTURES), labels] / temperature
        losses[i] = sums.of(np.clip(loss, 0, CLAMP)[:, None])[..., 0]
        first[i] = sums.of_first(correct - 1 / total)
    plain = 1 / np.exp(below).sum(axis=1)
    cells = bin_indices(plain, Bins(BINS))
    sides = _by_cell(np.ones(PICTURES), 2 * cells + ~correct, 2 * BINS)
    plain_gaps = _by_cell(correct - plain, cells, BINS)
    counts = np.rint(sums.of(sides)).astype(np.int64)
    return Tables(
        gaps,
        all_gaps,
        losses,
        counts.reshape(trials, len(SIZES), BINS, 2),
        sides.sum(axis=0).astype(np.int64).reshape(BINS, 2),
        (plain_gaps.sum(axis=0), sums.of(plain_gaps)),
        first,
        1 / total,
        correct,
        order,
    )


def orders(seed: str, trials: int) -> Ints:
    """Random pictures without repetition for each trial, of shape (trials, most records)."""
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big")
    keys = np.random.default_rng(number).random((trials, PICTURES), dtype=np.float32)
    result: Ints = np.argsort(keys, axis=1)[:, :MOST]
    return result


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over the first records of each trial, by products with a matrix of ones."""

    order: Ints
    blocks: sparse.csr_array

    @classmethod
    def over(cls, order: Ints) -> "_Sums":
        """A row for every block of records of a trial, with a one for each of its pictures."""
        starts = np.arange(0, order.size + 1, STEP)
        ones = np.ones(order.size, np.float32)
        shape = len(starts) - 1, PICTURES
        return cls(order, sparse.csr_array((ones, order.ravel(), starts), shape))

    def of(self, columns: Floats) -> Floats:
        """Sums of columns, of shape (trials, sizes, columns)."""
        found = self.blocks @ columns.astype(np.float32)
        running = found.reshape(len(self.order), MOST // STEP, -1).cumsum(axis=1)
        result: Floats = running[:, SIZES // STEP - 1]
        return result

    def of_first(self, values: Floats) -> Floats:
        """Sums over the records of the first source, of shape (trials, sizes of one)."""
        parts = values[self.order[:, : FIRST.max()]].reshape(len(self.order), -1, EACH)
        result: Floats = parts.sum(axis=2).cumsum(axis=1)[:, FIRST // EACH - 1]
        return result


def _by_cell(values: Floats, cells: Array, count: int) -> Floats:
    """Numbers in the columns of their cells, of shape (pictures, cells)."""
    result = np.zeros((len(values), count))
    result[np.arange(len(values)), cells] = values
    return result

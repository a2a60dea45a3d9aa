"""Noisy answers of the sources of all trials, and the errors of the resulting maps."""

from dataclasses import dataclass

import numpy as np

from benchmarks.shift.grid import (
    BINS,
    CLASSES,
    EPSILONS,
    FIRST_OF,
    PICTURES,
    POINTS,
    RECORDS,
    SIZE_OF,
    SOURCES,
)
from benchmarks.shift.tables import Tables, column
from veracal._types import Floats, Ints
from veracal.calibration.bins import Bins, bin_indices

REST = PICTURES - RECORDS


@dataclass(frozen=True, eq=False)
class Sources:
    """What the sources answer, in arrays of shape (trials, points).

    Attributes
    ----------
    tables : Tables
    rng : Generator
        Seeded, since this is a benchmark on public records.
    private : bool
        Whether there is noise at all.
    factor : float
        Of every epsilon of the grid.

    Notes
    -----
    The noise of d sources is drawn as a whole: sums of d discrete Laplace variables are
    differences of two negative binomial ones, exactly. Gaps are in steps of 2^-20, so fine
    that differences of Gamma variables are taken in place of them.
    """

    tables: Tables
    rng: np.random.Generator
    private: bool = True
    factor: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        """Trials and points."""
        return self.tables.trials, len(POINTS)

    def gap(self, temperature: Floats, share: float) -> Floats:
        """Right predictions minus confidences."""
        exact = self._at(self.tables.gaps, temperature).sum(axis=-1)
        return exact + self._laplace(share)

    def gaps(self, temperature: Floats, share: float) -> Floats:
        """The same by bin, of shape (trials, points, bins)."""
        return self._at(self.tables.gaps, temperature) + self._laplace(share, entries=BINS)

    def loss(self, temperature: Floats, share: float, sensitivity: float) -> Floats:
        """Clamped negative log likelihood; an offset for each record changes no comparison."""
        exact = self._at(self.tables.losses, temperature)
        return exact + sensitivity * self._laplace(share)

    def counts(self, share: float) -> Floats:
        """Right and wrong predictions, of shape (trials, points, 2)."""
        exact = self.tables.counts[:, SIZE_OF].sum(axis=2)
        return exact + self._discrete(share, (2,))

    def bins(self, share: float, *, totals: bool) -> Floats:
        """Right and wrong predictions by bin, or right ones and all with twice the noise."""
        exact = self.tables.counts[:, SIZE_OF]
        if totals:
            right = exact[..., 0]
            exact = np.stack([right, exact.sum(axis=-1)], axis=-1)
        return exact + self._discrete(share / (2 if totals else 1), (BINS, 2))

    def first_gap(self, temperature: Floats) -> Floats:
        """The gap of the first source alone, without noise."""
        trials = np.arange(self.tables.trials)[:, None]
        return self.tables.first[column(temperature), trials, FIRST_OF]

    def std(self, share: float) -> Floats:
        """Standard deviation of the noise of a gap or a count, of shape (trials, points)."""
        level = np.sqrt(2 * SOURCES) / (share * self.factor * EPSILONS)
        return np.broadcast_to(level if self.private else 0 * level, self.shape)

    def _at(self, table: Floats, temperature: Floats) -> Floats:
        """Entries of a table by temperature, trial and size."""
        trials = np.arange(self.tables.trials)[:, None]
        result: Floats = table[column(temperature), trials, SIZE_OF].astype(np.float64)
        return result

    def _laplace(self, share: float, entries: int | None = None) -> Floats:
        """Sum of one Laplace variable a source."""
        shape = self.shape if entries is None else (*self.shape, entries)
        if not self.private:
            return np.zeros(shape)
        sources, scale = SOURCES, 1 / (share * self.factor * EPSILONS)
        if entries is not None:
            sources, scale = sources[:, None], scale[:, None]
        one, other = (self.rng.standard_gamma(np.broadcast_to(sources, shape)) for _ in "ab")
        return (one - other) * scale

    def _discrete(self, share: float, entries: tuple[int, ...]) -> Ints | Floats:
        """Sum of one discrete Laplace variable a source."""
        shape = (*self.shape, *entries)
        if not self.private:
            return np.zeros(shape)
        wide = (slice(None), *(None for _ in entries))
        success = -np.expm1(-share * self.factor * EPSILONS)[wide]
        one, other = (self.rng.negative_binomial(SOURCES[wide], success, shape) for _ in "ab")
        return one - other


def error(sources: Sources, temperature: Floats) -> Floats:
    """Calibration error of the rest of the pictures at a temperature, (trials, points)."""
    found = column(np.broadcast_to(temperature, sources.shape))
    table = sources.tables
    trials = np.arange(table.trials)[:, None]
    rest = table.all_gaps[found] - table.gaps[found, trials, SIZE_OF]
    result: Floats = np.abs(rest).sum(axis=-1) / REST
    return result


def plain_error(sources: Sources) -> Floats:
    """The same of scores as they are."""
    whole, taken = sources.tables.plain
    result: Floats = np.abs(whole - taken[:, SIZE_OF]).sum(axis=-1) / REST
    return result


def binned_error(sources: Sources, accuracies: Floats) -> Floats:
    """The same after the confidence of each bin became a number.

    Parameters
    ----------
    sources : Sources
    accuracies : array of shape (trials, points, bins)
    """
    table = sources.tables
    rest = table.all_counts - table.counts[:, SIZE_OF]
    gaps = rest[..., 0] - accuracies * rest.sum(axis=-1)
    new = bin_indices(accuracies, Bins(BINS))
    merged = np.stack([np.where(new == b, gaps, 0).sum(axis=-1) for b in range(BINS)], axis=-1)
    result: Floats = np.abs(merged).sum(axis=-1) / REST
    return result


def doubted_error(sources: Sources, temperature: Floats, doubt: Floats) -> Floats:
    """The same after a temperature and, at the largest one, doubt."""
    found = error(sources, temperature)
    for i in np.flatnonzero((doubt > 0).any(axis=0)):
        found[:, i] = np.where(
            doubt[:, i] > 0, _hot_error(sources, doubt[:, i], i), found[:, i]
        )
    return found


def _hot_error(sources: Sources, doubt: Floats, point: int) -> Floats:
    """Error of uniform mixing at the largest temperature: of all pictures, without the sources'."""
    table, used = sources.tables, sources.tables.order[:, : RECORDS[point]]
    mapped = (1 - doubt)[:, None] * table.hottest[used] + (doubt / CLASSES)[:, None]
    cells = np.arange(len(doubt))[:, None] * BINS + bin_indices(mapped, Bins(BINS))
    gaps = table.correct[used] - mapped
    taken = np.bincount(cells.ravel(), gaps.ravel(), len(doubt) * BINS).reshape(-1, BINS)
    result: Floats = np.abs(_of_all(table, doubt) - taken).sum(axis=1) / REST[point]
    return result


def _of_all(table: Tables, doubt: Floats) -> Floats:
    """Sums by bin of all pictures: bins of mapped confidences are intervals of sorted ones."""
    rank = np.argsort(table.hottest)
    sure, right = table.hottest[rank], table.correct[rank]
    slope, shift = (1 - doubt)[:, None], (doubt / CLASSES)[:, None]
    edges = (np.arange(1, BINS) / BINS - shift) / slope
    cut = np.searchsorted(sure, edges, side="right")
    ends = np.zeros((len(doubt), 1), int), np.full((len(doubt), 1), len(sure))
    cut = np.concatenate([ends[0], cut, ends[1]], axis=1)
    rights, sures = (np.concatenate([[0.0], np.cumsum(x)]) for x in (right, sure))
    counted = np.diff(cut, axis=1)
    mapped = slope * np.diff(sures[cut], axis=1) + shift * counted
    result: Floats = np.diff(rights[cut], axis=1) - mapped
    return result

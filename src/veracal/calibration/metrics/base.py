"""Shared parts of the metrics: checks, outcomes, sorting, bootstrap draws, bin totals.

Sorted arrays have one row per record but are stored column by column, because sorting and the
steps after it work along columns and are several times faster on contiguous memory.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Array, Bools, Floats, Ints
from veracal.calibration.bins import Bins, bin_indices
from veracal.data import Scores, read_only, row_numbers
from veracal.errors import DataError


def need_records(scores: Scores) -> Scores:
    """Return labeled scores of at least one record, or raise :class:`DataError`."""
    if not len(scores):
        raise DataError(
            scores.name, "at least one record", "none", "A mean needs at least one record."
        )
    _ = scores.known_labels
    return scores


def need_two_classes(scores: Scores, alternative: str) -> Scores:
    """Return labeled scores for two classes, or raise an error that names the alternative."""
    need_records(scores)
    if scores.n_classes != 2:
        raise DataError(
            scores.name,
            "scores for two classes",
            f"{scores.n_classes} classes",
            f"Use {alternative}, or join classes with Scores.merge.",
        )
    return scores


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Events with their predicted probabilities.

    The event of a record is that its predicted class is correct (:func:`top_label`), or that it
    belongs to the second of two classes (:func:`second_class`). Both arrays have shape (n,).
    """

    probability: Floats
    happened: Bools


def second_class(scores: Scores) -> Outcomes:
    """Predicted probability of the second of two classes, and whether it is the label."""
    probability = scores.probabilities[:, 1].astype(np.float64)
    return Outcomes(probability, scores.known_labels == 1)


def log_odds(scores: Scores) -> Floats:
    r"""Log odds :math:`\log p_1 - \log p_0` of the second of two classes.

    For logits it is their difference, without the rounding of probabilities; a probability of
    0 gives an infinite value.
    """
    logits = scores.logits.astype(np.float64)
    with np.errstate(over="ignore"):
        result: Floats = logits[:, 1] - logits[:, 0]
    return result


_CELLS = 2**20  # numbers sorted at a time
_SMALL = 2**16  # up to here codes fit into 16 bits, which numpy sorts by radix


def sorted_columns(values: Array) -> tuple[Ints, Array]:
    """Row order that sorts each column, and the sorted values.

    The order of equal values is arbitrary, which makes sorting faster.
    """
    columns = np.ascontiguousarray(values.T)
    small = values.dtype == np.uint16  # numpy sorts these by radix if stable
    order: Ints = np.argsort(columns, axis=1, kind="stable" if small else None).T
    return order, in_order(columns.T, order)


def in_order(values: Array, order: Ints) -> Array:
    """The values of each column in an order given for that column."""
    n, k = values.shape
    flat = np.ascontiguousarray(values.T).reshape(-1)
    result: Array = flat.take(order.T + n * np.arange(k)[:, None]).T
    return result


def run_starts(ranked: Array) -> Ints:
    """Start index of the run of equal values that contains each sorted value."""
    columns = ranked.T
    first = np.zeros(columns.shape, dtype=np.int64)
    is_new_run = columns[:, 1:] != columns[:, :-1]
    np.multiply(is_new_run, np.arange(1, columns.shape[1]), out=first[:, 1:])
    result: Ints = np.maximum.accumulate(first, axis=1).T
    return result


def codes(values: Array) -> Ints:
    """Integer codes with the order of the values of each column, ties included."""
    n, k = values.shape
    result: Ints = np.empty((n, k), dtype=np.uint16 if n <= _SMALL else np.int64)
    width = max(1, _CELLS // max(1, n))
    for start in range(0, k, width):
        columns = slice(start, start + width)
        order, ranked = sorted_columns(values[:, columns])
        starts = run_starts(ranked).astype(result.dtype)
        np.put_along_axis(result[:, columns], order, starts, axis=0)
    return result


Summary = Callable[[Scores], Array]  # one row for each record, whatever its label

PROBABILITIES: Summary = attrgetter("probabilities")
_LOG_PROBABILITIES: Summary = attrgetter("log_probabilities")
_PREDICTIONS: Summary = attrgetter("predictions")


@dataclass(frozen=True, eq=False, repr=False)
class Draws(Scores):
    """Scores whose rows are taken from other scores, as in a bootstrap.

    Row-wise values that do not depend on labels are computed once for the original scores and
    then indexed. Every metric gives the same value as for plain scores with these rows.
    """

    whole: Scores = field(kw_only=True)  # the original scores
    rows: Ints = field(kw_only=True)  # indices of their rows, of shape (n,)
    _summaries: dict[Any, Array] = field(default_factory=dict, kw_only=True)  # of all rows
    _indexed: dict[Any, Array] = field(default_factory=dict, kw_only=True)  # of these rows

    @classmethod
    def of(cls, scores: Scores) -> Self:
        """All rows of labeled scores, without groups and units."""
        return cls(
            scores.values,
            scores.kind,
            scores.classes,
            scores.labels,
            name=scores.name,
            whole=scores,
            rows=np.arange(len(scores)),
        )

    def take(self, index: ArrayLike) -> Self:
        """Select rows by ``index`` (numbers or a mask), in its order."""
        rows = row_numbers(index, len(self))
        return super().take(rows)._changed(rows=self.rows[rows], _indexed={})

    def relabel(self, labels: Ints) -> Self:
        """The same rows with other labels, as class indices."""
        return self._changed(labels=labels)

    @property
    def probabilities(self) -> Floats:
        """Probabilities of shape (n, k)."""
        return self.summarize(PROBABILITIES)

    @property
    def log_probabilities(self) -> Floats:
        """Logarithms of the probabilities."""
        return self.summarize(_LOG_PROBABILITIES)

    @property
    def predictions(self) -> Ints:
        """Index of the largest value of each row; ties go to the first."""
        return self.summarize(_PREDICTIONS)

    def summarize(self, summary: Summary, *, coded: bool = False) -> Array:
        """A row-wise summary at these rows, computed once; optionally as codes."""
        key = summary, coded
        if key not in self._summaries:
            values = summary(self.whole)
            self._summaries[key] = codes(values) if coded else values
        if key not in self._indexed:
            self._indexed[key] = read_only(self._summaries[key].take(self.rows, axis=0))
        return self._indexed[key]


def sortable(scores: Scores, summary: Summary, values: Array | None = None) -> Array:
    """A summary of shape (n, k), or for bootstrap draws codes of the same order.

    Pass ``values`` if the summary is already computed.
    """
    if isinstance(scores, Draws):
        return scores.summarize(summary, coded=True)
    return summary(scores) if values is None else values


_BYTES = 960_000  # processed at a time, to fit into the processor's cache
_WIDE = 64  # with this many classes numpy's row-wise maximum is fast enough


def top_label(scores: Scores) -> Outcomes:
    """Confidence in double precision and correctness of every record, in blocks."""
    confidence, correct = np.empty(len(scores)), np.empty(len(scores), dtype=bool)
    start = 0
    for part in top_label_blocks(scores):
        stop = start + len(part.happened)
        confidence[start:stop], correct[start:stop] = part.probability, part.happened
        start = stop
    return Outcomes(confidence, correct)


def top_label_blocks(scores: Scores) -> Iterator[Outcomes]:
    """Confidence and correctness of one block of records after another.

    The results equal ``scores.confidence`` and ``scores.correct``; ties go to the first class.
    """
    if isinstance(scores, Draws):
        yield Outcomes(scores.summarize(confidence_column)[:, 0], scores.correct)
        return
    labels, values, k = scores.known_labels, scores.values, scores.n_classes
    rows = max(1, min(_BYTES // (k * values.itemsize), len(scores)))
    buffer, starts = np.empty((3, rows * k), dtype=values.dtype), np.arange(rows) * k
    for start in range(0, len(scores), rows):
        part, block_labels = values[start : start + rows], labels[start : start + rows]
        # The label's score and the largest other one say whether the prediction is correct,
        # without an argmax, which is slower than a maximum.
        others = buffer[0, : part.size].reshape(part.shape)
        np.copyto(others, part)
        flat, index = others.reshape(-1), starts[: len(block_labels)] + block_labels
        own = flat.take(index, mode="clip")
        flat[index] = -np.inf
        rival = _largest(others, buffer[1:])
        correct, ties = own > rival, np.flatnonzero(own == rival)
        if len(ties):
            correct[ties] = part[ties].argmax(axis=1) == block_labels[ties]
        top = np.maximum(own, rival)
        yield Outcomes(
            top if scores.kind == "probabilities" else _confidence(part, top), correct
        )


def confidence_column(scores: Scores) -> Floats:
    """Confidence of every record, of shape (n, 1)."""
    return top_label(scores).probability[:, None]


def _largest(values: Floats, buffer: Floats) -> Floats:
    """Largest value of each row.

    Rows are short and numerous, so they are not reduced one by one: maxima over windows of
    2, 4, 8, … numbers are computed over the flat array, and two windows cover a row.
    """
    k = values.shape[1]
    if k >= _WIDE:
        result: Floats = values.max(axis=1)
        return result
    flat, width = values.reshape(-1), 1
    while 2 * width <= k:
        out, buffer = buffer[0, : len(flat) - width], buffer[::-1]
        flat, width = np.maximum(flat[:-width], flat[width:], out=out), 2 * width
    return np.maximum(flat[::k], flat[k - width :: k])


def _confidence(logits: Floats, top: Floats) -> Floats:
    r"""Top probability :math:`1 / \sum_j e^{z_j - \max z}`."""
    with np.errstate(over="ignore"):  # an infinite difference gives the correct limit
        gaps = logits - top[:, None].astype(np.float64)
        result: Floats = 1 / np.exp(gaps, out=gaps).sum(axis=1)
    return result


@dataclass(frozen=True, eq=False)
class BinTotals:
    r"""Number of events, number of occurrences and sum of probabilities in each bin.

    Totals of two sets of events add up to those of their union, with a rounding error that does
    not grow with the number of blocks: sums carry their rounding error (Knuth, The Art of
    Computer Programming, vol. 2, §4.2.2, theorem B).

    """

    bins: Bins
    counts: Ints
    happened: Ints
    probability: Floats  # sums of probability
    rest: Floats  # their rounding errors

    @classmethod
    def of(cls, parts: Iterable[Outcomes], bins: Bins) -> "BinTotals":
        """Totals of the events of all blocks."""
        size = 2 * bins.count
        cells: Ints = np.zeros(size, dtype=np.int64)
        sums: Floats = np.zeros(size)
        rest: Floats = np.zeros(size)
        for part in parts:
            index = 2 * bin_indices(part.probability, bins) + part.happened
            cells += np.bincount(index, minlength=size)
            sums, lost = two_sum(sums, sums_by(index, part.probability, size))
            rest += lost
        wrong, correct = cells.reshape(-1, 2).T
        total, lost = two_sum(*sums.reshape(-1, 2).T)
        return cls(
            bins, wrong + correct, correct, total, rest.reshape(-1, 2).sum(axis=1) + lost
        )

    def __add__(self, other: "BinTotals") -> "BinTotals":
        if self.bins != other.bins:
            raise ValueError(f"Expected totals over {self.bins!r}, got {other.bins!r}.")
        probability, lost = two_sum(self.probability, other.probability)
        return BinTotals(
            self.bins,
            self.counts + other.counts,
            self.happened + other.happened,
            probability,
            self.rest + other.rest + lost,
        )

    @property
    def n(self) -> int:
        """Number of events."""
        return int(self.counts.sum())

    @property
    def gaps(self) -> Floats:
        """Sum of probabilities minus occurrences in each bin, of shape (bins.count,)."""
        result: Floats = (self.probability - self.happened) + self.rest
        return result


def gap_totals(parts: Iterable[Outcomes], bins: Bins) -> Floats:
    """Equal to :attr:`BinTotals.gaps`, in half the time."""
    sums: Floats = np.zeros(bins.count)
    rest: Floats = np.zeros(bins.count)
    for part in parts:
        gaps = np.subtract(part.probability, part.happened, dtype=np.float64)
        index = bin_indices(part.probability, bins)
        sums, lost = two_sum(sums, sums_by(index, gaps, bins.count))
        rest += lost
    result: Floats = sums + rest
    return result


def sums_by(index: Ints, values: Floats, size: int) -> Floats:
    """Sum of the values at each index."""
    return np.bincount(index, values, size).astype(np.float64, copy=False)


def two_sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Sum and its rounding error, which together equal a + b exactly."""
    total = a + b
    rounded_b = total - a
    return total, (a - (total - rounded_b)) + (b - rounded_b)

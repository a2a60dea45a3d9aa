"""What a metric asks of scores before it looks at them.

Probabilities of events, and whether they happened: what calibration is a property of.

Sorted columns, in which equal values are one.

Arrays have a row for each record, but lie column by column in memory: sorting and whatever
follows go down the columns, and take a fraction of the time there.

Records drawn again and again, of which everything that costs is found once.

The confidence of each prediction, and whether it is right.

Totals by bin, which add up over blocks of records.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Array, Bools, Floats, Ints
from veracal.calibration.bins import Bins, places
from veracal.data import Scores, frozen, row_numbers
from veracal.errors import DataError


def need_records(scores: Scores) -> Scores:
    """Return labeled scores of at least one record, or raise :class:`DataError`."""
    if not len(scores):
        raise DataError(
            scores.name, "at least one record", "none", "A mean over nobody has no value."
        )
    _ = scores.known_labels
    return scores


def need_two_classes(scores: Scores, instead: str) -> Scores:
    """Return labeled scores for two classes, or name the metric for more of them."""
    need_records(scores)
    if scores.n_classes != 2:
        raise DataError(
            scores.name,
            "scores for two classes",
            f"{scores.n_classes} classes",
            f"Use {instead}, or join classes with Scores.merge.",
        )
    return scores


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Events with the probability each was given.

    The event of a record may be that its predicted class is right (top label, see
    :func:`~veracal.calibration.metrics.base.top_label`), or that it belongs to the
    second of two classes (binary, see :func:`second_class`).

    Attributes
    ----------
    probability : array of floats of shape (n,)
    happened : array of bools of shape (n,)
    """

    probability: Floats
    happened: Bools


def second_class(scores: Scores) -> Outcomes:
    """Probability of the second of two classes, and whether the label is that class."""
    probability = scores.probabilities[:, 1].astype(np.float64)
    return Outcomes(probability, scores.known_labels == 1)


def log_odds(scores: Scores) -> Floats:
    r"""Log odds :math:`\log p_1 - \log p_0` of the second of two classes.

    From logits it is their difference, without the loss of going through probabilities; a
    probability of 0 gives an infinity.
    """
    logits = scores.logits.astype(np.float64)
    with np.errstate(over="ignore"):
        result: Floats = logits[:, 1] - logits[:, 0]
    return result


_CELLS = 2**20  # numbers sorted at a time
_SMALL = 2**16  # numbers that 16 bits tell apart, which are sorted without comparing them


def sorted_columns(values: Array) -> tuple[Ints, Array]:
    """Rows of each column from small to large, and the values in that order.

    Equal values come in no particular order, which takes a fraction of the time.
    """
    columns = np.ascontiguousarray(values.T)
    small = values.dtype == np.uint16  # sorted by radix, if stably
    order: Ints = np.argsort(columns, axis=1, kind="stable" if small else None).T
    return order, in_order(columns.T, order)


def in_order(values: Array, order: Ints) -> Array:
    """Rows of each column in an order of its own."""
    n, k = values.shape
    flat = np.ascontiguousarray(values.T).reshape(-1)
    result: Array = flat.take(order.T + n * np.arange(k)[:, None]).T
    return result


def run_starts(ranked: Array) -> Ints:
    """Where the run of equal values begins that each sorted value is in."""
    columns = ranked.T
    first = np.zeros(columns.shape, dtype=np.int64)
    begins = columns[:, 1:] != columns[:, :-1]
    np.multiply(begins, np.arange(1, columns.shape[1]), out=first[:, 1:])
    result: Ints = np.maximum.accumulate(first, axis=1).T
    return result


def mean_ranks(ranked: Array) -> Floats:
    """Ranks from 1 of sorted values, equal ones sharing their mean."""
    n, k = ranked.shape
    first = run_starts(ranked).T
    run = first + n * np.arange(k)[:, None]
    lengths = np.bincount(run.reshape(-1), minlength=n * k)
    result: Floats = (first + (lengths.take(run) + 1) / 2).T
    return result


def codes(values: Array) -> Ints:
    """Integers in the order of the values of each column, equal where these are."""
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
    """Scores whose rows are rows of others, as in a bootstrap.

    What depends on one row alone, and not on its label, is found for the others once, and
    then taken like the rows. Every metric gives the figure of the same rows of plain scores.

    Attributes
    ----------
    whole : Scores
        The others.
    rows : array of ints of shape (n,)
        Which of them.
    """

    whole: Scores = field(kw_only=True)
    rows: Ints = field(kw_only=True)
    _found: dict[Any, Array] = field(default_factory=dict, kw_only=True)  # of the whole
    _taken: dict[Any, Array] = field(default_factory=dict, kw_only=True)  # of it, the rows

    @classmethod
    def of(cls, scores: Scores) -> Self:
        """Every row of labeled scores, without groups and units."""
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
        """Keep the rows of ``index`` (numbers or a mask), in its order."""
        rows = row_numbers(index, len(self))
        return super().take(rows)._changed(rows=self.rows[rows], _taken={})

    def relabeled(self, labels: Ints) -> Self:
        """Return the same rows with other labels, by position among the classes."""
        return self._changed(labels=labels)

    @property
    def probabilities(self) -> Floats:
        """Probabilities of shape (n, k)."""
        return self.known(PROBABILITIES)

    @property
    def log_probabilities(self) -> Floats:
        """Logarithms of the probabilities."""
        return self.known(_LOG_PROBABILITIES)

    @property
    def predictions(self) -> Ints:
        """Position of the largest value of each row, the first of equal ones."""
        return self.known(_PREDICTIONS)

    def known(self, summary: Summary, *, coded: bool = False) -> Array:
        """Rows of a summary of the whole, or of integers in its order."""
        key = summary, coded
        if key not in self._found:
            found = summary(self.whole)
            self._found[key] = codes(found) if coded else found
        if key not in self._taken:
            self._taken[key] = frozen(self._found[key].take(self.rows, axis=0))
        return self._taken[key]


def sortable(scores: Scores, summary: Summary, values: Array | None = None) -> Array:
    """A summary of shape (n, k), or, of draws, integers of the same order in every column.

    Whoever has the summary's ``values`` already passes them.
    """
    if isinstance(scores, Draws):
        return scores.known(summary, coded=True)
    return summary(scores) if values is None else values


_BYTES = 960_000  # worked on at a time: they stay in the processor's cache
_WIDE = 64  # from so many classes on, numpy's own row-wise maximum is fast enough


def top_label(scores: Scores) -> Outcomes:
    """Confidence in doubles and correctness of every record, without a copy of the scores."""
    confidence, correct = np.empty(len(scores)), np.empty(len(scores), dtype=bool)
    start = 0
    for part in top_label_blocks(scores):
        stop = start + len(part.happened)
        confidence[start:stop], correct[start:stop] = part.probability, part.happened
        start = stop
    return Outcomes(confidence, correct)


def top_label_blocks(scores: Scores) -> Iterator[Outcomes]:
    """Confidence and correctness, some records at a time.

    The results are those of ``scores.confidence`` and ``scores.correct``, whatever the
    blocks: of equal scores the first is the prediction.
    """
    if isinstance(scores, Draws):
        yield Outcomes(scores.known(confidence_column)[:, 0], scores.correct)
        return
    labels, values, k = scores.known_labels, scores.values, scores.n_classes
    rows = max(1, min(_BYTES // (k * values.itemsize), len(scores)))
    room, starts = np.empty((3, rows * k), dtype=values.dtype), np.arange(rows) * k
    for start in range(0, len(scores), rows):
        part, right = values[start : start + rows], labels[start : start + rows]
        own, rival = _own_and_rival(part, starts[: len(right)] + right, room)
        correct, ties = own > rival, np.flatnonzero(own == rival)
        if len(ties):
            correct[ties] = part[ties].argmax(axis=1) == right[ties]
        top = np.maximum(own, rival)
        yield Outcomes(
            top if scores.kind == "probabilities" else _confidence(part, top), correct
        )


def confidence_column(scores: Scores) -> Floats:
    """Confidence of every record, of shape (n, 1)."""
    return top_label(scores).probability[:, None]


def _own_and_rival(values: Floats, place: Ints, room: Floats) -> tuple[Floats, Floats]:
    """Score of the right class of each record, and the largest of the others.

    To compare the two says whether the prediction is right, without its position, which
    takes longer to find than the maximum.
    """
    others = room[0, : values.size].reshape(values.shape)
    np.copyto(others, values)
    flat = others.reshape(-1)
    own = flat.take(place, mode="clip")
    flat[place] = -np.inf
    return own, _largest(others, room[1:])


def _largest(values: Floats, room: Floats) -> Floats:
    """Largest number of each row.

    Rows are short and many, so they are not reduced one by one: the maximum over windows of
    2, 4, 8, … numbers is taken over all rows end to end, and two windows cover a row.
    """
    k = values.shape[1]
    if k >= _WIDE:
        result: Floats = values.max(axis=1)
        return result
    flat, width = values.reshape(-1), 1
    while 2 * width <= k:
        out, room = room[0, : len(flat) - width], room[::-1]
        flat, width = np.maximum(flat[:-width], flat[width:], out=out), 2 * width
    return np.maximum(flat[::k], flat[k - width :: k])


def _confidence(logits: Floats, top: Floats) -> Floats:
    r"""Top probability :math:`1 / \sum_j e^{z_j - \max z}`."""
    with np.errstate(over="ignore"):  # a difference beyond all floats is as good as any
        gaps = logits - top[:, None].astype(np.float64)
        result: Floats = 1 / np.exp(gaps, out=gaps).sum(axis=1)
    return result


@dataclass(frozen=True, eq=False)
class BinTotals:
    r"""How many events are in each bin, how many of them happened, and their probability.

    Totals of two sets of events add up to those of their union, up to rounding that does
    not grow with the number of blocks: sums carry what their last addition lost (Knuth, The
    Art of Computer Programming, vol. 2, §4.2.2, theorem B).

    Attributes
    ----------
    bins : Bins
    counts, happened : arrays of ints of shape (bins.count,)
    probability : array of doubles of shape (bins.count,)
        Sums of probability.
    rest : array of doubles of shape (bins.count,)
        What is missing from ``probability`` by rounding.
    """

    bins: Bins
    counts: Ints
    happened: Ints
    probability: Floats
    rest: Floats

    @classmethod
    def of(cls, parts: Iterable[Outcomes], bins: Bins) -> "BinTotals":
        """Add up events."""
        size = 2 * bins.count
        cells, sums, rest = np.zeros(size, dtype=np.int64), zeros(size), zeros(size)
        for part in parts:
            place = 2 * places(part.probability, bins) + part.happened
            cells += np.bincount(place, minlength=size)
            sums, lost = two_sum(sums, sums_by(place, part.probability, size))
            rest += lost
        wrong, right = cells.reshape(-1, 2).T
        total, lost = two_sum(*sums.reshape(-1, 2).T)
        return cls(bins, wrong + right, right, total, rest.reshape(-1, 2).sum(axis=1) + lost)

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
        """Probability minus what happened, summed by bin, of shape (bins.count,)."""
        result: Floats = (self.probability - self.happened) + self.rest
        return result


def gap_totals(parts: Iterable[Outcomes], bins: Bins) -> Floats:
    """:attr:`BinTotals.gaps` alone, in half the time."""
    sums, rest = zeros(bins.count), zeros(bins.count)
    for part in parts:
        gaps = np.subtract(part.probability, part.happened, dtype=np.float64)
        place = places(part.probability, bins)
        sums, lost = two_sum(sums, sums_by(place, gaps, bins.count))
        rest += lost
    result: Floats = sums + rest
    return result


def zeros(size: int) -> Floats:
    """Sums of nothing."""
    return np.zeros(size)


def sums_by(place: Ints, values: Floats, size: int) -> Floats:
    """Sum of the values of each place."""
    return np.bincount(place, values, size).astype(np.float64, copy=False)


def two_sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Sum, and what rounding took from it: together exactly a + b."""
    total = a + b
    kept = total - a
    return total, (a - (total - kept)) + (b - kept)

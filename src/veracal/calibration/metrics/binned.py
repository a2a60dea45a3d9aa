"""Calibration errors over bins of equal width.

Calibration errors over bins of equal mass.

Calibration error of every class, over bins of equal width.

Calibration error of cumulative sums.
"""

from dataclasses import dataclass

import numpy as np

from veracal import _checks
from veracal._types import Array, Bools, Floats, Ints
from veracal.calibration.bins import Bins, places
from veracal.calibration.metrics.base import (
    PROBABILITIES,
    BinTotals,
    Draws,
    confidence_column,
    gap_totals,
    in_order,
    need_records,
    need_two_classes,
    run_starts,
    second_class,
    sortable,
    sorted_columns,
    sums_by,
    top_label,
    top_label_blocks,
    two_sum,
    zeros,
)
from veracal.data import Scores


def bin_totals(scores: Scores, bins: int = 15) -> BinTotals:
    """Counts, right answers and confidence by bin of the top label."""
    return BinTotals.of(top_label_blocks(need_records(scores)), Bins(bins))


def top_label_gaps(scores: Scores, bins: int) -> Floats:
    """Confidence minus right answers, summed by bin of the top label."""
    return gap_totals(top_label_blocks(need_records(scores)), Bins(bins))


def ece(scores: Scores, bins: int = 15) -> float:
    r"""Top-label expected calibration error over bins of equal width.

    .. math::
        \mathrm{ECE} = \sum_b \frac{n_b}{n}
            \lvert \mathrm{acc}(b) - \mathrm{conf}(b) \rvert

    with accuracy and mean confidence of the predictions whose confidence is in bin b
    (Naeini et al. 2015; Guo et al. 2017, eq. 3, https://arxiv.org/abs/1706.04599). Bins are
    :math:`(b/m, (b+1)/m]`, and the first holds 0, so that 1 is in the last.

    Parameters
    ----------
    scores : Scores
        Labeled, of at least one record.
    bins : int
        15 as in Guo et al.; Zhang et al. (https://arxiv.org/abs/2210.08248), whose
        recalibration is reproduced here, use 10.

    Returns
    -------
    float in [0, 1]

    Notes
    -----
    The figure is a plain function of the records, hence *internal* where they are private.
    It is biased upward: a perfectly calibrated classifier shows about 0.03 at 1,000
    records. See :func:`debiased_l2` and :func:`smooth_ece`.

    Examples
    --------
    >>> ece(Scores.from_probabilities([[0.25, 0.75], [0.25, 0.75]], [1, 0]))
    0.25
    """
    return _mean(np.abs(top_label_gaps(scores, bins)), len(scores))


def binary_ece(scores: Scores, bins: int = 15) -> float:
    r"""Binary expected calibration error: of the probability of the second of two classes.

    The bins of :func:`ece`, filled by :math:`p_i`, the probability of the second class,
    against :math:`1[y_i = 1]`. For two classes this is not the top-label figure: a
    prediction of 0.1 stays at 0.1 here and is one of 0.9 for the other class there.
    """
    outcomes = second_class(need_two_classes(scores, "ece or sce"))
    return _mean(np.abs(gap_totals([outcomes], Bins(bins))), len(scores))


def mce(scores: Scores, bins: int = 15) -> float:
    r"""Top-label maximum calibration error, :math:`\max_b |\mathrm{acc}(b)-\mathrm{conf}(b)|`.

    Over the bins that hold a record (Naeini et al. 2015). One record alone in its bin
    decides it: read it beside the counts of :func:`~veracal.calibration.curve`.
    """
    return largest_gap(bin_totals(scores, bins))


def over_confidence(scores: Scores, bins: int = 15) -> float:
    r"""Part of the top-label ECE from bins whose confidence exceeds their accuracy.

    .. math:: \sum_b \frac{n_b}{n} \max(0, \mathrm{conf}(b) - \mathrm{acc}(b))

    It adds up to :func:`ece` with :func:`under_confidence`, and their difference is
    :func:`confidence_gap`.
    """
    return _mean(np.maximum(top_label_gaps(scores, bins), 0), len(scores))


def under_confidence(scores: Scores, bins: int = 15) -> float:
    """Part of the top-label ECE from bins whose accuracy exceeds their confidence.

    See :func:`over_confidence`.
    """
    return _mean(np.maximum(-top_label_gaps(scores, bins), 0), len(scores))


def confidence_gap(scores: Scores) -> float:
    """Mean confidence of the top label minus accuracy: positive for the overconfident."""
    return _mean(top_label_gaps(scores, 1), len(scores))


def largest_gap(totals: BinTotals) -> float:
    """Maximum calibration error of totals by bin."""
    held = totals.counts > 0
    return float(np.max(np.abs(totals.gaps[held]) / totals.counts[held]))


def _mean(parts: Floats, n: int) -> float:
    """Sum of parts over a number of records."""
    return float(parts.sum() / n)


_CELLS = 2**14  # numbers sorted at a time: they stay in the processor's cache


def ace(scores: Scores, bins: int = 15) -> float:
    r"""Top-label adaptive calibration error: :func:`ece` over bins of equal mass.

    Predictions are sorted by confidence and cut into ``bins`` pieces of sizes that differ by
    at most one (fewer pieces where there are fewer records). Equal confidences are never
    parted: all of them go where the first one is.

    Equal to ``get_ece_em`` of Kumar et al. (2019, https://arxiv.org/abs/1909.10155). What
    Nixon et al. (2019) call ACE averages over classes: :func:`classwise_ace`.
    """
    outcomes = top_label(need_records(scores))
    values = outcomes.probability[:, None]
    ranked = sortable(scores, confidence_column, values)
    gaps = _gaps(ranked, values, outcomes.happened[:, None], bins)
    return float(np.abs(gaps).sum() / len(scores))


def classwise_ace(scores: Scores, bins: int = 15) -> float:
    r"""Classwise adaptive calibration error, averaged over all classes.

    .. math::
        \frac{1}{K} \sum_k \sum_r \frac{n_{rk}}{n}
            \lvert \mathrm{freq}(r, k) - \mathrm{conf}(r, k) \rvert

    where the records are cut, for each class anew, into pieces r of equal mass by their
    probability of class k (Nixon et al. 2019, eq. 4, https://arxiv.org/abs/1904.01685,
    weighted by what pieces really hold). Equal probabilities are never parted. A class that
    no record has counts like any other.
    """
    need_records(scores)
    width, total, probabilities = max(1, _CELLS // len(scores)), 0.0, scores.probabilities
    ranked = sortable(scores, PROBABILITIES, probabilities)
    for start in range(0, scores.n_classes, width):
        columns = slice(start, start + width)
        own = scores.known_labels[:, None] == np.arange(scores.n_classes)[columns]
        total += np.abs(_gaps(ranked[:, columns], probabilities[:, columns], own, bins)).sum()
    return float(total / (len(scores) * scores.n_classes))


def debiased_l2(scores: Scores, bins: int = 15) -> float:
    r"""Top-label root-mean-square calibration error, with its sampling bias taken off.

    .. math::
        \sqrt{\max\Bigl(0, \sum_b \frac{n_b}{n} \Bigl[
            (\mathrm{acc}(b) - \mathrm{conf}(b))^2
            - \frac{\mathrm{acc}(b)(1 - \mathrm{acc}(b))}{n_b - 1} \Bigr]\Bigr)}

    over the bins of equal mass of :func:`ace` (Kumar et al. 2019, definition 5.1,
    https://arxiv.org/abs/1909.10155). A bin of one record tells nothing of its own
    variance and contributes 0. The square is unbiased before it is cut off at 0.
    """
    outcomes = top_label(need_records(scores))
    ranked = sortable(scores, confidence_column, outcomes.probability[:, None])
    order, piece = equal_mass(ranked, bins)
    happened, piece = outcomes.happened[order[:, 0]], piece[:, 0]
    counts = np.bincount(piece)
    gaps = np.bincount(piece, outcomes.probability[order[:, 0]] - happened)
    held = counts > 1
    n, right = counts[held], np.bincount(piece, happened)[held]
    squares = (gaps[held] / n) ** 2 - right * (n - right) / (n**2.0 * (n - 1))
    return float(max(0.0, (squares * n).sum() / len(scores)) ** 0.5)


def equal_mass(values: Array, bins: int) -> tuple[Ints, Ints]:
    """Sort each column and cut it into pieces of equal mass that do not part equal values.

    Parameters
    ----------
    values : array of shape (n, k)
    bins : int

    Returns
    -------
    order : array of ints of shape (n, k)
        Rows of each column from small to large.
    piece : array of ints of shape (n, k)
        The piece of each of them, in that order.
    """
    _checks.whole(bins=bins)
    order, ranked = sorted_columns(values)
    n, pieces = len(values), min(int(bins), len(values))
    sizes = np.full(pieces, n // pieces) + (np.arange(pieces) < n % pieces)
    return order, np.repeat(np.arange(pieces), sizes).take(run_starts(ranked).T).T


def _gaps(ranked: Array, probabilities: Floats, happened: Bools, bins: int) -> Floats:
    """Probability minus what happened, summed over each piece of each column."""
    order, piece = equal_mass(ranked, bins)
    gaps = in_order(np.subtract(probabilities, happened, dtype=np.float64), order)
    pieces, k = int(piece.max()) + 1, piece.shape[1]
    cells = piece.T + pieces * np.arange(k)[:, None]
    return sums_by(cells.ravel(), gaps.T.ravel(), pieces * k)


_CLASSWISE_CELLS = 2**18  # probabilities binned at a time


def sce(scores: Scores, bins: int = 15) -> float:
    r"""Classwise (static) calibration error, averaged over all classes.

    .. math::
        \mathrm{SCE} = \frac{1}{K} \sum_k \sum_b \frac{n_{bk}}{n}
            \lvert \mathrm{freq}(b, k) - \mathrm{conf}(b, k) \rvert

    where bin b of class k holds the records whose probability of class k is in bin b, the
    bins being those of :func:`ece` (Nixon et al. 2019, eq. 2,
    https://arxiv.org/abs/1904.01685). A class that no record has counts like any other: its
    probabilities should be near 0.
    """
    need_records(scores)
    cells, k = _Cells(Bins(bins)), scores.n_classes
    size = k * cells.bins.count
    sums, rest, rows = zeros(size), zeros(size), max(_CLASSWISE_CELLS, size) // k
    for start in range(0, len(scores), rows):
        part = scores.take(np.arange(start, min(start + rows, len(scores))))
        probabilities = part.probabilities
        place = part.known(cells) if isinstance(part, Draws) else cells.of(probabilities)
        gaps = probabilities.astype(np.float64)
        gaps[np.arange(len(part)), part.known_labels] -= 1
        sums, lost = two_sum(sums, sums_by(place.ravel(), gaps.ravel(), size))
        rest += lost
    return float(np.abs(sums + rest).sum() / (len(scores) * k))


@dataclass(frozen=True)
class _Cells:
    """Number of the bin of every probability, those of one class after those of another."""

    bins: Bins

    def __call__(self, scores: Scores) -> Ints:
        return self.of(scores.probabilities)

    def of(self, probabilities: Floats) -> Ints:
        """Cells of an array of shape (n, k)."""
        columns = np.arange(probabilities.shape[1]) * self.bins.count
        result: Ints = places(probabilities, self.bins) + columns
        return result


def ks(scores: Scores) -> float:
    r"""Top-label Kolmogorov-Smirnov calibration error.

    .. math::
        \max_t \Bigl\lvert \frac{1}{n} \sum_{i : \hat p_i \le t}
            (\hat p_i - 1[\hat y_i = y_i]) \Bigr\rvert

    the largest gap between what was promised and what was kept, up to any confidence t
    (Gupta et al. 2021, section 3, https://arxiv.org/abs/2006.12800). It needs no bins, and
    equal confidences enter together, so that the order of records does not matter.
    """
    outcomes = top_label(need_records(scores))
    values = sortable(scores, confidence_column, outcomes.probability[:, None])
    (order,), (ranked,) = (columns.T for columns in sorted_columns(values))
    sums = np.cumsum(outcomes.probability[order] - outcomes.happened[order])
    last = np.append(ranked[1:] > ranked[:-1], True)  # of each run of equal confidences
    return float(np.abs(sums[last]).max() / len(scores))

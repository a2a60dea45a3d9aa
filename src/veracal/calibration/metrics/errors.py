"""Calibration errors: with bins of equal width or mass, smoothed, and Kolmogorov-Smirnov."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.fft import dct, idct
from scipy.optimize import brentq

from veracal import _checks
from veracal._types import Array, Bools, Floats, Ints
from veracal.calibration.bins import Bins, bin_indices
from veracal.calibration.metrics.base import (
    PROBABILITIES,
    BinTotals,
    Draws,
    Outcomes,
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
)
from veracal.data import Scores


def bin_totals(scores: Scores, bins: int = 15) -> BinTotals:
    """Counts, correct predictions and confidence sums by bin of the top label."""
    return BinTotals.of(top_label_blocks(need_records(scores)), Bins(bins))


def top_label_gaps(scores: Scores, bins: int) -> Floats:
    """Sum of confidence minus correct predictions by bin of the top label."""
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
        15 as in Guo et al.; Zhang et al. (https://arxiv.org/abs/2210.08248) use 10.

    Returns
    -------
    float in [0, 1]

    Notes
    -----
    The value is an exact function of the records, and therefore *internal* if they are private.
    It is biased upward: a perfectly calibrated classifier has about 0.03 at 1,000 records. See
    :func:`debiased_l2` and :func:`smooth_ece`.

    Examples
    --------
    >>> ece(Scores.from_probabilities([[0.25, 0.75], [0.25, 0.75]], [1, 0]))
    0.25
    """
    return _mean(np.abs(top_label_gaps(scores, bins)), len(scores))


def binary_ece(scores: Scores, bins: int = 15) -> float:
    r"""Binary expected calibration error: of the probability of the second of two classes.

    The bins of :func:`ece`, applied to :math:`p_i`, the probability of the second class, and
    to :math:`1[y_i = 1]`. It differs from the top-label error: a prediction of 0.1 stays in
    its bin here, and counts as 0.9 for the other class there.
    """
    outcomes = second_class(need_two_classes(scores, "ece or sce"))
    return _mean(np.abs(gap_totals([outcomes], Bins(bins))), len(scores))


def mce(scores: Scores, bins: int = 15) -> float:
    r"""Top-label maximum calibration error, :math:`\max_b |\mathrm{acc}(b)-\mathrm{conf}(b)|`.

    Over the nonempty bins (Naeini et al. 2015). A single record in a bin can determine the
    value: compare the counts of :func:`~veracal.calibration.curve`.
    """
    return largest_gap(bin_totals(scores, bins))


def over_confidence(scores: Scores, bins: int = 15) -> float:
    r"""Part of the top-label ECE from bins whose confidence exceeds their accuracy.

    .. math:: \sum_b \frac{n_b}{n} \max(0, \mathrm{conf}(b) - \mathrm{acc}(b))

    Its sum with :func:`under_confidence` is :func:`ece`, and their difference is
    :func:`confidence_gap`.
    """
    return _mean(np.maximum(top_label_gaps(scores, bins), 0), len(scores))


def under_confidence(scores: Scores, bins: int = 15) -> float:
    """Part of the top-label ECE from bins whose accuracy exceeds their confidence.

    See :func:`over_confidence`.
    """
    return _mean(np.maximum(-top_label_gaps(scores, bins), 0), len(scores))


def confidence_gap(scores: Scores) -> float:
    """Mean top-label confidence minus accuracy; positive for an overconfident classifier."""
    return _mean(top_label_gaps(scores, 1), len(scores))


def largest_gap(totals: BinTotals) -> float:
    """Maximum calibration error of bin totals."""
    nonempty = totals.counts > 0
    return float(np.max(np.abs(totals.gaps[nonempty]) / totals.counts[nonempty]))


def _mean(parts: Floats, n: int) -> float:
    """Sum of the parts divided by the number of records."""
    return float(parts.sum() / n)


_CELLS = 2**14  # numbers sorted at a time, to fit into the processor's cache


def ace(scores: Scores, bins: int = 15) -> float:
    r"""Top-label adaptive calibration error: :func:`ece` over bins of equal mass.

    Predictions are sorted by confidence and divided into ``bins`` bins whose sizes differ by
    at most one (fewer bins if there are fewer records). Equal confidences stay together, in
    the bin of the first one.

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

    where the records are divided for each class into bins r of equal mass by their probability
    of class k (Nixon et al. 2019, eq. 4, https://arxiv.org/abs/1904.01685, weighted by the
    actual bin counts). Equal probabilities stay together. Classes without records count, too.
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
    r"""Top-label root-mean-square calibration error with its sampling bias subtracted.

    .. math::
        \sqrt{\max\Bigl(0, \sum_b \frac{n_b}{n} \Bigl[
            (\mathrm{acc}(b) - \mathrm{conf}(b))^2
            - \frac{\mathrm{acc}(b)(1 - \mathrm{acc}(b))}{n_b - 1} \Bigr]\Bigr)}

    over the bins of equal mass of :func:`ace` (Kumar et al. 2019, definition 5.1,
    https://arxiv.org/abs/1909.10155). A bin with one record
    has no variance estimate and contributes 0. The square is unbiased before it is clipped at
    0.
    """
    outcomes = top_label(need_records(scores))
    ranked = sortable(scores, confidence_column, outcomes.probability[:, None])
    order, bin = equal_mass(ranked, bins)
    happened, bin = outcomes.happened[order[:, 0]], bin[:, 0]
    counts = np.bincount(bin)
    gaps = np.bincount(bin, outcomes.probability[order[:, 0]] - happened)
    has_variance = counts > 1
    n, correct = counts[has_variance], np.bincount(bin, happened)[has_variance]
    squares = (gaps[has_variance] / n) ** 2 - correct * (n - correct) / (n**2.0 * (n - 1))
    return float(max(0.0, (squares * n).sum() / len(scores)) ** 0.5)


def equal_mass(values: Array, bins: int) -> tuple[Ints, Ints]:
    """Sort each column and divide it into bins of equal mass that keep equal values together.

    Returns the rows of each column from small to large, and in that order their bins.
    """
    _checks.whole(bins=bins)
    order, ranked = sorted_columns(values)
    n, n_bins = len(values), min(int(bins), len(values))
    sizes = np.full(n_bins, n // n_bins) + (np.arange(n_bins) < n % n_bins)
    return order, np.repeat(np.arange(n_bins), sizes).take(run_starts(ranked).T).T


def _gaps(ranked: Array, probabilities: Floats, happened: Bools, bins: int) -> Floats:
    """Sum of probability minus occurrences in each bin of each column."""
    order, bin = equal_mass(ranked, bins)
    gaps = in_order(np.subtract(probabilities, happened, dtype=np.float64), order)
    n_bins, k = int(bin.max()) + 1, bin.shape[1]
    cells = bin.T + n_bins * np.arange(k)[:, None]
    return sums_by(cells.ravel(), gaps.T.ravel(), n_bins * k)


_CLASSWISE_CELLS = 2**18  # probabilities binned at a time


def sce(scores: Scores, bins: int = 15) -> float:
    r"""Classwise (static) calibration error, averaged over all classes.

    .. math::
        \mathrm{SCE} = \frac{1}{K} \sum_k \sum_b \frac{n_{bk}}{n}
            \lvert \mathrm{freq}(b, k) - \mathrm{conf}(b, k) \rvert

    where bin b of class k holds the records whose probability of class k is in bin b of
    :func:`ece` (Nixon et al. 2019, eq. 2, https://arxiv.org/abs/1904.01685). Classes without
    records count, too: their probabilities should be near 0.
    """
    need_records(scores)
    cells, k = _Cells(Bins(bins)), scores.n_classes
    size = k * cells.bins.count
    sums: Floats = np.zeros(size)
    rest: Floats = np.zeros(size)
    rows = max(_CLASSWISE_CELLS, size) // k
    for start in range(0, len(scores), rows):
        part = scores.take(np.arange(start, min(start + rows, len(scores))))
        index = part.summarize(cells) if isinstance(part, Draws) else cells(part)
        gaps = part.probabilities.astype(np.float64)
        gaps[np.arange(len(part)), part.known_labels] -= 1
        sums, lost = two_sum(sums, sums_by(index.ravel(), gaps.ravel(), size))
        rest += lost
    return float(np.abs(sums + rest).sum() / (len(scores) * k))


@dataclass(frozen=True)
class _Cells:
    """Summary for :class:`Draws`: the bin of every probability, numbered class by class."""

    bins: Bins

    def __call__(self, scores: Scores) -> Ints:
        columns = np.arange(scores.n_classes) * self.bins.count
        result: Ints = bin_indices(scores.probabilities, self.bins) + columns
        return result


def ks(scores: Scores) -> float:
    r"""Top-label Kolmogorov-Smirnov calibration error.

    .. math::
        \max_t \Bigl\lvert \frac{1}{n} \sum_{i : \hat p_i \le t}
            (\hat p_i - 1[\hat y_i = y_i]) \Bigr\rvert

    the largest cumulative gap between confidence and accuracy up to any confidence t (Gupta et
    al. 2021, section 3, https://arxiv.org/abs/2006.12800). It needs no bins. Equal confidences
    are added together, so that the order of records does not matter.
    """
    outcomes = top_label(need_records(scores))
    values = sortable(scores, confidence_column, outcomes.probability[:, None])
    (order,), (ranked,) = (columns.T for columns in sorted_columns(values))
    sums = np.cumsum(outcomes.probability[order] - outcomes.happened[order])
    run_ends = np.append(ranked[1:] > ranked[:-1], True)  # of equal confidences
    return float(np.abs(sums[run_ends]).max() / len(scores))


_GRID = 2**12  # grid points of the unit interval
_ZERO_FROM = 39.0  # exp(-x²/2) underflows to 0 from here on
_BLOCK = 16_384  # events binned at a time


def smooth_ece(scores: Scores, *, bandwidth: float | None = None) -> float:
    r"""Top-label smooth calibration error, which is continuous in the scores.

    The residuals are smoothed by a Gaussian kernel :math:`K_\sigma` reflected at 0 and 1,

    .. math::
        \hat r_\sigma(t) = \frac{1}{n} \sum_i K_\sigma(t, p_i) (y_i - p_i), \qquad
        \mathrm{smECE}_\sigma = \int_0^1 \lvert \hat r_\sigma(t) \rvert \, dt,

    and the bandwidth is the fixed point :math:`\mathrm{smECE}_\sigma = \sigma`, which is
    unique since the left side falls in :math:`\sigma` (Błasiok & Nakkiran 2023, sections 3
    and 4, https://arxiv.org/abs/2309.12236).

    Parameters
    ----------
    scores : Scores
        Labeled, of at least one record.
    bandwidth : float > 0, optional
        A fixed :math:`\sigma` in place of the fixed point.

    Returns
    -------
    float in [0, 1]

    Notes
    -----
    The reflected Gaussian is diagonal in the cosine basis, so smoothing is a product with
    :math:`e^{-(\pi j \sigma)^2 / 2}` after a cosine transform. Each residual is interpolated
    linearly between the two nearest of 4,096 grid points; later steps do not depend on the
    number of records. The value is *internal* if records are private.
    """
    return _smooth(top_label_blocks(need_records(scores)), bandwidth)


def binary_smooth_ece(scores: Scores, *, bandwidth: float | None = None) -> float:
    """Binary smooth calibration error: of the probability of the second of two classes.

    See :func:`smooth_ece`, which is the same for the top label.
    """
    outcomes = second_class(need_two_classes(scores, "smooth_ece"))
    return _smooth([outcomes], bandwidth)


def _smooth(parts: Iterable[Outcomes], bandwidth: float | None) -> float:
    """Smooth calibration error of events, at a bandwidth or at the fixed point."""
    # Mean residuals on the grid, each interpolated between the two nearest points.
    residuals, n = np.zeros(_GRID), 0
    for part in parts:
        n += len(part.happened)
        for start in range(0, len(part.happened), _BLOCK):
            probability = part.probability[start : start + _BLOCK].astype(np.float64)
            gaps = part.happened[start : start + _BLOCK] - probability
            # Grid points are cell midpoints, with reflection at both ends.
            position = np.clip(probability * _GRID - 0.5, 0, _GRID - 1)
            left = np.minimum(position.astype(np.int32), _GRID - 2)
            right_part = (position - left) * gaps
            residuals += np.bincount(left, gaps - right_part, _GRID)
            residuals[1:] += np.bincount(left, right_part, _GRID - 1)
    waves = dct(residuals / n, norm="ortho")
    frequencies = np.pi * np.arange(_GRID)

    def error(sigma: float) -> float:
        scaled = frequencies * sigma
        n_nonzero = int(np.searchsorted(scaled, _ZERO_FROM))
        damped = np.zeros(_GRID)
        damped[:n_nonzero] = waves[:n_nonzero] * np.exp(-(scaled[:n_nonzero] ** 2) / 2)
        return float(np.abs(idct(damped, norm="ortho")).sum())

    if bandwidth is not None:
        _checks.positive(bandwidth=bandwidth)
        return min(error(bandwidth), 1.0)
    if error(0.0) <= 1e-15:
        return 0.0
    root = brentq(lambda sigma: error(sigma) - sigma, 0.0, 1.0 + 1e-9, xtol=1e-10)
    return min(float(root), 1.0)

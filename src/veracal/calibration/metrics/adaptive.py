"""Calibration errors over bins of equal mass."""

import numpy as np

from veracal import _checks
from veracal._types import Array, Bools, Floats, Ints
from veracal.calibration.metrics.demands import need_records
from veracal.calibration.metrics.draws import PROBABILITIES, sortable
from veracal.calibration.metrics.sorting import in_order, run_starts, sorted_columns
from veracal.calibration.metrics.top_label import confidence_column, top_label
from veracal.calibration.metrics.totals import sums_by
from veracal.data.scores import Scores

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

"""Calibration errors over bins of equal width."""

import numpy as np

from veracal._types import Floats
from veracal.calibration.bins import Bins
from veracal.calibration.metrics.demands import need_records, need_two_classes
from veracal.calibration.metrics.outcomes import second_class
from veracal.calibration.metrics.top_label import top_label_blocks
from veracal.calibration.metrics.totals import BinTotals, gap_totals
from veracal.data.scores import Scores


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

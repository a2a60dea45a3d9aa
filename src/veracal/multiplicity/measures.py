r"""How far runs of the same training disagree about a person.

A run gives each person a decision. With :math:`\hat p_c` the share of m runs that decide for
class c, everything here is a function of those shares (Kulynych et al. 2023,
https://arxiv.org/abs/2302.14517; the paper's formulas by their numbers).
"""

import numpy as np

from veracal import _checks
from veracal._types import Floats, Ints


def disagreement(positive: Ints, runs: int) -> Floats:
    r"""Disagreement about one of two decisions, Eq. 8.

    .. math:: \hat\mu = 4\,\frac{m}{m-1}\,\hat p\,(1 - \hat p)

    Four times the variance of the decision, without bias: the mean over the choice of runs is
    :math:`\mu = 4p(1-p)`, 1 for a coin and 0 where all runs would agree. It is also twice the
    share of pairs of runs that differ, so that it may exceed 1, up to m/(m-1).

    Parameters
    ----------
    positive : array of ints
        How many of the runs decided for the class, for each person (and class).
    runs : int
        Two or more.

    Examples
    --------
    >>> disagreement(np.array([0, 25, 50]), 50).round(4)
    array([0.    , 1.0204, 0.    ])
    """
    return 4 * decision_variance(positive, runs)


def decision_variance(positive: Ints, runs: int) -> Floats:
    r"""Variance of a decision over runs, without bias: a quarter of the disagreement."""
    check_runs(runs)
    share = np.asarray(positive, dtype=np.float64) / runs
    return runs / (runs - 1) * share * (1 - share)


def class_average(counts: Ints, runs: int) -> Floats:
    r"""Disagreement of each "class or not", mean over classes: at most :math:`4(K-1)/K^2`.

    .. math:: \frac{4}{K}\,\frac{m}{m-1}\,\Bigl(1 - \sum_c \hat p_c^2\Bigr)

    Parameters
    ----------
    counts : array of ints of shape (n, K)
    runs : int
    """
    found: Floats = disagreement(counts, runs).mean(axis=1)
    return found


def pooled_pairs(counts: Ints, runs: int) -> Floats:
    """Disagreement of every person and class as values of their own, of shape (n * K,).

    What the paper's Table 2 tells of ten classes, in whose summaries most values are small
    because most classes are out of the question for a person.
    """
    return disagreement(counts, runs).ravel()


def normalized(counts: Ints, runs: int) -> Floats:
    r"""Disagreement over K classes that is 1 where all of them are equally likely.

    .. math:: \frac{K}{K-1}\,\frac{m}{m-1}\,\Bigl(1 - \sum_c \hat p_c^2\Bigr)

    Without bias; for two classes it is :func:`disagreement`.

    Parameters
    ----------
    counts : array of ints of shape (n, K), K > 1
    runs : int

    Examples
    --------
    >>> normalized(np.array([[10, 10, 10], [30, 0, 0]]), 30).round(4)
    array([1.0345, 0.    ])
    """
    check_runs(runs)
    shares = np.asarray(counts, dtype=np.float64) / runs
    classes = shares.shape[1]
    if classes < 2:
        raise ValueError(f"Expected counts of two or more classes, got {classes}.")
    spread = 1 - np.square(shares).sum(axis=1)
    # Rounding leaves a hair below zero where all runs agree.
    found: Floats = np.maximum(classes / (classes - 1) * runs / (runs - 1) * spread, 0.0)
    return found


def expected_flip(counts: Ints, runs: int, deployed: Ints) -> Floats:
    """Share of runs that contradict a deployed model, for each person.

    Parameters
    ----------
    counts : array of ints of shape (n, K)
    runs : int
    deployed : array of ints in [0, K), of shape (n,)
        Its decisions.

    Notes
    -----
    If the deployed model is one of the runs, leave it out of the counts.
    """
    check_runs(runs, least=1)
    agreeing = np.asarray(counts)[np.arange(len(deployed)), deployed]
    found: Floats = 1 - agreeing / runs
    return found


def check_runs(runs: int, least: int = 2) -> None:
    """Refuse too few runs to tell anything from."""
    _checks.whole(runs=runs, least=least)

"""Private histogram binning."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from veracal import _checks
from veracal._types import Bools, Floats
from veracal.calibration.bins import Bins
from veracal.calibration.maps.nonparametric import Binned
from veracal.calibration.private.estimates import noisy_values, share_estimate
from veracal.calibration.private.session import (
    PrivateFitter,
    QuerySession,
    micro_epsilon_of,
)
from veracal.calibration.queries.binned import CorrectTotal, CorrectWrong
from veracal.queries import QueryRequest

Form = Literal["correct-wrong", "correct-total"]
FORMS = "correct-wrong", "correct-total"
_STEPS = 2.0**20  # grid steps of an accuracy between 0 and 1


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateBinning(PrivateFitter):
    r"""Histogram binning of the top label from noisy counts of predictions.

    Luo et al. 2020 (https://arxiv.org/abs/2008.09643) query the numbers C of correct
    predictions and N of all predictions, the form ``"correct-total"``. Correct and *wrong*
    predictions W have half the sensitivity, because a record counts in one of them:
    ``"correct-wrong"``. The accuracy of a bin is :math:`C / N` or :math:`C / (C + W)`, clipped
    to [0, 1]. A bin whose noisy number of records is not above the standard deviation of its
    noise counts as empty (the paper does not cover this case). It gets its center, which
    changes a confidence by at most half the width of a bin.

    Parameters
    ----------
    epsilon, micro_epsilon : float or int
        Cost for each privacy unit; one of the two.
    bins : int
    form : {"correct-wrong", "correct-total"}
    level : float
        Confidence level of the intervals.

    Attributes
    ----------
    map_ : Binned
    accuracies_ : list of Estimate
        The accuracy of each bin with an interval for noise and sampling, each at ``level``.
        The value is None for a bin that counts as empty.
    fallbacks_ : int
        Number of bins that count as empty.
    releases_, private_, statement_
        As in :class:`PrivateTemperature`.

    Guarantees
    ----------
    One query with sensitivity 1 under add-remove and 2 under replace-one; 2 and 4 for the form
    of the paper. Its cost is :meth:`event`, known before a record is read.
    """

    epsilon: float | None = None
    micro_epsilon: int | None = None
    bins: int = 15
    form: Form = "correct-wrong"
    level: float = 0.95

    covers = "the accuracies of all bins and the counts used for them"

    def _fit(self, session: QuerySession, queries: Sequence[QueryRequest]) -> Binned:
        release = session.ask(queries[0], "counts")
        bins, std = Bins(self.bins), release.noise_std
        first, second = release.values[0::2], release.values[1::2]
        values = noisy_values(release)
        pairs = list(zip(values[0::2], values[1::2], strict=True))
        if self.form == "correct-total":
            accuracies, known = bin_accuracies(first, second, std, bins)
            pairs = [(correct, total.minus(correct)) for correct, total in pairs]
        else:
            total_std = float(np.sqrt(2)) * std
            accuracies, known = bin_accuracies(first, first + second, total_std, bins)
        self.fallbacks_ = int((~known).sum())
        self.accuracies_ = []
        for (correct, wrong), share, is_known in zip(pairs, accuracies, known, strict=True):
            estimate, value = share_estimate(correct, wrong, self.level), float(share)
            if not is_known or estimate.low is None or estimate.high is None:
                estimate = replace(estimate, value=None, low=0.0, high=1.0)
            else:  # the value that the map uses, inside its interval
                low, high = min(estimate.low, value), max(estimate.high, value)
                estimate = replace(estimate, value=value, low=low, high=high)
            self.accuracies_.append(estimate)
        return Binned(bins, accuracies)

    def _queries(self) -> list[QueryRequest]:
        _checks.one_of(FORMS, form=self.form)
        _checks.open_fraction(level=self.level)
        query = CorrectTotal if self.form == "correct-total" else CorrectWrong
        total = micro_epsilon_of(self.epsilon, self.micro_epsilon)
        return [QueryRequest(query(Bins(self.bins)), total)]


def bin_accuracies(
    correct: Floats, total: Floats, total_std: float, bins: Bins
) -> tuple[Floats, Bools]:
    """Accuracy of each bin from correct and all predictions, and whether it is known.

    Parameters
    ----------
    correct, total : arrays of shape (..., bins)
        Noisy counts, which may be negative.
    total_std : float
        Standard deviation of the noise of each total; smaller totals count as empty.
    """
    known = total > total_std
    shares = np.clip(correct / np.where(known, total, 1.0), 0.0, 1.0)
    # Rounded to a public grid, so that a query about the map carries short exact numbers.
    rounded: Floats = np.rint(np.where(known, shares, bins.centers) * _STEPS) / _STEPS
    return rounded, known

"""Private histogram binning."""

from dataclasses import replace
from typing import Literal, Self

import numpy as np

from veracal import _checks
from veracal._types import Bools, Floats
from veracal.calibration.bins import Bins
from veracal.calibration.maps.nonparametric import Binned
from veracal.calibration.private.estimates import Noisy, noisy_numbers, share_estimate
from veracal.calibration.private.session import PricedQuery, PrivateFitter, price
from veracal.calibration.queries.binned import CorrectTotal, CorrectWrong
from veracal.data import Estimate
from veracal.queries import Release, Source

Form = Literal["correct-wrong", "correct-total"]
FORMS = "correct-wrong", "correct-total"
COVERS = "the accuracies of all bins, and the counts they were made of"
_STEPS = 2.0**20  # of an accuracy, from 0 to 1


class PrivateBinning(PrivateFitter):
    r"""Histogram binning of the top label from noisy counts of predictions.

    Luo et al. 2020 (https://arxiv.org/abs/2008.09643) ask for right predictions C and for all
    of them N, the form ``"correct-total"``. Right and *wrong* ones W have half the
    sensitivity, since a record is in one of them: ``"correct-wrong"``. The accuracy of a bin is
    :math:`C / N` or :math:`C / (C + W)`, clipped to [0, 1]; the paper is silent on what to do
    where N is zero or negative. Here a bin whose noisy number of records is not above the
    standard deviation of its own noise is one of which nothing is known. It gets its center: a
    confidence that stays as it was up to half the width of a bin.

    Parameters
    ----------
    epsilon, micro_epsilon : float or int
        What one unit of the records pays; one of the two.
    bins : int
    form : {"correct-wrong", "correct-total"}
    level : float
        Of the intervals.

    Attributes
    ----------
    map_ : Binned
    accuracies_ : list of Estimate
        The accuracy of each bin with an interval for the noise and for which records there
        were, each at the level. Where nothing is known the value is None.
    fallbacks_ : int
        Bins of which nothing is known.
    releases_, private_, statement_
        As of :class:`PrivateTemperature`.

    Guarantees
    ----------
    One question, whose sensitivity is 1 under add-remove and 2 under replace-one; in the form
    of the paper 2 and 4. Its cost is :meth:`event`, known before a record is read.
    """

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        micro_epsilon: int | None = None,
        bins: int = 15,
        form: Form = "correct-wrong",
        level: float = 0.95,
    ) -> None:
        self.epsilon = epsilon
        self.micro_epsilon = micro_epsilon
        self.bins = bins
        self.form = form
        self.level = level

    def fit(self, source: Source, *, request: str | None = None) -> Self:
        """Ask a source for counts.

        Parameters
        ----------
        source : Source
        request : str, optional
            As of :meth:`PrivateTemperature.fit`.
        """
        (ask,) = self._asks()
        release = ask.of(source, request)
        bins, std = Bins(self.bins), release.noise_std
        first, second = release.values[0::2], release.values[1::2]
        if self.form == "correct-total":
            accuracies, known = shares_of(first, second, std, bins)
        else:
            accuracies, known = accuracies_of(first, second, std, bins)
        self.fallbacks_ = int((~known).sum())
        self.accuracies_ = [
            _estimate(correct, wrong, float(share) if is_known else None, self.level)
            for (correct, wrong), share, is_known in zip(
                self._sides(release), accuracies, known, strict=True
            )
        ]
        return self._keep(Binned(bins, accuracies), [release], source, covers=COVERS)

    def _asks(self) -> list[PricedQuery]:
        """The one question."""
        _checks.one_of(FORMS, form=self.form)
        if not 0 < self.level < 1:
            raise ValueError(f"Expected level between 0 and 1, got level={self.level!r}.")
        query = CorrectTotal if self.form == "correct-total" else CorrectWrong
        return [PricedQuery(query(Bins(self.bins)), price(self.epsilon, self.micro_epsilon))]

    def _sides(self, release: Release) -> list[tuple[Noisy, Noisy]]:
        """Right and wrong predictions of each bin, whichever of the forms was asked for."""
        numbers = noisy_numbers(release)
        pairs = list(zip(numbers[0::2], numbers[1::2], strict=True))
        if self.form == "correct-wrong":
            return pairs
        return [(correct, _difference(total, correct)) for correct, total in pairs]


def accuracies_of(
    correct: Floats, wrong: Floats, noise_std: float, bins: Bins
) -> tuple[Floats, Bools]:
    """Accuracy of each bin from right and wrong ones, and of which bins anything is known.

    Parameters
    ----------
    correct, wrong : arrays of shape (..., bins)
        With noise; they may be negative.
    noise_std : float
        Of the noise on each of them.
    bins : Bins
    """
    return shares_of(correct, correct + wrong, float(np.sqrt(2)) * noise_std, bins)


def shares_of(
    correct: Floats, total: Floats, total_std: float, bins: Bins
) -> tuple[Floats, Bools]:
    """The same from right ones and all of them.

    Parameters
    ----------
    correct, total : arrays of shape (..., bins)
        With noise; they may be negative.
    total_std : float
        Of the noise on each total: what is not above it tells nothing.
    bins : Bins
    """
    known = total > total_std
    shares = np.clip(correct / np.where(known, total, 1.0), 0.0, 1.0)
    # Rounded to a public grid: a question about the map is then a list of short exact numbers.
    found: Floats = np.rint(np.where(known, shares, bins.centers) * _STEPS) / _STEPS
    return found, known


def _estimate(correct: Noisy, wrong: Noisy, value: float | None, level: float) -> Estimate:
    """The accuracy of a bin as the map has it, with the interval around it."""
    found = share_estimate(correct, wrong, level)
    if value is None or found.low is None or found.high is None:
        return replace(found, value=None, low=0.0, high=1.0)
    return replace(found, value=value, low=min(found.low, value), high=max(found.high, value))


def _difference(one: Noisy, other: Noisy) -> Noisy:
    """A difference of noisy numbers, with the noise of both: all noise is symmetric."""
    std = float(np.hypot(one.std, other.std))
    return Noisy(one.value - other.value, std, one.noises + other.noises, one.step)

"""Private histogram binning."""

from typing import Self

import numpy as np

from veracal._types import Bools, Floats
from veracal.calibration.bins import Bins
from veracal.calibration.maps import Binned
from veracal.calibration.private.asking import Ask, price
from veracal.calibration.private.base import PrivateFitter
from veracal.calibration.queries import CorrectWrong
from veracal.privacy import Source

COVERS = "the accuracies of all bins, and the counts they were made of"


class PrivateBinning(PrivateFitter):
    r"""Histogram binning of the top label from noisy counts of right and wrong predictions.

    Luo et al. 2020 (https://arxiv.org/abs/2008.09643) ask for right predictions and all; right
    and *wrong* ones have half the sensitivity, since a record is in one of them. The accuracy
    of a bin is :math:`C / (C + W)`, clipped to [0, 1]. Where the noisy :math:`C + W` is not
    above the standard deviation of its noise, nothing is known of the bin, and it gets its
    center: a confidence that stays about as it was.

    Parameters
    ----------
    epsilon, micro_epsilon : float or int
        What one unit of the records pays; one of the two.
    bins : int

    Attributes
    ----------
    map_ : Binned
    fallbacks_ : int
        Bins of which nothing is known.
    releases_, private_, statement_
        As of :class:`PrivateTemperature`.

    Guarantees
    ----------
    One question, whose sensitivity is 1 under add-remove and 2 under replace-one. Its cost is
    :meth:`event`, known before a record is read.
    """

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        micro_epsilon: int | None = None,
        bins: int = 15,
    ) -> None:
        self.epsilon = epsilon
        self.micro_epsilon = micro_epsilon
        self.bins = bins

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
        bins = Bins(self.bins)
        accuracies, known = accuracies_of(
            release.values[0::2], release.values[1::2], release.noise_std, bins
        )
        self.fallbacks_ = int((~known).sum())
        return self._keep(Binned(bins, accuracies), [release], source, covers=COVERS)

    def _asks(self) -> list[Ask]:
        """The one question."""
        return [Ask(CorrectWrong(Bins(self.bins)), price(self.epsilon, self.micro_epsilon))]


def accuracies_of(
    correct: Floats, wrong: Floats, noise_std: float, bins: Bins
) -> tuple[Floats, Bools]:
    """Accuracy of each bin, and of which bins anything is known.

    Parameters
    ----------
    correct, wrong : arrays of shape (bins,)
        With noise; they may be negative.
    noise_std : float
        Of the noise on each of them.
    bins : Bins
    """
    total = correct + wrong
    known = total > np.sqrt(2) * noise_std
    shares = np.clip(correct / np.where(known, total, 1.0), 0.0, 1.0)
    return np.where(known, shares, bins.centers), known

r"""How much an answer would move had other sources been there.

Sources that fall silent leave a sample of those that were asked. What a sum over the sample
says about all of them is off by more than noise if sources differ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veracal import _checks
from veracal._types import Floats
from veracal.privacy import PooledRelease, Release


@dataclass(frozen=True)
class Spread:
    """Variance of a sum over the sources that answered, by where it comes from.

    Attributes
    ----------
    noise : float
        Of the noise that they added.
    sampling : float
        Of which records they have, as the caller bounds it.
    between : float
        Beyond both: of which sources answered.
    """

    noise: float
    sampling: float
    between: float

    @property
    def std(self) -> float:
        """Standard deviation of all of it."""
        return math.sqrt(self.noise + self.sampling + self.between)


def between(
    answers: Sequence[Release],
    weights: Sequence[Sequence[float]],
    *,
    sampling: float = 0.0,
    asked: int | None = None,
) -> Spread:
    r"""Variance of a weighted sum of answers, that of which sources answered included.

    Each of the m sources that answered contributes :math:`x_i = \sum_j w_j a_{ij}`, with
    noise of variance :math:`\sigma_i^2`. If they are a random sample, the variance of
    :math:`\sum_i x_i` that is no noise is estimated without bias by

    .. math:: m \Bigl( \tfrac{1}{m-1} \sum_i (x_i - \bar x)^2
              - \tfrac1m \sum_i \sigma_i^2 \Bigr) .

    It holds the chance of which records a source has, so it is taken to be no less than
    ``sampling``. Where the figure is about the ``asked`` sources themselves, of which m are a
    sample without replacement, the part beyond sampling shrinks by :math:`1 - m / M` (Cochran
    1977, Sampling Techniques, §2.6), to nothing if all answered.

    For a ratio :math:`\theta = S / n` of two sums give the weights of its residual,
    :math:`S - \hat\theta n`, and divide the standard deviation by the sum n.

    Parameters
    ----------
    answers : sequence of Release
        Of one cohort, as ``Inquiry.answers``. An answer that is not a pool's is one of a single
        source, about which nothing beyond sampling can be told.
    weights : sequence of sequences of float
        For each answer a weight of every entry.
    sampling : float
        Variance of the sum by which records there are, at most: one quarter of the number of
        records for a count of right predictions.
    asked : int, optional
        Number of sources that the figure is about. Without it, it is about sources like these.

    Returns
    -------
    Spread

    Notes
    -----
    With fewer than two sources nothing can be told about others: ``between`` is 0, and an
    interval is about these sources alone.

    It is made of released answers, and costs nothing.
    """
    if not (math.isfinite(sampling) and sampling >= 0):
        raise ValueError(f"Expected a finite sampling >= 0, got sampling={sampling!r}.")
    x, variances = contributions_of(answers, weights)
    m, noise = len(x), float(variances.sum())
    if m < 2:
        return Spread(noise, float(sampling), 0.0)
    beyond = max(m * float(x.var(ddof=1)) - noise - sampling, 0.0)
    if asked is not None:
        _checks.whole(asked=asked)
        beyond *= max(1 - m / asked, 0.0)
    return Spread(noise, float(sampling), beyond)


def contributions_of(
    answers: Sequence[Release], weights: Sequence[Sequence[float]]
) -> tuple[Floats, Floats]:
    """What each source contributes to a weighted sum, and the variance of its noise.

    Returns
    -------
    pair of arrays of shape (m,)
        Of the sources that answered, pools inside of a pool taken apart.
    """
    columns = [single_answers(answer) for answer in answers]
    if not columns or len({len(column) for column in columns}) != 1:
        raise ValueError(
            "Expected answers of the same sources, one or more, got answers of "
            f"{[len(column) for column in columns]} sources. Take those of Inquiry.answers."
        )
    x, variances = np.zeros(len(columns[0])), np.zeros(len(columns[0]))
    for column, weight in zip(columns, weights, strict=True):
        w = np.asarray(weight, dtype=np.float64)
        x += np.array([one.values for one in column]) @ w
        variances += np.array([one.noise_std**2 for one in column]) * (w @ w)
    return x, variances


def single_answers(answer: Release) -> list[Release]:
    """The answers of single sources that an answer is the sum of."""
    if not isinstance(answer, PooledRelease):
        return [answer]
    return [one for part in answer.parts if part is not None for one in single_answers(part)]

"""Events as dp-accounting's privacy-loss distributions; nowhere else are they turned."""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import stats

from veracal.privacy.costs import pairs
from veracal.privacy.events import (
    Approximate,
    AsReplaceOne,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Gaussian,
    Laplace,
    Parallel,
    PoissonGaussian,
    Pure,
)

_MOST_POINTS = 2**22  # of a discrete Gaussian's support: 32 MB of doubles


def for_rows(event: Event, rows: int) -> Event:
    """The event as it touches all rows of one unit at once.

    A sum moves ``rows`` times as far; an epsilon-DP mechanism is (rows * epsilon)-DP for the
    group. A Poisson batch is left as it is, since :func:`privacy_loss` counts how many
    of the rows enter it; so is a wrapper, whose contents are asked in their turn.
    """
    if rows == 1 or isinstance(event, PoissonGaussian | AsReplaceOne | Parallel):
        return event
    if isinstance(event, Pure):
        return replace(event, epsilon=_times(Fraction(repr(event.epsilon)), rows, repr))
    if isinstance(event, Gaussian | Laplace | DiscreteLaplace | DiscreteGaussian):
        if isinstance(event.sensitivity, int):
            return replace(event, sensitivity=event.sensitivity * rows)
        return replace(event, sensitivity=_times(Fraction(event.sensitivity), rows, float))
    raise ValueError(
        f"Expected at_most=1 for {type(event).__name__}, got at_most={rows}: there is no "
        "argument for what it costs a unit of several rows. Keep one row of each unit "
        "(limit_contributions), or use a mechanism on sums."
    )


def _times(exact: Fraction, rows: int, read: Callable[[float], str | float]) -> float:
    """The least float that, as it is read later, is not below the exact product."""
    product = float(exact * rows)
    while Fraction(read(product)) < exact * rows:
        product = math.nextafter(product, math.inf)
    return product


def has_loss(event: Event) -> bool:
    """Whether the event has a privacy-loss distribution of its own."""
    if isinstance(event, DiscreteGaussian):
        points = 2 * pairs.FAR * event.noise + event.sensitivity
        return event.entries == 1 and points <= _MOST_POINTS
    return isinstance(
        event, Gaussian | Laplace | DiscreteLaplace | PoissonGaussian | Pure | Approximate
    )


def privacy_loss(event: Event, *, spacing: float, rows: int = 1) -> PrivacyLossDistribution:
    r"""The pessimistic privacy-loss distribution of one mechanism.

    Noise without sampling is charged by its ratio to the sensitivity under the event's *own*
    relation. dp-accounting's replace-one accountants are not asked: with privacy-loss
    distributions they double a Gaussian's sensitivity by themselves and refuse Laplace noise,
    with Rényi divergences they do not double.

    Vectors are covered by the scalar case. For Gaussian noise by rotation. For (discrete)
    Laplace noise because the laws are log-concave: testing 0 against a shift of a + b in one
    entry is as easy as the tests of a and of b one after the other, so spreading a shift over
    entries never helps (Dong, Roth and Su 2022, Section 2.4). Discrete Gaussian vectors have no
    such argument, and :func:`has_loss` says no.

    Parameters
    ----------
    event : Gaussian, Laplace, their discrete forms, PoissonGaussian, Pure or Approximate
        With noise and sensitivity above zero, for the whole unit (:func:`for_rows`).
    spacing : float
        Distance between points of the grid of losses.
    rows : int
        Rows of one unit in a Poisson batch.
    """
    if isinstance(event, PoissonGaussian):
        return _poisson(event, spacing, rows)
    if isinstance(event, Gaussian):
        one = np.ones(1)
        law = (np.array([event.sensitivity / event.noise]), one)
        loss = pairs.normal_mixtures(law, (np.zeros(1), one), spacing=spacing)
    elif isinstance(event, Laplace):
        loss = pairs.laplace(event.sensitivity / event.noise, spacing=spacing)
    elif isinstance(event, DiscreteLaplace):
        shift = int(event.sensitivity)
        loss = pairs.discrete_laplace(event.noise, shift, spacing=spacing)
    elif isinstance(event, DiscreteGaussian):
        shift = int(event.sensitivity)
        loss = pairs.discrete_gaussian(event.noise, shift, spacing=spacing)
    elif isinstance(event, Pure | Approximate):
        delta = event.delta if isinstance(event, Approximate) else 0.0
        loss = pairs.bounded(event.epsilon, delta, spacing=spacing)
    else:
        raise TypeError(f"{type(event).__name__} has no privacy-loss distribution of its own")
    return PrivacyLossDistribution(_pmf(loss))


def _poisson(event: PoissonGaussian, spacing: float, rows: int) -> PrivacyLossDistribution:
    r"""Loss of a noisy sum over a Poisson batch, for a unit of k rows.

    Of the unit's rows, j enter the batch with probability :math:`p_j` (binomial) and move
    the sum by at most jC. Write a for the probability of an event A under the noise around the
    other records' sum. By Neyman and Pearson a shift of length at most jC leaves A a
    probability between :math:`\Phi(\Phi^{-1}(a) - jC/\sigma)` and
    :math:`\Phi(\Phi^{-1}(a) + jC/\sigma)`, and one half-line attains all these bounds at once.
    So for every :math:`\alpha \ge 0` no shifts make :math:`P(A) - \alpha Q(A)` larger than

    - add/remove: :math:`\sum_j p_j N(jC, \sigma^2)` against :math:`N(0, \sigma^2)`, and the
      reverse (the mixture of Gaussians, https://arxiv.org/abs/2401.10294);
    - replace-one: :math:`\sum_j p_j N(jC, \sigma^2)` against
      :math:`\sum_j p_j N(-jC, \sigma^2)`.

    Averaging over the other records' batch only lowers it (joint convexity), and a pair that
    dominates for all :math:`\alpha` composes.
    """
    most = _most_entering(event, rows)  # of more, the mass below counts as infinite
    entering = np.arange(most + 1)
    weights = stats.binom.pmf(entering, rows, event.rate)
    means = entering * (event.sensitivity / event.noise)
    law = (means, weights)
    if event.relation == "replace-one":
        loss = pairs.normal_mixtures(law, (-means, weights), spacing=spacing)
        return PrivacyLossDistribution(_pmf(loss, stats.binom.sf(most, rows, event.rate)))
    nothing = (np.zeros(1), np.ones(1))
    remove = pairs.normal_mixtures(law, nothing, spacing=spacing)
    add = pairs.normal_mixtures(nothing, (-means, weights), spacing=spacing)
    beyond = stats.binom.sf(most, rows, event.rate)
    return PrivacyLossDistribution(_pmf(remove, beyond), _pmf(add))


def _most_entering(event: PoissonGaussian, rows: int) -> int:
    """Rows of a unit of which more enter a batch together less than once in 1e20 times."""
    return int(stats.binom.isf(1e-20, rows, event.rate)) if rows > 8 else rows


def _pmf(loss: pairs.Loss, beyond: float = 0.0) -> DensePLDPmf:
    """Hand a loss to dp-accounting, with what is left out of it as infinite."""
    infinite = min(1.0, loss.infinite + float(beyond))
    return DensePLDPmf(loss.spacing, loss.first, loss.masses, infinite, True)


def typical_loss(event: Event, rows: int) -> tuple[float, float]:
    """Rough standard deviation of one loss, and the largest of note, to choose a grid by."""
    if isinstance(event, Pure | Approximate):
        return event.epsilon, event.epsilon
    assert not isinstance(event, AsReplaceOne)
    ratio = float(event.sensitivity) / event.noise  # type: ignore[union-attr]
    if isinstance(event, Laplace | DiscreteLaplace):
        return ratio, ratio
    if isinstance(event, PoissonGaussian):
        both = 2 if event.relation == "replace-one" else 1
        reach = both * _most_entering(event, rows) * ratio
        chi = math.sqrt(math.expm1(min(ratio * ratio, 50.0)))
        return min(both * rows * event.rate * chi, reach), reach * (pairs.FAR + reach)
    return ratio, ratio * (pairs.FAR + ratio)

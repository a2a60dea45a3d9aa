"""How much noise a budget asks for."""

import math
from collections.abc import Callable
from functools import cache

from scipy import optimize

from veracal.privacy.budget import Budget
from veracal.privacy.costs.accounting import epsilon_for
from veracal.privacy.events import Event

_COARSE, _FINE = 8.0, 2.0  # grids of losses: to come near, and to decide on
_DOUBLE = math.log(2)
_MOST = 40 * _DOUBLE
_STEEP = 20.0  # stands for an infinite excess, which no interpolation can use


def noise_for(
    budget: Budget, release: Callable[[float], Event], *, tolerance: float = 1e-3
) -> float:
    r"""The smallest noise that keeps a budget, on the safe side.

    Parameters
    ----------
    budget : Budget
    release : callable
        From a noise level to the event; more noise never costs more. The level may scale
        a whole schedule.
    tolerance : float
        How far, as a fraction, the answer may exceed the smallest noise that would do.

    Returns
    -------
    float
        A noise level whose event costs at most ``budget.epsilon`` at ``budget.delta``.

    Raises
    ------
    ValueError
        If the event is of another relation than the budget, or no noise is enough.

    Examples
    --------
    Noise for a thousand steps on batches of one in a hundred:

    >>> from veracal.privacy.events import PoissonGaussian, Repeated
    >>> noise = noise_for(
    ...     Budget(1.0, 1e-5), lambda noise: Repeated(PoissonGaussian(noise, rate=0.01), 1000)
    ... )
    >>> round(noise, 2)
    1.42
    """
    relation = release(1.0).relation
    if relation != budget.relation:
        raise ValueError(
            f"Expected events under {budget.relation}, as the budget is, got {relation}. "
            "State the event under the budget's relation."
        )

    @cache
    def excess(noise: float, coarse: float = _FINE) -> float:
        """How far the cost of a noise level is above the budget, as a bounded logarithm."""
        cost = epsilon_for(release(noise), budget.delta, budget.unit, coarse=coarse)
        return min(max(math.log(max(cost, 1e-300) / budget.epsilon), -_STEEP), _STEEP)

    def coarsely(log_noise: float) -> float:
        """The same on a coarse grid of losses, which is fast and charges a little more."""
        return excess(math.exp(log_noise), _COARSE)

    low, high = _bracket(coarsely, budget)
    near = math.exp(optimize.brentq(coarsely, low, high, xtol=tolerance / 8))
    # The fine grid charges less, by a factor that hardly depends on the noise.
    slope = (coarsely(math.log(near) + 0.05) - coarsely(math.log(near))) / 0.05
    if slope < 0:
        near *= math.exp(-excess(near) / slope)
    # From there by steps of half the tolerance to where the budget breaks.
    step = 1 + tolerance / 2
    while excess(near) > 0:
        near *= step
    while excess(near / step) <= 0:
        near /= step
    # What everybody charges by is the finest grid, and it has the last word.
    while epsilon_for(release(near), budget.delta, budget.unit) > budget.epsilon:
        near *= step
    return near


def _bracket(excess: Callable[[float], float], budget: Budget) -> tuple[float, float]:
    """Logarithms of two noise levels, one too small, the other large enough."""
    low = high = 0.0
    while excess(high) > 0:
        low, high = high, high + _DOUBLE
        if high > _MOST:
            raise ValueError(
                f"Expected a budget that some noise can keep, got epsilon={budget.epsilon!r} "
                f"and delta={budget.delta!r}. Allow a larger delta (Gaussian noise needs "
                "one above zero), fewer steps or a larger epsilon."
            )
    while low == high or excess(low) <= 0:
        low, high = low - _DOUBLE, low
        if low < -_MOST:
            raise ValueError(
                "Expected an event whose cost falls with the noise, got one that keeps the "
                "budget without any."
            )
    return low, high

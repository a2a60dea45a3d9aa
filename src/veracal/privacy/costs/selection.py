r"""What it costs to run a mechanism a random number of times and release the best run.

With a *fixed* number of runs the best one reveals about as much as all of them together. With
a number K drawn from a law of heavy enough tails, and never shown, it costs little more than
two runs (Papernot and Steinke 2022, https://arxiv.org/abs/2110.03620).
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta
from scipy import optimize

from veracal._types import Floats
from veracal.privacy.events import Law

_SHAPES: dict[Law, int] = {"logarithmic": 0, "geometric": 1}


@lru_cache(maxsize=64)
def stopping_rate(mean: float, law: Law) -> float:
    r"""The parameter :math:`\gamma` of the law of the number of runs K, from its mean.

    - geometric: :math:`P(K = k) = \gamma (1 - \gamma)^{k-1}`, of mean :math:`1 / \gamma`;
    - logarithmic: :math:`P(K = k) = (1 - \gamma)^k / (k \ln(1/\gamma))`, of mean
      :math:`(1/\gamma - 1) / \ln(1/\gamma)`.

    Both have :math:`k \ge 1` (the truncated negative binomial of shape 1 and 0).

    Parameters
    ----------
    mean : float > 1
    law : {"geometric", "logarithmic"}

    Examples
    --------
    >>> stopping_rate(10.0, "geometric")
    0.1
    """
    if law == "geometric":
        return 1 / mean

    def excess(log_odds: float) -> float:
        """Mean of the logarithmic law at 1 / gamma - 1, less the one that is wanted."""
        odds = math.exp(log_odds)
        return odds / math.log1p(odds) - mean

    low, high = math.log(mean - 1), 2 * math.log(mean) + 10
    return 1 / (1 + math.exp(optimize.brentq(excess, low, high, xtol=1e-14)))


def selected_curve(curve: Floats, orders: Sequence[float], mean: float, law: Law) -> Floats:
    r"""Rényi divergences of a search, from those of one run.

    For one run with divergences :math:`\rho(\alpha)`, and any order :math:`\hat\alpha`,

    .. math:: \rho(\alpha) + (1 + \eta)\left(1 - \frac1{\hat\alpha}\right) \rho(\hat\alpha)
        + \frac{(1 + \eta) \ln(1/\gamma)}{\hat\alpha} + \frac{\ln E K}{\alpha - 1}

    with shape :math:`\eta` 0 (logarithmic) or 1 (geometric): Theorem 2. For Poisson,

    .. math:: \rho(\alpha) + E K \cdot \hat\delta + \frac{\ln E K}{\alpha - 1}

    where one run is :math:`(\hat\varepsilon, \hat\delta)`-private at
    :math:`\hat\varepsilon = \ln(1 + 1/(\alpha - 1))`: Theorem 6.

    Parameters
    ----------
    curve : array of divergences of one run, one for each order
    orders : sequence of floats > 1
    mean, law
        Of the number of runs.

    Returns
    -------
    array of shape (number of orders,)
    """
    a = np.asarray(orders)
    own = curve + math.log(mean) / (a - 1)
    if law == "poisson":
        loss = [compute_delta(a, curve, math.log1p(1 / (order - 1)))[0] for order in a]
        return np.asarray(own + mean * np.asarray(loss))
    factor = 1 + _SHAPES[law]
    added = factor * np.min((1 - 1 / a) * curve - math.log(stopping_rate(mean, law)) / a)
    # A divergence grows with its order: what bounds a higher one bounds all below.
    descending = np.argsort(a)[::-1]
    bounds = np.empty_like(own)
    bounds[descending] = np.minimum.accumulate((own + added)[descending])
    return bounds

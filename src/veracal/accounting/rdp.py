r"""Rényi divergences of events, their conversion to epsilon, and the cost of private selection.

An event is :math:`(\alpha, \rho)`-Rényi private if the divergence of order :math:`\alpha`
between neighbors is at most :math:`\rho` (Mironov 2017). Divergences of one order add, even
if later events are chosen after earlier answers are seen (Feldman and Zrnic 2021). Privacy-loss
distributions do not allow that, so adaptive ledgers add divergences.

Private selection runs a mechanism several times and releases the best run. With a *fixed*
number of runs the best one costs about as much as all runs together. With a secret number K
drawn from a distribution with heavy enough tails it costs little more than two runs (Papernot
and Steinke 2022, https://arxiv.org/abs/2110.03620).
"""

import logging
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from dp_accounting import dp_event as dp
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import (
    DEFAULT_RDP_ORDERS,
    compute_delta,
    compute_epsilon,
)
from scipy import optimize

from veracal import _checks
from veracal._types import Floats
from veracal.accounting.components import branches, costs_nothing, is_unbounded
from veracal.accounting.events import (
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Gaussian,
    Laplace,
    PoissonGaussian,
    Pure,
    RunDistribution,
    Search,
    Unit,
)

_SHAPES: dict[RunDistribution, int] = {"logarithmic": 0, "geometric": 1}


@lru_cache(maxsize=64)
def stopping_rate(mean: float, distribution: RunDistribution) -> float:
    r"""The parameter :math:`\gamma` of the distribution of the number of runs K, from its mean.

    - geometric: :math:`P(K = k) = \gamma (1 - \gamma)^{k-1}`, of mean :math:`1 / \gamma`;
    - logarithmic: :math:`P(K = k) = (1 - \gamma)^k / (k \ln(1/\gamma))`, of mean
      :math:`(1/\gamma - 1) / \ln(1/\gamma)`.

    Both have :math:`k \ge 1` (the truncated negative binomial of shape 1 and 0).

    Examples
    --------
    >>> stopping_rate(10.0, "geometric")
    0.1
    """
    if distribution == "geometric":
        return 1 / mean

    def excess(log_odds: float) -> float:
        """Mean of the logarithmic distribution at 1 / gamma - 1, minus the required mean."""
        odds = math.exp(log_odds)
        return odds / math.log1p(odds) - mean

    low, high = math.log(mean - 1), 2 * math.log(mean) + 10
    return 1 / (1 + math.exp(optimize.brentq(excess, low, high, xtol=1e-14)))


def search_curve(
    curve: Floats, orders: Sequence[float], mean: float, distribution: RunDistribution
) -> Floats:
    r"""Rényi divergences of a private selection, from those of one run.

    For one run with divergences :math:`\rho(\alpha)`, and any order :math:`\hat\alpha`,

    .. math:: \rho(\alpha) + (1 + \eta)\left(1 - \frac1{\hat\alpha}\right) \rho(\hat\alpha)
        + \frac{(1 + \eta) \ln(1/\gamma)}{\hat\alpha} + \frac{\ln E K}{\alpha - 1}

    with shape :math:`\eta` 0 (logarithmic) or 1 (geometric): Theorem 2. For Poisson,

    .. math:: \rho(\alpha) + E K \cdot \hat\delta + \frac{\ln E K}{\alpha - 1}

    where one run is :math:`(\hat\varepsilon, \hat\delta)`-private at
    :math:`\hat\varepsilon = \ln(1 + 1/(\alpha - 1))`: Theorem 6.

    The curve has one divergence for each order, before and after.
    """
    a = np.asarray(orders)
    own = curve + math.log(mean) / (a - 1)
    if distribution == "poisson":
        loss = [compute_delta(a, curve, math.log1p(1 / (order - 1)))[0] for order in a]
        return np.asarray(own + mean * np.asarray(loss))
    factor = 1 + _SHAPES[distribution]
    added = factor * np.min(
        (1 - 1 / a) * curve - math.log(stopping_rate(mean, distribution)) / a
    )
    # A divergence increases with its order, so a bound at one order holds at all lower ones.
    descending = np.argsort(a)[::-1]
    bounds = np.empty_like(own)
    bounds[descending] = np.minimum.accumulate((own + added)[descending])
    return bounds


# The default orders of dp-accounting: dense where the best order usually lies.
ORDERS: tuple[float, ...] = tuple(map(float, DEFAULT_RDP_ORDERS))
MAX_ORDER = 1024  # higher orders take longer and are the best ones for hardly any delta
_SAMPLING_ERROR_FACTOR = 1 + 1e-6  # dp-accounting's series for batches may be 1e-7 too small
_ROUNDING_ERROR = 1e-15  # precision of its logarithms of numbers near 1


def rdp_at(event: Event, order: float, unit: Unit | None = None) -> float:
    """Upper bound on the Rényi divergence of one order.

    For a parallel event it is the bound of the worst partition.

    Raises
    ------
    ValueError
        If the event has no valid bound under its relation.
    """
    _checks.positive(order=order)
    if not 1 < order <= MAX_ORDER:
        raise ValueError(
            f"Expected an order above 1, at most {MAX_ORDER}, got order={order!r}."
        )
    return float(_curve(event, (float(order),), unit or Unit())[0])


def rdp_epsilon(event: Event, delta: float, unit: Unit | None = None) -> float:
    """Epsilon at this delta by Rényi divergences: valid, looser than :func:`epsilon_for`."""
    _checks.below_one(delta=delta)
    return epsilon_from_rdp(_curve(event, ORDERS, unit or Unit()), delta)


def epsilon_from_rdp(curve: Floats, delta: float) -> float:
    """Epsilon of a curve over :data:`ORDERS` (Canonne, Kamath and Steinke 2020, Prop. 12)."""
    if not np.isfinite(curve).any() or delta <= 0:
        return math.inf
    return max(0.0, float(compute_epsilon(np.array(ORDERS), curve, delta)[0]))


def _curve(event: Event, orders: tuple[float, ...], unit: Unit) -> Floats:
    """Divergences of several orders."""
    curves = [leaf_curve(branch, orders, unit) for branch in branches(event, unit)]
    return np.asarray(np.max(curves, axis=0))


def leaf_curve(branch: dict[Event, int], orders: tuple[float, ...], unit: Unit) -> Floats:
    """Divergences of a composition, one for each order."""
    total = np.zeros(len(orders))
    for leaf, count in branch.items():
        if is_unbounded(leaf):
            return np.full(len(orders), np.inf)
        if costs_nothing(leaf):
            continue
        if isinstance(leaf, Pure | DiscreteLaplace):
            # Two bounds on the same divergence: epsilon, and concentrated differential privacy.
            epsilon = leaf.epsilon if isinstance(leaf, Pure) else leaf.sensitivity / leaf.noise
            curve = np.array([min(epsilon, order * epsilon**2 / 2) for order in orders])
        elif isinstance(leaf, Search):
            # A run may have several branches, by its settings or by a record's partition. The
            # divergence of each is at most the largest one of that order.
            run = _curve(leaf.event, orders, unit)
            curve = search_curve(run, orders, leaf.mean, leaf.distribution)
        else:
            curve = _dp_accounting_curve(leaf, orders, unit)
        total = total + count * curve
    return total


@lru_cache(maxsize=1024)
def _dp_accounting_curve(leaf: Event, orders: tuple[float, ...], unit: Unit) -> Floats:
    """Divergences by dp-accounting.

    A curve for Poisson batches takes 0.2 s, and statements and ledgers compute the same one
    repeatedly, so curves are cached. The series for batches does not converge at some
    fractional orders. The divergence at the next integer order, for which the sum is finite,
    is an upper bound, since divergences do not decrease with the order (van Erven and
    Harremoës 2014, Theorem 3).
    """
    event, sampled = _to_dp_event(leaf, unit), isinstance(leaf, PoissonGaussian)

    def compute(orders: Sequence[float]) -> Floats:
        accountant = RdpAccountant(orders=list(orders))
        log = logging.getLogger("absl")  # warns of orders without a bound, infinite here
        before = log.level
        log.setLevel(logging.ERROR)
        try:
            accountant.compose(event)
        finally:
            log.setLevel(before)
        return np.array(accountant.rdp, dtype=float)

    curve = compute(orders)
    missing = np.flatnonzero(np.isinf(curve) & sampled)
    if len(missing):
        curve[missing] = compute([float(math.ceil(orders[index])) for index in missing])
    if sampled:
        curve = curve * _SAMPLING_ERROR_FACTOR + _ROUNDING_ERROR / (np.array(orders) - 1)
    curve.flags.writeable = False  # the cached array is shared
    return curve


def _to_dp_event(leaf: Event, unit: Unit) -> dp.DpEvent:
    """Convert an event for dp-accounting's Rényi accountant, with floats only.

    The add-or-remove accountant is used under either relation, with the noise divided by the
    sensitivity under the event's own relation. Its replace-one accountant would not double
    the sensitivity.
    """
    if isinstance(leaf, DiscreteGaussian):
        return dp.ZCDpEvent((leaf.sensitivity / leaf.noise) ** 2 / 2)
    if isinstance(leaf, Laplace):
        return dp.LaplaceDpEvent(leaf.noise / leaf.sensitivity)
    if isinstance(leaf, Gaussian):
        return dp.GaussianDpEvent(leaf.noise / leaf.sensitivity)
    if (
        isinstance(leaf, PoissonGaussian)
        and leaf.relation == "add-remove"
        and unit.max_contributions == 1
    ):
        base = dp.GaussianDpEvent(leaf.noise / leaf.sensitivity)
        return dp.PoissonSampledDpEvent(leaf.rate, base)
    raise ValueError(
        f"Expected an event with a Rényi bound, got {type(leaf).__name__} under "
        f"{leaf.relation} with max_contributions={unit.max_contributions}. Use "
        "privacy-loss distributions (a ledger of kind 'plan'), or add-remove with one row per "
        "unit."
    )

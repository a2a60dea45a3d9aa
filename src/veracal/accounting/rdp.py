r"""What it costs to run a mechanism a random number of times and release the best run.

With a *fixed* number of runs the best one reveals about as much as all of them together. With
a number K drawn from a law of heavy enough tails, and never shown, it costs little more than
two runs (Papernot and Steinke 2022, https://arxiv.org/abs/2110.03620).

Costs as Rényi divergences: a second opinion, and what adaptive ledgers add up.

An event is :math:`(\alpha, \rho)`-Rényi private if the divergence of order :math:`\alpha`
between neighbors is at most :math:`\rho` (Mironov 2017). Divergences of one order add, even
when later events are chosen after looking at earlier answers (Feldman and Zrnic 2021), which
privacy-loss distributions do not allow.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    Law,
    PoissonGaussian,
    Pure,
    Search,
    Unit,
)

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


# Dp-accounting's own: fine where the best order usually lies.
ORDERS: tuple[float, ...] = tuple(map(float, DEFAULT_RDP_ORDERS))
MOST_ORDER = 1024  # higher ones take ever longer and serve hardly any delta
_SAMPLED = 1 + 1e-6  # dp-accounting's series for batches may be some 1e-7 too small,
_ROUNDED = 1e-15  # and its logarithms of numbers next to 1 have no more digits than this


def rdp_at(event: Event, order: float, unit: Unit | None = None) -> float:
    """Upper bound on the Rényi divergence of one order; the worst part of a parallel event.

    Raises
    ------
    ValueError
        If the event has no such bound, or only one that is too small under its relation.
    """
    _checks.positive(order=order)
    if not 1 < order <= MOST_ORDER:
        raise ValueError(
            f"Expected an order above 1, at most {MOST_ORDER}, got order={order!r}."
        )
    return float(_curve(event, (float(order),), unit or Unit())[0])


def rdp_epsilon(event: Event, delta: float, unit: Unit | None = None) -> float:
    """Epsilon at this delta by Rényi divergences: valid, looser than :func:`epsilon_for`."""
    check_delta(delta)
    return epsilon_from_rdp(_curve(event, ORDERS, unit or Unit()), delta)


def check_delta(delta: float) -> None:
    """Refuse a delta outside of [0, 1)."""
    _checks.fraction(delta=delta)
    if delta >= 1:
        raise ValueError(f"Expected delta below 1, got delta={delta!r}.")


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
        if not costs_nothing(leaf):
            total = total + count * _one(leaf, orders, unit)
    return total


def _one(leaf: Event, orders: tuple[float, ...], unit: Unit) -> Floats:
    """Divergences of one mechanism."""
    if isinstance(leaf, Pure | DiscreteLaplace):
        # Two bounds on the same divergence: epsilon itself, and the concentrated one.
        epsilon = leaf.epsilon if isinstance(leaf, Pure) else leaf.sensitivity / leaf.noise
        return np.array([min(epsilon, order * epsilon**2 / 2) for order in orders])
    if isinstance(leaf, Search):
        # A run may be one of several, by its setting or by a record's part: whichever is
        # drawn, its divergence of an order is at most the largest of that order.
        return selected_curve(_curve(leaf.event, orders, unit), orders, leaf.mean, leaf.law)
    return _accounted(leaf, orders, unit)


@lru_cache(maxsize=1024)
def _accounted(leaf: Event, orders: tuple[float, ...], unit: Unit) -> Floats:
    """Divergences by dp-accounting.

    A curve for batches takes a fifth of a second, and statements and ledgers ask for the same
    one again and again; it depends on nothing but these frozen arguments. Its series for
    batches gives up at some orders between whole numbers. The next whole one, for which the
    sum is finite, has at least the divergence sought: it never falls with the order (van Erven
    and Harremoës 2014, Theorem 3).
    """
    event = _translated(leaf, unit)
    sampled = isinstance(leaf, PoissonGaussian)
    curve = _by_accountant(event, orders)
    missing = np.flatnonzero(np.isinf(curve) & sampled)
    if len(missing):
        whole = tuple(float(math.ceil(orders[place])) for place in missing)
        curve[missing] = _by_accountant(event, whole)
    if sampled:
        curve = curve * _SAMPLED + _ROUNDED / (np.array(orders) - 1)
    curve.flags.writeable = False  # it is handed out more than once
    return curve


def _by_accountant(event: dp.DpEvent, orders: tuple[float, ...]) -> Floats:
    """Divergences of one event of dp-accounting."""
    accountant = RdpAccountant(orders=list(orders))
    with _quiet():
        accountant.compose(event)
    return np.array(accountant.rdp, dtype=float)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep remarks on orders without a bound to ourselves: they count as infinite here."""
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _translated(leaf: Event, unit: Unit) -> dp.DpEvent:
    """Write an event for dp-accounting's Rényi accountant, every number a float.

    Always for its add-or-remove accountant, with noise in units of the sensitivity under the
    event's own relation: told of replace-one, that accountant does not double anything.
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
        and unit.at_most == 1
    ):
        base = dp.GaussianDpEvent(leaf.noise / leaf.sensitivity)
        return dp.PoissonSampledDpEvent(leaf.rate, base)
    raise ValueError(
        f"Expected an event with a Rényi bound, got {type(leaf).__name__} under "
        f"{leaf.relation} with at_most={unit.at_most}. Account for it by privacy-loss "
        "distributions (a plan), or use add-remove with one row for each unit."
    )

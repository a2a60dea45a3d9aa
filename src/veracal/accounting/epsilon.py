r"""The cost of a composition, and the noise that a budget requires.

The cost of a fixed list of events is an upper bound on :math:`\varepsilon(\delta)`, computed
from privacy-loss distributions on a grid chosen for the composition. For lists whose next event
may depend on earlier answers see :mod:`veracal.accounting.rdp` and :mod:`veracal.ledger`.

The module also computes the central-limit value that some papers report as epsilon, which is
not a bound.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache

from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import optimize

from veracal import _checks
from veracal.accounting.components import (
    Branch,
    branch_pure,
    branches,
    costs_nothing,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_ratio,
    is_unbounded,
    merge_branches,
    round_up_float,
)
from veracal.accounting.events import (
    Approximate,
    AsReplaceOne,
    Budget,
    Composed,
    Event,
    Gaussian,
    Parallel,
    PoissonGaussian,
    Pure,
    Repeated,
    Search,
    Unit,
)
from veracal.accounting.pld import (
    ComposedLoss,
    compose,
    has_loss,
    privacy_loss,
    to_dp_accounting,
    typical_loss,
)
from veracal.accounting.rdp import ORDERS, epsilon_from_rdp, leaf_curve

SPACING = 1e-4  # of the grid of losses, unless the losses require another
_FINE = 0.02  # of a typical loss: rounding then adds about 1e-4 of the variance
_FLOOR = 1e-12
_MAX_POINTS = 2**21


def compose_branch(
    own: Branch, delta: float, unit: Unit, *, coarse: float = 1.0
) -> ComposedLoss:
    """Compose mechanisms that have a privacy-loss distribution (:func:`separate_losses`).

    ``delta`` is the smallest of interest. All values above 1e-12 share one composition, so a
    whole curve takes as long as one of its points. The grid is coarser by the factor ``coarse``.
    """
    return _compose_branch(tuple(own.items()), min(delta, _FLOOR), unit, coarse)


@lru_cache(maxsize=4)  # one composition takes several megabytes
def _compose_branch(
    own: tuple[tuple[Event, int], ...], delta: float, unit: Unit, coarse: float
) -> ComposedLoss:
    """Compose mechanisms; the last results are cached."""
    spacing = _spacing(dict(own), delta, unit, coarse)
    return compose(_losses(dict(own), delta, unit, spacing), delta=delta)


def separate_losses(branch: Branch) -> tuple[Branch, Branch]:
    """Separate mechanisms with a privacy-loss distribution from those without.

    Gaussian mechanisms are merged into one.
    """
    own = {
        leaf: n for leaf, n in branch.items() if isinstance(leaf, Parallel) or has_loss(leaf)
    }
    others = {leaf: n for leaf, n in branch.items() if leaf not in own}
    gaussians: Branch = {e: own.pop(e) for e in list(own) if isinstance(e, Gaussian)}
    ratio = gaussian_ratio(gaussians)
    if ratio:
        relation = next(iter(gaussians)).relation
        own[Gaussian(1 / ratio, relation=relation)] = 1
    return own, others


def can_use_weights(event: Event, unit: Unit) -> bool:
    """Whether the weights of a parallel event (a secret random split) can lower the cost.

    That requires exactly one such event, each of whose partitions is a plain composition.
    Otherwise the cost is that of the worst partition, which is valid but less tight.
    """
    tops = event.events if isinstance(event, Composed) else (event,)
    splits = [top for top in tops if isinstance(top, Parallel) and top.weights]
    if len(splits) != 1 or any(_has_split(top) for top in tops if top is not splits[0]):
        return False
    for part in splits[0].events:  # one composition of mechanisms with loss distributions
        if _has_split(part) or len(alternatives := branches(part, unit)) != 1:
            return False
        for leaf in alternatives[0]:
            if not costs_nothing(leaf) and (not has_loss(leaf) or is_unbounded(leaf)):
                return False
    return True


def _has_split(event: Event) -> bool:
    """Whether the event contains a parallel event with weights."""
    if isinstance(event, Parallel) and event.weights:
        return True
    if isinstance(event, Composed | Parallel):
        return any(map(_has_split, event.events))
    return isinstance(event, Repeated | Search | AsReplaceOne) and _has_split(event.event)


def _losses(
    own: Branch, delta: float, unit: Unit, spacing: float
) -> list[tuple[PrivacyLossDistribution, int]]:
    """The privacy-loss distribution of each mechanism, and how often it runs."""
    losses = []
    for leaf, n in own.items():
        if isinstance(leaf, Parallel):
            loss = _mixture(leaf, delta, unit, spacing)
        else:
            loss = privacy_loss(leaf, spacing=spacing, rows=unit.max_contributions)
        losses.append((loss, n))
    return losses


def _mixture(
    split: Parallel, delta: float, unit: Unit, spacing: float
) -> PrivacyLossDistribution:
    """Loss of one unit that is in a secret random partition."""
    assert split.weights is not None
    mixed, weight = None, 0.0
    for part, share in zip(split.events, split.weights, strict=True):
        (branch,) = branches(part, unit)
        own, others = separate_losses(
            {e: n for e, n in branch.items() if n and not costs_nothing(e)}
        )
        assert not others, "can_use_weights admits only mechanisms with a loss distribution"
        losses = _losses(own or {Pure(0.0): 1}, delta, unit, spacing)
        loss = to_dp_accounting(compose(losses, delta=delta))
        weight += share
        mixed = loss if mixed is None else loss.compute_mixture(mixed, share / (weight or 1))
    return mixed


def _spacing(own: Branch, delta: float, unit: Unit, coarse: float) -> float:
    """Grid spacing: small against typical losses, with few enough points to compute."""
    counted: list[tuple[Event, int]] = []
    for mechanism, times in own.items():
        if isinstance(mechanism, Parallel):
            inside = [branches(part, unit)[0].items() for part in mechanism.events]
            pairs = [(leaf, n * times) for branch in inside for leaf, n in branch]
            counted += [(leaf, n) for leaf, n in pairs if not costs_nothing(leaf)]
        else:
            counted.append((mechanism, times))
    typical = [(*typical_loss(leaf, unit.max_contributions), n) for leaf, n in counted]
    fine = min((_FINE * small for small, _, _ in typical if small > 0), default=SPACING)
    spread = math.sqrt(sum(n * small**2 for small, _, n in typical))
    width = spread * (spread + 2 * math.sqrt(-2 * math.log(delta * 1e-6)))
    width = min(width, sum(2 * large * n for _, large, n in typical))
    widest = max((2 * large for _, large, _ in typical), default=0.0)
    return max(min(SPACING, fine) * coarse, max(width, widest) / _MAX_POINTS)


_MAX_USEFUL_EPSILON = 500.0  # a larger epsilon is no protection at any delta
_SHARES = (0.5, 0.1)  # of delta, for events that enter as an (epsilon, delta) pair


def epsilon_for(
    event: Event, delta: float, unit: Unit | None = None, *, coarse: float = 1.0
) -> float:
    r"""Upper bound on epsilon at a given delta.

    Parameters
    ----------
    event : Event
        Everything that is released about the records, with costs fixed beforehand.
    delta : float in [0, 1)
    unit : Unit, optional
        The unit of privacy; by default one record of one row.
    coarse : float >= 1
        Factor by which the grid of losses is coarser: faster, still a bound, less tight.

    Returns
    -------
    float
        Nonnegative; infinite if the loss is unbounded.

    Guarantees
    ----------
    The composition is :math:`(\varepsilon, \delta)`-differentially private for the unit,
    under the events' relation. Several bounds are valid (privacy-loss distributions; the exact
    sum of pure costs; the closed form for Gaussian noise; Rényi divergences where delta is
    too small for the others); the smallest is returned.

    Examples
    --------
    >>> from veracal.accounting.events import Gaussian
    >>> round(epsilon_for(Gaussian(noise=1.0), 1e-5), 3)
    4.377
    """
    _checks.below_one(delta=delta)
    unit = unit or Unit()
    return max(
        _branch_epsilon(branch, delta, unit, coarse)
        for branch in branches(event, unit, keep_weights=can_use_weights(event, unit))
    )


def delta_for(event: Event, epsilon: float, unit: Unit | None = None) -> float:
    """Upper bound on delta at a given epsilon: the inverse of :func:`epsilon_for`."""
    _checks.nonnegative(epsilon=epsilon)
    unit = unit or Unit()
    return max(
        _branch_delta(branch, epsilon, unit)
        for branch in branches(event, unit, keep_weights=can_use_weights(event, unit))
    )


# ---------------------------------------------------------------- one branch


def _branch_epsilon(branch: Branch, delta: float, unit: Unit, coarse: float) -> float:
    """Epsilon of a composition."""
    if any(map(is_unbounded, branch)):
        return math.inf
    branch = {leaf: n for leaf, n in branch.items() if n and not costs_nothing(leaf)}
    if not branch:
        return 0.0
    pure = branch_pure(branch, unit)
    exact = math.inf if pure is None else round_up_float(pure)
    if delta <= 0 or (pure is not None and pure >= _MAX_USEFUL_EPSILON):
        return exact
    ratio = gaussian_ratio(branch)
    if ratio is not None:
        return min(exact, gaussian_epsilon(ratio, delta))
    own, others = separate_losses(branch)
    if others:
        pairs = [_with_pairs(own, others, delta, share, unit, coarse) for share in _SHARES]
        return min(exact, *pairs)
    epsilon = compose_branch(own, delta, unit, coarse=coarse).epsilon(delta)
    if not math.isfinite(epsilon):
        # Below a delta of about 1e-12 the transform's rounding error exceeds delta. Rényi
        # divergences still give a bound, unless the branch has none.
        with suppress(ValueError):
            epsilon = epsilon_from_rdp(leaf_curve(branch, ORDERS, unit), delta)
    return min(exact, epsilon)


def _branch_delta(branch: Branch, epsilon: float, unit: Unit) -> float:
    """Delta of a composition."""
    if any(map(is_unbounded, branch)):
        return 1.0
    branch = {leaf: n for leaf, n in branch.items() if n and not costs_nothing(leaf)}
    pure = branch_pure(branch, unit)
    if not branch or (pure is not None and round_up_float(pure) <= epsilon):
        return 0.0
    ratio = gaussian_ratio(branch)
    if ratio is not None:
        return gaussian_delta(ratio, epsilon)
    own, others = separate_losses(branch)
    if not others:
        return compose_branch(own, 1e-12, unit).delta(epsilon)
    # The (epsilon, delta) pairs depend on delta: bisect its logarithm and return the upper end.
    low, high = -30.0, 0.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        holds = _branch_epsilon(branch, math.exp(middle), unit, 1.0) <= epsilon
        low, high = (low, middle) if holds else (middle, high)
    return math.exp(high)


def _with_pairs(
    own: Branch, others: Branch, delta: float, share: float, unit: Unit, coarse: float
) -> float:
    """Epsilon of a composition in which some events only have an (epsilon, delta) pair.

    The events with Rényi divergences (searches, discrete Gaussian vectors) become one pair
    together; each conversion between relations becomes a pair of its own. The pairs receive a
    share of delta and enter the composition as the worst mechanism with that pair.
    """
    converted = {leaf: n for leaf, n in others.items() if isinstance(leaf, AsReplaceOne)}
    curved = {leaf: n for leaf, n in others.items() if leaf not in converted}
    groups = sum(converted.values()) + bool(curved)
    each = delta * (share if own else 1) / groups
    relation = next(iter(others)).relation
    costs = [
        cost
        for leaf, n in converted.items()
        for cost in [_converted_epsilon(leaf, each, unit)] * n
    ]
    if curved:
        costs.append(epsilon_from_rdp(leaf_curve(curved, ORDERS, unit), each))
    added = sum(costs)
    if not own or not math.isfinite(added):
        return added
    pairs: Branch = {}
    for cost in costs:
        pair = Approximate(cost, each, relation)
        pairs[pair] = pairs.get(pair, 0) + 1
    return min(
        compose_branch(merge_branches(own, pairs), delta, unit, coarse=coarse).epsilon(delta),
        added + compose_branch(own, delta, unit, coarse=coarse).epsilon(delta * (1 - share)),
    )


def _converted_epsilon(leaf: AsReplaceOne, delta: float, unit: Unit) -> float:
    r"""Epsilon under replace-one of an add-remove event.

    From (e, d) to :math:`(2e, (1 + e^e) d)`: find the smallest e with
    :math:`(1 + e^e)\, \delta(e) \le \delta`, rounded up.
    """
    low, high = 0.0, 1.0
    while (1 + math.exp(high)) * delta_for(leaf.event, high, unit) > delta:
        low, high = high, 2 * high
        if high > _MAX_USEFUL_EPSILON:
            return math.inf
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        holds = (1 + math.exp(middle)) * delta_for(leaf.event, middle, unit) <= delta
        low, high = (low, middle) if holds else (middle, high)
    return 2 * high


def clt_epsilon_not_a_bound(event: Event, delta: float) -> float:
    r"""Epsilon if the total loss of all steps were normally distributed, which it is not.

    With T steps at rate q the composition is approximated by a Gaussian mechanism with

    .. math:: \mu = \sqrt{\sum_t q_t^2 (e^{1/\sigma_t^2} - 1)}

    (Bu et al. 2020, https://arxiv.org/abs/1911.11607). With little noise, few steps or a small
    delta this value is several times too small. Use it only to compare with published figures,
    never for a ledger, a budget or a statement. At rate 1, :math:`\mu^2 = \sum_t 1/\sigma_t^2`
    is exact.

    Parameters
    ----------
    event : Event
        Gaussian noise, with or without Poisson sampling, on one set of records.
    delta : float
    """
    alternatives = branches(event, Unit())
    if len(alternatives) > 1:
        raise ValueError("Expected events on one set of records, got parallel partitions.")
    total = 0.0
    for leaf, n in alternatives[0].items():
        if not isinstance(leaf, Gaussian | PoissonGaussian):
            raise ValueError(f"Expected Gaussian noise only, got {type(leaf).__name__}.")
        square = (leaf.sensitivity / leaf.noise) ** 2
        rate = leaf.rate if isinstance(leaf, PoissonGaussian) else 1.0
        total += n * (square if rate == 1 else rate**2 * math.expm1(square))
    return gaussian_epsilon(math.sqrt(total), delta)


_COARSE, _FINE_SEARCH = 8.0, 2.0  # grids of losses: for the first search, and for the decision
_DOUBLE = math.log(2)
_MAX_LOG_NOISE = 40 * _DOUBLE
_STEEP = 20.0  # replaces an infinite excess, which interpolation cannot use


def noise_for(
    budget: Budget, release: Callable[[float], Event], *, tolerance: float = 1e-3
) -> float:
    r"""The smallest noise within a budget, rounded up.

    Parameters
    ----------
    budget : Budget
    release : callable
        Maps a noise level to the event. The cost must not increase with the noise. The level
        may scale a whole schedule.
    tolerance : float
        Largest relative excess of the result over the smallest sufficient noise.

    Returns
    -------
    float
        A noise level whose event costs at most ``budget.epsilon`` at ``budget.delta``.

    Raises
    ------
    ValueError
        If the relation of the event is not that of the budget, or no noise is sufficient.

    Examples
    --------
    Noise for a thousand steps on batches of one in a hundred:

    >>> from veracal.accounting.events import PoissonGaussian, Repeated
    >>> noise = noise_for(
    ...     Budget(1.0, 1e-5), lambda noise: Repeated(PoissonGaussian(noise, rate=0.01), 1000)
    ... )
    >>> round(noise, 2)
    1.42
    """
    relation = release(1.0).relation
    if relation != budget.relation:
        raise ValueError(
            f"Expected events under {budget.relation}, like the budget, got {relation}. "
            "State the event under the budget's relation."
        )

    @cache
    def excess(noise: float, coarse: float = _FINE_SEARCH) -> float:
        """Log ratio of the cost to the budget, clipped."""
        cost = epsilon_for(release(noise), budget.delta, budget.unit, coarse=coarse)
        return min(max(math.log(max(cost, 1e-300) / budget.epsilon), -_STEEP), _STEEP)

    def coarse_excess(log_noise: float) -> float:
        """The same on a coarse grid of losses: faster, and slightly too large."""
        return excess(math.exp(log_noise), _COARSE)

    low, high = _bracket(coarse_excess, budget)
    near = math.exp(optimize.brentq(coarse_excess, low, high, xtol=tolerance / 8))
    # The fine grid gives a lower cost, by a factor that hardly depends on the noise.
    slope = (coarse_excess(math.log(near) + 0.05) - coarse_excess(math.log(near))) / 0.05
    if slope < 0:
        near *= math.exp(-excess(near) / slope)
    # From there, move in steps of half the tolerance to the edge of the budget.
    step = 1 + tolerance / 2
    while excess(near) > 0:
        near *= step
    while excess(near / step) <= 0:
        near /= step
    # Charges are computed on the finest grid, so it decides.
    while epsilon_for(release(near), budget.delta, budget.unit) > budget.epsilon:
        near *= step
    return near


def _bracket(excess: Callable[[float], float], budget: Budget) -> tuple[float, float]:
    """Logarithms of two noise levels, one too small, the other large enough."""
    low = high = 0.0
    while excess(high) > 0:
        low, high = high, high + _DOUBLE
        if high > _MAX_LOG_NOISE:
            raise ValueError(
                f"Expected a budget that some noise can meet, got epsilon={budget.epsilon!r} "
                f"and delta={budget.delta!r}. Allow a larger delta (Gaussian noise needs "
                "one above zero), fewer steps or a larger epsilon."
            )
    while low == high or excess(low) <= 0:
        low, high = low - _DOUBLE, low
        if low < -_MAX_LOG_NOISE:
            raise ValueError(
                "Expected an event whose cost decreases with the noise, got one that meets the "
                "budget without noise."
            )
    return low, high

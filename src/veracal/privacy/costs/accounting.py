r"""What events cost together.

The cost of a fixed list of events is an upper bound on :math:`\varepsilon(\delta)`, by
privacy-loss distributions. A list whose next event may depend on earlier answers is another
matter: see :mod:`veracal.privacy.costs.renyi` and the ledger.
"""

import math

from veracal import _checks
from veracal.privacy.budget import Unit
from veracal.privacy.costs.gaussian import gaussian_delta, gaussian_epsilon, gaussian_ratio
from veracal.privacy.costs.leaves import Branch, branches, costs_nothing, is_unbounded, joined
from veracal.privacy.costs.pure import branch_pure, upwards
from veracal.privacy.costs.renyi import ORDERS, check_delta, epsilon_from_rdp, leaf_curve
from veracal.privacy.costs.totals import can_mix, sorted_out, total
from veracal.privacy.events import Approximate, AsReplaceOne, Event

_HUGE = 500.0  # an epsilon that promises nothing, whatever delta
_SHARES = (0.5, 0.1)  # of delta, for what enters as an (epsilon, delta) pair


def epsilon_for(
    event: Event, delta: float, unit: Unit | None = None, *, coarse: float = 1.0
) -> float:
    r"""Upper bound on epsilon at a given delta.

    Parameters
    ----------
    event : Event
        Everything that happens to the records, its costs fixed beforehand.
    delta : float in [0, 1)
    unit : Unit, optional
        Whom to protect; by default one record of one row.
    coarse : float >= 1
        Makes the grid of losses coarser: faster, still a bound, less tight.

    Returns
    -------
    float
        Never negative; infinite if nothing bounds the loss.

    Guarantees
    ----------
    The composition is :math:`(\varepsilon, \delta)`-differentially private for the unit,
    under the events' relation. Of several valid bounds (privacy-loss distributions; the exact
    sum of pure costs; the closed form for Gaussian noise; Rényi divergences where delta is
    too small for the others) the least is returned.

    Examples
    --------
    >>> from veracal.privacy.events import Gaussian
    >>> round(epsilon_for(Gaussian(noise=1.0), 1e-5), 3)
    4.377
    """
    check_delta(delta)
    unit = unit or Unit()
    return max(
        _branch_epsilon(branch, delta, unit, coarse)
        for branch in branches(event, unit, keep_weights=can_mix(event, unit))
    )


def delta_for(event: Event, epsilon: float, unit: Unit | None = None) -> float:
    """Upper bound on delta at a given epsilon: the other way through :func:`epsilon_for`."""
    if epsilon != 0:
        _checks.positive(epsilon=epsilon)
    unit = unit or Unit()
    return max(
        _branch_delta(branch, epsilon, unit)
        for branch in branches(event, unit, keep_weights=can_mix(event, unit))
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
    bounds = [math.inf if pure is None else upwards(pure)]
    if delta > 0 and (pure is None or pure < _HUGE):
        bounds.append(_approximate_epsilon(branch, delta, unit, coarse))
    return min(bounds)


def _approximate_epsilon(branch: Branch, delta: float, unit: Unit, coarse: float) -> float:
    """Epsilon of a composition at a positive delta."""
    ratio = gaussian_ratio(branch)
    if ratio is not None:
        return gaussian_epsilon(ratio, delta)
    own, others = sorted_out(branch)
    if others:
        return min(_with_pairs(own, others, delta, share, unit, coarse) for share in _SHARES)
    found = total(own, delta, unit, coarse=coarse).epsilon(delta)
    # Below a delta of some 1e-12 the transform's rounding drowns it; divergences still hold.
    return found if math.isfinite(found) else _renyi(branch, delta, unit)


def _branch_delta(branch: Branch, epsilon: float, unit: Unit) -> float:
    """Delta of a composition."""
    if any(map(is_unbounded, branch)):
        return 1.0
    branch = {leaf: n for leaf, n in branch.items() if n and not costs_nothing(leaf)}
    pure = branch_pure(branch, unit)
    if not branch or (pure is not None and upwards(pure) <= epsilon):
        return 0.0
    ratio = gaussian_ratio(branch)
    if ratio is not None:
        return gaussian_delta(ratio, epsilon)
    own, others = sorted_out(branch)
    if not others:
        return total(own, 1e-12, unit).delta(epsilon)
    # Pairs depend on delta: bisect in its logarithm, keeping the safe side.
    low, high = -30.0, 0.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        holds = _branch_epsilon(branch, math.exp(middle), unit, 1.0) <= epsilon
        low, high = (low, middle) if holds else (middle, high)
    return math.exp(high)


def _with_pairs(
    own: Branch, others: Branch, delta: float, share: float, unit: Unit, coarse: float
) -> float:
    """Epsilon of a composition in which some events are known by an (epsilon, delta) pair only.

    What has Rényi divergences (a search, discrete Gaussian vectors) becomes one pair together;
    each conversion between relations becomes its own. They get a share of delta, and enter the
    composition as the worst mechanism of that pair.
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
        total(joined((own, pairs)), delta, unit, coarse=coarse).epsilon(delta),
        added + total(own, delta, unit, coarse=coarse).epsilon(delta * (1 - share)),
    )


def _converted_epsilon(leaf: AsReplaceOne, delta: float, unit: Unit) -> float:
    r"""Epsilon under replace-one of an add-remove event.

    From (e, d) to :math:`(2e, (1 + e^e) d)`: find, on the safe side, the least e with
    :math:`(1 + e^e)\, \delta(e) \le \delta`.
    """
    low, high = 0.0, 1.0
    while (1 + math.exp(high)) * delta_for(leaf.event, high, unit) > delta:
        low, high = high, 2 * high
        if high > _HUGE:
            return math.inf
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        holds = (1 + math.exp(middle)) * delta_for(leaf.event, middle, unit) <= delta
        low, high = (low, middle) if holds else (middle, high)
    return 2 * high


def _renyi(branch: Branch, delta: float, unit: Unit) -> float:
    """Epsilon by divergences, infinite where there are none."""
    try:
        return epsilon_from_rdp(leaf_curve(branch, ORDERS, unit), delta)
    except ValueError:
        return math.inf

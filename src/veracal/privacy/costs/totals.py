"""The privacy-loss distribution of a whole composition, on a grid that suits it."""

import math
from functools import lru_cache

from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from veracal.privacy.budget import Unit
from veracal.privacy.costs.composition import Total, compose, distribution
from veracal.privacy.costs.gaussian import gaussian_ratio
from veracal.privacy.costs.leaves import Branch, branches, costs_nothing, is_unbounded
from veracal.privacy.costs.losses import has_loss, privacy_loss, typical_loss
from veracal.privacy.events import (
    AsReplaceOne,
    Composed,
    Event,
    Gaussian,
    Parallel,
    Pure,
    Repeated,
    Search,
)

SPACING = 1e-4  # of the grid of losses, unless the losses ask for another
_FINE = 0.02  # of a typical loss: the rounding then adds some 1e-4 of the variance
_FLOOR = 1e-12
_MOST_POINTS = 2**21


def total(own: Branch, delta: float, unit: Unit, *, coarse: float = 1.0) -> Total:
    """Compose mechanisms that have a privacy-loss distribution.

    Parameters
    ----------
    own : dict from mechanism to count
        As :func:`sorted_out` gives them.
    delta : float
        The smallest delta of interest. Above 1e-12 all share one total, so that a whole curve
        costs as much as one of its points.
    unit : Unit
    coarse : float >= 1
        Makes the grid coarser.
    """
    return _total(tuple(own.items()), min(delta, _FLOOR), unit, coarse)


@lru_cache(maxsize=4)  # a total takes some megabytes
def _total(
    own: tuple[tuple[Event, int], ...], delta: float, unit: Unit, coarse: float
) -> Total:
    """Compose mechanisms, remembering the last totals."""
    spacing = _spacing(dict(own), delta, unit, coarse)
    return compose(_losses(dict(own), delta, unit, spacing), delta=delta)


def sorted_out(branch: Branch) -> tuple[Branch, Branch]:
    """Mechanisms with a loss of their own, Gaussians among them as one, and those without."""
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


def can_mix(event: Event, unit: Unit) -> bool:
    """Whether the secret coins of a split can be put to use.

    Only one split's coins can be, and only if every part is a plain composition. Otherwise its
    parts are alternatives, of which the worst counts: always valid, less tight.
    """
    tops = event.events if isinstance(event, Composed) else (event,)
    splits = [top for top in tops if isinstance(top, Parallel) and top.weights]
    if len(splits) != 1 or any(_has_split(top) for top in tops if top is not splits[0]):
        return False
    return all(_is_plain(part, unit) for part in splits[0].events)


def _has_split(event: Event) -> bool:
    """Whether a split with secret coins is anywhere inside."""
    if isinstance(event, Parallel) and event.weights:
        return True
    if isinstance(event, Composed | Parallel):
        return any(map(_has_split, event.events))
    return isinstance(event, Repeated | Search | AsReplaceOne) and _has_split(event.event)


def _is_plain(part: Event, unit: Unit) -> bool:
    """Whether a part is one composition of mechanisms with losses of their own."""
    if _has_split(part):
        return False
    found = branches(part, unit)
    return len(found) == 1 and all(
        costs_nothing(leaf) or (has_loss(leaf) and not is_unbounded(leaf)) for leaf in found[0]
    )


def _losses(
    own: Branch, delta: float, unit: Unit, spacing: float
) -> list[tuple[PrivacyLossDistribution, int]]:
    """The distribution of each mechanism, and how often it runs."""
    return [
        (
            _mixture(leaf, delta, unit, spacing)
            if isinstance(leaf, Parallel)
            else privacy_loss(leaf, spacing=spacing, rows=unit.at_most),
            n,
        )
        for leaf, n in own.items()
    ]


def _mixture(
    split: Parallel, delta: float, unit: Unit, spacing: float
) -> PrivacyLossDistribution:
    """Loss of one unit that a secret coin puts into one of several parts."""
    assert split.weights is not None
    mixed, weight = None, 0.0
    for part, share in zip(split.events, split.weights, strict=True):
        (branch,) = branches(part, unit)
        own, others = sorted_out(
            {e: n for e, n in branch.items() if n and not costs_nothing(e)}
        )
        assert not others, "can_mix lets in only what has a loss of its own"
        losses = _losses(own or {Pure(0.0): 1}, delta, unit, spacing)
        loss = distribution(compose(losses, delta=delta))
        weight += share
        mixed = loss if mixed is None else loss.compute_mixture(mixed, share / (weight or 1))
    return mixed


def _spacing(own: Branch, delta: float, unit: Unit, coarse: float) -> float:
    """Distance between points: fine beside typical losses, few enough to compute."""
    counted = [
        (leaf, n)
        for mechanism, times in own.items()
        for leaf, n in _inside(mechanism, times, unit)
    ]
    typical = [(*typical_loss(leaf, unit.at_most), n) for leaf, n in counted]
    fine = min((_FINE * small for small, _, _ in typical if small > 0), default=SPACING)
    spread = math.sqrt(sum(n * small**2 for small, _, n in typical))
    width = spread * (spread + 2 * math.sqrt(-2 * math.log(delta * 1e-6)))
    width = min(width, sum(2 * large * n for _, large, n in typical))
    widest = max((2 * large for _, large, _ in typical), default=0.0)
    return max(min(SPACING, fine) * coarse, max(width, widest) / _MOST_POINTS)


def _inside(mechanism: Event, times: int, unit: Unit) -> list[tuple[Event, int]]:
    """A mechanism, or those inside a split."""
    if not isinstance(mechanism, Parallel):
        return [(mechanism, times)]
    found = [branches(part, unit)[0] for part in mechanism.events]
    return [
        (leaf, n * times) for one in found for leaf, n in one.items() if not costs_nothing(leaf)
    ]

"""The contract of a mechanism, for whoever writes one.

A mechanism states its cost as an event. These checks ask whether draws of it on two neighbors
are further apart than that cost allows.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from veracal._types import Floats
from veracal.privacy.budget import Unit
from veracal.privacy.costs.accounting import epsilon_for
from veracal.privacy.events import Event, from_json, to_json

Draw = Callable[[Any, int], ArrayLike]


def check_mechanism(
    draw: Draw,
    event: Event,
    first: Any,
    second: Any,
    *,
    delta: float = 1e-5,
    unit: Unit | None = None,
    draws: int = 20_000,
    alpha: float = 1e-6,
) -> float:
    r"""Raise ``AssertionError`` if a mechanism costs more than its event says.

    Half of the draws choose a threshold that tells the neighbors apart; the other half certify
    how much. If an answer beyond it has probability at least p under one neighbor and at most q
    under the other, then :math:`\varepsilon \ge \log((p - \delta) / q)` (Clopper and Pearson
    1934 for p and q). A sound mechanism fails with probability alpha; one with nine tenths of
    its noise may pass. It is no proof: write that down elsewhere.

    Parameters
    ----------
    draw : callable
        ``draw(records, n)`` releases one number from the records, n times over, each time with
        fresh noise.
    event : Event
        What one of these releases is said to cost.
    first, second : records
        Neighbors that should be as far apart as they can be.
    delta : float in (0, 1)
    unit : Unit, optional
    draws : int
    alpha : float
        Probability of a false alarm.

    Returns
    -------
    float
        Epsilon that a release costs at least.

    Examples
    --------
    >>> from veracal.privacy.events import Laplace
    >>> rng = np.random.default_rng(0)
    >>> noisy = lambda records, n: len(records) + rng.laplace(scale=2.0, size=n)
    >>> check_mechanism(noisy, Laplace(noise=2.0), range(9), range(10)) < 0.5
    True
    """
    assert from_json(to_json(event)) == event, "the event does not survive being written down"
    claimed = epsilon_for(event, delta, unit)
    assert math.isfinite(claimed), f"the event promises nothing at delta={delta}"
    outputs = [_numbers(draw(records, draws), draws) for records in (first, second)]
    half = draws // 2
    certified = 0.0
    for upper in (True, False):
        for p, q in (outputs, outputs[::-1]):
            sign = 1 if upper else -1
            threshold = _best(sign * p[:half], sign * q[:half], delta)
            hits, others = (int((sign * x[half:] >= threshold).sum()) for x in (p, q))
            found = _bound(hits, others, draws - half, delta, alpha / 4)
            certified = max(certified, found)
    assert certified <= claimed, (
        f"a release costs at least epsilon = {certified:.3g} at delta = {delta:g}, but the "
        f"event says {claimed:.3g}: it takes more noise, or states too small a sensitivity"
    )
    return certified


def _numbers(values: ArrayLike, n: int) -> Floats:
    """What was drawn, as finite numbers."""
    found = np.asarray(values, dtype=np.float64)
    assert found.shape == (n,), f"expected {n} numbers, got an array of shape {found.shape}"
    assert np.isfinite(found).all(), "a release is not finite"
    return found


def _best(p: Floats, q: Floats, delta: float) -> float:
    """The threshold beyond which the first sample is most in excess of the second."""
    thresholds = np.unique(np.quantile(np.concatenate([p, q]), np.linspace(0, 1, 401)))
    hits, others = ((len(x) - np.searchsorted(np.sort(x), thresholds)) / len(x) for x in (p, q))
    # About the bound that the other half will certify: five standard errors off.
    hits, others = np.maximum(hits - delta, 1e-9), others + 1 / len(q)
    scores = np.log(hits / others) - 5 * np.sqrt((1 / hits + 1 / others) / len(q))
    return float(thresholds[np.argmax(scores)])


def _bound(hits: int, others: int, n: int, delta: float, alpha: float) -> float:
    """Epsilon that fits the counts at least."""
    least = special.betaincinv(hits, n - hits + 1, alpha / 2) if hits else 0.0
    most = special.betaincinv(others + 1, n - others, 1 - alpha / 2) if others < n else 1.0
    return math.log((least - delta) / most) if least > delta else 0.0

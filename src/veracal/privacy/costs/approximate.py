"""The central-limit figure that some papers report as epsilon; it is not a bound."""

import math

from veracal.privacy.budget import Unit
from veracal.privacy.costs.gaussian import gaussian_epsilon
from veracal.privacy.costs.leaves import branches
from veracal.privacy.events import Event, Gaussian, PoissonGaussian


def clt_epsilon_not_a_bound(event: Event, delta: float) -> float:
    r"""Epsilon if the losses of all steps added up to a normal law, which they do not.

    With T steps at rate q the composition is taken for a Gaussian mechanism with

    .. math:: \mu = \sqrt{\sum_t q_t^2 (e^{1/\sigma_t^2} - 1)}

    (Bu et al. 2020, https://arxiv.org/abs/1911.11607). With little noise, few steps or a small
    delta this is several times too small: for comparing with published figures only, never
    for a ledger, a budget or a statement. At rate 1, :math:`\mu^2 = \sum_t 1/\sigma_t^2` is
    exact.

    Parameters
    ----------
    event : Event
        Made of Gaussian noise, on batches or not, on one set of records.
    delta : float
    """
    found = branches(event, Unit())
    if len(found) > 1:
        raise ValueError("Expected events on one set of records, got parallel parts.")
    total = 0.0
    for leaf, n in found[0].items():
        if not isinstance(leaf, Gaussian | PoissonGaussian):
            raise ValueError(f"Expected Gaussian noise only, got {type(leaf).__name__}.")
        square = (leaf.sensitivity / leaf.noise) ** 2
        rate = leaf.rate if isinstance(leaf, PoissonGaussian) else 1.0
        total += n * (square if rate == 1 else rate**2 * math.expm1(square))
    return gaussian_epsilon(math.sqrt(total), delta)

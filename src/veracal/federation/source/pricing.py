"""What a request costs, known before a record is read, and whether it may cost that."""

from collections.abc import Callable
from dataclasses import dataclass

from veracal._types import Ints
from veracal.federation.protocol.envelopes import EnvelopeError
from veracal.federation.protocol.requests import Request
from veracal.federation.protocol.terms import Terms
from veracal.privacy import Query
from veracal.privacy.answers.noise import add_discrete_gaussian, add_discrete_laplace
from veracal.privacy.answers.queries import gaussian_event, laplace_event
from veracal.privacy.costs.accounting import epsilon_for
from veracal.privacy.costs.pure import MICRO
from veracal.privacy.events import DiscreteGaussian, DiscreteLaplace


@dataclass(frozen=True)
class Priced:
    """The cost of an answer, and what adds its noise.

    Attributes
    ----------
    event : DiscreteLaplace or DiscreteGaussian
    add_noise : callable
        From exact units and the noise of the event to noisy units.
    """

    event: DiscreteLaplace | DiscreteGaussian
    add_noise: Callable[[Ints, float], Ints]


def priced(request: Request, query: Query, terms: Terms) -> Priced:
    """What an answer costs.

    Raises
    ------
    EnvelopeError
        If it costs more than one answer may, if Gaussian noise is asked for and no delta was
        declared, or if the noise cannot be drawn.
    """
    try:
        if request.micro_epsilon is not None:
            return _laplace(request.micro_epsilon, query, terms)
        assert request.noise_multiplier is not None  # one of the two, by the schema
        return _gaussian(request.noise_multiplier, query, terms)
    except EnvelopeError:
        raise
    except ValueError as cause:  # about the query and the noise: no record was seen yet
        raise EnvelopeError("it asks for noise that cannot be drawn") from cause


def _laplace(micro_epsilon: int, query: Query, terms: Terms) -> Priced:
    """An answer that costs so many millionths of epsilon."""
    if micro_epsilon > terms.most_each:
        raise _too_dear(micro_epsilon / MICRO, terms)
    event = laplace_event(query, micro_epsilon, terms.relation, terms.unit)
    return Priced(event, add_discrete_laplace)


def _gaussian(noise_multiplier: float, query: Query, terms: Terms) -> Priced:
    """An answer with Gaussian noise, whose epsilon is that of the answer alone."""
    if not terms.delta:
        raise EnvelopeError("it asks for Gaussian noise, and no delta was declared")
    event = gaussian_event(query, noise_multiplier, terms.relation, terms.unit)
    epsilon = epsilon_for(event, terms.delta, terms.unit)
    if epsilon * MICRO > terms.most_each:
        raise _too_dear(epsilon, terms)
    return Priced(event, add_discrete_gaussian)


def _too_dear(epsilon: float, terms: Terms) -> EnvelopeError:
    """Error for an answer that costs more than one may."""
    return EnvelopeError(
        f"it asks for epsilon {epsilon:g} at once, more than the {terms.most_each / MICRO:g} "
        "that one answer may cost"
    )

"""A source in this process that answers from noise charged beforehand, without a ledger."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from veracal import _checks, _random
from veracal._types import Ints
from veracal.accounting import (
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Repeated,
    Unit,
)
from veracal.data import Scores
from veracal.errors import AnswerError, BudgetError, ConflictError
from veracal.mechanisms import add_discrete_gaussian, add_discrete_laplace
from veracal.queries import (
    Query,
    Release,
    canonical_request,
    gaussian_event,
    laplace_event,
    noise_std,
)

Noise = DiscreteLaplace | DiscreteGaussian


class PrepaidSource:
    r"""Scores that answer queries with noise from a declared and charged event.

    A fit that was charged as a whole has no ledger to charge for single queries. This source
    (a ``GaussianSource``) holds the multiset of declared noises and removes one per answer.

    Parameters
    ----------
    scores : Scores
    event : Event
        The declared cost: one discrete noise, or a composition of several.
    unit : Unit, optional
    rng : Generator
        A secret generator gives exact noise from the system's entropy. A seeded one is for
        tests and public records; its releases are marked as not private.

    Guarantees
    ----------
    Every answer uses exactly one declared noise that is not yet used. The noise is removed
    before a record is read and is not restored after a failure. Any other query raises a
    :class:`~veracal.errors.BudgetError` that does not depend on the records. All answers
    together therefore cost at most the event, in any order and for adaptive queries, because
    the multiset of noises is fixed beforehand. The same query or the same request id gets the
    same answer. The source cannot be copied, because a copy would answer with fresh noise.

    Examples
    --------
    >>> from veracal.calibration import Gap
    >>> scores = Scores.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 1])
    >>> source = PrepaidSource(scores, laplace_event(Gap(), 500_000, "add-remove"))
    >>> source.answer(Gap(inverse=0.5), micro_epsilon=500_000).private
    True
    >>> source.answer(Gap(inverse=0.7), micro_epsilon=500_000)
    Traceback (most recent call last):
    veracal.errors.BudgetError: 'gap' was not declared, or is used up; no record was read...
    """

    __slots__ = ("_answers", "_lock", "_remaining", "_rng", "_scores", "relation", "unit")

    def __init__(
        self,
        scores: Scores,
        event: Event,
        *,
        unit: Unit | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._scores, self._remaining = scores, declared_noises(event)
        self._rng = _random.secret_generator() if rng is None else rng
        self._answers = dict[str, tuple[bytes, Release | None]]()
        self._lock = threading.Lock()
        self.relation, self.unit = event.relation, unit or Unit()

    def __repr__(self) -> str:
        remaining = sum(self._remaining.values())
        return f"PrepaidSource({self._scores.name!r}, {remaining} answers left)"

    def answer(
        self, query: Query, *, micro_epsilon: int, request: str | None = None
    ) -> Release:
        """Answer with discrete Laplace noise, if it was declared."""
        _checks.whole(micro_epsilon=micro_epsilon)
        event = laplace_event(query, int(micro_epsilon), self.relation, self.unit)
        return self._answer(query, event, int(micro_epsilon), request)

    def answer_gaussian(
        self, query: Query, *, noise_multiplier: float, request: str | None = None
    ) -> Release:
        """Answer with discrete Gaussian noise, if it was declared."""
        event = gaussian_event(query, noise_multiplier, self.relation, self.unit)
        return self._answer(query, event, None, request)

    def _answer(
        self, query: Query, event: Noise, micro_epsilon: int | None, request: str | None
    ) -> Release:
        """The answer, or the earlier one to the same query or under the same request id."""
        body = canonical_request(query, event, self._scores, None, "")
        key = body.decode() if request is None else request
        with self._lock:
            if key in self._answers:
                earlier, answer = self._answers[key]
                if earlier != body:
                    raise ConflictError(
                        f"This request id was used for another query than {query.name!r}."
                    )
                if answer is None:
                    raise AnswerError(
                        f"{query.name!r} could not be answered; repeating it fails again."
                    )
                return answer
            if not self._remaining[event]:
                raise BudgetError(
                    f"{query.name!r} was not declared, or is used up; no record was read. "
                    "Query exactly what event() declares."
                )
            self._remaining[event] -= 1
            self._answers[key] = body, None  # a failure is remembered and stays paid
            answer = self._release(query, event, micro_epsilon)
            self._answers[key] = body, answer
        return answer

    def _release(self, query: Query, event: Noise, micro_epsilon: int | None) -> Release:
        """The answer with its noise."""
        units = add_noise(query.evaluate(self._scores), event, rng=self._rng)
        return Release(
            query.name,
            tuple(int(unit) for unit in units),
            query.grid,
            noise_std(event) * query.grid.step,
            micro_epsilon,
            event,
            private=_random.is_secret(self._rng),
        )

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled: a copy would answer again with "
            "noise that was charged once."
        )

    __reduce_ex__ = __deepcopy__ = __copy__ = __getstate__ = _refuse


def declared_noises(event: Event) -> Counter[Noise]:
    """The noises in an event with their multiplicities; it may contain no other mechanisms.

    Examples
    --------
    >>> declared_noises(Repeated(DiscreteLaplace(3.0, 1), 2))
    Counter({DiscreteLaplace(noise=3.0, sensitivity=1, relation='add-remove'): 2})
    """
    if isinstance(event, DiscreteLaplace | DiscreteGaussian):
        return Counter({event: 1})
    if isinstance(event, Repeated):
        each = declared_noises(event.event)
        return Counter({noise: n * event.times for noise, n in each.items()})
    if isinstance(event, Composed):
        return sum(map(declared_noises, event.events), Counter())
    raise ValueError(f"Expected discrete noise or a composition of it, got {event!r}.")


def add_noise(units: Ints, event: Noise, *, rng: np.random.Generator) -> Ints:
    r"""Integers plus the noise of an event; exact if the generator is secret.

    The difference of two independent geometric variables is discrete Laplace noise. Gaussian
    noise from a seeded generator is rounded, which only approximates the discrete
    distribution.
    """
    laplace = isinstance(event, DiscreteLaplace)
    if _random.is_secret(rng):
        add: Callable[[Ints, float], Ints]
        add = add_discrete_laplace if laplace else add_discrete_gaussian
        return add(units, event.noise)
    if laplace:
        geometric = rng.geometric(-np.expm1(-1 / event.noise), (2, len(units)))
        noise = geometric[0] - geometric[1]
    else:
        noise = np.rint(rng.normal(0.0, event.noise, len(units))).astype(np.int64)
    result: Ints = units + noise
    return result

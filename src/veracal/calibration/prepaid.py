"""Scores that answer what was paid for beforehand, and nothing else."""

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
    r"""Scores whose answers were announced as an event and charged: a ``GaussianSource``.

    Inside a fit that was charged as a whole there is no ledger left to ask. This source stands
    in for one: it holds the list of the announced noises and strikes one off for every answer.

    Parameters
    ----------
    scores : Scores
    event : Event
        What was announced: one discrete noise, or a composition of some.
    unit : Unit, optional
        Whom the noise protects; by default one row.
    rng : Generator
        Secret: noise is exact and comes from the system's randomness. Any other repeats
        itself, for tests and public records, and releases say that they are not private.

    Guarantees
    ----------
    An answer has exactly a noise that was announced and is not used up; it is struck off
    before a record is read, and a failure does not bring it back. Whatever else is asked is a
    :class:`~veracal.errors.BudgetError` that depends on no record. All answers together
    therefore cost at most the event, in whatever order and however adaptively they are asked:
    the list of noises was fixed beforehand. The same question, or the same request, gets the
    same answer. There are no copies, which would answer anew.

    Examples
    --------
    >>> from veracal.calibration.queries import Gap
    >>> scores = Scores.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 1])
    >>> source = PrepaidSource(scores, laplace_event(Gap(), 500_000, "add-remove"))
    >>> source.answer(Gap(inverse=0.5), micro_epsilon=500_000).private
    True
    >>> source.answer(Gap(inverse=0.7), micro_epsilon=500_000)
    Traceback (most recent call last):
    veracal.errors.BudgetError: 'gap' was not announced, or is used up; no record was read...
    """

    __slots__ = ("_given", "_left", "_lock", "_rng", "_scores", "relation", "unit")

    def __init__(
        self,
        scores: Scores,
        event: Event,
        *,
        unit: Unit | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._scores, self._left = scores, announced(event)
        self._rng = _random.secret_generator() if rng is None else rng
        self._given: dict[str, tuple[bytes, Release | None]] = {}
        self._lock = threading.Lock()
        self.relation, self.unit = event.relation, unit or Unit()

    def __repr__(self) -> str:
        return f"PrepaidSource({self._scores.name!r}, {sum(self._left.values())} answers left)"

    def answer(
        self, query: Query, *, micro_epsilon: int, request: str | None = None
    ) -> Release:
        """Answer with discrete Laplace noise, if that was announced."""
        _checks.whole(micro_epsilon=micro_epsilon)
        event = laplace_event(query, int(micro_epsilon), self.relation, self.unit)
        return self._answered(query, event, int(micro_epsilon), request)

    def answer_gaussian(
        self, query: Query, *, noise_multiplier: float, request: str | None = None
    ) -> Release:
        """Answer with discrete Gaussian noise, if that was announced."""
        event = gaussian_event(query, noise_multiplier, self.relation, self.unit)
        return self._answered(query, event, None, request)

    def _answered(
        self, query: Query, event: Noise, micro_epsilon: int | None, request: str | None
    ) -> Release:
        """Strike the noise off the list, then read, add the noise and remember."""
        body = canonical_request(query, event, self._scores, None, "")
        key = body.decode() if request is None else request
        with self._lock:
            if key in self._given:
                return _repeated(query, self._given[key], body)
            if not self._left[event]:
                raise BudgetError(
                    f"{query.name!r} was not announced, or is used up; no record was read. "
                    "Ask for what event() says, once."
                )
            self._left[event] -= 1
            self._given[key] = body, None  # a failure is remembered, and stays paid
            release = self._release(query, event, micro_epsilon)
            self._given[key] = body, release
        return release

    def _release(self, query: Query, event: Noise, micro_epsilon: int | None) -> Release:
        """The answer with its noise."""
        units = noised(query.evaluate(self._scores), event, rng=self._rng)
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
            "Expected a source that was paid for to stay where it is: a copy of it would "
            "answer again what was paid for once."
        )

    __reduce_ex__ = __deepcopy__ = __copy__ = __getstate__ = _refuse


def announced(event: Event) -> Counter[Noise]:
    """The noises that an event announces, each with how often.

    Raises
    ------
    ValueError
        If there is anything else in it: only discrete noise can be added here.

    Examples
    --------
    >>> announced(Repeated(DiscreteLaplace(3.0, 1), 2))
    Counter({DiscreteLaplace(noise=3.0, sensitivity=1, relation='add-remove'): 2})
    """
    if isinstance(event, DiscreteLaplace | DiscreteGaussian):
        return Counter({event: 1})
    if isinstance(event, Repeated):
        each = announced(event.event)
        return Counter({noise: n * event.times for noise, n in each.items()})
    if isinstance(event, Composed):
        return sum(map(announced, event.events), Counter())
    raise ValueError(f"Expected discrete noise or a composition of it, got {event!r}.")


def noised(units: Ints, event: Noise, *, rng: np.random.Generator) -> Ints:
    r"""Integers with the noise of an event: exact, unless the generator can be repeated.

    Two independent geometric numbers differ by discrete Laplace noise. Gaussian noise that
    can be repeated is rounded, and so near the discrete law only.
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


def _repeated(query: Query, given: tuple[bytes, Release | None], body: bytes) -> Release:
    """What was answered before to the same question."""
    asked, release = given
    if asked != body:
        raise ConflictError(f"Another question than {query.name!r} had this request id.")
    if release is None:
        raise AnswerError(f"{query.name!r} could not be answered; asking again is no help.")
    return release

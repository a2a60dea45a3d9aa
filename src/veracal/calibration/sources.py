"""Sources in this process that answer from noise or a budget fixed beforehand, without a ledger.

:class:`PrepaidSource` answers queries whose noise was declared and charged, inside a fit.
:class:`SimulatedSources` are thousands of sources for studies of federated queries.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks, _random
from veracal._types import Ints
from veracal.accounting import (
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Relation,
    Repeated,
    Unit,
)
from veracal.accounting import (
    micro_epsilon as micro_epsilon_of,
)
from veracal.data import Scores
from veracal.errors import AnswerError, BudgetError, ConflictError, DataError, DropoutError
from veracal.mechanisms import add_discrete_gaussian, add_discrete_laplace
from veracal.queries import (
    MultiSource,
    Path,
    PooledRelease,
    ProtectionOnly,
    Query,
    QueryRequest,
    Release,
    SkippedSource,
    canonical_request,
    check_additive,
    combine_answers,
    gaussian_event,
    laplace_event,
    noise_std,
    sums_by_source,
)

Noise = DiscreteLaplace | DiscreteGaussian
Tampering = Callable[[Release], object]


class _AnswersOnce:
    """Charges and computes each answer once, remembers it, and cannot be copied."""

    __slots__ = ()
    _answers: dict[str, tuple[bytes, Any]]
    _lock: threading.Lock
    _scores: Scores

    def _once(
        self,
        query: Query,
        event: Noise,
        request: str | None,
        pay: Callable[[], None],
        compute: Callable[[], Any],
    ) -> Any:
        """The answer to a query, or the earlier one under the same request id."""
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
            pay()
            self._answers[key] = body, None  # a failure is remembered and stays paid
            answer = compute()
            self._answers[key] = body, answer
        return answer

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled: a copy would answer again with "
            "noise that was charged once."
        )

    __reduce_ex__ = __deepcopy__ = __copy__ = __getstate__ = _refuse


class PrepaidSource(_AnswersOnce):
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
        self._answers, self._lock = {}, threading.Lock()
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
        """Use up a declared noise, then evaluate, add the noise and remember the answer."""

        def pay() -> None:
            if not self._remaining[event]:
                raise BudgetError(
                    f"{query.name!r} was not declared, or is used up; no record was read. "
                    "Query exactly what event() declares."
                )
            self._remaining[event] -= 1

        release: Release = self._once(
            query, event, request, pay, lambda: self._release(query, event, micro_epsilon)
        )
        return release

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


class SimulatedSources(_AnswersOnce, MultiSource):
    r"""Scores divided among many simulated sources with their own noise.

    They answer like a :class:`~veracal.queries.Pool` of curators, with the same noise, but are
    evaluated together and charged to an account in memory: 10,000 sources answer in a fraction
    of a second. Use them to study federated recalibration on data that is in one place.

    Parameters
    ----------
    scores : Scores
    index : array of ints of shape (n,)
        Source of each record, from 0.
    sources : int, optional
        Number of sources, possibly without records; by default the largest index + 1.
    micro_epsilon : int, optional
        Budget of each source, in millionths of epsilon.
    event : Event, optional
        Alternatively, the declared cost as in
        :class:`~veracal.calibration.sources.PrepaidSource`.
    relation, unit
        Neighboring relation and privacy unit.
    min_sources, max_records
        As in a pool.
    dropouts : iterable of int, or mapping of int to int
        Sources that never answer, or the number of answers before each drops out.
    tampering : mapping of int to callable
        Sources that send the result of the callable instead of their release.
    rng : Generator
        A secret generator gives exact noise from the system's entropy. The releases of a seeded
        one are marked as not private.

    Guarantees
    ----------
    With a secret generator the noise of every source is drawn exactly and independently. The
    cost is deducted before a record is read and is not restored after a failure. The same
    query or the same request id gets the same answer. The sources cannot be copied, because a
    copy would answer with fresh noise.

    Examples
    --------
    >>> from veracal.calibration import Gap
    >>> scores = Scores.from_logits([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [0, 1, 0])
    >>> source = SimulatedSources(
    ...     scores, [0, 0, 1], micro_epsilon=1_000_000, dropouts=[1],
    ...     min_sources=1,
    ... )
    >>> source.answer(Gap(), micro_epsilon=500_000).dropouts
    (None, 'it did not answer')
    """

    def __init__(
        self,
        scores: Scores,
        index: ArrayLike,
        *,
        sources: int | None = None,
        micro_epsilon: int | None = None,
        event: Event | None = None,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        min_sources: int | None = None,
        max_records: int | None = None,
        dropouts: Iterable[int] | Mapping[int, int] = (),
        tampering: Mapping[int, Tampering] | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        places = np.asarray(index)
        shape = (len(scores),)
        if places.shape != shape or (
            len(scores) and (places.dtype.kind not in "iu" or places.min() < 0)
        ):
            raise DataError(
                "index",
                f"an int from 0 for each of {len(scores)} records",
                f"{places.dtype} of shape {places.shape}",
                "Pass the index of every record's source.",
            )
        self._scores, self._index = scores, places.astype(np.int64)
        least_sources = max(int(self._index.max(initial=-1)) + 1, 1)
        self.sources = least_sources if sources is None else int(sources)
        if self.sources < least_sources:
            raise ValueError(f"Expected sources >= {least_sources}, got sources={sources!r}.")
        if (micro_epsilon is None) == (event is None):
            raise ValueError("Expected one of micro_epsilon and event, got both or neither.")
        if micro_epsilon is not None:
            _checks.whole(micro_epsilon=micro_epsilon)
        self._micro = micro_epsilon  # remaining, or None with declared noises
        self._noises = Counter[Noise]() if event is None else declared_noises(event)
        self.relation: Relation = relation if event is None else event.relation
        self.unit, self.min_sources, self.max_records = unit or Unit(), min_sources, max_records
        self._dropouts = (
            dropouts if isinstance(dropouts, Mapping) else dict.fromkeys(dropouts, 0)
        )
        self._tampering = dict(tampering or {})
        self._rng = _random.secret_generator() if rng is None else rng
        self._answers, self._lock = {}, threading.Lock()

    def __repr__(self) -> str:
        return f"SimulatedSources({self._scores.name!r}, {self.sources} sources)"

    def round(
        self,
        query_request: QueryRequest,
        *,
        request: str | None = None,
        dropped: Mapping[Path, str] | None = None,
    ) -> PooledRelease:
        """Query all sources except those that dropped out before, as in a pool."""
        query, dropped = query_request.query, dropped or {}
        check_additive(query)
        event = query_request.event(self.relation, self.unit)

        def compute() -> tuple[int, Ints]:
            number = len(self._answers) - 1  # of this query, which is remembered already
            try:
                exact = sums_by_source(query, self._scores, self._index, self.sources)
            except Exception as error:
                raise AnswerError(f"{query.name!r} could not be answered.") from error
            noisy = add_noise(exact.ravel(), event, rng=self._rng)
            return number, noisy.reshape(exact.shape)

        number, units = self._once(
            query, event, request, lambda: self._pay(event, query), compute
        )
        name, grid, _ = query_request.form
        std, private = noise_std(event) * grid.step, _random.is_secret(self._rng)
        responses: list[object] = []
        for i, row in enumerate(units.tolist()):
            if (i,) in dropped:
                responses.append(SkippedSource(dropped[i,]))
            elif number >= self._dropouts.get(i, number + 1):
                responses.append(DropoutError("The simulated source dropped out."))
            else:
                release = Release(
                    name,
                    tuple(row),
                    grid,
                    std,
                    query_request.micro_epsilon,
                    event,
                    private=private,
                )
                tamper = self._tampering.get(i)
                responses.append(release if tamper is None else tamper(release))
        return combine_answers(
            query_request,
            responses,
            [ProtectionOnly(self.relation, self.unit)] * self.sources,
            min_sources=self.min_sources,
            max_records=self.max_records,
            dropped=dropped,
        )

    def paths(self) -> list[Path]:
        """Path of each single source."""
        return [(i,) for i in range(self.sources)]

    def _pay(self, event: Noise, query: Query) -> None:
        """Deduct the cost of an event from every source's budget, or raise a BudgetError."""
        if self._micro is None:
            enough = self._noises[event] > 0
            self._noises[event] -= enough
        else:
            cost = micro_epsilon_of(event, self.unit)
            enough = cost <= self._micro
            self._micro -= cost * enough
        if not enough:
            raise BudgetError(
                f"{query.name!r} exceeds the remaining budget of each source; no record was "
                "read. Lower the cost of the query or raise the budget."
            )

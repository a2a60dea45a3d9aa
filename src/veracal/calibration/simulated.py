"""Thousands of simulated sources in one process, for studies of federated queries."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks, _random
from veracal._types import Ints
from veracal.accounting import Event, Relation, Unit, micro_epsilon
from veracal.calibration.prepaid import Noise, add_noise, declared_noises
from veracal.data import Scores
from veracal.errors import AnswerError, BudgetError, ConflictError, DataError, DropoutError
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
    noise_std,
    sums_by_source,
)

Tampering = Callable[[Release], object]


@dataclass(frozen=True)
class _Answer:
    """The answers of all sources to one query; ``units`` is None after a failure."""

    body: bytes
    number: int
    units: Ints | None


class SimulatedSources(MultiSource):
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
        :class:`~veracal.calibration.prepaid.PrepaidSource`.
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
        self._scores, self._index = scores, _check_index(index, len(scores))
        n_indexed = int(self._index.max(initial=-1)) + 1
        self.sources = max(n_indexed, 1) if sources is None else int(sources)
        if self.sources < max(n_indexed, 1):
            raise ValueError(
                f"Expected sources >= {max(n_indexed, 1)}, got sources={sources!r}."
            )
        self._account = _Account(micro_epsilon, event, unit or Unit())
        self.relation: Relation = relation if event is None else event.relation
        self.unit, self.min_sources, self.max_records = unit or Unit(), min_sources, max_records
        self._dropouts = (
            dropouts if isinstance(dropouts, Mapping) else dict.fromkeys(dropouts, 0)
        )
        self._tampering = dict(tampering or {})
        self._rng = _random.secret_generator() if rng is None else rng
        self._answers = dict[str, _Answer]()
        self._lock = threading.Lock()

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
        check_additive(query_request.query)
        dropped = dropped or {}
        event = query_request.event(self.relation, self.unit)
        answer = self._answer(query_request.query, event, request)
        if answer.units is None:
            raise AnswerError(
                f"{query_request.query.name!r} could not be answered; repeating it fails again."
            )
        responses = [
            SkippedSource(dropped[i,])
            if (i,) in dropped
            else self._respond(query_request, event, answer, i, row)
            for i, row in enumerate(answer.units.tolist())
        ]
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

    def _respond(
        self,
        query_request: QueryRequest,
        event: Noise,
        answer: _Answer,
        i: int,
        units: list[int],
    ) -> object:
        """Response of one source."""
        if answer.number >= self._dropouts.get(i, answer.number + 1):
            return DropoutError("The simulated source dropped out.")
        name, grid, _ = query_request.form
        release = Release(
            name,
            tuple(units),
            grid,
            noise_std(event) * grid.step,
            query_request.micro_epsilon,
            event,
            private=_random.is_secret(self._rng),
        )
        return self._tampering[i](release) if i in self._tampering else release

    def _answer(self, query: Query, event: Noise, request: str | None) -> _Answer:
        """Charge, evaluate, add noise and remember, once for each query."""
        body = canonical_request(query, event, self._scores, None, "")
        key = body.decode() if request is None else request
        with self._lock:
            if key in self._answers:
                if self._answers[key].body != body:
                    raise ConflictError(
                        f"This request id was used for another query than {query.name!r}."
                    )
                return self._answers[key]
            self._account.pay(event, query)
            number = len(self._answers)
            self._answers[key] = _Answer(body, number, None)  # a failure stays paid
            try:
                exact = sums_by_source(query, self._scores, self._index, self.sources)
            except Exception as error:
                raise AnswerError(f"{query.name!r} could not be answered.") from error
            units = add_noise(exact.ravel(), event, rng=self._rng).reshape(exact.shape)
            self._answers[key] = _Answer(body, number, units)
            return self._answers[key]

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            "Simulated sources cannot be copied or pickled: a copy would answer again with "
            "noise that was charged once."
        )

    __reduce_ex__ = __deepcopy__ = __copy__ = __getstate__ = _refuse


class _Account:
    """Remaining budget of every source: millionths of epsilon, or declared noises."""

    def __init__(self, micro: int | None, event: Event | None, unit: Unit) -> None:
        if (micro is None) == (event is None):
            raise ValueError("Expected one of micro_epsilon and event, got both or neither.")
        if micro is not None:
            _checks.whole(micro_epsilon=micro)
        self._micro, self._unit = micro, unit
        self._left = Counter[Noise]() if event is None else declared_noises(event)

    def pay(self, event: Noise, query: Query) -> None:
        """Deduct the cost of an event, or raise a BudgetError."""
        if self._micro is None:
            enough = self._left[event] > 0
            self._left[event] -= enough
        else:
            cost = micro_epsilon(event, self._unit)
            enough = cost <= self._micro
            self._micro -= cost * enough
        if not enough:
            raise BudgetError(
                f"{query.name!r} exceeds the remaining budget of each source; no record was "
                "read. Lower the cost of the query or raise the budget."
            )


def _check_index(index: ArrayLike, n: int) -> Ints:
    """Indices of sources as ints."""
    array = np.asarray(index)
    if array.shape != (n,) or (n and (array.dtype.kind not in "iu" or array.min() < 0)):
        raise DataError(
            "index",
            f"an int from 0 for each of {n} records",
            f"{array.dtype} of shape {array.shape}",
            "Pass the index of every record's source.",
        )
    return array.astype(np.int64)

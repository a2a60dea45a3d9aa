"""Thousands of sources in one place, for studies of what many answer together."""

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
from veracal.calibration.prepaid import Noise, announced, noised
from veracal.data import Scores
from veracal.errors import AnswerError, BudgetError, ConflictError, DataError, SilentError
from veracal.queries import (
    AnswersByRound,
    ExpectedResponse,
    Path,
    PooledRelease,
    ProtectionOnly,
    Query,
    Release,
    SkippedSource,
    canonical_request,
    check_sum,
    combine_answers,
    noise_std,
    sums_by_source,
)

Lie = Callable[[Release], object]


@dataclass(frozen=True)
class _Given:
    """What all sources answered to one question: None if they failed."""

    body: bytes
    number: int
    units: Ints | None


class Simulated(AnswersByRound):
    r"""Scores that are spread over many sources, each of which adds noise of its own.

    They answer as a :class:`~veracal.queries.Pool` of that many holders would, with the same
    noise, but are evaluated together and pay from an account in memory: 10,000 of them answer
    in a fraction of a second. Whoever holds all of these scores has no need of a federation;
    this is for studies of one.

    Parameters
    ----------
    scores : Scores
    place : array of ints of shape (n,)
        Source of each record, from 0.
    sources : int, optional
        How many there are, which may have no record; by default as many as ``place`` names.
    micro_epsilon : int, optional
        What each source may spend, in millionths of epsilon.
    event : Event, optional
        Instead: what was announced, as of :class:`~veracal.calibration.prepaid.PrepaidSource`.
    relation, unit
        Whom the noise protects.
    least, most_records
        As of a pool.
    silent : iterable of int, or mapping of int to int
        Sources that never answer; or how many answers they give before they fall silent.
    lying : mapping of int to callable
        Sources that send something else: what the callable makes of their release.
    rng : Generator
        Secret: noise is exact and comes from the system's randomness. Any other repeats
        itself, and releases say that they are not private.

    Guarantees
    ----------
    With a secret generator every source's noise is drawn exactly, all of it at once but each
    number for itself. What a source may spend is struck off before a record is read, and a
    failure does not bring it back. The same question, or the same request, gets the same
    answer. There are no copies, which would answer anew.

    Examples
    --------
    >>> from veracal.calibration.queries import Gap
    >>> scores = Scores.from_logits([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [0, 1, 0])
    >>> source = Simulated(scores, [0, 0, 1], micro_epsilon=1_000_000, silent=[1], least=1)
    >>> source.answer(Gap(), micro_epsilon=500_000).silences
    (None, 'it did not answer')
    """

    def __init__(
        self,
        scores: Scores,
        place: ArrayLike,
        *,
        sources: int | None = None,
        micro_epsilon: int | None = None,
        event: Event | None = None,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        least: int | None = None,
        most_records: int | None = None,
        silent: Iterable[int] | Mapping[int, int] = (),
        lying: Mapping[int, Lie] | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._scores, self._place = scores, _checked_place(place, len(scores))
        named = int(self._place.max(initial=-1)) + 1
        self.sources = max(named, 1) if sources is None else int(sources)
        if self.sources < max(named, 1):
            raise ValueError(f"Expected sources >= {max(named, 1)}, got sources={sources!r}.")
        self._purse = _Purse(micro_epsilon, event, unit or Unit())
        self.relation: Relation = relation if event is None else event.relation
        self.unit, self.least, self.most_records = unit or Unit(), least, most_records
        self._silent = silent if isinstance(silent, Mapping) else dict.fromkeys(silent, 0)
        self._lying = dict(lying or {})
        self._rng = _random.secret_generator() if rng is None else rng
        self._given = dict[str, _Given]()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Simulated({self._scores.name!r}, {self.sources} sources)"

    def round(
        self,
        wanted: ExpectedResponse,
        *,
        request: str | None = None,
        silent: Mapping[Path, str] | None = None,
    ) -> PooledRelease:
        """Ask all sources but those that were silent before, as of a pool."""
        check_sum(wanted.query)
        silent = silent or {}
        event = wanted.event(self.relation, self.unit)
        given = self._drawn(wanted.query, event, request)
        if given.units is None:
            raise AnswerError(
                f"{wanted.query.name!r} could not be answered; asking again is no help."
            )
        sent = [
            SkippedSource(silent[i,])
            if (i,) in silent
            else self._sent(wanted, event, given, i, row)
            for i, row in enumerate(given.units.tolist())
        ]
        return combine_answers(
            wanted,
            sent,
            [ProtectionOnly(self.relation, self.unit)] * self.sources,
            least=self.least,
            most_records=self.most_records,
            silent=silent,
        )

    def paths(self) -> list[Path]:
        """Where each single source is."""
        return [(i,) for i in range(self.sources)]

    def _sent(
        self, wanted: ExpectedResponse, event: Noise, given: _Given, i: int, units: list[int]
    ) -> object:
        """What one source sends."""
        if given.number >= self._silent.get(i, given.number + 1):
            return SilentError("It was simulated to be silent.")
        name, grid, _ = wanted.form
        release = Release(
            name,
            tuple(units),
            grid,
            noise_std(event) * grid.step,
            wanted.micro_epsilon,
            event,
            private=_random.is_secret(self._rng),
        )
        return self._lying[i](release) if i in self._lying else release

    def _drawn(self, query: Query, event: Noise, request: str | None) -> _Given:
        """Pay, then read, add noise and remember: once for each question."""
        body = canonical_request(query, event, self._scores, None, "")
        key = body.decode() if request is None else request
        with self._lock:
            if key in self._given:
                if self._given[key].body != body:
                    raise ConflictError(f"Another question than {query.name!r} had this id.")
                return self._given[key]
            self._purse.pay(event, query)
            number = len(self._given)
            self._given[key] = _Given(body, number, None)  # a failure stays paid
            try:
                exact = sums_by_source(query, self._scores, self._place, self.sources)
            except Exception as error:
                raise AnswerError(f"{query.name!r} could not be answered.") from error
            units = noised(exact.ravel(), event, rng=self._rng).reshape(exact.shape)
            self._given[key] = _Given(body, number, units)
            return self._given[key]

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            "Expected simulated sources to stay where they are: a copy of them would answer "
            "again what was paid for once."
        )

    __reduce_ex__ = __deepcopy__ = __copy__ = __getstate__ = _refuse


class _Purse:
    """What every source may still spend: so many millionths, or the noises of a list."""

    def __init__(self, micro: int | None, event: Event | None, unit: Unit) -> None:
        if (micro is None) == (event is None):
            raise ValueError("Expected one of micro_epsilon and event, got both or neither.")
        if micro is not None:
            _checks.whole(micro_epsilon=micro)
        self._micro, self._unit = micro, unit
        self._left = Counter[Noise]() if event is None else announced(event)

    def pay(self, event: Noise, query: Query) -> None:
        """Strike an event off, or refuse it."""
        if self._micro is None:
            enough = self._left[event] > 0
            self._left[event] -= enough
        else:
            cost = micro_epsilon(event, self._unit)
            enough = cost <= self._micro
            self._micro -= cost * enough
        if not enough:
            raise BudgetError(
                f"{query.name!r} does not fit into what each source may spend; no record was "
                "read. Ask for less, or let them spend more."
            )


def _checked_place(place: ArrayLike, n: int) -> Ints:
    """Where each record is, as ints."""
    found = np.asarray(place)
    if found.shape != (n,) or (n and (found.dtype.kind not in "iu" or found.min() < 0)):
        raise DataError(
            "place",
            f"an int from 0 for each of {n} records",
            f"{found.dtype} of shape {found.shape}",
            "Give the number of every record's source.",
        )
    return found.astype(np.int64)

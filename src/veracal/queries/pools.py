"""What several sources answered together: their sum, and who is left out of it.

Several sources that answer as one, though some may be silent.
"""

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeGuard, runtime_checkable

from veracal import _checks
from veracal._types import Frozen
from veracal.accounting import DiscreteGaussian, DiscreteLaplace, Event, Parallel
from veracal.errors import AnswerError, BudgetError, LedgerError, SilentError
from veracal.queries.curator import Curator
from veracal.queries.query import NonAdditive, Query
from veracal.queries.response_checks import ExpectedResponse, find_invalid_responses
from veracal.queries.sources import GaussianSource, Release, Source, is_declared

Path = tuple[int, ...]  # to a source: its number in the pool, then in the pool inside, ...
INVALID_RESPONSE = "its answer is nonsense"


@dataclass(frozen=True)
class SkippedSource:
    """Stands for the answer of a source that was silent before, with the reason."""

    why: str


SILENT: tuple[tuple[type[Exception], str], ...] = (
    (BudgetError, "its budget does not allow the answer"),
    (AnswerError, "it could not compute the answer"),
    (SilentError, "it did not answer"),
    (LedgerError, "its ledger cannot be used"),
    (TimeoutError, "it did not answer in time"),
    (OSError, "it could not be reached"),
)
_KINDS: "weakref.WeakKeyDictionary[type, bool]" = weakref.WeakKeyDictionary()
_NAMED = 5  # silent sources that an error tells one by one


@dataclass(frozen=True)
class PooledRelease(Release):
    """The sum of the answers of several sources.

    The fields of :class:`Release` are about those that answered: their sum, its noise.

    Attributes
    ----------
    parts : tuple of (Release or None)
        Their answers, in the order of the sources; None for one that was silent.
    silences : tuple of (str or None)
        Why each of them was silent; None for one that answered.
    asked : mapping of path to Event
        What each single source was asked for, and so may have charged whether or not it
        answered. A path is the number of a source, followed by a number inside of it if that
        is a pool. Who was not asked, or holds public records, is not in it.
    """

    parts: tuple[Release | None, ...] = field(default=(), repr=False)
    silences: tuple[str | None, ...] = field(default=(), repr=False)
    asked: Mapping[Path, Event] = field(default_factory=Frozen, repr=False)

    def without(self, silent: Mapping[Path, str]) -> "PooledRelease":
        """The same answer, added over fewer sources; what was asked of whom stays.

        Guarantees
        ----------
        It is made of the parts alone, which were released: it costs nothing.
        """
        if not silent:
            return self
        within = within_each(silent)
        kept = [
            None if part is None or (i,) in silent else _less(part, within.get(i, {}))
            for i, part in enumerate(self.parts)
        ]
        why = tuple(silent.get((i,), reason) for i, reason in enumerate(self.silences))
        if not any(part is not None for part in kept):
            raise SilentError("Expected somebody to have answered, got nobody.", why)
        return _sum(self, kept, why, self.asked)

    def silent(self) -> dict[Path, str]:
        """Who was silent and why, in pools inside of the pool, too."""
        found = dict[Path, str]()
        found |= {(i,): why for i, why in enumerate(self.silences) if why is not None}
        for i, part in enumerate(self.parts):
            if isinstance(part, PooledRelease):
                found |= {(i, *path): why for path, why in part.silent().items()}
        return found


@runtime_checkable
class MultiSource(Source, Protocol):
    """A source that is several, and tells what each of them answered."""

    def round(
        self,
        wanted: ExpectedResponse,
        *,
        request: str | None = None,
        silent: Mapping[Path, str] | None = None,
    ) -> PooledRelease:
        """Ask all but those that were silent before."""

    def paths(self) -> list[Path]:
        """Where each single source is."""


@runtime_checkable
class IndexedSources(MultiSource, Protocol):
    """MultiSource sources that can be looked at one by one."""

    @property
    def least(self) -> int | None:
        """How many must answer; all if None."""

    def members(self) -> Sequence[object]:
        """The sources, in order."""


class AnswersByRound(ABC):
    """Whoever is several, and answers one question as one: by a round with all of them."""

    @abstractmethod
    def round(
        self,
        wanted: ExpectedResponse,
        *,
        request: str | None = None,
        silent: Mapping[Path, str] | None = None,
    ) -> PooledRelease:
        """Ask all but those that were silent before."""

    def answer(
        self, query: Query, *, micro_epsilon: int, request: str | None = None
    ) -> PooledRelease:
        """Ask every source, and add."""
        _checks.whole(micro_epsilon=micro_epsilon)
        return self.round(
            ExpectedResponse(query, micro_epsilon=int(micro_epsilon)), request=request
        )

    def answer_gaussian(
        self, query: Query, *, noise_multiplier: float, request: str | None = None
    ) -> PooledRelease:
        """Ask every source for Gaussian noise, and add."""
        return self.round(
            ExpectedResponse(query, noise_multiplier=noise_multiplier), request=request
        )


def is_multi_source(source: object) -> TypeGuard[MultiSource]:
    """Whether a source is several; looked up once for each class, since that takes long."""
    kind = type(source)
    if kind not in _KINDS:
        _KINDS[kind] = issubclass(kind, MultiSource)
    return _KINDS[kind]


def is_pool(source: object) -> TypeGuard[IndexedSources]:
    """Whether a source is several that can be looked at one by one."""
    return is_multi_source(source) and isinstance(source, IndexedSources)


def combine_answers(
    wanted: ExpectedResponse,
    given: Sequence[object],
    sources: Sequence[object],
    *,
    least: int | None,
    most_records: int | None,
    silent: Mapping[Path, str],
) -> PooledRelease:
    """Leave out what is nonsense, see whether enough is left, and add.

    Parameters
    ----------
    wanted : Wanted
    given : sequence of object
        What each source sent, the error it failed with, or that it was not asked.
    sources : sequence of Source or Protected
    least, most_records
        As of :class:`~veracal.queries.Pool`.
    silent : mapping of path to str
        Who was not asked.
    """
    parts = [one if isinstance(one, Release) else None for one in given]
    why = [None if isinstance(one, Release) else _reason(one) for one in given]
    single = {  # whoever is no pool cannot pass for one, which has judged its own
        i: part
        for i, part in enumerate(parts)
        if part is not None and not is_multi_source(sources[i])
    }
    for i, fault in find_invalid_responses(wanted, single, sources, most_records).items():
        parts[i], why[i] = None, f"{INVALID_RESPONSE}: {fault}"
    check_enough(why, least, next((one for one in given if isinstance(one, Exception)), None))
    asked, usual, within = dict[Path, Event](), _costliest(parts), within_each(silent)
    for i, (one, source) in enumerate(zip(given, sources, strict=True)):
        if not isinstance(one, SkippedSource):
            asked |= _charged(wanted, source, parts[i], usual, i, within.get(i, {}))
    return _sum(wanted, parts, tuple(why), Frozen(asked))


def check_sum(query: Query) -> None:
    """Refuse a question whose answers do not add up, before anybody is charged."""
    if isinstance(query, NonAdditive):
        raise ValueError(
            f"Expected a sum over records, got {query.name!r}: answers of several sources to "
            "it do not add up. Ask each source by itself, or ask for sums."
        )


def check_enough(
    silences: Sequence[str | None], least: int | None, cause: Exception | None = None
) -> None:
    """Raise unless enough sources answered: ``least`` of them, or all."""
    needed = len(silences) if least is None else least
    silent = [(i, why) for i, why in enumerate(silences) if why is not None]
    left = len(silences) - len(silent)
    if left >= needed:
        return
    names = "; ".join(f"source {i}: {why}" for i, why in silent[:_NAMED])
    more = "" if len(silent) <= _NAMED else f"; and {len(silent) - _NAMED} more"
    raise SilentError(
        f"Expected answers of at least {needed} of {len(silences)} sources, got {left} "
        f"({names}{more}). What was charged stays charged. Ask again once they answer, or let "
        "fewer do.",
        tuple(silences),
    ) from cause


def _reason(one: object) -> str:
    """Why a source was silent, in words that are the same for every record."""
    if isinstance(one, SkippedSource):
        return one.why
    known = (words for kind, words in SILENT if isinstance(one, kind))
    return next(known, f"{INVALID_RESPONSE}: it is no release")


def within_each(silent: Mapping[Path, str]) -> dict[int, dict[Path, str]]:
    """Who is silent inside of each source."""
    found = dict[int, dict[Path, str]]()
    for path, why in silent.items():
        if len(path) > 1:
            found.setdefault(path[0], {})[path[1:]] = why
    return found


def _costliest(parts: Iterable[Release | None]) -> Event | None:
    """The event with the least noise among those that were answered, which costs most."""
    events = {
        event
        for part in parts
        if part is not None
        for event in (part.asked.values() if isinstance(part, PooledRelease) else [part.event])
    }
    noises = [one for one in events if isinstance(one, DiscreteLaplace | DiscreteGaussian)]
    return min(noises, key=lambda one: one.noise, default=None)


def _charged(
    wanted: ExpectedResponse,
    source: object,
    part: Release | None,
    usual: Event | None,
    i: int,
    silent: Mapping[Path, str],
) -> dict[Path, Event]:
    """What a source was asked for: as its answer says, or as others were."""
    if isinstance(part, PooledRelease):
        return {(i, *path): event for path, event in part.asked.items()}
    if part is not None:
        return {} if part.event is None else {(i,): part.event}
    if is_pool(source):
        within = within_each(silent)
        found = dict[Path, Event]()
        for j, one in enumerate(source.members()):
            if (j,) not in silent:
                found |= _charged(wanted, one, None, usual, j, within.get(j, {}))
        return {(i, *path): event for path, event in found.items()}
    event = wanted.event_of(source) or usual
    paths = source.paths() if is_multi_source(source) else [()]
    return {} if event is None else {(i, *path): event for path in paths}


def _less(part: Release, silent: Mapping[Path, str]) -> Release:
    """An answer without some of those inside of it."""
    return part.without(silent) if isinstance(part, PooledRelease) else part


def _sum(
    wanted: ExpectedResponse | PooledRelease,
    parts: Sequence[Release | None],
    silences: tuple[str | None, ...],
    asked: Mapping[Path, Event],
) -> PooledRelease:
    """The sum of several answers, with what each of them cost."""
    answers = [part for part in parts if part is not None]
    events = tuple(a.event for a in answers if a.event is not None)
    name = wanted.query if isinstance(wanted, PooledRelease) else wanted.query.name
    costs = [a.micro_epsilon for a in answers]
    pure = all(cost is not None for cost in costs)
    return PooledRelease(
        name,
        tuple(sum(entry) for entry in zip(*(a.units for a in answers), strict=True)),
        answers[0].grid,
        math.hypot(*(a.noise_std for a in answers)),
        max(cost or 0 for cost in costs) if pure else None,
        Parallel(events) if events else None,
        private=all(a.private for a in answers),
        parts=tuple(parts),
        silences=silences,
        asked=asked,
    )


@dataclass(frozen=True, eq=False)
class Pool(AnswersByRound):
    r"""Several sources that answer as one, by the sum of their answers.

    Each source adds its own noise and charges its own ledger the full ``micro_epsilon``.

    Parameters
    ----------
    sources : iterable of Source
        A pool may be one of them.
    least : int, optional
        How many must answer. The others may be *silent*: refuse for want of budget, fail, be
        out of reach, or answer nonsense, which is left out, too. Without it all must answer,
        and the first that does not ends the question.
    most_records : int, optional
        *Declared*: no source has more records. An answer farther out than so many records and
        noise can bring it is nonsense. Without it only numbers that nobody can have are.

    Guarantees
    ----------
    If no unit has records at two sources, each unit pays ``micro_epsilon`` once. One with
    records at several pays at each of them. Replacing a record means replacing it inside its
    source; moving one from source to source costs both. What a source was charged stays
    charged, whether or not its answer is used, and asking again repeats its answer.

    Which answers are nonsense is decided by released answers and public numbers alone
    (:mod:`veracal.queries.response_checks`), so it costs nothing. An honest source is left out
    with a probability below :math:`2^{-40}` for each answer. That a source refuses, fails or
    is late is told without noise, so none of that may depend on its records: a
    :class:`Curator` refuses by its ledger alone, but the time it takes is not covered.
    """

    sources: Iterable[Source]
    least: int | None = None
    most_records: int | None = None

    def __post_init__(self) -> None:
        sources = tuple(self.sources)
        if not sources or len({id(source) for source in sources}) < len(sources):
            raise ValueError(f"Expected different sources, at least one, got {sources!r}.")
        object.__setattr__(self, "sources", sources)
        _check_apart(sources)
        counts = range(1, len(sources) + 1)
        if self.least is not None and (self.least is True or self.least not in counts):
            raise ValueError(
                f"Expected least to be a number of sources from 1 to {len(sources)}, got "
                f"least={self.least!r}."
            )
        if self.most_records is not None:
            _checks.whole(most_records=self.most_records, least=0)

    def round(
        self,
        wanted: ExpectedResponse,
        *,
        request: str | None = None,
        silent: Mapping[Path, str] | None = None,
    ) -> PooledRelease:
        """Ask all sources but those that were silent before.

        Parameters
        ----------
        wanted : Wanted
        request : str, optional
        silent : mapping of path to reason, optional
            Who is not asked, and why; a path is the number of a source, followed by a number
            inside of it if that is a pool.

        Raises
        ------
        SilentError
            If fewer than ``least`` answered.
        """
        self._check(wanted)
        silent = silent or {}
        within = within_each(silent)
        given = [
            SkippedSource(silent[i,])
            if (i,) in silent
            else self._one(wanted, source, _numbered(request, i), within.get(i, {}))
            for i, source in enumerate(self.sources)
        ]
        return combine_answers(
            wanted,
            given,
            tuple(self.sources),
            least=self.least,
            most_records=self.most_records,
            silent=silent,
        )

    def paths(self) -> list[Path]:
        """Where each single source is."""
        return [
            (i, *path)
            for i, source in enumerate(self.sources)
            for path in (source.paths() if is_multi_source(source) else [()])
        ]

    def members(self) -> Sequence[Source]:
        """The sources, in order."""
        return tuple(self.sources)

    def _check(self, wanted: ExpectedResponse) -> None:
        """Refuse what cannot be asked of several sources, before anybody is charged."""
        check_sum(wanted.query)
        gaussian = wanted.noise_multiplier is not None
        if gaussian and not all(isinstance(one, GaussianSource) for one in self.sources):
            raise ValueError(
                "Expected sources that all answer with Gaussian noise, got one that does not. "
                "Ask for Laplace noise, or leave it out."
            )

    def _one(
        self,
        wanted: ExpectedResponse,
        source: Source,
        request: str | None,
        silent: Mapping[Path, str],
    ) -> object:
        """What one source sends, or with which error it was silent."""
        try:
            if is_multi_source(source):
                return source.round(wanted, request=request, silent=silent)
            return wanted.of(source, request)
        except tuple(kind for kind, _ in SILENT) as error:
            if self.least is None:
                raise
            return error


def _check_apart(sources: Iterable[object]) -> None:
    """Refuse what answers nothing, answers twice, or promises something else than the others.

    All of it is public, and known before anybody is charged: answers that come twice from one
    ledger are the same, noise included, and those under two relations do not add up.
    """
    single = list(_singles(sources))
    for one in single:
        if not callable(getattr(one, "answer", None)):
            raise ValueError(
                f"Expected sources, got {type(one).__name__}. Put a ledger before each set of "
                "scores, as in Curator(scores, ledger); or Public(scores) if they are public."
            )
    holders = [one for one in single if isinstance(one, Curator)]
    accounts = {(one.ledger.path.resolve(), one.part) for one in holders}
    if len({id(one) for one in single}) < len(single) or len(accounts) < len(holders):
        raise ValueError(
            "Expected different sources, each with a ledger or a part of one for itself, got "
            "two that share one. Open a ledger for each."
        )
    if len({one.relation for one in single if is_declared(one)}) > 1:
        raise ValueError(
            "Expected sources that protect under one relation, got add-remove and replace-one. "
            "Leave out those of one of them: their answers do not add up to one guarantee."
        )


def _singles(sources: Iterable[object]) -> Iterator[object]:
    """Those that are no pool, in pools inside as well."""
    for one in sources:
        if isinstance(one, Pool):
            yield from _singles(one.sources)
        else:
            yield one


def _numbered(request: str | None, i: int) -> str | None:
    """Id of the request to one source of several."""
    return None if request is None else f"{request}/{i}"

"""Sources elsewhere that are asked together, round by round.

One recalibration by sources elsewhere: what it will cost each of them, then the result.
"""

import datetime
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from veracal import _checks
from veracal._types import Frozen
from veracal.accounting import Event, Relation, Unit, rounded_up
from veracal.calibration import (
    EnrolledBounds,
    Recalibration,
    RecalibrationPlan,
    find_unaffordable,
    run_recalibration,
)
from veracal.errors import BudgetError, SilentError
from veracal.federation.coordinator.history import Closed, RequestHistory
from veracal.federation.coordinator.remote import REFUSED, Remote, Silence, enrolled
from veracal.federation.protocol.envelopes import PrivateKey
from veracal.federation.protocol.terms import Terms
from veracal.federation.transports.base import Transport
from veracal.ledger import canonical, digest
from veracal.queries import (
    AnswersByRound,
    ExpectedResponse,
    Path,
    PooledRelease,
    Release,
    SkippedSource,
    check_sum,
    combine_answers,
)

Given = Release | Silence | SkippedSource
Fate = Literal["asked", "asked again", "answered", "refused", "silent", "left out"]
SLACK = 60.0  # seconds that carrying may take, beside twice the deadline
_TOO_POOR = "its budget does not allow the answer"
_NAMED = 5  # silent sources that an error names for one reason


@dataclass(frozen=True)
class RoundEvent:
    """Something that happened in a round, for whoever watches.

    Attributes
    ----------
    round : int
        From 1.
    question : str
        What the question is called.
    source : int
        Number of the source, from 0.
    fate : {"asked", "asked again", "answered", "refused", "silent", "left out"}
    why : str
        Why it was silent or left out.
    """

    round: int
    question: str
    source: int
    fate: Fate
    why: str = ""


class RemotePool(AnswersByRound):
    """Several sources elsewhere, which answer as one by the sum of their answers.

    It is used as a :class:`~veracal.queries.Pool` is, by whatever asks a pool.

    Parameters
    ----------
    terms : iterable of Terms
        What each source has declared.
    key : PrivateKey
        The calibrator's.
    transport : Transport
    book : Book, optional
        Where everything is kept; by default in memory, and lost with the process.
    least : int, optional
        How many must answer; by default all. The others may be silent.
    run : str
        Which of several uses of the same book and sources this is. Who was silent in a round
        of a run stays silent in it.
    timeout : float, optional
        Seconds to wait in a round; by default twice the longest deadline, and a minute.
    watch : callable, optional
        Is told what happens (:class:`RoundEvent`).

    Guarantees
    ----------
    Nothing is sent that a source has not declared; what all are asked is checked first, so
    that nobody pays for a question that another cannot be asked. A source that has answered a
    question is never asked it again; one that refuses is asked once more, at no cost, since
    its answer may not have been ready at its deadline. A round ends in one transaction; one
    that broke off goes on where it was, and one that ended is repeated from the book, with
    the same sources. What a source was asked for counts as its cost, whether or not it
    answered.
    """

    def __init__(
        self,
        terms: Iterable[Terms],
        key: PrivateKey,
        transport: Transport,
        book: RequestHistory | None = None,
        *,
        least: int | None = None,
        run: str = "",
        timeout: float | None = None,
        watch: Callable[[RoundEvent], None] = lambda heard: None,
    ) -> None:
        listed = tuple(terms)
        check_together(listed)
        counts = range(1, len(listed) + 1)
        if least is not None and (isinstance(least, bool) or least not in counts):
            raise ValueError(
                f"Expected least to be a number of sources from 1 to {len(listed)}, got "
                f"least={least!r}."
            )
        if timeout is not None:
            _checks.positive(timeout=timeout)
        self.book = RequestHistory(None, key.public) if book is None else book
        self.run = digest(canonical({"run": run, "sources": [one.source for one in listed]}))
        self.sources = tuple(Remote(one, key, None, self.book, run=self.run) for one in listed)
        self.least, self.watch = least, watch
        self.timeout = timeout or 2 * max(one.deadline for one in listed) + SLACK
        self.enrolled: EnrolledBounds = enrolled(listed)
        self._transport = transport
        self._rounds = list[str]()

    def __repr__(self) -> str:
        return f"RemotePool({', '.join(one.name for one in self.sources)})"

    @property
    def relation(self) -> Relation:
        """Under which relation all of them answer."""
        return self.sources[0].relation

    @property
    def unit(self) -> Unit:
        """Whom they protect: the unit with the most rows, where they differ."""
        return max((one.unit for one in self.sources), key=lambda unit: unit.at_most)

    def paths(self) -> list[Path]:
        """Where each single source is."""
        return [(i,) for i in range(len(self.sources))]

    def members(self) -> tuple[Remote, ...]:
        """The sources, in order."""
        return self.sources

    def round(
        self,
        wanted: ExpectedResponse,
        *,
        request: str | None = None,
        silent: Mapping[Path, str] | None = None,
    ) -> PooledRelease:
        """Ask all sources at once but those that were silent before.

        Parameters
        ----------
        wanted : Wanted
        request : str, optional
            The caller's id of the question. The question itself is its id at the sources, so
            the same one gets the same answer under any.
        silent : mapping of path to reason, optional
            Who is not asked, and why.

        Raises
        ------
        ValueError
            If a source has not declared that it answers this; nobody was asked.
        SilentError
            If fewer than ``least`` answered. The round stays open: asked again, those who
            answered are not asked.
        WaitingError
            If answers are still on their way; likewise.
        """
        check_sum(wanted.query)
        left_out = {path[0]: why for path, why in (silent or {}).items()}
        present = {i: one for i, one in enumerate(self.sources) if i not in left_out}
        for one in present.values():
            named = one.request(wanted)
            if request is not None:
                self.book.label(self.run, one.terms.source, request, named.id)
        question = _question(wanted)
        number = self._number(question)
        over = self.book.closed(self.run, question)
        if over is None:
            given = self._all(self._asked(wanted, number, present), left_out)
            self._check_enough(given)
            mine = self._closed(given)
            over = self.book.close_round(self.run, question, mine)
            if over == mine:
                return self._told(wanted, given)
        # It ended before, or just now in another process: that is how it ended.
        given = self._all(
            {i: _again(one, wanted, over) for i, one in present.items()}, left_out
        )
        self._check_enough(given)
        return self._told(wanted, given)

    def _all(self, found: Mapping[int, Given], left_out: Mapping[int, str]) -> list[Given]:
        """What each source gave, in order, those that were left out among them."""
        return [
            found[i] if i in found else SkippedSource(left_out[i])
            for i in range(len(self.sources))
        ]

    def _asked(
        self, wanted: ExpectedResponse, number: int, present: Mapping[int, Remote]
    ) -> dict[int, Given]:
        """Send requests to whoever has not answered yet, and listen."""
        found, sent, asked = dict[int, Given](), dict[str, bytes](), list[int]()
        for i, one in present.items():
            known = one.known(wanted)
            if known is not None:
                found[i] = known
                continue
            try:
                sent[one.terms.source] = one.prepared(wanted, number)
            except BudgetError:
                if self.least is None:
                    raise
                found[i] = SkippedSource(_TOO_POOR)
                continue
            asked.append(i)
            self.watch(RoundEvent(number, wanted.query.name, i, "asked"))
        for i, got in found.items():
            self.watch(_heard(number, wanted, i, got))
        self._listen(wanted, number, sent, found)
        for i in asked:
            if i not in found:
                found[i] = present[i].late()
                self.watch(_heard(number, wanted, i, found[i]))
        self._ask_again(wanted, number, asked, found)
        return found

    def _listen(
        self,
        wanted: ExpectedResponse,
        number: int,
        sent: Mapping[str, bytes],
        found: dict[int, Given],
    ) -> None:
        """Send, and take note of whatever comes back."""
        place = {one.terms.source: i for i, one in enumerate(self.sources)}
        for source, raw in self._transport.exchange(sent, timeout=self.timeout) if sent else ():
            i = place[source] if source in sent else -1
            if i < 0 or isinstance(found.get(i), Release):
                continue  # of somebody who was not asked, or once more
            found[i] = self.sources[i].heard(wanted, raw)
            self.watch(_heard(number, wanted, i, found[i]))

    def _ask_again(
        self,
        wanted: ExpectedResponse,
        number: int,
        asked: Iterable[int],
        found: dict[int, Given],
    ) -> None:
        """Ask whoever refused once more: an answer that missed its deadline is ready now.

        A source says the same whatever its reason is, so all of them are asked. What was
        charged is not charged again. Where somebody carries files by hand, a second request
        would be one more errand: there, it is left to whoever runs the command again.
        """
        if self._transport.by_hand:
            return
        sent = dict[str, bytes]()
        for i in asked:
            if found[i] == Silence(REFUSED):
                one = self.sources[i]
                sent[one.terms.source] = one.prepared(wanted, number)
                self.watch(RoundEvent(number, wanted.query.name, i, "asked again"))
        self._listen(wanted, number, sent, found)

    def _told(self, wanted: ExpectedResponse, given: list[Given]) -> PooledRelease:
        """Add, and count what was asked of whoever gave no answer."""
        plain = [SkippedSource(one.why) if isinstance(one, Silence) else one for one in given]
        silent = dict[Path, str]()
        silent |= {
            (i,): one.why for i, one in enumerate(plain) if isinstance(one, SkippedSource)
        }
        release = combine_answers(
            wanted, plain, self.sources, least=self.least, most_records=None, silent=silent
        )
        also = dict[Path, Event]()
        also |= {
            (i,): self.sources[i].event(wanted)
            for i, one in enumerate(given)
            if isinstance(one, Silence)
        }
        return replace(release, asked=Frozen({**release.asked, **also}))

    def _check_enough(self, given: list[Given]) -> None:
        """Raise unless enough sources answered, and name those that did not."""
        why = [None if isinstance(one, Release) else one.why for one in given]
        answered, needed = why.count(None), self.least or len(given)
        if answered >= needed:
            return
        names = dict[str, list[str]]()
        for one, reason in zip(self.sources, why, strict=True):
            if reason is not None:
                names.setdefault(reason, []).append(one.name)
        silent = [f"{_listed(who)}: {reason}" for reason, who in names.items()]
        raise SilentError(
            f"Expected answers of at least {needed} of {len(given)} sources, got {answered} "
            f"({'; '.join(silent)}). What was answered is kept: run it again once the others "
            "answer, or let fewer do.",
            tuple(why),
        )

    def _closed(self, given: list[Given]) -> Closed:
        """What the book keeps of a round that is over."""
        pairs = [(one.terms.source, got) for one, got in zip(self.sources, given, strict=True)]
        return Closed(
            tuple(source for source, got in pairs if not isinstance(got, SkippedSource)),
            Frozen({source: got.why for source, got in pairs if not isinstance(got, Release)}),
        )

    def _number(self, question: str) -> int:
        """Which round it is, from 1."""
        if question not in self._rounds:
            self._rounds.append(question)
        return self._rounds.index(question) + 1


def check_together(terms: tuple[Terms, ...]) -> None:
    """Refuse sources that cannot be asked together, before anybody is."""
    if not terms:
        raise ValueError("Expected one source or more, got none.")
    for what in ("source", "key", "name"):
        values = [getattr(one, what) for one in terms]
        twice = next((one.name for one in terms if values.count(getattr(one, what)) > 1), None)
        if twice is not None:
            raise ValueError(
                f"Expected sources of different institutions, got {twice!r} twice (by its "
                f"{what}). Leave one of them out."
            )
    for what, words in (("model", "score by one model"), ("relation", "have one relation")):
        names = dict[object, list[str]]()
        for one in terms:
            names.setdefault(getattr(one, what), []).append(one.name)
        if len(names) > 1:
            each = "; ".join(
                f"{', '.join(who)}: {str(value)[:12]}" for value, who in names.items()
            )
            raise ValueError(
                f"Expected sources that all {words}, got {each}. Leave some of them out, or "
                "ask them to enroll again."
            )


def _listed(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _again(one: Remote, wanted: ExpectedResponse, over: Closed) -> Given:
    """What a source did in a round that is over."""
    why = over.silences.get(one.terms.source)
    if why is not None:
        return Silence(why) if one.terms.source in over.asked else SkippedSource(why)
    found = one.kept(wanted)
    assert found is not None  # a round is over once its answers are in the book
    return found


def _heard(number: int, wanted: ExpectedResponse, i: int, given: Given) -> RoundEvent:
    """What came of a request, for whoever watches."""
    if isinstance(given, Release):
        return RoundEvent(number, wanted.query.name, i, "answered")
    if given.why == REFUSED:
        return RoundEvent(number, wanted.query.name, i, "refused")
    fate: Fate = "left out" if isinstance(given, SkippedSource) else "silent"
    return RoundEvent(number, wanted.query.name, i, fate, given.why)


def _question(wanted: ExpectedResponse) -> str:
    """Everything that tells a question from another, shortly."""
    query = wanted.query
    return digest(
        canonical(
            {
                "kind": type(query).__name__,
                "query": query.name,
                "settings": dict(query.settings),
                "bits": query.grid.bits,
                "entries": query.entries,
                "micro_epsilon": wanted.micro_epsilon,
                "noise_multiplier": wanted.noise_multiplier,
            }
        )
    )


TOO_POOR = "it cannot pay for everything that will be asked"


@dataclass(frozen=True)
class SourcePlan:
    """What one source will be asked, before it is.

    Attributes
    ----------
    name : str
    answers : int
        How many answers are asked for, at most.
    known : int
        How many of these the book has already.
    epsilon, delta : float
        What all of them cost, as the source's own ledger counts.
    left, left_delta : float
        What is left of its budget now, as far as the book knows.
    why : str or None
        Why it is left out; None if it can pay.
    """

    name: str
    answers: int
    known: int
    epsilon: float
    delta: float
    left: float
    left_delta: float
    why: str | None


@dataclass(frozen=True)
class SourceCost:
    """What one source was asked for a result, and what is known of it.

    Attributes
    ----------
    name : str
    key : str
        Fingerprint of its key.
    unit : str
    at_most : int
    relation : str
    epsilon, delta : float
        What it was charged for the result, at most: everything that it was asked, answered or
        not, as its own ledger counts.
    answered : bool
        Whether it answered everything.
    why : str or None
        Why not.
    head : dict or None
        Number and hash of the last entry of its ledger that it has signed.
    """

    name: str
    key: str
    unit: str
    at_most: int
    relation: str
    epsilon: float
    delta: float
    answered: bool
    why: str | None
    head: dict[str, Any] | None

    def text(self) -> str:
        """A line for people."""
        at = f", delta {rounded_up(self.delta)}" if self.delta else ""
        cost = f"epsilon {rounded_up(self.epsilon, 6)}{at}" if self.epsilon else "nothing"
        who = self.unit if self.at_most == 1 else f"{self.unit} of up to {self.at_most} records"
        told = "answered everything" if self.answered else f"was silent: {self.why}"
        return f"{self.name} ({self.key}): {cost} for each {who} ({self.relation}); {told}."


def plan_for(asked: RemotePool, steps: RecalibrationPlan) -> tuple[SourcePlan, ...]:
    """What each source will be asked and pay, and whether it can; nobody is asked anything."""
    return tuple(_plan(one, steps) for one in asked.sources)


def check_plan(asked: RemotePool, steps: RecalibrationPlan, plan: Sequence[SourcePlan]) -> None:
    """Refuse to begin what too few sources could pay for to the end, and name them.

    Raises
    ------
    BudgetError
        Nobody was asked.
    """
    poor = [one.why for one in plan if one.why is not None]
    needed = len(plan) if asked.least is None else asked.least
    if len(plan) - len(poor) < needed:
        enough = "all" if asked.least is None else f"{needed}"
        raise BudgetError(
            f"Expected {enough} of {len(plan)} sources to be able to pay for everything, got "
            f"{len(plan) - len(poor)}. {poor[0]}{_others(len(poor) - 1)} Or say how many are "
            "enough (least)."
        )
    try:
        find_unaffordable(asked, steps.items)
    except SilentError as error:
        raise BudgetError(str(error)) from error


def _others(number: int) -> str:
    """That there are more reasons, which the plan shows."""
    return f" And {number} more, as the plan shows." if number else ""


def run(asked: RemotePool, steps: RecalibrationPlan, *, at_sources: int = 1) -> Recalibration:
    """Ask everything; what broke off before goes on."""
    return run_recalibration(asked, steps, at_sources=at_sources)


def charged(asked: RemotePool, found: Recalibration) -> tuple[SourceCost, ...]:
    """What every source was charged for a result."""
    return tuple(
        _charged(one, found, i, why)
        for i, (one, why) in enumerate(zip(asked.sources, found.dropouts, strict=True))
    )


def record(asked: RemotePool, found: Recalibration, name: str) -> dict[str, Any]:
    """What an artifact keeps of a recalibration, as what JSON can hold.

    Parameters
    ----------
    asked : Federated
    found : Recalibration
    name : str
        What the study is called.
    """
    each = charged(asked, found)
    told = found.to_json()
    kept = ("method", "map", "guard", "before", "after", "temperatures")
    return {
        "study": name,
        "made": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **{field: _finite(told[field]) for field in kept},
        "private": found.private,
        "guarantee": told["statement"],
        "statement": statement_text(found, each),
        "sources": [asdict(one) for one in each],
    }


def statement_text(found: Recalibration, each: Sequence[SourceCost]) -> str:
    """The guarantee in full, and what every source was charged."""
    promise = "" if found.statement is None else f"{found.statement.text()}\n\n"
    costs = "\n".join(f"- {one.text()}" for one in each)
    return (
        f"{promise}What each institution was charged for this, as its own ledger counts, "
        f"whether or not its answers were used:\n{costs}"
    )


def _finite(told: Any) -> Any:
    """The same without numbers that JSON has no words for, such as an end at infinity."""
    if isinstance(told, dict):
        return {name: _finite(value) for name, value in told.items()}
    if isinstance(told, list | tuple):
        return [_finite(value) for value in told]
    return None if isinstance(told, float) and not math.isfinite(told) else told


def _plan(one: Remote, steps: RecalibrationPlan) -> SourcePlan:
    """What one source will be asked."""
    items = steps.items(one.relation, one.unit)
    unpaid = one.unpaid(items)
    every = [item.event for item in items for _ in range(item.times)]
    why = one.book.fault(one.terms.source)
    try:
        one.require(unpaid)
    except BudgetError as error:
        why = str(error)
    left = one.account.left(one.charges())
    total = sum(item.times for item in items)
    known = total - sum(item.times for item in unpaid)
    return SourcePlan(one.name, total, known, *one.account.privacy(every), *left, why)


def _charged(one: Remote, found: Recalibration, i: int, why: str | None) -> SourceCost:
    """What one source was charged."""
    events = list[Event]()
    for release in found.releases:
        if isinstance(release, PooledRelease) and (i,) in release.asked:
            events.append(release.asked[i,])
    head = one.book.head(one.terms.source)
    return SourceCost(
        one.name,
        one.terms.key.fingerprint,
        one.unit.name,
        one.unit.at_most,
        one.relation,
        *one.account.privacy(events),
        why is None,
        why,
        None if head is None else {"index": head.index, "hash": head.hash},
    )

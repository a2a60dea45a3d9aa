"""Sources elsewhere that are asked together, round by round."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from veracal import _checks
from veracal._types import Frozen
from veracal.calibration.recalibration.enrolled import Enrolled
from veracal.errors import BudgetError, SilentError
from veracal.federation.calibrator.book import Book, Closed
from veracal.federation.calibrator.methods import enrolled
from veracal.federation.calibrator.remote import REFUSED, Remote, Silence
from veracal.federation.protocol.keys import PrivateKey
from veracal.federation.protocol.terms import Terms
from veracal.federation.transports.base import Transport
from veracal.privacy import Event, PooledRelease, Relation, Release, Unit
from veracal.privacy.answers.judging import Wanted
from veracal.privacy.answers.pooling import (
    AnswersByRound,
    NotAsked,
    Path,
    check_sum,
    told,
)
from veracal.privacy.ledger.chain import canonical, digest

Given = Release | Silence | NotAsked
Fate = Literal["asked", "asked again", "answered", "refused", "silent", "left out"]
SLACK = 60.0  # seconds that carrying may take, beside twice the deadline
_TOO_POOR = "its budget does not allow the answer"
_NAMED = 5  # silent sources that an error names for one reason


@dataclass(frozen=True)
class Heard:
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


class Federated(AnswersByRound):
    """Several sources elsewhere, which answer as one by the sum of their answers.

    It is used as a :class:`~veracal.privacy.Pool` is, by whatever asks a pool.

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
        Is told what happens (:class:`Heard`).

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
        book: Book | None = None,
        *,
        least: int | None = None,
        run: str = "",
        timeout: float | None = None,
        watch: Callable[[Heard], None] = lambda heard: None,
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
        self.book = Book(None, key.public) if book is None else book
        self.run = digest(canonical({"run": run, "sources": [one.source for one in listed]}))
        self.sources = tuple(Remote(one, key, None, self.book, run=self.run) for one in listed)
        self.least, self.watch = least, watch
        self.timeout = timeout or 2 * max(one.deadline for one in listed) + SLACK
        self.enrolled: Enrolled = enrolled(listed)
        self._transport = transport
        self._rounds = list[str]()

    def __repr__(self) -> str:
        return f"Federated({', '.join(one.name for one in self.sources)})"

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
        wanted: Wanted,
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
            found[i] if i in found else NotAsked(left_out[i]) for i in range(len(self.sources))
        ]

    def _asked(
        self, wanted: Wanted, number: int, present: Mapping[int, Remote]
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
                found[i] = NotAsked(_TOO_POOR)
                continue
            asked.append(i)
            self.watch(Heard(number, wanted.query.name, i, "asked"))
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
        self, wanted: Wanted, number: int, sent: Mapping[str, bytes], found: dict[int, Given]
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
        self, wanted: Wanted, number: int, asked: Iterable[int], found: dict[int, Given]
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
                self.watch(Heard(number, wanted.query.name, i, "asked again"))
        self._listen(wanted, number, sent, found)

    def _told(self, wanted: Wanted, given: list[Given]) -> PooledRelease:
        """Add, and count what was asked of whoever gave no answer."""
        plain = [NotAsked(one.why) if isinstance(one, Silence) else one for one in given]
        silent = dict[Path, str]()
        silent |= {(i,): one.why for i, one in enumerate(plain) if isinstance(one, NotAsked)}
        release = told(
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
            tuple(source for source, got in pairs if not isinstance(got, NotAsked)),
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


def _again(one: Remote, wanted: Wanted, over: Closed) -> Given:
    """What a source did in a round that is over."""
    why = over.silences.get(one.terms.source)
    if why is not None:
        return Silence(why) if one.terms.source in over.asked else NotAsked(why)
    found = one.kept(wanted)
    assert found is not None  # a round is over once its answers are in the book
    return found


def _heard(number: int, wanted: Wanted, i: int, given: Given) -> Heard:
    """What came of a request, for whoever watches."""
    if isinstance(given, Release):
        return Heard(number, wanted.query.name, i, "answered")
    if given.why == REFUSED:
        return Heard(number, wanted.query.name, i, "refused")
    fate: Fate = "left out" if isinstance(given, NotAsked) else "silent"
    return Heard(number, wanted.query.name, i, fate, given.why)


def _question(wanted: Wanted) -> str:
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

r"""How much a source's answer can be believed: no more than the records it says it has.

A source may declare at most so many records, and says by its first counts about how many there
are. From then on nothing it sends may weigh more than that, up to what noise can do.

Which methods can be asked of sources, by the questions that they have enrolled.

A source elsewhere, asked by signed requests.
"""

import datetime
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from scipy import stats

from veracal import _checks
from veracal._types import Frozen
from veracal.accounting import DiscreteGaussian, DiscreteLaplace, Event, Relation, Unit
from veracal.calibration import (
    METHODS,
    CorrectTotal,
    CorrectWrong,
    EnrolledBounds,
    MappedQuery,
)
from veracal.errors import BudgetError, SilentError
from veracal.federation.coordinator.history import RequestHistory, Sent, SourceAccount
from veracal.federation.protocol.envelopes import MOST_REQUEST, EnvelopeError, PrivateKey
from veracal.federation.protocol.messages import (
    MOST_ROUND,
    Answer,
    Refusal,
    Request,
    unsealed_reply,
)
from veracal.federation.protocol.questions import KINDS, encoded, in_range
from veracal.federation.protocol.terms import Terms
from veracal.ledger import Item, unpaid_of
from veracal.queries import (
    INVALID_RESPONSE,
    BinnedSum,
    ExpectedResponse,
    Query,
    Release,
    find_invalid_responses,
    noise_std,
)

_RARE = 2.0**-40  # an honest answer is farther out with this probability at most


def too_large(wanted: ExpectedResponse, release: Release, records: float) -> bool:
    r"""Whether an answer is larger than so many records and the noise can make it.

    One record adds at most :math:`\Delta` to the L1 norm of a sum, so n of them no more than
    :math:`n \Delta`, and

    .. math:: \sum_j |k_j| \le n \Delta + r,

    where noise in all entries together exceeds r with probability :math:`2^{-40}` at most.
    """
    reach = wanted.query.sensitivity("add-remove")
    return sum(map(abs, release.units)) > records * reach + _noise(release)


def claimed(query: Query, release: Release) -> float | None:
    """How many records a source says it has, at most; None if the answer does not tell."""
    asked = query.query if isinstance(query, MappedQuery) else query
    if isinstance(asked, CorrectTotal):
        told = release.units[1::2]
    elif isinstance(asked, CorrectWrong) or _counts(asked):
        told = release.units
    else:
        return None
    return max(sum(told) + _noise(release), 0.0)


def _counts(query: Query) -> bool:
    """Whether it counts records, each in one of two cells."""
    return isinstance(query, BinnedSum) and (query.low, query.high, query.bits) == (0, 1, 0)


def _noise(release: Release) -> float:
    """What noise adds to the L1 norm of an answer, all but never more."""
    assert isinstance(release.event, DiscreteLaplace | DiscreteGaussian)
    return noise_reach(release.event, len(release.units))


def noise_reach(
    event: DiscreteLaplace | DiscreteGaussian, entries: int, *, rare: float = _RARE
) -> float:
    r"""What noise in all entries adds up to, exceeded with a small probability at most.

    Discrete Laplace noise is at most 1 plus an exponential of the same scale s, in the order
    of distributions (:math:`P(|k| \ge j) = 2q^j / (1 + q) \le q^{j-1}` with
    :math:`q = e^{-1/s}`), and a sum of m exponentials has a Gamma law. For Gaussian noise it
    is m times what one entry exceeds with an m-th of the probability.
    """
    if isinstance(event, DiscreteLaplace):
        return entries + event.noise * float(stats.gamma.isf(rare, entries))
    return entries * event.noise * math.sqrt(2 * math.log(2 * entries / rare))


_FIGURES = ("counts", "bin-gaps", "map-bin-gaps")
_ALL_ELSE = 1_300  # bytes of a request beside the parameters of a map
# Kinds of queries that each method needs, apart from its guard and its figures.
ASKS: Mapping[str, tuple[str, ...]] = Frozen(
    {method.name: method.remote_queries for method in METHODS.values() if method.remote_queries}
)


def answered(terms: Terms) -> tuple[str, ...]:
    """Methods all of whose questions a source answers."""
    return tuple(name for name, kinds in ASKS.items() if _allows(terms, kinds))


def enrolled(terms: Iterable[Terms]) -> EnrolledBounds:
    """What can be asked of all sources alike."""
    return EnrolledBounds.of_all(_one(each) for each in terms)


def _allows(terms: Terms, kinds: Iterable[str]) -> bool:
    """Whether a source has enrolled kinds of question, and the noise that they need."""
    known = set(kinds) <= set(terms.kinds)
    return known and (terms.delta > 0 or not any(KINDS[kind].gaussian for kind in kinds))


def _one(terms: Terms) -> EnrolledBounds:
    """What can be asked of one source."""
    grid = terms.temperatures
    return EnrolledBounds(
        terms.classes,
        terms.reads,
        (float(grid.low), float(grid.high)),
        terms.bins,
        float(terms.clamp),
        terms.parameters,
        answered(terms),
        guards="map-gain" in terms.kinds,
        measures=_measures(terms),
        recounts="map-counts" in terms.kinds,
        parameters=_parameters(terms),
    )


def _measures(terms: Terms) -> bool:
    """Whether figures can be asked for, which are about the scores as they are, too."""
    grid = terms.temperatures
    return set(_FIGURES) <= set(terms.kinds) and in_range(2**grid.bits, grid)


def _parameters(terms: Terms) -> int:
    """How many parameters of an affine map fit into a request, with all else at its longest."""
    grid = terms.parameters
    longest = len(str(max(grid.most_weight, grid.most_bias) << grid.bits)) + 2
    return (MOST_REQUEST - _ALL_ELSE) // longest


Send = Callable[[bytes], bytes]
REFUSED = "it refused; its owner can see why"
LATE = "it did not answer in time"


@dataclass(frozen=True)
class Silence:
    """Why a source that was asked gave no answer that can be used."""

    why: str


class Remote:
    """One source elsewhere: everything that is known of it, and how it is asked.

    Parameters
    ----------
    terms : Terms
        What the source has declared, signed by it.
    key : PrivateKey
        The calibrator's, which the terms name.
    send : callable, optional
        ``send(request) -> reply``; whoever only verifies needs none. It may raise a
        ``TimeoutError`` or another ``OSError``.
    book : Book, optional
        Where requests and answers are kept; by default in memory.
    run : str
        Which of several uses of the same book this is.

    Guarantees
    ----------
    What a source has not declared is refused before anything is sent. A question that was
    answered is never sent again. What comes back is believed only if the source signed it for
    this very question, if its ledger goes on from where it was, and if so many records as the
    source says it has can have led to it.

    Notes
    -----
    The question itself is its id, at the source too: asked under another ``request``, the same
    question gets the same answer, at no cost.
    """

    part: str | None = None

    def __init__(
        self,
        terms: Terms,
        key: PrivateKey,
        send: Send | None = None,
        book: RequestHistory | None = None,
        *,
        run: str = "",
    ) -> None:
        if terms.calibrator != key.public:
            raise ValueError(
                f"Expected the key that {terms.name!r} is enrolled for "
                f"({terms.calibrator.text[:12]}…), got {key.public.text[:12]}…. Name the right "
                "key, or ask the source to enroll this one."
            )
        self.terms, self.run = terms, run
        self._key, self._send = key, send
        self.book = RequestHistory(None, key.public) if book is None else book
        self.account = SourceAccount(terms)
        self._most = float(terms.most_records)
        self.book.meet(terms)

    def __repr__(self) -> str:
        return f"Remote({self.terms.name!r}, {self.terms.source[:8]}…)"

    @property
    def name(self) -> str:
        """What the institution is called."""
        return self.terms.name

    @property
    def relation(self) -> Relation:
        """Under which relation it answers."""
        return self.terms.relation

    @property
    def unit(self) -> Unit:
        """Whom it protects."""
        return self.terms.unit

    @property
    def enrolled(self) -> EnrolledBounds:
        """What can be asked of it."""
        return enrolled([self.terms])

    # ------------------------------------------------------------------ as a source

    def answer(
        self, query: Query, *, micro_epsilon: int, request: str | None = None
    ) -> Release:
        """Ask with Laplace noise."""
        _checks.whole(micro_epsilon=micro_epsilon)
        return self._asked(ExpectedResponse(query, micro_epsilon=int(micro_epsilon)), request)

    def answer_gaussian(
        self, query: Query, *, noise_multiplier: float, request: str | None = None
    ) -> Release:
        """Ask with Gaussian noise."""
        _checks.positive(noise_multiplier=noise_multiplier)
        return self._asked(
            ExpectedResponse(query, noise_multiplier=float(noise_multiplier)), request
        )

    def unpaid(self, items: Iterable[Item], *, request: str | None = None) -> list[Item]:
        """What is left to pay of items, of which this run may have asked some before."""
        charges = self.book.charges(self.terms.source, self.run)
        return unpaid_of(items, ((one.purpose, one.event) for one in charges))

    def require(self, items: Sequence[Item]) -> None:
        """Raise a ``BudgetError`` unless the terms leave room for all items; ask nothing."""
        if items:
            self.require_open()
        self.account.require(items, self.charges())

    def require_open(self) -> None:
        """Refuse to ask after the day on which the terms end."""
        today = datetime.datetime.now(datetime.UTC).date()
        if self.terms.is_expired(today):
            raise BudgetError(
                f"{self.name} answers until {self.terms.expires} (UTC), which is over; it was "
                "not asked. Ask its owner to enroll again."
            )

    def charges(self) -> list[Event]:
        """Everything it may have charged this calibrator, as far as the book knows."""
        return [one.event for one in self.book.charges(self.terms.source)]

    def _asked(self, wanted: ExpectedResponse, request: str | None) -> Release:
        """Ask, or repeat what was answered."""
        question = self.request(wanted)
        if request is not None:
            self.book.label(self.run, self.terms.source, request, question.id)
        found = self.known(wanted)
        if found is None:
            raw = self.prepared(wanted, 0)
            assert self._send is not None
            try:
                found = self.heard(wanted, self._send(raw))
            except OSError as error:
                raise SilentError(f"{self.name}: {LATE}, or could not be reached.") from error
        if isinstance(found, Silence):
            raise SilentError(f"{self.name}: {found.why}.")
        return found

    # ---------------------------------------------------------------- step by step

    def event(self, wanted: ExpectedResponse) -> Event:
        """What the source charges."""
        return wanted.event(self.relation, self.unit)

    def request(self, wanted: ExpectedResponse) -> Request:
        """A question as it is sent.

        Raises
        ------
        ValueError
            If the source has not declared that it answers this; nothing is sent.
        """
        kind, argument = encoded(wanted.query, self.terms)
        return Request(
            self.terms.source,
            self.terms.data,
            self.terms.model,
            kind,
            argument,
            wanted.micro_epsilon,
            wanted.noise_multiplier,
        )

    def known(self, wanted: ExpectedResponse) -> Release | Silence | None:
        """What the book knows of the answer; a source that lied about its ledger is silent."""
        fault = self.book.fault(self.terms.source)
        return self.kept(wanted) if fault is None else Silence(fault)

    def kept(self, wanted: ExpectedResponse) -> Release | Silence | None:
        """An answer that was given, whatever was found out later; None if there is none."""
        request = self.request(wanted).id
        answer = self.book.answer(self.terms, request)
        if answer is None:
            return None
        self.book.took_part(self.run, self.terms.source, request)
        return self._judged(wanted, answer)

    def prepared(self, wanted: ExpectedResponse, number: int) -> bytes:
        """The bytes to send, once they stand in the book: the same that were sent before.

        After a refusal, or a reply that could not be used, they are others that mean the same,
        so that the old reply is not taken for a new one.

        Parameters
        ----------
        wanted : Wanted
        number : int
            Of the round.
        """
        request = self.request(wanted)
        source, before = self.terms.source, self.book.sent(self.terms.source, request.id)
        event = self.event(wanted)
        if before is None:
            self.require([Item(wanted.query.name, event)])
        if before is not None and before.state == "sent":
            raw = before.raw
        else:
            number = self._anew(number, before)
            head = self.book.head(source)
            raw = replace(request, round=number, head=head).sealed(self._key)
        told = Sent("sent", wanted.query.name, event, raw)
        self.book.send(self.run, source, request.id, told)
        return raw

    def heard(self, wanted: ExpectedResponse, raw: bytes) -> Release | Silence:
        """What came back, if it can be used; the book keeps it, or why not."""
        request = self.request(wanted).id
        try:
            reply = unsealed_reply(raw, self.terms.key)
            told = reply.head.source if isinstance(reply, Answer) else reply.source
            if told != self.terms.source:
                raise EnvelopeError("it is of another enrolment")
            if isinstance(reply, Answer):
                self._check(reply, request, wanted)
        except EnvelopeError as error:
            self.book.failed(self.terms.source, request, "unusable")
            return Silence(f"{INVALID_RESPONSE}: {error}")
        if isinstance(reply, Refusal):
            self.book.failed(self.terms.source, request, "refused")
            return Silence(REFUSED)
        fault = self.book.answered(request, reply, raw)
        return self._judged(wanted, reply) if fault is None else Silence(fault)

    def late(self) -> Silence:
        """What is said of a source from which nothing came."""
        return Silence(LATE)

    def _check(self, reply: Answer, request: str, wanted: ExpectedResponse) -> None:
        """Refuse an answer to another question, or with a head that the source never signed."""
        if reply.request != request:
            raise EnvelopeError("it is the answer to another question")
        if not reply.head.holds(self.terms.key):
            raise EnvelopeError("the head in it is not signed by the source")
        if len(reply.units) != wanted.query.entries:
            raise EnvelopeError(f"it does not have {wanted.query.entries} entries")

    def _judged(self, wanted: ExpectedResponse, answer: Answer) -> Release | Silence:
        """An answer as a release, unless it is more than the source's records can make."""
        event = wanted.event(self.relation, self.unit)
        release = Release(
            wanted.query.name,
            answer.units,
            wanted.query.grid,
            noise_std(event) * wanted.query.grid.step,
            wanted.micro_epsilon,
            event,
            private=True,
            head=answer.head.hash,
        )
        faults = find_invalid_responses(wanted, {0: release}, [self], self.terms.most_records)
        if not faults and too_large(wanted, release, self._most):
            faults = {0: "it weighs more than the records that the source has declared"}
        if faults:
            return Silence(f"{INVALID_RESPONSE}: {faults[0]}")
        told = claimed(wanted.query, release)
        self._most = self._most if told is None else min(self._most, told)
        return release

    def _anew(self, number: int, before: Sent | None) -> int:
        """Number of the round, another one if the old reply to it was of no use."""
        if before is None:
            return number
        used = Request.unsealed(before.raw, self._key.public).round
        return min(max(number, used + 1), MOST_ROUND)

"""What a request costs, known before a record is read, and whether it may cost that.

The server of a source: bytes come in, and one signed reply goes out, whatever they were.
"""

import collections
import datetime
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from veracal._types import Ints
from veracal.accounting import (
    MICRO,
    DiscreteGaussian,
    DiscreteLaplace,
    epsilon_for,
    rounded_down,
)
from veracal.data import Scores
from veracal.errors import AnswerError, BudgetError, DataError, LedgerError
from veracal.federation.protocol.envelopes import EnvelopeError
from veracal.federation.protocol.messages import Answer, Head, Refusal, Request
from veracal.federation.protocol.queries import build_query
from veracal.federation.protocol.terms import Terms
from veracal.federation.source.enrollment import (
    DataChangedError,
    Enrollment,
    list_enrollments,
    read_enrollment,
)
from veracal.federation.source.folder import SourceFolder, read_source
from veracal.ledger import Entry, canonical
from veracal.mechanisms import add_discrete_gaussian, add_discrete_laplace
from veracal.queries import Query, evaluate_query, gaussian_event, laplace_event


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


def price_request(request: Request, query: Query, terms: Terms) -> Priced:
    """What an answer costs.

    Raises
    ------
    EnvelopeError
        If it costs more than one answer may, if Gaussian noise is asked for and no delta was
        declared, or if the noise cannot be drawn.
    """
    try:
        if request.micro_epsilon is not None:
            return _price_laplace(request.micro_epsilon, query, terms)
        assert request.noise_multiplier is not None  # one of the two, by the schema
        return _price_gaussian(request.noise_multiplier, query, terms)
    except EnvelopeError:
        raise
    except ValueError as cause:  # about the query and the noise: no record was seen yet
        raise EnvelopeError("it asks for noise that cannot be drawn") from cause


def _price_laplace(micro_epsilon: int, query: Query, terms: Terms) -> Priced:
    """An answer that costs so many millionths of epsilon."""
    if micro_epsilon > terms.max_per_answer:
        raise _cost_error(micro_epsilon / MICRO, terms)
    event = laplace_event(query, micro_epsilon, terms.relation, terms.unit)
    return Priced(event, add_discrete_laplace)


def _price_gaussian(noise_multiplier: float, query: Query, terms: Terms) -> Priced:
    """An answer with Gaussian noise, whose epsilon is that of the answer alone."""
    if not terms.delta:
        raise EnvelopeError("it asks for Gaussian noise, and no delta was declared")
    event = gaussian_event(query, noise_multiplier, terms.relation, terms.unit)
    epsilon = epsilon_for(event, terms.delta, terms.unit)
    if epsilon * MICRO > terms.max_per_answer:
        raise _cost_error(epsilon, terms)
    return Priced(event, add_discrete_gaussian)


def _cost_error(epsilon: float, terms: Terms) -> EnvelopeError:
    """Error for an answer that costs more than one may."""
    return EnvelopeError(
        f"it asks for epsilon {epsilon:g} at once, more than the {terms.max_per_answer / MICRO:g} "
        "that one answer may cost"
    )


MAX_ANSWERS = 100_000  # of one enrollment: they are kept for good, about 160 MB of them
# Requests before their deadline. They are computed one after another, in transactions of one
# ledger, and together must be ready in half of it: see FACTOR in rehearsal.py.
MAX_IN_FLIGHT = 2


class RefusedError(Exception):
    """A request that is refused; the words are for the source's owner alone."""


Log = Callable[[str], None]


def open_source(
    folder: str | Path, enrollment: str | None = None, *, tell: Log = lambda line: None
) -> "SourceServer":
    """Open the server of an enrollment.

    Parameters
    ----------
    folder : path
        Of the source.
    enrollment : str, optional
        Id, or how it begins; not needed if one alone is not revoked.
    tell : callable
        Is told in a line what became of each request, for the source's owner.

    Raises
    ------
    DataError
        If there is no such enrollment, or its terms or key cannot be read. A ledger, records or
        heads that are not as they should be are no error here: every request is refused then,
        and the log says why.
    """
    source = read_source(folder)
    if enrollment is not None:
        return SourceServer(source, read_enrollment(source, enrollment), tell)
    live = [each for each in list_enrollments(source) if not each.is_revoked]
    if len(live) != 1:
        raise DataError(
            str(source.path),
            "one enrollment that is not revoked",
            f"{len(live)}",
            "Name one by its id: `veracal source status` lists them."
            if live
            else "Enroll some records first: `veracal source enroll`.",
        )
    return SourceServer(source, live[0], tell)


class SourceServer:
    """Answers requests for one enrollment.

    Parameters
    ----------
    source : SourceFolder
    enrollment : Enrollment
    tell : callable
        As of :func:`open_source`.

    Attributes
    ----------
    terms : Terms
    refusal : bytes
        The one refusal there is.

    Guarantees
    ----------
    Whatever comes in, a reply goes out: an answer to a proper request that the budget allows,
    or :attr:`refusal`, the same bytes for every reason. Only a proper request, signed by the
    enrolled coordinator, is charged; it is charged before a record is looked at, in the
    transaction that keeps its answer. The answer leaves once it and a signed head of its entry
    are on the disk. Asked again, the same bytes leave and nothing is charged.

    A request is in flight until its deadline, however soon its reply is ready and however late:
    whether another one is admitted depends on when requests arrived and on nothing else.
    """

    def __init__(
        self, source: SourceFolder, enrollment: Enrollment, tell: Log = lambda line: None
    ) -> None:
        self._enrollment, self._key, self._tell = enrollment, source.key, tell
        self.terms: Terms = enrollment.terms
        self.refusal = Refusal(self.terms.source).seal(self._key)
        self._heads = source.signed_heads(self.terms.source, enrollment.path)
        self._origin = enrollment.private.data
        self._records: Scores | None = None
        self._lock = threading.Lock()
        self._in_flight = InFlight(MAX_IN_FLIGHT)
        self._computing = threading.BoundedSemaphore(MAX_IN_FLIGHT)

    def __repr__(self) -> str:
        return f"SourceServer({self.terms.name!r}, enrollment {self.terms.source[:12]})"

    def answer(self, raw: bytes) -> bytes:
        """Reply at the deadline, counted from now: neither before it nor much later.

        An answer that is not ready by then is computed and kept all the same, and a refusal
        leaves; asked again, the answer does.
        """
        start, done = time.monotonic(), _PendingReply()
        self._start(raw, start, done)
        reply = done.wait(start + self.terms.deadline)
        if reply is None:
            self._refuse("the answer was not ready at the deadline; asked again, it will be")
        return self.refusal if reply is None else reply

    def reply(self, raw: bytes) -> bytes:
        """Reply at once; for those who keep the time themselves."""
        try:
            return self._answered(raw)
        except (RefusedError, EnvelopeError) as error:
            why = str(error)
        except AnswerError:
            why = "its answer could not be computed; it was charged"
        except (DataChangedError, DataError, LedgerError) as error:
            why = str(error)
        except Exception as error:  # our own mistake: what it says may be about records
            why = f"an unexpected error ({type(error).__name__}); please report it"
        return self._refuse(why)

    def _start(self, raw: bytes, start: float, done: "_PendingReply") -> None:
        """Compute the reply to a request that arrived at ``start`` in a thread of its own.

        At most twice :data:`MOST_IN_FLIGHT` threads exist: those that compute, some of them
        perhaps past their deadline, and those that wait for their turn. A request whose turn
        does not come before its deadline is dropped, and nothing is charged.
        """
        until = start + self.terms.deadline

        def work() -> None:
            if self._computing.acquire(timeout=max(0.0, until - time.monotonic())):
                try:
                    done.put(self.reply(raw))
                finally:
                    self._computing.release()

        if not self._in_flight.admit(start, until):
            done.put(self._refuse("too many requests at once"))
            return
        try:
            threading.Thread(target=work, daemon=True).start()
        except RuntimeError:
            done.put(self._refuse("this machine can start no more threads"))

    def _refuse(self, why: str) -> bytes:
        """Write down why, and give the one refusal there is."""
        with suppress(OSError):  # a full disk is no reason to say something else
            self._enrollment.refusals.add(why)
        self._say(f"refused: {why}")
        return self.refusal

    def _say(self, line: str) -> None:
        """Tell the owner, whose terminal may be gone: that is no reason not to reply."""
        with suppress(OSError, ValueError):
            self._tell(line)

    def _answered(self, raw: bytes) -> bytes:
        """The answer to a proper request; raises for every other."""
        request = Request.unseal(raw, self.terms.coordinator)
        self._check_address(request)
        query = self._query(request)
        price = price_request(request, query, self.terms)
        self._check_open()
        with self._lock:
            self._check_heads(request)
            self._check_room(request)
            records = self._loaded()
        entry, kept = self._charged(request, price, query, records)
        head = Head.signed(
            self.terms.source, entry.index, entry.hash, entry.previous, self._key
        )
        with self._lock:
            self._heads.keep(head)  # on the disk before its answer leaves
        self._say(f"answered: {request.kind} (entry {entry.index} of the ledger)")
        return Answer(request.id, tuple(json.loads(kept)["units"]), head).seal(self._key)

    def _charged(
        self, request: Request, price: Priced, query: Query, records: Scores
    ) -> tuple[Entry, bytes]:
        """Charge, compute and keep, in one transaction; or what was kept before."""
        ledger = self._enrollment.ledger
        try:
            return ledger.answered(
                price.event,
                request.kind,
                lambda: compute_answer(request, price, query, records),
                request=request.id,
                body=canonical(request.query).encode(),
            )
        except BudgetError as cause:
            left = rounded_down(ledger.remaining().epsilon, 6)
            raise RefusedError(
                "it costs more than is left of this coordinator's budget, which is epsilon "
                f"{left}; nothing was charged"
            ) from cause

    def _check_address(self, request: Request) -> None:
        """Refuse a request about another enrollment, other records or another model."""
        for part in ("source", "data", "model"):
            if getattr(request, part) != getattr(self.terms, part):
                raise RefusedError(f"it is about another {part} than this enrollment's")

    def _query(self, request: Request) -> Query:
        """The query, if it is one of those that were declared."""
        try:
            return build_query(request.kind, request.argument, self.terms)
        except EnvelopeError as cause:
            grid, bins = self.terms.temperatures, self.terms.bins
            raise RefusedError(
                "it asks for something else than was declared (temperatures from "
                f"{grid.low:g} to {grid.high:g}, {bins} bins, …): {cause}"
            ) from cause

    def _check_open(self) -> None:
        """Refuse whatever comes once the enrollment is over, or its records have changed."""
        if self._enrollment.is_revoked:
            raise RefusedError("this enrollment was revoked")
        if self.terms.is_expired(datetime.datetime.now(datetime.UTC).date()):
            raise RefusedError(f"the coordinator's key was good until {self.terms.expires}")
        if self._origin is not None:
            self._origin = self._origin.checked(self._enrollment.marks)

    def _check_room(self, request: Request) -> None:
        """Refuse ever more queries for next to nothing each, which would fill the disk."""
        ledger = self._enrollment.ledger
        if ledger.length() >= MAX_ANSWERS and not ledger.knows(request.id):
            raise RefusedError(
                f"this coordinator has been given {MAX_ANSWERS:,} answers, the most that are "
                "kept; nothing was charged"
            )

    def _check_heads(self, request: Request) -> None:
        """Refuse to go on from an older copy of the ledger."""
        quoted = request.head
        if quoted is not None and not quoted.holds(self.terms.key):
            raise RefusedError("it quotes a head that this source has not signed")
        self._heads.check(self._enrollment.ledger, quoted)

    def _loaded(self) -> Scores:
        """The records, read once, if they are those that were enrolled."""
        if self._records is None:
            self._records = self._enrollment.records()
        return self._records


class InFlight:
    """Requests whose deadline is still to come, of which there are at most so many.

    Parameters
    ----------
    most : int

    Guarantees
    ----------
    The decision is a function of the arrival times and deadlines of earlier requests. A place
    that became free when a reply is ready would tell, by who is admitted next, how long that
    reply took, and so something about records and noise that the deadline is there to hide.
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._ends: collections.deque[float] = collections.deque()

    def admit(self, now: float, until: float) -> bool:
        """Take a place from ``now`` until a deadline; False if all are taken."""
        with self._lock:
            while self._ends and self._ends[0] <= now:
                self._ends.popleft()
            if len(self._ends) >= self._most:
                return False
            self._ends.append(until)
            return True


class _PendingReply:
    """A reply that another thread will give."""

    def __init__(self) -> None:
        self._done, self._reply = threading.Event(), b""

    def put(self, reply: bytes) -> None:
        """Give it."""
        self._reply = reply
        self._done.set()

    def wait(self, until: float) -> bytes | None:
        """Take it at a moment of the monotonic clock; None if it is not there by then."""
        there = self._done.wait(max(0.0, until - time.monotonic()))
        time.sleep(max(0.0, until - time.monotonic()))
        return self._reply if there else None


def compute_answer(request: Request, price: Priced, query: Query, records: Scores) -> bytes:
    """What the ledger keeps of an answer: the query, for people, and the noisy numbers."""
    exact = evaluate_query(query, records)
    units = price.add_noise(exact, price.event.noise).tolist()
    told = {"query": request.query, "round": request.round, "units": units}
    return canonical(told).encode()

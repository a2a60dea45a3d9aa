"""The server of a source: requests come in as bytes, and each gets one signed reply.

The cost of a request is computed and checked before a record is read.
"""

import collections
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from veracal.accounting import (
    MICRO,
    DiscreteGaussian,
    DiscreteLaplace,
    epsilon_for,
    format_down,
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

NoiseEvent = DiscreteLaplace | DiscreteGaussian


def price_request(request: Request, query: Query, terms: Terms) -> NoiseEvent:
    """Choose the noise of an answer, which is the event that is charged, and check its cost.

    Refuse Gaussian noise without a declared delta, noise that cannot be drawn, and an answer
    that would cost more than the terms allow for one answer.
    """
    relation, unit = terms.relation, terms.unit
    if request.micro_epsilon is None and not terms.delta:
        raise EnvelopeError("it requests Gaussian noise, but no delta was declared")
    event: NoiseEvent
    try:
        if request.micro_epsilon is not None:
            cost: float = request.micro_epsilon
            event = laplace_event(query, request.micro_epsilon, relation, unit)
        else:
            assert request.noise_multiplier is not None  # the schema requires one of the two
            event = gaussian_event(query, request.noise_multiplier, relation, unit)
            cost = epsilon_for(event, terms.delta, unit) * MICRO  # of this answer alone
    except ValueError as cause:  # it depends on the query and the noise, not on records
        raise EnvelopeError("it requests noise that cannot be drawn") from cause
    if cost > terms.max_per_answer:
        raise EnvelopeError(
            f"it requests an answer for epsilon {cost / MICRO:g}, more than the maximum of "
            f"{terms.max_per_answer / MICRO:g} for one answer"
        )
    return event


MAX_ANSWERS = 100_000  # of one enrollment; they are stored permanently, about 160 MB
# Requests before their deadline. They are computed one after another, in transactions of one
# ledger, and together must be ready in half of the deadline: DEADLINE_FACTOR in enrolling.py.
MAX_IN_FLIGHT = 2


class RefusedError(Exception):
    """A request that is refused. Only the owner of the source sees the message."""


Log = Callable[[str], None]


def open_source(
    folder: str | Path, enrollment: str | None = None, *, log: Log = lambda line: None
) -> "SourceServer":
    """Open the server of an enrollment.

    A damaged ledger, changed records or a rollback do not raise here: every request is refused,
    and the log says why.

    Parameters
    ----------
    folder : path
    enrollment : str, optional
        Id of the enrollment or a prefix of it. By default the only one that is not revoked.
    log : callable
        Receives one line for each request, for the owner of the source.
    """
    source = read_source(folder)
    if enrollment is not None:
        return SourceServer(source, read_enrollment(source, enrollment), log)
    live = [each for each in list_enrollments(source) if not each.is_revoked]
    if len(live) != 1:
        raise DataError(
            str(source.path),
            "one enrollment that is not revoked",
            f"{len(live)}",
            "Choose one by its id: `veracal source status` lists them."
            if live
            else "Enroll some records first: `veracal source enroll`.",
        )
    return SourceServer(source, live[0], log)


class SourceServer:
    """Answers requests for one enrollment, as :func:`open_source` opens it.

    Attributes
    ----------
    terms : Terms
    refusal : bytes
        The signed refusal of this enrollment.

    Guarantees
    ----------
    Every input gets one reply: an answer to a valid request that the budget allows, or
    :attr:`refusal`, the same bytes for every reason. Only a valid request that the enrolled
    coordinator signed is charged. It is charged before a record is read, in the transaction
    that stores its answer. The answer is sent after it and a signed head of its ledger entry
    are on disk. A repeated request gets the same bytes and costs nothing.

    A request is in flight until its deadline, whenever its reply is ready: whether another
    request is admitted depends only on arrival times.
    """

    def __init__(
        self, source: SourceFolder, enrollment: Enrollment, log: Log = lambda line: None
    ) -> None:
        self._enrollment, self._key, self._log = enrollment, source.key, log
        self.terms: Terms = enrollment.terms
        self.refusal = Refusal(self.terms.source).seal(self._key)
        self._heads = source.signed_heads(self.terms.source, enrollment.path)
        self._data_file = enrollment.settings.data
        self._records: Scores | None = None
        self._lock = threading.Lock()
        self._in_flight = InFlight(MAX_IN_FLIGHT)
        self._computing = threading.BoundedSemaphore(MAX_IN_FLIGHT)

    def __repr__(self) -> str:
        return f"SourceServer({self.terms.name!r}, enrollment {self.terms.source[:12]})"

    def answer(self, raw: bytes) -> bytes:
        """Reply exactly when the deadline, counted from now, is over.

        An answer that is not ready by then is still computed and stored. A refusal is sent,
        and a repeated request gets the answer.
        """
        start, pending = time.monotonic(), Future[bytes]()
        until = start + self.terms.deadline
        self._start(raw, start, pending)
        reply: bytes | None = None
        with suppress(TimeoutError):
            reply = pending.result(max(0.0, until - time.monotonic()))
        time.sleep(max(0.0, until - time.monotonic()))
        if reply is None:
            return self._refuse(
                "the answer was not ready at the deadline; a repeat will get it"
            )
        return reply

    def reply(self, raw: bytes) -> bytes:
        """Reply immediately, for callers that hold the reply back themselves."""
        try:
            return self._answer_request(raw)
        except (RefusedError, EnvelopeError) as error:
            reason = str(error)
        except AnswerError:
            reason = "its answer could not be computed; it was charged"
        except (DataChangedError, DataError, LedgerError) as error:
            reason = str(error)
        except Exception as error:  # a bug; its message may contain data of records
            reason = f"an unexpected error ({type(error).__name__}); please report it"
        return self._refuse(reason)

    def _start(self, raw: bytes, start: float, pending: Future[bytes]) -> None:
        """Compute the reply to a request that arrived at ``start`` in a thread of its own.

        At most twice :data:`MAX_IN_FLIGHT` threads exist: those that compute, some of them
        perhaps past their deadline, and those that wait for their turn. A request whose turn
        does not come before its deadline is dropped, and nothing is charged.
        """
        until = start + self.terms.deadline

        def work() -> None:
            if self._computing.acquire(timeout=max(0.0, until - time.monotonic())):
                try:
                    pending.set_result(self.reply(raw))
                finally:
                    self._computing.release()

        if not self._in_flight.admit(start, until):
            pending.set_result(self._refuse("too many requests at once"))
            return
        try:
            threading.Thread(target=work, daemon=True).start()
        except RuntimeError:
            pending.set_result(self._refuse("this machine can start no more threads"))

    def _refuse(self, reason: str) -> bytes:
        """Log the reason and return the refusal."""
        with suppress(OSError):  # a full disk must not change the reply
            self._enrollment.refusals.add(reason)
        self._write_log(f"refused: {reason}")
        return self.refusal

    def _write_log(self, line: str) -> None:
        """Write a line for the owner. A closed terminal must not prevent the reply."""
        with suppress(OSError, ValueError):
            self._log(line)

    def _answer_request(self, raw: bytes) -> bytes:
        """Answer a valid request; raise for any other."""
        terms, enrollment = self.terms, self._enrollment
        request = Request.unseal(raw, terms.coordinator)
        for name in ("source", "data", "model"):
            if getattr(request, name) != getattr(terms, name):
                raise RefusedError(f"its {name!r} is not that of this enrollment")
        try:
            query = build_query(request.kind, request.argument, terms)
        except EnvelopeError as cause:
            grid = terms.temperatures
            raise RefusedError(
                "it requests something that was not declared (temperatures from "
                f"{grid.low:g} to {grid.high:g}, {terms.bins} bins, …): {cause}"
            ) from cause
        event = price_request(request, query, terms)
        if enrollment.is_revoked:
            raise RefusedError("this enrollment was revoked")
        if terms.is_expired():
            raise RefusedError(f"the terms expired on {terms.expires}")
        if self._data_file is not None:
            self._data_file = self._data_file.verify(enrollment.digest_key)
        with self._lock:
            self._check_heads(request)
            ledger = enrollment.ledger
            # Without a limit, many cheap queries would fill the disk.
            if ledger.length() >= MAX_ANSWERS and not ledger.knows(request.id):
                raise RefusedError(
                    f"this coordinator received {MAX_ANSWERS:,} answers, the maximum that is "
                    "stored; nothing was charged"
                )
            records = self._load_records()
        entry, stored = self._charge_and_answer(request, event, query, records)
        head = Head.sign(terms.source, entry.index, entry.hash, entry.previous, self._key)
        with self._lock:
            self._heads.keep(head)  # on disk before the answer is sent
        self._write_log(f"answered: {request.kind} (entry {entry.index} of the ledger)")
        return Answer(request.id, tuple(json.loads(stored)["units"]), head).seal(self._key)

    def _charge_and_answer(
        self, request: Request, event: NoiseEvent, query: Query, records: Scores
    ) -> tuple[Entry, bytes]:
        """Charge, compute and store in one transaction, or return the stored answer."""
        ledger = self._enrollment.ledger
        try:
            return ledger.answer(
                event,
                request.kind,
                lambda: compute_answer(request, event, query, records),
                request=request.id,
                body=canonical(request.query).encode(),
            )
        except BudgetError as cause:
            left = format_down(ledger.remaining().epsilon, 6)
            raise RefusedError(
                "it costs more than the remaining budget of this coordinator, which is epsilon "
                f"{left}; nothing was charged"
            ) from cause

    def _check_heads(self, request: Request) -> None:
        """Refuse to answer from an older copy of the ledger."""
        quoted = request.head
        if quoted is not None and not quoted.verify(self.terms.key):
            raise RefusedError("it quotes a head that this source did not sign")
        self._heads.check(self._enrollment.ledger, quoted)

    def _load_records(self) -> Scores:
        """The enrolled records, read once."""
        if self._records is None:
            self._records = self._enrollment.records()
        return self._records


class InFlight:
    """Bounds the number of requests whose deadline is not over.

    Guarantees
    ----------
    Admission is a function of the arrival times and deadlines of earlier requests. If a slot
    became free as soon as a reply is ready, admission would reveal how long that reply took,
    and so leak information about records and noise that the deadline hides.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity, self._lock = capacity, threading.Lock()
        self._ends: collections.deque[float] = collections.deque()

    def admit(self, now: float, until: float) -> bool:
        """Occupy a slot from ``now`` until a deadline; False if none is free."""
        with self._lock:
            while self._ends and self._ends[0] <= now:
                self._ends.popleft()
            if len(self._ends) >= self._capacity:
                return False
            self._ends.append(until)
            return True


def compute_answer(request: Request, event: NoiseEvent, query: Query, records: Scores) -> bytes:
    """Evaluate the query and add noise; return what the ledger stores of the answer."""
    is_laplace = isinstance(event, DiscreteLaplace)
    add_noise = add_discrete_laplace if is_laplace else add_discrete_gaussian
    units = add_noise(evaluate_query(query, records), event.noise).tolist()
    body = {"query": request.query, "round": request.round, "units": units}
    return canonical(body).encode()

r"""A remote source: signed requests, validation of its answers, and what it can answer.

A source declares a maximum number of records, and its first counts reveal about how many it
has. No later answer may be larger than these records and the noise allow.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from scipy import stats

from veracal import _checks
from veracal._types import Frozen
from veracal.accounting import DiscreteGaussian, DiscreteLaplace, Event, Relation
from veracal.calibration import (
    METHODS,
    CorrectTotal,
    CorrectWrong,
    EnrolledBounds,
    MappedQuery,
)
from veracal.errors import BudgetError, DropoutError
from veracal.federation.coordinator.history import RequestHistory, SentRequest, SourceAccount
from veracal.federation.protocol.envelopes import MAX_REQUEST_BYTES, EnvelopeError, PrivateKey
from veracal.federation.protocol.messages import (
    MAX_ROUND,
    Answer,
    Refusal,
    Request,
    unseal_reply,
)
from veracal.federation.protocol.queries import KINDS, encode_query, in_range
from veracal.federation.protocol.terms import Terms
from veracal.ledger import Item, unpaid_items
from veracal.queries import (
    INVALID_RESPONSE,
    BinnedSum,
    Query,
    QueryRequest,
    Release,
    find_invalid_responses,
    noise_std,
)

_RARE = 2.0**-40  # probability bound that an honest answer is rejected


def too_large(expected: QueryRequest, release: Release, records: float) -> bool:
    r"""Whether an answer is larger than a number of records and the noise allow.

    One record adds at most :math:`\Delta` to the L1 norm of a sum, so n records add at most
    :math:`n \Delta`, and

    .. math:: \sum_j |k_j| \le n \Delta + r,

    where the total noise in all entries exceeds r with probability :math:`2^{-40}` at most.
    """
    sensitivity = expected.query.sensitivity("add-remove")
    return sum(map(abs, release.units)) > records * sensitivity + _release_noise_bound(release)


def claimed_records(query: Query, release: Release) -> float | None:
    """Upper bound on the number of records that an answer implies; None if it implies none."""
    inner = query.query if isinstance(query, MappedQuery) else query
    if isinstance(inner, CorrectTotal):
        counts = release.units[1::2]
    elif isinstance(inner, CorrectWrong) or (
        # A sum that counts each record in one of two cells.
        isinstance(inner, BinnedSum) and (inner.low, inner.high, inner.bits) == (0, 1, 0)
    ):
        counts = release.units
    else:
        return None
    return max(sum(counts) + _release_noise_bound(release), 0.0)


def _release_noise_bound(release: Release) -> float:
    """High-probability bound on the noise in the L1 norm of an answer."""
    assert isinstance(release.event, DiscreteLaplace | DiscreteGaussian)
    return noise_bound(release.event, len(release.units))


def noise_bound(
    event: DiscreteLaplace | DiscreteGaussian, entries: int, *, rare: float = _RARE
) -> float:
    r"""Bound on the L1 norm of noise, exceeded with probability at most ``rare``.

    The magnitude of discrete Laplace noise is stochastically dominated by 1 plus an exponential
    variable of the same scale s (:math:`P(|k| \ge j) = 2q^j / (1 + q) \le q^{j-1}` with
    :math:`q = e^{-1/s}`), and a sum of m exponentials has a Gamma distribution. For Gaussian
    noise the bound is m times the bound that one entry exceeds with probability ``rare / m``.
    """
    if isinstance(event, DiscreteLaplace):
        return entries + event.noise * float(stats.gamma.isf(rare, entries))
    return entries * event.noise * math.sqrt(2 * math.log(2 * entries / rare))


_MEASUREMENT_KINDS = ("counts", "bin-gaps", "map-bin-gaps")
_RESERVED_BYTES = 1_300  # of a request, for everything except the parameters of a map
# Kinds of query that each method needs, without its guard and its measurement.
METHOD_KINDS: Mapping[str, tuple[str, ...]] = Frozen(
    {method.name: method.remote_queries for method in METHODS.values() if method.remote_queries}
)


def enrolled_bounds(terms: Iterable[Terms]) -> EnrolledBounds:
    """What all sources can answer, with their common bounds."""
    bounds = []
    for each in terms:
        temperatures, grid, enrolled = each.temperatures, each.parameters, set(each.kinds)
        usable = {
            kind for kind in enrolled & KINDS.keys() if each.delta or not KINDS[kind].gaussian
        }
        largest = max(grid.most_weight, grid.most_bias) << grid.bits
        bounds.append(
            EnrolledBounds(
                each.classes,
                each.reads,
                (float(temperatures.low), float(temperatures.high)),
                each.bins,
                float(each.clamp),
                grid,
                tuple(name for name, kinds in METHOD_KINDS.items() if usable.issuperset(kinds)),
                guards="map-gain" in enrolled,
                # A measurement also needs the scores as they are, at temperature 1.
                measures=enrolled.issuperset(_MEASUREMENT_KINDS)
                and in_range(2**temperatures.bits, temperatures),
                recounts="map-counts" in enrolled,
                parameters=(MAX_REQUEST_BYTES - _RESERVED_BYTES) // (len(str(largest)) + 2),
            )
        )
    return EnrolledBounds.of_all(bounds)


Send = Callable[[bytes], bytes]
REFUSED = "it refused; its owner can see why"
LATE = "it did not answer in time"


@dataclass(frozen=True)
class Dropout:
    """Stands for the answer of a source that gave none that is valid, with the reason."""

    reason: str


class Remote:
    """One remote source, queried by signed requests.

    Parameters
    ----------
    terms : Terms
        Signed terms of the source.
    key : PrivateKey
        The coordinator's key, which the terms name.
    send : callable, optional
        ``send(request) -> reply``, for a source that is queried alone. It may raise an
        ``OSError``.
    history : RequestHistory, optional
        Stores requests and answers; by default in memory.
    run : str
        Distinguishes several uses of one history.

    Guarantees
    ----------
    A query that the source did not declare is refused before anything is sent. An answered
    query is never sent again. A reply is accepted only if the source signed it for this query,
    its head is consistent with the earlier heads, and the claimed number of records can
    produce it.

    Notes
    -----
    The hash of a query is its id at the source too: the same query under another ``request``
    gets the same answer at no cost.
    """

    partition: str | None = None

    def __init__(
        self,
        terms: Terms,
        key: PrivateKey,
        send: Send | None = None,
        history: RequestHistory | None = None,
        *,
        run: str = "",
    ) -> None:
        if terms.coordinator != key.public:
            raise ValueError(
                f"Expected the key that {terms.name!r} is enrolled for "
                f"({terms.coordinator.text[:12]}…), got {key.public.text[:12]}…. Use the right "
                "key, or ask the source to enroll this one."
            )
        self.terms, self.run, self.name = terms, run, terms.name
        self.relation: Relation = terms.relation
        self.unit = terms.unit
        self.enrolled = enrolled_bounds([terms])
        self._key, self._send = key, send
        self.history = RequestHistory(None, key.public) if history is None else history
        self.account = SourceAccount(terms)
        self._max_records = float(terms.max_records)
        self.history.add_source(terms)

    def __repr__(self) -> str:
        return f"Remote({self.terms.name!r}, {self.terms.source[:8]}…)"

    # ------------------------------------------------------------------ as a source

    def answer(
        self, query: Query, *, micro_epsilon: int, request: str | None = None
    ) -> Release:
        """Query the source with Laplace noise."""
        _checks.whole(micro_epsilon=micro_epsilon)
        return self._query(QueryRequest(query, micro_epsilon=int(micro_epsilon)), request)

    def answer_gaussian(
        self, query: Query, *, noise_multiplier: float, request: str | None = None
    ) -> Release:
        """Query the source with Gaussian noise."""
        _checks.positive(noise_multiplier=noise_multiplier)
        return self._query(
            QueryRequest(query, noise_multiplier=float(noise_multiplier)), request
        )

    def unpaid(self, items: Iterable[Item], *, request: str | None = None) -> list[Item]:
        """Items that this run did not request yet."""
        charges = self.history.charges(self.terms.source, self.run)
        return unpaid_items(items, ((charge.purpose, charge.event) for charge in charges))

    def require(self, items: Sequence[Item]) -> None:
        """Raise a ``BudgetError`` if the remaining budget or the terms do not cover items."""
        if items and self.terms.is_expired():
            raise BudgetError(
                f"The terms of {self.name} expired on {self.terms.expires} (UTC). Nothing was "
                "sent. Ask the owner to enroll again."
            )
        self.account.require(items, self.charges())

    def charges(self) -> list[Event]:
        """Everything that it may have charged this coordinator, according to the history."""
        return [charge.event for charge in self.history.charges(self.terms.source)]

    def _query(self, expected: QueryRequest, label: str | None) -> Release:
        """Query the source, or repeat the stored answer."""
        request = self.request(expected)
        if label is not None:
            self.history.label(self.run, self.terms.source, label, request.id)
        response = self.known_response(expected)
        if response is None:
            raw = self.prepare_request(expected, 0)
            assert self._send is not None
            try:
                response = self.receive(expected, self._send(raw))
            except OSError as error:
                raise DropoutError(f"{self.name}: {LATE}, or could not be reached.") from error
        if isinstance(response, Dropout):
            raise DropoutError(f"{self.name}: {response.reason}.")
        return response

    # ---------------------------------------------------------------- step by step

    def request(self, expected: QueryRequest) -> Request:
        """The request for a query; a ``ValueError`` if the source did not declare it."""
        kind, argument = encode_query(expected.query, self.terms)
        return Request(
            source=self.terms.source,
            data=self.terms.data,
            model=self.terms.model,
            kind=kind,
            argument=argument,
            micro_epsilon=expected.micro_epsilon,
            noise_multiplier=expected.noise_multiplier,
        )

    def known_response(self, expected: QueryRequest) -> Release | Dropout | None:
        """The stored response; a dropout if the source is no longer trusted."""
        fault = self.history.fault(self.terms.source)
        return self.stored_response(expected) if fault is None else Dropout(fault)

    def stored_response(self, expected: QueryRequest) -> Release | Dropout | None:
        """The stored response, whether or not the source is still trusted; or None."""
        request = self.request(expected).id
        answer = self.history.read_answer(self.run, self.terms, request)
        return None if answer is None else self._validate(expected, answer)

    def prepare_request(self, expected: QueryRequest, round_: int) -> bytes:
        """Store a request in the history and return the bytes to send.

        A repeat sends the same bytes. After a refusal or an invalid reply, the round in the
        request is changed, so that the old reply is not accepted for the new request.
        """
        request, event = self.request(expected), expected.event(self.relation, self.unit)
        source = self.terms.source
        before = self.history.find_request(source, request.id)
        if before is None:
            self.require([Item(expected.query.name, event)])
        if before is not None and before.state == "sent":
            raw = before.raw
        else:
            if before is not None:
                used = Request.unseal(before.raw, self._key.public).round
                round_ = min(max(round_, used + 1), MAX_ROUND)
            head = self.history.head(source)
            raw = replace(request, round=round_, head=head).seal(self._key)
        sent = SentRequest("sent", expected.query.name, event, raw)
        self.history.record_request(self.run, source, request.id, sent)
        return raw

    def receive(self, expected: QueryRequest, raw: bytes) -> Release | Dropout:
        """Validate a reply and store it, or store why it is not accepted."""
        request = self.request(expected).id
        try:
            reply = unseal_reply(raw, self.terms.key)
            source = reply.head.source if isinstance(reply, Answer) else reply.source
            if source != self.terms.source:
                raise EnvelopeError("it is a reply of another enrollment")
            if isinstance(reply, Answer):
                self._check(reply, request, expected)
        except EnvelopeError as error:
            self.history.record_failure(self.terms.source, request, "unusable")
            return Dropout(f"{INVALID_RESPONSE}: {error}")
        if isinstance(reply, Refusal):
            self.history.record_failure(self.terms.source, request, "refused")
            return Dropout(REFUSED)
        fault = self.history.record_answer(request, reply, raw)
        return self._validate(expected, reply) if fault is None else Dropout(fault)

    def _check(self, reply: Answer, request: str, expected: QueryRequest) -> None:
        """Refuse an answer to another query, or with a head that the source did not sign."""
        if reply.request != request:
            raise EnvelopeError("it answers another query")
        if not reply.head.verify(self.terms.key):
            raise EnvelopeError("its head is not signed by the source")
        if len(reply.units) != expected.query.entries:
            raise EnvelopeError(f"it does not have {expected.query.entries} entries")

    def _validate(self, expected: QueryRequest, answer: Answer) -> Release | Dropout:
        """Convert an answer to a release if the source's records can have produced it."""
        event = expected.event(self.relation, self.unit)
        grid = expected.query.grid
        release = Release(
            expected.query.name,
            answer.units,
            grid,
            noise_std(event) * grid.step,
            expected.micro_epsilon,
            event,
            private=True,
            head=answer.head.hash,
        )
        faults = find_invalid_responses(expected, {0: release}, [self], self.terms.max_records)
        if not faults and too_large(expected, release, self._max_records):
            faults = {0: "it is larger than the declared number of records allows"}
        if faults:
            return Dropout(f"{INVALID_RESPONSE}: {faults[0]}")
        claimed = claimed_records(expected.query, release)
        if claimed is not None:
            self._max_records = min(self._max_records, claimed)
        return release

"""Every answer of a source is charged at no less than it reveals, before a record is read.

Sources with random terms (relation, rows of a unit, bins, clamp, Laplace or Gaussian noise) get
random queries within them. The privacy loss of an answer is measured as the change of the exact
sum on neighbors, divided by the noise that was drawn. The charge must cover it and equal the
cost in the request. Records are read only for charged requests, whatever fails in between.
"""

import math
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np

from assurance import ledgers, sources
from assurance.sources import EnrolledSource, Patches, Tape
from tests.federation.source.enrolled import LAPLACE
from veracal.accounting import Budget
from veracal.accounting.events import RELATIONS, DiscreteLaplace, Pure, Unit
from veracal.data import Scores
from veracal.errors import LedgerError
from veracal.federation.protocol.queries import KINDS, build_query
from veracal.federation.source import serving
from veracal.federation.source.enrolling import example_arguments
from veracal.federation.source.serving import SourceServer
from veracal.ledger import storage as ledger_tables
from veracal.ledger.chain import Entry, canonical
from veracal.ledger.ledger import Ledger, open_ledger
from veracal.queries import Query
from veracal.queries.query import laplace_event
from veracal.testing.queries import adversarial_scores

NAME = "source_charge"
DELTA = 1e-5
TOTAL = 0.5
GAUSSIAN = tuple(kind for kind in KINDS if KINDS[kind].gaussian)


# ---------------------------------------------------------------- mutants


def for_one_row(path: Any, budget: Budget, **more: Any) -> Ledger:
    """Open a ledger that forgets how many rows a unit has."""
    return open_ledger(
        path, Budget(budget.epsilon, budget.delta, budget.relation, Unit()), **more
    )


def noise_for_one_row(query: Query, micro: int, relation: Any, unit: Unit) -> DiscreteLaplace:
    """Make the noise for one row."""
    return laplace_event(query, micro, relation)


def as_added(query: Query, micro: int, relation: Any, unit: Unit) -> DiscreteLaplace:
    """Take the sensitivity to adding a record, whatever the relation."""
    event = laplace_event(query, micro, "add-remove", unit)
    return DiscreteLaplace(event.noise, event.sensitivity, relation)


def charge_named_cost(
    self: SourceServer, request: Any, event: Any, query: Query, records: Scores
) -> Any:
    """Charge what the request names, not what the event costs."""
    named = request.micro_epsilon or 1_000
    answer = lambda: serving.compute_answer(request, event, query, records)  # noqa: E731
    body = canonical(request.query).encode()
    charged = Pure(named / 10**6 / self.terms.unit.max_contributions, self.terms.relation)
    fields = {"request": request.id, "body": body}
    return self._enrollment.ledger.answer(charged, request.kind, answer, **fields)


def afterwards(
    self: SourceServer, request: Any, event: Any, query: Query, records: Scores
) -> Any:
    """Answer, and charge then; what goes wrong is no reason not to answer."""
    answer = serving.compute_answer(request, event, query, records)
    try:
        return CHARGED(self, request, event, query, records)
    except (LedgerError, serving.RefusedError):
        entry = Entry(
            1, request.kind, "answered", "0" * 64, event, filter=1, request=request.id
        )
        return entry, answer


def read_first(
    self: SourceServer, request: Any, event: Any, query: Query, records: Scores
) -> Any:
    """Read the records, and charge afterwards."""
    kept = serving.compute_answer(request, event, query, records)
    with mock.patch.object(serving, "compute_answer", return_value=kept):
        return CHARGED(self, request, event, query, records)


CHARGED = SourceServer._charge_and_answer
EVENT = sources.SOURCE + "serving.laplace_event"
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "charged for one row of a unit": {sources.SOURCE + "enrolling.open_ledger": for_one_row},
    "noise for one row of a unit": {EVENT: noise_for_one_row},
    "replacing priced as adding": {EVENT: as_added},
    "cost from the request, not the event": {
        sources.CHARGED: charge_named_cost,
        EVENT: noise_for_one_row,
    },
    "M18 charge after answer": {sources.CHARGED: afterwards},
    "records read before the check": {sources.CHARGED: read_first},
    "M17 forget to charge": ledgers.FORGOTTEN,
}


# ---------------------------------------------------------------- the gate


def run(subject: Patches, *, long: bool) -> str:
    """Send random queries to sources with random terms."""
    rng = np.random.default_rng(0)
    rounds, each = (1_000, 100) if long else (10, 20)
    answered = 0
    for number in range(rounds):
        answered += source(subject, rng, each, gaussian=number % 5 == 4)
    return f"{answered:,} answers of {rounds:,} sources, none below what it tells, none free"


def source(subject: Patches, rng: np.random.Generator, each: int, *, gaussian: bool) -> int:
    """Query one source until it refuses; return the number of answers."""
    rows = int(rng.integers(1, 4))
    relation: Any = RELATIONS[int(rng.integers(2))]
    unit = Unit("patient", rows) if rows > 1 else Unit()
    delta = DELTA if gaussian else 0.0
    terms = {
        "kinds": tuple(KINDS) if gaussian else LAPLACE,
        "epsilon": TOTAL,
        "max_per_answer": TOTAL / 2,
        "delta": delta,
        "bins": int(rng.integers(2, 9)),
        "clamp": float(rng.choice([0.5, 4.0, 10.0])),
        "budget": Budget(TOTAL, delta, relation, unit),
        "records": draw_scores(30, rows, rng),
    }
    with sources.enrolled(subject, heads=False, **terms) as north, observe() as seen:
        broken(north, seen)
        for _ in range(each):
            query_source(north, seen, rng, gaussian=gaussian)
        spent = north.ledger.spent()
        assert spent.epsilon <= TOTAL, f"{spent} of {TOTAL} was charged"
        try:
            north.ledger.verify()
        except LedgerError as error:
            raise AssertionError(str(error)) from error
        return len(north.ledger.entries())


def draw_scores(n: int, rows: int, rng: np.random.Generator) -> Scores:
    """Adversarial logits of units with as many rows as they may have."""
    while (result := adversarial_scores(n, rng, classes=3)).kind != "logits":
        continue
    units = np.arange(n) // rows if rows > 1 else None
    return Scores.from_logits(result.values, result.known_labels, units=units)


class Observed(Tape):
    """What was read, and the noise that was drawn for it."""

    queries: list[Query]


@contextmanager
def observe() -> Iterator[Observed]:
    """Record every access to the records, and every draw."""
    seen = Observed([])
    seen.queries = []

    def looked(query: Query, records: Scores) -> Any:
        seen.queries.append(query)
        return EVALUATED(query, records)

    with (
        mock.patch(sources.EVALUATED, looked),
        mock.patch(sources.LAPLACE, seen.add_noise),
        mock.patch(sources.SOURCE + "serving.add_discrete_gaussian", seen.add_noise),
    ):
        yield seen


EVALUATED = serving.evaluate_query


def query_source(
    north: EnrolledSource, seen: Observed, rng: np.random.Generator, *, gaussian: bool
) -> None:
    """One random query; if it is answered, it was charged, and for no less than it tells."""
    kind = str(rng.choice(north.terms.kinds))
    arguments = list(example_arguments(kind, north.terms))
    argument = arguments[int(rng.integers(len(arguments)))]
    if set(argument) == {"inverse"}:
        argument = {"inverse": int(rng.integers(12_000, 130_000))}
    micro = int(10 ** rng.uniform(1, 5.5))
    noise: dict[str, Any] = {"micro_epsilon": micro}
    if gaussian:
        noise = {"micro_epsilon": None, "noise_multiplier": float(10 ** rng.uniform(0.7, 2))}
    request = north.request(kind, argument=argument, **noise)
    held, looks = north.ledger.entries(), len(seen.queries)
    is_new = not any(one.request == request.id for one in held)
    reply = north.server.reply(north.raw(kind, argument=argument, **noise))
    entries = north.ledger.entries()
    if not sources.is_answer(north, reply):
        assert len(entries) == len(held), "charged, and refused"
        assert len(seen.queries) == looks, "the records were read for a refusal"
        return
    assert len(entries) == len(held) + is_new, "an answer was not charged"
    assert len(seen.queries) == looks + is_new, "the records were read without a charge"
    if is_new:
        query = build_query(kind, argument, north.terms)
        covered(north, query, entries[-1], seen.drawn[-1][1], None if gaussian else micro)


def covered(
    north: EnrolledSource, query: Query, entry: Entry, noise: float, micro: int | None
) -> None:
    """What was charged is no less than what neighbors lose by that noise."""
    terms, what = north.terms, f"{entry.purpose} under {north.terms.relation}"
    rows, relation = terms.unit.max_contributions, terms.relation
    l1, l2 = moves(north, query)
    if micro is not None:
        stated = Fraction(query.sensitivity(relation) * rows) / Fraction(noise)
        loss = max(stated, Fraction(l1) / Fraction(noise))
        assert entry.cost >= loss * 10**6, (
            f"{what} of {rows} rows tells {float(loss):.6f}, was charged {entry.cost / 1e6}"
        )
        assert entry.cost == micro, f"{what} was charged {entry.cost}, and {micro} was named"
        return
    order: float = north.ledger.opening.rule.order  # type: ignore[attr-defined]
    bound = max(query.sensitivity_l2(relation) * rows, l2) / noise
    divergence = order * bound**2 / 2
    assert entry.cost >= divergence * 10**9 * (1 - 1e-9), (
        f"{what} of {rows} rows has a divergence of {divergence:.9f}, was charged {entry.cost}"
    )


def moves(north: EnrolledSource, query: Query) -> tuple[int, float]:
    """The most that one unit moves a query, among units of hard records."""
    rows, relation = north.terms.unit.max_contributions, north.terms.relation
    each = [
        query.evaluate(HARD.take(np.full(rows, i))).astype(object) for i in range(len(HARD))
    ]
    nothing = [0 * each[0]] if relation == "add-remove" else each
    moved = [one - other for one in each for other in nothing]
    return (
        max(int(sum(abs(k) for k in one)) for one in moved),
        max(math.sqrt(sum(int(k) ** 2 for k in one)) for one in moved),
    )


HARD = Scores.from_logits(
    np.array(
        [[1e3, 0, 0], [0, 0, 0], [0, 1e3, 0], [3, 2, 1], [-1e3, 0, 0], [5, 5, 0], [1e300, 0, 0]]
    ).repeat(3, axis=0),
    np.tile(np.arange(3), 7),
)


def broken(north: EnrolledSource, seen: Observed) -> None:
    """A failed charge leaves no answer; a repeated request is charged once."""
    raw = north.raw(micro_epsilon=1_000) if not north.terms.delta else None
    if raw is None:
        return
    full = mock.Mock(side_effect=sqlite3.OperationalError("database or disk is full"))
    with mock.patch.object(ledger_tables, "append", full):
        reply = north.server.reply(raw)
    assert reply == north.server.refusal, "an answer left though its charge has failed"
    assert not north.ledger.entries(), "charged, and refused"
    seen.queries.clear()
    assert sources.is_answer(north, north.server.reply(raw)), "refused once there is room again"
    assert len(north.ledger.entries()) == 1, "not charged once"

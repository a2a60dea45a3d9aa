"""Methods on a pool learn about records only from charged answers, and cost what they announce.

Whole fits are recorded on one federation and replayed on a neighbor whose sources give the same
answers: the same queries must be sent to all sources, and the result must be the same, bit for
bit. The influence of one record, over all queries at the temperatures that were used, must be
within the announced cost, and so must the charges in the ledgers.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from assurance.federations import (
    HARD,
    MICRO,
    Method,
    Outcome,
    RecordingSource,
    joined,
    methods,
    neighbors,
    observe_sources,
    recalibrated,
    replayed,
    shifted,
)
from assurance.ledgers import FORGOTTEN, Patches, patched
from veracal.accounting import Budget, DiscreteLaplace, epsilon_for, micro_epsilon
from veracal.accounting.events import RELATIONS
from veracal.calibration import Gap, Identity, LossAt, PooledTemperature
from veracal.calibration.prepaid_source import declared_noises
from veracal.calibration.private import pooled as pooled_module
from veracal.calibration.private.golden_section import BracketSearch, narrow_bracket
from veracal.calibration.private.session import (
    QuerySession,
    combined_statement,
    divide_epsilon,
)
from veracal.calibration.queries.scalars import loss_at
from veracal.calibration.recalibration.plan import query_comparison
from veracal.ledger import open_ledger
from veracal.queries import Curator, Pool, QueryRequest
from veracal.queries.pools import PooledRelease

NAME = "federation"
SECONDS = 20
PRIVATE = "veracal.calibration.private"
QUERIES = "veracal.calibration.queries"
SLACK = 1 + 1e-9
UNKNOWN = shifted(0, np.random.default_rng(0))


# ---------------------------------------------------------------- mutants


def an_extra_sample(ask: Any, low: Any, high: Any, reductions: int) -> BracketSearch:
    """One cut more than was announced: a value that is not used."""
    return narrow_bracket(ask, low, high, reductions + 1)


def and_its_price(micro: int, shares: Any) -> tuple[int, ...]:
    """Prices for it, as if there were enough."""
    parts = divide_epsilon(micro, shares)
    return (*parts, parts[-1])


def epsilon_by_k(micro: int, shares: Any) -> tuple[int, ...]:
    """As printed: K + 1 values, each for epsilon / K."""
    return (micro // (len(shares) - 1),) * len(shares)


def unclamped(self: LossAt, records: Any) -> np.ndarray:
    """The loss without a clamp, except for infinities."""
    losses = loss_at(records, self.inverse) if len(records) else np.zeros(0)
    return np.array([int(np.rint(np.minimum(losses, 1e6) * 2**self.bits).sum())])


def query_twice(self: QuerySession, query: QueryRequest, name: str) -> Any:
    """Every gap once more, one millionth cheaper, for the mean of both."""
    first = ASK(self, query, name)
    if isinstance(query.query, Gap):
        replace(query, micro_epsilon=query.micro_epsilon - 1).ask(self.source)
    return first


def true_count(session: QuerySession) -> Any:
    """The numbers of records that the sources have."""
    pool: Any = session.source
    right = sum(int(one._records.correct.sum()) for one in pool.sources)
    n = sum(len(one._records) for one in pool.sources)
    numbers = (np.array(float(x)) for x in (right, n - right))
    return pooled_module.NoisyCounts(*numbers, np.array(0.0), np.array(len(pool.sources)))


def true_size(session: QuerySession, size: float | None) -> float:
    """The true number of records to divide equations by."""
    pool: Any = session.source
    return float(sum(len(one._records) for one in pool.sources))


def begins_at_the_truth(self: PooledTemperature, source: Any, **about: Any) -> Any:
    """Start where the first source has its root."""
    records = getattr(source, "source", source).sources[0]._records
    gaps = [
        (abs(int(Gap(math.exp(-place)).evaluate(records)[0])), -place)
        for place in np.linspace(0.0, 1.5, 16)
    ]
    with mock.patch.object(pooled_module, "CENTER", min(gaps)[1]):
        return FIT(self, source, **about)


def only_if_better(self: QuerySession, query: QueryRequest, name: str) -> Any:
    """Check whether a query is worth its cost, and make a cheaper one if not."""
    pool: Any = getattr(self.source, "source", self.source)
    if isinstance(query.query, Gap) and len(pool.sources[0]._records) % 2:
        query = QueryRequest(query.query, query.micro_epsilon // 2)
    return ASK(self, query, name)


def last_only(self: QuerySession) -> tuple[Any, ...]:
    """State the cost of the answers that were used in the end."""
    return tuple(self._releases[1:])


def answering_forgotten(releases: Any, unit: Any, **about: Any) -> Any:
    """State the queries to the sources that answered all of them."""
    answered = [
        replace(
            r,
            requested={p: e for p, e in r.requested.items() if p not in dropouts_of(releases)},
        )
        if isinstance(r, PooledRelease)
        else r
        for r in releases
    ]
    return combined_statement(answered, unit, **about)


def dropouts_of(releases: Any) -> set[Any]:
    """Sources that dropped out once."""
    return {path for r in releases for path in r.dropped()}


def at_one_source(releases: Any, unit: Any, **about: Any) -> Any:
    """Ignore that an individual may be at several sources."""
    return combined_statement(releases, unit, **{**about, "at_sources": 1})


def after_unasked(plan: Any, ask: Any, map_: Any) -> Any:
    """The figures after the map, queried at the cost of both."""
    double = {n: QueryRequest(a.query, 2 * a.micro_epsilon) for n, a in plan.queries.items()}
    return query_comparison(replace(plan, queries=double), ask, map_)


ASK, FIT = QuerySession.ask, PooledTemperature.fit
RANGE: Callable[..., int] = Gap.sensitivity
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "golden section with an extra sample": {
        "veracal.calibration.private.golden_section.narrow_bracket": an_extra_sample,
        "veracal.calibration.private.golden_section.divide_epsilon": and_its_price,
    },
    "golden section with epsilon/K": {
        "veracal.calibration.private.golden_section.divide_epsilon": epsilon_by_k
    },
    "losses without a clamp": {
        "veracal.calibration.queries.scalars.LossAt.evaluate": unclamped
    },
    "a gap's sensitivity of the wrong relation": {
        "veracal.calibration.queries.scalars.Gap.sensitivity": lambda self, relation: RANGE(
            self, "add-remove"
        )
    },
    "counts as printed, with sensitivity 1": {
        "veracal.calibration.queries.binned.CorrectTotal.sensitivity": lambda self, relation: (
            1 if relation == "add-remove" else 2
        )
    },
    "a forgotten charge": FORGOTTEN,
    "gaps asked for twice": {
        "veracal.calibration.private.session.QuerySession.ask": query_twice
    },
    "a pool that knows its number of records": {
        "veracal.calibration.private.pooled._counts": true_count
    },
    "equations divided by the true number": {
        "veracal.calibration.private.platt._record_count": true_size
    },
    "a search that starts from the records": {
        "veracal.calibration.private.pooled.PooledTemperature.fit": begins_at_the_truth
    },
    "a price that depends on the records": {
        "veracal.calibration.private.session.QuerySession.ask": only_if_better
    },
    "answers left out of the statement": {
        "veracal.calibration.private.session.QuerySession.releases": property(last_only)
    },
    "a statement without those who fell silent": {
        "veracal.calibration.recalibration.run.combined_statement": answering_forgotten
    },
    "at_sources ignored": {
        "veracal.calibration.recalibration.run.combined_statement": at_one_source
    },
    "figures at twice their price": {
        "veracal.calibration.recalibration.run.query_comparison": after_unasked
    },
}


# ---------------------------------------------------------------- the gate


def run(subject: Patches, *, long: bool) -> str:
    """Replay fits on neighbors, then add up what was charged."""
    rng = np.random.default_rng(0)
    lines: list[tuple[int, float]] = []
    rounds = 60 if long else 2
    with patched(subject) as folder:
        several(rng)
        for _ in range(rounds):
            lines += [replay(name, method, rng) for name, method in methods().items()]
        charged(folder, rng)
    requested, shares = sum(n for n, _ in lines), [share for _, share in lines]
    return (
        f"{len(lines)} x {len(RELATIONS)} fits of {len(methods())} methods replayed, "
        f"{requested} queries, none distinguishable; one record used "
        f"up to {max(shares):.4f} of its budget"
    )


def replay(name: str, method: Method, rng: np.random.Generator) -> tuple[int, float]:
    """One fit on neighbors under each relation; how many queries, how much was used."""
    requested, most = 0, 0.0
    for relation in RELATIONS:
        parts = [shifted(int(n), rng) for n in (40, 25, 60)]
        first, second = neighbors(parts[0], relation, rng)
        sources = observe_sources([first, *parts[1:]], relation, rng)
        result = method.run(Pool(sources))
        others = replayed([second, *parts[1:]], sources)
        again = method.run(Pool(others))
        for one, other in zip(sources, others, strict=True):
            bodies = [[requested.body for requested in w.asked] for w in (one, other)]
            assert bodies[0] == bodies[1], f"{name}: neighbors are asked other queries"
        assert result.said == again.said, f"{name}: the same answers gave different results"
        most = max(most, within(name, sources[0], first, second))
        announced_to_all(name, method, sources, relation)
        promised(name, result, sources)
        requested += sum(len(w.asked) for w in sources)
    return requested, most


def within(name: str, source: RecordingSource, first: Any, second: Any) -> float:
    """Largest share of the budget that one record's moves cost, over all queries together.

    Of the neighbors, and of every hard record that comes, goes or takes another's place.
    """
    used: Any = 0.0
    allowed = 0.0
    for requested in source.asked:
        query, event = requested.query, requested.event
        pure, relation = isinstance(event, DiscreteLaplace), event.relation
        moves = [query.evaluate(first) - query.evaluate(second), *hard_moves(query, relation)]
        sizes = np.linalg.norm(np.array(moves, dtype=float), ord=1 if pure else 2, axis=1)
        most = query.sensitivity(relation) if pure else query.sensitivity_l2(relation)
        far = sizes.max()
        assert far <= most * SLACK, f"{name}: {query.name} moved by {far}, stated {most}"
        used = used + (sizes / event.noise) ** (1 if pure else 2)
        allowed += (event.sensitivity / event.noise) ** (1 if pure else 2)
    share = float(np.max(used)) / (MICRO / 1e6 if pure else allowed)
    assert share <= SLACK, f"{name}: one record used {share:.3f} of what it was to pay"
    return share


def hard_moves(query: Any, relation: str) -> list[np.ndarray]:
    """What hard records add to a sum, or change in it."""
    each = [query.evaluate(joined(UNKNOWN, row)) for row in HARD]
    if relation == "add-remove":
        return each
    return [one - other for i, one in enumerate(each) for other in each[:i]]


def announced_to_all(
    name: str, method: Method, sources: list[RecordingSource], relation: Any
) -> None:
    """Every source gets the announced queries, once, at a cost of at most epsilon."""
    for source in sources:
        requested = Counter(one.event for one in source.asked)
        if method.event is not None:
            due = declared_noises(method.event(relation))
            assert requested == due, f"{name}: asked for {requested}, declared {due}"
        if method.delta:
            cost = epsilon_for(method.event(relation), method.delta)  # type: ignore[misc]
            assert cost <= MICRO / 1e6, f"{name} costs {cost}, more than {MICRO / 1e6}"
        else:
            spent = math.ceil(exactly(source) * 1_000_000)
            assert spent <= MICRO, f"{name} spends {spent} millionths of {MICRO}"


def exactly(source: RecordingSource) -> Fraction:
    """Cost of the queries to a source, as an exact sum."""
    costs = (
        Fraction(one.event.sensitivity) / Fraction(one.event.noise) for one in source.asked
    )
    return sum(costs, Fraction(0))


def promised(name: str, found: Outcome, sources: list[RecordingSource], times: int = 1) -> None:
    """The statement covers the queries to the sources with the highest costs."""
    assert found.statement is not None, f"{name}: nothing is promised"
    if found.statement.delta:
        return
    due = sum(sorted((exactly(one) for one in sources), reverse=True)[:times])
    stated = found.statement.epsilon
    assert stated >= float(due) * (1 - 1e-12), (
        f"{name}: {stated} claimed, {float(due)} asked for"
    )
    # An announced query counts even if a rejected map made it unnecessary.
    most = times * MICRO / 1e6 if name.startswith("recalibrate") else float(due)
    assert stated <= most * 1.001 + 1e-6, f"{name}: {stated} claimed for {float(due)}"


def several(rng: np.random.Generator) -> None:
    """Individuals at two sources pay at both, even if one dropped out at the end."""
    for last in (2, math.inf):
        records = [shifted(1_500, rng, temperature=5.0) for _ in range(3)]
        sources = observe_sources(records, "add-remove", rng)
        sources[2].answers = last
        result = recalibrated(Pool(sources, min_sources=2), method="acc-t", at_sources=3)
        promised("recalibrate at three sources", result, sources, 3)
        announced_to_all("recalibrate", methods()["recalibrate"], sources, "add-remove")
        assert result.map != Identity(), "the guard kept no map of records that need one"


def charged(folder: Path, rng: np.random.Generator) -> None:
    """Ledgers of real holders have charged what was announced, and a repetition is free."""
    for i, (name, method) in enumerate(methods().items()):
        if method.delta or method.event is None:
            continue
        relation = RELATIONS[i % 2]
        due = micro_epsilon(method.event(relation))
        pool = Pool([ledgered(shifted(30, rng), folder, relation) for _ in range(2)])
        for _ in range(2):
            result = method.run(pool)
            for one in pool.sources:
                spent = round(one.ledger.spent().epsilon * 1e6)
                assert spent == due, f"{name} charged {spent}, announced {due}"
                assert spent <= MICRO, f"{name} charged {spent} of {MICRO}"
            assert result.statement is not None, f"{name}: nothing is promised"
            stated = result.statement.epsilon
            assert stated >= due / 1e6 * (1 - 1e-9), f"{name}: {stated} claimed, {due} charged"


def ledgered(records: Any, folder: Path, relation: Any) -> Curator:
    """A holder with a budget that is just enough."""
    place = folder / f"{len(list(folder.iterdir()))}.ledger"
    return Curator(records, open_ledger(place, Budget(MICRO / 1e6, relation=relation)))

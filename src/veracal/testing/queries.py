"""Contract suites of queries and sources.

A query states how far one record can change it; these checks try to refute that.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from veracal._types import Ints
from veracal.accounting import RELATIONS, Relation
from veracal.data import Scores
from veracal.errors import BudgetError, ConflictError, VeracalError
from veracal.mechanisms import MAX_NOISE, Grid
from veracal.queries import NonAdditive, Query, Release, SettingValue, Source

MakeRecords = Callable[[int, np.random.Generator], Any]
_EXTREMES = (0.0, -0.0, 5e-324, 1e-300, 1.0, 20.0, 88.8, 745.2, 3.4e38, 1.7e308)


def adversarial_scores(n: int, rng: np.random.Generator, *, classes: int = 10) -> Scores:
    """Labeled scores with extreme values: confident and right, confident and wrong, tied, huge.

    Parameters
    ----------
    n : int
        Number of records; zero works.
    rng : Generator
    classes : int
        With at least eight, some floating-point sums depend on the memory layout.
    """
    labels = rng.integers(classes, size=n)
    if rng.random() < 0.3:
        spread = rng.dirichlet(np.full(classes, 0.3), size=n)
        sure = np.eye(classes)[rng.integers(classes, size=n)]  # exact zeros and ones
        tied = np.full((n, classes), 1 / classes)
        form = rng.integers(3, size=(n, 1))
        values = np.select([form == 0, form == 1], [sure, tied], spread)
        return Scores.from_probabilities(values, labels)
    ordinary = rng.normal(scale=3, size=(n, classes))
    extreme = rng.choice(_EXTREMES, (n, classes)) * rng.choice([-1.0, 1.0], (n, classes))
    ties = np.broadcast_to(rng.choice(_EXTREMES, (n, 1)), (n, classes))
    confident = 1000.0 * (np.arange(classes) == labels[:, None])
    kind = rng.integers(5, size=(n, 1))
    logits = np.select(
        [kind == i for i in range(4)], [extreme, ties, confident, -confident], ordinary
    )
    with np.errstate(over="ignore"):
        single = logits.astype(np.float32)
    if rng.random() < 0.3 and np.isfinite(single).all():
        return Scores.from_logits(np.asfortranarray(single), labels)
    return Scores.from_logits(logits, labels)


def check_query(
    query: Query,
    make_records: MakeRecords = adversarial_scores,
    *,
    zero_records: Any = None,
    trials: int = 200,
    random_state: int = 0,
) -> None:
    """Raise ``AssertionError`` if a query breaks its contract.

    Parameters
    ----------
    query : Query
    make_records : callable
        ``make_records(n, rng)`` creates n records of the kind that the query reads, with
        extreme values. By default :func:`adversarial_scores`.
    zero_records : records, optional
        Records that must contribute exactly zero, such as invalid ones.
    trials : int
        Number of record sets.
    random_state : int
        The checks are repeatable.

    Examples
    --------
    >>> from veracal.queries.score_queries import Brier
    >>> check_query(Brier(), trials=5)
    """
    _check_contract(query, make_records, zero_records, trials, random_state, adds_up=True)


def check_statistic(
    query: Query,
    make_records: MakeRecords = adversarial_scores,
    *,
    zero_records: Any = None,
    trials: int = 200,
    random_state: int = 0,
) -> None:
    """Raise ``AssertionError`` if a query that is not a sum over records breaks its contract.

    The contract is that of :func:`check_query` with one exception: chunks of the records need
    not add up. The query must declare this (:class:`~veracal.queries.NonAdditive`), or several
    sources would add their answers.

    Parameters
    ----------
    query, make_records, zero_records, trials, random_state
        As for :func:`check_query`.
    """
    assert isinstance(query, NonAdditive), f"{query.name!r} must be marked as NonAdditive."
    _check_contract(query, make_records, zero_records, trials, random_state, adds_up=False)


def _check_contract(
    query: Query,
    make_records: MakeRecords,
    zero_records: Any,
    trials: int,
    random_state: int,
    *,
    adds_up: bool,
) -> None:
    """Checks of both contracts."""
    assert adds_up != isinstance(query, NonAdditive), (
        f"{query.name!r} is marked as NonAdditive."
    )
    _check_statement(query)
    rng = np.random.default_rng(random_state)
    _assert_zero(query, make_records(0, rng), "no records")
    if zero_records is not None:
        for row in range(len(zero_records)):
            _assert_zero(query, zero_records.take(np.array([row])), f"the record {row}")
    declared = declared_facts(query)
    for _ in range(trials):
        n = int(rng.integers(1, 40))
        pool = make_records(n + 1, rng)
        check_neighbors(query, pool, int(rng.integers(n)))
        whole = evaluate_checked(query, pool)
        shuffled = evaluate_checked(query, pool.take(rng.permutation(len(pool))))
        assert (whole == shuffled).all(), f"{query.name!r} depends on the order of the rows."
        if adds_up:
            chunks = np.split(np.arange(len(pool)), [int(rng.integers(len(pool) + 1))])
            total = sum(evaluate_checked(query, pool.take(rows)) for rows in chunks)
            assert (whole == total).all(), (
                f"{query.name!r} is no sum over records: two chunks of them do not add up to "
                "the whole."
            )
    assert declared_facts(query) == declared, (
        "What the query states changed while it was evaluated."
    )


def check_neighbors(query: Query, pool: Any, row: int) -> None:
    """Check both relations: the records without a row, and with the last row in its place."""
    n = len(pool) - 1
    kept = np.arange(n)
    whole = evaluate_checked(query, pool.take(kept))
    neighbors = {
        "add-remove": pool.take(np.delete(kept, row)),
        "replace-one": pool.take(np.where(kept == row, n, kept)),
    }
    for relation in RELATIONS:
        moved = whole.astype(object) - evaluate_checked(query, neighbors[relation]).astype(
            object
        )
        most = query.sensitivity(relation)
        l1, squares = sum(abs(k) for k in moved), sum(k * k for k in moved)
        assert l1 <= most, (
            f"{query.name!r} moved by {l1} units under {relation}, but says at most {most}."
        )
        assert squares <= query.sensitivity_l2(relation) ** 2 * (1 + 1e-12), (
            f"{query.name!r} moved by {squares**0.5} units under {relation} in the L2 norm, "
            f"but says at most {query.sensitivity_l2(relation)}."
        )


def evaluate_checked(query: Query, records: Any) -> Ints:
    """Evaluate without a warning or an error, and check the form of the result."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            result = query.evaluate(records)
        except Exception as error:
            raise AssertionError(
                f"{query.name!r} raised {type(error).__name__} on {len(records)} records of "
                f"the right form, which reveals something about them: {error}"
            ) from error
    dtype = result.dtype if isinstance(result, np.ndarray) else type(result)
    assert dtype == np.int64, f"{query.name!r} must return an array of int64, not {dtype}."
    assert result.shape == (query.entries,), (
        f"{query.name!r} must return shape ({query.entries},), not {result.shape}."
    )
    return result


def declared_facts(query: Query) -> tuple[object, ...]:
    """Everything that a query declares."""
    sensitivities = [(query.sensitivity(r), query.sensitivity_l2(r)) for r in RELATIONS]
    settings = tuple(sorted(query.settings.items()))
    return (query.name, query.grid, query.entries, settings, *sensitivities)


def _check_statement(query: Query) -> None:
    """Check what a query declares."""
    assert isinstance(query, Query), f"{query!r} lacks a part of the protocol Query."
    assert str(query.name).strip(), "A query needs a name."
    assert query.entries >= 1, f"A query has at least one entry, not {query.entries}."
    one, other = (query.sensitivity(relation) for relation in RELATIONS)
    for most in (one, other):
        assert type(most) is int, f"A sensitivity is an int, not {most!r}."
        assert 1 <= most <= MAX_NOISE, f"A sensitivity is at least 1 unit, not {most}."
    # A unit of several rows may be replaced by one with fewer, which also removes rows.
    assert one <= other <= 2 * one, (
        f"Replacing a record must cost between one and two of adding one ({one}), not {other}."
    )
    for relation in RELATIONS:
        assert 0 < query.sensitivity_l2(relation) <= query.sensitivity(relation), (
            "The L2 sensitivity must be above zero and not above the L1 sensitivity."
        )


def _assert_zero(query: Query, records: Any, what: str) -> None:
    """Check that some records contribute nothing."""
    result = evaluate_checked(query, records)
    assert not result.any(), f"{query.name!r} must be zero on {what}, not {result}."


MakeSource = Callable[[int], Source]


class CountingQuery:
    """A query that records how many records each evaluation read, and can fail on purpose."""

    def __init__(self, query: Query, *, fails: bool = False) -> None:
        self.query, self.fails, self.seen = query, fails, list[int]()
        self.name = f"{query.name} (counted)"

    @property
    def grid(self) -> Grid:
        """As the wrapped query."""
        return self.query.grid

    @property
    def entries(self) -> int:
        """As the wrapped query."""
        return self.query.entries

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """As the wrapped query."""
        return {**self.query.settings, "fails": self.fails}

    def sensitivity(self, relation: Relation) -> int:
        """As the wrapped query."""
        return self.query.sensitivity(relation)

    def sensitivity_l2(self, relation: Relation) -> float:
        """As the wrapped query."""
        return self.query.sensitivity_l2(relation)

    def evaluate(self, records: Any) -> Ints:
        """Count the records; an evaluation on none only asks for the form of the result."""
        if len(records):
            self.seen.append(len(records))
            if self.fails:
                raise RuntimeError("failed on purpose")
        return self.query.evaluate(records)


def check_source(make_source: MakeSource, query: Query, *, local: bool = True) -> None:
    """Raise ``AssertionError`` if a source breaks its contract.

    Parameters
    ----------
    make_source : callable
        ``make_source(micro_epsilon)`` creates a source with at least one record, whose fresh
        ledger has that many millionths of epsilon.
    query : Query
        A query that the source can answer.
    local : bool
        Whether the source evaluates the query object itself. A remote source does not, and its
        order of charging and reading cannot be observed.
    """
    _check_release(make_source(1_000_000), query)
    _check_repeats(make_source(1_000_000), query, local=local)
    _check_overspending(make_source(1_000_000), query, local=local)
    _check_last_query(make_source(1_000_000), query, local=local)
    if local:
        _check_failure(make_source(1_000_000), query)


def _check_release(source: Source, query: Query) -> None:
    """A release lies on the grid and states its cost."""
    release = _answer(source, query, 250_000, "first")
    assert release.query == query.name, f"The release is of {release.query!r}."
    assert release.private, "An answer of a ledger must be marked private."
    assert release.micro_epsilon == 250_000, f"It cost {release.micro_epsilon}, not 250000."
    assert release.event is not None, "A private release names the event that was charged."
    assert release.noise_std > 0, "A private release has noise."
    assert release.grid == query.grid, f"Expected {query.grid}, got {release.grid}."
    assert len(release.units) == query.entries, f"Expected {query.entries} entries."
    assert all(type(k) is int for k in release.units), "Units of the grid are ints."
    steps = release.values / query.grid.step
    assert (steps == np.rint(steps)).all(), "A released value lies off the grid."


def _check_repeats(source: Source, query: Query, *, local: bool) -> None:
    """A retry repeats the answer at no cost; another query under the same id is rejected."""
    first = _answer(source, query, 500_000, "one")
    for _ in range(20):  # beyond the budget if each were charged
        again = _answer(source, query, 500_000, "one")
        assert again == first, f"A retry changed the answer: {first!r}, then {again!r}."
    others: list[tuple[Query, int]] = [(query, 400_000)]
    others += [(CountingQuery(query), 500_000)] if local else []
    for other, cost in others:
        error = _rejection(source, other, cost, "one")
        assert isinstance(error, ConflictError), (
            f"Another query under a used id must be a ConflictError, not {error!r}."
        )
    second = _answer(source, query, 500_000, "two")  # retries and conflicts cost nothing
    assert _answer(source, query, 500_000, "two") == second, "A retry changed the answer."


def _check_overspending(source: Source, query: Query, *, local: bool) -> None:
    """A query beyond the budget is rejected before a record is read, at no cost."""
    counted = CountingQuery(query)
    error = _rejection(source, counted if local else query, 1_000_001, "too much")
    assert isinstance(error, BudgetError), (
        f"An answer beyond the budget must be a BudgetError, not {error!r}."
    )
    assert not counted.seen, "Records were read for an answer that cannot be paid."
    _answer(source, query, 1_000_000, "everything")
    error = _rejection(source, counted if local else query, 1, "one more")
    assert isinstance(error, BudgetError), f"The budget is spent, but the error is {error!r}."
    assert not counted.seen, "Records were read for an answer that cannot be paid."


def _check_last_query(source: Source, query: Query, *, local: bool) -> None:
    """Six equal shares of one epsilon, rounded down, are all granted, but not a seventh.

    A remote source identifies a query by its content and repeats the answer whatever the id:
    there the shares differ by some millionths, and add up to all but 4 of them.
    """
    share = 1_000_000 // 6
    steps = (0,) * 6 if local else (-3, -2, -1, 1, 2, 3)
    answers = [_answer(source, query, share + k, f"share {i}") for i, k in enumerate(steps)]
    assert len(answers) == 6
    error = _rejection(source, query, share if local else 5, "share 6")
    assert isinstance(error, BudgetError), "A seventh sixth was granted."


def _check_failure(source: Source, query: Query) -> None:
    """A failure that may depend on the records is charged, and repeated at no cost."""
    counted = CountingQuery(query, fails=True)
    for _ in range(2):
        error = _rejection(source, counted, 600_000, "fails")
        assert error is not None, "A query that fails was answered."
    assert len(counted.seen) == 1, (
        f"A failed request was computed {len(counted.seen)} times: each failure reveals more."
    )
    error = _rejection(source, query, 600_000, "after")
    assert isinstance(error, BudgetError), "A failure was free: it must be charged first."


def _answer(source: Source, query: Query, micro_epsilon: int, request: str) -> Release:
    """Ask a query that must be answered."""
    try:
        return source.answer(query, micro_epsilon=micro_epsilon, request=request)
    except VeracalError as error:
        raise AssertionError(
            f"{micro_epsilon} millionths for request {request!r} are affordable, but: {error}"
        ) from error


def _rejection(
    source: Source, query: Any, micro_epsilon: int, request: str
) -> Exception | None:
    """The error that rejects a query, or None."""
    try:
        source.answer(query, micro_epsilon=micro_epsilon, request=request)
    except Exception as error:
        return error
    return None

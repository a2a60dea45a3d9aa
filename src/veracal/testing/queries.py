"""The contract of a query, for whoever writes one.

A query states how far one record can move it. These checks try to prove it wrong.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from veracal._types import Array, Ints
from veracal.data import Scores
from veracal.privacy.answers.noise import MOST_NOISE
from veracal.privacy.answers.queries import NotASum, Query
from veracal.privacy.budget import RELATIONS

MakeRecords = Callable[[int, np.random.Generator], Any]
_EXTREMES = (0.0, -0.0, 5e-324, 1e-300, 1.0, 20.0, 88.8, 745.2, 3.4e38, 1.7e308)


def adversarial_scores(n: int, rng: np.random.Generator, *, classes: int = 10) -> Scores:
    """Labeled scores that reach for the ends: sure and right, sure and wrong, tied, absurd.

    Parameters
    ----------
    n : int
        Number of records; zero works.
    rng : Generator
    classes : int
        Some sums of floats depend on the memory layout only from eight on.
    """
    labels = rng.integers(classes, size=n)
    if rng.random() < 0.3:
        return Scores.from_probabilities(_odd_probabilities(n, classes, rng), labels)
    plain = rng.normal(scale=3, size=(n, classes))
    odd = rng.choice(_EXTREMES, (n, classes)) * rng.choice([-1.0, 1.0], (n, classes))
    ties = np.broadcast_to(rng.choice(_EXTREMES, (n, 1)), (n, classes))
    sure = 1000.0 * (np.arange(classes) == labels[:, None])
    kind = rng.integers(5, size=(n, 1))
    logits = np.select([kind == i for i in range(4)], [odd, ties, sure, -sure], plain)
    with np.errstate(over="ignore"):
        single = logits.astype(np.float32)
    if rng.random() < 0.3 and np.isfinite(single).all():
        return Scores.from_logits(np.asfortranarray(single), labels)
    return Scores.from_logits(logits, labels)


def check_query(
    query: Query,
    make_records: MakeRecords = adversarial_scores,
    *,
    worthless: Any = None,
    trials: int = 200,
    random_state: int = 0,
) -> None:
    """Raise ``AssertionError`` if a query breaks its contract.

    Parameters
    ----------
    query : Query
    make_records : callable
        ``make_records(n, rng)`` makes n records of the kind that the query is asked of, and
        should reach for its extremes. By default :func:`adversarial_scores`.
    worthless : records, optional
        Records that must contribute exactly nothing, such as broken ones.
    trials : int
        Number of record sets to try.
    random_state : int
        The checks are repeatable.

    Examples
    --------
    >>> from veracal.privacy.answers.score_queries import Brier
    >>> check_query(Brier(), trials=5)
    """
    _check(query, make_records, worthless, trials, random_state, adds_up=True)


def check_statistic(
    query: Query,
    make_records: MakeRecords = adversarial_scores,
    *,
    worthless: Any = None,
    trials: int = 200,
    random_state: int = 0,
) -> None:
    """Raise ``AssertionError`` if a query that is no sum over records breaks its contract.

    The contract is that of :func:`check_query` but for one thing: chunks of the records need
    not add up. The query must say so (:class:`~veracal.privacy.NotASum`), or several sources
    would add their answers.

    Parameters
    ----------
    query, make_records, worthless, trials, random_state
        As of :func:`check_query`.
    """
    assert isinstance(query, NotASum), f"{query.name!r} must be marked as NotASum."
    _check(query, make_records, worthless, trials, random_state, adds_up=False)


def _check(
    query: Query,
    make_records: MakeRecords,
    worthless: Any,
    trials: int,
    random_state: int,
    *,
    adds_up: bool,
) -> None:
    """What both contracts ask for."""
    assert adds_up != isinstance(query, NotASum), f"{query.name!r} is marked as NotASum."
    _check_statement(query)
    rng = np.random.default_rng(random_state)
    _assert_zero(query, make_records(0, rng), "no records")
    if worthless is not None:
        for row in range(len(worthless)):
            _assert_zero(query, worthless.take(np.array([row])), f"the worthless record {row}")
    said = stated(query)
    for _ in range(trials):
        n = int(rng.integers(1, 40))
        pool = make_records(n + 1, rng)
        check_neighbors(query, pool, int(rng.integers(n)))
        _check_order(query, pool, rng)
        if adds_up:
            _check_chunks(query, pool, rng)
    assert stated(query) == said, "What the query states changed while it was evaluated."


def check_neighbors(query: Query, pool: Any, row: int) -> None:
    """Check both relations on neighbors: without a row, and with the last row in its place."""
    n = len(pool) - 1
    kept = np.arange(n)
    whole = answered(query, pool.take(kept))
    neighbors = {
        "add-remove": pool.take(np.delete(kept, row)),
        "replace-one": pool.take(np.where(kept == row, n, kept)),
    }
    for relation in RELATIONS:
        moved = whole.astype(object) - answered(query, neighbors[relation]).astype(object)
        most = query.sensitivity(relation)
        l1, squares = sum(abs(k) for k in moved), sum(k * k for k in moved)
        assert l1 <= most, (
            f"{query.name!r} moved by {l1} units under {relation}, but says at most {most}."
        )
        assert squares <= query.sensitivity_l2(relation) ** 2 * (1 + 1e-12), (
            f"{query.name!r} moved by {squares**0.5} units under {relation} in the L2 norm, "
            f"but says at most {query.sensitivity_l2(relation)}."
        )


def answered(query: Query, records: Any) -> Ints:
    """Evaluate without a warning or an error, and check the form of the result."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            result = query.evaluate(records)
        except Exception as error:
            raise AssertionError(
                f"{query.name!r} raised {type(error).__name__} on {len(records)} records of "
                f"the right form, which tells something about them: {error}"
            ) from error
    dtype = result.dtype if isinstance(result, np.ndarray) else type(result)
    assert dtype == np.int64, f"{query.name!r} must return an array of int64, not {dtype}."
    assert result.shape == (query.entries,), (
        f"{query.name!r} must return shape ({query.entries},), not {result.shape}."
    )
    return result


def stated(query: Query) -> tuple[object, ...]:
    """Everything that a query says of itself."""
    sensitivities = [(query.sensitivity(r), query.sensitivity_l2(r)) for r in RELATIONS]
    settings = tuple(sorted(query.settings.items()))
    return (query.name, query.grid, query.entries, settings, *sensitivities)


def _check_statement(query: Query) -> None:
    """Check what a query says of itself."""
    assert isinstance(query, Query), f"{query!r} lacks a part of the protocol Query."
    assert str(query.name).strip(), "A query needs a name."
    assert query.entries >= 1, f"A query has at least one entry, not {query.entries}."
    one, other = (query.sensitivity(relation) for relation in RELATIONS)
    for most in (one, other):
        assert type(most) is int, f"A sensitivity is an int, not {most!r}."
        assert 1 <= most <= MOST_NOISE, f"A sensitivity is at least 1 unit, not {most}."
    # A unit of several rows may be replaced by one of fewer: that removes rows, too.
    assert one <= other <= 2 * one, (
        f"Replacing a record must cost between one and two of adding one ({one}), not {other}."
    )
    for relation in RELATIONS:
        assert 0 < query.sensitivity_l2(relation) <= query.sensitivity(relation), (
            "The L2 sensitivity must be above zero and not above the L1 sensitivity."
        )


def _assert_zero(query: Query, records: Any, what: str) -> None:
    """Check that some records contribute nothing."""
    result = answered(query, records)
    assert not result.any(), f"{query.name!r} must be zero on {what}, not {result}."


def _check_order(query: Query, records: Any, rng: np.random.Generator) -> None:
    """Check that the order of the rows changes no bit."""
    whole = answered(query, records)
    shuffled = answered(query, records.take(rng.permutation(len(records))))
    assert (whole == shuffled).all(), f"{query.name!r} depends on the order of the rows."


def _check_chunks(query: Query, records: Any, rng: np.random.Generator) -> None:
    """Check that chunks of the rows add up to the whole."""
    n = len(records)
    whole = answered(query, records)
    cut = int(rng.integers(n + 1))
    parts: list[Array] = [
        answered(query, records.take(rows)) for rows in np.split(np.arange(n), [cut])
    ]
    assert (whole == sum(parts)).all(), (
        f"{query.name!r} is no sum over records: two chunks of them do not add up to the whole."
    )


def _odd_probabilities(n: int, classes: int, rng: np.random.Generator) -> Array:
    """Probabilities with exact zeros and ones, ties and tiny ones."""
    plain = rng.dirichlet(np.full(classes, 0.3), size=n)
    sure = np.eye(classes)[rng.integers(classes, size=n)]
    ties = np.full((n, classes), 1 / classes)
    kind = rng.integers(3, size=(n, 1))
    result: Array = np.select([kind == 0, kind == 1], [sure, ties], plain)
    return result

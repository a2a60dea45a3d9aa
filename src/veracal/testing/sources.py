"""The contract of a source, for whoever writes one."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from veracal._types import Ints
from veracal.errors import BudgetError, ConflictError, VeracalError
from veracal.privacy.answers.grid import Grid
from veracal.privacy.answers.queries import Query, Setting
from veracal.privacy.answers.sources import Release, Source
from veracal.privacy.budget import Relation

MakeSource = Callable[[int], Source]


class Watched:
    """A query that notes of how many records it was evaluated, and may fail on purpose."""

    def __init__(self, query: Query, *, fails: bool = False) -> None:
        self.query, self.fails, self.seen = query, fails, list[int]()
        self.name = f"{query.name} (watched)"

    @property
    def grid(self) -> Grid:
        """Of the query."""
        return self.query.grid

    @property
    def entries(self) -> int:
        """Of the query."""
        return self.query.entries

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Of the query."""
        return {**self.query.settings, "fails": self.fails}

    def sensitivity(self, relation: Relation) -> int:
        """Of the query."""
        return self.query.sensitivity(relation)

    def sensitivity_l2(self, relation: Relation) -> float:
        """Of the query."""
        return self.query.sensitivity_l2(relation)

    def evaluate(self, records: Any) -> Ints:
        """Note how many records were read; none is a question about form, not about them."""
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
        ``make_source(micro_epsilon)`` makes a source of at least one record, whose fresh
        ledger holds that many millionths of epsilon.
    query : Query
        Something the source can answer.
    local : bool
        Whether the source evaluates the very query object it is given. A source elsewhere
        does not, and its order of charging and reading cannot be watched from here.
    """
    _check_release(make_source(1_000_000), query)
    _check_repeats(make_source(1_000_000), query, local=local)
    _check_overspending(make_source(1_000_000), query, local=local)
    _check_last_query(make_source(1_000_000), query, local=local)
    if local:
        _check_failure(make_source(1_000_000), query)


def _check_release(source: Source, query: Query) -> None:
    """What is released lies on the grid and says what it cost."""
    release = _ask(source, query, 250_000, "first")
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
    """A retry repeats the answer for nothing; another question under its id is refused."""
    first = _ask(source, query, 500_000, "one")
    for _ in range(20):  # far beyond the budget, were it charged
        again = _ask(source, query, 500_000, "one")
        assert again == first, f"A retry changed the answer: {first!r}, then {again!r}."
    others: list[tuple[Query, int]] = [(query, 400_000)]
    others += [(Watched(query), 500_000)] if local else []
    for other, price in others:
        error = _refusal(source, other, price, "one")
        assert isinstance(error, ConflictError), (
            f"Another question under a used id must be a ConflictError, not {error!r}."
        )
    second = _ask(source, query, 500_000, "two")  # neither retries nor conflicts cost anything
    assert _ask(source, query, 500_000, "two") == second, "A retry changed the answer."


def _check_overspending(source: Source, query: Query, *, local: bool) -> None:
    """What cannot be paid is refused before a record is read, and costs nothing."""
    watched = Watched(query)
    error = _refusal(source, watched if local else query, 1_000_001, "too much")
    assert isinstance(error, BudgetError), (
        f"An answer beyond the budget must be a BudgetError, not {error!r}."
    )
    assert not watched.seen, "Records were read for an answer that cannot be paid."
    _ask(source, query, 1_000_000, "all of it")
    error = _refusal(source, watched if local else query, 1, "one more")
    assert isinstance(error, BudgetError), f"Nothing was left, yet {error!r}."
    assert not watched.seen, "Records were read for an answer that cannot be paid."


def _check_last_query(source: Source, query: Query, *, local: bool) -> None:
    """Six equal shares of one epsilon, rounded down, are all granted, and no seventh.

    A source elsewhere knows a question by its meaning and repeats the answer whatever the id:
    there the shares differ by some millionths, and add up to all but 4 of them.
    """
    share = 1_000_000 // 6
    steps = (0,) * 6 if local else (-3, -2, -1, 1, 2, 3)
    answers = [_ask(source, query, share + k, f"share {i}") for i, k in enumerate(steps)]
    assert len(answers) == 6
    error = _refusal(source, query, share if local else 5, "share 6")
    assert isinstance(error, BudgetError), "A seventh sixth was granted."


def _check_failure(source: Source, query: Query) -> None:
    """A failure that may depend on the records is paid for, and fails again for free."""
    watched = Watched(query, fails=True)
    for _ in range(2):
        error = _refusal(source, watched, 600_000, "fails")
        assert error is not None, "A query that fails was answered."
    assert len(watched.seen) == 1, (
        f"A failed request was computed {len(watched.seen)} times: each failure tells more."
    )
    error = _refusal(source, query, 600_000, "after")
    assert isinstance(error, BudgetError), "A failure was free: it must be charged first."


def _ask(source: Source, query: Query, micro_epsilon: int, request: str) -> Release:
    """Ask something that must be answered."""
    try:
        return source.answer(query, micro_epsilon=micro_epsilon, request=request)
    except VeracalError as error:
        raise AssertionError(
            f"{micro_epsilon} millionths for request {request!r} are affordable, yet: {error}"
        ) from error


def _refusal(source: Source, query: Any, micro_epsilon: int, request: str) -> Exception | None:
    """The error with which a question is refused, or None."""
    try:
        source.answer(query, micro_epsilon=micro_epsilon, request=request)
    except Exception as error:
        return error
    return None

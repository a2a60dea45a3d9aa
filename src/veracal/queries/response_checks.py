r"""Validation of answers from sources that are not trusted.

An answer is checked against public facts: the query, the requested noise, and the largest sum
that records and noise can produce.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from veracal import _checks
from veracal.accounting import (
    MICRO,
    RELATIONS,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Relation,
    Unit,
)
from veracal.mechanisms import MAX_TOTAL, Grid, discrete_gaussian_std, discrete_laplace_std
from veracal.queries.query import Query, gaussian_event, laplace_event
from veracal.queries.sources import GaussianSource, Public, Release, Source, is_declared

_NEGATIVE_LOG_TAIL = 40 * math.log(2)  # valid answers are rejected with probability < 2^-40


@dataclass(frozen=True)
class ProtectionOnly:
    """Represents a source by its unit and relation alone."""

    relation: Relation
    unit: Unit


@dataclass(frozen=True)
class QueryRequest:
    """A query with the requested noise, either Laplace or Gaussian.

    Attributes
    ----------
    query : Query
    micro_epsilon : int or None
        For discrete Laplace noise, as in :meth:`Source.answer`.
    noise_multiplier : float or None
        For discrete Gaussian noise, as in :meth:`GaussianSource.answer_gaussian`.
    """

    query: Query
    micro_epsilon: int | None = None
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        if (self.micro_epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("Expected exactly one of micro_epsilon and noise_multiplier.")
        if self.micro_epsilon is not None:
            _checks.whole(micro_epsilon=self.micro_epsilon)
        if self.noise_multiplier is not None:
            _checks.positive(noise_multiplier=self.noise_multiplier)

    @cached_property
    def form(self) -> tuple[str, Grid, int]:
        """Name, grid and entries of the query; cached, since some queries compute them."""
        return self.query.name, self.query.grid, self.query.entries

    def of(self, source: Source, request: str | None = None) -> Release:
        """Submit the query to a source."""
        if self.micro_epsilon is not None:
            return source.answer(self.query, micro_epsilon=self.micro_epsilon, request=request)
        assert isinstance(source, GaussianSource)
        assert self.noise_multiplier is not None
        return source.answer_gaussian(
            self.query, noise_multiplier=self.noise_multiplier, request=request
        )

    def event(
        self, relation: Relation, unit: Unit | None = None
    ) -> DiscreteLaplace | DiscreteGaussian:
        """The event that is charged."""
        if self.micro_epsilon is not None:
            return laplace_event(self.query, self.micro_epsilon, relation, unit)
        assert self.noise_multiplier is not None
        return gaussian_event(self.query, self.noise_multiplier, relation, unit)

    def event_of(self, source: object) -> Event | None:
        """The event that a source charges, if its unit and relation are public."""
        return self.event(source.relation, source.unit) if is_declared(source) else None

    def matches(self, event: Event) -> bool:
        """Whether an event has the requested noise, for units of any number of rows."""
        if event.relation not in RELATIONS:
            return False
        if self.micro_epsilon is not None:
            row = self.query.sensitivity(event.relation)
            noise_per_row = row * MICRO / self.micro_epsilon
        else:
            assert self.noise_multiplier is not None
            noise_per_row = self.query.sensitivity_l2(event.relation) * self.noise_multiplier
        ratio = getattr(event, "noise", 0.0) / noise_per_row
        rows = round(ratio) if 0 < ratio < 2**46 else 0
        return rows > 0 and event == self.event(event.relation, Unit("unit", rows))


def find_invalid_responses(
    expected: QueryRequest,
    answers: Mapping[int, Release],
    sources: Sequence[object],
    most_records: int | None,
) -> dict[int, str]:
    r"""Find answers that are not valid for a request, with the reasons.

    Every entry of a valid answer satisfies

    .. math:: |k| \le n_{\max} \Delta + r

    where :math:`n_{\max}` is the maximum number of records of a source, :math:`\Delta` the
    add-remove sensitivity, and r a bound that the noise exceeds in any entry with probability
    at most :math:`2^{-40}`. Without :math:`n_{\max}` the first term is :math:`2^{62}`, the
    largest total of a curator.

    Parameters
    ----------
    expected : ExpectedResponse
    answers : mapping of int to Release
        By the index of their source.
    sources : sequence of Source
    most_records : int, optional
        Declared.

    Returns
    -------
    dict of int to str
    """
    limits = dict[Event | None, int | None]()
    sensitivity = expected.query.sensitivity("add-remove")
    total = MAX_TOTAL
    if most_records is not None:
        total = min(int(most_records) * sensitivity, MAX_TOTAL)
    problems = dict[int, str]()
    for i, answer in answers.items():
        problem = _form_problem(expected, answer)
        problem = problem or _noise_problem(expected, answer, sources[i], limits)
        if problem is None:
            most = total + (limits[answer.event] or 0)
            if not all(-most <= unit <= most for unit in answer.units):
                problem = "it is larger than records and noise allow"
        if problem is not None:
            problems[i] = problem
    valid = {i: answer for i, answer in answers.items() if i not in problems}
    return problems | _find_minority_relations(valid)


def _form_problem(expected: QueryRequest, answer: Release) -> str | None:
    """Problem with the form of an answer, if any."""
    name, grid, entries = expected.form
    if answer.query != name:
        return "it answers another query"
    if answer.grid != grid:
        return "it is on another grid"
    if type(answer.units) is not tuple or len(answer.units) != entries:
        return f"it does not have {entries} entries"
    if not all(type(unit) is int for unit in answer.units):
        return "it has entries that are not integers"
    return None


def _noise_problem(
    expected: QueryRequest,
    answer: Release,
    source: object,
    limits: dict[Event | None, int | None],
) -> str | None:
    """Problem with the stated noise of an answer, if any; bounds are cached in ``limits``."""
    event = answer.event
    if event is None:
        limits[None] = 0
        exact = answer.noise_std == 0 and not answer.private
        return None if exact and isinstance(source, Public) else "it has no noise"
    if not isinstance(event, DiscreteLaplace | DiscreteGaussian):
        return "it has another noise than was asked for"
    if event not in limits:
        limits[event] = _noise_bound(event, expected) if expected.matches(event) else None
    if limits[event] is None or answer.micro_epsilon != expected.micro_epsilon:
        return "it has another noise than was asked for"
    std = noise_std(event) * answer.grid.step
    if not (isinstance(answer.noise_std, float) and math.isclose(answer.noise_std, std)):
        return "it has another noise than was asked for"
    return None


def _noise_bound(event: DiscreteLaplace | DiscreteGaussian, expected: QueryRequest) -> int:
    r"""Bound that the noise exceeds in any entry with probability at most :math:`2^{-40}`.

    It follows from :math:`P(|k| > r) \le 2 e^{-r/s}` for Laplace and :math:`2 e^{-r^2 / 2 s^2}`
    for Gaussian noise, with a union bound over all entries.
    """
    exponent = _NEGATIVE_LOG_TAIL + math.log(2 * expected.query.entries)
    if isinstance(event, DiscreteLaplace):
        return math.ceil(event.noise * exponent)
    return math.ceil(event.noise * math.sqrt(2 * exponent))


def noise_std(event: DiscreteLaplace | DiscreteGaussian) -> float:
    """Standard deviation of the noise, in units."""
    if isinstance(event, DiscreteLaplace):
        return discrete_laplace_std(event.noise)
    return discrete_gaussian_std(event.noise)


def _find_minority_relations(answers: Mapping[int, Release]) -> dict[int, str]:
    """Answers under another relation than the majority: they have no common guarantee."""
    relations = {i: a.event.relation for i, a in answers.items() if a.event is not None}
    if len(set(relations.values())) < 2:
        return {}
    usual = Counter(relations.values()).most_common(1)[0][0]
    return {
        i: "its neighboring relation differs from that of the other sources"
        for i, relation in relations.items()
        if relation != usual
    }

r"""Whether an answer can be one to the question that was asked.

A source is somebody else's. What it sends is checked against what is public: the question, the
noise that was asked for, and how far records and noise can bring a sum.
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
from veracal.mechanisms import MOST_TOTAL, Grid, discrete_gaussian_std, discrete_laplace_std
from veracal.queries.query import Query, gaussian_event, laplace_event
from veracal.queries.sources import GaussianSource, Public, Release, Source, is_declared

_RARE = 40 * math.log(2)  # an honest answer is farther out with probability below 2^-40


@dataclass(frozen=True)
class ProtectionOnly:
    """Stands for a source of which only is known whom it protects."""

    relation: Relation
    unit: Unit


@dataclass(frozen=True)
class ExpectedResponse:
    """A question, and the noise on its answer: one of two kinds.

    Attributes
    ----------
    query : Query
    micro_epsilon : int or None
        Discrete Laplace noise, as of :meth:`Source.answer`.
    noise_multiplier : float or None
        Discrete Gaussian noise, as of :meth:`GaussianSource.answer_gaussian`.
    """

    query: Query
    micro_epsilon: int | None = None
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        if (self.micro_epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("Expected one of micro_epsilon and noise_multiplier.")
        if self.micro_epsilon is not None:
            _checks.whole(micro_epsilon=self.micro_epsilon)
        if self.noise_multiplier is not None:
            _checks.positive(noise_multiplier=self.noise_multiplier)

    @cached_property
    def form(self) -> tuple[str, Grid, int]:
        """Name, grid and entries of the query, which some of them make anew when asked."""
        return self.query.name, self.query.grid, self.query.entries

    def of(self, source: Source, request: str | None = None) -> Release:
        """Ask it."""
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
        """What is charged for it."""
        if self.micro_epsilon is not None:
            return laplace_event(self.query, self.micro_epsilon, relation, unit)
        assert self.noise_multiplier is not None
        return gaussian_event(self.query, self.noise_multiplier, relation, unit)

    def event_of(self, source: object) -> Event | None:
        """What a source charges for it, if it says whom it protects."""
        return self.event(source.relation, source.unit) if is_declared(source) else None

    def asks_for(self, event: Event) -> bool:
        """Whether this is the noise that is wanted, for units of however many rows."""
        if event.relation not in RELATIONS:
            return False
        if self.micro_epsilon is not None:
            row = self.query.sensitivity(event.relation)
            one = row * MICRO / self.micro_epsilon
        else:
            assert self.noise_multiplier is not None
            one = self.query.sensitivity_l2(event.relation) * self.noise_multiplier
        noise = getattr(event, "noise", 0.0)
        rows = round(noise / one) if 0 < noise / one < 2**46 else 0
        return rows > 0 and event == self.event(event.relation, Unit("unit", rows))


def find_invalid_responses(
    wanted: ExpectedResponse,
    answers: Mapping[int, Release],
    sources: Sequence[object],
    most_records: int | None,
) -> dict[int, str]:
    r"""Which answers cannot be answers to this question, and why not.

    An honest answer lies within

    .. math:: |k| \le n_{\max} \Delta + r

    in every entry, with :math:`n_{\max}` the most records that a source has, :math:`\Delta` the
    most that adding one of them moves the sum, and r what noise exceeds in any of the entries
    with probability :math:`2^{-40}` at most. Without :math:`n_{\max}` the first term is
    :math:`2^{62}`, beyond which no holder adds.

    Parameters
    ----------
    wanted : Wanted
    answers : mapping of int to Release
        By the number of their source.
    sources : sequence of Source
    most_records : int, optional
        Declared.

    Returns
    -------
    dict of int to str
    """
    limits = dict[Event | None, int | None]()
    reach = wanted.query.sensitivity("add-remove")
    total = MOST_TOTAL if most_records is None else min(int(most_records) * reach, MOST_TOTAL)
    found = dict[int, str]()
    for i, answer in answers.items():
        fault = _form(wanted, answer) or _noise(wanted, answer, sources[i], limits)
        if fault is None:
            most = total + (limits[answer.event] or 0)
            if not all(-most <= unit <= most for unit in answer.units):
                fault = "it is farther out than records and noise can bring it"
        if fault is not None:
            found[i] = fault
    return found | _minority({i: answers[i] for i in answers if i not in found})


def _form(wanted: ExpectedResponse, answer: Release) -> str | None:
    """What is wrong with the form of an answer."""
    name, grid, entries = wanted.form
    if answer.query != name:
        return "it is to another question"
    if answer.grid != grid:
        return "it is on another grid"
    if type(answer.units) is not tuple or len(answer.units) != entries:
        return f"it does not have {entries} entries"
    if not all(type(unit) is int for unit in answer.units):
        return "it has entries that are not whole units"
    return None


def _noise(
    wanted: ExpectedResponse,
    answer: Release,
    source: object,
    limits: dict[Event | None, int | None],
) -> str | None:
    """What is wrong with the noise that an answer says it has; limits are kept."""
    event = answer.event
    if event is None:
        limits[None] = 0
        exact = answer.noise_std == 0 and not answer.private
        return None if exact and isinstance(source, Public) else "it has no noise"
    if not isinstance(event, DiscreteLaplace | DiscreteGaussian):
        return "it has another noise than was asked for"
    if event not in limits:
        limits[event] = _reach(event, wanted) if wanted.asks_for(event) else None
    if limits[event] is None or answer.micro_epsilon != wanted.micro_epsilon:
        return "it has another noise than was asked for"
    std = noise_std(event) * answer.grid.step
    if not (isinstance(answer.noise_std, float) and math.isclose(answer.noise_std, std)):
        return "it has another noise than was asked for"
    return None


def _reach(event: DiscreteLaplace | DiscreteGaussian, wanted: ExpectedResponse) -> int:
    r"""What the noise exceeds, in any entry, with probability :math:`2^{-40}` at most.

    By :math:`P(|k| > r) \le 2 e^{-r/s}` and :math:`2 e^{-r^2 / 2 s^2}`, over all entries.
    """
    rare = _RARE + math.log(2 * wanted.query.entries)
    if isinstance(event, DiscreteLaplace):
        return math.ceil(event.noise * rare)
    return math.ceil(event.noise * math.sqrt(2 * rare))


def noise_std(event: DiscreteLaplace | DiscreteGaussian) -> float:
    """Standard deviation of the noise, in units."""
    if isinstance(event, DiscreteLaplace):
        return discrete_laplace_std(event.noise)
    return discrete_gaussian_std(event.noise)


def _minority(answers: Mapping[int, Release]) -> dict[int, str]:
    """Answers under another relation than most: they do not add up to one guarantee."""
    relations = {i: a.event.relation for i, a in answers.items() if a.event is not None}
    if len(set(relations.values())) < 2:
        return {}
    usual = Counter(relations.values()).most_common(1)[0][0]
    return {
        i: "it protects under another relation than the others'"
        for i, relation in relations.items()
        if relation != usual
    }

"""The loss of one source in a fit on a pool is at most the claimed cost.

A fit follows the same path on two neighbors. The source that differs answers each of its
queries many times, by a real curator with a real ledger. An attacker who knows both neighbors
sums the log-likelihood ratios of all answers of a fit; the tail audit of the gate `tails`
gives a lower bound of the loss. That gate also tests the noise distribution; here the noise is
drawn quickly.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from assurance.audits import gaussian_lower_bound, pure_lower_bound
from assurance.calibrations import small_blocks
from assurance.federations import (
    DELTA,
    MICRO,
    SURE_RIGHT,
    SURE_WRONG,
    UNSURE_RIGHT,
    Method,
    RecordingSource,
    joined,
    methods,
    shifted,
)
from assurance.gate_federation import (
    RANGE,
    an_extra_sample,
    and_its_price,
    epsilon_by_k,
    unclamped,
)
from assurance.gate_tails import ADD, ANSWER, answers_twice, draw_wrong_noise, gaussian
from assurance.ledgers import Patches, patched
from veracal.accounting import Budget, DiscreteLaplace
from veracal.ledger import open_ledger
from veracal.queries import Curator, Pool, Release

NAME = "federation_tails"
SECONDS = 25
ADD_GAUSSIAN = "veracal.queries.curator.add_discrete_gaussian"
UNKNOWN = shifted(0, np.random.default_rng(0))
# Six equal queries are all in their tails too seldom for a bound to come near the claim.
SHARP = ("binning", "vector", "pooled", "binning as printed", "temperature")
QUICK = ("acc-t", "nll-t", "binning as printed")  # most mutants are of these
OPPOSED = ([1000.0, -1000.0, 0.0], 1)  # reaches the bound of the equations


@dataclass(frozen=True)
class Choir:
    """A query, answered many times over in one vector."""

    query: Any
    copies: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.query, name)

    @property
    def entries(self) -> int:
        return self.query.entries * self.copies

    def evaluate(self, records: Any) -> np.ndarray:
        return np.tile(self.query.evaluate(records), self.copies)


@dataclass(eq=False)
class BatchedProblem:
    """A source that really answers many times over, and leads the fit along a public way."""

    holder: Curator
    way: RecordingSource
    copies: int
    first: Any
    second: Any
    likelier: Any = 0.0  # of each copy, how much so under the first neighbor
    distance: float = 0.0  # claimed, of Gaussian answers, squared
    events: list[Any] = field(default_factory=list)

    def answer(self, query: Any, *, micro_epsilon: int, request: Any = None) -> Release:
        choir = Choir(query, self.copies)
        given = self.holder.answer(choir, micro_epsilon=micro_epsilon, request=request)
        self._look(query, given)
        return self.way.answer(query, micro_epsilon=micro_epsilon)

    def answer_gaussian(
        self, query: Any, *, noise_multiplier: float, request: Any = None
    ) -> Release:
        choir = Choir(query, self.copies)
        given = self.holder.answer_gaussian(
            choir, noise_multiplier=noise_multiplier, request=request
        )
        self._look(query, given)
        return self.way.answer_gaussian(query, noise_multiplier=noise_multiplier)

    def _look(self, query: Any, given: Release) -> None:
        """Add up how much likelier every copy of an answer is under the first neighbor."""
        seen = np.array(given.units, dtype=float).reshape(self.copies, -1)
        a, b = (query.evaluate(records).astype(float) for records in (self.first, self.second))
        event: Any = given.event
        if isinstance(event, DiscreteLaplace):
            fields = (np.abs(seen - b) - np.abs(seen - a)).sum(axis=1) / event.noise
        else:
            fields = (seen - (a + b) / 2) @ (a - b) / event.noise**2
            self.distance += (event.sensitivity / event.noise) ** 2
        self.likelier = self.likelier + fields


def quick_gaussian(factor: float) -> Any:
    """Gaussian noise, rounded: for noise of many units."""

    def add(units: np.ndarray, scale: float) -> np.ndarray:
        draws = np.random.default_rng().normal(scale=factor * scale, size=len(units))
        return units + np.rint(draws).astype(np.int64)

    return add


CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "M2 half the noise": {ADD: draw_wrong_noise(0.5), ADD_GAUSSIAN: quick_gaussian(0.5)},
    "M3 noise times 0.85": {ADD: draw_wrong_noise(0.85)},
    "Gaussian noise times 0.7": {ADD_GAUSSIAN: quick_gaussian(0.7)},
    "Gaussian for Laplace": {ADD: gaussian},
    "charged once, answered twice": {ANSWER: answers_twice},
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
    "equations of a vector with the bound of a residual": {
        "veracal.calibration.queries.platt.equation_bound": lambda form, classes: math.sqrt(
            2.0
        ),
        "veracal.queries.query.VectorSum.evaluate": lambda self, records: (
            np.rint(np.asarray(self.per_record(records)).sum(axis=0) * 2**self.bits).astype(
                np.int64
            )
            if len(records)
            else np.zeros(self.entries, dtype=np.int64)
        ),
    },
}


def run(subject: Patches, *, long: bool) -> str:
    """Attack every method under both relations, with a tight bound where moves are largest."""
    small, large = (20_000, 1_100_000) if long else (2_000, 60_000)
    quick: Patches = {ADD: draw_wrong_noise(1.0), ADD_GAUSSIAN: quick_gaussian(1.0), **subject}
    shares = {}
    with patched(quick) as folder, small_blocks():
        for name in QUICK:
            audited(name, methods()[name], "add-remove", small, folder)
        for name in SHARP:
            shares[name] = audited(name, methods()[name], "add-remove", large, folder, 1 / 11)
        least = min(shares.values())
        assert least >= (0.85 if long else 0.7), f"certified only {shares}"
        audited("pooled", methods()["pooled"], "replace-one", large, folder, 1 / 11)
        for relation in ("replace-one", "add-remove"):
            for name, method in methods().items():
                audited(name, method, relation, small, folder)
    return (
        f"{2 * len(methods())} fits within their claim; certified {least:.3f} to "
        f"{max(shares.values()):.3f} of it at n = {large:,}"
    )


def audited(
    name: str, method: Method, relation: str, n: int, folder: Path, choosing: float = 0.5
) -> float:
    """Certified share of the claim of one method."""
    hardest = {"binning as printed": SURE_RIGHT, "vector": OPPOSED, "matrix": OPPOSED}
    first = joined(UNKNOWN, hardest.get(name, SURE_WRONG))
    second = UNKNOWN if relation == "add-remove" else joined(UNKNOWN, UNSURE_RIGHT)
    draws, spent = [], set()
    way = shifted(30, np.random.default_rng(1))
    for records in (first, second):
        rng = np.random.default_rng(2)  # of the way, the same on both sides
        many = BatchedProblem(
            opened(records, method, relation, folder),
            RecordingSource(way, relation, rng),
            n,
            first,
            second,
        )
        method.run(Pool([many, RecordingSource(way, relation, rng)]))
        draws.append(np.asarray(many.likelier))
        pure = many.holder.ledger.spent().epsilon
        spent.add(math.sqrt(many.distance) if method.delta else pure)
    assert len(spent) == 1, f"{name}: the price depends on the records: {spent}"
    if method.delta:
        (claimed,) = spent
        lower = gaussian_lower_bound(*draws, choosing=choosing)
    else:
        (claimed,) = spent
        assert claimed <= MICRO / 1e6, f"{name}: {claimed} charged, claimed {MICRO / 1e6}"
        lower = pure_lower_bound(*draws, choosing=choosing)
    assert lower <= claimed, f"{name}: costs at least {lower:.3f}, claimed {claimed:.3f}"
    return lower / claimed


def opened(records: Any, method: Method, relation: Any, folder: Path) -> Curator:
    """A curator with a budget that suffices for every query."""
    place = folder / f"{len(list(folder.iterdir()))}.ledger"
    budget = Budget(100.0, DELTA if method.delta else 0.0, relation=relation)
    kind = "open" if method.delta else "pure"
    return Curator(records, open_ledger(place, budget, kind=kind))

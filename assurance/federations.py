"""Shared by the gates of federated recalibration: methods, records, recording sources."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from assurance.audits import two_sided_geometric
from veracal.accounting import DiscreteGaussian, DiscreteLaplace, Event, Statement
from veracal.calibration import (
    CalibrationMap,
    GoldenTemperature,
    PooledTemperature,
    PrivateBinning,
    PrivatePlatt,
    PrivateTemperature,
    Temperature,
    guard_event,
    guard_map,
    measure_private,
    plan_measurement,
    recalibrate,
)
from veracal.calibration.maps.base import digest
from veracal.data import Scores
from veracal.errors import DropoutError
from veracal.queries import Release, gaussian_event, laplace_event, noise_std
from veracal.queries.curator import canonical_request

CLASSES, MICRO, DELTA = 3, 2_000_000, 1e-5
FIGURES = ("accuracy", "ece", "brier", "curve")
Noise = DiscreteLaplace | DiscreteGaussian


# ---------------------------------------------------------------- methods


@dataclass(frozen=True)
class Outcome:
    """What came of a method."""

    map: CalibrationMap | None
    said: str  # all of it, to compare
    statement: Statement | None
    releases: tuple[Release, ...]
    temperature: Any = None


@dataclass(frozen=True)
class Method:
    """A method as a function of a source, and what it announces to cost."""

    run: Callable[[Any], Outcome]
    event: Callable[[Any], Event] | None = None  # of a relation
    delta: float = 0.0


def fitted(make: Callable[[], Any], delta: float = 0.0) -> Method:
    """A fitter."""

    def run(source: Any) -> Outcome:
        result = make().fit(source)
        return outcome(result, result.map_, result.statement_, result.releases_)

    return Method(run, lambda relation: make().event(relation), delta)


def outcome(found: Any, map_: CalibrationMap | None, statement: Any, releases: Any) -> Outcome:
    """Everything that something says after a fit, but for the heads of ledgers."""
    fields = {name: value for name, value in vars(found).items() if not name.startswith("_")}
    fields["map"] = fields["map_"] = None if map_ is None else (map_.kind, digest(map_))
    fields["statement"] = statement
    said = re.sub(r"head='[0-9a-f]*'", "", repr(fields))
    return Outcome(map_, said, statement, tuple(releases), getattr(found, "temperature_", None))


def guarded(source: Any) -> Outcome:
    """The guard."""
    result = guard_map(Temperature(0.5), source, micro_epsilon=MICRO)
    return outcome(result, result.map, result.statement, [result.release])


def measured(source: Any) -> Outcome:
    """All figures."""
    result = measure_private(source, micro_epsilon=MICRO, figures=FIGURES, bins=4)
    fields = replace(result, releases=dict(result.releases))
    return outcome(fields, None, result.statement, result.releases.values())


def recalibrated(source: Any, **settings: Any) -> Outcome:
    """The whole: map, guard, figures."""
    requested = {"micro_epsilon": MICRO, "classes": CLASSES, "measure": 0.3, "bins": 4}
    result = recalibrate(source, **{**requested, **settings})
    return outcome(result, result.map, result.statement, result.releases)


def methods() -> dict[str, Method]:
    """Every method that queries a pool; late name lookup lets mutants take effect."""
    price = {"micro_epsilon": MICRO}
    platt = {**price, "delta": DELTA, "classes": CLASSES, "steps": 4}
    return {
        "pooled": fitted(lambda: PooledTemperature(classes=CLASSES, **price)),
        "acc-t": fitted(lambda: GoldenTemperature("accuracy", **price)),
        "nll-t": fitted(lambda: GoldenTemperature("likelihood", **price)),
        "ece-t": fitted(lambda: GoldenTemperature("calibration error", bins=4, **price)),
        "binning": fitted(lambda: PrivateBinning(bins=4, **price)),
        "binning as printed": fitted(
            lambda: PrivateBinning(bins=4, form="correct-total", **price)
        ),
        "temperature": fitted(lambda: PrivateTemperature(**price)),
        "vector": fitted(lambda: PrivatePlatt("vector", **platt), DELTA),
        "matrix": fitted(lambda: PrivatePlatt("matrix", **platt), DELTA),
        "guard": Method(
            guarded,
            lambda relation: guard_event(
                Temperature(0.5), micro_epsilon=MICRO, relation=relation
            ),
        ),
        "measurement": Method(
            measured,
            lambda relation: plan_measurement(
                micro_epsilon=MICRO, figures=FIGURES, bins=4, by_bins=True
            ).event(relation),
        ),
        "recalibrate": Method(recalibrated),
    }


# ---------------------------------------------------------------- records


def shifted(n: int, rng: np.random.Generator, temperature: float = 2.0) -> Scores:
    """Scores of three classes with a known right temperature."""
    z = rng.normal(scale=2.0, size=(n, CLASSES))
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    labels = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return Scores.from_logits(temperature * z, labels)


SURE_WRONG = ([1000.0, 0.0, 0.0], 1)  # a gap of -1 and a clamped loss at every temperature
SURE_RIGHT = ([1000.0, 0.0, 0.0], 0)
UNSURE_RIGHT = ([0.0, 0.0, 0.0], 0)  # a gap of 2/3 at every temperature
UNSURE_WRONG = ([0.0, 0.0, 0.0], 1)
HARD = (SURE_WRONG, SURE_RIGHT, UNSURE_RIGHT, UNSURE_WRONG, ([5.0, 4.0, -1.0], 2))


def joined(scores: Scores, *rows: tuple[list[float], int]) -> Scores:
    """Scores and a few records more."""
    values = np.concatenate([scores.values, np.array([row for row, _ in rows]).reshape(-1, 3)])
    labels = np.concatenate([scores.known_labels, np.array([y for _, y in rows], dtype=int)])
    return Scores.from_logits(values, labels)


def neighbors(scores: Scores, relation: str, rng: np.random.Generator) -> tuple[Scores, Scores]:
    """Scores that differ by one record, a hard one."""
    one, other = rng.permutation(len(HARD))[:2]
    first = joined(scores, HARD[one])
    return first, scores if relation == "add-remove" else joined(scores, HARD[other])


# ---------------------------------------------------------------- sources


@dataclass(frozen=True)
class RecordedQuery:
    """A query to a source, and its answer."""

    query: Any
    event: Noise
    body: bytes
    units: tuple[int, ...]


@dataclass(eq=False)
class RecordingSource:
    """A source that records its queries, and answers from a tape while there is one.

    ``answers`` is the number of answers before it drops out; ``lie`` changes its releases.
    """

    _records: Scores
    relation: Any = "add-remove"
    rng: Any = None
    tape: Sequence[tuple[int, ...]] = ()
    answers: float = math.inf
    lie: Callable[[Release], Any] | None = None
    asked: list[RecordedQuery] = field(default_factory=list)

    def answer(self, query: Any, *, micro_epsilon: int, request: Any = None) -> Any:
        event = laplace_event(query, micro_epsilon, self.relation)
        return self._given(query, event, micro_epsilon)

    def answer_gaussian(
        self, query: Any, *, noise_multiplier: float, request: Any = None
    ) -> Any:
        event = gaussian_event(query, noise_multiplier, self.relation)
        return self._given(query, event, None)

    def _given(self, query: Any, event: Noise, micro: int | None) -> Any:
        body = canonical_request(query, event, self._records, None, "")
        values = [one.units for one in self.asked if one.body == body]
        if not values:
            number = len(self.asked)
            taped = number < len(self.tape)
            units = self.tape[number] if taped else self._noised(query, event)
            self.asked.append(RecordedQuery(query, event, body, units))
            values = [units]
            if number >= self.answers:
                raise DropoutError("It fell silent.")
        std = noise_std(event) * query.grid.step
        release = Release(query.name, values[0], query.grid, std, micro, event, private=True)
        return release if self.lie is None else self.lie(release)

    def _noised(self, query: Any, event: Noise) -> tuple[int, ...]:
        """The exact answer with noise that is quick to draw."""
        exact = query.evaluate(self._records)
        if isinstance(event, DiscreteLaplace):
            drawn = two_sided_geometric(len(exact), event.noise, self.rng)
        else:
            drawn = np.rint(self.rng.normal(0.0, event.noise, len(exact)))
        return tuple(int(unit) for unit in exact + drawn)

    @property
    def spent(self) -> float:
        """Sum of the pure costs of its requests."""
        return sum(one.event.sensitivity / one.event.noise for one in self.asked)


def observe_sources(
    records: Sequence[Scores], relation: Any, rng: np.random.Generator, **more: Any
) -> list[RecordingSource]:
    """A source for each of several."""
    return [RecordingSource(one, relation, rng, **more) for one in records]


def replayed(
    records: Sequence[Scores], sources: Sequence[RecordingSource], **more: Any
) -> list[RecordingSource]:
    """Sources of other records, which say what those said."""
    return [
        RecordingSource(
            one, w.relation, w.rng, tape=[requested.units for requested in w.asked], **more
        )
        for one, w in zip(records, sources, strict=True)
    ]

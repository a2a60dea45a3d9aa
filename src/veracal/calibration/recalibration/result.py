"""The result of a recalibration, as a record, as JSON and in words for decision makers."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from veracal.accounting import MICRO, Statement, format_up
from veracal.calibration.maps.base import CalibrationMap, Identity
from veracal.calibration.maps.parametric import Temperature, TwoTemperatures, UniformMixing
from veracal.calibration.private.guard import GuardResult, InferredGuardResult
from veracal.calibration.private.measurement import PrivateFigures, PrivateMeasurement
from veracal.calibration.recalibration.budget import BudgetDivision
from veracal.data import Estimate, Scores
from veracal.queries import Release

_MAX_NAMED = 5  # sources that dropped out and are listed one by one
_LABELS = {
    "temperature": "Temperature",
    "unsure": "Temperature at low confidence",
    "sure": "Temperature at high confidence",
}


@dataclass(frozen=True, eq=False)
class Recalibration:
    """A calibration map fitted to noisy answers, with everything that was released for it.

    Attributes
    ----------
    method : str
        The method; never ``"auto"``, but the method that it selected.
    map : CalibrationMap
        The map to use: the identity if the guard rejected the fitted map.
    temperatures : mapping of str to Estimate
        Fitted temperatures with intervals, whether or not the map was kept: ``temperature``, or
        ``unsure`` and ``sure``; empty for other maps.
    interval_covers : str
        Errors that these intervals cover, in words.
    guard : GuardResult, InferredGuardResult or None
        Decision of the guard; None without a guard.
    before, after : PrivateFigures or None
        Accuracy and calibration error on the same records; None if not measured.
    budget : BudgetDivision
        Division of the budget.
    statement : Statement or None
        Privacy guarantee of all answers together; None without private answers.
    releases : tuple of Release
        All answers in order.
    dropouts : tuple of (str or None)
        For each source the reason why it dropped out; None if it answered every query.
    private : bool
        Whether the result may be published: it depends on private answers only.
    measurements : pair of PrivateMeasurement, or None
        Both sides in full, if each was measured separately.
    """

    method: str
    map: CalibrationMap
    temperatures: Mapping[str, Estimate]
    interval_covers: str
    guard: GuardResult | InferredGuardResult | None
    before: PrivateFigures | None
    after: PrivateFigures | None
    budget: BudgetDivision
    statement: Statement | None
    releases: tuple[Release, ...]
    dropouts: tuple[str | None, ...]
    private: bool
    measurements: tuple[PrivateMeasurement, PrivateMeasurement] | None = None

    @property
    def temperature(self) -> Estimate | None:
        """The fitted temperature, if the method fits a single one."""
        return self.temperatures.get("temperature")

    @property
    def n_sources(self) -> int:
        """Number of sources."""
        return len(self.dropouts)

    @property
    def n_answered(self) -> int:
        """Number of sources that answered every query."""
        return self.dropouts.count(None)

    def transform(self, scores: Scores) -> Scores:
        """Map any scores; they are only read."""
        return self.map.transform(scores)

    def text(self) -> str:
        """The queries, their cost and the result in words, for decision makers."""
        return "\n".join(_lines(self))

    def to_json(self) -> dict[str, Any]:
        """All attributes except the releases as JSON values."""
        return {
            "method": self.method,
            "private": self.private,
            "map": self.map.to_json(),
            "temperatures": {name: asdict(one) for name, one in self.temperatures.items()},
            "guard": None if self.guard is None else self.guard.to_json(),
            "before": None if self.before is None else self.before.to_json(),
            "after": None if self.after is None else self.after.to_json(),
            "epsilon": {
                "map": self.budget.map / MICRO,
                "guard": self.budget.guard / MICRO,
                "measure": self.budget.measure / MICRO,
            },
            "statement": None if self.statement is None else self.statement.to_json(),
            "sources": {
                "number": self.n_sources,
                "answered": self.n_answered,
                "dropouts": list(self.dropouts),
            },
            "queries": [release.query for release in self.releases],
        }


def _lines(result: Recalibration) -> Iterator[str]:
    """The lines of the text."""
    yield f"Method: {result.method}. {_map_text(result.map)}"
    if result.releases:
        counts = Counter(release.query for release in result.releases)
        listed = ", ".join(
            name if n == 1 else f"{name} ({n} times)" for name, n in counts.items()
        )
        several = "one source" if result.n_sources == 1 else f"{result.n_sources} sources"
        yield f"Queries to {several}: {listed}."
    else:
        yield "No queries were made."
    yield from _dropout_lines(result.dropouts)
    yield _cost_text(result)
    for name, estimate in result.temperatures.items():
        label = _LABELS.get(name, name)
        covers = result.interval_covers
        yield f"{label}: {_estimate_text(estimate)}; the interval covers {covers}."
    if result.guard is not None:
        yield result.guard.text()
    yield from _figure_lines(result.before, result.after)
    if result.statement is not None:
        yield from result.statement.summary().split("\n\n")
        if result.n_sources > 1:
            yield f"Covered: {'; '.join(result.statement.covers)}."


def _map_text(map_: CalibrationMap) -> str:
    """A calibration map in one sentence."""
    match map_:
        case Identity():
            return "No map: the scores are not changed."
        case Temperature():
            return f"Logits are divided by {map_.value:.5g}."
        case UniformMixing():
            return (
                f"Logits are divided by {map_.value:.5g}, and the probabilities are mixed with "
                f"{map_.uniform_weight:.1%} of the uniform distribution."
            )
        case TwoTemperatures():
            return (
                f"Logits are divided by a temperature between {1 / map_.unsure:.5g} (low "
                f"confidence) and {1 / map_.sure:.5g} (high confidence)."
            )
        case _:
            return f"The scores pass through a map of kind {map_.kind!r}."


def _dropout_lines(dropouts: tuple[str | None, ...]) -> Iterator[str]:
    """The sources that dropped out, if any."""
    reasons = [(i, why) for i, why in enumerate(dropouts) if why is not None]
    if reasons:
        yield (
            f"{dropouts.count(None)} of {len(dropouts)} sources answered every query; the "
            "result is about their records."
        )
    for i, why in reasons[:_MAX_NAMED]:
        yield f"Source {i + 1} dropped out: {why}."
    if len(reasons) > _MAX_NAMED:
        yield f"{len(reasons) - _MAX_NAMED} more sources dropped out."


def _cost_text(result: Recalibration) -> str:
    """The cost for one privacy unit."""
    if not result.private:
        return (
            "NOT private: the records are not protected. Publish this only if they are public."
        )
    if result.statement is None:
        return "Cost: nothing."
    cost = f"epsilon {format_up(result.statement.epsilon, 6)}"
    if result.statement.delta:
        cost += f" at delta {format_up(result.statement.delta)}"
    budget = f"{format_up(result.budget.total / MICRO, 6)}: {result.budget.text()}"
    return f"Cost for one {result.statement.unit}: {cost}. The budget was {budget}."


def _figure_lines(before: PrivateFigures | None, after: PrivateFigures | None) -> Iterator[str]:
    """Accuracy and calibration error before and after."""
    if before is None or after is None:
        yield "No figures before and after: not requested, or too noisy for the budget."
        return
    for name, label in (("accuracy", "Accuracy"), ("ece", "Calibration error")):
        sides = (getattr(before, name), getattr(after, name))
        yield f"{label} before: {_estimate_text(sides[0])}; after: {_estimate_text(sides[1])}."
    if before.ece_noise_bias:
        yield f"Noise increases the calibration errors by at most {before.ece_noise_bias:.2g}."


def _estimate_text(estimate: Estimate) -> str:
    """An estimate with its interval."""
    if estimate.value is None:
        return "not significant under the noise"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.4g}"
    interval = f"{estimate.level:.0%} interval {estimate.low:.4g} to {estimate.high:.4g}"
    return f"{estimate.value:.4g} ({interval})"

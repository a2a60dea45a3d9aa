"""Guards that keep a calibration map only if it improves calibration.

:func:`guard_map` decides by a noisy query of its own; :func:`infer_guard` decides by the
posterior of the answers that the map was fitted to, at no cost.
"""

from dataclasses import dataclass
from typing import Any

from veracal.accounting import Event, Relation, Statement, Unit
from veracal.calibration.maps.base import CalibrationMap, Identity
from veracal.calibration.private.estimates import noise_half_width, noise_scales
from veracal.calibration.private.session import (
    combined_statement,
    ledger_total_of,
    micro_epsilon_of,
    unit_of,
)
from veracal.calibration.queries.scalars import BrierGain
from veracal.queries import QueryRequest, Release, Source

COVERS = "the guard's decision and its noisy gain"


@dataclass(frozen=True)
class GuardResult:
    """Decision of a guard by a noisy query: the map, or the identity in its place.

    Attributes
    ----------
    map : CalibrationMap
        The map to use.
    kept : bool
        Whether ``map`` is the evaluated map.
    gain : float
        Noisy sum over the records of the improvement of the top-label Brier score.
    threshold : float
        Value that the gain must exceed.
    beta : float
        Upper bound on the probability of keeping a map that is no better.
    records : str
        Records of the query, in words.
    release : Release
    statement : Statement or None
    """

    map: CalibrationMap
    kept: bool
    gain: float
    threshold: float
    beta: float
    records: str
    release: Release
    statement: Statement | None

    @property
    def private(self) -> bool:
        """Whether the decision is differentially private."""
        return self.release.private

    def to_json(self) -> dict[str, Any]:
        """All attributes except the map as JSON values."""
        names = ("kept", "gain", "threshold", "beta", "records")
        return {"kind": "query", **{name: getattr(self, name) for name in names}}

    def text(self) -> str:
        """The decision and its reason in words."""
        figures = f"noisy gain {self.gain:.4g}, needed more than {self.threshold:.4g}"
        if self.kept:
            return (
                f"The map was kept ({figures}). A map that is no better than no map on "
                f"{self.records} is kept with probability at most {self.beta:g}."
            )
        return (
            f"The map was not kept ({figures}): on {self.records} its gain is not significant. "
            "The scores are not changed."
        )


def guard_event(
    map_: CalibrationMap,
    *,
    epsilon: float | None = None,
    micro_epsilon: int | None = None,
    relation: Relation = "add-remove",
    unit: Unit | None = None,
) -> Event:
    """Cost of :func:`guard_map`, whatever the decision."""
    total = micro_epsilon_of(epsilon, micro_epsilon)
    return QueryRequest(BrierGain(map_), total).event(relation, unit)


def guard_map(
    map_: CalibrationMap,
    source: Source,
    *,
    epsilon: float | None = None,
    micro_epsilon: int | None = None,
    beta: float = 0.05,
    records: str = "the queried records",
    request: str | None = None,
) -> GuardResult:
    r"""Keep a map if a noisy query shows that it improves a source's records.

    One query is made: the sum of the gains in the top-label Brier score, a *difference* in
    [-1, 1] for each record. The map is kept if the noisy gain exceeds the value that the noise
    alone exceeds with probability ``beta``: for one source about :math:`s \log(1 / 2\beta)`,
    with the scale s of its noise; for several, by Chernoff's bound on the sum of their noises.

    A map that is no better *on these records* is kept with probability at most ``beta``. On the
    records of the fit the gain is optimistic; separate records give an unbiased decision at
    the same cost.

    Parameters
    ----------
    epsilon, micro_epsilon : float or int
        Cost for each privacy unit; one of the two.
    beta : float in (0, 0.5)
    records : str
        Description of these records for reports.
    request : str, optional
        Id of the query. Without one, a second query about the same map gets the same answer.

    Guarantees
    ----------
    The cost (:func:`guard_event`) is charged before a record is read and does not depend on the
    decision. The decision is a function of the noisy gain alone. Sensitivity: 1 under
    add-remove, 2 under replace-one.
    """
    if not 0 < beta < 0.5:
        raise ValueError(f"Expected beta between 0 and 0.5, got beta={beta!r}.")
    query = QueryRequest(BrierGain(map_), micro_epsilon_of(epsilon, micro_epsilon))
    release = query.ask(source, request)
    half_width = noise_half_width(noise_scales(release.event), beta)  # in units of the grid
    kept = release.units[0] > half_width
    return GuardResult(
        map=map_ if kept else Identity(),
        kept=kept,
        gain=release.value,
        threshold=half_width * release.grid.step,
        beta=beta,
        records=records,
        release=release,
        statement=combined_statement(
            [release], unit_of(source), covers=COVERS, ledger_total=ledger_total_of(source)
        ),
    )


BETA = 0.05


@dataclass(frozen=True)
class InferredGuardResult:
    r"""Decision of a guard by the posterior of the fit: the map, or the identity in its place.

    A root search ends with a posterior of the temperature at which mean confidence equals
    accuracy. It gives the probability that mean confidence is closer to accuracy with the map
    than without. A query of its own (:func:`guard_map`) would cost a part of the budget, and
    with many sources its noise would dominate.

    Attributes
    ----------
    map, kept
        As of :class:`GuardResult`.
    probability : float
        Posterior probability that the map improves calibration, under the model of the search.
    beta : float
        The map is kept if the probability is at least 1 - beta.

    Guarantees
    ----------
    The decision is a function of released answers and of public numbers, and costs nothing.
    """

    map: CalibrationMap
    kept: bool
    probability: float
    beta: float

    def text(self) -> str:
        """The decision and its reason in words."""
        reason = (
            "under the model of the fit, it brings mean confidence closer to accuracy with "
            f"probability {self.probability:.3f}"
        )
        if self.kept:
            return f"The map was kept: {reason} ({1 - self.beta:g} is required)."
        return (
            f"The map was not kept: {reason} ({1 - self.beta:g} is required). The scores are "
            "not changed."
        )

    def to_json(self) -> dict[str, Any]:
        """All attributes except the map as JSON values."""
        return {
            "kind": "inferred",
            "kept": self.kept,
            "probability": self.probability,
            "beta": self.beta,
        }


def infer_guard(
    map_: CalibrationMap, probability: float, beta: float = BETA
) -> InferredGuardResult:
    """Keep a map that improves calibration with probability at least 1 - beta."""
    probability = min(max(probability, 0.0), 1.0)  # rounding may exceed one
    kept = probability >= 1 - beta
    return InferredGuardResult(map_ if kept else Identity(), kept, probability, beta)

"""Keep a map only if the records say, through noise, that it helps.

Keep a map only if the answers that led to it say that it helps: a guard for nothing.
"""

from dataclasses import dataclass
from typing import Any

from veracal.accounting import Event, Relation, Statement, Unit
from veracal.calibration.maps.base import CalibrationMap, Identity
from veracal.calibration.private.estimates import noise_reach, scales
from veracal.calibration.private.session import PricedQuery, price, stated, total_of, unit_of
from veracal.calibration.queries.scalars import BrierGain
from veracal.queries import Release, Source

COVERS = "whether the map was kept, and the noisy gain that decided it"


@dataclass(frozen=True)
class GuardResult:
    """A map that was kept, or the identity in its place.

    Attributes
    ----------
    map : Map
        What to use.
    kept : bool
        Whether that is the map that was asked about.
    gain : float
        Noisy sum, over the records, of what the map takes off the top-label Brier score.
    threshold : float
        What the gain had to exceed.
    beta : float
        Probability, at most, that a map that is no better was kept.
    records : str
        On which records it was asked.
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
        """Whether the decision is protected."""
        return self.release.private

    def to_json(self) -> dict[str, Any]:
        """Everything but the map as what JSON can hold."""
        names = ("kept", "gain", "threshold", "beta", "records")
        return {"kind": "asked", **{name: getattr(self, name) for name in names}}

    def text(self) -> str:
        """What was decided and why, for people."""
        figures = f"noisy gain {self.gain:.4g}, needed more than {self.threshold:.4g}"
        if self.kept:
            return (
                f"The map was kept ({figures}). If it were no better than no map, on "
                f"{self.records}, that would have happened with probability at most "
                f"{self.beta:g}."
            )
        return (
            f"The map was not kept ({figures}): on {self.records} it could not be told from no "
            "map. The scores stay as they are."
        )


def guard_event(
    map_: CalibrationMap,
    *,
    epsilon: float | None = None,
    micro_epsilon: int | None = None,
    relation: Relation = "add-remove",
    unit: Unit | None = None,
) -> Event:
    """Cost of :func:`guard_map`, whether or not the map is kept."""
    return PricedQuery(BrierGain(map_), price(epsilon, micro_epsilon)).event(relation, unit)


def guard_map(
    map_: CalibrationMap,
    source: Source,
    *,
    epsilon: float | None = None,
    micro_epsilon: int | None = None,
    beta: float = 0.05,
    records: str = "the records that were asked",
    request: str | None = None,
) -> GuardResult:
    r"""Keep a map if it is better on the records of a source; otherwise the identity.

    One question is asked: the sum of the gains in the top-label Brier score, a *difference*
    of each record in [-1, 1]. The map is kept if the noisy gain exceeds what the noise alone
    exceeds with probability ``beta``: for one source about :math:`s \log(1 / 2\beta)`, with
    the scale s of its noise; for several, by Chernoff's bound on the sum of their noises.

    "Never" is not to be had under noise. What holds: a map that is no better *on these records*
    is kept with probability at most ``beta``. On the records that the map was fitted to this
    is optimistic; ask records that had no part in the fit, which costs nothing more.

    Parameters
    ----------
    map_ : Map
    source : Source
    epsilon, micro_epsilon : float or int
        What one unit of the records pays; one of the two.
    beta : float in (0, 0.5)
    records : str
        Which records these are, in words, for reports.
    request : str, optional
        Id of the question. Without one, asking again about the same map gets the same answer:
        there is no second try.

    Guarantees
    ----------
    The cost (:func:`guard_event`) is charged before a record is read and does not depend on the
    decision. The decision is a function of the noisy gain alone. Sensitivity: 1 under
    add-remove, 2 under replace-one.
    """
    if not 0 < beta < 0.5:
        raise ValueError(f"Expected beta between 0 and 0.5, got beta={beta!r}.")
    ask = PricedQuery(BrierGain(map_), price(epsilon, micro_epsilon))
    release = ask.of(source, request)
    reach = noise_reach(scales(release.event), beta)  # in units of the grid
    kept = release.units[0] > reach
    return GuardResult(
        map=map_ if kept else Identity(),
        kept=kept,
        gain=release.value,
        threshold=reach * release.grid.step,
        beta=beta,
        records=records,
        release=release,
        statement=stated(
            [release], unit_of(source), covers=COVERS, ledger_total=total_of(source)
        ),
    )


BETA = 0.05


@dataclass(frozen=True)
class InferredGuardResult:
    r"""A map that was kept, or the identity in its place, by the answers it was made of.

    A search for a temperature ends with a posterior of the root, where mean confidence equals
    accuracy. It also says how probable it is that the map brings the two nearer to each other
    than they are without it. A question of its own (:func:`guard_map`) would cost a part of
    the budget and drown in the noise of many sources; this one was answered already.

    Attributes
    ----------
    map : Map
        What to use.
    kept : bool
        Whether that is the map that was fitted.
    chance : float
        Probability that the map helps, given the answers, as far as the model of the search
        holds.
    beta : float
        The map is kept if the chance is at least 1 - beta.

    Guarantees
    ----------
    The decision is a function of released answers and of public numbers, and costs nothing.
    """

    map: CalibrationMap
    kept: bool
    chance: float
    beta: float

    def text(self) -> str:
        """What was decided and why, for people."""
        told = (
            "by the answers that led to it, as far as their model holds, it brings confidence "
            f"nearer to accuracy with probability {self.chance:.3f}"
        )
        if self.kept:
            return f"The map was kept: {told}, {1 - self.beta:g} is needed."
        return (
            f"The map was not kept: {told}, and {1 - self.beta:g} is needed. The scores stay "
            "as they are."
        )

    def to_json(self) -> dict[str, Any]:
        """Everything but the map as what JSON can hold."""
        return {"kind": "inferred", "kept": self.kept, "chance": self.chance, "beta": self.beta}


def infer_guard(map_: CalibrationMap, chance: float, beta: float = BETA) -> InferredGuardResult:
    """Keep a map that helps with a chance of at least 1 - beta; otherwise the identity."""
    chance = min(max(chance, 0.0), 1.0)  # a sum of weights may end a bit above one
    kept = chance >= 1 - beta
    return InferredGuardResult(map_ if kept else Identity(), kept, chance, beta)

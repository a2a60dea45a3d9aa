"""Keep a map only if the records say, through noise, that it helps."""

from dataclasses import dataclass
from typing import Any

from veracal.calibration.maps import Identity, Map
from veracal.calibration.private.asking import Ask, price, stated, total_of, unit_of
from veracal.calibration.private.noises import noise_reach, scales
from veracal.calibration.queries import BrierGain
from veracal.privacy import (
    Event,
    Relation,
    Release,
    Source,
    Statement,
    Unit,
)

COVERS = "whether the map was kept, and the noisy gain that decided it"


@dataclass(frozen=True)
class Guarded:
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

    map: Map
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
    map_: Map,
    *,
    epsilon: float | None = None,
    micro_epsilon: int | None = None,
    relation: Relation = "add-remove",
    unit: Unit | None = None,
) -> Event:
    """Cost of :func:`never_worse`, whether or not the map is kept."""
    return Ask(BrierGain(map_), price(epsilon, micro_epsilon)).event(relation, unit)


def never_worse(
    map_: Map,
    source: Source,
    *,
    epsilon: float | None = None,
    micro_epsilon: int | None = None,
    beta: float = 0.05,
    records: str = "the records that were asked",
    request: str | None = None,
) -> Guarded:
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
    ask = Ask(BrierGain(map_), price(epsilon, micro_epsilon))
    release = ask.of(source, request)
    reach = noise_reach(scales(release.event), beta)  # in units of the grid
    kept = release.units[0] > reach
    return Guarded(
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

"""Keep a map only if the answers that led to it say that it helps: a guard for nothing."""

from dataclasses import dataclass
from typing import Any

from veracal.calibration.maps import Identity, Map

BETA = 0.05


@dataclass(frozen=True)
class Inferred:
    r"""A map that was kept, or the identity in its place, by the answers it was made of.

    A search for a temperature ends with a posterior of the root, where mean confidence equals
    accuracy. It also says how probable it is that the map brings the two nearer to each other
    than they are without it. A question of its own (:func:`never_worse`) would cost a part of
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

    map: Map
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


def inferred(map_: Map, chance: float, beta: float = BETA) -> Inferred:
    """Keep a map that helps with a chance of at least 1 - beta; otherwise the identity."""
    chance = min(max(chance, 0.0), 1.0)  # a sum of weights may end a bit above one
    kept = chance >= 1 - beta
    return Inferred(map_ if kept else Identity(), kept, chance, beta)

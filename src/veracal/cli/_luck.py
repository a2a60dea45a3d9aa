"""What predictions tell of the luck in each decision, from the model alone."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from veracal._types import Array
from veracal.artifact import PrivateClassifier
from veracal.data.saving_predictions import ABSTAINED, Columns
from veracal.training.perturbation.arbitrariness import informative

LOW, HIGH, FLIP, REVIEW = "disagreement_low", "disagreement_high", "flip", "review"


@dataclass(frozen=True)
class Luck:
    """What was found of the people so far, and what to print with it.

    Attributes
    ----------
    level : float
        Of the intervals.
    holds_for : str
        Of whom they hold at once.
    estimated : bool
        Whether there are estimates of flips.
    caveats : tuple of str
    told, review, abstained : int
        People of whom an interval says anything; whose decision should be looked at, or is
        left out.
    """

    level: float
    holds_for: str
    estimated: bool
    caveats: tuple[str, ...]
    told: int = 0
    review: int = 0
    abstained: int = 0

    def and_block(self, found: Mapping[str, Array]) -> "Luck":
        """The same after some more people."""
        told = informative(found[LOW], found[HIGH])
        return replace(
            self,
            told=self.told + int(told.sum()),
            review=self.review + int(np.sum(found.get(REVIEW, 0))),
            abstained=self.abstained + int(np.sum(found.get(ABSTAINED, 0))),
        )

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
        return {**asdict(self), "caveats": list(self.caveats)}


@dataclass(frozen=True)
class Asked:
    """What is asked of each decision.

    Attributes
    ----------
    level : float
        Of the intervals, which are those for everybody at once: rows come one block after the
        other, and nobody named them before the model was released.
    review, abstain : float or None
        Disagreement that is too much, so that a decision should be looked at or is left out:
        wherever it cannot be shown to be at most that.
    """

    level: float = 0.95
    review: float | None = None
    abstain: float | None = None

    def of_nobody(self, classifier: PrivateClassifier) -> Luck:
        """What there will be, or an error that says why there is nothing."""
        none = classifier.arbitrariness(
            np.zeros((0, classifier.n_features_in_)), level=self.level
        )
        return Luck(none.level, none.holds_for, none.flip is not None, none.caveats)

    def columns(self, luck: Luck) -> Columns:
        """Names of the columns, and whether each holds yes or no."""
        found = {LOW: False, HIGH: False}
        found |= {FLIP: False} if luck.estimated else {}
        found |= {} if self.review is None else {REVIEW: True}
        return found | ({} if self.abstain is None else {ABSTAINED: True})

    def of(self, classifier: PrivateClassifier, X: Any) -> dict[str, Array]:
        """The columns for some rows."""
        told = classifier.arbitrariness(X, level=self.level)
        found: dict[str, Array] = {LOW: told.low, HIGH: told.high}
        if told.flip is not None:
            found[FLIP] = told.flip
        if self.review is not None:
            found[REVIEW] = told.high > self.review
        if self.abstain is not None:
            found[ABSTAINED] = told.high > self.abstain
        return found

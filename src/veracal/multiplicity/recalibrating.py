"""Runs whose confidence was repaired, each by a map of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veracal._types import Array, Floats, Ints
from veracal.calibration.fitters import MapFitter
from veracal.data import Scores
from veracal.data.labels import Label
from veracal.multiplicity.collecting import View


@dataclass(frozen=True, eq=False)
class Recalibrating:
    """A map that is fitted anew in every run, on people of its own.

    Attributes
    ----------
    fitter : MapFitter
        Not private: an audit is internal.
    labels : array of ints of shape (n,)
        Right answers of the last n rows that the engine scores.
    """

    fitter: MapFitter
    labels: Ints

    @property
    def people(self) -> int:
        """Whom maps are fitted on."""
        return len(self.labels)

    @property
    def method(self) -> str:
        """How tables call it."""
        return repr(self.fitter)

    def view(self, number: int, kind: str, classes: Sequence[Label]) -> View:
        """What to count of a run: probabilities of the first rows, after its own map."""

        def mapped(scores: Floats) -> tuple[Floats, str]:
            runs = [
                self._one(run[:number], run[len(run) - self.people :], kind, classes)
                for run in scores
            ]
            return np.stack(runs), "probability"

        return mapped

    def _one(
        self, people: Array, fitted_on: Array, kind: str, classes: Sequence[Label]
    ) -> Floats:
        """Probabilities of one run."""
        given = _scores(fitted_on, kind, classes, self.labels)
        found = self.fitter.fit(given).transform(_scores(people, kind, classes, None))
        shares: Floats = found.probabilities
        return shares[:, 1] if len(classes) == 2 else shares


def _scores(values: Array, kind: str, classes: Sequence[Label], labels: Ints | None) -> Scores:
    """Scores of one run."""
    if len(classes) == 2:
        rest = np.zeros_like(values) if kind == "logit" else 1 - values
        values = np.stack([rest, values], axis=1)
    logits = kind == "logit"
    return Scores(
        values.astype(np.float64),
        "logits" if logits else "probabilities",
        tuple(classes),
        labels,
    )

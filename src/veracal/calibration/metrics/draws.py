"""Records drawn again and again, of which everything that costs is found once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Array, Floats, Ints
from veracal.calibration.metrics.sorting import codes
from veracal.data.checked import frozen, row_numbers
from veracal.data.scores import Scores

Summary = Callable[[Scores], Array]  # one row for each record, whatever its label

PROBABILITIES: Summary = attrgetter("probabilities")
_LOG_PROBABILITIES: Summary = attrgetter("log_probabilities")
_PREDICTIONS: Summary = attrgetter("predictions")


@dataclass(frozen=True, eq=False, repr=False)
class Draws(Scores):
    """Scores whose rows are rows of others, as in a bootstrap.

    What depends on one row alone, and not on its label, is found for the others once, and
    then taken like the rows. Every metric gives the figure of the same rows of plain scores.

    Attributes
    ----------
    whole : Scores
        The others.
    rows : array of ints of shape (n,)
        Which of them.
    """

    whole: Scores = field(kw_only=True)
    rows: Ints = field(kw_only=True)
    _found: dict[Any, Array] = field(default_factory=dict, kw_only=True)  # of the whole
    _taken: dict[Any, Array] = field(default_factory=dict, kw_only=True)  # of it, the rows

    @classmethod
    def of(cls, scores: Scores) -> Self:
        """Every row of labeled scores, without groups and units."""
        return cls(
            scores.values,
            scores.kind,
            scores.classes,
            scores.labels,
            name=scores.name,
            whole=scores,
            rows=np.arange(len(scores)),
        )

    def take(self, index: ArrayLike) -> Self:
        """Keep the rows of ``index`` (numbers or a mask), in its order."""
        rows = row_numbers(index, len(self))
        return super().take(rows)._changed(rows=self.rows[rows], _taken={})

    def relabeled(self, labels: Ints) -> Self:
        """Return the same rows with other labels, by position among the classes."""
        return self._changed(labels=labels)

    @property
    def probabilities(self) -> Floats:
        """Probabilities of shape (n, k)."""
        return self.known(PROBABILITIES)

    @property
    def log_probabilities(self) -> Floats:
        """Logarithms of the probabilities."""
        return self.known(_LOG_PROBABILITIES)

    @property
    def predictions(self) -> Ints:
        """Position of the largest value of each row, the first of equal ones."""
        return self.known(_PREDICTIONS)

    def known(self, summary: Summary, *, coded: bool = False) -> Array:
        """Rows of a summary of the whole, or of integers in its order."""
        key = summary, coded
        if key not in self._found:
            found = summary(self.whole)
            self._found[key] = codes(found) if coded else found
        if key not in self._taken:
            self._taken[key] = frozen(self._found[key].take(self.rows, axis=0))
        return self._taken[key]


def sortable(scores: Scores, summary: Summary, values: Array | None = None) -> Array:
    """A summary of shape (n, k), or, of draws, integers of the same order in every column.

    Whoever has the summary's ``values`` already passes them.
    """
    if isinstance(scores, Draws):
        return scores.known(summary, coded=True)
    return summary(scores) if values is None else values

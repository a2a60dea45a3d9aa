"""What every fitter that is not private shares: its manner, and that it does no harm."""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from veracal._shown import Shown
from veracal.calibration.maps import Identity, Map
from veracal.data.scores import Scores
from veracal.errors import DataError

_ROUNDING = 1e-13  # of a mean over records; a rise no larger is none


class MapFitter(Shown, ABC):
    """Settings, and after :meth:`fit` a map. **Not private**: it tells about the records.

    Attributes
    ----------
    map_ : Map
        What was fitted, or :class:`~veracal.calibration.maps.Identity` if that would have
        been worse on the very records it was fitted on.
    kept_ : bool
        Whether ``map_`` is what was fitted, and not the identity in its place.
    private_ : bool
        False.
    """

    private_: ClassVar[bool] = False
    map_: Map
    kept_: bool

    def fit(self, scores: Scores) -> Self:
        """Fit to labeled scores of one record or more."""
        fitted = self._fitted(labeled(scores))
        before, after = (self._loss(s, scores) for s in (scores, fitted.transform(scores)))
        self.kept_ = after <= before + _ROUNDING * max(1.0, before)
        self.map_ = fitted if self.kept_ else Identity()
        return self

    def transform(self, scores: Scores) -> Scores:
        """Scores of the same records, mapped."""
        check_is_fitted(self, "map_")
        return self.map_.transform(scores)

    def fit_transform(self, scores: Scores) -> Scores:
        """Fit to labeled scores, and map them."""
        return self.fit(scores).transform(scores)

    @abstractmethod
    def _fitted(self, scores: Scores) -> Map:
        """The map that fits the scores."""

    @abstractmethod
    def _loss(self, mapped: Scores, given: Scores) -> float:
        """What must not rise on the records of the fit."""


def labeled(scores: Scores) -> Scores:
    """Return scores of at least one record whose label is known, or raise."""
    if not isinstance(scores, Scores):
        raise ValueError(
            f"Expected Scores, got {type(scores).__name__}. Make them with "
            "Scores.from_logits or Scores.from_probabilities: which of the two the numbers are "
            "is never guessed."
        )
    if not len(scores.known_labels):
        raise DataError(scores.name, "one record or more", "none", "Pass some to fit to.")
    return scores


def said_brier(mapped: Scores, given: Scores) -> float:
    """Mean squared gap between being right and the probability of what ``given`` predicts."""
    top = given.predictions[:, None]
    said = np.take_along_axis(mapped.probabilities, top, axis=1)[:, 0].astype(np.float64)
    return float(np.square(said - given.correct).mean())

"""The increasing curve closest to the labels."""

import numpy as np
from scipy.optimize import isotonic_regression

from veracal import _checks
from veracal._types import Array, Floats
from veracal.calibration.fitters.base import MapFitter, said_brier
from veracal.calibration.maps import Isotonic
from veracal.calibration.maps.isotonic import IsotonicForm
from veracal.calibration.metrics.proper import brier
from veracal.data.scores import Scores
from veracal.errors import DataError

_MOST_CLASSES = 10_000  # each is a fit of its own


class IsotonicCalibration(MapFitter):
    r"""Isotonic regression of the labels on probabilities, **not private**.

    Each curve is the increasing function with the least squared error (Zadrozny & Elkan 2002),
    found by pooling adjacent violators, straight between its points. What each form maps is
    told by :class:`~veracal.calibration.maps.Isotonic`. A class that no record has gets
    probability 0 everywhere from *one-vs-rest*, which takes 10,000 classes at most.

    Parameters
    ----------
    form : 'one-vs-rest' or 'top-label'
        *one-vs-rest*: a curve for each class, and rows scaled to sum to one, as scikit-learn
        does; of two classes, the curve of the second. *top-label*: one curve, for the
        predicted class.

    Guarantees
    ----------
    On the records of the fit the Brier score never rises (for *top-label*, that of the label
    that was predicted). For one curve that is a theorem. Scaling the rows of three classes or
    more is not proved to keep it; where it would not, the identity is kept.

    Examples
    --------
    >>> scores = Scores.from_probabilities([0.2, 0.4, 0.6, 0.8], [0, 1, 0, 1])
    >>> IsotonicCalibration().fit_transform(scores).values[:, 1]
    array([0. , 0.5, 0.5, 1. ])
    """

    def __init__(self, form: IsotonicForm = "one-vs-rest") -> None:
        self.form = form

    def _fitted(self, scores: Scores) -> Isotonic:
        _checks.one_of(("top-label", "one-vs-rest"), form=self.form)
        if self.form == "top-label":
            curves = [_curve(scores.confidence, scores.correct)]
        else:
            if scores.n_classes > _MOST_CLASSES:
                raise DataError(
                    scores.name,
                    f"at most {_MOST_CLASSES:,} classes for a curve each",
                    f"{scores.n_classes:,}",
                    "Use form='top-label', or a temperature.",
                )
            classes = range(scores.n_classes) if scores.n_classes > 2 else (1,)
            values, labels = scores.probabilities, scores.known_labels
            curves = [_curve(values[:, j], labels == j) for j in classes]
        inputs, outputs = zip(*curves, strict=True)
        return Isotonic(inputs, outputs, self.form)

    def _loss(self, mapped: Scores, given: Scores) -> float:
        if self.form == "top-label":
            return said_brier(mapped, given)
        return brier(mapped)


def _curve(probabilities: Floats, hits: Array) -> tuple[Floats, Floats]:
    """Points of the increasing curve closest to hits, without those on a level stretch."""
    # Not scikit-learn's IsotonicRegression: it pools inputs closer than 1e-15, and the curve
    # then passes by the points that were pooled.
    inputs, place, counts = np.unique(
        np.asarray(probabilities, dtype=np.float64), return_inverse=True, return_counts=True
    )
    means = np.bincount(place, weights=hits) / counts
    outputs = np.clip(isotonic_regression(means, weights=counts).x, 0, 1)
    same = np.diff(outputs) == 0
    inner = np.concatenate([[False], same[:-1] & same[1:], [False]])[: len(inputs)]
    return inputs[~inner], outputs[~inner]

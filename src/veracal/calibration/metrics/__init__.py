"""How far probabilities are from frequencies, in one number.

Every metric is a function from labeled :class:`~veracal.data.Scores` of at least one record to
a float, so that :func:`veracal.data.by_group` can take any of them. Names say what is measured:
``binary_…`` and ``calibration_…`` the probability of the second of two classes; ``sce`` and
``classwise_…`` each class in turn; ``brier``, ``nll``, ``accuracy``, ``f1`` and ``auc`` all
classes together; everything else the *top label*, the confidence in the predicted class.
"""

from veracal.calibration.metrics.adaptive import ace, classwise_ace, debiased_l2
from veracal.calibration.metrics.binned import (
    binary_ece,
    confidence_gap,
    ece,
    mce,
    over_confidence,
    under_confidence,
)
from veracal.calibration.metrics.classwise import sce
from veracal.calibration.metrics.clinical import (
    calibration_in_the_large,
    calibration_intercept,
    calibration_slope,
    top_label_calibration_intercept,
    top_label_calibration_slope,
)
from veracal.calibration.metrics.decisions import accuracy, binary_f1, f1
from veracal.calibration.metrics.ks import ks
from veracal.calibration.metrics.proper import brier, nll, top_label_brier
from veracal.calibration.metrics.ranking import auc
from veracal.calibration.metrics.smooth import binary_smooth_ece, smooth_ece

__all__ = [
    "accuracy",
    "ace",
    "auc",
    "binary_ece",
    "binary_f1",
    "binary_smooth_ece",
    "brier",
    "calibration_in_the_large",
    "calibration_intercept",
    "calibration_slope",
    "classwise_ace",
    "confidence_gap",
    "debiased_l2",
    "ece",
    "f1",
    "ks",
    "mce",
    "nll",
    "over_confidence",
    "sce",
    "smooth_ece",
    "top_label_brier",
    "top_label_calibration_intercept",
    "top_label_calibration_slope",
    "under_confidence",
]

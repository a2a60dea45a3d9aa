"""Calibration metrics and proper scores."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.calibration.metrics.errors import (
        ace,
        binary_ece,
        binary_smooth_ece,
        classwise_ace,
        confidence_gap,
        debiased_l2,
        ece,
        ks,
        mce,
        over_confidence,
        sce,
        smooth_ece,
        under_confidence,
    )
    from veracal.calibration.metrics.performance import (
        accuracy,
        auc,
        binary_f1,
        brier,
        calibration_in_the_large,
        calibration_intercept,
        calibration_slope,
        f1,
        nll,
        top_label_brier,
        top_label_calibration_intercept,
        top_label_calibration_slope,
    )

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

__getattr__, __dir__ = attach(
    __name__,
    {
        "errors": (
            "ace",
            "binary_ece",
            "binary_smooth_ece",
            "classwise_ace",
            "confidence_gap",
            "debiased_l2",
            "ece",
            "ks",
            "mce",
            "over_confidence",
            "sce",
            "smooth_ece",
            "under_confidence",
        ),
        "performance": (
            "accuracy",
            "auc",
            "binary_f1",
            "brier",
            "calibration_in_the_large",
            "calibration_intercept",
            "calibration_slope",
            "f1",
            "nll",
            "top_label_brier",
            "top_label_calibration_intercept",
            "top_label_calibration_slope",
        ),
    },
)

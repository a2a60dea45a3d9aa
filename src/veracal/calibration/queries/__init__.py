"""Queries about private scores."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.calibration.queries.binned import (
        AbsoluteGaps,
        BinnedGap,
        BrierByGroup,
        CorrectTotal,
        CorrectWrong,
        Groups,
    )
    from veracal.calibration.queries.platt import (
        ParameterGrid,
        PlattCurvature,
        PlattEquations,
        PlattGradient,
    )
    from veracal.calibration.queries.scalars import (
        BrierGain,
        ConfidenceWeightedGaps,
        ConfidenceWeightedSlopes,
        Gap,
        LossAt,
        TemperatureGradient,
    )

__all__ = [
    "AbsoluteGaps",
    "BinnedGap",
    "BrierByGroup",
    "BrierGain",
    "ConfidenceWeightedGaps",
    "ConfidenceWeightedSlopes",
    "CorrectTotal",
    "CorrectWrong",
    "Gap",
    "Groups",
    "LossAt",
    "ParameterGrid",
    "PlattCurvature",
    "PlattEquations",
    "PlattGradient",
    "TemperatureGradient",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "binned": (
            "AbsoluteGaps",
            "BinnedGap",
            "BrierByGroup",
            "CorrectTotal",
            "CorrectWrong",
            "Groups",
        ),
        "platt": (
            "ParameterGrid",
            "PlattCurvature",
            "PlattEquations",
            "PlattGradient",
        ),
        "scalars": (
            "BrierGain",
            "Gap",
            "LossAt",
            "ConfidenceWeightedGaps",
            "ConfidenceWeightedSlopes",
            "TemperatureGradient",
        ),
    },
)

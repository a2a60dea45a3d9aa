"""What may be asked of private scores to measure and repair their calibration."""

from veracal.calibration.queries.binned import (
    AbsoluteGaps,
    BinnedGap,
    BrierByGroup,
    CorrectWrong,
)
from veracal.calibration.queries.correct_total import CorrectTotal
from veracal.calibration.queries.equations import PlattCurvature, PlattEquations
from veracal.calibration.queries.gradients import PlattGradient
from veracal.calibration.queries.parameters import ParameterGrid
from veracal.calibration.queries.records import Groups
from veracal.calibration.queries.scalars import (
    BrierGain,
    Gap,
    LossAt,
    TemperatureGradient,
)
from veracal.calibration.queries.sure import SureGaps, SureSlopes

__all__ = [
    "AbsoluteGaps",
    "BinnedGap",
    "BrierByGroup",
    "BrierGain",
    "CorrectTotal",
    "CorrectWrong",
    "Gap",
    "Groups",
    "LossAt",
    "ParameterGrid",
    "PlattCurvature",
    "PlattEquations",
    "PlattGradient",
    "SureGaps",
    "SureSlopes",
    "TemperatureGradient",
]

"""Maps fitted in the open, without privacy: references, and for records nobody must protect."""

from veracal.calibration.fitters.base import MapFitter
from veracal.calibration.fitters.beta import BetaCalibration
from veracal.calibration.fitters.binning import HistogramBinning
from veracal.calibration.fitters.classifier import CalibratedClassifier
from veracal.calibration.fitters.isotonic import IsotonicCalibration
from veracal.calibration.fitters.platt import PlattScaling
from veracal.calibration.fitters.temperature import TemperatureScaling
from veracal.calibration.fitters.two_temperatures import TwoTemperatureScaling

__all__ = [
    "BetaCalibration",
    "CalibratedClassifier",
    "HistogramBinning",
    "IsotonicCalibration",
    "MapFitter",
    "PlattScaling",
    "TemperatureScaling",
    "TwoTemperatureScaling",
]

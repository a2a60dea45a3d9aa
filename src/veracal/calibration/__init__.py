"""How far probabilities are from frequencies, and maps that bring them closer.

Figures by name are in :mod:`veracal.calibration.metrics`.
"""

from veracal.calibration.arranging import Guard
from veracal.calibration.bins import Bins
from veracal.calibration.classifier import PrivateCalibratedClassifier
from veracal.calibration.curves import ReliabilityBin, ReliabilityCurve, binary_curve, curve
from veracal.calibration.fitters import (
    BetaCalibration,
    CalibratedClassifier,
    HistogramBinning,
    IsotonicCalibration,
    PlattScaling,
    TemperatureScaling,
)
from veracal.calibration.maps import (
    Beta,
    Binned,
    Identity,
    Isotonic,
    Map,
    Platt,
    Temperature,
    load_map,
    save_map,
)
from veracal.calibration.measure import CalibrationResult, figures_for, measure
from veracal.calibration.planning import RecalibrationPlan, plan_recalibration
from veracal.calibration.private import (
    Guarded,
    MeasurementPlan,
    PrivateBinning,
    PrivateCurve,
    PrivateFigures,
    PrivateMeasurement,
    PrivatePlatt,
    PrivateTemperature,
    measure_private,
    never_worse,
    plan_measurement,
)
from veracal.calibration.streaming import StreamTotals, stream_totals

__all__ = [
    "Beta",
    "BetaCalibration",
    "Binned",
    "Bins",
    "CalibratedClassifier",
    "CalibrationResult",
    "Guard",
    "Guarded",
    "HistogramBinning",
    "Identity",
    "Isotonic",
    "IsotonicCalibration",
    "Map",
    "MeasurementPlan",
    "Platt",
    "PlattScaling",
    "PrivateBinning",
    "PrivateCalibratedClassifier",
    "PrivateCurve",
    "PrivateFigures",
    "PrivateMeasurement",
    "PrivatePlatt",
    "PrivateTemperature",
    "RecalibrationPlan",
    "ReliabilityBin",
    "ReliabilityCurve",
    "StreamTotals",
    "Temperature",
    "TemperatureScaling",
    "binary_curve",
    "curve",
    "figures_for",
    "load_map",
    "measure",
    "measure_private",
    "never_worse",
    "plan_measurement",
    "plan_recalibration",
    "save_map",
    "stream_totals",
]

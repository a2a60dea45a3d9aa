"""How far probabilities are from frequencies, and maps that bring them closer.

Figures by name are in :mod:`veracal.calibration.metrics`.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from veracal.calibration.bins import Bins
from veracal.calibration.curves import ReliabilityBin, ReliabilityCurve, binary_curve, curve
from veracal.calibration.maps import (
    Beta,
    Binned,
    Doubt,
    Identity,
    Isotonic,
    Map,
    Platt,
    Temperature,
    TwoTemperatures,
    load_map,
    save_map,
)
from veracal.calibration.measuring import CalibrationResult, figures_for, measure
from veracal.calibration.streaming import StreamTotals, stream_totals

if TYPE_CHECKING:
    from veracal.calibration.arranging import Guard
    from veracal.calibration.classifier import PrivateCalibratedClassifier
    from veracal.calibration.fitters import (
        BetaCalibration,
        CalibratedClassifier,
        HistogramBinning,
        IsotonicCalibration,
        PlattScaling,
        TemperatureScaling,
        TwoTemperatureScaling,
    )
    from veracal.calibration.planning import RecalibrationPlan, plan_recalibration
    from veracal.calibration.private import (
        Guarded,
        MeasurementPlan,
        PooledTemperature,
        PrivateBinning,
        PrivateCurve,
        PrivateFigures,
        PrivateMeasurement,
        PrivatePlatt,
        PrivateTemperature,
        PrivateTwoTemperatures,
        measure_private,
        never_worse,
        plan_measurement,
    )
    from veracal.calibration.recalibrating import recalibrate
    from veracal.calibration.recalibration import Recalibration

__all__ = [
    "Beta",
    "BetaCalibration",
    "Binned",
    "Bins",
    "CalibratedClassifier",
    "CalibrationResult",
    "Doubt",
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
    "PooledTemperature",
    "PrivateBinning",
    "PrivateCalibratedClassifier",
    "PrivateCurve",
    "PrivateFigures",
    "PrivateMeasurement",
    "PrivatePlatt",
    "PrivateTemperature",
    "PrivateTwoTemperatures",
    "Recalibration",
    "RecalibrationPlan",
    "ReliabilityBin",
    "ReliabilityCurve",
    "StreamTotals",
    "Temperature",
    "TemperatureScaling",
    "TwoTemperatureScaling",
    "TwoTemperatures",
    "binary_curve",
    "curve",
    "figures_for",
    "load_map",
    "measure",
    "measure_private",
    "never_worse",
    "plan_measurement",
    "plan_recalibration",
    "recalibrate",
    "save_map",
    "stream_totals",
]

# Fitters bring optimizers along, private ones accounting and exact noise: 60 MB that whoever
# only measures, or streams, does not need. These names are looked up when first asked for.
_LATE: Mapping[str, str] = MappingProxyType(
    {
        "BetaCalibration": "fitters",
        "CalibratedClassifier": "fitters",
        "Guard": "arranging",
        "Guarded": "private",
        "HistogramBinning": "fitters",
        "IsotonicCalibration": "fitters",
        "MeasurementPlan": "private",
        "PlattScaling": "fitters",
        "PooledTemperature": "private",
        "PrivateBinning": "private",
        "PrivateCalibratedClassifier": "classifier",
        "PrivateCurve": "private",
        "PrivateFigures": "private",
        "PrivateMeasurement": "private",
        "PrivatePlatt": "private",
        "PrivateTemperature": "private",
        "PrivateTwoTemperatures": "private",
        "Recalibration": "recalibration",
        "RecalibrationPlan": "planning",
        "TemperatureScaling": "fitters",
        "TwoTemperatureScaling": "fitters",
        "measure_private": "private",
        "never_worse": "private",
        "plan_measurement": "private",
        "plan_recalibration": "planning",
        "recalibrate": "recalibrating",
    }
)


def __getattr__(name: str) -> Any:
    """Find a name that is looked up late."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)


def __dir__() -> list[str]:
    """Name everything, looked up or not."""
    return sorted({*globals(), *__all__})

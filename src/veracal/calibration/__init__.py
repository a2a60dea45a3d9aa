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
        Inferred,
        MeasurementPlan,
        PlattPlan,
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
        plan_platt,
    )
    from veracal.calibration.private.golden import GoldenTemperature
    from veracal.calibration.private.pooled_plan import PooledPlan, plan_pooled
    from veracal.calibration.recalibrating import recalibrate
    from veracal.calibration.recalibration.result import Recalibration

__all__ = [
    "Beta",
    "BetaCalibration",
    "Binned",
    "Bins",
    "CalibratedClassifier",
    "CalibrationResult",
    "Doubt",
    "GoldenTemperature",
    "Guard",
    "Guarded",
    "HistogramBinning",
    "Identity",
    "Inferred",
    "Isotonic",
    "IsotonicCalibration",
    "Map",
    "MeasurementPlan",
    "Platt",
    "PlattPlan",
    "PlattScaling",
    "PooledPlan",
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
    "plan_platt",
    "plan_pooled",
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
        "GoldenTemperature": "private.golden",
        "Guard": "arranging",
        "Guarded": "private",
        "HistogramBinning": "fitters",
        "Inferred": "private",
        "IsotonicCalibration": "fitters",
        "MeasurementPlan": "private",
        "PlattPlan": "private",
        "PlattScaling": "fitters",
        "PooledPlan": "private.pooled_plan",
        "PooledTemperature": "private",
        "PrivateBinning": "private",
        "PrivateCalibratedClassifier": "classifier",
        "PrivateCurve": "private",
        "PrivateFigures": "private",
        "PrivateMeasurement": "private",
        "PrivatePlatt": "private",
        "PrivateTemperature": "private",
        "PrivateTwoTemperatures": "private",
        "Recalibration": "recalibration.result",
        "RecalibrationPlan": "planning",
        "TemperatureScaling": "fitters",
        "TwoTemperatureScaling": "fitters",
        "measure_private": "private",
        "never_worse": "private",
        "plan_measurement": "private",
        "plan_platt": "private",
        "plan_pooled": "private.pooled_plan",
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

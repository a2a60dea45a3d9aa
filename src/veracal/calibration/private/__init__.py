"""Calibration measured and repaired through noisy answers of whoever holds the records."""

from veracal.calibration.private.binning import PrivateBinning
from veracal.calibration.private.figures import PrivateCurve, PrivateFigures
from veracal.calibration.private.golden import GoldenTemperature
from veracal.calibration.private.guard import Guarded, guard_event, never_worse
from veracal.calibration.private.inferred import Inferred, inferred
from veracal.calibration.private.measuring import (
    PrivateMeasurement,
    measure_planned,
    measure_private,
)
from veracal.calibration.private.planning import MeasurementPlan, plan_measurement
from veracal.calibration.private.platt import PrivatePlatt
from veracal.calibration.private.platt_planning import PlattPlan, plan_platt
from veracal.calibration.private.pooled import PooledTemperature
from veracal.calibration.private.temperature import PrivateTemperature
from veracal.calibration.private.two_temperatures import PrivateTwoTemperatures

__all__ = [
    "GoldenTemperature",
    "Guarded",
    "Inferred",
    "MeasurementPlan",
    "PlattPlan",
    "PooledTemperature",
    "PrivateBinning",
    "PrivateCurve",
    "PrivateFigures",
    "PrivateMeasurement",
    "PrivatePlatt",
    "PrivateTemperature",
    "PrivateTwoTemperatures",
    "guard_event",
    "inferred",
    "measure_planned",
    "measure_private",
    "never_worse",
    "plan_measurement",
    "plan_platt",
]

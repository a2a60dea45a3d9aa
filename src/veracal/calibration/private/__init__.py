"""Private fitting and measurement of calibration."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.calibration.private.binning import PrivateBinning
    from veracal.calibration.private.golden_section import GoldenTemperature
    from veracal.calibration.private.guard import (
        GuardResult,
        InferredGuardResult,
        guard_event,
        guard_map,
        infer_guard,
    )
    from veracal.calibration.private.measurement import (
        MeasurementPlan,
        PrivateCurve,
        PrivateFigures,
        PrivateMeasurement,
        measure_planned,
        measure_private,
        plan_measurement,
    )
    from veracal.calibration.private.platt import PlattPlan, PrivatePlatt, plan_platt
    from veracal.calibration.private.pooled import PooledTemperature
    from veracal.calibration.private.temperature import PrivateTemperature
    from veracal.calibration.private.two_temperatures import PrivateTwoTemperatures

__all__ = [
    "GoldenTemperature",
    "GuardResult",
    "InferredGuardResult",
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
    "guard_map",
    "infer_guard",
    "measure_planned",
    "measure_private",
    "plan_measurement",
    "plan_platt",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "binning": ("PrivateBinning",),
        "golden_section": ("GoldenTemperature",),
        "guard": (
            "GuardResult",
            "InferredGuardResult",
            "guard_event",
            "infer_guard",
            "guard_map",
        ),
        "measurement": (
            "MeasurementPlan",
            "PrivateCurve",
            "PrivateFigures",
            "PrivateMeasurement",
            "measure_planned",
            "measure_private",
            "plan_measurement",
        ),
        "platt": (
            "PlattPlan",
            "PrivatePlatt",
            "plan_platt",
        ),
        "pooled": ("PooledTemperature",),
        "temperature": ("PrivateTemperature",),
        "two_temperatures": ("PrivateTwoTemperatures",),
    },
)

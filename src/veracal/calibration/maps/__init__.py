"""Calibration maps with public parameters."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.calibration.maps.base import CalibrationMap, Identity
    from veracal.calibration.maps.nonparametric import Binned, Isotonic
    from veracal.calibration.maps.parametric import (
        Beta,
        Platt,
        Temperature,
        TwoTemperatures,
        UniformMixing,
    )
    from veracal.calibration.maps.storage import from_json, load_map, save_map

__all__ = [
    "Beta",
    "Binned",
    "CalibrationMap",
    "Identity",
    "Isotonic",
    "Platt",
    "Temperature",
    "TwoTemperatures",
    "UniformMixing",
    "from_json",
    "load_map",
    "save_map",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "base": (
            "Identity",
            "CalibrationMap",
        ),
        "nonparametric": (
            "Binned",
            "Isotonic",
        ),
        "parametric": (
            "Beta",
            "UniformMixing",
            "Platt",
            "Temperature",
            "TwoTemperatures",
        ),
        "storage": (
            "from_json",
            "load_map",
            "save_map",
        ),
    },
)

"""Calibration maps with public parameters."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.calibration.maps.base import Identity, Map
    from veracal.calibration.maps.nonparametric import Binned, Isotonic
    from veracal.calibration.maps.parametric import (
        Beta,
        Doubt,
        Platt,
        Temperature,
        TwoTemperatures,
    )
    from veracal.calibration.maps.storage import from_json, load_map, save_map

__all__ = [
    "Beta",
    "Binned",
    "Doubt",
    "Identity",
    "Isotonic",
    "Map",
    "Platt",
    "Temperature",
    "TwoTemperatures",
    "from_json",
    "load_map",
    "save_map",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "base": (
            "Identity",
            "Map",
        ),
        "nonparametric": (
            "Binned",
            "Isotonic",
        ),
        "parametric": (
            "Beta",
            "Doubt",
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

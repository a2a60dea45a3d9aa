"""One recalibration: who is asked, how the budget is divided, the steps, the result."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.calibration.recalibration.result import Recalibration

__all__ = [
    "Recalibration",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "result": ("Recalibration",),
    },
)

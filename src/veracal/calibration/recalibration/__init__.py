"""Parts of one recalibration: who is asked, how a budget is divided, the steps, the result."""

from veracal.calibration.recalibration.result import Recalibration

__all__ = ["Recalibration"]

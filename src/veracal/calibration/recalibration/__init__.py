"""Recalibration: sources, division of the budget, plan, run and result."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.calibration.recalibration.budget import BudgetDivision
    from veracal.calibration.recalibration.plan import RecalibrationPlan, plan_recalibration
    from veracal.calibration.recalibration.result import Recalibration
    from veracal.calibration.recalibration.run import recalibrate, run_recalibration

__all__ = [
    "BudgetDivision",
    "Recalibration",
    "RecalibrationPlan",
    "plan_recalibration",
    "recalibrate",
    "run_recalibration",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "budget": ("BudgetDivision",),
        "plan": ("RecalibrationPlan", "plan_recalibration"),
        "result": ("Recalibration",),
        "run": ("recalibrate", "run_recalibration"),
    },
)

"""How much of a decision is the luck of the noise."""

from veracal.multiplicity.measures import (
    class_average,
    decision_variance,
    disagreement,
    expected_flip,
    normalized,
    pooled_pairs,
)
from veracal.multiplicity.planning import AuditPlan, plan_audit
from veracal.multiplicity.runs import Runs

__all__ = [
    "AuditPlan",
    "Runs",
    "class_average",
    "decision_variance",
    "disagreement",
    "expected_flip",
    "normalized",
    "plan_audit",
    "pooled_pairs",
]

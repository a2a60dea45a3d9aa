"""How much of a decision is the luck of the noise."""

from veracal.multiplicity.auditing import Question, audit_engine
from veracal.multiplicity.audits import audit, audit_predictions
from veracal.multiplicity.engines import Engine
from veracal.multiplicity.measures import (
    class_average,
    decision_variance,
    disagreement,
    expected_flip,
    normalized,
    pooled_pairs,
)
from veracal.multiplicity.planning import AuditPlan, plan_audit
from veracal.multiplicity.released import (
    Arbitrariness,
    objective_certificate,
    output_arbitrariness,
)
from veracal.multiplicity.results import Audit
from veracal.multiplicity.runs import Runs

__all__ = [
    "Arbitrariness",
    "Audit",
    "AuditPlan",
    "Engine",
    "Question",
    "Runs",
    "audit",
    "audit_engine",
    "audit_predictions",
    "class_average",
    "decision_variance",
    "disagreement",
    "expected_flip",
    "normalized",
    "objective_certificate",
    "output_arbitrariness",
    "plan_audit",
    "pooled_pairs",
]

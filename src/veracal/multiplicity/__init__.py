"""Predictive multiplicity: how often re-training changes a decision."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.multiplicity.auditing import (
        AuditSettings,
        audit,
        audit_engine,
        audit_predictions,
        engine_for,
    )
    from veracal.multiplicity.engines.base import (
        VARIED,
        AuditEngine,
        Kind,
        Seed,
        StoredEngine,
        Streams,
    )
    from veracal.multiplicity.engines.linear import DPSGDEngine, ObjectiveEngine, OutputEngine
    from veracal.multiplicity.engines.retraining import RetrainEngine, RunContext
    from veracal.multiplicity.measures import (
        AuditPlan,
        achieved_errors,
        class_averaged_disagreement,
        decision_variance,
        disagreement,
        expected_flip,
        normalized_disagreement,
        plan_audit,
        pooled_disagreement,
    )
    from veracal.multiplicity.results import INTERNAL, Audit, GroupDisagreement, Plane
    from veracal.multiplicity.runs import Runs

__all__ = [
    "INTERNAL",
    "VARIED",
    "Audit",
    "AuditEngine",
    "AuditPlan",
    "AuditSettings",
    "DPSGDEngine",
    "GroupDisagreement",
    "Kind",
    "ObjectiveEngine",
    "OutputEngine",
    "Plane",
    "RetrainEngine",
    "RunContext",
    "Runs",
    "Seed",
    "StoredEngine",
    "Streams",
    "achieved_errors",
    "audit",
    "audit_engine",
    "audit_predictions",
    "class_averaged_disagreement",
    "decision_variance",
    "disagreement",
    "engine_for",
    "expected_flip",
    "normalized_disagreement",
    "plan_audit",
    "pooled_disagreement",
]

__getattr__, __dir__ = attach(__name__)

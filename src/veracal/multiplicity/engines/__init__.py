"""Engines that repeat a training."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.multiplicity.engines.base import (
        VARIED,
        AuditEngine,
        Seed,
        StoredEngine,
        Streams,
    )
    from veracal.multiplicity.engines.linear import DPSGDEngine, ObjectiveEngine, OutputEngine
    from veracal.multiplicity.engines.retraining import RetrainEngine, RunContext

__all__ = [
    "VARIED",
    "AuditEngine",
    "DPSGDEngine",
    "ObjectiveEngine",
    "OutputEngine",
    "RetrainEngine",
    "RunContext",
    "Seed",
    "StoredEngine",
    "Streams",
]

__getattr__, __dir__ = attach(__name__)

"""Typed results as pages, tables, charts and the model card."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.report.audit_page import render_audit
    from veracal.report.audit_results import AuditResults, audit_notes, audit_tables
    from veracal.report.card import model_card
    from veracal.report.page import render
    from veracal.report.reliability import ReliabilityDisplay
    from veracal.report.results import (
        FIGURES,
        MOST,
        STAGES,
        CurveData,
        DataFacts,
        ExactFigures,
        LedgerLine,
        LedgerSummary,
        MeasurementRecord,
        Results,
        UnreleasedFigures,
        drawable,
    )

__all__ = [
    "FIGURES",
    "MOST",
    "STAGES",
    "AuditResults",
    "CurveData",
    "DataFacts",
    "ExactFigures",
    "LedgerLine",
    "LedgerSummary",
    "MeasurementRecord",
    "ReliabilityDisplay",
    "Results",
    "UnreleasedFigures",
    "audit_notes",
    "audit_tables",
    "drawable",
    "model_card",
    "render",
    "render_audit",
]

__getattr__, __dir__ = attach(__name__)

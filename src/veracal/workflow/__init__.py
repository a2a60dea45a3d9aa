"""The whole job: config, run, remeasurement, audit and comparison."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.workflow.auditing import AuditRun, OnRuns, audit_config, keep_place
    from veracal.workflow.charging import (
        OnNotice,
        ledger_path,
        open_data_ledger,
        partitions_path,
    )
    from veracal.workflow.comparing import Configuration, check_ways, compare_ways, is_begun
    from veracal.workflow.config import (
        Config,
        DataConfig,
        PrivacyConfig,
        RecalibrationConfig,
        check_used,
    )
    from veracal.workflow.job import today
    from veracal.workflow.local_federation import (
        STUDY_EPSILON,
        Courier,
        Hospital,
        LocalFederation,
        exists_local,
        make_local,
        open_local,
    )
    from veracal.workflow.remeasuring import found_near, measure_again
    from veracal.workflow.results import RESULTS, results_of, write_recalibrated
    from veracal.workflow.running import OnProgress, RunResult, run
    from veracal.workflow.steps import TEST

__all__ = [
    "RESULTS",
    "STUDY_EPSILON",
    "TEST",
    "AuditRun",
    "Config",
    "Configuration",
    "Courier",
    "DataConfig",
    "Hospital",
    "LocalFederation",
    "OnNotice",
    "OnProgress",
    "OnRuns",
    "PrivacyConfig",
    "RecalibrationConfig",
    "RunResult",
    "audit_config",
    "check_used",
    "check_ways",
    "compare_ways",
    "exists_local",
    "found_near",
    "is_begun",
    "keep_place",
    "ledger_path",
    "make_local",
    "measure_again",
    "open_data_ledger",
    "open_local",
    "partitions_path",
    "results_of",
    "run",
    "today",
    "write_recalibrated",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "auditing": (
            "AuditRun",
            "OnRuns",
            "audit_config",
            "keep_place",
        ),
        "charging": (
            "OnNotice",
            "ledger_path",
            "open_data_ledger",
            "partitions_path",
        ),
        "comparing": (
            "Configuration",
            "check_ways",
            "compare_ways",
            "is_begun",
        ),
        "config": (
            "Config",
            "DataConfig",
            "PrivacyConfig",
            "RecalibrationConfig",
            "check_used",
        ),
        "job": ("today",),
        "local_federation": (
            "Courier",
            "STUDY_EPSILON",
            "Hospital",
            "LocalFederation",
            "exists_local",
            "make_local",
            "open_local",
        ),
        "remeasuring": (
            "found_near",
            "measure_again",
        ),
        "results": (
            "RESULTS",
            "results_of",
            "write_recalibrated",
        ),
        "running": (
            "OnProgress",
            "RunResult",
            "run",
        ),
        "steps": ("TEST",),
    },
)

"""The whole job: config, run, remeasurement, audit and comparison."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.workflow.auditing import AuditRun, OnRuns, audit_config, runs_path
    from veracal.workflow.charging import (
        OnNotice,
        ledger_path,
        open_data_ledger,
        partitions_path,
    )
    from veracal.workflow.config import (
        Config,
        Configuration,
        DataConfig,
        MeasurementConfig,
        ModelConfig,
        PrivacyConfig,
        RecalibrationConfig,
        check_configurations,
        check_settings_apply,
        is_unfinished,
    )
    from veracal.workflow.local_federation import (
        STUDY_EPSILON,
        Courier,
        Hospital,
        LocalFederation,
        exists_local,
        make_local,
        open_local,
    )
    from veracal.workflow.planning import today
    from veracal.workflow.records import TEST
    from veracal.workflow.results import RESULTS, load_results, write_recalibrated
    from veracal.workflow.running import (
        OnProgress,
        RunResult,
        compare,
        find_table,
        remeasure,
        run,
    )

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
    "MeasurementConfig",
    "ModelConfig",
    "OnNotice",
    "OnProgress",
    "OnRuns",
    "PrivacyConfig",
    "RecalibrationConfig",
    "RunResult",
    "audit_config",
    "check_configurations",
    "check_settings_apply",
    "compare",
    "exists_local",
    "find_table",
    "is_unfinished",
    "ledger_path",
    "load_results",
    "make_local",
    "open_data_ledger",
    "open_local",
    "partitions_path",
    "remeasure",
    "run",
    "runs_path",
    "today",
    "write_recalibrated",
]

__getattr__, __dir__ = attach(__name__)

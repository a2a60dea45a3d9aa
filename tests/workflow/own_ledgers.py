"""Runs whose ledger is next to their output, so that tests share none."""

from pathlib import Path
from typing import Any

from veracal import workflow as pipeline


def run(config: pipeline.Config, out: Path, **choices: Any) -> pipeline.RunResult:
    """As :func:`veracal.workflow.run`."""
    return pipeline.run(config, out, **{"ledger": f"{out}.ledger", **choices})


def remeasure(folder: Path, **choices: Any) -> pipeline.RunResult:
    """As :func:`veracal.workflow.remeasure`."""
    return pipeline.remeasure(folder, **{"ledger": f"{folder}.ledger", **choices})


def compare(
    config: pipeline.Config, ways: Any, out: Path, **choices: Any
) -> tuple[pipeline.RunResult, ...]:
    """As :func:`veracal.workflow.compare`."""
    return pipeline.compare(config, ways, out, **{"ledger": f"{out}.ledger", **choices})

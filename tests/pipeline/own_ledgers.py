"""Runs whose ledger is beside their output, so that tests share none."""

from pathlib import Path
from typing import Any

from veracal import workflow as pipeline


def run(config: pipeline.Config, out: Path, **choices: Any) -> pipeline.RunResult:
    """As :func:`veracal.workflow.run`."""
    return pipeline.run(config, out, **{"ledger": f"{out}.ledger", **choices})


def measure_again(folder: Path, **choices: Any) -> pipeline.RunResult:
    """As :func:`veracal.workflow.measure_again`."""
    return pipeline.measure_again(folder, **{"ledger": f"{folder}.ledger", **choices})


def compare_ways(
    config: pipeline.Config, ways: Any, out: Path, **choices: Any
) -> tuple[pipeline.RunResult, ...]:
    """As :func:`veracal.workflow.compare_ways`."""
    return pipeline.compare_ways(config, ways, out, **{"ledger": f"{out}.ledger", **choices})

"""Repeated runs: which are made together, and what is read from their logs."""

import subprocess
import sys

import pytest

from tests.tools import repeat_runs
from tests.tools.repeat_runs import Run, list_runs, make_runs


def test_quiet_suites_run_alone_and_busy_ones_together_with_the_gates():
    runs = list_runs(10, 5)
    assert runs[:5] == [[Run("suite", number, busy=False)] for number in range(1, 6)]
    assert runs[5:] == [
        [Run("suite", 5 + number, busy=True), Run("gates", number, busy=True)]
        for number in range(1, 6)
    ]
    assert list_runs(1, 2)[1:] == [[Run("gates", 1, busy=True)], [Run("gates", 2, busy=True)]]


@pytest.mark.parametrize("what", ["suite", "gates"])
def test_the_command_line_of_a_busy_run_is_accepted(what: str):
    command = Run(what, 7, busy=True).command(2)
    assert command[-2:] == ["--shuffle", "7"]
    instead = {"suite": ["--version"], "gates": ["--list", "--gate", "tails"]}[what]
    ended = subprocess.run([*command, *instead], cwd=repeat_runs.ROOT, capture_output=True)
    assert ended.returncode == 0, ended.stderr


def test_outcomes_hold_exit_codes_closing_lines_and_failures(tmp_path, monkeypatch):
    monkeypatch.setattr(repeat_runs, "NOTES", tmp_path / "repeat_runs.jsonl")
    printed = {
        "suite": "FAILED tests/a.py::test\\n1 failed, 2 passed in 3 s",
        "gates": "5 passed",
    }

    def command(run: Run, workers: int) -> list[str]:
        code = int(run.what == "suite")
        return [sys.executable, "-c", f"print('{printed[run.what]}'); raise SystemExit({code})"]

    monkeypatch.setattr(Run, "command", command)
    runs = [Run("suite", 6, busy=False), Run("gates", 1, busy=False)]
    outcomes = {one.what: one for one in make_runs(runs, "abc", 1)}
    assert outcomes["suite"].code == 1
    assert outcomes["suite"].failures == ("FAILED tests/a.py::test",)
    assert outcomes["suite"].closing == "1 failed, 2 passed in 3 s"
    assert (outcomes["gates"].code, outcomes["gates"].failures) == (0, ())
    assert "1 failed, 2 passed" in repeat_runs.summarize(list(outcomes.values()))

"""Flower's settings: no telemetry, no installation."""

import os
import subprocess
import sys

import pytest

from veracal.federation.flower.wire import environment, switch_off

pytestmark = pytest.mark.full


def test_the_callers_flower_settings_are_removed(monkeypatch, tmp_path):
    monkeypatch.setenv("FLWR_INTERNAL_GRPC_CONTROL_API", "1")
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.setenv("OTHER", "kept")
    fields = environment(tmp_path)
    assert fields["OTHER"] == "kept"
    assert {name: value for name, value in fields.items() if name.startswith("FLWR_")} == {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_HOME": str(tmp_path),
    }


def test_this_process_has_the_same_settings(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "environ", {"FLWR_X": "1", "A": "b"})
    switch_off(tmp_path)
    assert os.environ == environment(tmp_path)


def test_flower_is_imported_after_its_settings(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "import veracal.federation.flower.supernode, veracal.federation.flower.transport\n"
        "assert 'flwr' not in sys.modules\n"
        "from veracal.federation.flower.wire import switch_off\n"
        "from veracal.federation.flower.wire import flower\n"
        "switch_off(Path(sys.argv[1])); flower()\n"
        "from flwr.supercore import telemetry\n"
        "assert telemetry.FLWR_TELEMETRY_ENABLED == '0'\n"
    )
    home = tmp_path / "home"
    home.mkdir()
    variables = dict(os.environ, HOME=str(home), FLWR_TELEMETRY_ENABLED="1")
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=variables)
    assert list(home.iterdir()) == []

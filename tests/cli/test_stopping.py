"""A run that is stopped, or runs out of disk: a line, nothing half-written, nothing lost."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

from tests.cli.sample_tables import write
from veracal.artifact import PrivateClassifier
from veracal.data import scan
from veracal.ledger import Ledger

CONFIG = """\
format = 1
[data]
source = "visits.csv"
schema = "visits.toml"
[privacy]
epsilon = 8
[model]
epochs = {epochs}
"""
LOSING = """\
import signal, time, typer
try:
    for _ in range(TIMES):
        signal.raise_signal(signal.SIGINT)
except BaseException:
    pass
app = typer.Typer()
@app.command()
def fit() -> None:
    time.sleep(5)
    print("went on")
"""


@pytest.fixture
def command(tmp_path):
    """A command line in a folder with a table whose training takes long or not."""
    write(tmp_path)

    def words(epochs):
        (tmp_path / "run.toml").write_text(CONFIG.format(epochs=epochs))
        main = "from veracal.cli import main; main()"
        paid = ["--out", "model", "--ledger", "model.ledger"]
        return [sys.executable, "-c", main, "fit", "--config", "run.toml", *paid]

    return words


def list_output(folder):
    """Names of what a run has left in a folder, but for the files of its ledger."""
    given = {"visits.csv", "visits.toml", "run.toml", "cache"}
    names = {path.name for path in folder.iterdir()} - given
    return {name for name in names if not name.startswith("model.ledger")}


def test_control_c_during_training(command, tmp_path):
    """The real signal: exit code 1, one line, no model, a reservation, nothing locked."""
    process = subprocess.Popen(command(2e4), stderr=subprocess.PIPE, text=True)
    ledger, end = Path("model.ledger"), time.monotonic() + 240
    while not (ledger.exists() and Ledger(ledger).pending()) and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 1 and "Repeat the command" in err
    assert len(err.splitlines()) == 1 and "Traceback" not in err
    assert list_output(tmp_path) == set()
    pending = Ledger("model.ledger").pending()  # the same command takes it up
    assert [entry.purpose for entry in pending] == ["training and map"]


@pytest.mark.parametrize(("times", "code"), [(1, 130), (2, -signal.SIGINT)])
def test_control_c_during_the_import_of_a_compiled_module(times, code, tmp_path):
    """While a module is imported: no error of that module's, and no going on."""
    (tmp_path / "losing.py").write_text(LOSING.replace("TIMES", str(times)))
    main = (
        "import sys, veracal.cli as cli; sys.path.insert(0, '.'); "
        "cli.COMMANDS = {'fit': 'losing'}; cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", main, "fit"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == code and "Traceback" not in done.stderr and not done.stdout


def limited(size):
    """Let no file of a process grow beyond a size: what a full disk does to it."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_full_disk_for_the_ledger(command, tmp_path):
    done = subprocess.run(command(5), capture_output=True, text=True, preexec_fn=limited(8_000))
    assert done.returncode == 1 and not done.stdout
    assert "has free space" in done.stderr and len(done.stderr.splitlines()) == 1
    assert list_output(tmp_path) == set()


def test_a_full_disk_for_the_report(run, command, tmp_path):
    """What was paid for is in the ledger; with more room the command completes."""
    done = subprocess.run(
        command(5), capture_output=True, text=True, preexec_fn=limited(300_000)
    )
    assert done.returncode == 1 and not done.stdout
    assert "expected a writable folder" in done.stderr and "repeat the command" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list_output(tmp_path) == set()
    before = Ledger("model.ledger").head
    paid = ("--out", "model", "--ledger", "model.ledger")
    code, _, _ = run("fit", "--config", "run.toml", *paid)
    assert code == 0 and Ledger("model.ledger").head == before
    assert PrivateClassifier.load("model").private_


def test_a_table_that_is_deleted_before_it_is_read(run, command, tmp_path):
    command(5)

    def vanishing(*given, **more):
        Path("visits.csv").unlink()
        return scan(*given, **more)

    with mock.patch("veracal.data.loading.scan", vanishing):
        code, out, err = run("fit", "--config", "run.toml", "--out", "model")
    assert code == 1 and not out and len(err.splitlines()) == 1 and "visits.csv" in err
    assert list_output(tmp_path) == set()


def test_a_read_only_folder(run, command, tmp_path, monkeypatch):
    command(5)
    (tmp_path / "locked").mkdir()
    allowed = os.access

    def access(path, *mode, **more):  # root can write anywhere, so simulate a refusal
        return Path(path) != Path("locked") and allowed(path, *mode, **more)

    monkeypatch.setattr(os, "access", access)
    words = ("--config", "run.toml", "--out", "locked/model", "--ledger", "here.ledger")
    code, out, err = run("fit", *words)
    assert code == 1 and not out and "no permission" in err and len(err.splitlines()) == 1
    assert list_output(tmp_path) == {"locked"} and list(Path("locked").iterdir()) == []

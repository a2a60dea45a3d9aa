"""Interrupted fits resume under one charge and with fresh noise."""

import fcntl
import json
import os
import re
import signal
import stat
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save
from safetensors.torch import load_file
from torch import nn

from tests.neural.fits import X, Y, model, network
from veracal.accounting import Budget
from veracal.data import Dataset
from veracal.errors import ConflictError, DataError
from veracal.ledger import Ledger, open_ledger
from veracal.mechanisms import (
    DPSGD,
    SGD,
    Adam,
    Flat,
    GlobalAdapt,
    Momentum,
    Poisson,
    Step,
    StepProgress,
)
from veracal.neural.gradient_sums import Layout, NetworkSums
from veracal.neural.run import _METADATA_KEY, Checkpoint, NoisySumMonitor
from veracal.queries import Curator
from veracal.training import ExponentialAverage


class BrokenOffError(Exception):
    pass


@contextmanager
def broken_off(at):
    """Interrupt every fit while the gradients of a step are summed."""
    call, steps = NetworkSums.__call__, []

    def stop(self, weights, rows, clip):
        steps.append(1)
        if len(steps) > at:
            raise BrokenOffError
        return call(self, weights, rows, clip)

    with mock.patch.object(NetworkSums, "__call__", stop), pytest.raises(BrokenOffError):
        yield


@contextmanager
def record_steps():
    """Record the steps that are taken inside the block."""
    steps, note = list[Step](), NoisySumMonitor.record

    def spied(self, step):
        steps.append(step)
        note(self, step)

    with mock.patch.object(NoisySumMonitor, "record", spied):
        yield steps


@pytest.mark.parametrize("optimizer", [SGD(0.1), Momentum(0.1), Adam(0.01)], ids=repr)
@pytest.mark.parametrize("average", [0.0, 0.8, ExponentialAverage(0.5)], ids=repr)
def test_an_interrupted_fit_resumes(tmp_path, optimizer, average):
    path = tmp_path / "run.safetensors"
    settings = {
        "checkpoint": path,
        "checkpoint_every": 2,
        "optimizer": optimizer,
        "average": average,
    }
    settings |= {"steps": 7, "clip": GlobalAdapt(0.5, 1.0), "sampling_rate": 1.0}
    with broken_off(5):
        model(**settings).fit(X, Y)
    assert path.exists()
    with record_steps() as steps:
        fitted = model(random_state=1, **settings).fit(X, Y)
    assert [step.number for step in steps] == [4, 5, 6]
    assert fitted.n_iter_ == 7
    assert not list(tmp_path.iterdir())


# A threshold that moves by what it counts, with noise too small to see.
COUNTED = GlobalAdapt(0.1, 50.0, rate=1.5, count_noise=1e-6)


@pytest.mark.parametrize("clip", [0.1, COUNTED], ids=["flat", "counted"])
def test_an_interrupted_run_equals_an_uninterrupted_one(tmp_path, clip):
    """Without noise, both give the same weights."""
    settings = {
        "steps": 6,
        "sampling_rate": 1.0,
        "optimizer": Adam(0.05),
        "average": ExponentialAverage(0.7),
    }
    settings |= {"not_private": "clipping only", "clip": clip}
    whole = model(**settings).fit(X, Y)
    settings |= {"checkpoint": tmp_path / "run", "checkpoint_every": 2}
    with broken_off(5):
        model(**settings).fit(X, Y)
    parts = model(**settings).fit(X, Y)
    np.testing.assert_allclose(parts.logits(X), whole.logits(X), atol=1e-6)


def changed_file(path, tensors=None, **settings):
    """Tamper with a checkpoint."""
    with safe_open(str(path), "numpy") as file:
        about = json.loads(file.metadata()[_METADATA_KEY])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    content = {_METADATA_KEY: json.dumps({**about, **settings})}
    path.write_bytes(save({**arrays, **(tensors or {})}, metadata=content))


@pytest.mark.parametrize(
    ("tensors", "options", "match"),
    [
        ({}, {"steps": 100}, "steps from 0 to 5"),
        ({}, {"steps": -3}, "steps from 0 to 5"),
        ({}, {"steps": 2.7}, "steps from 0 to 5"),
        ({}, {"steps": None}, "steps from 0 to 5"),
        ({}, {"threshold": None}, "threshold"),
        ({}, {"threshold": -1.0}, "threshold"),
        ({"weights": np.zeros(3, np.float32)}, {}, "float32 of shape"),
        ({"weights": np.zeros(23)}, {}, "float32 of shape"),
        ({"weights": np.full(23, np.nan, np.float32)}, {}, "finite"),
        ({"state.0": np.zeros(2, np.float32)}, {}, "state of this optimizer"),
    ],
)
def test_the_contents_of_a_checkpoint_are_checked(tmp_path, tensors, options, match):
    path = tmp_path / "run"
    settings = {"checkpoint": path, "checkpoint_every": 1, "steps": 5, "sampling_rate": 1.0}
    settings |= {"optimizer": Momentum(0.1), "clip": COUNTED}
    with broken_off(2):
        model(**settings).fit(X, Y)
    changed_file(path, tensors, **options)
    with pytest.raises(DataError, match=match):
        model(**settings).fit(X, Y)


def test_a_checkpoint_belongs_to_one_run(tmp_path):
    path = tmp_path / "run.safetensors"
    settings = {"checkpoint": path, "checkpoint_every": 1, "steps": 5, "sampling_rate": 1.0}
    with broken_off(2):
        model(**settings).fit(X, Y)
    for changed in (
        {"steps": 6},
        {"optimizer": 0.3},
        {"average": 0.5},
        {"module": nn.Linear(4, 2)},
        {"module": nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))},
        {"prepare": lambda rows: torch.from_numpy(rows)},
    ):
        with pytest.raises(DataError, match="another (event|settings)"):
            model(**{**settings, **changed}).fit(X, Y)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="another or a truncated file"):
        model(**settings).fit(X, Y)


def test_a_checkpoint_contains_no_generator_state(tmp_path):
    path = tmp_path / "run.safetensors"
    settings = {
        "checkpoint": path,
        "checkpoint_every": 1,
        "optimizer": Adam(0.1),
        "sampling_rate": 1.0,
    }
    with broken_off(1):
        model(**settings).fit(X, Y)
    with safe_open(str(path), "numpy") as file:
        assert sorted(file.keys()) == ["state.0", "state.1", "weights"]
        settings = file.metadata()["veracal"]
    assert set(re.findall(r'"(\w+)":', settings)) >= {"event", "paid", "steps", "settings"}
    assert "seed" not in settings and "generator" not in settings


def test_settings_that_cannot_resume_are_rejected(tmp_path):
    for changed, match in (
        ({"on_step": lambda model, step: None}, "no hook"),
        ({"module": lambda: nn.Linear(4, 2)}, "Expected a module"),
    ):
        with pytest.raises(ValueError, match=match):
            model(checkpoint=tmp_path / "run", **changed).fit(X, Y)
    with pytest.raises(ValueError, match="checkpoint to name a file, got 3"):
        model(checkpoint=3).fit(X, Y)


def test_a_checkpoint_is_readable_by_its_owner_only(tmp_path):
    path = tmp_path / "run"
    left = tmp_path / ".run.part"  # of a process that was killed, by an earlier version
    left.write_bytes(b"half")
    left.chmod(0o644)
    old = os.umask(0)
    try:
        with broken_off(2):
            model(checkpoint=path, checkpoint_every=1).fit(X, Y)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [result.name for result in tmp_path.iterdir()] == ["run"]


def test_step_counts_may_be_reported_with_a_checkpoint(tmp_path):
    counts = []
    progress = StepProgress(lambda done, total: counts.append((done, total)))
    model(checkpoint=tmp_path / "run", on_step=progress, steps=3).fit(X, Y)
    assert counts == [(1, 3), (2, 3), (3, 3)]


@pytest.fixture
def charged_fit(tmp_path):
    """A curator, and settings of a fit with a checkpoint."""
    ledger = open_ledger(tmp_path / "a.ledger", Budget(500.0, 1e-2), kind="open")
    holder = Curator(Dataset(X, Y, (0, 1), size=60, name="rows"), ledger)
    settings = {"checkpoint": tmp_path / "run", "checkpoint_every": 1, "random_state": None}
    return holder, {**settings, "noise_multiplier": 3.0, "sampling_rate": 1.0}


def test_a_curator_charges_an_interrupted_fit_once(charged_fit):
    holder, settings = charged_fit
    with pytest.raises(ValueError, match="request="):
        holder.fit(model(**settings))
    with broken_off(2):
        holder.fit(model(**settings), request="one")
    fitted = holder.fit(model(**settings), request="one")
    assert fitted.private_ and fitted.n_iter_ == 4
    again = holder.fit(model(**settings), request="one")
    assert len(list(holder.ledger.entries())) == 1
    assert np.array_equal(again.logits(X), fitted.logits(X))  # the model that was paid for
    with pytest.raises(ConflictError):
        holder.fit(model(**{**settings, "steps": 9}), request="one")


@pytest.mark.parametrize("steps", [0, 2])
def test_one_charge_gives_one_model(charged_fit, tmp_path, steps):
    holder, settings = charged_fit
    with broken_off(steps):
        holder.fit(model(**settings), request="one")
    with pytest.raises(ValueError, match="there is none at"):
        holder.fit(model(**{**settings, "checkpoint": tmp_path / "other"}), request="one")
    with pytest.raises(ValueError, match="before 'two' is charged"):
        holder.fit(model(**settings), request="two")
    other = Curator(Dataset(X, Y, (0, 1), size=60, name="rows"), holder.ledger, version="2")
    with pytest.raises(DataError, match="this charge pays for"):
        other.fit(model(**settings), request="one")
    (tmp_path / "run").unlink()
    with pytest.raises(ValueError, match="there is none at"):
        holder.fit(model(**settings), request="one")
    with pytest.raises(ValueError, match="without a checkpoint"):
        holder.fit_once(model(**settings), lambda model: b"", request="x", body=b"")
    assert len(list(holder.ledger.entries())) == 1


def test_a_run_is_locked_against_other_processes(charged_fit):
    holder, settings = charged_fit
    with broken_off(1):
        holder.fit(model(**settings), request="one")
    lock = settings["checkpoint"].with_name(".run.lock")
    with lock.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process"):
            holder.fit(model(**settings), request="one")
    assert holder.fit(model(**settings), request="one").n_iter_ == 4


def test_a_lock_file_that_was_removed_before_it_was_locked_is_not_used(tmp_path):
    """A process that opened it before the run ended finds it unlocked, and a new one exists."""
    descent = DPSGD(Poisson(0.5), Flat(1.0), SGD(0.1), 1.0, 5, 10.0)
    first, late, new = (
        Checkpoint(tmp_path / "run", descent, Layout(network()), {}, "one") for _ in range(3)
    )
    flock, files = fcntl.flock, []
    with ExitStack() as stack, ExitStack() as held:
        held.enter_context(first.lock_run())

        def delayed(file, how):
            files.append(file)
            if len(files) == 1:  # it is open, and not yet locked
                held.close()
                stack.enter_context(new.lock_run())
            flock(file, how)

        waits = pytest.raises(DataError, match="another process")
        with mock.patch("fcntl.flock", delayed), waits, late.lock_run():
            pass
        assert [one.name for one in tmp_path.iterdir()] == [".run.lock"]
        with pytest.raises(DataError, match="another process"), first.lock_run():
            pass
    with late.lock_run(), pytest.raises(DataError, match="another process"), new.lock_run():
        pass
    assert not list(tmp_path.iterdir())


def test_the_lock_of_another_run_is_not_removed(charged_fit):
    """If a lock file was removed, its holder does not remove the next one."""
    holder, settings = charged_fit
    lock = settings["checkpoint"].with_name(".run.lock")
    call = NetworkSums.__call__

    def removed(self, weights, rows, clip):
        lock.unlink()
        lock.write_text("of another")
        return call(self, weights, rows, clip)

    with mock.patch.object(NetworkSums, "__call__", removed):
        holder.fit(model(**settings), request="one")
    assert lock.read_text() == "of another"


def test_repeated_steps_have_fresh_noise(tmp_path):
    """A lost step is repeated from the same weights on the same records."""
    settings = {"checkpoint": tmp_path / "run", "checkpoint_every": 3, "steps": 5}
    settings |= {"random_state": None, "sampling_rate": 1.0}
    with record_steps() as first, broken_off(4):
        model(**settings).fit(X, Y)
    with record_steps() as second:
        model(**settings).fit(X, Y)
    assert [step.number for step in first] == [0, 1, 2, 3]
    assert [step.number for step in second] == [3, 4]
    lost, again = first[3].noisy_sum, second[0].noisy_sum
    assert not np.isclose(lost, again).any()
    spread = np.std(lost - again)  # of two draws of noise 1, and nothing else
    assert 0.7 < spread < 2.5


def test_a_fit_that_is_killed_repeatedly_is_charged_once_and_reuses_no_noise(tmp_path):
    """By SIGKILL: in a step, and before and after a checkpoint is replaced."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.neural.killed_fits", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # no threads before a fork
    )
    assert [int(code) for code in done.stdout.split()] == [-signal.SIGKILL] * 3 + [0, 0]
    steps = [json.loads(line) for line in (tmp_path / "steps").read_text().splitlines()]
    by_life = [[one["step"] for one in steps if one["life"] == i] for i in range(5)]
    assert by_life == [[0, 1, 2, 3, 4], [4, 5], [4, 5], [6, 7], []]
    sums = np.array([one["sum"] for one in steps])
    for i, one in enumerate(sums):  # steps 4 and 5 were repeated from the same weights
        assert not np.isclose(one, np.delete(sums, i, axis=0), rtol=1e-9, atol=0).any()
    assert len(list(Ledger(tmp_path / "a.ledger").entries())) == 1
    first, again = (load_file(tmp_path / f"weights {i}") for i in (3, 4))
    assert set(first) == set(network().state_dict())  # no prefixes
    network().load_state_dict(first)
    assert all(torch.equal(one, again[name]) for name, one in first.items())
    assert {one.name for one in tmp_path.iterdir() if "run" in one.name} == {"run"}

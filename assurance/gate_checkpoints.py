"""A checkpoint is readable by its owner only, while it is written and afterwards.

A network is fitted under one charge, with a checkpoint after every step, by a process that
masks no permission. Whenever the checkpoint reaches the disk, and in the end, every file beside
the ledger must be readable by its owner only, even if a killed process left a readable one.
"""

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
from torch import nn

from veracal.accounting import Budget
from veracal.data import Dataset
from veracal.ledger import open_ledger
from veracal.neural import PrivateNetwork
from veracal.neural import run as checkpoints
from veracal.queries import Curator

NAME = "checkpoints"
STEPS = 3
Replace = Callable[[Path, bytes], None]


def as_any_file(path: Path, content: bytes) -> None:
    """Write with the permissions of any new file, as before."""
    made = path.with_name(f".{path.name}.part")
    with made.open("wb") as file:
        file.write(content)
        file.flush()
        checkpoints.os.fsync(file.fileno())
    made.replace(path)


def afterwards(path: Path, content: bytes) -> None:
    """Write as any file, and take the permissions away once it is written."""
    as_any_file(path, content)
    path.chmod(0o600)


def write_over_old_file(path: Path, content: bytes) -> None:
    """Write over what a killed process left, with the permissions that has."""
    made = path.with_name(f".{path.name}.part")
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        checkpoints.os.fsync(file.fileno())
    made.replace(path)


CORRECT: Replace = checkpoints._write_atomically
MUTANTS: dict[str, Replace] = {
    "permissions of any new file, as before": as_any_file,
    "permissions taken away afterwards": afterwards,
    "written over what was left": write_over_old_file,
}


def run(subject: Replace, *, long: bool) -> str:
    """Fit, and check every file each time that one is synchronized; ``long`` is ignored."""
    looks = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path, left = folder / "run", folder / ".run.part"
        left.write_bytes(b"half of a checkpoint")
        left.chmod(0o644)
        ledger = open_ledger(folder / "a.ledger", Budget(500.0, 1e-2), kind="open")

        def look(handle: int) -> None:
            nonlocal looks
            looks += 1
            os.fsync(handle)
            check(folder)

        shown = SimpleNamespace(**{**vars(os), "fsync": look})
        old = os.umask(0)
        try:
            with (
                mock.patch.object(checkpoints, "_write_atomically", subject),
                mock.patch.object(checkpoints, "os", shown),
            ):
                fit(Curator(records(), ledger), path)
        finally:
            os.umask(old)
        check(folder)
        found = sorted(one.name for one in folder.iterdir())
        assert found == ["a.ledger", "run"], f"a fit left {found}"
        assert len(ledger.entries()) == 1
    assert looks > STEPS, "the checkpoint was not written after every step"
    return f"{looks} checkpoints, none readable by others"


def records() -> Dataset:
    """A few rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3)).astype(np.float32)
    return Dataset(X, (X[:, 0] > 0).astype(np.int64), (0, 1), size=40, name="rows")


def fit(holder: Curator, path: Path) -> None:
    """A fit that could be broken off after every step."""
    model = PrivateNetwork(
        nn.Linear(3, 2),
        epsilon=None,
        delta=1e-3,
        noise_multiplier=3.0,
        steps=STEPS,
        sampling_rate=1.0,
        checkpoint=path,
        checkpoint_every=1,
        gradients="functional",
    )
    holder.fit(model, request="one")


def check(folder: Path) -> None:
    """Every file is readable by its owner only, except for the empty lock file."""
    for one in folder.iterdir():
        mode = stat.S_IMODE(one.stat().st_mode)
        if one.suffix != ".lock":
            assert not mode & 0o077, f"{one.name} has the permissions {mode:03o}"

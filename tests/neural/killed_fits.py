"""Fits of one request; all but the last two are killed: ``python -m … FOLDER``.

Each is a separate process, forked from one that has imported everything. A test reads what
they leave in the folder.
"""

import json
import os
import signal
import sys
from pathlib import Path
from unittest import mock

from safetensors.torch import save_file

from tests.neural.fits import X, Y, model
from veracal.accounting import Budget
from veracal.data import Dataset
from veracal.ledger import Ledger, open_ledger
from veracal.mechanisms import Adam
from veracal.neural.gradient_sums import NetworkSums
from veracal.neural.run import NoisySumMonitor
from veracal.queries import Curator

STEPS, EVERY = 8, 2


def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def after(function, calls):
    """Call the function so many times; then kill the process."""
    outputs = []

    def called(*given, **settings):
        outputs.append(1)
        return function(*given, **settings) if len(outputs) <= calls else killed()

    return called


def replaced_and_killed(path, target, replace=Path.replace):
    replace(path, target)
    killed()


LIVES = (
    # In the midst of a step, beyond the last checkpoint.
    lambda: mock.patch.object(NetworkSums, "__call__", after(NetworkSums.__call__, 5)),
    # Once a checkpoint is written, and not yet in its place.
    lambda: mock.patch.object(Path, "replace", killed),
    # As soon as it is.
    lambda: mock.patch.object(Path, "replace", replaced_and_killed),
    lambda: mock.patch.object(Path, "replace", Path.replace),  # left alone
    lambda: mock.patch.object(Path, "replace", Path.replace),  # and requested once more
)


def live(folder, number):
    """One process: fit, and save the result."""
    note = NoisySumMonitor.record

    def noted(self, step):
        settings = {"life": number, "step": step.number, "sum": step.noisy_sum.tolist()}
        with (folder / "steps").open("a") as file:
            print(json.dumps(settings), file=file, flush=True)
        note(self, step)

    place = folder / "a.ledger"
    ledger = Ledger(place) if number else open_ledger(place, Budget(500.0, 1e-2), kind="open")
    holder = Curator(Dataset(X, Y, (0, 1), size=60, name="rows"), ledger)
    fit = model(
        steps=STEPS,
        checkpoint=folder / "run",
        checkpoint_every=EVERY,
        random_state=None,
        noise_multiplier=3.0,
        sampling_rate=1.0,
        optimizer=Adam(0.01),
    )
    with LIVES[number](), mock.patch.object(NoisySumMonitor, "record", noted):
        fitted = holder.fit(fit, request="one")
    save_file(fitted.module_.state_dict(), folder / f"weights {number}")


def main(folder):
    for number in range(len(LIVES)):
        child = os.fork()
        if child == 0:
            try:
                live(folder, number)
                os._exit(0)
            finally:
                os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

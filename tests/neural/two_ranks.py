"""One of two ranks, in a separate process: fits and failures in sequence.

Started by ``test_distributed.py`` as ``two_ranks.py RANK FOLDER``; the outcomes are written to the
folder for the tests.
"""

import json
import os
import pickle
import sys
from datetime import timedelta
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from veracal.accounting import Budget, Unit
from veracal.data import Dataset, split
from veracal.ledger import open_ledger
from veracal.mechanisms import Flat, GlobalAdapt, Momentum
from veracal.neural import PrivateNetwork, Ranks
from veracal.neural.gradient_sums import NetworkSums
from veracal.neural.run import TrainingRun
from veracal.queries import Curator
from veracal.training import base as estimator

STEPS, RATE, MANY = 300, 0.3, 40  # steps, sampling rate and records of each rank
NOISE, WIDE = 100.0, 2_000
rows = np.random.default_rng(0)
X = rows.normal(size=(60, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
SHARE = {0: slice(0, 45), 1: slice(45, None)}  # of the records, not in equal parts
EXACT = {
    "flat": {"clip": Flat(0.05), "optimizer": Momentum(0.5), "average": 0.5},
    "counted": {"clip": GlobalAdapt(0.5, 0.3, rate=0.2, count_noise=1e-6), "optimizer": 0.5},
}
SETTINGS = {"epsilon": None, "noise_multiplier": 1.0, "classes": [0, 1], "size": 60}
SETTINGS |= {"steps": 4, "gradients": "ghost"}


def network(seed=0, inner=3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, inner), nn.Tanh(), nn.Linear(inner, 2))


def model(module=None, **changed):
    settings = {**SETTINGS, "across": Ranks(), **changed}
    return PrivateNetwork(network() if module is None else module, **settings)


def share(rank, **more):
    return Dataset(X[SHARE[rank]], Y[SHARE[rank]], (0, 1), name="some of them", **more)


def empty():
    return Dataset(X[:0], Y[:0], (0, 1))


def weights(fitted):
    return np.concatenate([one.detach().ravel() for one in fitted.module_.parameters()])


class Rank:
    """The actions of one rank; both ranks call each method at the same time."""

    def __init__(self, rank, folder):
        self.rank, self.folder = rank, folder
        self.ledger = None
        if rank == 0:
            self.ledger = open_ledger(folder / "all.ledger", Budget(8.0, 1e-5), kind="open")

    def paid_fit(self, model, dataset, **more):
        """Rank 0 pays, rank 1 waits."""
        if self.ledger is None:
            return model.fit_records(dataset)
        return Curator(dataset, self.ledger).fit(model, **more)

    def entries(self):
        return 0 if self.ledger is None else len(self.ledger.entries())

    def exact(self):
        """Without noise, with all records, from other initial weights on rank 1."""
        result = {}
        for name, settings in EXACT.items():
            outputs = network(seed=self.rank)
            fit = model(outputs, not_private="clipping only", sampling_rate=1.0, **settings)
            fit.fit_records(share(self.rank))
            result[name] = weights(fit).tolist()
            result[f"{name} tally"] = [fit.internal_.examples, fit.internal_.clipped]
        return result

    def noise(self):
        """One step of much noise in many weights; rank 1 has no record."""
        outputs = network(inner=WIDE)
        settings = {"noise_multiplier": NOISE, "steps": 1, "optimizer": 1.0, "clip": 1.0}
        fit = model(outputs, sampling_rate=1.0, **settings)
        fit.fit_records(share(0) if self.rank == 0 else empty())
        before = np.concatenate([one.detach().ravel() for one in outputs.parameters()])
        return {"moved": ((weights(fit) - before) * 60).tolist(), "private": fit.private_}

    def draws(self):
        """Which records take part in which step."""
        seen, original = [], NetworkSums.__call__

        def spied(sums, weights, rows, clip):
            seen.append(rows.tolist())
            return original(sums, weights, rows, clip)

        X, y = np.zeros((MANY, 4), np.float32), np.zeros(MANY, int)
        with mock.patch.object(NetworkSums, "__call__", spied):
            fit = model(steps=STEPS, sampling_rate=RATE, size=2 * MANY)
            fit.fit_records(Dataset(X, y, (0, 1)))
        return {"seen": seen, "tally": fit.internal_.examples}

    def ledger_of_rank_0(self):
        """A charged fit; rank 1 reads no record before the charge."""
        marker, order = self.folder / "charged", []
        read = estimator.add_labels

        def spied(*arguments):
            order.append(marker.exists())
            return read(*arguments)

        if self.ledger is not None:
            charge = type(self.ledger).charge

            def charged(*arguments, **more):
                entry = charge(*arguments, **more)
                marker.touch()
                return entry

            self.patch = mock.patch.object(type(self.ledger), "charge", charged)
        else:
            self.patch = mock.patch.object(estimator, "add_labels", spied)
        fit = model(noise_multiplier=4.0)
        with self.patch:
            self.paid_fit(fit, share(self.rank))
        return {
            "entries": self.entries(),
            "charged": marker.exists(),
            "after the charge": order,
            "weights": weights(fit).tolist(),
            "event": repr(fit.event_),
            "statement": fit.statement_.text(),
            "steps": fit.n_iter_,
            "check": repr(fit.self_check_),
        }

    def refused_by_the_ledger(self):
        """A fit that exceeds the budget of the ledger."""
        with mock.patch.object(estimator, "add_labels", side_effect=AssertionError):
            self.paid_fit(model(noise_multiplier=0.01), share(self.rank))

    def other_settings(self):
        """Another clip bound on rank 1."""
        self.paid_fit(model(clip=1.0 + self.rank), share(self.rank))

    def other_classes(self):
        """An unsuitable data set on rank 1."""
        dataset = share(0) if self.rank == 0 else Dataset(X[:3], Y[:3], ("no", "yes"))
        self.paid_fit(model(), dataset)

    def other_unit(self):
        """A ledger that protects records, and a model that protects patients."""
        ids = {} if self.rank == 0 else {"units": np.arange(45, 60), "max_contributions": 1}
        self.paid_fit(model(unit=Unit("patient", 2)), share(self.rank, **ids))

    def replaced(self):
        """Under replace-one the numbers of records must add up."""
        fit = model(relation="replace-one").fit_records(share(self.rank))
        try:
            model(relation="replace-one", size=45).fit_records(share(self.rank))
        except Exception as error:
            return {"private": fit.private_, "text": str(error)}

    def units(self):
        """Rows of a patient on two ranks are added up, unless units are disjoint."""
        patients = np.arange(60)[SHARE[self.rank]]
        records = share(self.rank, units=patients, max_contributions=2)
        gap = model(unit=Unit("patient", 2), across=Ranks(units_disjoint=True))
        fit = gap.fit_records(records)
        try:
            model(unit=Unit("patient", 2)).fit_records(records)
        except Exception as error:
            return {"private": fit.private_, "text": str(error)}

    def split_by_themselves(self):
        """Each rank splits the same records by its own random draws, and takes its share."""
        part = split(Dataset(X, Y, (0, 1), size=60)).train
        self.paid_fit(model(), part.take(np.arange(len(part))[self.rank :: 2]))

    def split_by_one_of_them(self):
        """With one key, with one seed, or split by rank 0, which sends the rows."""
        whole, result = Dataset(X, Y, (0, 1), size=60), {}
        path = self.folder / "dealt"
        if self.rank == 0:
            path.write_bytes(pickle.dumps(split(whole).train))
        dist.barrier()
        parts = {
            "key": split(whole, key="ours").train,
            "seed": split(whole, rng=np.random.default_rng(3)).train,
            "handed on": pickle.loads(path.read_bytes()),
        }
        for name, part in parts.items():
            mine = part.take(np.arange(len(part))[self.rank :: 2])
            model(size=48).fit_records(mine)
            result[name] = mine.X.tolist()
        return result

    def rank_1_fails(self):
        """Rank 1 fails during a run."""
        original, calls = NetworkSums.__call__, []

        def broken(sums, weights, rows, clip):
            calls.append(rows)
            if self.rank == 1 and len(calls) == 2:
                raise MemoryError("too little")
            return original(sums, weights, rows, clip)

        with mock.patch.object(NetworkSums, "__call__", broken):
            model().fit_records(share(self.rank))

    def rank_1_cannot_read(self):
        """The records of rank 1 disappear after rank 0 has started, before the first step."""
        read = OSError("gone") if self.rank == 1 else estimator.add_labels
        with mock.patch.object(estimator, "add_labels", side_effect=read):
            model().fit_records(share(self.rank))

    def rank_0_fails(self):
        """A hook of rank 0 fails."""

        def broken(fitted, step):
            raise KeyError("hook")

        model(on_step=broken).fit_records(share(self.rank))

    def ended_by_a_hook(self):
        """A hook of rank 0 ends the run on all ranks."""
        fit = model(on_step=lambda fitted, step: step.number == 1)
        fit.fit_records(share(self.rank))
        return {"steps": fit.n_iter_, "private": fit.private_}

    def checkpoint(self):
        """A run that is interrupted on rank 0 and resumes under the same charge."""
        # Rank 1 has no such folder: only rank 0 writes.
        path = self.folder / ("run" if self.rank == 0 else "no such folder/run")
        before, taken, note = self.entries(), [], TrainingRun.__call__

        def broken(run, step):
            note(run, step)
            taken.append(step.number)
            if len(taken) == 5:
                raise RuntimeError("killed")

        settings = {"steps": 8, "noise_multiplier": 8.0, "checkpoint_every": 3}
        request = {} if self.ledger is None else {"request": "one"}
        result = []
        with mock.patch.object(TrainingRun, "__call__", broken):
            for _ in range(3):
                fit = model(checkpoint=path, **settings)
                try:
                    self.paid_fit(fit, share(self.rank), **request)
                    result.append(weights(fit).tolist())
                except Exception as error:
                    result.append(type(error).__name__)
        return {"entries": self.entries() - before, "taken": taken, "found": result}

    def ledger_elsewhere(self):
        """A ledger on rank 1, arrays and seeds are rejected."""
        texts = []
        if self.rank == 1:
            own = open_ledger(self.folder / "own.ledger", Budget(8.0, 1e-5), kind="open")
            holder = Curator(share(1), own)
            tries = (
                lambda: holder.fit(model()),
                lambda: holder.fit_once(model(), lambda _: b"", request="a", body=b""),
                lambda: model().fit(X, Y),
                lambda: model(random_state=0).event(),
                lambda: model(size=None).event(),
                lambda: model(across=2).event(),
            )
            for one in tries:
                try:
                    one()
                except ValueError as error:
                    texts.append(str(error))
        return {"texts": texts}

    def rank_1_dies(self):
        """The process of rank 1 exits during a run; must be the last scene."""
        original = NetworkSums.__call__

        def killed(sums, weights, rows, clip):
            if self.rank == 1:
                os._exit(0)
            return original(sums, weights, rows, clip)

        with mock.patch.object(NetworkSums, "__call__", killed):
            model().fit_records(share(self.rank))


SCENES = tuple(
    name
    for name, one in vars(Rank).items()
    if callable(one) and not name.startswith("_") and name not in ("paid_fit", "entries")
)


def main(rank, folder):
    """Run all scenes, and save the results."""
    store = dist.FileStore(str(folder / "store"), 2)
    patience = timedelta(seconds=600)  # a busy machine takes long to start a process
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=patience)
    here, settings = Rank(rank, folder), {}
    for name in SCENES:
        try:
            settings[name] = getattr(here, name)()
        except Exception as error:
            settings[name] = {"error": type(error).__name__, "text": str(error)}
        # Each time: rank 1 does not live to see the end.
        (folder / f"{rank}.json").write_text(json.dumps(settings))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

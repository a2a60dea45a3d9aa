"""Train one private network on the records of several processes, or machines.

    torchrun --nproc-per-node 2 examples/train_on_two_ranks.py

Started without torchrun it is a single rank, which has all records.
"""

import os
import tempfile
from pathlib import Path

import numpy as np
import torch.distributed as dist
from torch import nn

from veracal.accounting import Budget
from veracal.data import load, split
from veracal.ledger import Item, open_ledger
from veracal.neural import PrivateNetwork, Ranks
from veracal.queries import Curator


def main(folder: Path) -> None:
    """Train on this rank's records; rank 0 has the ledger."""
    # The key makes the same split on every rank. Without one, each rank would draw its own
    # split: records would be on two ranks, and test records would be trained on.
    parts = split(load("digits"), key="digits on two ranks")
    rank, world = dist.get_rank(), dist.get_world_size()
    # Every rank takes different training records, so that none is on two ranks.
    mine = parts.train.take(np.arange(len(parts.train))[rank::world])
    model = PrivateNetwork(
        nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)),
        epsilon=8.0,
        delta=1e-5,
        epochs=20,
        optimizer=2.0,
        size=1_000,  # of all ranks together, and public
        across=Ranks(),
    )
    if rank == 0:
        plan, budget = [Item("training", model.event())], Budget(8.0, 1e-5)
        ledger = open_ledger(folder / "all.ledger", budget, kind="plan", plan=plan)
        Curator(mine, ledger).fit(model)
    else:
        model.fit_records(mine)  # waits until rank 0 has paid
    accuracy = float((model.predict(parts.test.X) == parts.test.y).mean())
    print(f"Rank {rank} of {world} has the model; accuracy {accuracy:.0%} (internal).")
    assert model.private_
    assert accuracy > 0.5


if __name__ == "__main__":
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as folder_name:
        main(Path(folder_name))
    dist.destroy_process_group()

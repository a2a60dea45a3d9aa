"""Clipped gradient sums of a network over the batches of a descent, a block at a time."""

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from veracal._types import Floats, Ints
from veracal.privacy import Clip, Clipped
from veracal.training.deep.gradients.blocks import Engine
from veracal.training.deep.layout import Layout
from veracal.training.deep.records import Records


class NetworkSums:
    """What a :class:`~veracal.privacy.Descent` asks of the records of a network.

    A batch is cut into blocks that fit into memory. Every record draws its block by lot, so
    that one record more or less changes the products of one block and not a bit of the
    others (:class:`veracal.training.sums.Blocks` says why that will do); how many blocks
    there are follows from the declared batch.

    Parameters
    ----------
    module : torch.nn.Module
        Whose parameters are set to the weights of each step.
    engine : Engine
    records : Records
    expected_batch : float
    block : int
        Examples expected in a block.
    rng : Generator
        Of the lots.

    Attributes
    ----------
    seen, clipped, broken : int
        Examples so far, how many of them were shortened, and how many had a gradient that was
        not finite. *Internal*: they are about the records.
    """

    def __init__(
        self,
        module: nn.Module,
        engine: Engine,
        records: Records,
        expected_batch: float,
        block: int,
        *,
        rng: np.random.Generator,
    ) -> None:
        self._module, self._engine, self._records = module, engine, records
        self._layout = Layout(module)
        self._blocks = max(1, math.ceil(expected_batch / block))
        self._rng = rng
        self.seen = self.clipped = self.broken = 0

    def __call__(self, weights: Floats, rows: Ints, clip: Clip) -> Clipped:
        """The clipped sum over rows."""
        self._layout.write(weights, self._module)
        total = torch.zeros(self._layout.size, dtype=torch.float64)
        exceeding = 0
        for part in self._dealt(rows):
            summed = self._engine.add(self._records.block(part), clip, total)
            exceeding += summed.exceeding
            self._count(summed.norms, clip)
        return Clipped(total.numpy(), exceeding)

    def _dealt(self, rows: Ints) -> list[Ints]:
        """Rows by the blocks that they drew."""
        if self._blocks == 1:
            return [rows] if len(rows) else []
        lots = self._rng.integers(self._blocks, size=len(rows))
        order = np.argsort(lots, kind="stable")
        cuts = np.cumsum(np.bincount(lots, minlength=self._blocks))[:-1]
        return [part for part in np.split(rows[order], cuts) if len(part)]

    def _count(self, norms: Any, clip: Clip) -> None:
        """Take note of what the clip did."""
        finite = norms.isfinite()
        self.seen += len(norms)
        self.broken += int((~finite).sum())
        self.clipped += int((norms[finite] > clip.bound).sum())

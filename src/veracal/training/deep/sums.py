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
        self._blocks, self._most = max(1, math.ceil(expected_batch / block)), 2 * block
        self._rng = rng
        self.seen = self.clipped = self.broken = 0

    def __call__(self, weights: Floats, rows: Ints, clip: Clip) -> Clipped:
        """The clipped sum over rows."""
        self._layout.write(weights, self._module)
        total = torch.zeros(self._layout.size, dtype=torch.float64)
        exceeding = 0
        with np.errstate(all="ignore"):  # a warning, too, would tell of a record
            for part in self._dealt(rows):
                exceeding += self._added(part, clip, total)
        return Clipped(total.numpy(), exceeding)

    def _added(self, rows: Ints, clip: Clip, total: torch.Tensor) -> int:
        """Add the clipped sum over some rows; how many exceed the threshold of the clip.

        Where the module fails for one of them, which would tell of it, all are taken one by
        one, and those that fail by themselves add nothing.
        """
        part = torch.zeros_like(total)
        try:
            summed = self._engine.add(self._records.block(rows), clip, part)
        except Exception:
            if len(rows) == 1:
                self.seen, self.broken = self.seen + 1, self.broken + 1
                return 0
            return sum(self._added(rows[i : i + 1], clip, total) for i in range(len(rows)))
        total += part
        self._count(summed.norms, clip)
        return summed.exceeding

    def _dealt(self, rows: Ints) -> list[Ints]:
        """Rows by the blocks that they drew."""
        parts = [rows]
        if self._blocks > 1:
            lots = self._rng.integers(self._blocks, size=len(rows))
            order = np.argsort(lots, kind="stable")
            cuts = np.cumsum(np.bincount(lots, minlength=self._blocks))[:-1]
            parts = np.split(rows[order], cuts)
        # What the slack for rounding does not cover is cut once more, which changes roundings.
        return [
            part[i : i + self._most] for part in parts for i in range(0, len(part), self._most)
        ]

    def _count(self, norms: Any, clip: Clip) -> None:
        """Take note of what the clip did."""
        finite = norms.isfinite()
        self.seen += len(norms)
        self.broken += int((~finite).sum())
        self.clipped += int((norms[finite] > clip.bound).sum())

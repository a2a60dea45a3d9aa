"""Clipped gradient sums of a network over the batches of a descent, a block at a time."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from veracal._precision import full_precision, thread_precision
from veracal._types import Floats, Ints
from veracal.privacy import Clip, Clipped
from veracal.training.deep.gradients.blocks import Engine, HalfAddedError
from veracal.training.deep.layout import Layout
from veracal.training.deep.records import Records


@dataclass
class Tally:
    """What was met among the records. *Internal*: it is about them.

    Attributes
    ----------
    exceeding : int
        See :class:`veracal.privacy.Selection`.
    seen, clipped, broken : int
        Examples, how many of them were longer than the bound, and how many had a gradient
        that was not finite.
    """

    exceeding: int = 0
    seen: int = 0
    clipped: int = 0
    broken: int = 0

    def add(self, norms: Tensor, clip: Clip) -> None:
        """Count some examples by the norms of their gradients."""
        finite = norms.isfinite()
        self.seen += len(norms)
        self.broken += int((~finite).sum())
        self.clipped += int((norms[finite] > clip.bound).sum())


@dataclass(frozen=True, eq=False, repr=False)
class Lane:
    """A network, and how its gradients are taken: for one thread.

    Attributes
    ----------
    module : torch.nn.Module
        Whose parameters are set to the weights of each step.
    engine : Engine
        Of this module.
    """

    module: nn.Module
    engine: Engine


class NetworkSums:
    """What a :class:`~veracal.privacy.Descent` asks of the records of a network.

    A batch is cut into blocks that fit into memory. Every record draws its block by lot, so
    that one record more or less changes the products of one block and not a bit of the
    others (:class:`veracal.training.sums.Blocks` says why that will do); how many blocks
    there are follows from the declared batch.

    Parameters
    ----------
    lanes : sequence of Lane
        One for each thread, of copies of the same network. Two threads of one core each go
        through the blocks of a batch faster than two cores through one block together.
    records : Records
    expected_batch : float
    block : int
        Examples expected in a block.
    most : int, optional
        Examples that a block has at most: a larger one is cut into even parts. By default
        twice as many as are expected.
    rng : Generator
        Of the lots.

    Attributes
    ----------
    tally : Tally
        Of all batches so far.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        records: Records,
        expected_batch: float,
        block: int,
        *,
        most: int | None = None,
        rng: np.random.Generator,
    ) -> None:
        self._lanes, self._records = tuple(lanes), records
        self._blocks = max(1, math.ceil(expected_batch / block))
        self._most = 2 * block if most is None else min(most, 2 * block)
        self._rng = rng
        self._pool: ThreadPoolExecutor | None = None
        self.tally = Tally()

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Go through the blocks in as many threads as there are lanes, each with one core."""
        if len(self._lanes) == 1:
            yield
            return
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(len(self._lanes)) as pool:
                self._pool = pool
                yield
        finally:
            self._pool = None
            torch.set_num_threads(before)

    @full_precision()
    def __call__(self, weights: Floats, rows: Ints, clip: Clip) -> Clipped:
        """The clipped sum over rows, in full precision whatever was set between steps."""
        # Whoever was told of a step may have set torch's generator, which draws for dropout:
        # masks that somebody knows would be others for everybody once a record is gone.
        _reseed(int(self._rng.integers(2**63)))
        parts, together = self._dealt(rows), len(self._lanes)
        if self._pool is None or len(parts) < 2:
            found = [self._summed(self._lanes[0], weights, parts, clip)]
        else:
            waiting = [
                self._pool.submit(self._summed, lane, weights, parts[i::together], clip)
                for i, lane in enumerate(self._lanes)
            ]
            found = [one.result() for one in waiting]
        total = found[0][0]
        for more, _ in found[1:]:
            total += more
        exceeding = sum(tally.exceeding for _, tally in found)
        for _, tally in found:
            self.tally.seen += tally.seen
            self.tally.clipped += tally.clipped
            self.tally.broken += tally.broken
        return Clipped(total.numpy(), exceeding)

    @thread_precision()
    def _summed(
        self, lane: Lane, weights: Floats, parts: Sequence[Ints], clip: Clip
    ) -> tuple[Tensor, Tally]:
        """The clipped sum over some parts of a batch, in one lane."""
        layout, tally = Layout(lane.module), Tally()
        layout.share(weights, lane.module)
        # By numpy: where nothing is added yet, it takes no room.
        total = torch.from_numpy(np.zeros(layout.size))
        with np.errstate(all="ignore"):  # a warning, too, would tell of a record
            for part in parts:
                self._add(lane, part, clip, total, tally)
        return total, tally

    def _add(self, lane: Lane, rows: Ints, clip: Clip, total: Tensor, tally: Tally) -> None:
        """Add the clipped sum over some rows.

        Where the module fails for one of them, which would tell of it, all are taken one by
        one, and those that fail by themselves add nothing.
        """
        part = total if lane.engine.at_once else torch.zeros_like(total)
        try:
            summed = lane.engine.add(self._records.block(rows), clip, part)
        except HalfAddedError:
            raise
        except Exception:
            if len(rows) == 1:
                tally.seen, tally.broken = tally.seen + 1, tally.broken + 1
            for i in range(len(rows) if len(rows) > 1 else 0):
                self._add(lane, rows[i : i + 1], clip, total, tally)
            return
        if not lane.engine.at_once:
            total += part
        tally.exceeding += summed.exceeding
        tally.add(summed.norms, clip)

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
            some
            for part in parts
            if len(part)
            for some in np.array_split(part, math.ceil(len(part) / self._most))
        ]


def _reseed(seed: int) -> None:
    """Seed torch's generators: its own function for that takes longer than a small block."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)

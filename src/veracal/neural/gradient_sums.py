"""Clipped gradient sums of a network over the batches of a run, block by block.

Floating-point rounding makes the computed gradient of one record depend on the number of
examples it is computed with, on its position among them, and on memory alignment. A record
whose gradient lies within rounding error of a threshold (of a clip rule, a ReLU or a maximum)
then contributes differently. :class:`NetworkSums` keeps all of these the same whether or not
another record is present.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from veracal._types import Floats, Ints, aligned, aligned_empty
from veracal.mechanisms import ClippedSum, ClipRule, is_continuous
from veracal.neural.examples import Block, IndexedRecords
from veracal.neural.precision import full_precision, thread_precision

_PADDING = -1  # marks an empty slot
_DEVIATIONS = 4.0  # standard deviations of the batch size for which slots are added


class ParameterSlice(NamedTuple):
    """Position of a parameter, by its first name in the module, in the flat weight vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    end: int


class Layout:
    """Positions of all trainable parameters in one flat vector; a tied parameter appears once."""

    def __init__(self, module: nn.Module) -> None:
        slices, self._slice_of, start = [], {}, 0
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                end = start + parameter.numel()
                slices.append(ParameterSlice(name, tuple(parameter.shape), start, end))
                self._slice_of[parameter] = slice(start, end)
                start = end
        self.slices, self.size = tuple(slices), start

    def slice_of(self, parameter: nn.Parameter) -> slice:
        """Return the part of the vector that holds a parameter."""
        return self._slice_of[parameter]

    def read(self, module: nn.Module) -> Floats:
        """Copy the parameters into one vector of float32."""
        vector: Floats = aligned_empty((self.size,), np.dtype(np.float32))
        for span, parameter in self._pairs(module):
            flat = parameter.detach().to(torch.float32).reshape(-1)
            vector[span.start : span.end] = flat.numpy()
        return vector

    def share(self, vector: Floats, module: nn.Module) -> None:
        """Make the parameters views of the vector, so that memory holds them once.

        A change of either is then a change of both.
        """
        self._check(vector)
        whole = torch.from_numpy(vector)
        for span, parameter in self._pairs(module):
            if parameter.data_ptr() == whole.data_ptr() + span.start * whole.element_size():
                continue
            # Through numpy each gets its own storage; weight files allow no shared storages.
            part = torch.from_numpy(vector[span.start : span.end])
            parameter.data = part.view(span.shape)

    def digests(self, vector: Floats) -> tuple[bytes, ...]:
        """Return a digest of each parameter, to detect later whether it has changed."""
        self._check(vector)
        return tuple(
            hashlib.blake2b(vector[one.start : one.end].data, digest_size=16).digest()
            for one in self.slices
        )

    def unchanged(self, before: tuple[bytes, ...], vector: Floats) -> tuple[str, ...]:
        """Return the names of the parameters whose digests have not changed."""
        pairs = zip(self.slices, before, self.digests(vector), strict=True)
        return tuple(span.name for span, old, new in pairs if old == new)

    def _pairs(self, module: nn.Module) -> Iterator[tuple[ParameterSlice, nn.Parameter]]:
        """Yield the slices with the parameters of a module of this layout."""
        trained = [one for one in module.parameters() if one.requires_grad]
        return zip(self.slices, trained, strict=True)

    def _check(self, vector: Floats) -> None:
        """Reject a vector of another length."""
        if vector.shape != (self.size,):
            raise ValueError(f"Expected a vector of {self.size} weights, got {vector.shape}.")


@dataclass(frozen=True, eq=False, repr=False)
class ClippedBlockSum:
    """Norms and counts of a block whose clipped sum was added, without noise."""

    norms: Tensor  # in float64, of all real examples before the clip; not finite if left out
    exceeding: int  # see veracal.mechanisms.ClipSelection


class PartialSumError(RuntimeError):
    """A block failed while it was being added; the sum may hold a part of it."""


class GradientEngine(Protocol):
    """A method to sum clipped per-example gradients of one module, used by one thread.

    Guarantees
    ----------
    Those of :func:`veracal.neural.gradients.engines.add_clipped`.
    """

    name: str
    module: nn.Module  # its parameters are set to the weights of each step
    size: int  # of the vector of all weights
    atomic: bool  # whether a block is added completely or, if it fails, not at all

    def add(self, block: Block, clip: ClipRule, total: Tensor) -> ClippedBlockSum:
        """Add the clipped sum over a block to a vector of float64."""


@dataclass
class BatchCounts:
    """Counts over the examples of all batches. *Internal*: they describe the records."""

    exceeding: int = 0  # see veracal.mechanisms.ClipSelection
    examples: int = 0
    clipped: int = 0  # gradients longer than the bound
    nonfinite: int = 0


class NetworkSums:
    r"""Clipped gradient sums of a network, as :class:`~veracal.mechanisms.DPSGD` calls them.

    Parameters
    ----------
    engines : sequence of GradientEngine
        One for each thread, of copies of the same network. Two threads of one core each process
        the blocks of a batch faster than two cores process one block together.
    records : IndexedRecords
    expected_batch : float
    block : int
        Maximum number of examples in a block.
    rng : Generator
        Draws the slots.

    Attributes
    ----------
    records : IndexedRecords
    counts : BatchCounts
        Over all batches so far.

    Guarantees
    ----------
    *Discontinuous clip rules* (every rule that
    :func:`~veracal.mechanisms.clipping.is_continuous` does not know to be continuous, and the
    count of ``GlobalAdapt``). Each record is computed in a block of one, on one thread, with
    its input and the weights at addresses that are multiples of 64 bytes, and is added in
    float64. Its contribution is then a function of the record, the weights and its own random
    draws, bit for bit, on one machine with one version of the libraries.

    *Flat and Automatic.* Blocks have one shape, which follows from the declared batch b: there
    are slots for :math:`b + 4 \sqrt b` records, in blocks of equal size, and records are
    assigned to slots at random, without replacement. Empty slots are filled with copies of a
    record of the same block, whose gradients get the factor zero. The contribution of a record
    is a function of the record, its slot, the weights and its own random draws, provided that
    the module neither mixes examples nor computes in shapes that depend on their values. A
    random injection of n + 1 records into the slots, restricted to n of them, is a random
    injection of these n. The slots of two neighboring batches can therefore be coupled such
    that all common records have the same one. Given the slots, the two sums differ by one
    clipped gradient and by the rounding of the sum over one block, for which the clip reserves
    slack (:func:`~veracal.neural.gradients.engines.rounding_slack`). A bound that holds given
    the slots also holds on average over them, since divergences are jointly convex. With
    ``block=1`` every record is computed individually.

    *A batch larger than the number of slots* reuses them for randomly chosen records. One more
    record then moves one other record to another slot for each reuse. A Poisson batch of the
    declared expectation does this with probability below 1e-3 per step (3e-5 for a large
    batch), and it matters only where the slot changes a gradient.

    *A record for which the module fails* contributes nothing. Its block is halved, each record
    staying in its slot, until the failing record is alone among copies of itself, so that
    nothing changes for the others except the order of summation. Whether a record fails is
    assumed to depend on the record, its slot and the weights, and not on random draws.

    *Random draws* (dropout, augmentation, noise before the clip) are fresh and secret for each
    record, and independent of all others. One more record shifts which random numbers the later
    records receive, but not their joint distribution: the draws of two neighboring batches can
    again be coupled to be equal for all common records.
    """

    def __init__(
        self,
        engines: Sequence[GradientEngine],
        records: IndexedRecords,
        expected_batch: float,
        block: int,
        *,
        rng: np.random.Generator,
    ) -> None:
        self._engines, self.records = tuple(engines), records
        slots = math.ceil(expected_batch + _DEVIATIONS * math.sqrt(expected_batch))
        self._count = math.ceil(slots / block)
        self._capacity = math.ceil(slots / self._count)
        self._rng = rng
        self._pool: ThreadPoolExecutor | None = None
        self.counts = BatchCounts()

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Process the blocks in one thread for each engine, with one core each."""
        if len(self._engines) == 1:
            yield
            return
        with _torch_threads(1), ThreadPoolExecutor(len(self._engines)) as pool:
            self._pool = pool
            try:
                yield
            finally:
                self._pool = None

    @full_precision()
    def __call__(self, weights: Floats, rows: Ints, clip: ClipRule) -> ClippedSum:
        """Return the clipped sum over rows, in full float32 precision."""
        # A hook may have seeded torch's generator, which draws the dropout masks: with known
        # draws, removing a record would change the masks of all later records.
        seed = int(self._rng.integers(2**63))
        torch.default_generator.manual_seed(seed)  # torch.manual_seed is slower than a block
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)
        individually = self._capacity == 1 or not is_continuous(clip)
        blocks = list(rows.reshape(-1, 1)) if individually else self._assign_slots(rows)
        weights, count = aligned(weights), len(self._engines)
        if self._pool is None or len(blocks) < 2:
            with _torch_threads(1 if individually else torch.get_num_threads()):
                partial_sums = [self._sum_blocks(self._engines[0], weights, blocks, clip)]
        else:
            futures = [
                self._pool.submit(self._sum_blocks, engine, weights, blocks[i::count], clip)
                for i, engine in enumerate(self._engines)
            ]
            partial_sums = [one.result() for one in futures]
        total = partial_sums[0][0]
        for other, _ in partial_sums[1:]:
            total += other
        exceeding = 0
        for _, counts in partial_sums:
            exceeding += counts.exceeding
            self.counts.examples += counts.examples
            self.counts.clipped += counts.clipped
            self.counts.nonfinite += counts.nonfinite
        return ClippedSum(total.numpy(), exceeding)

    @thread_precision()
    def _sum_blocks(
        self, engine: GradientEngine, weights: Floats, blocks: Sequence[Ints], clip: ClipRule
    ) -> tuple[Tensor, BatchCounts]:
        """Return the clipped sum over some blocks of a batch, computed by one engine."""
        layout, counts = Layout(engine.module), BatchCounts()
        layout.share(weights, engine.module)
        # numpy's zeros use no memory until they are written.
        total = torch.from_numpy(np.zeros(layout.size))
        with np.errstate(all="ignore"):  # a warning would reveal something about a record
            for block in blocks:
                self._add_block(engine, block, clip, total, counts)
        return total, counts

    def _add_block(
        self,
        engine: GradientEngine,
        block: Ints,
        clip: ClipRule,
        total: Tensor,
        counts: BatchCounts,
    ) -> None:
        """Add the clipped sum over the records in the slots of a block.

        An error of the module for one record would reveal something about it. The block is then
        halved, and each half is computed in the same slots.
        """
        direct = engine.atomic or len(block) == 1
        part = total if direct else torch.zeros_like(total)
        real = block != _PADDING
        positions = np.flatnonzero(real)
        try:
            # Padding copies a record of the block instead of a synthetic one: for a record
            # alone among copies of itself, only the record decides whether the module fails.
            rows = np.where(real, block, block[positions[0]])
            summed = engine.add(self.records.block(rows, real), clip, part)
        except PartialSumError:
            raise
        except Exception:
            if len(positions) == 1:
                counts.examples, counts.nonfinite = counts.examples + 1, counts.nonfinite + 1
                return
            for subset in np.array_split(positions, 2):
                half = np.full_like(block, _PADDING)
                half[subset] = block[subset]
                self._add_block(engine, half, clip, total, counts)
            return
        if not direct:
            total += part
        finite = summed.norms.isfinite()
        counts.exceeding += summed.exceeding
        counts.examples += len(finite)
        counts.nonfinite += int((~finite).sum())
        counts.clipped += int((summed.norms[finite] > clip.bound).sum())

    def _assign_slots(self, rows: Ints) -> list[Ints]:
        """Assign rows to slots; one array for each block that contains a row."""
        slots = self._count * self._capacity
        rows = self._shuffle(rows)
        blocks = list[Ints]()
        for start in range(0, len(rows), slots):
            chunk = rows[start : start + slots]
            assigned = np.full(slots, _PADDING, dtype=np.int64)
            assigned[self._draw_slots(chunk)] = chunk
            blocks += [one for one in np.split(assigned, self._count) if (one >= 0).any()]
        return blocks

    def _shuffle(self, rows: Ints) -> Ints:
        """Shuffle rows, which decides the records that get a slot of their own."""
        shuffled: Ints = self._rng.permutation(rows)
        return shuffled

    def _draw_slots(self, rows: Ints) -> Ints:
        """Draw a random slot for each row, without replacement."""
        slots: Ints = self._rng.permutation(self._count * self._capacity)[: len(rows)]
        return slots


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    """Set torch's number of threads inside the block."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

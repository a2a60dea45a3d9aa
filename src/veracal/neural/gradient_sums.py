"""The trainable parameters of a network as one vector, and back.

Clipped gradient sums of a network over the batches of a descent, a block at a time.

Rounding makes the gradient of one record depend on how many others it is computed with, on its
position among them, and on the alignment of memory; a record within rounding of a threshold
(of a clip rule, a ReLU or a maximum) then adds something else. :class:`NetworkSums` keeps all
of these the same whether or not another record is there.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from veracal._types import Floats, Ints, aligned, aligned_empty
from veracal.mechanisms import Clipped, ClipRule, is_continuous
from veracal.neural.gradients.blocks import GradientEngine, PartialSumError
from veracal.neural.precision import full_precision, thread_precision
from veracal.neural.synthetic_inputs import IndexedRecords


@dataclass(frozen=True)
class ParameterSlice:
    """Where a parameter stands in the vector.

    Attributes
    ----------
    name : str
        As the module names it; of a parameter with several names, the first.
    shape : tuple of int
    start, end : int
    """

    name: str
    shape: tuple[int, ...]
    start: int
    end: int


class Layout:
    """Places of all trainable parameters of a module, each once however often it is tied.

    Parameters
    ----------
    module : torch.nn.Module

    Attributes
    ----------
    places : tuple of Place
    size : int
        Numbers in all.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.places = tuple(_parameter_slices(module))
        self.size = self.places[-1].end if self.places else 0
        self._of = {
            id(parameter): place
            for place, (_, parameter) in zip(
                self.places, _trainable_parameters(module), strict=True
            )
        }

    def place(self, parameter: torch.Tensor) -> ParameterSlice:
        """Where a parameter stands."""
        return self._of[id(parameter)]

    def read(self, module: torch.nn.Module) -> Floats:
        """The parameters as one vector of float32, a copy."""
        vector: Floats = aligned_empty((self.size,), np.dtype(np.float32))
        for place, (_, parameter) in zip(
            self.places, _trainable_parameters(module), strict=True
        ):
            flat = parameter.detach().to(torch.float32).reshape(-1)
            vector[place.start : place.end] = flat.numpy()
        return vector

    def share(self, vector: Floats, module: torch.nn.Module) -> None:
        """Make the parameters views of the vector, so that they are in memory once.

        Whatever is written on one is then on the other.
        """
        self._check(vector)
        whole = torch.from_numpy(vector)
        for place, (_, parameter) in zip(
            self.places, _trainable_parameters(module), strict=True
        ):
            if parameter.data_ptr() == whole.data_ptr() + place.start * whole.element_size():
                continue
            # By numpy, each is a storage of its own: files of weights have no shared ones.
            part = torch.from_numpy(vector[place.start : place.end])
            parameter.data = part.view(place.shape)

    def marks(self, vector: Floats) -> tuple[bytes, ...]:
        """A digest of each parameter, to tell later whether it has moved."""
        self._check(vector)
        return tuple(
            hashlib.blake2b(vector[one.start : one.end].data, digest_size=16).digest()
            for one in self.places
        )

    def unmoved(self, before: tuple[bytes, ...], vector: Floats) -> tuple[str, ...]:
        """Names of the parameters whose digests are what they were."""
        pairs = zip(self.places, before, self.marks(vector), strict=True)
        return tuple(place.name for place, old, new in pairs if old == new)

    def _check(self, vector: Floats) -> None:
        """Refuse a vector of another length."""
        if vector.shape != (self.size,):
            raise ValueError(f"Expected a vector of {self.size} weights, got {vector.shape}.")

    def write(self, vector: Floats, module: torch.nn.Module) -> None:
        """Set the parameters."""
        self._check(vector)
        with torch.no_grad():
            for place, (_, parameter) in zip(
                self.places, _trainable_parameters(module), strict=True
            ):
                part = torch.from_numpy(vector[place.start : place.end])
                parameter.copy_(part.view(place.shape))

    def split(self, vector: Any) -> dict[str, Any]:
        """Views of a vector, by the names of the parameters."""
        return {
            place.name: vector[place.start : place.end].reshape(place.shape)
            for place in self.places
        }


def _trainable_parameters(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Parameters that are trained, each once."""
    return ((name, one) for name, one in module.named_parameters() if one.requires_grad)


def _parameter_slices(module: torch.nn.Module) -> Iterator[ParameterSlice]:
    """One place after the other."""
    start = 0
    for name, parameter in _trainable_parameters(module):
        end = start + math.prod(parameter.shape)
        yield ParameterSlice(name, tuple(parameter.shape), start, end)
        start = end


_PADDING = -1  # where no record is
_DEVIATIONS = 4.0  # of a batch above its expected size, for which there are slots


@dataclass
class BatchCounts:
    """What was met among the records. *Internal*: it is about them.

    Attributes
    ----------
    exceeding : int
        See :class:`veracal.mechanisms.Selection`.
    seen, clipped, broken : int
        Examples, how many of them were longer than the bound, and how many had a gradient
        that was not finite.
    """

    exceeding: int = 0
    seen: int = 0
    clipped: int = 0
    broken: int = 0

    def add(self, norms: Tensor, clip: ClipRule) -> None:
        """Count some examples by the norms of their gradients."""
        finite = norms.isfinite()
        self.seen += len(norms)
        self.broken += int((~finite).sum())
        self.clipped += int((norms[finite] > clip.bound).sum())


@dataclass(frozen=True, eq=False, repr=False)
class GradientWorker:
    """A network, and how its gradients are taken: for one thread.

    Attributes
    ----------
    module : torch.nn.Module
        Whose parameters are set to the weights of each step.
    engine : Engine
        Of this module.
    """

    module: nn.Module
    engine: GradientEngine


class NetworkSums:
    r"""What a :class:`~veracal.mechanisms.DPSGD` asks of the records of a network.

    Parameters
    ----------
    lanes : sequence of Lane
        One for each thread, of copies of the same network. Two threads of one core each go
        through the blocks of a batch faster than two cores through one block together.
    records : Records
    expected_batch : float
    block : int
        Examples of a block, at most.
    rng : Generator
        Of the slots.

    Attributes
    ----------
    tally : Tally
        Of all batches so far.

    Guarantees
    ----------
    *Rules that jump* (whatever :func:`~veracal.mechanisms.clipping.is_continuous` does
    not know to be continuous, and the count of ``GlobalAdapt``). Every record is computed by
    itself, in a block of one, on one thread, with its input and the weights at addresses that
    are multiples of 64 bytes, and added in float64. What it adds is then a function of the
    record, the weights and its own random draws, bit for bit, on one machine with one version
    of the libraries.

    *Flat and Automatic.* Blocks have one shape, which follows from the declared batch b: there
    are slots for :math:`b + 4 \sqrt b` records, in blocks of equal size, and records take
    slots at random, without replacement. Empty slots are filled with copies of a record of the
    same block, whose gradients get the factor zero. What a record adds is a function of the
    record, its slot, the weights and its own random draws, as long as the module neither mixes
    examples nor computes in shapes that follow from their values. A random injection of n + 1
    records into the slots, restricted to n of them, is a random injection of these n: so the
    slots of two neighboring batches can be drawn such that all common records have the same
    one. Given the slots, the two sums differ by one clipped gradient and by the rounding of the
    sum over one block, for which the clip leaves room
    (:func:`~veracal.neural.gradients.engines.rounding_slack`); what holds given the slots
    holds on average over them, since divergences are jointly convex. With ``block=1`` every
    record is computed by itself.

    *A batch larger than the slots* uses them again, for records that are chosen at random. One
    record more then moves one other record to another slot for each time that they are used
    again. That happens to a Poisson batch of the declared expectation with a probability below
    1e-3 a step (3e-5 for a large batch), and matters only where the slot changes a gradient.

    *A record for which the module fails* adds nothing. Its block is halved, each record
    staying in its slot, until the record is by itself among copies of itself, so that nothing
    changes for the others but the order in which they are summed. Whether a record fails is
    taken to depend on the record, its slot and the weights, and not on random draws.

    *Random draws* (dropout, augmentation, noise before the clip) are fresh and secret for each
    record, independent of all others. One record more shifts which numbers of a generator the
    later records get, but not their joint distribution: draws of two neighboring batches can
    again be taken to be the same for all common records.
    """

    def __init__(
        self,
        lanes: Sequence[GradientWorker],
        records: IndexedRecords,
        expected_batch: float,
        block: int,
        *,
        rng: np.random.Generator,
    ) -> None:
        self._lanes, self._records = tuple(lanes), records
        slots = math.ceil(expected_batch + _DEVIATIONS * math.sqrt(expected_batch))
        self._count = math.ceil(slots / block)
        self._capacity = math.ceil(slots / self._count)
        self._rng = rng
        self._pool: ThreadPoolExecutor | None = None
        self.tally = BatchCounts()

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Go through the blocks in as many threads as there are lanes, each with one core."""
        if len(self._lanes) == 1:
            yield
            return
        with _torch_threads(1), ThreadPoolExecutor(len(self._lanes)) as pool:
            self._pool = pool
            try:
                yield
            finally:
                self._pool = None

    @full_precision()
    def __call__(self, weights: Floats, rows: Ints, clip: ClipRule) -> Clipped:
        """The clipped sum over rows, in full precision whatever was set between steps."""
        # Whoever was told of a step may have set torch's generator, which draws for dropout:
        # masks that somebody knows would be others for everybody once a record is gone.
        _seed_torch(int(self._rng.integers(2**63)))
        alone = self._capacity == 1 or not is_continuous(clip)
        parts = list(rows.reshape(-1, 1)) if alone else self._blocks(rows)
        weights, together = aligned(weights), len(self._lanes)
        if self._pool is None or len(parts) < 2:
            with _torch_threads(1 if alone else torch.get_num_threads()):
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
        self, lane: GradientWorker, weights: Floats, parts: Sequence[Ints], clip: ClipRule
    ) -> tuple[Tensor, BatchCounts]:
        """The clipped sum over some parts of a batch, in one lane."""
        layout, tally = Layout(lane.module), BatchCounts()
        layout.share(weights, lane.module)
        # By numpy: where nothing is added yet, it takes no room.
        total = torch.from_numpy(np.zeros(layout.size))
        with np.errstate(all="ignore"):  # a warning, too, would tell of a record
            for part in parts:
                self._add(lane, part, clip, total, tally)
        return total, tally

    def _add(
        self,
        lane: GradientWorker,
        block: Ints,
        clip: ClipRule,
        total: Tensor,
        tally: BatchCounts,
    ) -> None:
        """Add the clipped sum over the records in the slots of a block.

        An error of the module for one of them would tell of it. The block is halved then, and
        each half is computed in the same slots.
        """
        whole = lane.engine.at_once or len(block) == 1
        part = total if whole else torch.zeros_like(total)
        real = block != _PADDING
        places = np.flatnonzero(real)
        try:
            # A record of the block, not a made-up one: for a record alone among copies of
            # itself, nothing but the record decides whether the module fails.
            rows = np.where(real, block, block[places[0]])
            summed = lane.engine.add(self._records.block(rows, real), clip, part)
        except PartialSumError:
            raise
        except Exception:
            if len(places) == 1:
                tally.seen, tally.broken = tally.seen + 1, tally.broken + 1
                return
            for some in np.array_split(places, 2):
                half = np.full_like(block, _PADDING)
                half[some] = block[some]
                self._add(lane, half, clip, total, tally)
            return
        if not whole:
            total += part
        tally.exceeding += summed.exceeding
        tally.add(summed.norms, clip)

    def _blocks(self, rows: Ints) -> list[Ints]:
        """Rows by their slots, one array for each block that has any."""
        slots = self._count * self._capacity
        rows = self._shuffled(rows)
        blocks = list[Ints]()
        for start in range(0, len(rows), slots):
            some = rows[start : start + slots]
            taken = np.full(slots, _PADDING, dtype=np.int64)
            taken[self._slots(some)] = some
            blocks += [one for one in np.split(taken, self._count) if (one >= 0).any()]
        return blocks

    def _shuffled(self, rows: Ints) -> Ints:
        """Rows in random order, which decides who has a slot of its own."""
        shuffled: Ints = self._rng.permutation(rows)
        return shuffled

    def _slots(self, rows: Ints) -> Ints:
        """A slot for each of some rows, at random, no two the same."""
        slots: Ints = self._rng.permutation(self._count * self._capacity)[: len(rows)]
        return slots


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    """Let torch compute with so many threads."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _seed_torch(seed: int) -> None:
    """Seed torch's generators: its own function for that takes longer than a small block."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)

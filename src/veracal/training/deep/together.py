"""A descent in one process, or in several of which one leads."""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from veracal._types import Floats, Ints
from veracal.errors import WorkerError
from veracal.privacy import Clip, Clipped, Descended, Descent, GlobalAdapt
from veracal.privacy.answers.models import charged_total
from veracal.training.deep.ranks import Link, Order
from veracal.training.deep.running import Internal, Noise, Run
from veracal.training.deep.sums import NetworkSums


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it counts records
class Ended:
    """How a descent ended.

    Attributes
    ----------
    done : Descended
    shown : array
        The weights that the model gets: a mean, where weights are averaged.
    noise : tuple
        See :class:`~veracal.training.deep.self_check.SelfCheck`.
    internal : Internal
    """

    done: Descended
    shown: Floats
    noise: Noise
    internal: Internal


class Course(Protocol):
    """How a descent is gone through.

    Attributes
    ----------
    leads : bool
        Whether noise is drawn, steps are taken and checkpoints are written here.
    world : int
        How many processes there are.
    """

    leads: bool
    world: int

    def begun(self, module: nn.Module) -> AbstractContextManager[None]:
        """Take the weights of rank 0; should the block fail, others hear of it."""

    def descend(
        self, descent: Descent, run: Run, sums: NetworkSums, n: int, rng: np.random.Generator
    ) -> Ended:
        """Take all steps, with n records here."""


class Alone:
    """One process has all records."""

    leads, world = True, 1

    @contextmanager
    def begun(self, module: nn.Module) -> Iterator[None]:
        """Nobody else is there."""
        yield

    def descend(
        self, descent: Descent, run: Run, sums: NetworkSums, n: int, rng: np.random.Generator
    ) -> Ended:
        """Take all steps."""
        done = descent.run(
            run.first, sums, n, rng=rng, on_step=run, start=run.standing, in_place=True
        )
        run.over()
        return _ended(run, done, _counts(sums))


class Leading:
    """Rank 0: draws the noise, takes the steps, and has the only ledger and checkpoint."""

    leads = True

    def __init__(self, link: Link) -> None:
        self._link, self.world = link, link.world

    @contextmanager
    def begun(self, module: nn.Module) -> Iterator[None]:
        """Begin, now that it is paid for; should anything fail, nobody goes on waiting."""
        try:
            total = charged_total()
            for rank in self._link.others:
                self._link.begin(rank, total, read_all(module))
            yield
        except BaseException as problem:
            self._link.stop(problem)
            raise

    def descend(
        self, descent: Descent, run: Run, sums: NetworkSums, n: int, rng: np.random.Generator
    ) -> Ended:
        """Take all steps, each with the sums of all ranks, and give them the model."""
        joined = Joined(self._link, sums)
        done = descent.run(
            run.first,
            joined,
            n,
            rng=rng,
            on_step=run,
            start=run.standing,
            in_place=True,
            ask_empty=True,
        )
        run.over()
        ended = _ended(run, done, joined.counts())
        self._link.over = True
        for rank in self._link.others:
            try:
                self._give(ended, rank)
            except WorkerError as error:  # what was paid for is here, and stays
                warnings.warn(f"The model is done, but not everywhere: {error}", stacklevel=2)
        return ended

    def _give(self, ended: Ended, rank: int) -> None:
        """Send another rank how it ended."""
        both = [_as_sent(weights) for weights in (ended.done.weights, ended.shown)]
        noise = torch.tensor(ended.noise, dtype=torch.float64)
        content = torch.cat([one.view(torch.uint8) for one in (noise, *both)])
        self._link.order(Order.OVER, rank, ended.done.steps, content)


class Joined:
    """Clipped sums over the batches of all ranks: what the descent of rank 0 asks for.

    Parameters
    ----------
    link : Link
    sums : NetworkSums
        Of the records of rank 0.

    Guarantees
    ----------
    The sum and the count of an adaptive rule are those over the union of all batches, so that
    one record moves them as far as in one process. Other ranks send theirs to rank 0 alone.
    """

    def __init__(self, link: Link, sums: NetworkSums) -> None:
        self._link, self._sums = link, sums
        self._met = {rank: [0.0, 0.0, 0.0] for rank in link.others}

    def __call__(self, weights: Floats, rows: Ints, clip: Clip) -> Clipped:
        """The clipped sum over rows here and batches elsewhere."""
        threshold = clip.threshold if isinstance(clip, GlobalAdapt) else 0.0
        for rank in self._link.others:
            self._link.order(Order.STEP, rank, threshold, _as_sent(weights))
            self._link.owed.add(rank)
        mine = self._sums(weights, rows, clip)
        total, exceeding = torch.from_numpy(mine.total), mine.exceeding
        room = torch.empty_like(total)
        for rank in self._link.others:
            found = self._link.answer(rank, room)
            if found is None:
                raise WorkerError(f"Rank {rank} has failed. See what it says itself.")
            total += room
            exceeding += int(found[0])
            self._met[rank] = found[1:]
        return Clipped(total.numpy(), exceeding)

    def counts(self) -> Internal:
        """What was met among the records of all ranks."""
        every = [_told(self._sums), *self._met.values()]
        return Internal(*(int(sum(one)) for one in zip(*every, strict=True)))


class Following:
    """Any other rank: sums over its own records, and takes the model in the end.

    Should anything fail here, rank 0 hears of it (:meth:`Link.excuse`).
    """

    leads = False

    def __init__(self, link: Link, module: Tensor) -> None:
        self._link, self.world = link, link.world
        self._module = module

    @contextmanager
    def begun(self, module: nn.Module) -> Iterator[None]:
        """Take the module of rank 0, all of it."""
        write_all(self._module, module)
        yield

    def descend(
        self, descent: Descent, run: Run, sums: NetworkSums, n: int, rng: np.random.Generator
    ) -> Ended:
        """Send the clipped sum over a batch for as long as rank 0 asks for one."""
        (coins,) = rng.spawn(1)  # this rank's own: no other draws from it, nobody has a seed
        while True:
            order, value, content = self._link.ordered()
            if order == Order.OVER:
                noise, last, shown = _taken(content)
                done = Descended(last, descent.event(), int(value), private=True)
                return Ended(done, shown, noise, _counts(sums))
            rows = descent.sampler.batch(n, coins)
            weights = content.view(torch.float32).numpy()
            found = sums(weights, rows, _with_threshold(descent.clip, value))
            self._send(found, sums)

    def _send(self, found: Clipped, sums: NetworkSums) -> None:
        """Send a sum, and what was counted."""
        met = [found.total.size, found.exceeding, *_told(sums)]
        self._link.send(torch.tensor(met, dtype=torch.float64))
        self._link.send(torch.from_numpy(found.total))
        self._link.asked = False


def _taken(content: Tensor) -> tuple[Noise, Floats, Floats]:
    """What rank 0 sends in the end: how much noise there was, and two sets of weights."""
    found, least, silent = content[:24].view(torch.float64).tolist()  # three of eight bytes
    last, shown = content[24:].view(torch.float32).numpy().reshape(2, -1)
    return (found, least, bool(silent)), last, shown


def read_all(module: nn.Module) -> Tensor:
    """The bytes of all parameters and buffers, trained or not."""
    parts = [one.detach().reshape(-1).view(torch.uint8) for one in _tensors(module)]
    return torch.cat([torch.empty(0, dtype=torch.uint8), *parts])


def write_all(content: Tensor, module: nn.Module) -> None:
    """Set all parameters and buffers."""
    start = 0
    with torch.no_grad():
        for one in _tensors(module):
            end = start + one.numel() * one.element_size()
            one.copy_(content[start:end].clone().view(one.dtype).view(one.shape))
            start = end


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers, each once."""
    yield from module.parameters()
    yield from module.buffers()


def _as_sent(weights: Floats) -> Tensor:
    """Weights as they travel: as exact as they are."""
    return torch.from_numpy(np.ascontiguousarray(weights, dtype=np.float32))


def _with_threshold(clip: Clip, threshold: float) -> Clip:
    """The rule of a step."""
    return replace(clip, threshold=threshold) if isinstance(clip, GlobalAdapt) else clip


def _counts(sums: NetworkSums) -> Internal:
    """What was met among the records of one rank."""
    return Internal(sums.tally.seen, sums.tally.clipped, sums.tally.broken)


def _told(sums: NetworkSums) -> tuple[int, int, int]:
    """The same as numbers, for rank 0."""
    return sums.tally.seen, sums.tally.clipped, sums.tally.broken


def _ended(run: Run, done: Descended, internal: Internal) -> Ended:
    """How the run of a process that leads has ended."""
    return Ended(done, run.watch.average.mean(done.weights), run.noise(), internal)

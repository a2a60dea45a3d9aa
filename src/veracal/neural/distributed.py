"""What the ranks of torch.distributed say to each other, each of them to rank 0 alone.

A descent in one process, or in several of which one leads.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from veracal._types import Floats, Ints
from veracal.accounting import Unit
from veracal.errors import WorkerError
from veracal.mechanisms import DPSGD, Clipped, ClipRule, GlobalAdapt, TrainingResult
from veracal.neural.gradient_sums import NetworkSums
from veracal.neural.run import InternalFigures, NoiseFigures, TrainingRun
from veracal.queries import charged_total

_MAX_ERROR_LENGTH = 2_000  # characters of an error that others are told
_MAX_SETTING_LENGTH = 80


@dataclass(frozen=True)
class Ranks:
    r"""Train one network on the records of all ranks of ``torch.distributed``.

    Rank 0 leads. At every step it sends the weights to all others; every rank flips secret
    coins for its own records, clips and sums :math:`s_r`, and sends the sum to rank 0, where

    .. math:: \tilde g = \frac{1}{B} \left( \sum_r s_r + \mathcal{N}(0, \sigma^2 C^2 I) \right)

    gets its noise, once, and the weights follow. The process group is the default one, with
    gloo (``torch.distributed.init_process_group("gloo")``); who waits longer than its timeout
    stops with an error.

    Rank 0 fits through a :class:`~veracal.queries.Curator`, whose ledger is that of *all*
    records; the others call ``fit_records``, which reads none before rank 0 has paid. All end
    with the same model, or all stop.

    Parameters
    ----------
    units_apart : bool
        Whether all rows of a unit (a patient) are on one rank. By default a unit may be on
        every rank, and its rows are added up.

    Guarantees
    ----------
    The event is that of one process with the records of all ranks. Coins of all ranks are
    independent, so that together they are one Poisson sample; a record moves the sum of its
    own rank, by the clip bound at most, and no other. That takes for granted that no record is
    on two ranks; ranks whose data sets were split by different keys or by draws of their own,
    which would put records on two of them, are refused. Under add-remove no rank tells how
    many records it has; under replace-one these numbers are public, and must add up to the
    size.

    All ranks are trusted, and so is the network between them: rank 0 sees each rank's sum
    without noise, and nothing is encrypted here. Another rank sees nothing but its own records
    and what is released anyway: weights, and the noisy threshold of an adaptive clip rule. The
    model is private against whoever sees what comes out in the end, and not against a rank.
    """

    units_apart: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.units_apart, bool):
            raise ValueError(f"Expected True or False, got units_apart={self.units_apart!r}.")


class RankCommand(IntEnum):
    """What rank 0 tells the others to do."""

    COMPARE = 1  # say which settings you have
    BEGIN = 2  # it is paid for: take the module
    STEP = 3  # take these weights, and send the sum over a batch
    OVER = 4  # take the model
    STOP = 5  # there will be none


class RankConnection:
    """The way from a rank to rank 0, and from there to all others.

    Attributes
    ----------
    owed : set of int
        On rank 0: whose sums have been asked for and are still to come.
    over : bool
        On rank 0: whether all others have been told that it is over, one way or the other.
    begun : bool
        On another rank: whether rank 0 has begun, and goes on.
    asked : bool
        On another rank: whether rank 0 waits for a sum.
    charged : bool
        On another rank: whether a ledger was charged on rank 0.
    ledger_total : str or None
        On another rank: what everything on that ledger may cost, in a sentence.
    """

    charged = False
    ledger_total: str | None = None

    def __init__(self) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError(
                "Expected torch.distributed to be set up, got no process group. Call "
                "torch.distributed.init_process_group('gloo') on every rank, for example in a "
                "script that torchrun starts."
            )
        if "cpu:gloo" not in dist.get_backend_config():
            raise ValueError(
                "Expected a process group with gloo, since sums are in main memory, got "
                f"{dist.get_backend_config()!r}. Call init_process_group('gloo')."
            )
        self.owed: set[int] = set()
        self.over = self.begun = self.asked = False

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return dist.get_rank()

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return dist.get_world_size()

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def others(self) -> range:
        """All ranks but rank 0."""
        return range(1, self.world)

    def send(self, tensor: Tensor, to: int = 0) -> None:
        """Send numbers to a rank that waits for as many."""
        try:
            dist.send(tensor, to)
        except RuntimeError as error:
            self.begun = False
            raise _lost_rank_error(to) from error

    def receive(self, tensor: Tensor, of: int = 0) -> Tensor:
        """Fill a tensor with what a rank sends."""
        try:
            dist.recv(tensor, of)
        except RuntimeError as error:
            self.begun = False
            raise _lost_rank_error(of) from error
        return tensor

    def order(
        self, order: RankCommand, to: int, value: float = 0.0, content: Tensor | None = None
    ) -> None:
        """Tell another rank what to do; a figure and a tensor may go with it."""
        what = torch.empty(0, dtype=torch.uint8) if content is None else _as_bytes(content)
        self.send(torch.tensor([float(order), value, len(what)], dtype=torch.float64), to)
        if len(what):
            self.send(what, to)

    def begin(self, to: int, total: str | None, module: Tensor) -> None:
        """Tell another rank to begin: with the module's bytes, and the ledger's total after.

        Parameters
        ----------
        to : int
        total : str or None
            Of the ledger that was charged; None where none was.
        module : tensor of bytes
        """
        words = torch.empty(0, dtype=torch.uint8) if total is None else _encode_text(total)
        self.order(RankCommand.BEGIN, to, len(words), torch.cat([_as_bytes(module), words]))

    def ordered(self) -> tuple[RankCommand, float, Tensor]:
        """What rank 0 wants, and the figure and the bytes that go with it.

        Raises
        ------
        WorkerError
            If it has stopped.
        """
        self.asked = False
        number, value, size = self.receive(torch.empty(3, dtype=torch.float64)).tolist()
        content = torch.empty(int(size), dtype=torch.uint8)
        if len(content):
            self.receive(content)
        order = RankCommand(int(number))
        if order == RankCommand.BEGIN:
            end = len(content) - int(value)
            content, total = content[:end], content[end:]
            self.charged = bool(value)
            self.ledger_total = bytes(total.tolist()).decode() if self.charged else None
        self.begun = order in (RankCommand.BEGIN, RankCommand.STEP)
        self.asked = order == RankCommand.STEP
        if order == RankCommand.STOP:
            words = bytes(content.tolist()).decode()
            raise WorkerError(f"Rank 0 has stopped, and all ranks with it: {words}")
        return order, value, content

    def excuse(self) -> None:
        """Answer the next step with a failure, and hear rank 0 stop, if it has begun."""
        with suppress(WorkerError):
            while self.begun:
                if self.asked:
                    self.send(torch.tensor([-1.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64))
                self.ordered()

    def say(self, words: str, to: int = 0) -> None:
        """Send text."""
        content = _encode_text(words)
        self.send(torch.tensor([len(content)]), to)
        self.send(content, to)

    def words(self, of: int = 0) -> str:
        """Text that a rank sends."""
        length = int(self.receive(torch.empty(1, dtype=torch.int64), of))
        content = self.receive(torch.empty(length, dtype=torch.uint8), of)
        return bytes(content.tolist()).decode()

    def stop(self, problem: BaseException) -> None:
        """Tell all others, once, that there will be no model; who is gone is passed over."""
        if self.over:
            return
        self.over = True
        words = f"{type(problem).__name__}: {problem}"[:_MAX_ERROR_LENGTH]
        for rank in self.others:
            with suppress(WorkerError):
                if rank in self.owed:  # it would wait until somebody takes its sum
                    self.answer(rank, None)
                self.order(RankCommand.STOP, rank, content=_encode_text(words))

    def answer(self, rank: int, room: Tensor | None) -> list[float] | None:
        """The sum that a rank owes, into ``room``, and its counts; None if it has failed.

        Without room the sum is taken and thrown away.
        """
        self.owed.discard(rank)
        size, *counts = self.receive(torch.empty(5, dtype=torch.float64), rank).tolist()
        if size < 0:
            return None
        self.receive(
            torch.empty(int(size), dtype=torch.float64) if room is None else room, rank
        )
        return counts


def _encode_text(words: str) -> Tensor:
    """The bytes of a text, which is not empty."""
    return torch.frombuffer(bytearray(words.encode()), dtype=torch.uint8)


def _as_bytes(content: Tensor) -> Tensor:
    """A tensor as bytes, without a copy."""
    return content.contiguous().view(torch.uint8)


def _lost_rank_error(rank: int) -> WorkerError:
    """What is said of a rank that does not answer."""
    return WorkerError(
        f"Rank {rank} does not answer: it has stopped, or is later than the timeout of the "
        "process group. See what it says itself, and start all ranks anew."
    )


@dataclass(frozen=True)
class RankFacts:
    """What is public about a rank's share of a fit.

    Attributes
    ----------
    settings : mapping
        What must be the same everywhere, as what JSON can hold.
    rows : int or None
        How many records there are, where that is public.
    at_most : int or None
        Most rows of one unit, where there are units.
    split : sequence of str
        Marks of the keys and the draws by which the records were split.
    """

    settings: Mapping[str, Any]
    rows: int | None
    at_most: int | None
    split: Sequence[str] = ()


def agree_on_fit(
    link: RankConnection, check: Callable[[], RankFacts], unit: Unit, ranks: Ranks, size: int
) -> Tensor | None:
    """Check a fit on every rank, by what is public, before anything is charged.

    Rank 0 compares what all have told. The others come back once rank 0 has paid and begins:
    until then, they read no record.

    Parameters
    ----------
    link : Link
    check : callable
        Raises unless this rank can take part, and tells what is public about its share.
    unit : Unit
        Whom the guarantee protects.
    ranks : Ranks
    size : int
        Declared number of all records.

    Returns
    -------
    tensor or None
        On other ranks than rank 0: the bytes of its module.
    """
    if not link.leads:
        return _wait_for_leader(link, check)
    link.over = False
    try:
        mine = check()
        for rank in link.others:
            link.order(RankCommand.COMPARE, rank)
        every = [mine, *_receive_facts(link)]
        check_same_settings(every)
        check_same_split(every)
        check_totals(every, unit, ranks, size)
    except BaseException as problem:
        link.stop(problem)
        raise
    return None


def _wait_for_leader(link: RankConnection, check: Callable[[], RankFacts]) -> Tensor:
    """Tell rank 0 what it asks for, until it begins."""
    problem, words = None, "null"
    try:
        told = check()
        words = json.dumps([dict(told.settings), told.rows, told.at_most, list(told.split)])
    except Exception as error:  # rank 0 hears of it when it asks, and stops everybody
        problem = error
    try:
        while (told_by_0 := link.ordered())[0] == RankCommand.COMPARE:
            link.say(words)
        order, _, module = told_by_0
        if order != RankCommand.BEGIN:
            raise WorkerError("Rank 0 is at another fit. Start all ranks anew.")
        return module
    except WorkerError as stopped:
        raise stopped if problem is None else problem from None


def _receive_facts(link: RankConnection) -> list[RankFacts]:
    """What all others tell of their shares.

    All are heard before any is found wanting: who waits to be heard could not be told to stop.
    """
    every: dict[int, list[Any] | None] = {}
    problems: list[WorkerError] = []
    for rank in link.others:
        try:
            every[rank] = json.loads(link.words(rank))
        except WorkerError as gone:
            problems.append(gone)
    for rank, told in every.items():
        if told is None:
            problem = f"Rank {rank} cannot take part. See what it says itself."
            problems.append(WorkerError(problem))
    if problems:
        raise problems[0]
    return [RankFacts(*told) for told in every.values() if told is not None]


def check_same_settings(every: list[RankFacts]) -> None:
    """Refuse settings that are not the same on all ranks."""
    first = json.loads(json.dumps(dict(every[0].settings)))
    for rank, told in enumerate(every):
        for name in sorted(first.keys() | told.settings.keys()):
            here, there = first.get(name), told.settings.get(name)
            if rank and here != there:
                raise ValueError(
                    f"Expected the same settings on all ranks, got another {name} on rank "
                    f"{rank}: {_shorten(there)}, where rank 0 has {_shorten(here)}. Give all "
                    "ranks the same."
                )


def check_same_split(every: list[RankFacts]) -> None:
    """Refuse records that were split by other draws or keys on one of the ranks.

    Each rank could then have rows that are also on another one, where they would be counted
    twice, or that belong to the test part of another one.
    """
    for rank, told in enumerate(every):
        if list(told.split) != list(every[0].split):
            raise ValueError(
                "Expected records of one split on all ranks, got records on rank "
                f"{rank} that were not split as those on rank 0 were: some may be on both, or "
                "in a test part of the other. Split with one key on every rank, "
                "split(dataset, key='...'), or split on rank 0 and hand every rank its rows."
            )


def check_totals(every: list[RankFacts], unit: Unit, ranks: Ranks, size: int) -> None:
    """Refuse shares that together are not what was declared."""
    rows = [told.rows for told in every if told.rows is not None]
    if rows and sum(rows) != size:
        raise ValueError(
            f"Expected size={sum(rows)}, the number of records on all ranks, which "
            f"replace-one takes to be public, got size={size}."
        )
    if len({told.at_most is None for told in every}) > 1 and not ranks.units_apart:
        raise ValueError(
            f"Expected ids of the {unit.name} on all ranks or on none, got them on some: rows "
            "of one could be on others. Give them everywhere, or say Ranks(units_apart=True)."
        )
    most = sum(told.at_most for told in every if told.at_most is not None)
    if most > unit.at_most and not ranks.units_apart:
        raise ValueError(
            f"Expected at most {unit.at_most} rows of a {unit.name} on all ranks together, got "
            f"up to {most}. Keep all rows of a {unit.name} on one rank and say "
            "Ranks(units_apart=True), or limit contributions further."
        )


def describe_module(module: nn.Module) -> list[str]:
    """What a module looks like, whatever its weights are."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return [
        repr(module),
        *(f"{name} {one.dtype} {list(one.shape)} {one.requires_grad}" for name, one in named),
    ]


def _shorten(value: Any) -> str:
    """A setting, not at length."""
    text = str(value)
    return text if len(text) <= _MAX_SETTING_LENGTH else text[:_MAX_SETTING_LENGTH] + "…"


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it counts records
class DistributedResult:
    """How a descent ended.

    Attributes
    ----------
    done : TrainingResult
    shown : array
        The weights that the model gets: a mean, where weights are averaged.
    noise : tuple
        See :class:`~veracal.neural.run.SelfCheck`.
    internal : Internal
    """

    done: TrainingResult
    shown: Floats
    noise: NoiseFigures
    internal: InternalFigures


class Strategy(Protocol):
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
        self,
        descent: DPSGD,
        run: TrainingRun,
        sums: NetworkSums,
        n: int,
        rng: np.random.Generator,
    ) -> DistributedResult:
        """Take all steps, with n records here."""


class SingleProcess:
    """One process has all records."""

    leads, world = True, 1

    @contextmanager
    def begun(self, module: nn.Module) -> Iterator[None]:
        """Nobody else is there."""
        yield

    def descend(
        self,
        descent: DPSGD,
        run: TrainingRun,
        sums: NetworkSums,
        n: int,
        rng: np.random.Generator,
    ) -> DistributedResult:
        """Take all steps."""
        done = descent.run(
            run.first, sums, n, rng=rng, on_step=run, start=run.standing, in_place=True
        )
        run.over()
        return _build_result(run, done, _internal_figures(sums))


class Leader:
    """Rank 0: draws the noise, takes the steps, and has the only ledger and checkpoint."""

    leads = True

    def __init__(self, link: RankConnection) -> None:
        self._link, self.world = link, link.world

    @contextmanager
    def begun(self, module: nn.Module) -> Iterator[None]:
        """Begin, now that it is paid for; should anything fail, nobody goes on waiting."""
        try:
            total = charged_total()
            for rank in self._link.others:
                self._link.begin(rank, total, pack_module(module))
            yield
        except BaseException as problem:
            self._link.stop(problem)
            raise

    def descend(
        self,
        descent: DPSGD,
        run: TrainingRun,
        sums: NetworkSums,
        n: int,
        rng: np.random.Generator,
    ) -> DistributedResult:
        """Take all steps, each with the sums of all ranks, and give them the model."""
        joined = CombinedSums(self._link, sums)
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
        ended = _build_result(run, done, joined.counts())
        self._link.over = True
        for rank in self._link.others:
            try:
                self._give(ended, rank)
            except WorkerError as error:  # what was paid for is here, and stays
                warnings.warn(f"The model is done, but not everywhere: {error}", stacklevel=2)
        return ended

    def _give(self, ended: DistributedResult, rank: int) -> None:
        """Send another rank how it ended."""
        both = [_to_float32(weights) for weights in (ended.done.weights, ended.shown)]
        noise = torch.tensor(ended.noise, dtype=torch.float64)
        content = torch.cat([one.view(torch.uint8) for one in (noise, *both)])
        self._link.order(RankCommand.OVER, rank, ended.done.steps, content)


class CombinedSums:
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

    def __init__(self, link: RankConnection, sums: NetworkSums) -> None:
        self._link, self._sums = link, sums
        self._met = {rank: [0.0, 0.0, 0.0] for rank in link.others}

    def __call__(self, weights: Floats, rows: Ints, clip: ClipRule) -> Clipped:
        """The clipped sum over rows here and batches elsewhere."""
        threshold = clip.threshold if isinstance(clip, GlobalAdapt) else 0.0
        for rank in self._link.others:
            self._link.order(RankCommand.STEP, rank, threshold, _to_float32(weights))
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

    def counts(self) -> InternalFigures:
        """What was met among the records of all ranks."""
        every = [_count_list(self._sums), *self._met.values()]
        return InternalFigures(*(int(sum(one)) for one in zip(*every, strict=True)))


class Follower:
    """Any other rank: sums over its own records, and takes the model in the end.

    Should anything fail here, rank 0 hears of it (:meth:`Link.excuse`).
    """

    leads = False

    def __init__(self, link: RankConnection, module: Tensor) -> None:
        self._link, self.world = link, link.world
        self._module = module

    @contextmanager
    def begun(self, module: nn.Module) -> Iterator[None]:
        """Take the module of rank 0, all of it."""
        unpack_module(self._module, module)
        yield

    def descend(
        self,
        descent: DPSGD,
        run: TrainingRun,
        sums: NetworkSums,
        n: int,
        rng: np.random.Generator,
    ) -> DistributedResult:
        """Send the clipped sum over a batch for as long as rank 0 asks for one."""
        (coins,) = rng.spawn(1)  # this rank's own: no other draws from it, nobody has a seed
        while True:
            order, value, content = self._link.ordered()
            if order == RankCommand.OVER:
                noise, last, shown = _unpack_result(content)
                done = TrainingResult(last, descent.event(), int(value), private=True)
                return DistributedResult(done, shown, noise, _internal_figures(sums))
            rows = descent.sampler.batch(n, coins)
            weights = content.view(torch.float32).numpy()
            found = sums(weights, rows, _set_threshold(descent.clip, value))
            self._send(found, sums)

    def _send(self, found: Clipped, sums: NetworkSums) -> None:
        """Send a sum, and what was counted."""
        met = [found.total.size, found.exceeding, *_count_list(sums)]
        self._link.send(torch.tensor(met, dtype=torch.float64))
        self._link.send(torch.from_numpy(found.total))
        self._link.asked = False


def _unpack_result(content: Tensor) -> tuple[NoiseFigures, Floats, Floats]:
    """What rank 0 sends in the end: how much noise there was, and two sets of weights."""
    found, least, silent = content[:24].view(torch.float64).tolist()  # three of eight bytes
    last, shown = content[24:].view(torch.float32).numpy().reshape(2, -1)
    return (found, least, bool(silent)), last, shown


def pack_module(module: nn.Module) -> Tensor:
    """The bytes of all parameters and buffers, trained or not."""
    parts = [one.detach().reshape(-1).view(torch.uint8) for one in _module_tensors(module)]
    return torch.cat([torch.empty(0, dtype=torch.uint8), *parts])


def unpack_module(content: Tensor, module: nn.Module) -> None:
    """Set all parameters and buffers."""
    start = 0
    with torch.no_grad():
        for one in _module_tensors(module):
            end = start + one.numel() * one.element_size()
            one.copy_(content[start:end].clone().view(one.dtype).view(one.shape))
            start = end


def _module_tensors(module: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers, each once."""
    yield from module.parameters()
    yield from module.buffers()


def _to_float32(weights: Floats) -> Tensor:
    """Weights as they travel: as exact as they are."""
    return torch.from_numpy(np.ascontiguousarray(weights, dtype=np.float32))


def _set_threshold(clip: ClipRule, threshold: float) -> ClipRule:
    """The rule of a step."""
    return replace(clip, threshold=threshold) if isinstance(clip, GlobalAdapt) else clip


def _internal_figures(sums: NetworkSums) -> InternalFigures:
    """What was met among the records of one rank."""
    return InternalFigures(sums.tally.seen, sums.tally.clipped, sums.tally.broken)


def _count_list(sums: NetworkSums) -> tuple[int, int, int]:
    """The same as numbers, for rank 0."""
    return sums.tally.seen, sums.tally.clipped, sums.tally.broken


def _build_result(
    run: TrainingRun, done: TrainingResult, internal: InternalFigures
) -> DistributedResult:
    """How the run of a process that leads has ended."""
    return DistributedResult(done, run.watch.average.mean(done.weights), run.noise(), internal)

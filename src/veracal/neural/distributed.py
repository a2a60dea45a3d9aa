"""DP-SGD over the ranks of ``torch.distributed``, led by rank 0.

Ranks exchange messages with rank 0 only. One process leads (:class:`Leader`), with all records or
with other ranks that follow (:class:`Follower`).
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from veracal._types import Floats, Ints
from veracal.accounting import Unit
from veracal.errors import WorkerError
from veracal.mechanisms import ClippedSum, ClipRule, GlobalAdapt, TrainingResult
from veracal.neural.gradient_sums import NetworkSums
from veracal.neural.run import InternalFigures, NoiseFigures, TrainingRun
from veracal.queries import charged_total

_MAX_ERROR_LENGTH = 2_000  # characters of an error that are sent to other ranks
_MAX_SETTING_LENGTH = 80
# The last step, the weights of the model (a mean, with averaging), noise and internal figures.
RunResult = tuple[TrainingResult, Floats, NoiseFigures, InternalFigures]


@dataclass(frozen=True)
class Ranks:
    r"""Train one network on the records of all ranks of ``torch.distributed``.

    Rank 0 leads. At every step it sends the weights to all others; every rank draws a secret
    Poisson sample of its own records, clips and sums :math:`s_r`, and sends the sum to rank 0,
    where

    .. math:: \tilde g = \frac{1}{B} \left( \sum_r s_r + \mathcal{N}(0, \sigma^2 C^2 I) \right)

    gets its noise, once, and the weights are updated. The process group is the default one,
    with gloo (``torch.distributed.init_process_group("gloo")``); a rank that waits longer than
    its timeout stops with an error.

    Rank 0 fits through a :class:`~veracal.queries.Curator`, whose ledger covers *all* records;
    the others call ``fit_records``, which reads no record before rank 0 has paid. All end with
    the same model, or all stop.

    Parameters
    ----------
    units_disjoint : bool
        Whether all rows of a unit (such as a patient) are on one rank. By default a unit may be
        on every rank, and its rows are added up.

    Guarantees
    ----------
    The event is that of one process with the records of all ranks. The
    Poisson draws of all ranks are independent, so that together they form one Poisson sample; a
    record moves the sum of its own rank, by at most the clip bound, and no other. This assumes
    that no record is on two ranks. Ranks whose data sets were split by different keys or by
    separate random draws, which would put records on two ranks, are rejected. Under add-remove
    no rank reveals its number of records; under replace-one these numbers are public, and must
    add up to the size.

    All ranks are trusted, and so is the network between them: rank 0 sees each rank's sum
    without noise, and nothing is encrypted here. Another rank sees nothing but its own records
    and what is released anyway: weights, and the noisy threshold of an adaptive clip rule. The
    model is private against an observer of the final release, and not against a rank.
    """

    units_disjoint: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.units_disjoint, bool):
            raise ValueError(
                f"Expected True or False, got units_disjoint={self.units_disjoint!r}."
            )


class RankCommand(IntEnum):
    """Commands of rank 0 to the others."""

    COMPARE = 1  # send the public facts
    BEGIN = 2  # the fit is paid for: load the module
    STEP = 3  # send the sum over a batch at these weights
    OVER = 4  # take the model
    STOP = 5  # the fit has failed


class RankConnection:
    """Connection between a rank and rank 0.

    On rank 0, ``pending`` holds the ranks whose requested sums have not arrived yet, and
    ``over`` says whether all others know that the fit has ended, successfully or not. On
    another rank, ``started`` says whether rank 0 has started and continues, ``sum_requested``
    whether it waits for a sum, and ``charged`` whether a ledger was charged there, of whose total
    ``ledger_total`` is a sentence.
    """

    charged = False
    ledger_total: str | None = None

    def __init__(self) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError(
                "Expected an initialized torch.distributed, got no process group. Call "
                "torch.distributed.init_process_group('gloo') on every rank, for example in a "
                "script started by torchrun."
            )
        if "cpu:gloo" not in dist.get_backend_config():
            raise ValueError(
                "Expected a process group with gloo, since sums are on the CPU, got "
                f"{dist.get_backend_config()!r}. Call init_process_group('gloo')."
            )
        self.pending: set[int] = set()
        self.over = self.started = self.sum_requested = False

    @property
    def rank(self) -> int:
        """Number of this rank; 0 leads."""
        return dist.get_rank()

    @property
    def world(self) -> int:
        """Number of ranks."""
        return dist.get_world_size()

    @property
    def others(self) -> range:
        """All ranks except rank 0."""
        return range(1, self.world)

    def send(self, tensor: Tensor, to: int = 0) -> None:
        """Send numbers to a rank that waits for as many."""
        try:
            dist.send(tensor, to)
        except RuntimeError as error:
            raise self._lost(to) from error

    def receive(self, tensor: Tensor, of: int = 0) -> Tensor:
        """Fill a tensor with the numbers that a rank sends."""
        try:
            dist.recv(tensor, of)
        except RuntimeError as error:
            raise self._lost(of) from error
        return tensor

    def _lost(self, rank: int) -> WorkerError:
        """Error for a rank that does not answer."""
        self.started = False
        return WorkerError(
            f"Rank {rank} does not answer: it has stopped, or exceeded the timeout of the "
            "process group. See its own error message, and restart all ranks."
        )

    def send_command(
        self, command: RankCommand, to: int, value: float = 0.0, content: Tensor | None = None
    ) -> None:
        """Send a command to another rank, with an optional value and tensor."""
        size = 0 if content is None else content.nbytes
        self.send(torch.tensor([float(command), value, size], dtype=torch.float64), to)
        if content is not None and size:
            self.send(content.contiguous().view(torch.uint8), to)

    def receive_command(self) -> tuple[RankCommand, float, Tensor]:
        """Receive a command of rank 0, with its value and bytes; raise if rank 0 has stopped."""
        self.sum_requested = False
        number, value, size = self.receive(torch.empty(3, dtype=torch.float64)).tolist()
        payload = torch.empty(int(size), dtype=torch.uint8)
        if size:
            self.receive(payload)
        command = RankCommand(int(number))
        if command == RankCommand.BEGIN:
            end = len(payload) - int(value)
            payload, total = payload[:end], payload[end:]
            self.charged = bool(value)
            self.ledger_total = bytes(total.tolist()).decode() if self.charged else None
        self.started = command in (RankCommand.BEGIN, RankCommand.STEP)
        self.sum_requested = command == RankCommand.STEP
        if command == RankCommand.STOP:
            message = bytes(payload.tolist()).decode()
            raise WorkerError(f"Rank 0 has stopped all ranks: {message}")
        return command, value, payload

    def report_failure(self) -> None:
        """Report a failure at the next step, if rank 0 has started, and wait until it stops."""
        with suppress(WorkerError):
            while self.started:
                if self.sum_requested:
                    self.send(torch.tensor([-1.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64))
                self.receive_command()

    def stop(self, problem: BaseException) -> None:
        """Tell all others, once, that the fit failed; unreachable ranks are skipped."""
        if self.over:
            return
        self.over = True
        message = f"{type(problem).__name__}: {problem}"[:_MAX_ERROR_LENGTH]
        for rank in self.others:
            with suppress(WorkerError):
                if rank in self.pending:  # it blocks until its sum is received
                    self.receive_sum(rank, None)
                self.send_command(RankCommand.STOP, rank, content=_to_bytes(message))

    def receive_sum(self, rank: int, buffer: Tensor | None) -> list[float] | None:
        """Receive the pending sum of a rank; return its counts, or None if it failed."""
        self.pending.discard(rank)
        size, *counts = self.receive(torch.empty(5, dtype=torch.float64), rank).tolist()
        if size < 0:
            return None
        self.receive(
            torch.empty(int(size), dtype=torch.float64) if buffer is None else buffer, rank
        )
        return counts


def _to_bytes(text: str) -> Tensor:
    """Bytes of a text; none for an empty one."""
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


class RankFacts(NamedTuple):
    """Public facts about a rank's part in a fit."""

    settings: Mapping[str, Any]  # what must be equal on all ranks, as JSON values
    rows: int | None  # number of records, if it is public
    max_contributions: int | None  # rows of one unit, with units
    split: Sequence[str] = ()  # marks of the keys and draws by which the records were split


def agree_on_fit(
    connection: RankConnection,
    check: Callable[[], RankFacts],
    unit: Unit,
    ranks: Ranks,
    size: int,
) -> Tensor | None:
    """Check a fit on every rank, by public facts, before anything is charged.

    Rank 0 compares the facts of all ranks with each other and with the declared number of all
    records. The others return the bytes of its module after rank 0 has paid and starts; until
    then, they read no record. ``check`` raises if this rank cannot take part.
    """
    if connection.rank:
        problem, reply = None, _to_bytes("null")
        try:
            reply = _to_bytes(json.dumps(check()))
        except Exception as error:  # rank 0 learns of it when it asks, and stops all ranks
            problem = error
        try:
            while (message := connection.receive_command())[0] == RankCommand.COMPARE:
                connection.send(torch.tensor([len(reply)]))
                connection.send(reply)
        except WorkerError as stopped:
            raise stopped if problem is None else problem from None
        command, _, module = message
        if command != RankCommand.BEGIN:
            raise WorkerError("Rank 0 runs another fit. Restart all ranks.")
        return module
    connection.over = False
    try:
        all_facts, problems = [check()], list[WorkerError]()
        for rank in connection.others:
            connection.send_command(RankCommand.COMPARE, rank)
        # All are received before any is rejected: a rank that still waits to send could not be
        # stopped.
        for rank in connection.others:
            try:
                length = connection.receive(torch.empty(1, dtype=torch.int64), rank)
                content = torch.empty(int(length), dtype=torch.uint8)
                facts = json.loads(bytes(connection.receive(content, rank).tolist()))
            except WorkerError as error:
                problems.append(error)
                continue
            if facts is None:
                text = f"Rank {rank} cannot take part. See its own error message."
                problems.append(WorkerError(text))
            else:
                all_facts.append(RankFacts(*facts))
        if problems:
            raise problems[0]
        check_same_settings(all_facts)
        check_same_split(all_facts)
        check_totals(all_facts, unit, ranks, size)
    except BaseException as problem:
        connection.stop(problem)
        raise
    return None


def check_same_settings(all_facts: list[RankFacts]) -> None:
    """Reject settings that differ between ranks."""
    leader_settings = json.loads(json.dumps(dict(all_facts[0].settings)))
    for rank, facts in enumerate(all_facts):
        for name in sorted(leader_settings.keys() | facts.settings.keys()):
            expected, actual = leader_settings.get(name), facts.settings.get(name)
            if rank and expected != actual:
                here, there = (
                    text[:_MAX_SETTING_LENGTH] + "…" * (len(text) > _MAX_SETTING_LENGTH)
                    for text in map(str, (expected, actual))
                )
                raise ValueError(
                    f"Expected the same settings on all ranks, got another {name} on rank "
                    f"{rank}: {there}, where rank 0 has {here}. Use the same settings on all "
                    "ranks."
                )


def check_same_split(all_facts: list[RankFacts]) -> None:
    """Reject records that were split by different draws or keys on the ranks.

    A rank could then hold rows that are also on another rank, where they would be counted
    twice, or that belong to the test part of another rank.
    """
    for rank, facts in enumerate(all_facts):
        if list(facts.split) != list(all_facts[0].split):
            raise ValueError(
                f"Expected records of one split on all ranks, got records on rank {rank} that "
                "were split in another way than those on rank 0: some may be on both, or in a "
                "test part of the other. Split with one key on every rank, split(dataset, "
                "key='...'), or split on rank 0 and send every rank its rows."
            )


def check_totals(all_facts: list[RankFacts], unit: Unit, ranks: Ranks, size: int) -> None:
    """Reject numbers of records or rows that do not add up to the declared ones."""
    rows = [facts.rows for facts in all_facts if facts.rows is not None]
    if rows and sum(rows) != size:
        raise ValueError(
            f"Expected size={sum(rows)}, the number of records on all ranks, which is public "
            f"under replace-one, got size={size}."
        )
    if (
        len({facts.max_contributions is None for facts in all_facts}) > 1
        and not ranks.units_disjoint
    ):
        raise ValueError(
            f"Expected {unit.name} ids on all ranks or on none, got them on some: rows of one "
            f"{unit.name} could be on other ranks. Provide them everywhere, or pass "
            "Ranks(units_disjoint=True)."
        )
    most = sum(
        facts.max_contributions for facts in all_facts if facts.max_contributions is not None
    )
    if most > unit.max_contributions and not ranks.units_disjoint:
        raise ValueError(
            f"Expected at most {unit.max_contributions} rows of a {unit.name} on all ranks "
            f"together, got up to {most}. Keep all rows of a {unit.name} on one rank and pass "
            "Ranks(units_disjoint=True), or limit contributions further."
        )


class CombinedSums:
    """Clipped sums over the batches of all ranks, for the training loop on rank 0.

    Guarantees
    ----------
    The sum and the count of an adaptive rule are those over the union of all batches, so that
    one record moves them as far as in one process. Other ranks send theirs to rank 0 only.
    """

    def __init__(self, connection: RankConnection, sums: NetworkSums) -> None:
        self._connection, self._sums = connection, sums
        self.counts_by_rank = {rank: [0.0, 0.0, 0.0] for rank in connection.others}

    def __call__(self, weights: Floats, rows: Ints, clip: ClipRule) -> ClippedSum:
        """Return the clipped sum over the rows on rank 0 and the batches of the other ranks."""
        threshold = clip.threshold if isinstance(clip, GlobalAdapt) else 0.0
        for rank in self._connection.others:
            content = _to_float32(weights)
            self._connection.send_command(RankCommand.STEP, rank, threshold, content)
            self._connection.pending.add(rank)
        local = self._sums(weights, rows, clip)
        total, exceeding = torch.from_numpy(local.total), local.exceeding
        buffer = torch.empty_like(total)
        for rank in self._connection.others:
            counts = self._connection.receive_sum(rank, buffer)
            if counts is None:
                raise WorkerError(f"Rank {rank} has failed. See its own error message.")
            total += buffer
            exceeding += int(counts[0])
            self.counts_by_rank[rank] = counts[1:]
        return ClippedSum(total.numpy(), exceeding)


class Leader:
    """Draws the noise, takes the steps, and has the only ledger and checkpoint.

    Parameters
    ----------
    connection : RankConnection, optional
        To the other ranks; None if this process has all records.
    """

    leads = True

    def __init__(self, connection: RankConnection | None = None) -> None:
        self._connection = connection
        self.world = 1 if connection is None else connection.world

    @contextmanager
    def session(self, module: nn.Module) -> Iterator[None]:
        """Start all ranks after the charge; on any failure, stop them."""
        if self._connection is None:
            yield
            return
        try:
            total = _to_bytes(charged_total() or "")
            tensors = [one.detach().reshape(-1) for one in _module_tensors(module)]
            content = torch.cat([*(one.view(torch.uint8) for one in tensors), total])
            for rank in self._connection.others:
                self._connection.send_command(RankCommand.BEGIN, rank, len(total), content)
            yield
        except BaseException as problem:
            self._connection.stop(problem)
            raise

    def run_steps(
        self, run: TrainingRun, sums: NetworkSums, rng: np.random.Generator
    ) -> RunResult:
        """Take all steps, each with the sums of all ranks, and send the model to them."""
        connection = self._connection
        combined = None if connection is None else CombinedSums(connection, sums)
        result = run.dp_sgd.run(
            run.initial_weights,
            sums if combined is None else combined,
            len(sums.records),
            rng=rng,
            on_step=run,
            start=run.resume_state,
            in_place=True,
            call_if_empty=connection is not None,
        )
        run.finish()
        model_weights, noise = run.watch.average.mean(result.weights), run.monitor.figures()
        counts = np.array(_list_counts(sums))
        if connection is not None and combined is not None:
            counts += np.array([*combined.counts_by_rank.values()], int).reshape(-1, 3).sum(0)
            connection.over = True
            figures = torch.tensor(noise, dtype=torch.float64).view(torch.uint8)
            vectors = [_to_float32(one) for one in (result.weights, model_weights)]
            content = torch.cat([figures, *(one.view(torch.uint8) for one in vectors)])
            for rank in connection.others:
                try:
                    connection.send_command(RankCommand.OVER, rank, result.steps, content)
                except WorkerError as error:  # the paid model is complete on this rank
                    problem = f"The model did not reach all ranks: {error}"
                    warnings.warn(problem, stacklevel=2)
        return result, model_weights, noise, InternalFigures(*counts.tolist())


class Follower:
    """Any other rank: sums over its own records, and receives the final model.

    Any failure here is reported to rank 0 (:meth:`RankConnection.report_failure`).
    """

    leads = False

    def __init__(self, connection: RankConnection, module: Tensor) -> None:
        self._connection, self.world = connection, connection.world
        self._module = module

    @contextmanager
    def session(self, module: nn.Module) -> Iterator[None]:
        """Load the parameters and buffers of rank 0, trained or not."""
        start = 0
        with torch.no_grad():
            for one in _module_tensors(module):
                values = self._module[start : start + one.nbytes].clone()
                one.copy_(values.view(one.dtype).view(one.shape))
                start += one.nbytes
        yield

    def run_steps(
        self, run: TrainingRun, sums: NetworkSums, rng: np.random.Generator
    ) -> RunResult:
        """Send the clipped sum over a batch whenever rank 0 requests one."""
        dp_sgd = run.dp_sgd
        (sampling_rng,) = rng.spawn(1)  # separate for each rank, and never seeded
        while True:
            command, value, payload = self._connection.receive_command()
            if command == RankCommand.OVER:
                break
            rows = dp_sgd.sampler.batch(len(sums.records), sampling_rng)
            weights = payload.view(torch.float32).numpy()
            self._send(sums(weights, rows, _set_threshold(dp_sgd.clip, value)), sums)
        figures = payload[:24].view(torch.float64)  # three numbers of eight bytes
        noise, least_noise, noise_only = figures.tolist()
        weights, model_weights = payload[24:].view(torch.float32).numpy().reshape(2, -1)
        result = TrainingResult(weights, dp_sgd.event(), int(value), private=True)
        internal = InternalFigures(*_list_counts(sums))
        return result, model_weights, (noise, least_noise, bool(noise_only)), internal

    def _send(self, clipped: ClippedSum, sums: NetworkSums) -> None:
        """Send a sum and the counts."""
        header = [clipped.total.size, clipped.exceeding, *_list_counts(sums)]
        self._connection.send(torch.tensor(header, dtype=torch.float64))
        self._connection.send(torch.from_numpy(clipped.total))
        self._connection.sum_requested = False


def _module_tensors(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers, each once."""
    return [*module.parameters(), *module.buffers()]


def _to_float32(weights: Floats) -> Tensor:
    """Weights as a float32 tensor, their exact precision."""
    return torch.from_numpy(np.ascontiguousarray(weights, dtype=np.float32))


def _set_threshold(clip: ClipRule, threshold: float) -> ClipRule:
    """Clip rule of a step."""
    return replace(clip, threshold=threshold) if isinstance(clip, GlobalAdapt) else clip


def _list_counts(sums: NetworkSums) -> tuple[int, int, int]:
    """Counts over the records of one rank, in the order of the internal figures."""
    return sums.counts.examples, sums.counts.clipped, sums.counts.nonfinite

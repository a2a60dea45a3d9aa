"""Several ranks train a network as one process would: same sums, one noise, independent draws.

Two ranks run in two threads, with queues in place of gloo; everything else is real. Without
noise their sums must equal those of one process with all records, at every step, and a record
of either rank must move them by at most the clip bound. The noise on them must have the
variance of one draw. The Poisson draws of both must have the declared rate and agree as often
as independent ones, each within a false-alarm rate of 1e-7; and a rank whose own batch is empty
must not keep the other's out of the step. Ranks that have split one data set by separate random
draws have records in common (279 of 1,437 in the original example) and are rejected; with one
key they have none, and train.
"""

import queue
import threading
import warnings
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
from scipy import stats
from torch import nn

from assurance.networks import DEEP, SUMS, Patches, patched
from veracal.data import Dataset, split
from veracal.errors import WorkerError
from veracal.mechanisms import DPSGD, ClippedSum, ClipRule, Flat, GlobalAdapt
from veracal.neural import PrivateNetwork, Ranks
from veracal.neural.distributed import Follower, RankConnection
from veracal.neural.gradient_sums import NetworkSums

NAME = "network_ranks"
BOUND, NOISE, RATE, MANY = 0.3, 50.0, 0.3, 40
# A threshold that the gradients of the network are about as long as.
CLIPS: tuple[ClipRule, ...] = (
    Flat(BOUND),
    GlobalAdapt(BOUND, 10.0, rate=0.5, count_noise=1e-6),
)
ALPHA, PATIENCE = 1e-7, 600.0  # seconds, which only a deadlock takes
RANKS = TOGETHER = DEEP + "distributed."
send, receive_sum, run_descent = Follower._send, RankConnection.receive_sum, DPSGD.run
summed = NetworkSums.__call__


# ---------------------------------------------------------------- mutants


def noisy_everywhere(rank: Follower, clipped: ClippedSum, sums: NetworkSums) -> None:
    """Add noise on every rank, too."""
    noise = np.random.default_rng().normal(0.0, NOISE * BOUND, clipped.total.shape)
    send(rank, ClippedSum(clipped.total + noise, clipped.exceeding), sums)


def noise_elsewhere(descent: DPSGD, total: Any, noise_std: float, noise: Any) -> Any:
    """Leave the noise to the other ranks, which leave it to rank 0."""
    return total


def sums_times(factor: float) -> Patches:
    """Count the sums of other ranks so many times."""

    def scaled_sum(connection: RankConnection, rank: int, buffer: Any) -> Any:
        counts = receive_sum(connection, rank, buffer)
        buffer *= factor
        return counts

    return {RANKS + "RankConnection.receive_sum": scaled_sum}


def count_lost(connection: RankConnection, rank: int, buffer: Any) -> Any:
    """Ignore the counts of other ranks for an adaptive rule."""
    counts = receive_sum(connection, rank, buffer)
    return counts and [0.0, *counts[1:]]


def empty_skipped(descent: DPSGD, *arguments: Any, **more: Any) -> Any:
    """Skip the other ranks if the batch of rank 0 is empty."""
    return run_descent(descent, *arguments, **{**more, "call_if_empty": False})


CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "noise added by every rank": {TOGETHER + "Follower._send": noisy_everywhere},
    "M1 noise added by no rank": {
        "veracal.mechanisms.dp_sgd.DPSGD._add_noise": noise_elsewhere
    },
    "sums of other ranks twice": sums_times(2.0),
    "mean over ranks": sums_times(0.5),
    "sums of other ranks lost": sums_times(0.0),
    "counts of other ranks lost": {RANKS + "RankConnection.receive_sum": count_lost},
    "threshold of an adaptive rule not sent": {
        TOGETHER + "_set_threshold": lambda clip, threshold: clip
    },
    "one seed on all ranks": {
        "veracal._random.generator": lambda state: np.random.default_rng(7)
    },
    "M14 empty batches skipped": {"veracal.mechanisms.dp_sgd.DPSGD.run": empty_skipped},
    "records that each rank has split by itself": {
        RANKS + "check_same_split": lambda every: None
    },
    "splits by secret draws leave no mark": {
        "veracal.data.splitting._with_draw_id": lambda dataset, mark, part: dataset
    },
}


# ---------------------------------------------------------------- ranks in threads


class Wires(RankConnection):
    """A connection to another thread by queues."""

    def __init__(self, rank: int, world: int, wires: dict[Any, Any]) -> None:
        self._place, self._wires = (rank, world), wires
        self.pending, self.over = set(), False
        self.started = self.sum_requested = False

    rank = property(lambda self: self._place[0])
    world = property(lambda self: self._place[1])

    def send(self, tensor: Any, to: int = 0) -> None:
        """Send a copy."""
        self._wires[self.rank, to].put(tensor.clone())

    def receive(self, tensor: Any, of: int = 0) -> Any:
        """Wait for a message."""
        try:
            return tensor.copy_(self._wires[of, self.rank].get(timeout=PATIENCE))
        except queue.Empty as error:
            raise WorkerError(f"rank {of} is silent") from error


def fitted(shares: Sequence[Dataset], **settings: Any) -> list[Any]:
    """Noisy sums of rank 0, from simultaneous fits of all ranks or of one process."""
    seen: list[Any] = []
    options = {"epsilon": None, "delta": 1e-9, "classes": (0, 1), "gradients": "ghost"}
    options |= {"on_step": lambda model, step: seen.append(step.noisy_sum), **settings}
    ranks, world = Ranks() if len(shares) > 1 else None, len(shares)
    models = [PrivateNetwork(network, across=ranks, **options) for _ in shares]
    wires = {(a, b): queue.Queue[Any]() for a in range(world) for b in range(world)}
    for rank, model in enumerate(models):
        model._connection = Wires(rank, world, wires)
    others = [
        threading.Thread(target=model.fit_records, args=(share,), daemon=True)
        for model, share in zip(models[1:], shares[1:], strict=True)
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(logits|did not change|paid for)")
        for thread in others:
            thread.start()
        models[0].fit_records(shares[0])
        for thread in others:
            thread.join()
    first, *rest = (model.module_[0].weight for model in models)
    assert all(torch.equal(first, one) for one in rest), "ranks have different models"
    return seen


def network() -> nn.Module:
    """Many weights, so that the variance of the noise is seen in one step."""
    return nn.Sequential(nn.Linear(4, 1_500), nn.Tanh(), nn.Linear(1_500, 2))


# ---------------------------------------------------------------- checks


def run(subject: Patches, *, long: bool) -> str:
    """Compare two ranks with one process."""
    rng = np.random.default_rng(0)
    with patched(subject):
        worst = max(compare(clip, rng) for clip in CLIPS for _ in range(10 if long else 1))
        variance = noise(20 if long else 3)
        check_draws(2_000 if long else 150)
        check_empty(40)
        check_splits()
    return f"moved by {worst:.4f} of the bound, noise of variance {variance:.3f}"


def records(n: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Some rows and labels."""
    return rng.normal(size=(n, 4)).astype(np.float32), rng.integers(2, size=n)


def compare(clip: ClipRule, rng: np.random.Generator) -> float:
    """Sums of two ranks and of one process; how far one record of either rank moves them."""
    X, y = records(12, rng)
    settings = {"clip": clip, "not_private": "clipping only", "sampling_rate": 1.0, "size": 12}
    settings |= {
        "noise_multiplier": 1.0,
        "optimizer": 0.5,
        "steps": 4,
        "module": first_weights(rng),
    }
    with mock.patch(f"{__name__}.network", settings.pop("module")):
        cut = np.split(np.arange(12), [7])
        whole = fitted([Dataset(X, y, (0, 1))], **settings)
        both = fitted([Dataset(X[one], y[one], (0, 1)) for one in cut], **settings)
        for step, (one, two) in enumerate(zip(whole, both, strict=True)):
            gap = np.abs(one - two).max()
            assert gap < 1e-5, f"at step {step} ranks sum {gap:.2g} apart from one process"
        moved = []
        for left in (0, 11):
            shares = [one[one != left] for one in cut]
            less = fitted([Dataset(X[one], y[one], (0, 1)) for one in shares], **settings)
            moved.append(float(np.linalg.norm(both[0] - less[0])) / BOUND)
    assert max(moved) <= 1, f"one record moves the sum by {max(moved):.4f} of the bound"
    return max(moved)


def first_weights(rng: np.random.Generator) -> nn.Module:
    """A network with the same first weights on all ranks and in one process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        return network()


def noise(times: int) -> float:
    """Variance of the noise in units of the charged one, over all weights of some steps."""
    X, y = records(10, np.random.default_rng(1))
    shares = [Dataset(X[:6], y[:6], (0, 1)), Dataset(X[6:], y[6:], (0, 1))]
    settings = {"clip": BOUND, "noise_multiplier": NOISE, "sampling_rate": 1.0, "size": 10}
    seen = np.array(fitted(shares, steps=times, optimizer=1e-9, **settings)) / (NOISE * BOUND)
    squares, entries = float((seen**2).sum()), seen.size
    # Ten clipped records are shorter than a fifth of one weight's noise: not seen here.
    low, high = stats.chi2.ppf(ALPHA / 2, entries), stats.chi2.isf(ALPHA / 2, entries)
    assert low <= squares <= high, f"noise of variance {squares / entries:.3f}"
    return squares / entries


def batches(shares: Sequence[Dataset], **settings: Any) -> dict[int, list[Any]]:
    """Rows of every batch, on both ranks."""
    seen: dict[int, list[Any]] = {0: [], 1: []}

    def spied(sums: NetworkSums, weights: Any, rows: Any, clip: ClipRule) -> ClippedSum:
        here = threading.current_thread() is threading.main_thread()
        seen[0 if here else 1].append(rows)
        return summed(sums, weights, rows, clip)

    with mock.patch(SUMS + "__call__", spied):
        fitted(shares, noise_multiplier=1.0, optimizer=1e-9, **settings)
    return seen


def check_draws(steps: int) -> None:
    """Draws of both ranks have the declared rate, and are independent."""
    rng = np.random.default_rng(2)
    shares = [Dataset(*records(MANY, rng), (0, 1)) for _ in range(2)]
    with mock.patch(f"{__name__}.network", nn.Sequential(nn.Linear(4, 2))):
        seen = batches(shares, steps=steps, sampling_rate=RATE, size=2 * MANY)
    taken = np.zeros((2, steps, MANY), dtype=bool)
    for one, rows_of_steps in zip(taken, seen.values(), strict=True):
        for step, rows in enumerate(rows_of_steps):
            one[step, rows] = True
    draws = steps * MANY
    for name, count, rate in (
        ("rank 0 takes", taken[0].sum(), RATE),
        ("rank 1 takes", taken[1].sum(), RATE),
        ("both agree on", (taken[0] == taken[1]).sum(), RATE**2 + (1 - RATE) ** 2),
    ):
        chance = stats.binomtest(int(count), draws, rate).pvalue
        assert chance > ALPHA, f"{name} {count / draws:.3f} of all, expected {rate:.3f}"


def check_empty(steps: int) -> None:
    """Batches of rank 1 are in every step, whatever rank 0 has."""
    X, y = records(5, np.random.default_rng(3))
    shares = [Dataset(X[:0], y[:0], (0, 1)), Dataset(X, y, (0, 1))]
    with mock.patch(f"{__name__}.network", nn.Sequential(nn.Linear(4, 2))):
        seen = batches(shares, steps=steps, sampling_rate=0.5, size=5)
    assert len(seen[1]) == steps, f"rank 1 took part in {len(seen[1])} of {steps} steps"


def check_splits() -> None:
    """Records are on one rank only, or the fit is rejected; with one key it is accepted."""
    rng = np.random.default_rng(4)
    whole = Dataset(*records(200, rng), (0, 1), size=200)
    for key in (None, "the same everywhere"):
        parts = [split(whole, key=key).train for _ in range(2)]
        shares = [part.take(np.arange(len(part))[i::2]) for i, part in enumerate(parts)]
        first, second = ({row.tobytes() for row in one.X} for one in shares)
        refused = ""
        try:
            with mock.patch("threading.excepthook"):  # the other rank is stopped, too
                fitted(shares, noise_multiplier=1.0, size=160, steps=1)
        except ValueError as error:
            refused = str(error)
        assert key is None or not refused, f"ranks with one key are refused: {refused}"
        # Of 200 rows, 0.8 * 0.8 / 2 are in common by chance: none of them once in 1e33.
        common = len(first & second)
        assert "one split" in refused or not common, f"{common} records are on two ranks"

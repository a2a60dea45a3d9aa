"""How long does a private linear step take, compared with plain PyTorch and Opacus?

The goals are at most 1.25 times the plain step, and a third of the time of Opacus' best mode,
with secret noise. Ours is timed inside `fit`, from one update of the weights to another many
steps later, and draws its batches meanwhile; the peers get theirs for nothing. On one core and
on two, all take turns for five rounds, and the best round counts. Before that, one step of each
is compared on the same batch, so that a fast wrong answer is no result.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from threadpoolctl import threadpool_limits

from benchmarks.training_limits import Limit, limit_of
from benchmarks.training_peers import (
    CLIP,
    NOISE,
    OPACUS,
    PLAIN,
    RATE,
    SHAPES,
    Peer,
    Problem,
    cores,
    problem_of,
)
from veracal.mechanisms import SGD
from veracal.training import PrivateLogisticRegression

ROUNDS, THEIR_STEPS = 5, 40
WARM, STEPS, COOL = 15, 100, 15
PATIENCE = 1.0  # seconds of a round, after which a slow peer may stop before its last step

pytestmark = [
    pytest.mark.filterwarnings("ignore:::opacus", "ignore:Full backward hook"),
    pytest.mark.timeout(1_200),  # modes that write every gradient down take their time
]


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: shape.name)
def problem(request: pytest.FixtureRequest) -> Problem:
    return problem_of(request.param)


@dataclass(eq=False)
class Clocked:
    """Gradient descent that notes when each step was done."""

    rule: SGD = field(default_factory=lambda: SGD(RATE))
    times: list[float] = field(default_factory=list)

    def start(self, weights: Any) -> None:
        return self.rule.start(weights)

    def step(self, weights: Any, gradient: Any, state: None, t: int) -> tuple[Any, None]:
        moved = self.rule.step(weights, gradient, state, t)
        self.times.append(time.perf_counter())
        return moved


def model(problem: Problem, **settings: Any) -> PrivateLogisticRegression:
    """Ours, from the same start, private by default."""
    shape = problem.shape
    usual = {
        "noise_multiplier": NOISE,
        "sampling_rate": shape.batch / shape.rows,
        "clip": CLIP,
        "optimizer": SGD(RATE),
        "average": 0.0,
        "initial": (problem.start, np.zeros(shape.classes)),
        "classes": list(range(shape.classes)),
        "size": shape.rows,
    }
    return PrivateLogisticRegression(None, 1e-6, **(usual | settings))


def our_seconds(problem: Problem, **settings: Any) -> float:
    """Seconds of one step of ours, without the ends of the run."""
    clock = Clocked()
    fitted = model(problem, steps=WARM + STEPS + COOL, optimizer=clock, **settings)
    fitted.fit(problem.X, problem.y)
    assert fitted.private_ or "not_private" in settings
    # The noise runs ahead of the steps, so the last of them would come cheap.
    return (clock.times[WARM + STEPS] - clock.times[WARM]) / STEPS


def their_seconds(peer: Peer, batches: Iterator[torch.Tensor]) -> float:
    """Seconds of one step of a peer, over batches it has not seen for long."""
    peer.step(next(batches))
    done, start = 0, time.perf_counter()
    for rows in islice(batches, THEIR_STEPS):
        peer.step(rows)
        done += 1
        if time.perf_counter() - start > PATIENCE:
            break
    return (time.perf_counter() - start) / done


Best = dict[tuple[str, int], float]


def best_of_rounds(problem: Problem) -> Best:
    """Seconds of one step by contender and number of cores, each the best of its rounds."""
    batches = cycle([torch.from_numpy(rows) for rows in problem.batches])
    timed: dict[str, Callable[[], float]] = {
        "ours": partial(our_seconds, problem),
        "ours, averaging weights": partial(our_seconds, problem, average=1.0),
        "ours without noise": partial(our_seconds, problem, not_private="clipping only"),
    }
    for name, make in (PLAIN | OPACUS).items():
        timed[name] = partial(their_seconds, make(problem), batches)
    best: Best = {}
    for _ in range(ROUNDS):
        for count in (1, 2):
            with cores(count):
                for name, seconds in timed.items():
                    best[name, count] = min(best.get((name, count), np.inf), seconds())
    return best


def elsewhere() -> tuple[float, float]:
    """Seconds that cores have worked for other processes so far, and seconds of the clock."""
    whole, own = psutil.cpu_times(), os.times()
    busy = whole.user + whole.nice + whole.system + whole.irq + whole.softirq + whole.steal
    return busy - own.user - own.system, time.perf_counter()


def test_step(problem: Problem, tables: list[str]):
    before = elsewhere()
    best = best_of_rounds(problem)
    with cores(1), threadpool_limits(1):
        limit = limit_of(problem)
    others, passed = np.subtract(elsewhere(), before)
    found = table(problem, best, limit)
    tables.append(f"{found}\nother processes took {others / passed:.0%} of a core meanwhile")


def table(problem: Problem, best: Best, limit: Limit) -> str:
    """All figures of one shape, in microseconds, as Markdown."""
    lines = [f"{problem.shape}: microseconds a step", "", "| | 1 core | 2 cores |"]
    lines.append("|---|---:|---:|")
    for name in dict.fromkeys(name for name, _ in best):
        kind = "plain PyTorch: " * (name in PLAIN) + "Opacus: " * (name in OPACUS)
        lines.append(f"| {kind}{name} | {_us(best[name, 1])} | {_us(best[name, 2])} |")
    lines.append(f"| secret noise alone | {_us(limit.noise)} | |")
    lines.append(f"| limit | {_us(limit.least(1))} | {_us(limit.least(2))} |")
    ours, ours_run = _least(best, ["ours"])
    usual, module = _least(best, [name for name in PLAIN if "module" in name])
    fast, name = _least(best, PLAIN)
    private, mode = _least(best, OPACUS)
    lines += [
        "",
        f"{ours_run} / plain ({name}): {ours / fast:.2f}, to be at most 1.25",
        f"{ours_run} / plain ({module}): {ours / usual:.2f}",
        f"Opacus ({mode}) / ours: {private / ours:.2f}, to be at least 3",
        f"ours / limit: {best['ours', 1] / limit.least(1):.1f} on one core, "
        f"{best['ours', 2] / limit.least(2):.1f} on two",
        f"limit: {limit.megabytes:.2f} MB at {limit.gigabytes_a_second:.1f} GB/s, "
        f"{limit.megaflops:.0f} MFlop at {limit.gigaflops_a_second:.0f} GFlop/s = "
        f"{_us(limit.arithmetic)}; {limit.normals} secret normals at "
        f"{limit.nanoseconds_a_normal:.1f} ns = {_us(limit.noise)}",
    ]
    return "\n".join(lines)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f}"


def _least(best: Best, names: Iterable[str]) -> tuple[float, str]:
    """The fastest of some contenders, and how it was run."""
    seconds, name, count = min((best[n, c], n, c) for n in names for c in (1, 2))
    return seconds, f"{name}, {count} core{'s' * (count > 1)}"


def one_step(problem: Problem, rows: np.ndarray, **settings: Any) -> np.ndarray:
    """Weights of ours after one step over just those rows, intercept last."""
    fitted = model(
        problem,
        **({"noise_multiplier": 1e-9} | settings),
        steps=1,
        sampling_rate=1.0,
        size=problem.shape.batch,  # so that the expected batch is that of the peers
    ).fit(problem.X[rows], problem.y[rows])
    return np.column_stack([fitted.coef_, fitted.intercept_])


def moved(problem: Problem, weights: np.ndarray) -> np.ndarray:
    """How far the weights are from the start, in float64."""
    start = np.column_stack([problem.start, np.zeros(problem.shape.classes)])
    return weights.astype(np.float64) - start


def assert_same_step(problem: Problem, ours: np.ndarray, theirs: np.ndarray) -> None:
    """The same step up to rounding, for which ours reserves a share of the bound."""
    share = np.vdot(ours, theirs) / np.vdot(theirs, theirs)
    assert 0.98 <= share <= 1 + 1e-5
    rounding = np.finfo(np.float32).eps * np.abs(problem.start).max()
    most = 2e-4 * np.abs(theirs).max() + rounding
    np.testing.assert_allclose(ours, share * theirs, atol=most, rtol=0)


@pytest.mark.parametrize("mode", OPACUS)
def test_a_step_is_that_of_opacus(problem: Problem, mode: str):
    rows = problem.batches[0]
    peer = OPACUS[mode](problem, noise=0.0)
    peer.step(torch.from_numpy(rows))
    ours = moved(problem, one_step(problem, rows))
    assert_same_step(problem, ours, moved(problem, peer.weights()))


@pytest.mark.parametrize("name", PLAIN)
def test_a_step_without_protection_is_the_plain_one(problem: Problem, name: str):
    rows = problem.batches[0]
    peer = PLAIN[name](problem)
    peer.step(torch.from_numpy(rows))
    # The plain step divides by the batch it has, ours by the expected one.
    theirs = moved(problem, peer.weights()) * len(rows) / problem.shape.batch
    ours = moved(problem, one_step(problem, rows, not_private="neither"))
    assert_same_step(problem, ours, theirs)


def test_some_gradients_are_clipped_and_some_are_not(problem: Problem):
    rows = problem.batches[0]
    logits = problem.X[rows] @ problem.start.T
    residual = np.exp(logits - logits.max(axis=1, keepdims=True))
    residual /= residual.sum(axis=1, keepdims=True)
    residual[np.arange(len(rows)), problem.y[rows]] -= 1
    norms = np.linalg.norm(residual, axis=1) * np.sqrt(2)
    assert 0.05 < np.mean(norms > CLIP) < 0.95


def test_the_noise_that_is_timed_is_there(problem: Problem):
    rows, batch = problem.batches[0], problem.shape.batch
    noise = one_step(problem, rows, noise_multiplier=NOISE) - one_step(problem, rows)
    assert noise.std() == pytest.approx(RATE * NOISE * CLIP / batch, rel=0.03)

"""Calibration errors by netcal, torchmetrics and relplot in their fastest configurations."""

import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from netcal.metrics import ECE
from scipy.special import softmax
from threadpoolctl import threadpool_limits
from torchmetrics.functional.classification import multiclass_calibration_error

from veracal.data import Scores

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import relplot


@dataclass(frozen=True, eq=False)
class Problem:
    """Scores of a classifier that is right nine times in ten, in every form they are wanted."""

    probabilities: np.ndarray
    labels: np.ndarray
    scores: Scores
    tensor: torch.Tensor
    target: torch.Tensor


def problem(n: int, k: int) -> Problem:
    """Overconfident single-precision probabilities of n records for k classes."""
    rng = np.random.default_rng(0)
    labels = rng.integers(k, size=n)
    logits = rng.standard_normal((n, k), dtype=np.float32)
    logits[np.arange(n), labels] += 3
    p = softmax(1.5 * logits, axis=1)
    p /= p.sum(axis=1, keepdims=True)
    np.minimum(p, 1, out=p)
    p.flags.writeable = False  # read-only, so it is not copied
    tensor = torch.from_numpy(p.copy())
    scores = Scores.from_probabilities(p, labels)
    return Problem(p, labels, scores, tensor, torch.from_numpy(labels))


def netcal_ece(given: Problem) -> float:
    """netcal with fifteen bins."""
    return float(ECE(15).measure(given.probabilities, given.labels))


def torchmetrics_ece(given: Problem) -> float:
    """The functional form of torchmetrics, without its checks of arguments."""
    k = given.tensor.shape[1]
    found = multiclass_calibration_error(
        given.tensor, given.target, k, n_bins=15, validate_args=False
    )
    return float(found)


def relplot_smooth(given: Problem) -> float:
    """The smooth calibration error of relplot, of the second class."""
    return float(relplot.smECE(given.probabilities[:, 1], given.labels))


@contextmanager
def threads(count: int):  # type: ignore[no-untyped-def]
    """Let every library use so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(count):
            yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Best:
    """Fewest milliseconds of a round, by the clock and of all processors together."""

    clock: float = float("inf")
    processors: float = float("inf")


def take_turns(
    contenders: Mapping[str, Callable[[], float]], rounds: int = 5
) -> tuple[dict[str, Best], dict[str, float]]:
    """Best times of each, and its answer; load peaks of the machine affect all equally."""
    best, answers = dict.fromkeys(contenders, Best()), {}
    for turn in range(rounds + 1):  # the first warms up
        for name, work in contenders.items():
            clock, processors = time.perf_counter(), time.process_time()
            answers[name] = work()
            spent = time.process_time() - processors
            passed = time.perf_counter() - clock
            if turn:
                old = best[name]
                best[name] = Best(
                    min(old.clock, passed * 1e3), min(old.processors, spent * 1e3)
                )
    return best, answers

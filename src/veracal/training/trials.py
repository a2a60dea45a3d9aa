"""Trials of a search: how many, and which one wins."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from veracal import _random
from veracal.data import Dataset
from veracal.privacy import Composed, Event, Parallel, Search
from veracal.privacy.answers.noise import add_discrete_gaussian
from veracal.privacy.costs.selection import stopping_rate
from veracal.privacy.events import Law
from veracal.training.pipeline import PrivatePipeline
from veracal.training.winner import Winner

_BLOCK = 256  # rows that are predicted together


@dataclass(frozen=True, eq=False)
class Trial:
    """One run of a search.

    Attributes
    ----------
    setting : int
        Its position in the public list.
    model : estimator
        Fitted.
    score : float
        Noisy number of correct predictions; NaN where nothing was tried.
    """

    setting: int
    model: Any
    score: float


def search_event(
    trainings: Sequence[Event], score: Event, mean: float, law: Law, *, apart: bool
) -> Event:
    r"""What a search costs.

    A trial draws the position j of a setting uniformly among m, and shows j, a model and its
    noisy score. Given j, neighbors differ by the divergence of training with setting j
    composed with the score's; the position is drawn alike for both. So for every order
    :math:`\alpha` a trial's divergence is

    .. math:: \frac{1}{\alpha - 1} \ln \frac1m \sum_j e^{(\alpha - 1) \rho_j(\alpha)}
        \le \max_j \rho_j(\alpha).

    ``Parallel`` without weights is that maximum. It stands *inside* the search, where it is
    taken at every order: the theorem uses two orders, at which different settings may be the
    worst.

    Parameters
    ----------
    trainings : sequence of events
        What training costs, with each setting of the public list.
    score : Event
        What a noisy score costs.
    mean, law
        Of the number of trials.
    apart : bool
        Whether scores are taken on records that no trial is trained on. One record then moves
        all trainings and no score, or all scores and no training, and the cost is the larger
        of two searches.
    """
    distinct = tuple(dict.fromkeys(trainings))
    if apart:
        return Parallel((Search(_worst(distinct), mean, law), Search(score, mean, law)))
    return Search(_worst(tuple(Composed((one, score)) for one in distinct)), mean, law)


def _worst(events: tuple[Event, ...]) -> Event:
    """Whichever event costs most, order by order."""
    return events[0] if len(events) == 1 else Parallel(events)


def draw_number(mean: float, law: Law, *, rng: np.random.Generator) -> int:
    """Draw the number of trials K from its law, which the event of the search names.

    See :func:`veracal.privacy.costs.selection.stopping_rate` for the laws. It must be told to
    nobody.
    """
    if law == "poisson":
        return int(rng.poisson(mean))
    rate = stopping_rate(mean, law)
    return int(rng.geometric(rate) if law == "geometric" else rng.logseries(1 - rate))


def best_trial(
    trial: Callable[[int], Trial], settings: int, number: int, *, rng: np.random.Generator
) -> Trial | None:
    """Run trials of settings drawn afresh, and keep the one with the highest noisy score.

    Parameters
    ----------
    trial : callable
        Fits and scores the setting at a position.
    settings : int
        How many there are in the public list.
    number : int
        Of trials.

    Returns
    -------
    Trial or None
        Ties go to the highest of independent coins: neither the order of the trials nor any
        record has a say. None without a trial.

    Guarantees
    ----------
    Of all trials but the winner nothing is kept.
    """
    best, highest = None, (-np.inf, -1.0)
    for _ in range(number):
        found = trial(int(rng.integers(settings)))
        rank = (found.score, rng.random())
        if rank > highest:
            best, highest = found, rank
    return best


def noisy_correct(
    model: Any, dataset: Dataset, noise: float, *, rng: np.random.Generator
) -> float:
    """Number of correct predictions, with discrete Gaussian noise.

    Guarantees
    ----------
    One record, present, absent or replaced, moves the number by at most 1. The noise is exact
    and comes from the system's randomness. A generator that can be repeated gives rounded
    Gaussian noise instead, for tests and public records.
    """
    exact = correct(model, dataset)
    if not _random.is_secret(rng):
        return exact + float(np.rint(rng.normal(0.0, noise)))
    return float(add_discrete_gaussian(np.array([exact]), noise)[0])


def correct(model: Any, dataset: Dataset) -> int:
    """Number of records whose label a model predicts; never released as it is.

    Every block has the same shape, the last one filled up with copies of a row of its own:
    whoever stands beside a record, its prediction has the same bits.
    """
    dataset, model = innermost(model, dataset)
    labels, total = dataset.labels, 0
    for start in range(0, len(dataset), _BLOCK):
        index = np.minimum(np.arange(start, start + _BLOCK), len(dataset) - 1)
        real = min(_BLOCK, len(dataset) - start)
        with np.errstate(all="ignore"):  # no warning tells of a record
            predicted = model.predict(dataset.X[index])
        total += int((predicted == labels[index])[:real].sum())
    return total


def innermost(model: Any, dataset: Dataset) -> tuple[Dataset, Any]:
    """The classifier inside pipelines and searches, and the records as they reach it.

    Scikit-learn would raise an error for numbers that overflow on the way; steps that are
    walked through one by one put zero there, as they did in the fit.
    """
    while isinstance(model, PrivatePipeline | Winner):
        if isinstance(model, Winner):
            model = model.best_estimator_
        else:
            dataset, model = model.before_last(dataset), model.steps[-1][1]
    return dataset, model

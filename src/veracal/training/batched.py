r"""Many fits of one linear model at once: noisy descents along an axis of models.

All fits have the same records, settings and start, and differ in their noise and, if asked, in
their batches. With weights :math:`W_j` of model j, one row for each class, and rows
:math:`x_i` that end with the 1 of the intercept, the clipped sum of model j is

.. math:: \sum_{i \in B_j} c(\lVert r_{ij} \rVert \lVert x_i \rVert) \, r_{ij} \, x_i^\top,
    \qquad r_{ij} = \operatorname{softmax}(W_j x_i) - e_{y_i},

as in :mod:`veracal.training.gradient_sums`. Where all models share a batch, the weights of
all stand below each other in one matrix product; else there is a smaller one for each model.
Classes come before rows here: sums over classes then run along contiguous rows.

Nothing computed here is released: it tells how much of a decision is chance. So neither lots
nor blocks keep the rounding of one record from another, and noise need not be secret.

Batches and noise of many fits at once, drawn side by side.

Each record enters each batch by a coin of its own, as :class:`veracal.mechanisms.Poisson` has
it.
What depends on the models is how a batch is best written down, and that follows from shapes:

- *shared* rows: who takes part is the same for all models;
- *gathered* rows: copies of the rows of each model, next to each other. A model with b rows
  of width e reads and writes :math:`b e` entries, and its products are small;
- *masked* rows: all n rows for all models, which leave out what a coin says. There is one
  product for all models, with :math:`1 / q` times the arithmetic at a rate q.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from veracal._types import Bools, Floats, Ints
from veracal.data import Dataset, MappedRows
from veracal.mechanisms import (
    DPSGD,
    SGD,
    Adam,
    FullBatch,
    GlobalAdapt,
    Langevin,
    Momentum,
    Poisson,
    is_continuous,
    selection,
)
from veracal.training.base import TrainingData, row_norms, add_labels
from veracal.training.dp_sgd import ExponentialAverage
from veracal.training.gradient_sums import _NORMS, plan_blocks
from veracal.training.logistic import PrivateLogisticRegression

_SUPPORTED_OPTIMIZERS = (
    SGD,
    Momentum,
    Adam,
    Langevin,
)  # entry by entry: an axis of models changes nothing
_MAX_FACTOR = 1e30  # as in softmax.py
_MAX_LOGIT = {"float32": 40.0, "float64": 300.0}  # logits whose exponentials have squares
_MAX_USUAL_NORM = 1e30  # norms below it have factors that need no second look


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds records
class BatchedFits:
    """What all fits have in common.

    Attributes
    ----------
    rows : array of shape (n + 1, e)
        In the precision of the products, with a last column of ones for the intercept, if
        there is one. The last row is zero: it fills up batches.
    lengths : array of shape (n + 1,)
        Norms of the rows.
    codes : array of ints, of shape (n + 1,)
    start : array of shape (outputs, e)
        Weights before the first step. Two classes share one row.
    descent : Descent
    slack : float
        Share of the clip bound that a fit leaves to rounding.
    average : float
        Share of the last steps whose weights are averaged.
    classes : array of shape (k,)
    """

    rows: Floats
    lengths: Floats
    codes: Ints
    start: Floats
    descent: DPSGD
    slack: float
    average: float
    classes: Any

    @property
    def records(self) -> int:
        """How many there are."""
        return len(self.rows) - 1

    @property
    def averaged_from(self) -> int:
        """The first step whose weights are averaged; after the last where none are."""
        steps = int(self.descent.steps)
        return steps - math.ceil(self.average * steps) if self.average else steps


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """Who takes part in a step.

    Attributes
    ----------
    rows : array of ints, or slice
        Of shape (b,): rows that all models share. Of shape (models, b): of each model, filled
        up with n, the number of the row of zeros.
    members : array of bool of shape (models, b), optional
        Which of the shared rows each model takes; by default all.
    """

    rows: Ints | slice
    members: Bools | None = None


def fits_of(model: PrivateLogisticRegression, dataset: Dataset) -> BatchedFits:
    """Prepare fits of an unfitted model to a data set, with the checks of ``fit_records``.

    Raises
    ------
    ValueError
        If the settings have no closed form along an axis of models.
    """
    model.check_records(dataset)
    _check_obstacles(model, dataset)
    data = add_labels(model._public(dataset), dataset)
    descent, dtype = model._descent(data.size), model._dtype(data.X)
    blocks = plan_blocks(descent.expected_batch, dtype)
    # A rule that jumps at a threshold must jump where a fit would, whose norms are float64.
    wide = blocks.dtype if is_continuous(descent.clip) else np.dtype(np.float64)
    rows, lengths = _prepare_rows(data, model.fit_intercept, blocks.dtype.name, wide)
    assert not isinstance(model.average, ExponentialAverage)
    return BatchedFits(
        rows,
        lengths,
        np.append(data.codes, 0).astype(np.int32),
        model._start(data, dtype),
        descent,
        blocks.slack,
        model.average,
        data.classes,
    )


def descend(
    fits: BatchedFits, models: int, batches: Iterable[Batch], noise: Iterable[Floats]
) -> Floats:
    """Run some fits, side by side.

    Parameters
    ----------
    fits : Fits
    models : int
        How many.
    batches : iterable of Batch
        One for each step.
    noise : iterable of arrays of shape (models, outputs, e)
        Standard normals of each step, which are written on.

    Returns
    -------
    array of shape (models, outputs, e)
        The weights that each fit ends with, averaged where that is asked for.
    """
    descent, first = fits.descent, fits.averaged_from
    weights = np.repeat(fits.start[None], models, axis=0)
    state, total = descent.update.start(weights), np.zeros(weights.shape)
    taken = zip(descent.noise_multipliers(), batches, noise, strict=True)
    with np.errstate(all="ignore"):  # threads do not inherit it; what overflows is left out
        for t, (multiplier, batch, normals) in enumerate(taken):
            normals *= multiplier * descent.clip.bound
            normals += clipped_sums(fits, weights, batch)
            gradient = _gradient(normals, weights, descent)
            weights, state = descent.update.step(weights, gradient, state, t)
            if t >= first:
                total += weights
    steps = int(descent.steps)
    return weights if first == steps else (total / (steps - first)).astype(weights.dtype)


def _gradient(noisy: Floats, weights: Floats, descent: DPSGD) -> Floats:
    """What the update follows: the noisy sum over the *declared* batch, and the decay."""
    gradient = noisy.astype(weights.dtype, copy=False)
    gradient *= 1 / descent.expected_batch
    if descent.weight_decay:
        gradient += descent.weight_decay * weights
    return gradient


def clipped_sums(fits: BatchedFits, weights: Floats, batch: Batch) -> Floats:
    """Clipped gradient sums of all models, each at its own weights and over its own batch.

    Parameters
    ----------
    fits : Fits
    weights : array of shape (models, outputs, e)
    batch : Batch

    Returns
    -------
    array of shape (models, outputs, e)
    """
    rows, lengths = _select(fits.rows, batch), _select(fits.lengths, batch)
    weights = weights.astype(rows.dtype, copy=False)
    models, outputs, width = weights.shape
    if rows.ndim == 2:  # one product for all models
        logits = weights.reshape(-1, width) @ rows.T
        residual = logits.reshape(models, outputs, len(rows))
    else:
        residual = weights @ rows.transpose(0, 2, 1)
    squares = np.einsum("mke,mke->mk", weights, weights).max(initial=0.0)
    farthest = math.sqrt(squares) * float(lengths.max(initial=0.0))  # that a logit may be
    small = farthest < _MAX_LOGIT[rows.dtype.name]
    scales = _to_residuals(residual, _select(fits.codes, batch), small=small)
    factors = _clip_factors(residual, lengths, scales, fits)
    if batch.members is not None:
        factors *= batch.members
    residual *= factors[:, None, :]
    if rows.ndim == 2:
        residual = residual.reshape(models * outputs, len(rows))
    sums: Floats = residual @ rows
    return sums.reshape(weights.shape)


def _select(part: Any, batch: Batch) -> Any:
    """A batch of rows, of their lengths or of their codes."""
    if isinstance(batch.rows, slice):
        return part[batch.rows]
    return part.take(batch.rows, axis=0, mode="clip")  # "raise" would look at each number


def _to_residuals(logits: Floats, codes: Ints, *, small: bool) -> Floats:
    r"""Residuals times what they are to be divided by, in place of logits.

    With exponentials :math:`u` and their sum s, the residual is
    :math:`(u - s \, e_y) / s`: to divide factors by s later takes one number for each row and
    not one for each class.

    Parameters
    ----------
    logits : array of shape (models, outputs, b)
    codes : array of ints, of shape (b,) or (models, b)
    small : bool
        Whether squares of exponentials are known to stay within what numbers can hold.

    Returns
    -------
    array of shape (models, b)
        The divisors.
    """
    models, outputs, rows = logits.shape
    if outputs == 1:
        np.negative(logits, out=logits)
        np.exp(logits, out=logits)  # four times as fast in float32 as scipy's expit
        logits += 1
        np.reciprocal(logits, out=logits)
        logits -= codes.astype(logits.dtype)[..., None, :]
        return np.ones((models, rows), logits.dtype)
    if not small:
        logits -= logits.max(axis=1, keepdims=True)
    np.exp(logits, out=logits)
    sums: Floats = logits.sum(axis=1)
    places = codes * rows + np.arange(rows) + outputs * rows * np.arange(models)[:, None]
    logits.reshape(-1)[places] -= sums
    return sums


def _clip_factors(
    residual: Floats, lengths: Floats, scales: Floats, fits: BatchedFits
) -> Floats:
    """What residuals are to be multiplied by, of shape (models, b).

    Zero where a norm is not finite, and the residual then is made zero, too.
    """
    norms = np.sqrt(np.einsum("mkb,mkb->mb", residual, residual))
    norms *= lengths / scales
    if norms.max(initial=0.0) < _MAX_USUAL_NORM:  # False for NaN
        factors = fits.descent.clip.factors(norms)
    else:
        factors = np.zeros(norms.shape)
        chosen = selection(norms.ravel(), fits.descent.clip)
        factors.ravel()[chosen.kept] = chosen.factors
        out = ~np.isfinite(norms)
        residual[np.broadcast_to(out[:, None, :], residual.shape)] = 0  # zero times NaN is NaN
        scales[out] = 1
    scaled: Floats = np.minimum(factors * (1 - fits.slack), _MAX_FACTOR) / scales
    return scaled.astype(residual.dtype, copy=False)


def _prepare_rows(
    data: TrainingData, intercept: bool, name: str, dtype: Any
) -> tuple[Floats, Floats]:
    """Rows with their ones and the row of zeros, and their lengths.

    A row too long or too short for the products of a fit contributes nothing there, and is
    zero here.
    """
    n, d = data.X.shape
    rows, lengths = np.zeros((n + 1, d + intercept), dtype), np.zeros(n + 1, dtype)
    norms = row_norms(data.X)
    norms = np.hypot(norms, 1.0) if intercept else norms
    low, high = _NORMS[name]
    kept = np.flatnonzero((norms >= low) & (norms <= high))
    rows[kept, :d] = np.asarray(data.X)[kept]
    if intercept:
        rows[kept, -1] = 1
    lengths[kept] = norms[kept]
    return rows, lengths


def obstacles(model: PrivateLogisticRegression, dataset: Dataset) -> tuple[str, ...]:
    """What keeps fits from being run side by side, if anything does.

    Examples
    --------
    >>> data = Dataset(np.ones((2, 1)), np.arange(2), (0, 1))
    >>> obstacles(PrivateLogisticRegression(), data)
    ()
    >>> obstacles(PrivateLogisticRegression(clip=GlobalAdapt(1.0)), data)
    ('an adaptive clip',)
    """
    goal = model._spec()
    update = goal.update
    there = {
        f"{update!r}, an update rule of its own": not isinstance(update, _SUPPORTED_OPTIMIZERS),
        "noise before the clip": isinstance(update, Langevin) and update.pre_noise != 0,
        "an adaptive clip": isinstance(goal.clip, GlobalAdapt),
        "a moving average": isinstance(model.average, ExponentialAverage),
        "a hook on_step": model.on_step is not None,
        f"not_private={model.not_private!r}": model.not_private is not None,
        "rows on disk": isinstance(dataset.X, MappedRows),
    }
    return tuple(name for name, found in there.items() if found)


def _check_obstacles(model: PrivateLogisticRegression, dataset: Dataset) -> None:
    """Refuse what has no closed form along an axis of models."""
    found = obstacles(model, dataset)
    if found:
        raise ValueError(
            "Expected settings that many models can follow at once, got "
            f"{' and '.join(found)}. RetrainEngine trains one model after another, with any "
            "settings."
        )


# Measured: a gathered row costs 1.2 masked ones, since batches differ in size and are filled
# up, and its copy as much again for 12 entries; products weigh as much as the rest at 150.
_PADDING_COST, _ENTRIES_PER_COPY, _PRODUCT_WIDTH = 1.2, 12, 150


def shared_batches(fits: BatchedFits, *, rng: np.random.Generator) -> Iterator[Batch]:
    """A batch for each step, which all models take."""
    sampler, n = fits.descent.sampler, fits.records
    if isinstance(sampler, FullBatch):
        return (Batch(slice(n)) for _ in range(int(fits.descent.steps)))
    return map(Batch, sampler.batches(n, int(fits.descent.steps), rng))


def own_batches(fits: BatchedFits, models: int, *, rng: np.random.Generator) -> Iterator[Batch]:
    """A batch for each step, in which every model has rows of its own."""
    sampler, n = fits.descent.sampler, fits.records
    if isinstance(sampler, FullBatch):
        return shared_batches(fits, rng=rng)
    steps = range(int(fits.descent.steps))
    if uses_masks(fits):
        shape = models, n
        return (Batch(slice(n), rng.random(shape) < sampler.rate) for _ in steps)
    return (Batch(poisson_rows(n, sampler.rate, models, rng=rng)) for _ in steps)


def uses_masks(fits: BatchedFits) -> bool:
    r"""Whether all rows are multiplied for all models, rather than copied for each.

    A row of width e with k outputs costs about :math:`k (1 + e / 150)` where products are
    shared, and 1.2 times that and :math:`e / 12` where it is copied first. All rows are
    multiplied if that is cheaper than a share q of them copied: from a rate of a half on for
    few features or many classes, and of a seventh for 200 features and two classes.
    """
    sampler = fits.descent.sampler
    if not isinstance(sampler, Poisson):
        return False
    outputs, width = fits.start.shape
    copied = width / (_ENTRIES_PER_COPY * outputs * (1 + width / _PRODUCT_WIDTH))
    return bool(sampler.rate * (_PADDING_COST + copied) >= 1)


def bytes_of_model(fits: BatchedFits, *, own: bool) -> int:
    """About how many bytes one model works on in a step, beside what all models share."""
    outputs, width = fits.start.shape
    sampler, batch, gathered = fits.descent.sampler, float(fits.records), 0
    if isinstance(sampler, Poisson) and not (own and uses_masks(fits)):
        batch, gathered = batch * sampler.rate, int(own)
    entries = (batch + 3 * math.sqrt(batch)) * (2 * outputs + 2 + width * gathered)
    return int(fits.rows.itemsize * (entries + 4 * outputs * width))


def poisson_rows(n: int, rate: float, models: int, *, rng: np.random.Generator) -> Ints:
    r"""Rows that each model takes out of n, in ascending order and filled up with n.

    The distance to the next member is geometric: one more than the whole part of an
    exponential number divided by :math:`-\ln(1 - q)`, for a rate q below 1.

    Returns
    -------
    array of shape (models, size of the largest batch)
    """
    width = int(n * rate + 4 * math.sqrt(n * rate)) + 8
    found: list[Ints] = []
    last: Any = -1
    while not found or last.min() < n:
        waits = rng.standard_exponential((models, width))
        waits *= -1 / math.log1p(-rate)
        np.minimum(waits, n, out=waits)  # beyond the end is as good as anywhere
        gaps = waits.astype(np.intp)
        gaps += 1
        gaps[:, 0] += last
        found.append(np.cumsum(gaps, axis=1, out=gaps))
        last = gaps[:, -1]
    every = found[0] if len(found) == 1 else np.concatenate(found, axis=1)
    most = int(every.min(axis=0).searchsorted(n))  # rows of the largest batch
    return np.minimum(every[:, :most], n)


def normals(fits: BatchedFits, models: int, *, rng: np.random.Generator) -> Iterator[Floats]:
    """Standard normals of each step, all in the same memory."""
    room = np.empty((models, *fits.start.shape), fits.rows.dtype)
    for _ in range(int(fits.descent.steps)):
        yield rng.standard_normal(out=room, dtype=room.dtype.type)

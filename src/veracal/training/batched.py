r"""Many DP-SGD fits of one linear model at once, along an axis of models.

All fits have the same records, settings and initial weights, and differ in their noise and,
optionally, in their batches. With weights :math:`W_j` of model j, one row for each class, and
rows :math:`x_i` that end with the 1 of the intercept, the clipped sum of model j is

.. math:: \sum_{i \in B_j} c(\lVert r_{ij} \rVert \lVert x_i \rVert) \, r_{ij} \, x_i^\top,
    \qquad r_{ij} = \operatorname{softmax}(W_j x_i) - e_{y_i},

as in :mod:`veracal.training.gradient_sums`. Where all models share a batch, the weights of
all stand below each other in one matrix product; else there is a smaller one for each model.
Classes come before rows here: sums over classes then run along contiguous rows.

Nothing computed here is released: it measures how much of a decision is chance. Rounding is
therefore not isolated between records, and noise need not be secret.

*Batches.* Each record enters each batch independently, as under
:class:`veracal.mechanisms.Poisson`. The representation of a batch follows from shapes:

- *shared* rows: the batch is the same for all models;
- *gathered* rows: a contiguous copy of the rows of each model. A model with b rows of width e
  reads and writes :math:`b e` entries, and its products are small;
- *masked* rows: all n rows for all models, with a mask for each model. There is one product for
  all models, with :math:`1 / q` times the arithmetic at a sampling rate q.
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
    select_and_scale,
)
from veracal.training.base import add_labels, row_norms
from veracal.training.dp_sgd import ExponentialAverage
from veracal.training.gradient_sums import _NORMS, plan_blocks
from veracal.training.logistic import PrivateLogisticRegression

_SUPPORTED_OPTIMIZERS = SGD, Momentum, Adam, Langevin  # a model axis changes nothing
_MAX_FACTOR = 1e30  # as in gradient_sums.py
_MAX_LOGIT = {"float32": 40.0, "float64": 300.0}  # whose exponentials can be squared
_MAX_USUAL_NORM = 1e30  # smaller norms have finite factors


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds records
class BatchedFits:
    """What all fits share."""

    # In the precision of the products, of shape (n + 1, e), with a last column of ones if there
    # is an intercept. The last row is zero and pads batches.
    rows: Floats
    lengths: Floats  # norms of the rows
    codes: Ints  # of shape (n + 1,)
    start: Floats  # initial weights of shape (outputs, e); two classes share one row
    dp_sgd: DPSGD
    slack: float  # share of the clip bound that a fit reserves for rounding
    average: float  # share of the last steps whose weights are averaged
    classes: Any

    @property
    def records(self) -> int:
        """Number of records."""
        return len(self.rows) - 1

    @property
    def averaged_from(self) -> int:
        """First step whose weights are averaged; the number of steps if none are."""
        steps = int(self.dp_sgd.steps)
        return steps - math.ceil(self.average * steps) if self.average else steps


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """The rows that take part in a step.

    Of shape (b,), they are shared by all models; of shape (models, b), they are each model's
    own, padded with n, the index of the row of zeros.
    """

    rows: Ints | slice
    members: Bools | None = None  # mask of the shared rows for each model, (models, b)


def prepare_fits(model: PrivateLogisticRegression, dataset: Dataset) -> BatchedFits:
    """Prepare fits of an unfitted model to a data set, after the checks of ``fit_records``.

    Raises
    ------
    ValueError
        If the settings cannot be computed along an axis of models.
    """
    model.check_records(dataset)
    unsupported = unsupported_settings(model, dataset)
    if unsupported:
        raise ValueError(
            "Expected settings that many models can follow at once, got "
            f"{' and '.join(unsupported)}. RetrainEngine trains one model after another, with "
            "any settings."
        )
    data = add_labels(model._public(dataset), dataset)
    run, dtype = model._dp_sgd(data.size), model._dtype(data.X)
    blocks = plan_blocks(run.expected_batch, dtype)
    norms = row_norms(data.X)
    norms = np.hypot(norms, 1.0) if model.fit_intercept else norms
    # A row whose norm is outside the range of a fit's products contributes zero, and is zero.
    low, high = _NORMS[blocks.dtype.name]
    kept = np.flatnonzero((norms >= low) & (norms <= high))
    # A discontinuous rule must jump at the same norms as in a fit, which are float64.
    wide = blocks.dtype if is_continuous(run.clip) else np.dtype(np.float64)
    n, d = data.X.shape
    rows, lengths = np.zeros((n + 1, d + model.fit_intercept), wide), np.zeros(n + 1, wide)
    rows[kept, :d], lengths[kept] = np.asarray(data.X)[kept], norms[kept]
    if model.fit_intercept:
        rows[kept, -1] = 1
    codes = np.append(data.codes, 0).astype(np.int32)
    assert not isinstance(model.average, ExponentialAverage)
    start = model._start(data, dtype)
    return BatchedFits(
        rows, lengths, codes, start, run, blocks.slack, model.average, data.classes
    )


def train_batched(
    fits: BatchedFits, models: int, batches: Iterable[Batch], noise: Iterable[Floats]
) -> Floats:
    """Run several fits together.

    For each step there is a batch, and standard normal draws of shape (models, outputs, e),
    which are overwritten. The result of that shape are the final weights of each fit, averaged
    if the model's settings say so.
    """
    run, first = fits.dp_sgd, fits.averaged_from
    weights = np.repeat(fits.start[None], models, axis=0)
    state, total = run.optimizer.start(weights), np.zeros(weights.shape)
    steps = zip(run.noise_multipliers(), batches, noise, strict=True)
    with np.errstate(all="ignore"):  # threads do not inherit it
        for t, (multiplier, batch, normals) in enumerate(steps):
            normals *= multiplier * run.clip.bound
            normals += clipped_sums(fits, weights, batch)
            gradient = _gradient(normals, weights, run)
            weights, state = run.optimizer.step(weights, gradient, state, t)
            if t >= first:
                total += weights
    averaged = int(run.steps) - first
    return (total / averaged).astype(weights.dtype) if averaged else weights


def _gradient(noisy: Floats, weights: Floats, run: DPSGD) -> Floats:
    """Gradient for the optimizer: the noisy sum over the *declared* batch, plus the decay."""
    gradient = noisy.astype(weights.dtype, copy=False)
    gradient *= 1 / run.expected_batch
    if run.weight_decay:
        gradient += run.weight_decay * weights
    return gradient


def clipped_sums(fits: BatchedFits, weights: Floats, batch: Batch) -> Floats:
    """Clipped gradient sums of all models, each at its own weights and over its own batch.

    Weights and sums have the shape (models, outputs, e).
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
    largest = math.sqrt(squares) * float(lengths.max(initial=0.0))  # bound on the logits
    small = largest < _MAX_LOGIT[rows.dtype.name]
    scales = _to_residuals(residual, _select(fits.codes, batch), small=small)
    factors = _clip_factors(residual, lengths, scales, fits)
    if batch.members is not None:
        factors *= batch.members
    residual *= factors[:, None, :]
    if rows.ndim == 2:
        residual = residual.reshape(models * outputs, len(rows))
    sums: Floats = residual @ rows
    return sums.reshape(weights.shape)


def _select(values: Any, batch: Batch) -> Any:
    """Select a batch of rows, of their norms or of their codes."""
    if isinstance(batch.rows, slice):
        return values[batch.rows]
    return values.take(batch.rows, axis=0, mode="clip")  # "raise" would check each index


def _to_residuals(logits: Floats, codes: Ints, *, small: bool) -> Floats:
    r"""Replace logits by residuals that are not yet normalized.

    With exponentials :math:`u` and their sum s, the residual is :math:`(u - s \, e_y) / s`. The
    clip factors are divided by s later, which takes one division for each row instead of one
    for each class.

    Logits have the shape (models, outputs, b), codes (b,) or (models, b), and the divisors that
    are returned (models, b). If logits are ``small``, squares of exponentials cannot overflow.
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
    """Factors of the residuals, of shape (models, b).

    Where a norm is not finite, the factor is zero, and the residual is set to zero.
    """
    norms = np.sqrt(np.einsum("mkb,mkb->mb", residual, residual))
    norms *= lengths / scales
    if norms.max(initial=0.0) < _MAX_USUAL_NORM:  # False for NaN
        factors = fits.dp_sgd.clip.factors(norms)
    else:
        factors = np.zeros(norms.shape)
        chosen = select_and_scale(norms.ravel(), fits.dp_sgd.clip)
        factors.ravel()[chosen.kept] = chosen.factors
        out = ~np.isfinite(norms)
        residual[np.broadcast_to(out[:, None, :], residual.shape)] = 0  # zero times NaN is NaN
        scales[out] = 1
    scaled: Floats = np.minimum(factors * (1 - fits.slack), _MAX_FACTOR) / scales
    return scaled.astype(residual.dtype, copy=False)


def unsupported_settings(model: PrivateLogisticRegression, dataset: Dataset) -> tuple[str, ...]:
    """Settings that keep fits from being batched, as text; empty if there are none.

    Examples
    --------
    >>> data = Dataset(np.ones((2, 1)), np.arange(2), (0, 1))
    >>> unsupported_settings(PrivateLogisticRegression(), data)
    ()
    >>> unsupported_settings(PrivateLogisticRegression(clip=GlobalAdapt(1.0)), data)
    ('an adaptive clip',)
    """
    spec = model._spec()
    optimizer = spec.optimizer
    present = {
        f"{optimizer!r}, a custom optimizer": not isinstance(optimizer, _SUPPORTED_OPTIMIZERS),
        "noise before the clip": isinstance(optimizer, Langevin) and optimizer.pre_noise != 0,
        "an adaptive clip": isinstance(spec.clip, GlobalAdapt),
        "a moving average": isinstance(model.average, ExponentialAverage),
        "a hook on_step": model.on_step is not None,
        f"not_private={model.not_private!r}": model.not_private is not None,
        "rows on disk": isinstance(dataset.X, MappedRows),
    }
    return tuple(name for name, is_present in present.items() if is_present)


# Measured: a gathered row costs as much as 1.2 masked rows, since batches are padded to one
# size, and its copy as much again per 12 entries; at a width of 150 products cost as much as
# everything else.
_PADDING_COST, _ENTRIES_PER_COPY, _PRODUCT_WIDTH = 1.2, 12, 150


def shared_batches(fits: BatchedFits, *, rng: np.random.Generator) -> Iterator[Batch]:
    """One batch per step, shared by all models."""
    sampler, n, steps = fits.dp_sgd.sampler, fits.records, range(int(fits.dp_sgd.steps))
    if isinstance(sampler, FullBatch):
        return (Batch(slice(n)) for _ in steps)
    return (Batch(sampler.batch(n, rng)) for _ in steps)


def independent_batches(
    fits: BatchedFits, models: int, *, rng: np.random.Generator
) -> Iterator[Batch]:
    """One batch per step, with independent rows for each model."""
    sampler, n = fits.dp_sgd.sampler, fits.records
    if isinstance(sampler, FullBatch):
        return shared_batches(fits, rng=rng)
    steps = range(int(fits.dp_sgd.steps))
    if uses_masks(fits):
        shape = models, n
        return (Batch(slice(n), rng.random(shape) < sampler.rate) for _ in steps)
    return (Batch(poisson_rows(n, sampler.rate, models, rng=rng)) for _ in steps)


def uses_masks(fits: BatchedFits) -> bool:
    r"""Whether batches are masks over all rows rather than copies of the rows of each model.

    A row of width e with k outputs costs about :math:`k (1 + e / 150)` in shared products, and
    1.2 times that plus :math:`e / 12` if it is copied first. Masks are used if multiplying all
    rows is cheaper than copying a share q of them: from a rate of a half for few features or
    many classes, and from a seventh for 200 features and two classes.
    """
    sampler = fits.dp_sgd.sampler
    if not isinstance(sampler, Poisson):
        return False
    outputs, width = fits.start.shape
    copied = width / (_ENTRIES_PER_COPY * outputs * (1 + width / _PRODUCT_WIDTH))
    return bool(sampler.rate * (_PADDING_COST + copied) >= 1)


def bytes_per_model(fits: BatchedFits, *, own: bool) -> int:
    """Approximate working memory in bytes of one model in a step, without shared arrays."""
    outputs, width = fits.start.shape
    sampler, batch, gathered = fits.dp_sgd.sampler, float(fits.records), 0
    if isinstance(sampler, Poisson) and not (own and uses_masks(fits)):
        batch, gathered = batch * sampler.rate, int(own)
    entries = (batch + 3 * math.sqrt(batch)) * (2 * outputs + 2 + width * gathered)
    return int(fits.rows.itemsize * (entries + 4 * outputs * width))


def poisson_rows(n: int, rate: float, models: int, *, rng: np.random.Generator) -> Ints:
    r"""Poisson draws of row indices for each model, in ascending order and padded with n.

    The distance to the next row is geometric: one plus the integer part of an exponential
    number divided by :math:`-\ln(1 - q)`, for a rate q below 1.
    """
    width = int(n * rate + 4 * math.sqrt(n * rate)) + 8
    parts: list[Ints] = []
    last: Any = -1
    while not parts or last.min() < n:
        waits = rng.standard_exponential((models, width))
        waits *= -1 / math.log1p(-rate)
        np.minimum(waits, n, out=waits)  # avoids overflow; any position past the end will do
        gaps = waits.astype(np.intp)
        gaps += 1
        gaps[:, 0] += last
        parts.append(np.cumsum(gaps, axis=1, out=gaps))
        last = gaps[:, -1]
    indices = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    most = int(indices.min(axis=0).searchsorted(n))  # size of the largest batch
    return np.minimum(indices[:, :most], n)


def standard_normals(
    fits: BatchedFits, models: int, *, rng: np.random.Generator
) -> Iterator[Floats]:
    """Standard normal draws of each step, all in the same buffer."""
    buffer = np.empty((models, *fits.start.shape), fits.rows.dtype)
    for _ in range(int(fits.dp_sgd.steps)):
        yield rng.standard_normal(out=buffer, dtype=buffer.dtype.type)

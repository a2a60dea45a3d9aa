r"""Batches and noise of many fits at once, drawn side by side.

Each record enters each batch by a coin of its own, as :class:`veracal.privacy.Poisson` has it.
What depends on the models is how a batch is best written down, and that follows from shapes:

- *shared* rows: who takes part is the same for all models;
- *gathered* rows: copies of the rows of each model, next to each other. A model with b rows
  of width e reads and writes :math:`b e` entries, and its products are small;
- *masked* rows: all n rows for all models, which leave out what a coin says. There is one
  product for all models, with :math:`1 / q` times the arithmetic at a rate q.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from veracal._types import Floats, Ints
from veracal.privacy import FullBatch, Poisson
from veracal.training.many_descents import Batch, Fits

# Measured: a gathered row costs 1.2 masked ones, since batches differ in size and are filled
# up, and its copy as much again for 12 entries; products weigh as much as the rest at 150.
_FILLED, _COPIED, _WIDE = 1.2, 12, 150


def shared_batches(fits: Fits, *, rng: np.random.Generator) -> Iterator[Batch]:
    """A batch for each step, which all models take."""
    sampler, n = fits.descent.sampler, fits.records
    if isinstance(sampler, FullBatch):
        return (Batch(slice(n)) for _ in range(int(fits.descent.steps)))
    return map(Batch, sampler.batches(n, int(fits.descent.steps), rng))


def own_batches(fits: Fits, models: int, *, rng: np.random.Generator) -> Iterator[Batch]:
    """A batch for each step, in which every model has rows of its own."""
    sampler, n = fits.descent.sampler, fits.records
    if isinstance(sampler, FullBatch):
        return shared_batches(fits, rng=rng)
    steps = range(int(fits.descent.steps))
    if masked(fits):
        shape = models, n
        return (Batch(slice(n), rng.random(shape) < sampler.rate) for _ in steps)
    return (Batch(poisson_rows(n, sampler.rate, models, rng=rng)) for _ in steps)


def masked(fits: Fits) -> bool:
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
    copied = width / (_COPIED * outputs * (1 + width / _WIDE))
    return bool(sampler.rate * (_FILLED + copied) >= 1)


def bytes_of_model(fits: Fits, *, own: bool) -> int:
    """About how many bytes one model works on in a step, beside what all models share."""
    outputs, width = fits.start.shape
    sampler, batch, gathered = fits.descent.sampler, float(fits.records), 0
    if isinstance(sampler, Poisson) and not (own and masked(fits)):
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


def normals(fits: Fits, models: int, *, rng: np.random.Generator) -> Iterator[Floats]:
    """Standard normals of each step, all in the same memory."""
    room = np.empty((models, *fits.start.shape), fits.rows.dtype)
    for _ in range(int(fits.descent.steps)):
        yield rng.standard_normal(out=room, dtype=room.dtype.type)

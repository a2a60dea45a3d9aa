"""Calibration error without bins."""

from collections.abc import Iterable

import numpy as np
from scipy.fft import dct, idct
from scipy.optimize import brentq

from veracal import _checks
from veracal._types import Floats
from veracal.calibration.metrics.base import (
    Outcomes,
    need_records,
    need_two_classes,
    second_class,
    top_label_blocks,
)
from veracal.data import Scores

_GRID = 2**12  # points of the unit interval on which residuals are smoothed
_SILENT = 39.0  # from here on exp(-x²/2) is 0
_BLOCK = 16_384  # events put on the grid at a time


def smooth_ece(scores: Scores, *, bandwidth: float | None = None) -> float:
    r"""Top-label smooth calibration error, which moves a little when scores move a little.

    The residuals are smoothed by a Gaussian kernel :math:`K_\sigma` reflected at 0 and 1,

    .. math::
        \hat r_\sigma(t) = \frac{1}{n} \sum_i K_\sigma(t, p_i) (y_i - p_i), \qquad
        \mathrm{smECE}_\sigma = \int_0^1 \lvert \hat r_\sigma(t) \rvert \, dt,

    and the bandwidth is the fixed point :math:`\mathrm{smECE}_\sigma = \sigma`, which is
    unique since the left side falls in :math:`\sigma` (Błasiok & Nakkiran 2023, sections 3
    and 4, https://arxiv.org/abs/2309.12236).

    Parameters
    ----------
    scores : Scores
        Labeled, of at least one record.
    bandwidth : float > 0, optional
        A fixed :math:`\sigma` in place of the fixed point.

    Returns
    -------
    float in [0, 1]

    Notes
    -----
    A reflected Gaussian is the heat kernel of an insulated rod, so that a cosine transform
    turns smoothing into a product with :math:`e^{-(\pi j \sigma)^2 / 2}`. Each residual is
    shared linearly between the two nearest of 4,096 points, after which no step depends on
    the number of records. The figure is *internal* where records are private.
    """
    return _smooth(top_label_blocks(need_records(scores)), bandwidth)


def binary_smooth_ece(scores: Scores, *, bandwidth: float | None = None) -> float:
    """Binary smooth calibration error: of the probability of the second of two classes.

    See :func:`smooth_ece`, which is the same for the top label.
    """
    outcomes = second_class(need_two_classes(scores, "smooth_ece"))
    return _smooth([outcomes], bandwidth)


def _smooth(parts: Iterable[Outcomes], bandwidth: float | None) -> float:
    """Smooth calibration error of events."""
    waves = dct(_residuals(parts), norm="ortho")
    frequencies = np.pi * np.arange(_GRID)

    def error(sigma: float) -> float:
        scaled = frequencies * sigma
        heard = int(np.searchsorted(scaled, _SILENT))
        damped = np.zeros(_GRID)
        damped[:heard] = waves[:heard] * np.exp(-(scaled[:heard] ** 2) / 2)
        return float(np.abs(idct(damped, norm="ortho")).sum())

    if bandwidth is not None:
        _checks.positive(bandwidth=bandwidth)
        return min(error(bandwidth), 1.0)
    if error(0.0) <= 1e-15:
        return 0.0
    found = brentq(lambda sigma: error(sigma) - sigma, 0.0, 1.0 + 1e-9, xtol=1e-10)
    return min(float(found), 1.0)


def _residuals(parts: Iterable[Outcomes]) -> Floats:
    """Mean residual on the grid, each one shared between the two nearest points."""
    total, n = np.zeros(_GRID), 0
    for part in parts:
        n += len(part.happened)
        for start in range(0, len(part.happened), _BLOCK):
            probability = part.probability[start : start + _BLOCK].astype(np.float64)
            gaps = part.happened[start : start + _BLOCK] - probability
            # Points are the middles of cells; beyond the first and last, the mirror image.
            where = np.clip(probability * _GRID - 0.5, 0, _GRID - 1)
            left = np.minimum(where.astype(np.int32), _GRID - 2)
            shared = (where - left) * gaps
            total += np.bincount(left, gaps - shared, _GRID)
            total[1:] += np.bincount(left, shared, _GRID - 1)
    result: Floats = total / n
    return result

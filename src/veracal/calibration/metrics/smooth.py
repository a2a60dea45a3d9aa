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

_GRID = 2**12  # grid points of the unit interval
_ZERO_FROM = 39.0  # exp(-x²/2) underflows to 0 from here on
_BLOCK = 16_384  # events binned at a time


def smooth_ece(scores: Scores, *, bandwidth: float | None = None) -> float:
    r"""Top-label smooth calibration error, which is continuous in the scores.

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
    The reflected Gaussian is diagonal in the cosine basis, so smoothing is a product with
    :math:`e^{-(\pi j \sigma)^2 / 2}` after a cosine transform. Each residual is interpolated
    linearly between the two nearest of 4,096 grid points; later steps do not depend on the
    number of records. The value is *internal* if records are private.
    """
    return _smooth(top_label_blocks(need_records(scores)), bandwidth)


def binary_smooth_ece(scores: Scores, *, bandwidth: float | None = None) -> float:
    """Binary smooth calibration error: of the probability of the second of two classes.

    See :func:`smooth_ece`, which is the same for the top label.
    """
    outcomes = second_class(need_two_classes(scores, "smooth_ece"))
    return _smooth([outcomes], bandwidth)


def _smooth(parts: Iterable[Outcomes], bandwidth: float | None) -> float:
    """Smooth calibration error of events, at a bandwidth or at the fixed point."""
    waves = dct(_residuals(parts), norm="ortho")
    frequencies = np.pi * np.arange(_GRID)

    def error(sigma: float) -> float:
        scaled = frequencies * sigma
        n_nonzero = int(np.searchsorted(scaled, _ZERO_FROM))
        damped = np.zeros(_GRID)
        damped[:n_nonzero] = waves[:n_nonzero] * np.exp(-(scaled[:n_nonzero] ** 2) / 2)
        return float(np.abs(idct(damped, norm="ortho")).sum())

    if bandwidth is not None:
        _checks.positive(bandwidth=bandwidth)
        return min(error(bandwidth), 1.0)
    if error(0.0) <= 1e-15:
        return 0.0
    root = brentq(lambda sigma: error(sigma) - sigma, 0.0, 1.0 + 1e-9, xtol=1e-10)
    return min(float(root), 1.0)


def _residuals(parts: Iterable[Outcomes]) -> Floats:
    """Mean residuals on the grid, each interpolated between the two nearest points."""
    total, n = np.zeros(_GRID), 0
    for part in parts:
        n += len(part.happened)
        for start in range(0, len(part.happened), _BLOCK):
            probability = part.probability[start : start + _BLOCK].astype(np.float64)
            gaps = part.happened[start : start + _BLOCK] - probability
            # Grid points are cell midpoints, with reflection at both ends.
            position = np.clip(probability * _GRID - 0.5, 0, _GRID - 1)
            left = np.minimum(position.astype(np.int32), _GRID - 2)
            right_part = (position - left) * gaps
            total += np.bincount(left, gaps - right_part, _GRID)
            total[1:] += np.bincount(left, right_part, _GRID - 1)
    result: Floats = total / n
    return result

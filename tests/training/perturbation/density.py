"""The exact density of what a perturbed objective releases."""

import math

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Floats
from veracal.training.newton import Hessians, RowSource, build_problem, compute_gradients


def log_density(
    weights: ArrayLike,
    X: RowSource,
    signs: ArrayLike,
    *,
    penalty: float | Floats,
    noise_scale: float,
) -> Floats:
    r"""Log density of releasing some weights, given the records.

    .. math::

        \ln p(w) = -\frac{\lVert g(w) \rVert}{s} + \ln\det H(w)
        - \ln\Bigl(s^d\, \Gamma(d)\, \frac{2\pi^{d/2}}{\Gamma(d/2)}\Bigr)

    where g and H are the first and second derivatives of the objective without noise: w is
    released exactly if the noise is :math:`-g(w)`, and the last term is the integral of
    :math:`e^{-\lVert b \rVert / s}`. The difference between neighbors is the privacy loss,
    which tests and attacks maximize over records and w.

    Parameters
    ----------
    weights : array of shape (m, d) or (d,)
    X : array of shape (n, d)
        Clipped rows, including the appended one.
    signs : array of -1 and 1, of shape (n,)
    penalty : float > 0, or an array of shape (d,)
    noise_scale : float > 0
        The scale s, see :func:`~veracal.training.output_perturbation.spherical_gamma`.

    Examples
    --------
    Without records, w is the noise divided by the penalty:

    >>> log_density([[0.0]], np.zeros((0, 1)), [], penalty=4.0, noise_scale=2.0).round(9)
    array([0.])
    """
    _checks.positive(noise_scale=noise_scale)
    points = np.atleast_2d(np.asarray(weights, dtype=np.float64))
    problem = build_problem(X, signs, np.zeros_like(points), penalty)
    curvature = Hessians(problem)
    values = compute_gradients(problem, points, curvature)
    _, dets = np.linalg.slogdet(curvature.matrices(np.ones(len(points), dtype=bool)))
    d = points.shape[1]
    sphere = math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)
    normalization = d * math.log(noise_scale) + math.lgamma(d) + sphere
    result: Floats = dets - values.lengths / noise_scale - normalization
    return result

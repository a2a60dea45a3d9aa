r"""Where minimizers of objectives with much noise are to be found, on average.

The noise b of a level moves the margin of row i around a mean :math:`\mu_i`, with some
variance :math:`\tau_i^2`. Averaged over it, the chance of a row is nearly
:math:`\sigma(-\mu_i/\kappa_i)` with :math:`\kappa_i = \sqrt{1 + \pi\tau_i^2/8}` (MacKay 1992,
https://doi.org/10.1162/neco.1992.4.5.720), and its slope
:math:`u_i = \sigma'(\mu_i/\kappa_i)/\kappa_i`. The mean weights then solve
:math:`\lambda \circ \bar w = \sum_i \sigma(-\mu_i/\kappa_i) a_i` with
:math:`\mu_i = \bar w \cdot a_i`, noise moves them by :math:`-\bar H^{-1} b` with
:math:`\bar H = \operatorname{diag}\lambda + \sum_i u_i a_i a_i^\top`, and that gives the
variances. Nothing rests on it but speed: a search that begins there is short, and
:math:`\bar H`, one matrix for all models of a level, brings the eigenvalues of each model's
own second derivatives together.
"""

import numpy as np
from scipy.special import expit

from veracal._types import Floats, Ints

_STEP = 1.6  # between the norms of levels: with finer ones the searches are hardly shorter
_PASSES = 4


def level_numbers(norms: Floats) -> Ints:
    """Numbers of the levels of noise of some norms; the same norm has the same number."""
    least = np.finfo(np.float64).tiny
    found: Ints = np.rint(np.log(np.maximum(norms, least)) / np.log(_STEP)).astype(np.int64)
    return found


def level_of(rows: Floats, scales: Floats, number: int) -> tuple[Floats, Floats]:
    """Mean of the minimizers at a level of noise, and their response to it.

    Parameters
    ----------
    rows : array of shape (n, d)
        Signed, and scaled so that all penalties are 1.
    scales : array of shape (d,)
        Of the coordinates of the noise: its entries are divided by them.
    number : int
        See :func:`level_numbers`.

    Returns
    -------
    center : array of shape (d,)
    response : array of shape (d, d)
        The inverse of the mean second derivatives.
    """
    n, d = rows.shape
    variances = (_STEP**number / scales) ** 2 / d
    center, wider = np.zeros(d), np.ones(n)
    response = np.eye(d)
    for _ in range(_PASSES):
        chances = expit(-(rows @ center) / wider)
        slopes = chances * (1 - chances) / wider
        response = np.linalg.inv((rows.T * slopes) @ rows + np.eye(d))
        center = center - response @ (center - chances @ rows)
        moved = rows @ response
        wider = np.sqrt(1 + np.pi / 8 * (moved**2 @ variances))
    return center, response

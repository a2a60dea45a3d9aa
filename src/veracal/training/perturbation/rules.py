r"""How much penalty and noise an objective needs for a budget.

The objective is :math:`\sum_i \ell(s_i\, w \cdot x_i) + \frac\lambda2 \lVert w \rVert^2 +
b \cdot w` with :math:`\lVert x_i \rVert \le R`, the logistic loss
(:math:`|\ell'| \le 1`, :math:`0 \le \ell'' \le c = \frac14`) and noise b of density
proportional to :math:`e^{-\lVert b \rVert / s}`. Its minimizer is released.

The release has a density. With :math:`g_D(w) = \sum_i \nabla\ell_i(w) + \lambda w` and the
Hessian :math:`H_D(w) = \nabla g_D(w) \succeq \lambda I`, w is released exactly if
:math:`b = -g_D(w)`, a bijection, so that

.. math:: p_D(w) \propto e^{-\lVert g_D(w) \rVert / s} \det H_D(w).

The proof needs the *exact* minimizer, and the penalty on *every* coordinate, the
intercept's included: otherwise H has a direction that nothing bounds from below.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from veracal.privacy import Relation

CURVATURE = 0.25  # the most that the second derivative of the logistic loss reaches
_UP = 1 + 1e-12  # more than the rounding of a few operations
_LEAST_PENALTY = 1e-6


@dataclass(frozen=True)
class Perturbation:
    """Penalty and noise of one binary model.

    Attributes
    ----------
    lambda_total : float
        The whole coefficient of the penalty, not an addition to 1 / C.
    intercept_penalty : float
        The same for the intercept; another one only under a rule that is not private.
    epsilon_prime : float
        What is left of epsilon for the noise.
    noise_scale : float
        Scale s of the noise: its length is Gamma of this scale and of shape d.
    """

    lambda_total: float
    intercept_penalty: float
    epsilon_prime: float
    noise_scale: float


Rule = Callable[[float, float, float, Relation], Perturbation]


def one_log(epsilon: float, C: float, R: float, relation: Relation) -> Perturbation:
    r"""Penalty and noise with a single logarithm, and without a cliff.

    .. math::

        \lambda = \max\Bigl(\frac1C, \frac{cR^2}{e^{\varepsilon/2} - 1}\Bigr), \quad
        \varepsilon' = \varepsilon - \ln\Bigl(1 + \frac{cR^2}{\lambda}\Bigr)
        \ge \frac\varepsilon2, \quad
        s = \frac{R}{\varepsilon'} \text{ or, if a record is replaced, } \frac{2R}{\varepsilon'}

    Parameters
    ----------
    epsilon : float > 0
        For one row.
    C : float > 0
        Inverse of the least penalty.
    R : float > 0
        Bound on the norm of a row, the appended one included.
    relation : {"add-remove", "replace-one"}

    Guarantees
    ----------
    The release is epsilon-differentially private for one row under the relation, for any
    records. *Noise*: at the same w, the gradients of neighbors differ by one row's
    :math:`\ell' s x` of norm at most R, or by two of them, at most 2R; hence by the triangle
    inequality the first factor of the density changes by at most
    :math:`e^{\varepsilon'}`. *Determinant*: at the same w the Hessians of neighbors are
    :math:`A + h\,xx^\top` and A, or :math:`A + h' x'x'^\top`, with the *same*
    :math:`A \succeq \lambda I` of the rows they share and :math:`0 \le h, h' \le c`. By the
    matrix determinant lemma

    .. math::

        \frac{\det(A + h\,xx^\top)}{\det(A + h' x'x'^\top)}
        = \frac{1 + h\,x^\top A^{-1} x}{1 + h' x'^\top A^{-1} x'}
        \le 1 + \frac{cR^2}{\lambda},

    and the same holds with the roles exchanged. Both factors together are at most
    :math:`e^{\varepsilon'} (1 + cR^2/\lambda) = e^\varepsilon`. Chaudhuri, Monteleoni and
    Sarwate (2011, Theorem 9) bound a difference of rank two instead and pay the logarithm
    twice, see :func:`cms11`.
    """
    bend = CURVATURE * R * R
    penalty = max(1 / C, bend / _expm1(epsilon / 2) * _UP)
    left = epsilon - math.log1p(bend / penalty)
    return _uniform(penalty, left, R, relation)


def cms11(epsilon: float, C: float, R: float, relation: Relation) -> Perturbation:
    r"""Penalty and noise by the published proof, with two logarithms; for comparison.

    .. math::

        \lambda = \frac1C, \quad
        \varepsilon' = \varepsilon - 2\ln\Bigl(1 + \frac{cR^2}{\lambda}\Bigr);
        \quad \text{if } \varepsilon' \le 0:\quad
        \lambda = \frac{cR^2}{e^{\varepsilon/4} - 1},\ \varepsilon' = \frac\varepsilon2

    Chaudhuri, Monteleoni and Sarwate 2011, Algorithm 2, for a sum of losses and rows of norm
    R. Just above :math:`\varepsilon' = 0` its noise explodes: there is a cliff.

    Guarantees
    ----------
    Epsilon-differentially private as :func:`one_log` is, whose logarithm is half of what
    is set aside here: :math:`\varepsilon' + \ln(1 + cR^2/\lambda) \le \varepsilon` in both
    branches.
    """
    bend = CURVATURE * R * R
    penalty = 1 / C
    left = epsilon - 2 * math.log1p(bend / penalty)
    if left <= 0:
        penalty, left = bend / _expm1(epsilon / 4) * _UP, epsilon / 2
    return _uniform(penalty, left, R, relation)


def diffprivlib_062(epsilon: float, C: float, R: float, relation: Relation) -> Perturbation:
    r"""Penalty and noise of diffprivlib 0.6.2: **not** epsilon-differentially private.

    .. math::

        \varepsilon' = \varepsilon - 2\ln\Bigl(1 + \frac{cR}{\alpha/2}\Bigr),\ \Delta = 0;
        \quad \text{if } \varepsilon' \le 0:\quad
        \Delta = \frac{cR}{e^{\varepsilon/4} - 1} - \frac\alpha2,\
        \varepsilon' = \frac\varepsilon2

    with :math:`\alpha = 1/C` and noise of scale :math:`2R/\varepsilon'` whatever the relation.
    The features are penalized by :math:`\alpha + \Delta`, the intercept by :math:`\Delta`
    alone. It takes cR where the determinant needs :math:`cR^2`, and with
    :math:`\Delta = 0` nothing bounds the intercept: at R = 10 and epsilon = 0.5 neighbors
    are told apart at 1.02.

    Where it leaves the intercept without any penalty there may be no minimizer, and
    diffprivlib returns where its search gives up; a penalty of a millionth stands in here.
    """
    alpha = 1 / C
    left, more = epsilon - 2 * math.log1p(CURVATURE * R / (alpha / 2)), 0.0
    if left <= 0:
        more = CURVATURE * R / _expm1(epsilon / 4) - alpha / 2
        left = epsilon / 2
    return Perturbation(alpha + more, max(more, _LEAST_PENALTY), left, 2 * R / left)


RULES: dict[str, Rule] = {
    "one-log": one_log,
    "cms11": cms11,
    "diffprivlib-0.6.2": diffprivlib_062,
}
NOT_PRIVATE = {
    "diffprivlib-0.6.2": (
        "rule='diffprivlib-0.6.2' is not epsilon-differentially private: it adds too little "
        "noise and penalty for rows of norm above 1 and for the intercept"
    )
}


def divided(epsilon: float, parts: int) -> float:
    """The largest float that, taken ``parts`` times as it is written, stays within epsilon.

    Examples
    --------
    >>> divided(1.0, 3)
    0.3333333333333333
    """
    whole, part = Fraction(repr(float(epsilon))), float(epsilon) / parts
    while parts * Fraction(repr(part)) > whole:
        part = math.nextafter(part, 0.0)
    return part


def _uniform(penalty: float, left: float, R: float, relation: Relation) -> Perturbation:
    """The same penalty on every coordinate, and noise for the relation."""
    moved = R if relation == "add-remove" else 2 * R
    return Perturbation(penalty, penalty, left, moved / left * _UP)


def _expm1(exponent: float) -> float:
    """An exponential less one, that stays finite."""
    return math.expm1(min(exponent, 700.0))

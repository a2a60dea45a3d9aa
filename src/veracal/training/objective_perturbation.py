r"""The minimizer of a perturbed objective, rounded to a public grid, for noise of real numbers.

Objective perturbation is private for real arithmetic: the minimizer :math:`w(b)` has a density
because the noise b has one. Computed in floating point from a floating-point b, its low-order
bits show which records it was computed from. Here the *rounded* real minimizer is released,
:math:`\operatorname{round}(w(b)/h)\,h`, which is a post-processing of the private release.

The rounded minimizer is computed exactly. The objective is :math:`\lambda`-strongly convex, so
that approximate weights with the gradient g are within :math:`\lVert g \rVert / \lambda` of the
minimizer. With a bound on :math:`\lVert g \rVert` that includes the rounding of its computation
and the undrawn digits of b, this is a ball that contains :math:`w(b)`. If the ball lies inside
one cell of the grid, that cell is the result. If not, the gradient is computed with more
digits, and more digits of b are drawn, until it does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal, getcontext, localcontext

import numpy as np

from veracal import _checks
from veracal._types import Array, Floats, Ints
from veracal.accounting import Event, Pure
from veracal.errors import AnswerError
from veracal.mechanisms import SphericalNoise
from veracal.training.base import TrainingData
from veracal.training.newton import (
    MAX_RESIDUAL,
    TOL,
    HessianProducts,
    Hessians,
    Problem,
    RowSource,
    build_problem,
    compute_gradients,
    minimize,
)
from veracal.training.perturbation import (
    NOT_PRIVATE,
    RULES,
    ClippedRows,
    Perturbation,
    PerturbedClassifier,
    divide_epsilon,
    norm_bound,
)

_GRID_BITS = 20  # bits of R / (lambda sqrt(d)) to which weights are rounded
_MAX_DENSE, _MAX_DENSE_FALLBACK = 128, 4096  # features up to which matrices are formed
_DENSE_AFTER = 4  # Newton steps after which forming matrices pays off
_BLOCK = 8192  # maximum number of rows that are summed in one product
_CHAIN = 64  # products that are added sequentially in extended precision
_MAX_DECIMAL_STEPS = 100  # maximum number of Newton steps in decimal arithmetic
_DIGITS = 40  # initial precision of the decimal arithmetic
_MAX_MARGIN = 10_000  # margins whose probability is 0 with a thousand decimal digits


def minimizer_grid_step(R: float, penalty: float, d: int) -> float:
    r"""Step h of the public grid of released minimizers, a power of two.

    At most :math:`2^{-20} R / (\lambda\sqrt d)`: rounding then moves the weights no further
    than a gradient of :math:`2^{-21} R` would, for a penalty :math:`\lambda`.

    Examples
    --------
    >>> minimizer_grid_step(1.0, 1.0, 4) == 2.0**-21
    True
    """
    exponent = math.frexp(R / penalty / math.sqrt(d))[1] - 1
    return math.ldexp(1.0, exponent - _GRID_BITS)


def rounded_minimizers(
    X: RowSource,
    signs: Ints,
    noise: Sequence[SphericalNoise],
    *,
    penalty: Floats,
    step: float,
    tol: float,
    limit: float,
) -> Floats:
    """Minimizers rounded to multiples of ``step``, one for each noise vector.

    Parameters
    ----------
    X : rows of shape (n, d)
    signs : array of -1 and 1, of shape (models, n)
    noise : sequence of SphericalNoise
        The linear term of each model.
    penalty : array of shape (d,)
    step : float
        A power of two.
    tol, limit : float
        See :func:`~.newton.minimize`.

    Guarantees
    ----------
    Every entry is the multiple that is nearest to the real minimizer for the real noise.
    Rounding is bounded by the standard model of floating-point arithmetic, for sums of products
    in any order, and exponentials accurate to a few units in the last place. The running time
    depends on the records.
    """
    with localcontext(Context(prec=_DIGITS)):  # independent of the thread's decimal context
        linear = np.array(
            [[float((a + b) / 2) for a, b in vector.intervals()] for vector in noise]
        )
        weights = minimize(X, signs, linear, penalty=penalty, tol=tol, limit=limit)
        problem = build_problem(X, signs, linear, penalty)
        released = np.empty_like(weights)
        for model, (w, vector) in enumerate(zip(weights, noise, strict=True)):
            part = problem.of([model])
            cell = (
                _round_in_float64(part, w, step)
                or _round_in_long_double(part, w, vector, step)
                or _round_in_decimal(part, w, vector, step)
            )
            released[model] = [k * step for k in cell]
    return released


def _rounding(problem: Problem, magnitudes: Sequence[float], rows: int, entries: int) -> float:
    r"""A bound on the rounding of a gradient, in units in the last place.

    It covers the three parts of :func:`~.newton.compute_gradients`: a sum over rows in chains
    of at most ``rows`` additions; margins in chains of at most ``entries`` additions, whose
    error the curvatures propagate; and penalty and noise, to which sums of blocks are added.
    """
    loss, curvature, others = magnitudes
    blocks = math.ceil(int(problem.X.shape[0]) / _BLOCK)
    units = loss * (rows + blocks + 60) + curvature * (entries + 60) + others * (blocks + 8)
    return 2 * units


def _enclosing_cell(w: Array, radius: float, step: float) -> list[int] | None:
    """The grid cell that contains a ball; None if it overlaps several cells."""
    margin = w.dtype.type(radius) * (1 + 1e-6) + 4 * np.finfo(w.dtype).eps * np.abs(w)
    low, high = np.rint((w - margin) / step), np.rint((w + margin) / step)
    return [int(k) for k in low] if np.array_equal(low, high) else None


def _round_in_float64(problem: Problem, w: Floats, step: float) -> list[int] | None:
    """Round with a gradient in float64; the undrawn digits of the noise count as rounding."""
    n, d = (int(size) for size in problem.X.shape)
    values = compute_gradients(problem, w[None])
    magnitude = float(values.rounding[0]) * 2.0**49  # it is 16 units of 2^-53 of all parts
    bound = float(values.lengths[0])
    bound += 2.0**-53 * _rounding(problem, (magnitude, 0.0, 0.0), min(n, _BLOCK) + d, 0)
    return _enclosing_cell(w, bound / float(problem.penalty.min()), step)


def _round_in_long_double(
    problem: Problem, w: Floats, noise: SphericalNoise, step: float
) -> list[int] | None:
    """Round with a gradient in extended precision, if the processor has it."""
    if np.finfo(np.longdouble).nmant <= np.finfo(np.float64).nmant:
        return None
    point = w.astype(np.longdouble)
    # Midpoints: a float plus the remainder.
    middles = [(low + high) / 2 for low, high in noise.intervals()]
    linear = np.array(middles, dtype=np.float64).astype(np.longdouble)
    linear += [float(middle - Decimal(float(middle))) for middle in middles]
    unit, d = float(np.finfo(np.longdouble).eps), len(w)
    for _ in range(3):
        g, magnitudes = _long_gradient(problem, point, linear)
        bound = float(np.sqrt(g @ g))
        chains = _CHAIN + _BLOCK // _CHAIN, _CHAIN + math.ceil(d / _CHAIN)
        bound += unit * _rounding(problem, magnitudes, *chains)
        cell = _enclosing_cell(point, bound / float(problem.penalty.min()), step)
        if cell is not None:
            return cell
        point = point + _newton_step(problem, point.astype(np.float64), g.astype(np.float64))
    return None


def _long_gradient(
    problem: Problem, w: Array, linear: Array
) -> tuple[Array, tuple[float, float, float]]:
    """Gradient in extended precision, in short chains, and the magnitudes of its summands."""
    g = problem.penalty * w + linear
    length, loss, curvature = float(np.linalg.norm(w)), 0.0, 0.0
    with np.errstate(over="ignore"):
        for _, rows, signs in problem.blocks(_BLOCK):
            signed = (rows * np.reshape(signs, (-1, 1))).astype(np.longdouble)
            probabilities = 1 / (1 + np.exp(_chained_product(signed, w)))
            norms, small = np.linalg.norm(rows, axis=1), probabilities.astype(np.float64)
            loss += float(small @ norms)
            curvature += float((small * (1 - small)) @ norms**2)
            g = g - _chained_product(signed.T, probabilities)
    others = float(np.linalg.norm(problem.penalty * w) + np.linalg.norm(linear))
    return g, (loss, length * curvature, others)


def _chained_product(matrix: Array, vector: Array) -> Array:
    """A matrix-vector product whose sums have few sequential additions."""
    product = np.zeros(len(matrix), dtype=np.longdouble)
    for start in range(0, len(vector), _CHAIN):
        product += matrix[:, start : start + _CHAIN] @ vector[start : start + _CHAIN]
    return product


def _newton_step(problem: Problem, w: Floats, g: Floats, attempt: int = 0) -> Floats:
    """A Newton step, in float64."""
    d = problem.X.shape[1]
    dense = d <= (_MAX_DENSE if attempt < _DENSE_AFTER else _MAX_DENSE_FALLBACK)
    curvature = Hessians(problem) if dense else HessianProducts(problem)
    compute_gradients(problem, w[None], curvature)
    step: Floats = curvature.solve(np.array([True]), -g[None], np.array([1e-6]))[0]
    return step


def _round_in_decimal(
    problem: Problem, w: Floats, noise: SphericalNoise, step: float
) -> list[int]:
    """Round with a gradient in decimal arithmetic of increasing precision."""
    least, unit = Decimal(float(problem.penalty.min())), Decimal(step)
    point, digits, previous = (
        [Decimal(float(weight)) for weight in w],
        _DIGITS,
        Decimal("Infinity"),
    )
    for attempt in range(_MAX_DECIMAL_STEPS):
        with localcontext(Context(prec=digits)):
            intervals = noise.intervals()
            g, rounding = _decimal_gradient(problem, point, [(a + b) / 2 for a, b in intervals])
            bound = sum((one * one for one in g), rounding**2).sqrt() + rounding
            bound += sum((b - a for a, b in intervals), Decimal(0))
            radius = bound / least * 2
            ends = [
                [int(((one + side) / unit).to_integral_value()) for one in point]
                for side in (-radius, radius)
            ]
            if ends[0] == ends[1]:
                return ends[0]
            if radius > previous / 2:  # no progress with these digits
                digits += 20
                noise.refine()
            previous = radius
            at, slope = (np.array([float(one) for one in some]) for some in (point, g))
            steps = _newton_step(problem, at, slope, attempt)
            point = [one + Decimal(float(move)) for one, move in zip(point, steps, strict=True)]
    raise AnswerError(
        "Expected to compute the rounded minimizer of the objective, but did not within "
        f"{_MAX_DECIMAL_STEPS} steps; nothing is released. Use a smaller C, or a smaller norm."
    )


def _decimal_gradient(
    problem: Problem, w: list[Decimal], linear: list[Decimal]
) -> tuple[list[Decimal], Decimal]:
    """Gradient in decimal arithmetic, and a bound on its rounding."""
    penalty = [Decimal(float(one)) for one in problem.penalty]
    g = [a * b + c for a, b, c in zip(penalty, w, linear, strict=True)]
    magnitude = sum(map(abs, g), Decimal(0)) + 2 * sum(map(abs, linear), Decimal(0))
    size = 1 + sum(map(abs, w), Decimal(0))
    for _, rows, signs in problem.blocks(_BLOCK):
        for row in (rows * np.reshape(signs, (-1, 1))).tolist():
            x = [Decimal(one) for one in row]
            margin = sum(map(Decimal.__mul__, x, w), Decimal(0))
            # Beyond that it is smaller than any rounding here.
            probability = 1 / (1 + margin.exp()) if margin < _MAX_MARGIN else Decimal(0)
            g = [a - probability * b for a, b in zip(g, x, strict=True)]
            row_size = sum(map(abs, x), Decimal(0))
            magnitude += row_size * (1 + size * row_size)
    # Fewer than 10^10 roundings, each at most 10^(1 - digits) of the magnitude.
    return g, magnitude * Decimal(10) ** (12 - getcontext().prec)


@dataclass(eq=False, repr=False)
class ObjectivePerturbation(PerturbedClassifier):
    r"""Logistic regression, the minimizer of an objective with a random linear term.

    .. math::

        \min_w \sum_i \ln(1 + e^{-s_i w \cdot x_i})
        + \frac\lambda2 \lVert w \rVert^2 + b \cdot w

    Rows longer than ``norm`` are clipped to it, a one is appended for the intercept, and all
    coordinates are penalized. Penalty and noise follow from :func:`~.perturbation.one_log`; a
    smaller epsilon increases both. The objective is that of Chaudhuri, Monteleoni and Sarwate
    (2011, https://www.jmlr.org/papers/v12/chaudhuri11a.html) for a sum of losses and rows of
    any norm. More than two classes are learned one against the rest, at epsilon / K each.

    Parameters
    ----------
    epsilon : float > 0
        Cost of one unit: one record, or all rows of ``unit``.
    C : float > 0
        Inverse of the minimum penalty, as in scikit-learn; a small epsilon requires more
        penalty than 1 / C, and ``lambda_total_`` is the penalty that was used.
    norm : float, optional
        Public bound on the norm of a row; longer rows are clipped silently. None: the bound
        that the data set declares. Without either it is read from the records, which is *not
        private*.
    rule : {"one-log", "cms11", "diffprivlib-0.6.2"}
        ``"cms11"`` is private too, with more noise. ``"diffprivlib-0.6.2"`` has the
        distribution of that version of diffprivlib and is **not epsilon-DP**: it has no event,
        and its fits are never called private.
    fit_intercept : bool
    classes : sequence of str or int, optional
        Declared classes; a class without records is learned like any other.
    size : int, optional
        Declared number of records, which this model does not use.
    relation : {"add-remove", "replace-one"}
        Under replace-one the noise is twice as large.
    unit : Unit, optional
        The privacy unit that epsilon protects; each of its rows gets epsilon /
        ``unit.max_contributions``.
    random_state : int or Generator, optional
        Only None, which draws secret noise, is private.

    Attributes
    ----------
    coef_, intercept_ : arrays
    lambda_total_, intercept_penalty_ : float
        Penalties of the features and of the intercept.
    noise_scale_ : float
        Scale of the Gamma distribution of the noise's length; its shape is ``coef_.shape[1]``,
        plus one with an intercept.
    epsilon_prime_ : float
        The share of ``epsilon_per_class_`` that remains for the noise.
    epsilon_per_class_ : float
        Epsilon of one row in one binary model: epsilon for two classes, a K-th of it for K > 2.
    norm_, norm_bound_ : float
        Bounds on the norm of rows, without and with the appended one.
    grid_step_ : float
        Step of the public grid on which the weights lie.

    Guarantees
    ----------
    Unless the rule says otherwise, a fit is epsilon-differentially private for one unit under
    ``relation``, by the proof in :func:`~.perturbation.one_log`, basic composition over classes
    and group privacy over rows. The proof assumes the exact minimizer for noise of real
    numbers. The release is that minimizer rounded to a public grid, computed exactly
    (:func:`rounded_minimizers`), so that low-order bits carry no information.

    Examples
    --------
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0]] * 50), ["no", "yes"] * 50
    >>> model = ObjectivePerturbation(8.0, norm=1.0, classes=["no", "yes"], size=100).fit(X, y)
    >>> model.event_, model.private_
    (Pure(epsilon=8.0, relation='add-remove'), True)
    """

    rule: str = field(default="one-log", kw_only=True)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text: str = super().__repr__(N_CHAR_MAX)
        unsafe = isinstance(self.rule, str) and self.rule in NOT_PRIVATE
        return f"{text} (not epsilon-DP)" if unsafe else text

    def perturbation(self, norm: float, k: int = 2) -> Perturbation:
        """Penalty and noise of each binary model, for rows of a norm and k classes."""
        epsilon = divide_epsilon(self._epsilon_per_row(), k if k > 2 else 1)
        R = norm_bound(norm, fit_intercept=self.fit_intercept)
        return RULES[self.rule](epsilon, self.C, R, self.relation)

    def penalties(self, used: Perturbation, d: int) -> Floats:
        """Penalty of each of d weights; the last may be the intercept."""
        penalty = np.full(d, used.lambda_total)
        if self.fit_intercept:
            penalty[-1] = used.intercept_penalty
        return penalty

    def _check_settings(self) -> None:
        _checks.one_of(RULES, rule=self.rule)
        super()._check_settings()

    def _cost(self, size: int | None) -> Event | None:
        if self.rule in NOT_PRIVATE:
            return None
        return Pure(self._epsilon_per_row(), self.relation)

    def _penalty(self, norm: float) -> float:
        return self.perturbation(norm).lambda_total

    def _learn(self, data: TrainingData, rng: np.random.Generator) -> tuple[str, ...]:
        reasons = super()._learn(data, rng)
        return (*reasons, NOT_PRIVATE[self.rule]) if self.rule in NOT_PRIVATE else reasons

    def _weights(
        self, rows: Floats | ClippedRows, signs: Ints, rng: np.random.Generator
    ) -> Floats:
        k, d = len(signs), rows.shape[1]
        used = self.perturbation(self.norm_, k)
        self.lambda_total_, self.intercept_penalty_ = used.lambda_total, used.intercept_penalty
        self.noise_scale_, self.epsilon_prime_ = used.noise_scale, used.epsilon_prime
        self.epsilon_per_class_ = divide_epsilon(self._epsilon_per_row(), k)
        penalty = self.penalties(used, d)
        self.grid_step_ = minimizer_grid_step(self.norm_bound_, used.lambda_total, d)
        return rounded_minimizers(
            rows,
            signs,
            [SphericalNoise(used.noise_scale, d, rng=rng) for _ in range(k)],
            penalty=penalty,
            step=self.grid_step_,
            tol=TOL * min(1.0, self.norm_bound_),
            limit=MAX_RESIDUAL * self.norm_bound_,
        )

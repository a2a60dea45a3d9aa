"""Logistic regression whose objective is perturbed before it is minimized."""

from collections.abc import Sequence

import numpy as np

from veracal import _checks
from veracal._types import Floats, Ints
from veracal.data.labels import Label
from veracal.privacy import Event, Pure, Relation, Unit
from veracal.privacy.answers.rounded_noise import SphericalNoise
from veracal.training.facts import Facts
from veracal.training.perturbation.base import PerturbedClassifier
from veracal.training.perturbation.rounded_minimizer import (
    minimizer_grid_step,
    rounded_minimizers,
)
from veracal.training.perturbation.rows import ClippedRows, reach
from veracal.training.perturbation.rules import NOT_PRIVATE, RULES, Perturbation, divided
from veracal.training.perturbation.solver import RESIDUAL, TOL


class ObjectivePerturbation(PerturbedClassifier):
    r"""Logistic regression, the minimizer of an objective with a random linear term.

    .. math::

        \min_w \sum_i \ln(1 + e^{-s_i w \cdot x_i})
        + \frac\lambda2 \lVert w \rVert^2 + b \cdot w

    Rows longer than ``norm`` are clipped to it, a one is appended for the intercept, and all
    coordinates are penalized. Penalty and noise follow from :func:`~.rules.one_log`; smaller
    epsilon raises both. The objective is that of Chaudhuri, Monteleoni and Sarwate (2011,
    https://www.jmlr.org/papers/v12/chaudhuri11a.html) for a sum of losses and rows of any
    norm. More than two classes are learnt one against the rest, at epsilon / K each.

    Parameters
    ----------
    epsilon : float > 0
        What one unit pays: one record, or all rows of ``unit``.
    C : float > 0
        Inverse of the least penalty, as in scikit-learn; a small epsilon asks for more
        penalty than 1 / C, and ``lambda_total_`` tells how much was used.
    norm : float, optional
        Public bound on the norm of a row; longer rows are clipped, and nobody is told. None:
        what the data set declares. Read from the records in want of both, which is *not
        private*.
    rule : {"one-log", "cms11", "diffprivlib-0.6.2"}
        ``"cms11"`` is private too, with more noise. ``"diffprivlib-0.6.2"`` has the law of
        that version of diffprivlib and is **not epsilon-DP**: it costs no event, and what it
        fits is never called private.
    fit_intercept : bool
    classes : sequence of str or int, optional
        Declared classes; a class without members is learnt like any other.
    size : int, optional
        Declared number of records. Nothing here is computed from it.
    relation : {"add-remove", "replace-one"}
        Under replace-one the noise is twice as large.
    unit : Unit, optional
        Whom epsilon protects; each of its rows gets epsilon / ``unit.at_most``.
    random_state : int or Generator, optional
        None draws secret noise, the only private choice.

    Attributes
    ----------
    coef_, intercept_ : arrays
    lambda_total_, intercept_penalty_ : float
        Penalties that were used, for features and intercept.
    noise_scale_ : float
        Scale of the Gamma law of the noise's length; its shape is ``coef_.shape[1]``, plus
        one with an intercept.
    epsilon_prime_ : float
        What was left of ``epsilon_per_class_`` for the noise.
    epsilon_per_class_ : float
        Epsilon of one row in one binary model: of two classes all, of K > 2 a K-th.
    norm_, reach_ : float
        Bounds on rows, without and with the appended one.
    grid_step_ : float
        Step of the public grid on which the weights lie.

    Guarantees
    ----------
    Unless the rule says otherwise, a fit is epsilon-differentially private for one unit under
    ``relation``, by the proof in :func:`~.rules.one_log`, basic composition over classes and
    group privacy over rows. It rests on the exact minimizer for noise of real numbers. What is
    released is that minimizer rounded to a public grid, which is found exactly
    (:mod:`~.rounded_minimizer`), so that low-order bits carry nothing.

    Examples
    --------
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0]] * 50), ["no", "yes"] * 50
    >>> model = ObjectivePerturbation(8.0, norm=1.0, classes=["no", "yes"], size=100).fit(X, y)
    >>> model.event_, model.private_
    (Pure(epsilon=8.0, relation='add-remove'), True)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        C: float = 1.0,
        norm: float | None = None,
        rule: str = "one-log",
        fit_intercept: bool = True,
        classes: Sequence[Label] | None = None,
        size: int | None = None,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.C = C
        self.norm = norm
        self.rule = rule
        self.fit_intercept = fit_intercept
        self.classes = classes
        self.size = size
        self.relation = relation
        self.unit = unit
        self.random_state = random_state

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text: str = super().__repr__(N_CHAR_MAX)
        known = isinstance(self.rule, str) and self.rule in NOT_PRIVATE
        return f"{text} (not epsilon-DP)" if known else text

    def perturbation(self, norm: float, k: int = 2) -> Perturbation:
        """Penalty and noise of each binary model, for rows of a norm and k classes."""
        epsilon = divided(self._epsilon_per_row(), k if k > 2 else 1)
        R = reach(norm, fit_intercept=self.fit_intercept)
        return RULES[self.rule](epsilon, self.C, R, self.relation)

    def penalties(self, used: Perturbation, d: int) -> Floats:
        """Penalty of each of d weights, of which the last may be the intercept."""
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

    def _learn(self, facts: Facts, rng: np.random.Generator) -> tuple[str, ...]:
        reasons = super()._learn(facts, rng)
        return (*reasons, NOT_PRIVATE[self.rule]) if self.rule in NOT_PRIVATE else reasons

    def _weights(
        self, rows: Floats | ClippedRows, signs: Ints, rng: np.random.Generator
    ) -> Floats:
        k, d = len(signs), rows.shape[1]
        used = self.perturbation(self.norm_, k)
        self.lambda_total_, self.intercept_penalty_ = used.lambda_total, used.intercept_penalty
        self.noise_scale_, self.epsilon_prime_ = used.noise_scale, used.epsilon_prime
        self.epsilon_per_class_ = divided(self._epsilon_per_row(), k)
        penalty = self.penalties(used, d)
        self.grid_step_ = minimizer_grid_step(self.reach_, used.lambda_total, d)
        return rounded_minimizers(
            rows,
            signs,
            [SphericalNoise(used.noise_scale, d, rng=rng) for _ in range(k)],
            penalty=penalty,
            step=self.grid_step_,
            tol=TOL * min(1.0, self.reach_),
            limit=RESIDUAL * self.reach_,
        )

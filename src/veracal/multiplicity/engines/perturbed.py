"""Runs of perturbed logistic regression: one problem, many noise vectors."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Floats
from veracal.data import Dataset
from veracal.multiplicity.engines.base import Engine, checked_people, fingerprint, in_order
from veracal.multiplicity.engines.parameters import told
from veracal.multiplicity.engines.streams import Streams
from veracal.training.linear import apart_logits
from veracal.training.perturbation.base import PerturbedClassifier
from veracal.training.perturbation.many import Many
from veracal.training.perturbation.noise import spherical_gamma
from veracal.training.perturbation.objective import ObjectivePerturbation
from veracal.training.perturbation.output import OutputPerturbation
from veracal.training.perturbation.solver import minimize

_TOGETHER = 2048
_NUMBERS = 1 << 23  # scores that are held at a time


class _Perturbed(Engine):
    """What both have in common: the binary problems, and people scored by their weights."""

    kind = "logit"

    def __init__(self, model: PerturbedClassifier, train: Dataset, X: ArrayLike) -> None:
        self._task = model.binary(train)
        self._X = checked_people(X, train.X.shape[1])
        self._model = model
        self.classes = train.classes
        self.people = len(self._X)
        each = max(1, self.people * len(self._task.signs))
        self.together = max(1, min(_TOGETHER, _NUMBERS // each))

    def settings(self) -> dict[str, Any]:
        """Parameters of the model, and hashes of records and people."""
        task, rows = self._task, self._task.rows
        return {
            "engine": self.name,
            "model": type(self._model).__name__,
            "parameters": told(self._model)["parameters"],
            "norm": task.norm,
            "classes": list(self.classes),
            "records": fingerprint(rows[0 : rows.shape[0]], task.signs),
            "people": fingerprint(self._X),
        }

    def _scores(self, weights: Floats) -> Floats:
        """Logits of people by weights of shape (runs, models, d), as the estimator has them."""
        coef = weights[:, :, :-1] if self._model.fit_intercept else weights
        runs, models, d = coef.shape
        sums = (coef.reshape(-1, d) @ self._X.T).reshape(runs, models, self.people)
        if self._model.fit_intercept:
            sums += weights[:, :, -1:]
        found = sums[:, 0] if models == 1 else np.moveaxis(apart_logits(sums), 1, 2)
        return in_order(found, self._task.classes.tolist(), self.classes)


class OutputEngine(_Perturbed):
    r"""Output perturbation, exact: the weights without noise are found once.

    .. math:: w_r = \operatorname*{argmin}_w F(w) + b_r,

    with noise of the model's own distribution, Gaussian or of Gamma length, both on the grid
    of the released weights.

    Parameters
    ----------
    model : OutputPerturbation
        Not fitted. Its ``random_state`` is not used.
    train : Dataset
    X : array of shape (people, d)
        Whom to score.
    """

    name = "re-noise"

    def __init__(self, model: OutputPerturbation, train: Dataset, X: ArrayLike) -> None:
        super().__init__(model, train, X)
        task = self._task
        self._exact = model.exact(task.rows, task.signs, task.norm)
        self._noise = model.noise(task.norm, len(task.classes))

    def scores(self, count: int, streams: Streams) -> Floats:
        """Logits of runs that differ by noise alone."""
        return self._scores(self._noise.simulate(self._exact, count, rng=streams.noise))


class ObjectiveEngine(_Perturbed):
    r"""Objective perturbation: the minimizers of m objectives that differ by their noise.

    .. math:: w_r = \operatorname*{argmin}_w \sum_i \ln(1 + e^{-s_i w \cdot x_i})
        + \tfrac12 \sum_j \lambda_j w_j^2 + b_r \cdot w,

    each as exact as one fit is. The rule is the model's, of diffprivlib 0.6.2 too.

    Parameters
    ----------
    model : ObjectivePerturbation
        Not fitted. Its ``random_state`` is not used.
    train : Dataset
    X : array of shape (people, d)
        Whom to score.
    """

    name = "batched objective perturbation"

    def __init__(self, model: ObjectivePerturbation, train: Dataset, X: ArrayLike) -> None:
        super().__init__(model, train, X)
        self._used = model.perturbation(self._task.norm, len(self._task.classes))
        self._penalty = model.penalties(self._used, self._task.rows.shape[1])
        rows, few = self._task.rows, Many.fits(self._task.rows)
        self._many = [Many(rows, signs, self._penalty) for signs in self._task.signs if few]

    def scores(self, count: int, streams: Streams) -> Floats:
        """Logits of runs, each minimized with noise of its own."""
        task = self._task
        k, d = len(task.signs), task.rows.shape[1]
        noise = spherical_gamma(d, self._used.noise_scale, rng=streams.noise, size=count * k)
        linear = noise.reshape(count, k, d)
        weights = np.empty_like(linear)
        for c, many in enumerate(self._many):
            weights[:, c] = many.minimize(linear[:, c]).weights
        for c, signs in enumerate(task.signs[len(self._many) :]):
            weights[:, c] = minimize(task.rows, signs, linear[:, c], penalty=self._penalty)
        return self._scores(weights)

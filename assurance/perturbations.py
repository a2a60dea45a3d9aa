"""Perturbed classifiers with one small mistake each."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import optimize
from scipy.special import expit

from veracal._types import Floats
from veracal.training import ObjectivePerturbation, OutputPerturbation
from veracal.training.newton import minimize
from veracal.training.output_perturbation import spherical_gamma
from veracal.training.perturbation import Perturbation, norm_bound, one_log


class HalfScale(ObjectivePerturbation):
    """Compute half the noise."""

    def perturbation(self, norm: float, k: int = 2) -> Perturbation:
        used = super().perturbation(norm, k)
        return replace(used, noise_scale=used.noise_scale / 2)


class HalfDrawn(ObjectivePerturbation):
    """State the right noise, and draw half of it."""

    def _weights(self, rows: Any, signs: Any, rng: np.random.Generator) -> Floats:
        said = self.perturbation(self.norm_, len(signs))
        halved = replace(said, noise_scale=said.noise_scale / 2)
        self.perturbation = lambda *_: halved  # type: ignore[method-assign]
        weights = super()._weights(rows, signs, rng)
        del self.perturbation
        self.noise_scale_ = said.noise_scale
        return weights


class NotSquared(ObjectivePerturbation):
    """Use R instead of R squared in the curvature."""

    def perturbation(self, norm: float, k: int = 2) -> Perturbation:
        R = norm_bound(norm, fit_intercept=self.fit_intercept)
        right = super().perturbation(norm, k)
        epsilon = self._epsilon_per_row() / (k if k > 2 else 1)
        wrong = one_log(epsilon, self.C, math.sqrt(R), self.relation)
        return replace(wrong, noise_scale=right.noise_scale)


class FreeIntercept(ObjectivePerturbation):
    """Leave the intercept out of the penalty, as scikit-learn does."""

    def perturbation(self, norm: float, k: int = 2) -> Perturbation:
        return replace(super().perturbation(norm, k), intercept_penalty=1e-6)


class ReplacedAsRemoved(ObjectivePerturbation):
    """Use the noise of add-remove under replace-one."""

    def perturbation(self, norm: float, k: int = 2) -> Perturbation:
        R = norm_bound(norm, fit_intercept=self.fit_intercept)
        return one_log(self._epsilon_per_row() / (k if k > 2 else 1), self.C, R, "add-remove")


class NotSplit(ObjectivePerturbation):
    """Spend the whole epsilon on every class."""

    def perturbation(self, norm: float, k: int = 2) -> Perturbation:
        return super().perturbation(norm, 2)


class RawRows(ObjectivePerturbation):
    """Declare a norm, and forget to clip."""

    def _weights(self, rows: Any, signs: Any, rng: np.random.Generator) -> Floats:
        return super()._weights(RAW[0], signs, rng)


class BoundFromData(ObjectivePerturbation):
    """Use the longest row as the norm."""

    def _learn(self, facts: Any, rng: np.random.Generator) -> tuple[str, ...]:
        declared, self.norm = self.norm, float(np.linalg.norm(facts.X, axis=1).max())
        reasons = super()._learn(facts, rng)
        self.norm = declared
        return reasons


class ClassesFromData(ObjectivePerturbation):
    """Learn only the classes that occur."""

    def _learn(self, facts: Any, rng: np.random.Generator) -> tuple[str, ...]:
        seen, codes = np.unique(facts.codes, return_inverse=True)
        return super()._learn(replace(facts, classes=facts.classes[seen], codes=codes), rng)


class Cornered(ObjectivePerturbation):
    """Draw the direction from a cube."""

    def _weights(self, rows: Any, signs: Any, rng: np.random.Generator) -> Floats:
        return with_noise(self, rows, signs, cube(len(signs), rows.shape[1], self, rng))


class Inexact(ObjectivePerturbation):
    """Stop the search where scikit-learn stops: at a gradient of 1e-4 on the mean."""

    def _weights(self, rows: Any, signs: Any, rng: np.random.Generator) -> Floats:
        super()._weights(rows, signs, np.random.default_rng(0))
        noise = spherical_gamma(rows.shape[1], self.noise_scale_, rng=rng, size=len(signs))
        return early(rows, signs, noise, self.lambda_total_)


class PerRecord(ObjectivePerturbation):
    """Penalize the mean loss instead of the sum: the real number of records leaks."""

    def _weights(self, rows: Any, signs: Any, rng: np.random.Generator) -> Floats:
        declared, self.C = self.C, self.C / (len(rows) + 1)
        weights = super()._weights(rows, signs, rng)
        self.C = declared
        return weights


class OutputHalf(OutputPerturbation):
    """Draw half the noise."""

    def _weights(self, rows: Any, signs: Any, rng: np.random.Generator) -> Floats:
        exact = self.exact(rows, signs, self.norm_)
        return (exact + super()._weights(rows, signs, rng)) / 2


class OutputReplaced(OutputPerturbation):
    """Use the sensitivity of add-remove under replace-one."""

    def _weights(self, rows: Any, signs: Any, rng: np.random.Generator) -> Floats:
        declared, self.relation = self.relation, "add-remove"
        weights = super()._weights(rows, signs, rng)
        self.relation = declared
        return weights


class OutputFree(OutputPerturbation):
    """Leave the intercept out of the penalty."""

    def _weights(self, rows: Any, signs: Any, rng: np.random.Generator) -> Floats:
        exact = self.exact(rows, signs, self.norm_)
        noise = super()._weights(rows, signs, rng) - exact
        penalty = np.full(rows.shape[1], self.lambda_total_)
        penalty[-1] = 1e-6
        return noise + minimize(rows, signs, np.zeros_like(noise), penalty=penalty)


class OutputNotSplit(OutputPerturbation):
    """Spend everything on every class."""

    def _weights(self, rows: Any, signs: Any, rng: np.random.Generator) -> Floats:
        exact = self.exact(rows, signs, self.norm_)
        noise = super()._weights(rows, signs, rng) - exact
        share = len(signs) if self.delta == 0 else math.sqrt(len(signs))
        self.noise_scale_ = None if self.noise_scale_ is None else self.noise_scale_ / share
        self.noise_std_ = None if self.noise_std_ is None else self.noise_std_ / share
        return exact + noise / share


class OutputInexact(OutputPerturbation):
    """Stop the solver early, but assume the exact minimizer."""

    def _weights(self, rows: Any, signs: Any, rng: np.random.Generator) -> Floats:
        exact = self.exact(rows, signs, self.norm_)
        noise = super()._weights(rows, signs, rng) - exact
        return noise + early(rows, signs, np.zeros_like(noise), self.lambda_total_)


RAW: list[Floats] = [np.zeros((0, 0))]  # rows that a mutant reads instead of clipped ones


def cube(k: int, d: int, model: Any, rng: np.random.Generator) -> Floats:
    """Noise of the right length in a wrong direction."""
    model.lambda_total_ = model.perturbation(model.norm_, k).lambda_total
    sides = rng.uniform(-1, 1, (k, d))
    lengths = rng.gamma(d, model.perturbation(model.norm_, k).noise_scale, (k, 1))
    return sides / np.linalg.norm(sides, axis=1, keepdims=True) * lengths


def with_noise(model: Any, rows: Any, signs: Any, noise: Floats) -> Floats:
    """The release of a model for given noise."""
    used = model.perturbation(model.norm_, len(signs))
    model.lambda_total_, model.intercept_penalty_ = used.lambda_total, used.intercept_penalty
    model.noise_scale_, model.epsilon_prime_ = used.noise_scale, used.epsilon_prime
    return minimize(rows, signs, noise, penalty=used.lambda_total)


def early(rows: Any, signs: Any, linear: Floats, penalty: float) -> Floats:
    """A minimizer with scikit-learn's tolerance."""

    def one(marks: Floats, b: Floats) -> Floats:
        signed = rows * marks[:, None]

        def objective(w: Floats) -> tuple[float, Floats]:
            value = np.logaddexp(0, -(signed @ w)).sum() + penalty / 2 * w @ w + b @ w
            return value, penalty * w + b - expit(-(signed @ w)) @ signed

        tol = 1e-4 * max(1, len(signed))
        options = {"gtol": tol, "ftol": 0.0}
        start = np.zeros(len(b))
        result = optimize.minimize(
            objective, start, jac=True, method="L-BFGS-B", options=options
        )
        return np.asarray(result.x)

    return np.array([one(marks, b) for marks, b in zip(signs, linear, strict=True)])

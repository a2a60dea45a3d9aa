"""The distribution of the noise in a saved classifier, from public numbers alone."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from veracal._types import Floats
from veracal.artifact.weights import LinearWeights
from veracal.calibration import PART
from veracal.errors import DataError
from veracal.training import (
    MAX_RESIDUAL,
    Arbitrariness,
    GammaNoise,
    GaussianNoise,
    ObjectivePerturbation,
    OutputPerturbation,
    describe_scope,
    failure_probability,
    objective_certificate,
    output_arbitrariness,
)

MAP_CAVEAT = (
    "The calibration map counts as fixed at its released value: another run would fit another "
    "one."
)
_MIN_SCALE, _MAX_SCALE = 1e-100, 1e100  # their squares are finite and positive
_MAX_GRID_SHARE = 1.0  # largest grid step relative to the noise; ours is below 1e-9


@dataclass(frozen=True)
class NoiseModel:
    """The noise that a mechanism drew, and where it was added.

    Attributes
    ----------
    mechanism : {"output", "objective"}
        Whether it was added to the weights, or to the gradient of their objective.
    distribution : {"gaussian", "gamma"}
    scale : float
        Standard deviation of each coordinate, or scale of the Gamma distribution of the norm.
    dimension : int
        Coordinates with noise in each row of weights.
    intercept : bool
        Whether the intercept is one of them.
    penalty : float or None
        Of objective perturbation: the total coefficient of the penalty.
    residual : float or None
        Of objective perturbation: bound on the gradient norm after a fit; a fit above it
        releases nothing. Rounding to the grid of the weights is less than a twentieth of it.
    step : float
        Of output perturbation: step of the grid to which weights and noise are rounded; 0 in
        artifacts from before the grid.
    """

    mechanism: Literal["output", "objective"]
    distribution: Literal["gaussian", "gamma"]
    scale: float
    dimension: int
    intercept: bool
    penalty: float | None = None
    residual: float | None = None
    step: float = 0.0

    @classmethod
    def of(cls, model: Any, released_model: Any) -> "NoiseModel | None":
        """The noise of a fitted classifier, if it allows conclusions.

        None for other mechanisms than the two perturbations, and for a fit that is not private:
        its noise may depend on the records (a norm computed from them), may be known (a seed),
        or may belong to the winner of a search.

        Parameters
        ----------
        model : classifier
        released_model : classifier
            The model itself, or the calibrated classifier that contains it.
        """
        if not released_model.private_ or set(model.not_private_because_) - {PART}:
            return None
        # Exactly these classes: a subclass may draw other noise.
        if type(model) is OutputPerturbation:
            std, mechanism = model.noise_std_, "output"
            distribution, scale = (
                ("gamma", model.noise_scale_) if std is None else ("gaussian", std)
            )
        elif type(model) is ObjectivePerturbation:
            mechanism, distribution, scale = "objective", "gamma", model.noise_scale_
        else:
            return None
        assert scale is not None
        extra = {
            "penalty": float(model.lambda_total_),
            "residual": float(MAX_RESIDUAL * model.norm_bound_),
        }
        model_ = cls(
            mechanism,  # type: ignore[arg-type]
            distribution,  # type: ignore[arg-type]
            float(scale),
            model.coef_.shape[1] + int(model.fit_intercept),
            bool(model.fit_intercept),
            **(extra if mechanism == "objective" else {"step": float(model.grid_step_)}),
        )
        return None if model_._find_error() else model_

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, written: Any, weights: LinearWeights, where: str) -> "NoiseModel":
        """Parse an untrusted description.

        Raises
        ------
        DataError
            For other fields or types, for numbers that are not finite, too small or too large,
            and for noise that contradicts the weights.
        """
        names = {known.name for known in fields(cls)}
        if not isinstance(written, Mapping) or set(written) | {"step"} != names:
            expected = f"noise with the fields {', '.join(sorted(names))}"
            raise _invalid(where, expected, repr(written))
        result = cls(**written)
        if wrong := result._find_error() or result._find_contradiction(weights):
            raise _invalid(where, wrong, repr(dict(written)))
        return result

    def _find_error(self) -> str:
        """What was expected, if a field is invalid; else an empty string."""
        distributions = {"output": ("gaussian", "gamma"), "objective": ("gamma",)}
        if not isinstance(self.mechanism, str) or self.mechanism not in distributions:
            return "noise of output or objective perturbation"
        if (
            not isinstance(self.distribution, str)
            or self.distribution not in distributions[self.mechanism]
        ):
            return f"a noise distribution of {self.mechanism} perturbation"
        if type(self.dimension) is not int or type(self.intercept) is not bool:
            return "an integer dimension, and a boolean intercept"
        numbers = [self.scale]
        if self.mechanism == "objective":
            numbers += [self.penalty, self.residual]  # type: ignore[list-item]
        elif (self.penalty, self.residual) != (None, None):
            return "no penalty and no residual for output perturbation"
        if type(self.step) not in (int, float) or (self.step and self.mechanism != "output"):
            return "a number as grid step, and only for output perturbation"
        if self.step and not 0 < self.step <= self.scale * _MAX_GRID_SHARE:
            return f"a grid step of at most {_MAX_GRID_SHARE:g} times the noise"
        if not all(_is_computable(number) for number in numbers):
            return f"scales of noise between {_MIN_SCALE:g} and {_MAX_SCALE:g}"
        return ""

    def _find_contradiction(self, weights: LinearWeights) -> str:
        """What was expected, if the noise contradicts the weights; else an empty string."""
        width = weights.coef.shape[1] + self.intercept
        if self.dimension != width or not weights.one_vs_rest:
            return f"noise of {width} coordinates, on weights that were trained independently"
        if not self.intercept and weights.intercept.any():
            return "no intercept without noise"
        return ""

    def arbitrariness(
        self,
        weights: LinearWeights,
        X: Floats,
        *,
        level: float,
        individuals: int | None,
        threshold: float,
    ) -> Arbitrariness:
        """The arbitrariness of decisions about rows of X, given the weights.

        An infinite threshold predicts one class, whatever the noise.
        """
        if math.isinf(threshold):
            zero = np.zeros(len(X))
            level = 1 - failure_probability(level)
            return Arbitrariness(zero, zero, None, level, describe_scope(None), (MAP_CAVEAT,))
        rows, w = np.asarray(X, dtype=np.float64), weights.coef
        if self.intercept:
            rows = np.hstack([rows, np.ones((len(rows), 1))])
            w = np.hstack([w, weights.intercept[:, None]])
        options: dict[str, Any] = {
            "level": level,
            "people": individuals,
            "threshold": threshold,
        }
        if self.mechanism == "objective":
            assert self.penalty is not None
            assert self.residual is not None
            result = objective_certificate(
                w,
                rows,
                penalty=self.penalty,
                noise_scale=self.scale,
                residual=self.residual,
                **options,
            )
        else:
            noise_class = GaussianNoise if self.distribution == "gaussian" else GammaNoise
            rounding = math.sqrt(self.dimension) * self.step / 2
            noise = noise_class(self.scale, self.dimension, rounding=rounding)
            result = output_arbitrariness(w, rows, noise, **options)
        if not threshold:
            return result
        return replace(result, caveats=(*result.caveats, MAP_CAVEAT))


def unknown_noise(name: str, one_vs_rest: bool, *, private: bool) -> DataError:
    """The error for a classifier whose arbitrariness cannot be computed from its weights."""
    actual = "none: it was saved by a version that did not store it"
    if not private:
        actual = (
            "none, since it is not private: its noise may depend on the records, be known, or "
            "belong to a model that was chosen among others"
        )
    elif not one_vs_rest:
        actual = (
            "none, since it was trained by DP-SGD: the effect of the noise of many steps on "
            "the weights depends on the records"
        )
    return DataError(
        name,
        "a known noise distribution of the weights, as with output or objective perturbation",
        actual,
        "Measure it on the records with 'veracal audit' instead; its results are internal.",
    )


def _is_computable(number: Any) -> bool:
    """Whether a value is a number whose square neither overflows nor underflows."""
    return type(number) in (int, float) and _MIN_SCALE <= number <= _MAX_SCALE


def _invalid(where: str, expected: str, actual: str) -> DataError:
    """The error for an invalid description of noise."""
    return DataError(where, expected, actual[:200], "Get the artifact again from its source.")

"""The law of the noise in a saved classifier: public numbers, of which anybody may compute."""

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
    RESIDUAL,
    Arbitrariness,
    GammaNoise,
    GaussianNoise,
    ObjectivePerturbation,
    OutputPerturbation,
    objective_certificate,
    output_arbitrariness,
    spare_of,
    whom,
)

MAP_AS_RELEASED = (
    "The map of calibration is taken as it was released: another run would fit another one."
)
_LEAST, _MOST = 1e-100, 1e100  # their squares are numbers, too
_COARSE = 1.0  # of the noise, that the step of a grid may be: ours is below a billionth


@dataclass(frozen=True)
class NoiseModel:
    """What noise a mechanism drew, and where it put it.

    Attributes
    ----------
    mechanism : {"output", "objective"}
        Whether it was added to the weights, or to the gradient of their objective.
    law : {"gaussian", "gamma"}
    scale : float
        Standard deviation of each coordinate, or scale of the Gamma law of the length.
    dimension : int
        Coordinates of each row of weights that have noise.
    intercept : bool
        Whether the intercept is one of them.
    penalty : float or None
        Of objective perturbation: the whole coefficient of the penalty.
    residual : float or None
        Of objective perturbation: the longest gradient that a fit leaves, or it releases
        nothing. Rounding to the grid of the weights is less than a twentieth of it.
    step : float
        Of output perturbation: of the grid to which weights and noise are rounded; 0 in
        artifacts that were saved before there was one.
    """

    mechanism: Literal["output", "objective"]
    law: Literal["gaussian", "gamma"]
    scale: float
    dimension: int
    intercept: bool
    penalty: float | None = None
    residual: float | None = None
    step: float = 0.0

    @classmethod
    def of(cls, model: Any, whole: Any) -> "NoiseModel | None":
        """The noise of a fitted classifier, if anything may be concluded from it.

        None of whatever is not one of the two perturbations; of a fit that is not private,
        since its noise may depend on the records (a norm that was read from them), be known
        (a seed), or be that of the winner of a search.

        Parameters
        ----------
        model : classifier
        whole : classifier
            The model itself, or the calibrated classifier that it is a part of.
        """
        if not whole.private_ or set(model.not_private_because_) - {PART}:
            return None
        # Exactly these: whoever derives a class from them may draw other noise.
        if type(model) is OutputPerturbation:
            std, mechanism = model.noise_std_, "output"
            law, scale = ("gamma", model.noise_scale_) if std is None else ("gaussian", std)
        elif type(model) is ObjectivePerturbation:
            mechanism, law, scale = "objective", "gamma", model.noise_scale_
        else:
            return None
        assert scale is not None
        more = {
            "penalty": float(model.lambda_total_),
            "residual": float(RESIDUAL * model.norm_bound_),
        }
        found = cls(
            mechanism,  # type: ignore[arg-type]
            law,  # type: ignore[arg-type]
            float(scale),
            model.coef_.shape[1] + int(model.fit_intercept),
            bool(model.fit_intercept),
            **(more if mechanism == "objective" else {"step": float(model.grid_step_)}),
        )
        return None if found._wrong() else found

    def to_json(self) -> dict[str, Any]:
        """All of it, as what JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, written: Any, weights: LinearWeights, where: str) -> "NoiseModel":
        """Read what a stranger may have written.

        Raises
        ------
        DataError
            For other fields or types, numbers that are not finite, too small or too large, and
            for noise that contradicts the weights.
        """
        names = {known.name for known in fields(cls)}
        if not isinstance(written, Mapping) or set(written) | {"step"} != names:
            expected = f"noise with the fields {', '.join(sorted(names))}"
            raise _not_ours(where, expected, repr(written))
        found = cls(**written)
        if wrong := found._wrong() or found._contradiction(weights):
            raise _not_ours(where, wrong, repr(dict(written)))
        return found

    def _wrong(self) -> str:
        """What was expected, if it is not what a mechanism writes."""
        laws = {"output": ("gaussian", "gamma"), "objective": ("gamma",)}
        if not isinstance(self.mechanism, str) or self.mechanism not in laws:
            return "noise of output or objective perturbation"
        if not isinstance(self.law, str) or self.law not in laws[self.mechanism]:
            return f"a law of noise that {self.mechanism} perturbation has"
        if type(self.dimension) is not int or type(self.intercept) is not bool:
            return "a whole number of coordinates, and whether the intercept is one"
        numbers = [self.scale]
        if self.mechanism == "objective":
            numbers += [self.penalty, self.residual]  # type: ignore[list-item]
        elif (self.penalty, self.residual) != (None, None):
            return "no penalty and no residual of output perturbation"
        if type(self.step) not in (int, float) or (self.step and self.mechanism != "output"):
            return "the step of a grid as a number, and none but of output perturbation"
        if self.step and not 0 < self.step <= self.scale * _COARSE:
            return f"the step of a grid that is at most {_COARSE:g} of the noise"
        if not all(_is_usual(number) for number in numbers):
            return f"scales of noise between {_LEAST:g} and {_MOST:g}"
        return ""

    def _contradiction(self, weights: LinearWeights) -> str:
        """What was expected, if the noise cannot be that of the weights."""
        width = weights.coef.shape[1] + self.intercept
        if self.dimension != width or not weights.one_vs_rest:
            return f"noise of {width} coordinates, on weights that were learnt one by one"
        if not self.intercept and weights.intercept.any():
            return "no intercept where none has noise"
        return ""

    def told(
        self,
        weights: LinearWeights,
        X: Floats,
        *,
        level: float,
        people: int | None,
        threshold: float,
    ) -> Arbitrariness:
        """What the weights tell of people, given by their rows of X.

        An infinite threshold decides for one class, whatever the noise.
        """
        if math.isinf(threshold):
            never = np.zeros(len(X))
            level = 1 - spare_of(level)
            return Arbitrariness(never, never, None, level, whom(None), (MAP_AS_RELEASED,))
        rows, w = np.asarray(X, dtype=np.float64), weights.coef
        if self.intercept:
            rows = np.hstack([rows, np.ones((len(rows), 1))])
            w = np.hstack([w, weights.intercept[:, None]])
        asked: dict[str, Any] = {"level": level, "people": people, "threshold": threshold}
        if self.mechanism == "objective":
            assert self.penalty is not None
            assert self.residual is not None
            found = objective_certificate(
                w,
                rows,
                penalty=self.penalty,
                noise_scale=self.scale,
                residual=self.residual,
                **asked,
            )
        else:
            law = GaussianNoise if self.law == "gaussian" else GammaNoise
            rounding = math.sqrt(self.dimension) * self.step / 2
            noise = law(self.scale, self.dimension, rounding=rounding)
            found = output_arbitrariness(w, rows, noise, **asked)
        if not threshold:
            return found
        return replace(found, caveats=(*found.caveats, MAP_AS_RELEASED))


def no_noise(name: str, one_vs_rest: bool, *, private: bool) -> DataError:
    """Error for a classifier whose arbitrariness cannot be told from its weights."""
    found = "none: it was saved before Veracal kept it"
    if not private:
        found = (
            "none, since it is not private: its noise may depend on the records, be known, or "
            "belong to a model that was chosen among others"
        )
    elif not one_vs_rest:
        found = (
            "none, since it was trained by noisy steps: what many draws of noise do to its "
            "weights depends on the records"
        )
    return DataError(
        name,
        "a known law of the noise on the weights, as output and objective perturbation have",
        found,
        "Measure it on the records instead, with 'veracal audit'; that is internal.",
    )


def _is_usual(number: Any) -> bool:
    """Whether it is a number that can be computed with."""
    return type(number) in (int, float) and _LEAST <= number <= _MOST


def _not_ours(where: str, expected: str, found: str) -> DataError:
    """Error for what is not the noise of a classifier."""
    return DataError(
        where, expected, found[:200], "Get the artifact again from whoever made it."
    )

"""The part of a classifier that predictions need, and the public distribution of its noise."""

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Floats
from veracal.artifact.records import Manifest, decode
from veracal.artifact.storage import MANIFEST, Shapes, decode_arrays, encode_arrays, invalid
from veracal.calibration import PART
from veracal.data import MappedRows
from veracal.errors import DataError
from veracal.training import (
    MAX_RESIDUAL,
    Arbitrariness,
    GammaNoise,
    GaussianNoise,
    LinearClassifier,
    ObjectivePerturbation,
    OutputPerturbation,
    describe_scope,
    failure_probability,
    margins,
    objective_certificate,
    one_vs_rest_logits,
    output_arbitrariness,
)

if TYPE_CHECKING:
    from veracal.artifact.network_weights import NetworkWeights

_MAX_NUMBERS = 20_000_000  # weights: 200,000 features of a hundred classes
_HEADER = 4096  # bytes of the header


@dataclass(frozen=True, eq=False)
class LinearWeights:
    """Weights and intercepts, and how margins become logits.

    Attributes
    ----------
    coef : array of shape (1, d) for two classes, else (k, d)
    intercept : array of shape (1,) or (k,)
    one_vs_rest : bool
        Whether the rows of weights were trained independently.
    """

    coef: Floats
    intercept: Floats
    one_vs_rest: bool = False

    kind = "linear"
    rows_independent = True  # as LinearClassifier
    any_row_shape = False  # rows of numbers

    @property
    def row(self) -> tuple[int, ...]:
        """Shape of a row."""
        return (self.coef.shape[1],)

    @classmethod
    def of(cls, model: LinearClassifier) -> "LinearWeights":
        """Extract the weights of a fitted classifier."""
        coef = np.array(model.coef_, dtype=np.float64)
        intercept = np.array(model.intercept_, dtype=np.float64)
        return cls(coef, intercept, bool(model._one_vs_rest))

    def logits(self, X: ArrayLike | MappedRows) -> Floats:
        """Scores of shape (n, k) whose softmax gives the probabilities before the map."""
        rows = X if isinstance(X, MappedRows) else np.asarray(X)
        sums = margins(rows, self.coef, self.intercept)
        if sums.shape[1] == 1:
            return np.hstack([np.zeros_like(sums), sums])
        return one_vs_rest_logits(sums) if self.one_vs_rest else sums

    def to_json(self) -> dict[str, Any]:
        """What is needed beside the numbers."""
        return {"kind": self.kind, "one_vs_rest": self.one_vs_rest}

    def to_bytes(self) -> bytes:
        """The numbers as safetensors."""
        return encode_arrays({"coef": self.coef, "intercept": self.intercept})

    @classmethod
    def read(
        cls, content: bytes, about: Any, classes: int, features: int, where: str
    ) -> "LinearWeights":
        """Decode weights for a number of classes and features.

        ``about`` may also describe their noise and encoder, for :class:`NoiseModel` and
        :class:`~.classifier.FrozenEncoder`.
        """
        bare = set(about) - {"noise", "encoder"}
        if bare != {"kind", "one_vs_rest"} or about["kind"] != cls.kind:
            raise DataError(
                where, f"a {cls.kind} classifier", repr(about)[:80], "Update Veracal."
            )
        if type(about["one_vs_rest"]) is not bool:
            raise DataError(where, "weights for every feature", repr(about)[:80], "Correct it.")
        rows = _row_count(classes)
        shapes: Shapes = {"coef": (rows, features), "intercept": (rows,)}
        arrays = decode_arrays(content, shapes, where)
        return cls(arrays["coef"], arrays["intercept"], about["one_vs_rest"])


def _row_count(classes: int) -> int:
    """Rows of weights for a number of classes."""
    return 1 if classes == 2 else classes


WEIGHTS = "model.safetensors"
_NETWORK = "network"
if TYPE_CHECKING:
    Weights = LinearWeights | NetworkWeights  # what predictions need of a classifier


def extract_weights(model: Any) -> "Weights":
    """Extract from a fitted classifier what predictions need."""
    if isinstance(model, LinearClassifier):
        return LinearWeights.of(model)
    if hasattr(model, "module_"):  # torch is already imported then
        from veracal.artifact.network_weights import NetworkWeights
        from veracal.neural import PrivateNetwork

        if isinstance(model, PrivateNetwork):
            return NetworkWeights.of(model)
    raise ValueError(
        f"Expected a linear classifier or a network, calibrated or not, got {model!r}. Only "
        "those can be saved."
    )


def weights_size(manifest: Manifest, where: str) -> int:
    """Largest size of the file of weights; rejects implausible numbers of weights."""
    if manifest.model.get("kind") == _NETWORK:
        return _network_module().MAX_BYTES  # type: ignore[no-any-return]
    classes, features = len(manifest.classes), manifest.features
    numbers = _row_count(classes) * (features + 1)
    if not _row_count(classes) < numbers <= _MAX_NUMBERS:
        raise DataError(
            f"{where}/{MANIFEST}",
            f"weights for every feature, {_MAX_NUMBERS:,} numbers at most",
            f"{features} features of {classes} classes",
            "Do not trust it.",
        )
    return 8 * numbers + _HEADER


def read_weights(
    manifest: Manifest, content: bytes, where: str, *, module: Any = None, prepare: Any = None
) -> "Weights":
    """Decode the weights that a manifest describes."""
    parts = (content, manifest.model, len(manifest.classes), manifest.features)
    place = f"{where}/{WEIGHTS}"
    if manifest.model.get("kind") == _NETWORK:
        own = {"module": module, "prepare": prepare}
        return _network_module().NetworkWeights.read(*parts, place, **own)  # type: ignore[no-any-return]
    if module is not None:
        raise DataError(
            where, "a network, since a module is given", "another kind", "Omit the module."
        )
    return LinearWeights.read(*parts, place)


def _network_module() -> Any:
    """The module for networks, which needs torch."""
    from veracal._checks import extra

    extra("torch", "torch")
    from veracal.artifact import network_weights as network

    return network


# ---------------------------------------------------------------- noise

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
        Of output perturbation: step of the grid to which weights and noise are rounded.
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
        or may belong to the winner of a search. ``released_model`` is the model itself, or the
        calibrated classifier that contains it.
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

        Rejects other fields or types, numbers that are not finite, too small or too large, and
        noise that contradicts the weights.
        """
        result: NoiseModel = decode(cls, written, where)
        width = weights.coef.shape[1] + result.intercept
        wrong = result._find_error()
        if not wrong and (result.dimension != width or not weights.one_vs_rest):
            wrong = f"noise of {width} coordinates, on weights that were trained independently"
        if not wrong and not result.intercept and weights.intercept.any():
            wrong = "no intercept without noise"
        if wrong:
            raise invalid(where, wrong, repr(written)[:200])
        return result

    def _find_error(self) -> str:
        """What was expected, if a field is invalid; else an empty string."""
        numbers: list[float | None] = [self.scale]
        if self.mechanism == "objective":
            if self.distribution != "gamma" or self.step:
                return "gamma noise without a grid step, for objective perturbation"
            numbers += [self.penalty, self.residual]
        elif (self.penalty, self.residual) != (None, None):
            return "no penalty and no residual for output perturbation"
        if self.step and not 0 < self.step <= self.scale * _MAX_GRID_SHARE:
            return f"a grid step of at most {_MAX_GRID_SHARE:g} times the noise"
        if not all(each is not None and _MIN_SCALE <= each <= _MAX_SCALE for each in numbers):
            return f"scales of noise between {_MIN_SCALE:g} and {_MAX_SCALE:g}"
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
            "individuals": individuals,
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

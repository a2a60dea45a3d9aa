"""The private model that a config describes, with its whole budget."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from veracal._checks import extra
from veracal.accounting import Budget
from veracal.artifact import FrozenEncoder
from veracal.calibration import AUTO, METHODS, NONE, PrivateCalibratedClassifier
from veracal.data import Dataset
from veracal.errors import DataError
from veracal.mechanisms import SGD, Adam
from veracal.training import (
    ObjectivePerturbation,
    OutputPerturbation,
    PrivateEstimator,
    PrivateLogisticRegression,
    StepHook,
)
from veracal.workflow.config import PERTURBED, Config, ModelConfig

if TYPE_CHECKING:
    from veracal.neural import KnownNetwork

_GRAY, _COLOR = (28, 28), (32, 32, 3)  # image shapes with published architectures


def choose_encoder(kind: str, records: Dataset) -> FrozenEncoder | None:
    """Choose the frozen network that encodes the records, from their form and the model."""
    texts = records.X.dtype.kind == "T"
    images = records.X.dtype == np.uint8 and records.X.ndim > 2
    if kind != "text" and not (kind == "features" and (texts or images)):
        return None  # rows of numbers are features already
    from veracal.neural import EfficientNetLite0, MiniLM, MiniLMTokens

    if kind == "text":
        MiniLMTokens().check(records.X, records.name)
        return FrozenEncoder.of(MiniLMTokens())
    return FrozenEncoder.of(MiniLM() if texts else EfficientNetLite0())


def build_model(
    config: Config, train: Dataset, budget: Budget, on_step: StepHook | None = None
) -> Any:
    """Build the unfitted model, which states its cost before it reads a record.

    Parameters
    ----------
    config : Config
    train : Dataset
        Only declared facts are read: form, classes, size and norm.
    budget : Budget
        For everything that is learned from these records.
    on_step : callable, optional
        Called as ``on_step(model, step)`` after each step of gradient descent. Anything it
        computes from records is internal.
    """
    public: dict[str, Any] = {
        "classes": train.classes,
        "size": train.size,
        "relation": budget.relation,
        "unit": budget.unit,
    }
    method = config.recalibration.method
    trainer = _trainer(config, train, budget, public, on_step)
    if method == NONE:
        return trainer
    fitter = None if method == AUTO else METHODS[method].unpriced_fitter()
    return PrivateCalibratedClassifier(
        trainer,
        method=fitter,
        epsilon=budget.epsilon,
        delta=budget.delta,
        share=config.recalibration.share,
        **public,
    )


def _trainer(
    config: Config,
    train: Dataset,
    budget: Budget,
    public: dict[str, Any],
    on_step: StepHook | None,
) -> PrivateEstimator:
    """The classifier without its calibration map."""
    settings = config.model.with_defaults()
    if settings.kind in PERTURBED:
        kind = ObjectivePerturbation if settings.kind == "objective" else OutputPerturbation
        norm = train.norm if settings.norm is None else settings.norm
        return kind(budget.epsilon, C=settings.strength, norm=norm, **public)
    assert settings.learning_rate is not None
    optimizer = Adam if settings.optimizer == "adam" else SGD
    training: dict[str, Any] = {
        "epochs": settings.epochs,
        "sampling_rate": settings.sampling_rate,
        "clip": settings.clip,
        "optimizer": optimizer(settings.learning_rate),
        "weight_decay": settings.weight_decay,
        "on_step": on_step,
        **public,
    }
    if settings.kind == "logistic":
        return PrivateLogisticRegression(budget.epsilon, budget.delta, **training)
    extra("torch", "torch")
    from veracal.neural import PrivateNetwork

    module = build_network(settings, train)
    return PrivateNetwork(module, budget.epsilon, budget.delta, **training)


def build_network(settings: ModelConfig, train: Dataset) -> "KnownNetwork":
    """Choose the architecture that takes rows of this form."""
    from veracal.neural import KnownNetwork

    row, classes = train.X.shape[1:], len(train.classes)
    if settings.kind == "cnn":
        return KnownNetwork(*_convolutional(row, classes, train.name))
    if settings.kind == "text":
        return KnownNetwork("minilm_texts", {"classes": classes})
    if len(row) != 1 or train.X.dtype.kind not in "fiu":
        raise DataError(
            train.name,
            f"rows of numbers, which the model {settings.kind!r} takes",
            f"{train.X.dtype} of shape {row}",
            "Use --model cnn for images, or --model features for images and texts.",
        )
    hidden = list(settings.hidden or ())
    if settings.kind == "mlp":
        return KnownNetwork("mlp", {"features": row[0], "classes": classes, "hidden": hidden})
    if len(hidden) != 1:
        raise ValueError(
            f"Expected one number of hidden units for the model 'features', got {hidden}."
        )
    return KnownNetwork(
        "dense_head",
        {
            "features": row[0],
            "classes": classes,
            "hidden": hidden[0],
            # Columns of a table have names and different scales; encoded features have none.
            "normalized": not train.feature_names,
        },
    )


def _convolutional(
    row: tuple[int, ...], classes: int, name: str
) -> tuple[str, dict[str, int | bool]]:
    """Name and settings of a network for images."""
    if row == _GRAY:
        return "mnist_cnn", {"classes": classes, "tanh": True}
    if row == _COLOR:
        return "cifar_cnn", {"classes": classes}
    flat, channels = len(row) == 1, 1 if len(row) < 3 else row[2]
    sides = row[:2]
    if flat:  # one square, or three of them for colors
        channels = 1 if math.isqrt(row[0]) ** 2 == row[0] else 3
        sides = (math.isqrt(row[0] // channels),) * 2
    fits = sides[0] == sides[1] >= 8 and math.prod((*sides, channels)) == math.prod(row)
    if not fits:
        raise DataError(
            name,
            "square images of at least 8 pixels a side, which the model 'cnn' takes, as bytes "
            "or as rows of numbers",
            f"rows of shape {row}",
            "Use --model mlp for rows of numbers.",
        )
    return "five_layer_cnn", {
        "classes": classes,
        "channels": int(channels),
        "side": int(sides[0]),
        "flat": flat,
    }

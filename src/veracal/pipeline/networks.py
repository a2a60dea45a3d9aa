"""The network that a config describes, for records of a form."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from veracal._checks import extra
from veracal.artifact.front import Front
from veracal.data import Dataset
from veracal.data.features import EfficientNetLite0, MiniLM, MiniLMTokens
from veracal.errors import DataError
from veracal.pipeline.config import ModelConfig
from veracal.privacy import Budget

if TYPE_CHECKING:
    from veracal.training.deep import PrivateNetwork
    from veracal.training.deep.known import KnownNetwork

_GRAY, _COLOR = (28, 28), (32, 32, 3)  # pictures that have networks of their own


def front_for(kind: str, records: Dataset) -> Front | None:
    """The frozen network that records go through first, by their form and the kind of model."""
    if kind == "text":
        MiniLMTokens().check(records.X, records.name)
        return Front.of(MiniLMTokens())
    if kind != "features":
        return None
    if records.X.dtype.kind == "T":
        return Front.of(MiniLM())
    if records.X.dtype == np.uint8 and records.X.ndim > 2:
        return Front.of(EfficientNetLite0())
    return None  # rows of numbers: features already


def private_network(
    chosen: ModelConfig, train: Dataset, budget: Budget, descent: dict[str, Any]
) -> "PrivateNetwork":
    """The network to fit.

    Parameters
    ----------
    chosen : ModelConfig
        Settled.
    train : Dataset
        Of which only the form and what is declared are looked at.
    budget : Budget
    descent : dict
        Settings of the descent, and what is public about the records.
    """
    extra("torch", "torch")
    from veracal.training.deep import PrivateNetwork

    maker = _network(chosen, train)
    return PrivateNetwork(maker, budget.epsilon, budget.delta, **descent)


def _network(chosen: ModelConfig, train: Dataset) -> "KnownNetwork":
    """Which network takes rows of that form."""
    row, classes = train.X.shape[1:], len(train.classes)
    if chosen.kind == "cnn":
        return _known(*_convolutional(row, classes, train.name))
    if chosen.kind == "text":
        return _known("minilm_texts", {"classes": classes})
    if len(row) != 1 or train.X.dtype.kind not in "fiu":
        raise DataError(
            train.name,
            f"rows of numbers, which the model {chosen.kind!r} takes",
            f"{train.X.dtype} of shape {row}",
            "Say --model cnn for pictures, or --model features for pictures and texts.",
        )
    hidden = list(chosen.hidden or ())
    if chosen.kind == "features":
        (width,) = hidden if len(hidden) == 1 else (None,)
        if width is None:
            raise ValueError(
                f"Expected one number of hidden units of the model 'features', got {hidden}."
            )
        told = {"features": row[0], "classes": classes, "hidden": width}
        # Columns of a table have names, and mean different things; features have none.
        return _known("dense_head", {**told, "normalized": not train.feature_names})
    return _known("mlp", {"features": row[0], "classes": classes, "hidden": hidden})


def _convolutional(
    row: tuple[int, ...], classes: int, name: str
) -> tuple[str, dict[str, int | bool]]:
    """Name and settings of a network for pictures."""
    if row == _GRAY:
        return "mnist_cnn", {"classes": classes, "tanh": True}
    if row == _COLOR:
        return "cifar_cnn", {"classes": classes}
    flat, channels = len(row) == 1, 1 if len(row) < 3 else row[2]
    sides = row[:2]
    if flat:  # a square, or three of them for colors
        channels = 1 if math.isqrt(row[0]) ** 2 == row[0] else 3
        sides = (math.isqrt(row[0] // channels),) * 2
    fits = sides[0] == sides[1] >= 8 and math.prod((*sides, channels)) == math.prod(row)
    if not fits:
        raise DataError(
            name,
            "square pictures of 8 pixels a side or more, which the model 'cnn' takes, as bytes "
            "or as rows of numbers",
            f"rows of shape {row}",
            "Say --model mlp for rows of numbers.",
        )
    side = int(sides[0])
    return "five_layer_cnn", {
        "classes": classes,
        "channels": int(channels),
        "side": side,
        "flat": flat,
    }


def _known(name: str, settings: dict[str, Any]) -> "KnownNetwork":
    """A network by its name."""
    from veracal.training.deep.known import KnownNetwork

    return KnownNetwork(name, settings)

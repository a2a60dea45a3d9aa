"""Steps of the pipelines in these tests."""

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import (
    OneHotEncoder,
)

from veracal.training import PrivateLogisticRegression, PrivateStandardizer

CODES = [[0.0, 1.0, 2.0]]
KNOWN = OneHotEncoder(categories=CODES, handle_unknown="ignore")
DECLARED = dict(classes=["no", "yes"], size=300)
ACROSS = {
    "mean": lambda X: X - X.mean(axis=0),
    "largest": lambda X: X / np.abs(X).max(),
    "first": lambda X: X[:1],
    "number": lambda X: X * len(X),
    "many": lambda X: X * (len(X) > 200),
    "quantile": lambda X: np.minimum(X, np.quantile(X, 0.99, axis=0) * 5),
    "columns": lambda X: X[:, X.any(axis=0)],
    "occurs": lambda X: X + X.any(axis=0),
    "negative": lambda X: X * (X.min() < 0),
    "large": lambda X: X * (X > 1e5).any(),
    "twice": lambda X: X + (len(np.unique(X, axis=0)) < len(X)),
}


def classifier(**settings):
    usual = dict(epsilon=None, noise_multiplier=4.0, steps=3, sampling_rate=1.0)
    return PrivateLogisticRegression(**{**usual, **settings})


def standardizer(**settings):
    return PrivateStandardizer((-3, 3), **{"noise_multiplier": 5.0, **settings})


def both(**settings):
    """A standardizer and a one-hot encoder, each on its columns."""
    return ColumnTransformer(
        [("numbers", standardizer(**settings), [0, 1]), ("codes", KNOWN, [2])]
    )

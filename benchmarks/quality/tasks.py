"""Real data for benchmarks of quality, as rows of public norm with classes declared.

Gradients are clipped at 1 for images and at 0.1 for text, as Zhang et al. 2022 do
(https://arxiv.org/abs/2210.08248, table 6). Settings were fixed before the first run. Learning
rates are scaled by the clip, so that steps have the same length.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.datasets import load
from veracal.data import Dataset
from veracal.neural import EfficientNetLite0, MiniLM, extract
from veracal.training import PrivateLogisticRegression

HELD_OUT = 0.2  # of sets that come without a test part
SST2_TEST = 10_000  # rows of its training file: its own test part has 872


@dataclass(frozen=True)
class Task:
    """A classification problem.

    Attributes
    ----------
    name : str
    load : callable
        Gives training and test records; a seed chooses those held out where the set has no
        test part.
    clip : float
    epochs, batch : int
    """

    name: str
    load: Callable[[int], tuple[Dataset, Dataset]]
    clip: float = 1.0
    epochs: int = 20
    batch: int = 1024

    def model(self, size: int, epsilon: float | None = None) -> PrivateLogisticRegression:
        """The classifier, alone or as a part of a calibrated one."""
        return PrivateLogisticRegression(
            epsilon,
            delta_of(size),
            noise_multiplier=1.0 if epsilon is None else None,
            clip=self.clip,
            optimizer=4.0 / self.clip,
            epochs=self.epochs,
            sampling_rate=min(1.0, self.batch / size),
            average=0.0,
        )


def delta_of(size: int) -> float:
    """The papers' delta, from the declared size."""
    return float(size**-1.1)


def unit_rows(data: Dataset) -> Dataset:
    """Rows scaled to norm 1; zero rows stay zero."""
    X = np.asarray(data.X[:], dtype=np.float32).reshape(len(data), -1)
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    # A little shorter, so that rounding puts no norm above 1.
    X = np.divide(X, norms * (1 + 1e-6), out=np.zeros_like(X), where=norms > 0)
    return replace(data, X=X, feature_names=(), norm=1.0)


def held_out(data: Dataset, seed: int, share: float = HELD_OUT) -> tuple[Dataset, Dataset]:
    """Training and test records, with sizes declared."""
    order = np.random.default_rng(seed).permutation(len(data))
    test = round(share * len(data))
    return _sized(data.take(order[test:])), _sized(data.take(order[:test]))


def _sized(data: Dataset) -> Dataset:
    """Declare the number of records of a public set."""
    return replace(data, size=len(data))


def _whole(name: str) -> Callable[[int], tuple[Dataset, Dataset]]:
    """A set without a test part."""
    return lambda seed: held_out(unit_rows(load(name)), seed)


def _parts(name: str) -> Callable[[int], tuple[Dataset, Dataset]]:
    """A set of images with a test part."""

    def parts(seed: int) -> tuple[Dataset, Dataset]:
        train, test = (load(name, part=part) for part in ("train", "test"))
        return _sized(unit_rows(train)), _sized(unit_rows(test))

    return parts


def _image_features(name: str) -> Callable[[int], tuple[Dataset, Dataset]]:
    """Features of images from a pretrained network."""

    def parts(seed: int) -> tuple[Dataset, Dataset]:
        both = (load(name, part=part) for part in ("train", "test"))
        train, test = (unit_rows(extract(data, EfficientNetLite0())) for data in both)
        # One person may have many images; here each image is a record.
        return tuple(
            _sized(replace(data, units=None, max_contributions=None)) for data in (train, test)
        )

    return parts


def _sentences(seed: int) -> tuple[Dataset, Dataset]:
    """Film reviews through a network, some of the training file held out."""
    data = unit_rows(extract(load("sst2", part="train"), MiniLM()))
    return held_out(data, seed, SST2_TEST / len(data))


TASKS = (
    Task("digits", _whole("digits"), batch=256),
    Task("mnist", _parts("mnist")),
    Task("cifar10 on EfficientNet-Lite0", _image_features("cifar10")),
    Task("chest X-rays on EfficientNet-Lite0", _image_features("chest-xray"), batch=256),
    Task("sst2 on MiniLM", _sentences, clip=0.1),
    Task("mammography", _whole("mammography"), batch=128),
    Task("credit", _whole("credit"), batch=128),
)

"""Calibrated classifiers with exchangeable and observable components."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from veracal.accounting import Event, Gaussian
from veracal.calibration import PrivateTemperature
from veracal.calibration import private_classifier as module
from veracal.calibration.prepaid_source import PrepaidSource
from veracal.calibration.private_classifier import (
    Guard,
    PrivateCalibratedClassifier,
    split_records,
)
from veracal.data import Dataset, Scores
from veracal.data.scoring import compute_logits
from veracal.training.base import LinearClassifier, TrainingData

NOISE, MAP, GUARD = 3.0, 400_000, 300_000  # of training; millionths of epsilon
FITS: list[TrainingData] = []
ASKED: list[Scores] = []


class PublicWeights(LinearClassifier):
    """Public weights that are charged as if they had been learnt."""

    def __init__(
        self,
        noise_multiplier: float = NOISE,
        classes: Any = None,
        size: Any = None,
        relation: Any = "add-remove",
        unit: Any = None,
        random_state: Any = None,
    ) -> None:
        self.noise_multiplier, self.classes, self.size = noise_multiplier, classes, size
        self.relation, self.unit, self.random_state = relation, unit, random_state

    def _check_settings(self) -> None:
        pass

    def _cost(self, size: int | None) -> Event:
        return Gaussian(self.noise_multiplier, relation=self.relation)

    def _learn(self, facts: TrainingData, rng: np.random.Generator) -> tuple[str, ...]:
        FITS.append(facts)
        self.coef_, self.intercept_ = np.array([[1.0, 0.0]]), np.zeros(1)
        return ()


@dataclass(frozen=True)
class Subject:
    """A classifier, and its components."""

    classifier: type[PrivateCalibratedClassifier] = PrivateCalibratedClassifier
    paid: type[PrepaidSource] = PrepaidSource
    split_records: Callable[..., Any] = split_records
    logits_of: Callable[..., Any] = compute_logits


@contextmanager
def using(subject: Subject) -> Iterator[None]:
    """Let the classifier call the subject's functions, and record its queries."""

    class Watching(subject.paid):  # type: ignore[misc,name-defined]
        __slots__ = ()

        def __init__(self, scores: Scores, event: Event, **more: Any) -> None:
            ASKED.append(scores)
            super().__init__(scores, event, **more)

    changed = {
        "PrepaidSource": Watching,
        "split_records": subject.split_records,
        "compute_logits": subject.logits_of,
    }
    with mock.patch.multiple(module, **changed):
        yield


def fitted(subject: Subject, data: Dataset, **settings: Any) -> Any:
    """A fit, with the records that it used in ``FITS`` and ``ASKED``."""
    FITS.clear()
    ASKED.clear()
    return make_classifier(subject, **settings).fit_records(data)


def make_classifier(subject: Subject, **settings: Any) -> PrivateCalibratedClassifier:
    """A classifier of the subject's, with all components."""
    usual = {"method": PrivateTemperature(micro_epsilon=MAP), "guard": Guard(GUARD / 1e6)}
    return subject.classifier(PublicWeights(), **{**usual, **settings})


def records(rng: np.random.Generator, n: int = 200, size: int = 200) -> Dataset:
    """Records whose first column decides."""
    X = rng.normal(size=(n, 2))
    return Dataset(X, (X[:, 0] + rng.normal(size=n) > 0).astype(int), (0, 1), size=size)

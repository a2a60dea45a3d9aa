"""Records, and classifiers that record what they were fitted to."""

import numpy as np

from veracal.accounting import Gaussian
from veracal.calibration.private_classifier import PrivateCalibratedClassifier
from veracal.data import Dataset
from veracal.training import PrivateLogisticRegression
from veracal.training.base import LinearClassifier

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (400, 3))
Y = np.where(X[:, 0] + 0.5 * RNG.standard_normal(400) > 0, "yes", "no")
DATA = Dataset(X, (Y == "yes").astype(int), ("no", "yes"), size=400)
FITS = []  # the data of all fits of the models below


class PublicWeights(LinearClassifier):
    """Public weights of a given slope that claim to have cost something."""

    def __init__(
        self,
        noise_multiplier=3.0,
        steep=20.0,
        fails=False,
        *,
        classes=None,
        size=None,
        relation="add-remove",
        unit=None,
        random_state=None,
    ):
        self.noise_multiplier = noise_multiplier
        self.steep = steep
        self.fails = fails
        self.classes = classes
        self.size = size
        self.relation = relation
        self.unit = unit
        self.random_state = random_state

    def _check_settings(self):
        if not self.noise_multiplier > 0:
            raise ValueError("Expected noise.")

    def _cost(self, size):
        return Gaussian(self.noise_multiplier, relation=self.relation)

    def _learn(self, facts, rng):
        FITS.append(facts)
        if self.fails:
            raise RuntimeError("on purpose")
        self.coef_ = np.array([[self.steep, 0.0, 0.0]])
        self.intercept_ = np.zeros(1)
        return ()


def training(**changes):
    usual = {"epsilon": 1.0, "sampling_rate": 0.2, "epochs": 3}
    return PrivateLogisticRegression(**{**usual, **changes})


def calibrated(estimator=None, **changes):
    return PrivateCalibratedClassifier(
        PublicWeights() if estimator is None else estimator, **changes
    )

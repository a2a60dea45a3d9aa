"""How arbitrary decisions are, told from one released model: post-processing, at no cost.

The mathematics is in :mod:`veracal.training.perturbation`, beside the mechanisms whose noise it
is about, where saved classifiers find it too (``PrivateClassifier.arbitrariness``).
"""

from veracal.training.perturbation.arbitrariness import Arbitrariness
from veracal.training.perturbation.laws import GammaNoise, GaussianNoise, Noise
from veracal.training.perturbation.objective_arbitrariness import objective_certificate
from veracal.training.perturbation.output_arbitrariness import (
    gaussian_disagreement,
    output_arbitrariness,
)

__all__ = [
    "Arbitrariness",
    "GammaNoise",
    "GaussianNoise",
    "Noise",
    "gaussian_disagreement",
    "objective_certificate",
    "output_arbitrariness",
]

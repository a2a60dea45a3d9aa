"""Classifiers whose fit is private and whose cost is known beforehand."""

from veracal.privacy import NotPrivate
from veracal.training.ablation import Ablation
from veracal.training.averaging import Moving
from veracal.training.estimator import PrivateEstimator
from veracal.training.logistic import PrivateLogisticRegression
from veracal.training.perturbation import ObjectivePerturbation, OutputPerturbation
from veracal.training.pipeline import PrivatePipeline, make_private_pipeline
from veracal.training.preprocessing import (
    BoundedScaler,
    DeclaredOneHot,
    NormClipper,
    PrivateStandardizer,
)
from veracal.training.scoring import score
from veracal.training.search import PrivateSearch
from veracal.training.steps import event_of

__all__ = [
    "Ablation",
    "BoundedScaler",
    "DeclaredOneHot",
    "Moving",
    "NormClipper",
    "NotPrivate",
    "ObjectivePerturbation",
    "OutputPerturbation",
    "PrivateEstimator",
    "PrivateLogisticRegression",
    "PrivatePipeline",
    "PrivateSearch",
    "PrivateStandardizer",
    "event_of",
    "make_private_pipeline",
    "score",
]

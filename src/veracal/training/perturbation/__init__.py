"""Logistic regression made private by noise on its objective or on its weights."""

from veracal.training.perturbation.objective import ObjectivePerturbation
from veracal.training.perturbation.output import OutputPerturbation

__all__ = ["ObjectivePerturbation", "OutputPerturbation"]

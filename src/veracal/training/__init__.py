"""Classifiers whose fit is private and whose cost is known beforehand."""

from veracal.training.guarantee import NotPrivate
from veracal.training.logistic import PrivateLogisticRegression
from veracal.training.scoring import score

__all__ = ["NotPrivate", "PrivateLogisticRegression", "score"]

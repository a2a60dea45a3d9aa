"""Classifiers whose fit is private and whose cost is known beforehand."""

from veracal.training.guarantee import NotPrivate
from veracal.training.logistic import PrivateLogisticRegression

__all__ = ["NotPrivate", "PrivateLogisticRegression"]

"""Transformers that read nothing off the records, or are charged for what they read."""

from veracal.training.preprocessing.categories import DeclaredOneHot
from veracal.training.preprocessing.norms import NormClipper
from veracal.training.preprocessing.scaling import BoundedScaler
from veracal.training.preprocessing.standardizing import PrivateStandardizer

__all__ = ["BoundedScaler", "DeclaredOneHot", "NormClipper", "PrivateStandardizer"]

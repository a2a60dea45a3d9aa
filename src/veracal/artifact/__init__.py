"""A saved classifier: weights, preprocessing, map and guarantee, in files that hold no code."""

from veracal.artifact.classifier import PrivateClassifier

__all__ = ["PrivateClassifier"]

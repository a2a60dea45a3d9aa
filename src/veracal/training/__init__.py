"""Classifiers whose fit is private and whose cost is known beforehand."""

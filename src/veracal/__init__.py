"""Private classifiers with calibrated probabilities, and audits of their arbitrariness."""

__version__ = "0.1.0.dev0"

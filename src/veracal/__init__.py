"""Private classifiers whose confidence can be believed."""

__version__ = "0.1.0.dev0"

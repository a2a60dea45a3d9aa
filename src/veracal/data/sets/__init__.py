"""The catalog of public data sets."""

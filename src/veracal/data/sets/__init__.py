"""The data sets that are known by name."""

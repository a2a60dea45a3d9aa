"""Queries about private scores; :mod:`veracal.calibration` exports them."""

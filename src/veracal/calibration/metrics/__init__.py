"""Calibration metrics and proper scores; their public names are those of calibration."""

"""Private fitting and measurement of calibration; :mod:`veracal.calibration` exports them."""

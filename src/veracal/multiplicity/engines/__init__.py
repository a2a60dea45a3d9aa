"""Engines that repeat a training; their public names are those of multiplicity."""

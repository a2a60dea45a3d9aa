"""Recalibration under shift on real images: the benchmark of Luo et al. (2020)."""

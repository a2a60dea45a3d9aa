"""Recalibration under shift, on real pictures: the benchmark of paper 003."""

"""Clipped per-example gradient sums of one block of examples."""

"""Clipped per-example gradient sums."""

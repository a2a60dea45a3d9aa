"""Corruptions that disturb every pixel by itself.

Constants are those of CIFAR-10-C (Hendrycks and Dietterich 2019,
https://arxiv.org/abs/1903.12261), which are milder than those of ImageNet-C.
"""

import numpy as np

from benchmarks.shift.corruptions.scales import cut_to_bytes, unit
from veracal._types import Array


def gaussian_noise(images: Array, severity: int, rng: np.random.Generator) -> Array:
    """Add normal noise to every value."""
    deviation = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    noise = rng.standard_normal(images.shape, dtype=np.float32)
    return cut_to_bytes(unit(images) + np.float32(deviation) * noise)


def shot_noise(images: Array, severity: int, rng: np.random.Generator) -> Array:
    """Replace every value by the number of photons counted where it was expected."""
    photons = (500, 250, 100, 75, 50)[severity - 1]
    return cut_to_bytes(rng.poisson(unit(images) * photons) / photons)


def impulse_noise(images: Array, severity: int, rng: np.random.Generator) -> Array:
    """Set a share of all values, half and half, to none or to all."""
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    draws = rng.random(images.shape, dtype=np.float32)
    salted = np.where(draws < share, np.uint8(255), images)
    return np.where(draws < share / 2, np.uint8(0), salted)


def speckle_noise(images: Array, severity: int, rng: np.random.Generator) -> Array:
    """Add normal noise in proportion to the value."""
    deviation = (0.06, 0.10, 0.12, 0.16, 0.20)[severity - 1]
    noise = rng.standard_normal(images.shape, dtype=np.float32)
    return cut_to_bytes(unit(images) * (1 + np.float32(deviation) * noise))

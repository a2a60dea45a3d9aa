"""Corruptions that put something between the camera and what it sees.

Constants are those of CIFAR-10-C (Hendrycks and Dietterich 2019,
https://arxiv.org/abs/1903.12261). The published frost is cut out of photographs; see
:mod:`benchmarks.shift.corruptions.ice` for what stands in for them.
"""

import numpy as np

from benchmarks.shift.corruptions.ice import ice_crops
from benchmarks.shift.corruptions.motion import blurred_along, draw_angles
from benchmarks.shift.corruptions.plasma import plasma
from benchmarks.shift.corruptions.scales import cut_to_bytes, rounded_to_bytes, unit
from benchmarks.shift.corruptions.zoom import zoom_matrix
from veracal._types import Array, Floats

_LUMA = np.float32([0.299, 0.587, 0.114])  # ITU-R BT.601


def fog(images: Array, severity: int, rng: np.random.Generator) -> Array:
    """Add clouds, then darken until the brightest value is where it was."""
    amount, decay = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))[severity - 1]
    clear = unit(images)
    brightest = clear.max(axis=(1, 2, 3), keepdims=True)
    clouds = plasma(len(images), images.shape[1], decay, rng)[..., None]
    return cut_to_bytes((clear + amount * clouds) * brightest / (brightest + amount))


def synthetic_frost(images: Array, severity: int, rng: np.random.Generator) -> Array:
    """Add ice on the lens: a synthetic texture, where the published frost is photographed."""
    kept, added = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    return cut_to_bytes(kept * unit(images) + added * ice_crops(images.shape, rng))


def snow(images: Array, severity: int, rng: np.random.Generator) -> Array:
    """Whiten a little, then add falling flakes and the same again, upside down."""
    mean, deviation, size, least, radius, length, kept = (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    )[severity - 1]
    flakes, angles = rng.spawn(2)
    layer = mean + deviation * flakes.standard_normal(images.shape[:3], dtype=np.float32)
    layer = flakes_of(layer, size, least)
    degrees = draw_angles(len(images), -135, -45, angles)
    layer = unit(rounded_to_bytes(blurred_along(layer, radius, length, degrees)))[..., None]
    clear = unit(images)
    pale = np.maximum(clear, 1.5 * (clear @ _LUMA)[..., None] + 0.5)
    return cut_to_bytes(kept * clear + (1 - kept) * pale + layer + layer[:, ::-1, ::-1])


def flakes_of(layer: Floats, size: float, least: float) -> Floats:
    """Enlarge layers of noise of shape (n, h, w) and keep its peaks, from 0 to 255."""
    zoom = zoom_matrix(size, layer.shape[1]).astype(np.float32)
    enlarged = zoom @ layer @ zoom.T
    peaks = np.where(enlarged < least, 0, enlarged)
    return cut_to_bytes(peaks).astype(np.float32)


def brightness(images: Array, severity: int, rng: np.random.Generator) -> Array:
    """Raise the value of every pixel, in the sense of hue, saturation and value."""
    raised = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    clear = unit(images)
    value = clear.max(axis=3, keepdims=True)
    higher = np.minimum(value + np.float32(raised), 1)
    # Hue and saturation are ratios, so the colors of a pixel grow by the same factor.
    ratio = np.divide(clear, value, out=np.ones_like(clear), where=value > 0)
    return cut_to_bytes(ratio * higher)

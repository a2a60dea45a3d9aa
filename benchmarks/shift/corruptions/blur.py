"""Corruptions that mix every pixel with those around it.

Constants are those of CIFAR-10-C (Hendrycks and Dietterich 2019,
https://arxiv.org/abs/1903.12261).
"""

from functools import cache

import numpy as np
from scipy import ndimage

from benchmarks.shift.corruptions.motion import blurred_along, draw_angles
from benchmarks.shift.corruptions.scales import cut_to_bytes, rounded_to_bytes, unit
from benchmarks.shift.corruptions.zoom import applied, zoom_matrix
from veracal._types import Array, Floats

_REACH = 8  # pixels the grid of a disk extends to either side


def gaussian_blur(images: Array, severity: int, rng: np.random.Generator) -> Array:
    """Average with normal weights."""
    deviation = (0.4, 0.6, 0.7, 0.8, 1.0)[severity - 1]
    return cut_to_bytes(smoothed(unit(images), deviation))


def defocus_blur(images: Array, severity: int, rng: np.random.Generator) -> Array:
    """Average over a disk whose edge is softened a little."""
    radius, softening = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))[
        severity - 1
    ]
    kernel = disk(radius, softening)[None, :, :, None]
    return cut_to_bytes(ndimage.correlate(unit(images), kernel, mode="mirror"))


def disk(radius: float, softening: float) -> Floats:
    """Weights over a disk, then averaged with normal weights over three by three pixels."""
    row = np.arange(-_REACH, _REACH + 1)
    inside = (row[:, None] ** 2 + row**2 <= radius**2).astype(float)
    three = np.exp(-(np.arange(-1, 2) ** 2) / (2 * softening**2))
    three /= three.sum()
    kernel = inside / inside.sum()
    for axis in (0, 1):
        kernel = ndimage.correlate1d(kernel, three, axis, mode="mirror")
    return kernel


def glass_blur(images: Array, severity: int, rng: np.random.Generator) -> Array:
    """Blur, let pixels wander, and blur again."""
    deviation, rounds = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[severity - 1]
    wandering = cut_to_bytes(smoothed(unit(images), deviation))
    for stream in rng.spawn(rounds):
        wandering = displace(wandering, stream.integers(-1, 1, (*images.shape[:3], 2)))
    return cut_to_bytes(smoothed(unit(wandering), deviation))


def displace(images: Array, offsets: Array) -> Array:
    """Give every pixel but those of the edge its own value or that of a neighbor.

    The published program visits pixels (h, w) from the last row and column down to 2 and
    exchanges each with (h + dh, w + dw), dh and dw being -1 or 0. Its exchange reads a value
    after writing over it, so that it copies the neighbor and loses the pixel; and since a
    neighbor is visited later, the value copied is always the original one. All visits can
    therefore be made at once.

    Parameters
    ----------
    images : array of shape (n, h, w, channels)
    offsets : array of -1 or 0 of shape (n, h, w, 2)
        Down and right; those of rows and columns 0 and 1 are not used.
    """
    moved = np.zeros_like(offsets)
    moved[:, 2:, 2:] = offsets[:, 2:, 2:]
    count, height, width = images.shape[:3]
    rows = np.arange(height)[:, None] + moved[..., 0]
    columns = np.arange(width) + moved[..., 1]
    return images[np.arange(count)[:, None, None], rows, columns]


def motion_blur(images: Array, severity: int, rng: np.random.Generator) -> Array:
    """Blur along a line within 45 degrees of level."""
    radius, deviation = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))[severity - 1]
    degrees = draw_angles(len(images), -45, 45, rng)
    return rounded_to_bytes(
        blurred_along(images.astype(np.float32), radius, deviation, degrees)
    )


def zoom_blur(images: Array, severity: int, rng: np.random.Generator) -> Array:
    """Average the picture with itself, enlarged in steps of a hundredth."""
    most = (1.06, 1.11, 1.16, 1.21, 1.26)[severity - 1]
    return cut_to_bytes(applied(_zoom_mixture(most, images.shape[1]), unit(images)))


@cache
def _zoom_mixture(most: float, side: int) -> Floats:
    """Average of zooms, as one matrix of shape (pixels, pixels)."""
    # Rounding decides whether arange reaches its end; it did the same when published.
    zooms = [zoom_matrix(factor, side) for factor in np.arange(1, most, 0.01)]
    total = np.eye(side**2) + sum(np.kron(zoom, zoom) for zoom in zooms)
    return np.asarray(total / (len(zooms) + 1), np.float32)


def smoothed(images: Floats, deviation: float) -> Floats:
    """Average pictures of shape (n, h, w, ...) with normal weights, the edge repeated."""
    return ndimage.gaussian_filter(images, deviation, mode="nearest", truncate=4, axes=(1, 2))

"""Blur along a line, each picture in a direction of its own.

It is what ImageMagick calls motion blur, which the published pictures were made with: weights
proportional to exp(-i² / 2σ²) for i = 0, ..., 2r, of the pixels at the whole places nearest to
i (cos θ, sin θ), to one side only; beyond the edge lies the nearest pixel of the picture.
"""

import numpy as np

from veracal._types import Array, Floats, Ints


def line_weights(radius: int, deviation: float) -> Floats:
    """Weights of the pixels along the line, the picture's own pixel first."""
    weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * deviation**2))
    return np.asarray(weights / weights.sum(), np.float32)


def line_positions(degrees: Floats, length: int) -> Ints:
    """Places along lines at angles of shape (n,): (down, right), of shape (n, length, 2)."""
    angles = np.deg2rad(degrees)
    steps = np.stack([np.sin(angles), np.cos(angles)], axis=1)
    return np.ceil(steps[:, None, :] * np.arange(length)[:, None] - 0.5).astype(int)


def blurred_along(images: Floats, radius: int, deviation: float, degrees: Floats) -> Floats:
    """Blur pictures of shape (n, h, w, ...) along lines at angles of shape (n,)."""
    weights = line_weights(radius, deviation)
    places, far = line_positions(degrees, len(weights)), len(weights)
    rest = [(0, 0)] * (images.ndim - 3)
    padded = np.pad(images, [(0, 0), (far, far), (far, far), *rest], mode="edge")
    height, width = images.shape[1:3]
    result = np.zeros_like(images)
    for weight, shifts in zip(weights, places.swapaxes(0, 1), strict=True):
        # Pictures that look to the same place are one slice; there are few places.
        for down, right in np.unique(shifts, axis=0):
            same = np.flatnonzero((shifts == (down, right)).all(axis=1))
            rows, columns = slice(far + down, far + down + height), far + right
            result[same] += weight * padded[same, rows, columns : columns + width]
    return result


def draw_angles(count: int, low: float, high: float, rng: np.random.Generator) -> Array:
    """One angle a picture, in degrees."""
    return rng.uniform(low, high, count)

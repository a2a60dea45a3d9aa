"""Corruptions that computers make.

Constants are those of CIFAR-10-C (Hendrycks and Dietterich 2019,
https://arxiv.org/abs/1903.12261).
"""

import io
from collections.abc import Callable

import numpy as np
from PIL import Image
from scipy import ndimage

from benchmarks.shift.corruptions.scales import cut_to_bytes, unit
from veracal._types import Array, Floats, Ints

_ENDS = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])  # corners of a square, (x, y)


def contrast(images: Array, severity: int, rng: np.random.Generator) -> Array:
    """Draw every channel of a picture toward its mean."""
    kept = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    clear = unit(images)
    mean = clear.mean(axis=(1, 2), keepdims=True)
    return cut_to_bytes((clear - mean) * np.float32(kept) + mean)


def saturate(images: Array, severity: int, rng: np.random.Generator) -> Array:
    """Change the saturation of every pixel, in the sense of hue, saturation and value."""
    factor, more = ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))[severity - 1]
    clear = unit(images)
    value = clear.max(axis=3, keepdims=True)
    below = value - clear
    depth = below.max(axis=3, keepdims=True)
    # Gray has no hue; it counts as red, so that what is added to it makes it red.
    red = np.float32([0, 1, 1])
    hue = np.divide(below, depth, out=np.broadcast_to(red, clear.shape).copy(), where=depth > 0)
    saturation = np.divide(depth, value, out=np.zeros_like(value), where=value > 0)
    return cut_to_bytes(value * (1 - np.clip(saturation * factor + more, 0, 1) * hue))


def jpeg_compression(images: Array, severity: int, rng: np.random.Generator) -> Array:
    """Save as JPEG and read again."""
    quality = (80, 65, 58, 50, 40)[severity - 1]

    def through_file(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return _each(images, through_file)


def pixelate(images: Array, severity: int, rng: np.random.Generator) -> Array:
    """Shrink, then enlarge again, every pixel a box."""
    share = (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1]
    height, width = images.shape[1:3]
    small = int(width * share), int(height * share)
    box = Image.Resampling.BOX
    return _each(images, lambda image: image.resize(small, box).resize((width, height), box))


def _each(images: Array, change: Callable[[Image.Image], Image.Image]) -> Array:
    """Change pictures one by one, with a library that knows no more than one."""
    return np.stack([np.asarray(change(Image.fromarray(image))) for image in images])


def elastic_transform(images: Array, severity: int, rng: np.random.Generator) -> Array:
    """Shear and turn a little, then let every pixel drift with its neighbors."""
    strength, smoothness, corner = (
        (0.0, 0.0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    )[severity - 1]
    side = images.shape[1]
    corners, drifts = rng.spawn(2)
    moves = corners.uniform(-corner * side, corner * side, (len(images), 3, 2))
    drift = drifts.uniform(-1, 1, (len(images), 2, side, side))
    drift = (
        strength
        * side
        * ndimage.gaussian_filter(
            drift, smoothness * side, mode="reflect", truncate=3, axes=(2, 3)
        )
    )
    grid = np.mgrid[:side, :side].astype(float)
    sheared = sampled(unit(images), sheared_grid(grid, moves), _mirrored)
    return cut_to_bytes(sampled(sheared, grid + drift, _reflected))


def sheared_grid(grid: Floats, moves: Floats) -> Floats:
    """Places that an affine map brings onto a grid.

    Parameters
    ----------
    grid : array of shape (2, side, side)
        Rows and columns.
    moves : array of shape (n, 3, 2)
        How far (x, y) the map takes three corners of a square in the middle.

    Returns
    -------
    array of shape (n, 2, side, side)
    """
    side = grid.shape[1]
    before = side // 2 + side // 3 * _ENDS
    after = np.concatenate([before + moves, np.ones((len(moves), 3, 1))], axis=2)
    # Rows [x', y', 1] times the map back give [x, y].
    back = np.linalg.solve(after, np.broadcast_to(before, moves.shape))
    places = np.stack([grid[1], grid[0], np.ones_like(grid[0])], axis=-1) @ back[:, None]
    return np.moveaxis(places[..., ::-1], -1, 1)


def sampled(images: Floats, places: Floats, fold: Callable[[Ints, int], Ints]) -> Floats:
    """Read pictures between their pixels, linearly.

    Parameters
    ----------
    images : array of shape (n, h, w, channels)
    places : array of shape (n, 2, h, w)
        Rows and columns to read at.
    fold : callable
        Brings whole numbers beyond the edge back into a range.
    """
    floor = np.floor(places)
    part = (places - floor).astype(np.float32)
    first = floor.astype(int)
    which = np.arange(len(images))[:, None, None]
    result = np.zeros((len(images), *places.shape[2:], images.shape[3]), np.float32)
    for down in (0, 1):
        for right in (0, 1):
            row = fold(first[:, 0] + down, images.shape[1])
            column = fold(first[:, 1] + right, images.shape[2])
            weight = np.abs(1 - down - part[:, 0]) * np.abs(1 - right - part[:, 1])
            result += weight[..., None] * images[which, row, column]
    return result


def _mirrored(index: Ints, size: int) -> Ints:
    """... 2 1 | 0 1 2 ... : the edge is not repeated."""
    period = 2 * (size - 1)
    return size - 1 - np.abs(size - 1 - index % period)


def _reflected(index: Ints, size: int) -> Ints:
    """... 1 0 | 0 1 2 ... : the edge is repeated."""
    folded = index % (2 * size)
    return np.minimum(folded, 2 * size - 1 - folded)

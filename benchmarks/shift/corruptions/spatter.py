"""Drops on the lens: water for mild severities, mud for strong ones.

Constants are those of CIFAR-10-C (Hendrycks and Dietterich 2019,
https://arxiv.org/abs/1903.12261). Water is drawn by shading how far a pixel is from the edge of
a drop: edges by Canny 1986, distances exact where the published ones are approximate.
"""

import numpy as np
from scipy import ndimage

from benchmarks.shift.corruptions.blur import smoothed
from benchmarks.shift.corruptions.scales import cut_to_bytes, unit
from veracal._types import Array, Bools, Floats

_WATER = np.float32([175, 238, 238]) / 255
_MUD = np.float32([63, 42, 20]) / 255
_SHADING = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
_FAR = 20  # pixels from an edge beyond which drops are flat
_LOW, _HIGH = 50, 150  # gradients that may be, and that are, edges
_DIAGONAL = np.tan(np.pi / 8)


def spatter(images: Array, severity: int, rng: np.random.Generator) -> Array:
    """Cover peaks of smoothed noise with water or mud."""
    mean, deviation, smoothness, least, strength, is_mud = (
        (0.62, 0.1, 0.7, 0.7, 0.5, False),
        (0.65, 0.1, 0.8, 0.7, 0.5, False),
        (0.65, 0.3, 1.0, 0.69, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True),
        (0.65, 0.1, 0.5, 0.68, 0.6, True),
    )[severity - 1]
    noise = rng.standard_normal(images.shape[:3], dtype=np.float32)
    layer = smoothed(mean + deviation * noise, smoothness)
    drops = np.where(layer < least, 0, layer)
    if not is_mud:
        return cut_to_bytes(unit(images) + strength * water(drops)[..., None] * _WATER)
    covered = smoothed((drops > least).astype(np.float32), strength)
    covered = np.where(covered < 0.8, 0, covered)[..., None]
    return cut_to_bytes(unit(images) * (1 - covered) + covered * _MUD)


def water(drops: Floats) -> Floats:
    """Shade drops of shape (n, h, w); the brightest pixel of each picture is 1."""
    depth = (np.clip(drops, 0, 1) * 255).astype(np.uint8)
    distance = np.minimum(distances(edges(depth)), _FAR)
    level = equalized(_mean_of_nine(distance).astype(np.uint8))
    kernel = _SHADING[None]
    shaded = ndimage.correlate(level.astype(np.float32), kernel, mode="mirror").clip(0, 255)
    glint = depth * np.rint(_mean_of_nine(shaded))
    brightest = glint.max(axis=(1, 2), keepdims=True)
    return np.divide(glint, brightest, out=np.zeros_like(glint), where=brightest > 0)


def edges(images: Array) -> Bools:
    """Edges of gray pictures of shape (n, h, w), by Canny's rule.

    Sobel gradients; a pixel is a candidate where its gradient is the largest of the three
    pixels across the edge and above ``_LOW``; candidates connected to one above ``_HIGH`` stay.
    """
    down, right = (_gradient(images.astype(np.float32), *axes) for axes in ((1, 2), (2, 1)))
    size = np.abs(down) + np.abs(right)
    candidates = (size > _LOW) & _is_crest(size, down, right)
    within = np.zeros((3, 3, 3), bool)
    within[1] = True  # connected within a picture, corners too, and never across pictures
    label, _ = ndimage.label(candidates, within)
    strong = np.unique(label[candidates & (size > _HIGH)])
    return np.isin(label, strong) & candidates


def _gradient(images: Floats, along: int, across: int) -> Floats:
    """Sobel's gradient; SciPy's own would average over pictures as well."""
    steps = ndimage.correlate1d(images, [-1, 0, 1], along, mode="nearest")
    return ndimage.correlate1d(steps, [1, 2, 1], across, mode="nearest")


def _is_crest(size: Floats, down: Floats, right: Floats) -> Bools:
    """Whether a gradient is larger than before it and no smaller than behind it, across."""
    padded = np.pad(size, [(0, 0), (1, 1), (1, 1)])
    height, width = size.shape[1:]

    def beside(rows: int, columns: int) -> Floats:
        return padded[:, 1 + rows : 1 + rows + height, 1 + columns : 1 + columns + width]

    def is_top(rows: int, columns: int) -> Bools:
        return (size > beside(-rows, -columns)) & (size >= beside(rows, columns))

    steep, flat = np.abs(down), np.abs(right)
    is_diagonal = np.where(down * right < 0, is_top(1, -1), is_top(1, 1))
    is_level = np.where(steep < _DIAGONAL * flat, is_top(0, 1), is_diagonal)
    return np.where(flat < _DIAGONAL * steep, is_top(1, 0), is_level)


def distances(marked: Bools) -> Floats:
    """Distance of every pixel to the nearest marked one of its picture, up to ``_FAR``."""
    # Pictures lie farther apart than any distance that counts.
    apart = (2 * _FAR, 1, 1)
    if not marked.any():
        return np.full(marked.shape, float(_FAR), np.float32)
    far = ndimage.distance_transform_edt(~marked, sampling=apart)
    return np.minimum(far, _FAR).astype(np.float32)


def equalized(images: Array) -> Array:
    """Spread the levels of each gray picture of shape (n, h, w) evenly over all bytes."""
    count, total = len(images), images[0].size
    which = np.arange(count)[:, None] * 256 + images.reshape(count, -1)
    histogram = np.bincount(which.ravel(), minlength=count * 256).reshape(count, 256)
    lowest = (histogram > 0).argmax(axis=1)
    above = total - histogram[np.arange(count), lowest]
    reached = histogram.cumsum(axis=1) - (total - above)[:, None]
    scale = np.divide(255.0, above, out=np.zeros(count), where=above > 0)
    levels = np.rint(reached * scale[:, None]).clip(0, 255)
    is_flat = above == 0  # one level only: it stays
    levels[is_flat] = np.arange(256)
    return np.take_along_axis(levels, images.reshape(count, -1).astype(int), 1).reshape(
        images.shape
    )


def _mean_of_nine(images: Floats) -> Floats:
    """Mean over three by three pixels of pictures of shape (n, h, w)."""
    return ndimage.uniform_filter(images, (0, 3, 3), mode="mirror")

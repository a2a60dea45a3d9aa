"""Corruptions of pictures, after the definitions of CIFAR-10-C, for many pictures at once.

Hendrycks and Dietterich 2019 (https://arxiv.org/abs/1903.12261) publish fifteen corruptions for
measuring and four more for choosing, at severities from 1 to 5. The code here is our own; the
constants are theirs. It differs from what their pictures were made with in the random draws, in
frost, which is a synthetic texture instead of photographs, and in arithmetic below the last bit of
a byte.
"""

import zlib
from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.shift.corruptions import blur, digital, noise, weather
from benchmarks.shift.corruptions.spatter import spatter
from veracal._types import Array

Corruption = Callable[[Array, int, np.random.Generator], Array]

MEASURED: Mapping[str, Corruption] = {
    "brightness": weather.brightness,
    "contrast": digital.contrast,
    "defocus_blur": blur.defocus_blur,
    "elastic_transform": digital.elastic_transform,
    "fog": weather.fog,
    "frost_made": weather.synthetic_frost,
    "gaussian_noise": noise.gaussian_noise,
    "glass_blur": blur.glass_blur,
    "impulse_noise": noise.impulse_noise,
    "jpeg_compression": digital.jpeg_compression,
    "motion_blur": blur.motion_blur,
    "pixelate": digital.pixelate,
    "shot_noise": noise.shot_noise,
    "snow": weather.snow,
    "zoom_blur": blur.zoom_blur,
}
EXTRA: Mapping[str, Corruption] = {
    "gaussian_blur": blur.gaussian_blur,
    "saturate": digital.saturate,
    "spatter": spatter,
    "speckle_noise": noise.speckle_noise,
}
CORRUPTIONS: Mapping[str, Corruption] = {**MEASURED, **EXTRA}
CLEAN = "clean"
SEVERITIES = range(1, 6)
_BLOCK = 500  # pictures corrupted at once, which bounds memory


def corrupted(images: Array, name: str, severity: int, seed: int = 0) -> Array:
    """Corrupt pictures.

    Parameters
    ----------
    images : array of bytes of shape (n, side, side, 3)
        Sides must be a power of two for fog.
    name : str
        One of ``CORRUPTIONS``, or ``CLEAN``, which changes nothing.
    severity : int
        From 1 to 5.
    seed : int

    Returns
    -------
    array of bytes of the same shape

    Guarantees
    ----------
    The same arguments give the same bytes. What a picture turns into depends on itself, on its
    place in ``images`` and on the other arguments, and on no other picture; only for zoom blur
    may the number of pictures move a value by 1, by the order in which sums are rounded.
    """
    if name == CLEAN:
        return images
    assert images.dtype == np.uint8 and images.ndim == 4 and images.shape[3] == 3
    assert severity in SEVERITIES
    change, key = CORRUPTIONS[name], zlib.crc32(name.encode())
    parts = []
    for block, start in enumerate(range(0, len(images), _BLOCK)):
        rng = np.random.default_rng([key, severity, seed, block])
        parts.append(change(images[start : start + _BLOCK], severity, rng))
    return np.concatenate(parts)

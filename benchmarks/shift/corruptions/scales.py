"""Pictures as numbers from 0 to 1, and back to bytes the way the published pictures were."""

import numpy as np

from veracal._types import Array, Floats


def unit(images: Array) -> Floats:
    """Bytes as float32 from 0 to 1."""
    return images.astype(np.float32) / np.float32(255)


def cut_to_bytes(values: Floats) -> Array:
    """Numbers from 0 to 1 as bytes: clipped, then cut off and not rounded, as published."""
    return (np.clip(values, 0, 1) * 255).astype(np.uint8)


def rounded_to_bytes(values: Floats) -> Array:
    """Numbers from 0 to 255 as the nearest bytes."""
    return np.rint(np.clip(values, 0, 255)).astype(np.uint8)

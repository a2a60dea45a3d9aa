"""Frost that was never photographed: a synthetic texture of ice.

CIFAR-10-C lays random pieces of five photographs of frosted glass over its pictures. They are
not to be had here, so five textures are made instead, about as large as the photographs are
after shrinking: a film of clouds, and needles in directions of their own, denser where the film
is thick, both bluish white on dark glass. Nothing in them was fitted to any accuracy.
"""

from functools import cache

import numpy as np

from benchmarks.shift.corruptions.motion import blurred_along, line_weights
from benchmarks.shift.corruptions.plasma import plasma
from veracal._types import Floats

_TEXTURES = 5
_SIDE = 256  # pixels
_FILM = 1.4  # decay of the clouds: rough
_DIRECTIONS = 8
_NEEDLE = (9, 5.0)  # half the most pixels of a needle, and how quickly it fades
_DENSITY = 0.04  # of the pixels of the thickest film start a needle in each direction
_TINT = np.float32([0.88, 0.95, 1.0])
_RANDOM_STATE = 2019


def ice_crops(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Draw pieces of the textures, of shape (n, h, w, 3), from 0 to 1."""
    count, height, width, _ = shape
    which, rows, columns = (stream.random(count) for stream in rng.spawn(3))
    texture = (which * _TEXTURES).astype(int)
    top = (rows * (_SIDE - height)).astype(int)
    left = (columns * (_SIDE - width)).astype(int)
    down = (top[:, None] + np.arange(height))[:, :, None]
    right = (left[:, None] + np.arange(width))[:, None, :]
    return _textures()[texture[:, None, None], down, right]


@cache
def _textures() -> Floats:
    """All textures, of shape (_TEXTURES, _SIDE, _SIDE, 3)."""
    rng = np.random.default_rng(_RANDOM_STATE)
    film = plasma(_TEXTURES, _SIDE, _FILM, rng)
    needles = np.zeros_like(film)
    for _ in range(_DIRECTIONS):
        starts = rng.random(film.shape) < _DENSITY * film**2
        bright = (starts * rng.uniform(0.4, 1, film.shape)).astype(np.float32)
        streaks = blurred_along(bright, *_NEEDLE, rng.uniform(0, 360, _TEXTURES))
        # A needle is as bright where it starts as was drawn.
        needles = np.maximum(needles, streaks / line_weights(*_NEEDLE)[0])
    ice = np.clip(0.1 + 0.5 * film + 0.6 * needles, 0, 1)
    return np.asarray(ice[..., None] * _TINT, np.float32)

r"""Real-valued noise rounded to integers, sampled exactly.

A floating-point sample of a continuous distribution is not a sample of that distribution: its
low-order bits can reveal the value it was added to (Mironov 2012,
https://doi.org/10.1145/2382196.2382264). Here the noise is a function of real numbers that are
uniform on (0, 1), and only as many of their binary digits are drawn as are needed to determine
the nearest integer. Every quantity is enclosed between two decimal numbers with directed
rounding. If an enclosure contains the boundary between two integers, further digits are drawn
and the enclosure is computed again.

The result has exactly the distribution of the *rounded real noise*. Added to integers, it is a
post-processing of the continuous mechanism on these integers, so the privacy guarantee of the
continuous mechanism (its whole privacy-loss distribution, also for vectors) holds unchanged.
This is tighter than the known bound for vectors of discrete Gaussian noise, which uses
zero-concentrated differential privacy (Canonne, Kamath and Steinke 2020, Theorem 14).
"""

import math
from collections.abc import Sequence
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal

import numpy as np

from veracal import _checks

_BITS = 96  # binary digits of a uniform number that are drawn initially
_MORE_BITS = 64  # and each time they do not suffice
_HALF = Decimal("0.5")

Interval = tuple[Decimal, Decimal]


class _Uniforms:
    """Uniform real numbers on (0, 1) with known leading binary digits.

    Number i lies between ``digits[i]`` and ``digits[i] + 1`` units of :math:`2^{-bits}`.
    """

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self._rng, self.bits, self.digits = rng, 0, [0] * count
        self.refine(_BITS)

    def refine(self, bits: int = _MORE_BITS) -> None:
        """Draw further digits of every number."""
        size = bits // 8
        random_bytes = self._rng.bytes(size * len(self.digits))
        self.digits = [
            one << bits | int.from_bytes(random_bytes[i * size : (i + 1) * size], "big")
            for i, one in enumerate(self.digits)
        ]
        self.bits += bits


class _IntervalArithmetic:
    """Arithmetic on positive intervals whose endpoints are rounded outward."""

    def __init__(self, bits: int) -> None:
        digits = 12 + math.ceil(0.31 * bits)
        self.down, self.up = (
            Context(prec=digits, rounding=rounding, Emin=MIN_EMIN, Emax=MAX_EMAX)
            for rounding in (ROUND_FLOOR, ROUND_CEILING)
        )

    def of(self, low: int, high: int, bits: int) -> Interval:
        """The interval [low, high] in units of 2^-bits."""
        unit = Decimal(1 << bits)
        return self.down.divide(Decimal(low), unit), self.up.divide(Decimal(high), unit)

    def times(self, one: Interval, other: Interval) -> Interval:
        return self.down.multiply(one[0], other[0]), self.up.multiply(one[1], other[1])

    def over(self, one: Interval, other: Interval) -> Interval:
        return self.down.divide(one[0], other[1]), self.up.divide(one[1], other[0])

    def plus(self, one: Interval, other: Interval) -> Interval:
        return self.down.add(one[0], other[0]), self.up.add(one[1], other[1])

    def root(self, one: Interval) -> Interval:
        # Decimal rounds roots and logarithms to nearest in every context.
        low, high = self.down.sqrt(one[0]), self.up.sqrt(one[1])
        return self.down.next_minus(low), self.up.next_plus(high)

    def minus_log(self, one: Interval) -> Interval:
        """The negative logarithm of an interval within (0, 1)."""
        low, high = self.down.ln(one[1]), self.up.ln(one[0])
        low, high = self.down.next_plus(low), self.up.next_minus(high)
        # Not -low: a minus sign rounds to the precision of the thread's context.
        return max(Decimal(0), low.copy_negate()), high.copy_negate()


class _Normals:
    r"""Independent standard normal real numbers, enclosed in intervals.

    Marsaglia's polar method: of a point (U, V), uniform in the unit disk, with
    :math:`S = U^2 + V^2`, both :math:`U \sqrt{-2 \ln S / S}` and
    :math:`V \sqrt{-2 \ln S / S}` are standard normal, and independent of each other. The
    factor decreases with S, so its enclosure follows from that of S.
    """

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self._count = count
        self._points = [_sample_disk(rng) for _ in range((count + 1) // 2)]
        signs = rng.bytes(2 * len(self._points))
        self.signs = [1 - 2 * (one & 1) for one in signs][:count]

    def refine(self) -> None:
        """Draw further digits."""
        for point in self._points:
            point.refine()

    @property
    def bits(self) -> int:
        """Largest number of known digits."""
        return max(point.bits for point in self._points)

    def magnitudes(self) -> list[Interval]:
        """Enclosures of the absolute values."""
        magnitudes: list[Interval] = []
        for point in self._points:
            while (pair := _polar_normals(point)) is None:
                point.refine()
            magnitudes += pair
        return magnitudes[: self._count]


def _sample_disk(rng: np.random.Generator) -> _Uniforms:
    """Absolute coordinates of a point that is uniform in the unit disk."""
    while True:
        point = _Uniforms(2, rng)
        while True:
            (u, v), one = point.digits, 1 << 2 * point.bits
            if (u + 1) ** 2 + (v + 1) ** 2 < one:
                return point
            if u * u + v * v >= one:
                break
            point.refine()  # the circle intersects the square that contains the point


def _polar_normals(point: _Uniforms) -> list[Interval] | None:
    """Enclosures of the absolute values of two normals; None if too few digits are known."""
    (u, v), bits = point.digits, point.bits
    if not u or not v:
        return None
    by = _IntervalArithmetic(bits)
    square = by.of(u * u + v * v, (u + 1) ** 2 + (v + 1) ** 2, 2 * bits)
    if square[1] >= 1:
        return None
    logarithm = by.minus_log(square)
    if not logarithm[0]:
        return None
    double = by.times((Decimal(2), Decimal(2)), logarithm)
    factor = by.root(by.over(double, square))
    return [by.times(by.of(one, one + 1, bits), factor) for one in (u, v)]


def rounded_gaussian(std: float, size: int, *, rng: np.random.Generator) -> list[int]:
    r"""Nearest integers to independent normal real numbers.

    .. math:: P(k) = \Phi\Bigl(\frac{k + 1/2}{\sigma}\Bigr)
        - \Phi\Bigl(\frac{k - 1/2}{\sigma}\Bigr)

    The standard deviation :math:`\sigma` is taken as the exact rational it stores.

    Guarantees
    ----------
    Added to integers, the result is exactly a post-processing of Gaussian noise of this
    standard deviation on them, and costs no more.

    Examples
    --------
    >>> len(rounded_gaussian(10.0, 3, rng=np.random.default_rng(0)))
    3
    """
    _checks.positive(std=std)
    scale = (Decimal(float(std)),) * 2
    noise: list[int] = []
    for start in range(0, size, 2):  # in pairs, which share their digits
        normals = _Normals(min(2, size - start), rng)
        pair = None
        while pair is None:
            magnitudes = normals.magnitudes()  # may draw further digits
            by = _IntervalArithmetic(normals.bits)
            scaled = [by.times(scale, one) for one in magnitudes]
            pair = _round_intervals(scaled, normals.signs, by)
            if pair is None:
                normals.refine()
        noise += pair
    return noise


class SphericalNoise:
    r"""A real vector of density proportional to :math:`e^{-\lVert b \rVert / s}`.

    Its length is Gamma of shape d, minus the logarithm of a product of d uniform numbers, and
    its direction that of d normals (Chaudhuri, Monteleoni and Sarwate 2011, Section 4). The
    scale s is taken as the exact rational it stores.
    """

    def __init__(self, scale: float, d: int, *, rng: np.random.Generator) -> None:
        _checks.positive(scale=scale)
        _checks.whole(d=d)
        self._scale = Decimal(float(scale))
        self._normals, self._uniforms = _Normals(d, rng), _Uniforms(d, rng)

    def refine(self) -> None:
        """Draw further digits; new enclosures are narrower and within the earlier ones."""
        self._normals.refine()
        self._uniforms.refine()

    @property
    def precision(self) -> _IntervalArithmetic:
        """Arithmetic with more digits than the vector has known ones."""
        return _IntervalArithmetic(max(self._uniforms.bits, self._normals.bits))

    def intervals(self) -> list[Interval]:
        """Enclosures of all entries."""
        while not all(self._uniforms.digits):
            self._uniforms.refine()
        bits, by = self._uniforms.bits, self.precision
        product = (Decimal(1), Decimal(1))
        for digits in self._uniforms.digits:
            product = by.times(product, by.of(digits, digits + 1, bits))
        length = by.times((self._scale, self._scale), by.minus_log(product))
        magnitudes = [length]
        if len(self._normals.signs) > 1:  # the direction of a single entry is its sign
            sizes, squares = self._normals.magnitudes(), (Decimal(0), Decimal(0))
            for size in sizes:
                squares = by.plus(squares, by.times(size, size))
            factor = by.over(length, by.root(squares))
            magnitudes = [by.times(factor, size) for size in sizes]
        return [
            one if sign > 0 else (one[1].copy_negate(), one[0].copy_negate())
            for one, sign in zip(magnitudes, self._normals.signs, strict=True)
        ]


def rounded_spherical(scale: float, d: int, *, rng: np.random.Generator) -> list[int]:
    r"""Nearest integers to d reals of density proportional to :math:`e^{-\lVert b \rVert / s}`.

    Guarantees
    ----------
    Added to integers of L2 sensitivity :math:`\Delta`, the result is
    :math:`\Delta/s`-differentially private, exactly. It is a post-processing of the real
    vector, whose log density at two points differs by at most their distance divided by s.

    Examples
    --------
    >>> len(rounded_spherical(10.0, 3, rng=np.random.default_rng(0)))
    3
    """
    noise = SphericalNoise(scale, d, rng=rng)
    while True:
        integers = _round_intervals(noise.intervals(), [1] * d, noise.precision)
        if integers is not None:
            return integers
        noise.refine()


def _round_intervals(
    intervals: Sequence[Interval], signs: Sequence[int], by: _IntervalArithmetic
) -> list[int] | None:
    """Nearest integers; None if an interval contains the boundary between two."""
    integers = []
    for (low, high), sign in zip(intervals, signs, strict=True):
        nearest = math.floor(by.down.add(low, _HALF))
        if nearest != math.floor(by.up.add(high, _HALF)):
            return None
        integers.append(sign * nearest)
    return integers

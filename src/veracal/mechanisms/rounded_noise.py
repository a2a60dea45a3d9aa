r"""Real-valued noise rounded to integers, sampled exactly.

A floating-point sample of a continuous distribution is not a sample of that distribution: its
low-order bits show which value it was added to (Mironov 2012,
https://doi.org/10.1145/2382196.2382264). Here the noise is a function of real numbers that are
uniform on (0, 1), of which only as many binary digits are drawn as are needed to tell the
nearest integer. Every quantity is enclosed between two decimal numbers with directed rounding;
where an enclosure contains the boundary between two integers, further digits are drawn and the
enclosure is computed again.

The result has the distribution of the *rounded real noise*, exactly. Added to integers, it is
a post-processing of the continuous mechanism on these integers, so that the privacy guarantee
of the continuous mechanism (its whole privacy-loss distribution, for vectors too) holds as it
is. That is tighter than the bound known for vectors of discrete Gaussian noise, which is by
zero-concentrated differential privacy (Canonne, Kamath and Steinke 2020, Theorem 14).
"""

import math
from collections.abc import Sequence
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal

import numpy as np

from veracal import _checks

_BITS = 96  # binary digits of a uniform number that are drawn at first
_MORE = 64  # and when these do not suffice
_HALF = Decimal("0.5")

Interval = tuple[Decimal, Decimal]


class _Uniforms:
    """Real numbers, uniform on (0, 1), known by their leading binary digits.

    Number i lies between ``digits[i]`` and ``digits[i] + 1`` units of :math:`2^{-bits}`.
    """

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self._rng, self.bits, self.digits = rng, 0, [0] * count
        self.refine(_BITS)

    def refine(self, bits: int = _MORE) -> None:
        """Draw further digits of every number."""
        size = bits // 8
        drawn = self._rng.bytes(size * len(self.digits))
        self.digits = [
            one << bits | int.from_bytes(drawn[i * size : (i + 1) * size], "big")
            for i, one in enumerate(self.digits)
        ]
        self.bits += bits


class _Precision:
    """Arithmetic on positive intervals whose ends are rounded outwards."""

    def __init__(self, bits: int) -> None:
        digits = 12 + math.ceil(0.31 * bits)
        self.down, self.up = (
            Context(prec=digits, rounding=rounding, Emin=MIN_EMIN, Emax=MAX_EMAX)
            for rounding in (ROUND_FLOOR, ROUND_CEILING)
        )

    def of(self, low: int, high: int, bits: int) -> Interval:
        """The interval from one to another number of units of 2^-bits."""
        unit = Decimal(1 << bits)
        return self.down.divide(Decimal(low), unit), self.up.divide(Decimal(high), unit)

    def times(self, one: Interval, other: Interval) -> Interval:
        return self.down.multiply(one[0], other[0]), self.up.multiply(one[1], other[1])

    def over(self, one: Interval, other: Interval) -> Interval:
        return self.down.divide(one[0], other[1]), self.up.divide(one[1], other[0])

    def plus(self, one: Interval, other: Interval) -> Interval:
        return self.down.add(one[0], other[0]), self.up.add(one[1], other[1])

    def root(self, one: Interval) -> Interval:
        # Decimal rounds roots and logarithms to nearest, whatever the context says.
        low, high = self.down.sqrt(one[0]), self.up.sqrt(one[1])
        return self.down.next_minus(low), self.up.next_plus(high)

    def minus_log(self, one: Interval) -> Interval:
        """The negative logarithm of an interval within (0, 1)."""
        low, high = self.down.ln(one[1]), self.up.ln(one[0])
        low, high = self.down.next_plus(low), self.up.next_minus(high)
        # Not -low: a minus sign rounds to the digits of the thread's own context.
        return max(Decimal(0), low.copy_negate()), high.copy_negate()


class _Normals:
    r"""Independent standard normal real numbers, known as intervals.

    Marsaglia's polar method: of a point (U, V), uniform in the unit disk, with
    :math:`S = U^2 + V^2`, both :math:`U \sqrt{-2 \ln S / S}` and
    :math:`V \sqrt{-2 \ln S / S}` are standard normal, and independent of each other. The
    factor falls with S, so that its enclosure follows from that of S.
    """

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self._count = count
        self._points = [_in_disk(rng) for _ in range((count + 1) // 2)]
        signs = rng.bytes(2 * len(self._points))
        self.signs = [1 - 2 * (one & 1) for one in signs][:count]

    def refine(self) -> None:
        """Draw further digits."""
        for point in self._points:
            point.refine()

    @property
    def bits(self) -> int:
        """Most digits that are known of a number."""
        return max(point.bits for point in self._points)

    def magnitudes(self) -> list[Interval]:
        """Absolute values."""
        found: list[Interval] = []
        for point in self._points:
            while (pair := _polar(point)) is None:
                point.refine()
            found += pair
        return found[: self._count]


def _in_disk(rng: np.random.Generator) -> _Uniforms:
    """Absolute coordinates of a point that is uniform in the unit disk."""
    while True:
        point = _Uniforms(2, rng)
        while True:
            (u, v), one = point.digits, 1 << 2 * point.bits
            if (u + 1) ** 2 + (v + 1) ** 2 < one:
                return point
            if u * u + v * v >= one:
                break
            point.refine()  # the circle passes through the square in which the point is


def _polar(point: _Uniforms) -> list[Interval] | None:
    """Absolute values of two normals; None if too few digits are known for an interval."""
    (u, v), bits = point.digits, point.bits
    if not u or not v:
        return None
    by = _Precision(bits)
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

    Parameters
    ----------
    std : float > 0
        The standard deviation :math:`\sigma`, taken as the exact rational it stores.
    size : int
        How many.
    rng : Generator
        Source of random bytes.

    Returns
    -------
    list of int

    Guarantees
    ----------
    Added to integers, the result is a post-processing of Gaussian noise of this standard
    deviation on them, exactly, and costs no more.

    Examples
    --------
    >>> len(rounded_gaussian(10.0, 3, rng=np.random.default_rng(0)))
    3
    """
    _checks.positive(std=std)
    scale = (Decimal(float(std)),) * 2
    found: list[int] = []
    for start in range(0, size, 2):  # two by two: they share their digits
        normals = _Normals(min(2, size - start), rng)
        whole = None
        while whole is None:
            sizes = normals.magnitudes()
            by = _Precision(normals.bits)
            whole = _nearest([by.times(scale, one) for one in sizes], normals.signs, by)
            if whole is None:
                normals.refine()
        found += whole
    return found


class SphericalNoise:
    r"""A real vector of density proportional to :math:`e^{-\lVert b \rVert / s}`.

    Its length is Gamma of shape d, minus the logarithm of a product of d uniform numbers, and
    its direction that of d normals (Chaudhuri, Monteleoni and Sarwate 2011, Section 4).

    Parameters
    ----------
    scale : float > 0
        The scale s, taken as the exact rational it stores.
    d : int
        Number of entries.
    rng : Generator
        Source of random bytes.
    """

    def __init__(self, scale: float, d: int, *, rng: np.random.Generator) -> None:
        _checks.positive(scale=scale)
        _checks.whole(d=d)
        self._scale = Decimal(float(scale))
        self._normals, self._uniforms = _Normals(d, rng), _Uniforms(d, rng)

    def refine(self) -> None:
        """Draw further digits: later enclosures are narrower, and within earlier ones."""
        self._normals.refine()
        self._uniforms.refine()

    @property
    def precision(self) -> _Precision:
        """Arithmetic with more digits than are known of the vector."""
        return _Precision(max(self._uniforms.bits, self._normals.bits))

    def intervals(self) -> list[Interval]:
        """Enclosure of every entry."""
        while not all(self._uniforms.digits):
            self._uniforms.refine()
        bits, by = self._uniforms.bits, self.precision
        product = (Decimal(1), Decimal(1))
        for digits in self._uniforms.digits:
            product = by.times(product, by.of(digits, digits + 1, bits))
        length = by.times((self._scale, self._scale), by.minus_log(product))
        found = [length]
        if len(self._normals.signs) > 1:  # of one entry the direction is its sign
            sizes, squares = self._normals.magnitudes(), (Decimal(0), Decimal(0))
            for size in sizes:
                squares = by.plus(squares, by.times(size, size))
            factor = by.over(length, by.root(squares))
            found = [by.times(factor, size) for size in sizes]
        return [
            span if sign > 0 else (span[1].copy_negate(), span[0].copy_negate())
            for span, sign in zip(found, self._normals.signs, strict=True)
        ]


def rounded_spherical(scale: float, d: int, *, rng: np.random.Generator) -> list[int]:
    r"""Nearest integers to a real vector of density proportional to :math:`e^{-|b| / s}`.

    Parameters
    ----------
    scale : float > 0
        The scale s.
    d : int
        Number of entries.
    rng : Generator
        Source of random bytes.

    Guarantees
    ----------
    Added to integers of L2 sensitivity :math:`\Delta`, the result is
    :math:`\Delta/s`-differentially private, exactly: a post-processing of the real vector,
    whose log density at two points differs by at most their distance over s.

    Examples
    --------
    >>> len(rounded_spherical(10.0, 3, rng=np.random.default_rng(0)))
    3
    """
    noise = SphericalNoise(scale, d, rng=rng)
    while True:
        spans = noise.intervals()
        whole = _nearest(spans, [1] * d, noise.precision)
        if whole is not None:
            return whole
        noise.refine()


def _nearest(
    spans: Sequence[Interval], signs: Sequence[int], by: _Precision
) -> list[int] | None:
    """Nearest integers; None if an interval contains the boundary between two."""
    found = []
    for (low, high), sign in zip(spans, signs, strict=True):
        first = math.floor(by.down.add(low, _HALF))
        if first != math.floor(by.up.add(high, _HALF)):
            return None
        found.append(sign * first)
    return found

r"""Wavelet scattering transform of small images, a feature map without training.

An image x is filtered by wavelets :math:`\psi_{j,\theta}` of J scales and L angles and a
low-pass filter :math:`\phi` over :math:`2^J` pixels (Bruna and Mallat 2013,
https://arxiv.org/abs/1203.1513):

.. math:: x * \phi, \qquad |x * \psi_{j,\theta}| * \phi, \qquad
    \big| |x * \psi_{j,\theta}| * \psi_{j',\theta'} \big| * \phi \quad (j < j'),

each subsampled to every :math:`2^J`-th pixel. With J = 2 and L = 8 these are 1 + 16 + 64 = 81
small images for every color. The wavelets are Morlet wavelets, in the Fourier domain a real sum
of Gaussians:

.. math:: \hat\psi(\omega) = g(\omega - \xi) - \frac{g(-\xi)}{g(0)} g(\omega), \qquad
    g(\omega) = e^{-\frac{1}{2} \left( \sigma^2 \omega_\parallel^2
    + (\sigma L / 4)^2 \omega_\perp^2 \right)},

with :math:`\sigma = 0.8 \cdot 2^j`, :math:`|\xi| = \frac{3\pi}{4} 2^{-j}` at angle
:math:`\theta`, made periodic; the low-pass filter is a Gaussian of :math:`0.8 \cdot 2^{J-1}`
pixels. These constants, the borders (mirrored over :math:`2^J` pixels) and the order of the
channels are those of kymatio 0.3 (Andreux et al. 2020), which the papers used and which does
not load with scipy 1.17; numbers agree to single precision, except for the factor 3.1415 / pi
in its filters.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from veracal import _checks
from veracal._types import Array, Floats, Ints
from veracal.data import equivalent_positions, score_at_positions
from veracal.neural.examples import ImageScaler, as_tensor, synthetic_rows
from veracal.neural.precision import full_precision

IMAGENET = ImageScaler((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # public mean and std
_WIDTH = 0.8  # width of the finest wavelet, in pixels
_TOP_FREQUENCY = 0.75 * math.pi  # of the finest wavelet
_PERIODS = 3  # on either side, beyond which a Gaussian is below float precision
_BATCH = 16  # images that are transformed at once: few enough to stay in the cache


@dataclass(frozen=True)
class Scattering:
    """Scattering features of an array of images.

    Parameters
    ----------
    scales : int
        The number J: features are coarser than images by :math:`2^J`.
    angles : int
        The number L.
    prepare : callable
        Turns an array of images into floats of shape (n, c, h, w); by default bytes become
        floats from 0 to 1 with channels first, and floats stay. The papers use :data:`IMAGENET`
        for CIFAR-10.

    Guarantees
    ----------
    Nothing is learned. The features of an image are a function of that image alone, bit for
    bit, under the conditions of :func:`veracal.data.score_at_positions`; an image with NaN or
    infinity affects its own features and no others.

    Examples
    --------
    >>> Scattering()(np.zeros((2, 32, 32, 3), np.uint8)).shape
    (2, 243, 8, 8)
    """

    scales: int = 2
    angles: int = 8
    prepare: Callable[[Array], Tensor] = as_tensor

    def __post_init__(self) -> None:
        _checks.whole(scales=self.scales, angles=self.angles)

    @property
    def channels(self) -> int:
        """Number of feature channels for every color: 81 for two scales and eight angles."""
        pairs = self.scales * (self.scales - 1) // 2
        return 1 + self.scales * self.angles + pairs * self.angles**2

    def orders(self, colors: int = 3) -> Ints:
        """Order of every channel, 0, 1 or 2: the higher, the smaller its features."""
        sizes = (1, self.scales * self.angles)
        last = self.channels - sum(sizes)
        return np.tile(np.repeat([0, 1, 2], [*sizes, last]), colors)

    def __call__(self, images: Array, *, out: Array | None = None) -> Floats:
        """Features of images, computed a few at a time.

        Parameters
        ----------
        images : array of shape (n, ...)
        out : array, optional
            Output array for the features, such as a ``numpy.memmap``: those of 50,000 images of
            CIFAR-10 take 3.1 GB.

        Returns
        -------
        array of float32, of shape (n, c · channels, h / 2^J, w / 2^J)
        """
        block = synthetic_rows(images, nn.Identity(), _BATCH)
        shape = (len(images), *self._forward(block).shape[1:])
        features = np.empty(shape, np.float32) if out is None else out
        if features.shape != shape:
            raise ValueError(
                f"Expected out of shape {shape}, got shape {features.shape}. Create it with "
                f"numpy.empty({shape}, numpy.float32)."
            )
        places, start = equivalent_positions(self._forward, block), 0
        for part in score_at_positions(self._forward, images, places, block):
            features[start : start + len(part)] = part
            start += len(part)
        return features

    def _forward(self, rows: Array) -> Floats:
        """Features of one block."""
        with full_precision(), torch.no_grad():
            features: Floats = scattering_transform(
                self.prepare(rows), self.scales, self.angles
            ).numpy()
        return features


def scattering_transform(images: Tensor, scales: int = 2, angles: int = 8) -> Tensor:
    r"""Scattering coefficients of orders 0, 1 and 2, for all images at once.

    A filtered image is subsampled to every :math:`2^j`-th pixel, j being the scale of its last
    wavelet, which has almost no higher frequencies; later filters lose the frequencies that
    were dropped.

    Parameters
    ----------
    images : tensor of shape (n, c, h, w)
        Floats; h and w are multiples of :math:`2^J` and larger than it.
    scales, angles : int
        The numbers J and L.

    Returns
    -------
    tensor of shape (n, c · channels, h / 2^J, w / 2^J)
        For each color: the low-pass image, order 1 by scale and angle, and order 2 by both
        scales and angles; the last index changes fastest. Angles are :math:`\pi l / L` for l
        from 1 to L, from the second axis towards the first.
    """
    margin = 2**scales
    if images.ndim != 4 or not images.is_floating_point():
        raise ValueError(
            "Expected images as floats of shape (n, c, h, w), got "
            f"{str(images.dtype).removeprefix('torch.')} of shape {tuple(images.shape)}. "
            "ImageScaler() converts bytes of shape (n, h, w) or (n, h, w, c)."
        )
    if any(side % margin or side <= margin for side in images.shape[2:]):
        raise ValueError(
            f"Expected sides that are multiples of {margin} pixels, at least {2 * margin}, for "
            f"scales={scales}, got {tuple(images.shape[2:])}. Crop or pad the images."
        )
    x = nn.functional.pad(images, (margin,) * 4, mode="reflect").flatten(0, 1)
    wavelets, blurs = _filter_bank(x.shape[1], x.shape[2], scales, angles, x.dtype)

    def blur(values: Tensor, resolution: int) -> Tensor:
        """Blur rows and columns separately, and keep every 2^J-th pixel."""
        down, across = blurs[resolution]
        return down @ (values @ across)

    spectrum = torch.fft.fft2(x)
    first = [_filter_moduli(spectrum, wavelets[0][j], 2**j) for j in range(scales)]
    orders = [blur(x[:, None], 0)]
    orders += [blur(moduli, j) for j, moduli in enumerate(first)]
    for j, moduli in enumerate(first[:-1]):
        spectra = torch.fft.fft2(moduli)
        # By angle of the first wavelet, each with all second wavelets.
        blurred = [
            blur(_filter_moduli(spectra, wavelets[j][k], 2 ** (k - j)), k)
            for k in range(j + 1, scales)
        ]
        orders.append(torch.stack(blurred, dim=2).flatten(1, 3))
    coefficients = torch.cat(orders, dim=1)
    return coefficients.view(len(images), -1, *coefficients.shape[2:])


@lru_cache(maxsize=8)
def _filter_bank(
    height: int, width: int, scales: int, angles: int, dtype: torch.dtype
) -> tuple[list[list[Tensor]], list[tuple[Tensor, Tensor]]]:
    """All filters for images of one size with their margins, at all resolutions.

    ``wavelets[r][j]`` has spectra of shape (L, h, w) for images at every 2^r-th pixel, and
    ``blurs[r]`` two matrices, which blur columns and rows and keep every 2^J-th pixel without
    the margins.
    """
    turns = [turn * math.pi / angles for turn in range(1, angles + 1)]
    wavelets, blurs = list[list[Tensor]](), list[tuple[Tensor, Tensor]]()
    full = [
        np.stack([morlet(height, width, j, turn, angles) for turn in turns])
        for j in range(scales)
    ]
    for r in range(scales):
        smaller = [_subsample_spectrum(_subsample_spectrum(one, r, 1), r, 2) for one in full]
        wavelets.append([torch.from_numpy(one).to(dtype) for one in smaller])
        down, across = (
            torch.from_numpy(_blur_matrix(n, scales, r)).to(dtype) for n in (height, width)
        )
        blurs.append((down, across.mT.contiguous()))
    return wavelets, blurs


def morlet(height: int, width: int, scale: int, angle: float, angles: int) -> Floats:
    """Spectrum of a Morlet wavelet of scale j on a periodic grid, real, of (height, width).

    The angle is in radians, from the second axis towards the first; the more angles there are,
    the narrower is each wavelet.
    """
    sigma, frequency = _WIDTH * 2**scale, _TOP_FREQUENCY / 2**scale

    sin, cos = math.sin(angle), math.cos(angle)

    def gaussian(center: float) -> Floats:
        total = np.zeros((height, width))
        for rows in _frequencies(height):
            for columns in _frequencies(width):
                parallel = np.add.outer(rows * sin, columns * cos) - center
                perpendicular = np.add.outer(rows * cos, columns * -sin)
                total += np.exp(
                    -0.5 * ((sigma * parallel) ** 2 + (sigma * angles / 4 * perpendicular) ** 2)
                )
        return total

    shifted, centered = gaussian(frequency), gaussian(0.0)
    wavelet: Floats = shifted - shifted[0, 0] / centered[0, 0] * centered
    return wavelet


def _frequencies(n: int) -> list[Floats]:
    """Frequencies of a grid of n points, once for each period that contributes."""
    own = 2 * np.pi * np.fft.fftfreq(n)
    return [own + 2 * np.pi * period for period in range(-_PERIODS, _PERIODS + 1)]


def _subsample_spectrum(spectrum: Floats, resolution: int, axis: int) -> Floats:
    """Drop the frequencies that an image of every 2^r-th pixel cannot represent."""
    n = spectrum.shape[axis]
    kept = n >> resolution
    places = np.arange(n) if resolution == 0 else np.r_[0 : kept // 2, n - kept // 2 : n]
    return spectrum.take(places, axis=axis)


def _blur_matrix(n: int, scales: int, resolution: int) -> Floats:
    """Matrix that blurs n >> r points and keeps every 2^J-th of n, without the margins."""
    sigma = _WIDTH * 2 ** (scales - 1)
    spectrum = np.sum([np.exp(-0.5 * (sigma * one) ** 2) for one in _frequencies(n)], axis=0)
    impulse = np.fft.ifft(_subsample_spectrum(spectrum, resolution, 0)).real
    kept = np.arange(1, n // 2**scales - 1) * 2 ** (scales - resolution)
    places = np.subtract.outer(kept, np.arange(len(impulse)))
    blur: Floats = impulse[places % len(impulse)]
    return blur


def _filter_moduli(spectrum: Tensor, filters: Tensor, step: int) -> Tensor:
    """Absolute values of images filtered by each filter, at every step-th pixel.

    Subsampling averages the aliased frequencies. Filters are real, so real and imaginary parts
    are multiplied separately, which takes a third of the time. The spectrum has shape
    (..., h, w), and the filters (L, h, w).
    """
    h, w = spectrum.shape[-2] // step, spectrum.shape[-1] // step
    parts = torch.view_as_real(spectrum).unsqueeze(-4)
    # Repeating each weight for both parts is faster than broadcasting.
    weights = (filters / step**2).unsqueeze(-1).repeat(1, 1, 1, 2)
    cuts = [
        (..., slice(down, down + h), slice(across, across + w), slice(None))
        for down in range(0, step * h, h)
        for across in range(0, step * w, w)
    ]
    total = parts[cuts[0]] * weights[cuts[0]]
    for cut in cuts[1:]:
        total.addcmul_(parts[cut], weights[cut])
    filtered = torch.fft.ifft2(torch.view_as_complex(total))
    squares = torch.view_as_real(filtered).square_()
    return (squares[..., 0] + squares[..., 1]).sqrt_()

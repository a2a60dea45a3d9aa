"""From the gradients of single examples to their clipped sum."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from veracal.privacy import Clip, pre_noised
from veracal.privacy.descent.clipping import selection
from veracal.training.deep.gradients.blocks import HalfAddedError, Summed
from veracal.training.deep.gradients.layers import Each, Gradients, flat_rows
from veracal.training.deep.layout import Layout

_UNIT = 2.0**-24  # of rounding in float32
_SMALL = 1_024  # numbers of a gradient that are copied sooner than looked at by themselves
_LONGEST = 1e30  # times the bound
_MANY = 4_096  # places up to which they make no difference


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds a generator
class PreNoise:
    """Noise on each example's gradient before it is clipped, which earns no privacy.

    Attributes
    ----------
    std : float
        Standard deviation, of every coordinate.
    rng : Generator
    """

    std: float
    rng: np.random.Generator


def written_down(
    found: Mapping[torch.nn.Parameter, Tensor], noise: PreNoise | None
) -> dict[torch.nn.Parameter, Gradients]:
    """Gradients of shape (n, *parameter), with their noise if there is to be any.

    What is clipped is the noisy gradient, by its own norm: whatever the noise was, the example
    adds no more than the bound. One that was not finite stays so.
    """
    if noise is None:
        return {parameter: Each(values) for parameter, values in found.items()}
    return {
        parameter: Each(pre_noised(values, noise.std, rng=noise.rng))
        for parameter, values in found.items()
    }


@dataclass(frozen=True, eq=False, repr=False)
class _Chosen:
    """Which examples count (None: all), and by how much."""

    factors: Tensor
    kept: Tensor | None
    exceeding: int


def add_clipped(
    found: dict[torch.nn.Parameter, Gradients],
    clip: Clip,
    total: Tensor,
    layout: Layout,
    usual: int,
    real: Tensor | None = None,
) -> Summed:
    """Clip the gradients of a block by their norms over all parameters, and add them.

    Parameters
    ----------
    found : dict of parameters to the gradients of n examples
        Emptied on the way, as each takes room.
    clip : Clip
    total : tensor of float64
        The vector that is added to.
    layout : Layout
    usual : int
        Examples of a block, as declared. There are at most twice as many.
    real : tensor of bool, of shape (n,), optional
        Which examples count (None: all). The others, which give blocks their shape, add
        nothing and are not counted.

    Guarantees
    ----------
    Every example adds at most ``clip.bound`` to the vector, in the L2 norm, roundings in
    float32 included as far as they are of a typical size; one whose norm is not finite adds
    nothing. What an example adds, before roundings of the sum, follows from its own gradient;
    that its gradient does not depend on the others is up to the blocks
    (:class:`~veracal.training.deep.sums.NetworkSums`).
    """
    norms = torch.stack(_squares(found)).sum(0).sqrt()
    # Factors of what is longer have too few digits in float32; it is left out.
    norms = torch.where(norms <= _LONGEST * clip.bound, norms, math.inf)
    assert len(norms) <= 2 * usual
    places = max(gradients.places for gradients in found.values())
    slack = slack_for(usual, places)
    if real is None:
        some = _chosen(norms, clip, slack)
    else:
        some, norms = _padded(norms, real, clip, slack), norms[real]
    if len(some.factors):
        try:
            _add_all(found, some, total, layout)
        except Exception as error:
            raise HalfAddedError("Expected a sum of clipped gradients, got none.") from error
    return Summed(norms, some.exceeding)


def _squares(found: dict[torch.nn.Parameter, Gradients]) -> list[Tensor]:
    """Squared norms of the gradients of all parameters, of small ones together."""
    small, squares = list[Tensor](), list[Tensor]()
    for one in found.values():
        if isinstance(one, Each) and one.values.shape[1:].numel() <= _SMALL:
            small.append(flat_rows(one.values))
        else:
            squares.append(one.squares())
    if small:
        squares.append(Each(torch.cat(small, 1)).squares())
    return squares


def _add_all(
    found: dict[torch.nn.Parameter, Gradients], some: _Chosen, total: Tensor, layout: Layout
) -> None:
    """Add the clipped gradients of all parameters."""
    while found:
        parameter, gradients = found.popitem()
        place = layout.place(parameter)
        part = gradients.weighted(some.factors, some.kept)
        total[place.start : place.end] += part.detach().reshape(-1)


def slack_for(usual: int, places: int) -> float:
    r"""Share of the bound that is left to the rounding of a sum over a block.

    The sum is taken in float32. Roundings of n terms, none longer than the bound, move it by
    some :math:`n^{3/2} u` of the bound, u being 2^-24, for n up to twice the usual number, and
    by more where every term is itself a sum over very many places. All of these are public:
    what is left to rounding must not change with the records.
    """
    most = 2.0 * max(32, usual)
    return 2 * _UNIT * most * math.sqrt(most) * max(1.0, math.sqrt(places / _MANY))


def _chosen(norms: Tensor, clip: Clip, slack: float) -> _Chosen:
    """Factors of examples with these norms, each taken for longer by the slack."""
    found = selection(norms * (1 + slack), clip)
    whole = bool(found.kept.all())
    return _Chosen(found.factors, None if whole else found.kept, found.exceeding)


def _padded(norms: Tensor, real: Tensor, clip: Clip, slack: float) -> _Chosen:
    """Factors of a block that is partly padding, which gets the factor zero.

    Padding that is not finite is left out instead, as zero times infinity is NaN.
    """
    found, places = _chosen(norms[real], clip, slack), real.nonzero()[:, 0]
    if found.kept is not None:
        places = places[found.kept]
    factors, kept = torch.zeros(len(norms), dtype=torch.float64), norms.isfinite() & ~real
    factors[places], kept[places] = found.factors, True
    if bool(kept.all()):
        return _Chosen(factors, None, found.exceeding)
    return _Chosen(factors[kept], kept, found.exceeding)

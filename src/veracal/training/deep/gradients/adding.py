"""From the gradients of single examples to their clipped sum."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from veracal.privacy import Clip
from veracal.privacy.descent.clipping import selection
from veracal.training.deep.gradients.blocks import Summed
from veracal.training.deep.gradients.layers import Gradients
from veracal.training.deep.layout import Layout


@dataclass(frozen=True, eq=False, repr=False)
class _Chosen:
    """Which examples count (None: all), and by how much."""

    factors: Tensor
    kept: Tensor | None
    exceeding: int


def add_clipped(
    found: Mapping[torch.nn.Parameter, Gradients], clip: Clip, total: Tensor, layout: Layout
) -> Summed:
    """Clip the gradients of a block by their norms over all parameters, and add them.

    Parameters
    ----------
    found : mapping of parameters to the gradients of n examples
    clip : Clip
    total : tensor of float64
        The vector that is added to.
    layout : Layout

    Guarantees
    ----------
    Every example adds at most ``clip.bound`` to the vector, in the L2 norm, roundings in
    float32 included as far as they are of a typical size; one whose norm is not finite adds
    nothing.
    """
    norms = torch.stack([gradients.squares() for gradients in found.values()]).sum(0).sqrt()
    some = _chosen(norms, clip)
    for parameter, gradients in found.items() if len(some.factors) else ():
        place = layout.place(parameter)
        part = gradients.weighted(some.factors, some.kept)
        total[place.start : place.end] += part.detach().reshape(-1)
    return Summed(norms, some.exceeding)


def _chosen(norms: Tensor, clip: Clip) -> _Chosen:
    r"""Factors of examples with these norms, with room left for the rounding of a sum.

    The sum over a block is taken in float32. Roundings of n terms, none longer than the bound,
    move it by some :math:`n^{3/2} u` of the bound, u being 2^-24: every norm is taken for that
    much longer, so that an example and the roundings together stay within the bound.
    """
    slack = 8 * 2.0**-24 * max(64, len(norms)) ** 1.5
    found = selection(norms * (1 + slack), clip)
    whole = bool(found.kept.all())
    return _Chosen(found.factors, None if whole else found.kept, found.exceeding)

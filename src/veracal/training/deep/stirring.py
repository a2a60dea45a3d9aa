"""Weights for a trial: layers that begin at zero would hide what the others do."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def stirred(module: nn.Module) -> Iterator[None]:
    """Random numbers in place of weights that are all the same, while the block lasts.

    Behind a head of zeros all outputs are the same whatever came before it, and so they are
    behind an adapter whose second half is zero, or a branch that is multiplied by zero; the
    gradients of whatever comes before are zero, too. A trial of such a module would find that
    examples stay apart, and gradients that are right, in layers that it never saw. After the
    first step the weights are no longer zero.
    """
    same = [
        (one, float(one.detach().reshape(-1)[0])) for one in module.parameters() if _hides(one)
    ]
    draws = torch.Generator().manual_seed(0)  # made up, like the examples of a trial
    try:
        with torch.no_grad():
            for one, _ in same:
                width = one[0].numel() if one.ndim > 1 else 1
                one.add_(torch.randn(one.shape, generator=draws), alpha=width**-0.5)
        yield
    finally:
        with torch.no_grad():
            for one, value in same:
                one.fill_(value)


def _hides(one: Tensor) -> bool:
    """Whether a parameter that is trained is zero, or a matrix whose numbers are all equal."""
    if not one.requires_grad or not one.numel():
        return False
    first = one.detach().reshape(-1)[0]
    return (one.ndim > 1 or float(first) == 0.0) and bool((one == first).all())

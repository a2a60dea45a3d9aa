"""Training with a part of the protection taken out, to see what that part does.

None of this is private, and every model that was trained so says it.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from array_api_compat import array_namespace

from veracal.privacy import Clip, Descent

Ablation = Literal["clipping only", "noise only", "neither"]
ABLATIONS: tuple[Ablation, ...] = get_args(Ablation)


@dataclass(frozen=True)
class Unclipped:
    """Leave every gradient as it is: *not private*.

    Attributes
    ----------
    bound : float
        What the noise is scaled by, as if gradients had been clipped to it.
    """

    bound: float

    def factors(self, norms: Any) -> Any:
        """One for each example."""
        return array_namespace(norms).ones_like(norms)


class _Noiseless(Descent):
    """A descent that adds no noise: *not private*."""

    def _perturbed(self, total: Any, noise_std: float, ahead: Any) -> Any:
        return total


def ablated(descent: Descent, keep: Ablation) -> Descent:
    """The same descent without noise, without clipping, or without either."""
    if keep != "clipping only":
        clip: Clip = Unclipped(descent.clip.bound)
        descent = replace(descent, clip=clip)
    if keep != "noise only":
        settings = {field.name: getattr(descent, field.name) for field in fields(descent)}
        descent = _Noiseless(**settings)
    return descent

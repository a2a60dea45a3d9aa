"""Which parts of a model are trained: all, some by name, or adapters beside them."""

import warnings
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from veracal import _checks
from veracal._checks import extra


def train_only(model: nn.Module, *patterns: str) -> tuple[str, ...]:
    """Freeze all parameters but those whose names match a pattern.

    Parameters
    ----------
    model : torch.nn.Module
    *patterns : str
        As of file names: ``"classifier.*"``, ``"*.layer.5.*"``.

    Returns
    -------
    tuple of str
        Names of the parameters that will be trained.

    Raises
    ------
    ValueError
        If a pattern matches no parameter; nothing is frozen then.

    Examples
    --------
    >>> train_only(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "1.*")
    ('1.weight', '1.bias')
    """
    named = dict(model.named_parameters())
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            raise ValueError(
                f"Expected patterns of names of parameters, got {pattern!r}, which none has. "
                f"There are {', '.join(map(repr, list(named)[-3:]))}, and others."
            )
    chosen = {name for name in named if any(fnmatchcase(name, one) for one in patterns)}
    for name, parameter in named.items():
        parameter.requires_grad_(name in chosen)
    return tuple(name for name in named if name in chosen)


def with_lora(
    model: Any,
    *,
    rank: int = 8,
    scale: float = 2.0,
    dropout: float = 0.0,
    targets: Sequence[str] | None = None,
) -> Any:
    r"""A model in which only adapters of low rank, and the head, are trained.

    Beside a weight W of some layers, :math:`s B A` is learned, where A and B have rank r (Hu et
    al. 2021, https://arxiv.org/abs/2106.09685).

    Parameters
    ----------
    model : transformers.PreTrainedModel
        For sequence classification; it becomes part of the result.
    rank : int
        The rank r.
    scale : float > 0
        The factor s.
    dropout : float in [0, 1]
        Before the adapters.
    targets : sequence of str, optional
        Names of the layers that get adapters; by default those that peft knows for the model.

    Returns
    -------
    peft.PeftModel
    """
    _checks.whole(rank=rank)
    _checks.positive(scale=scale)
    _checks.fraction(dropout=dropout)
    peft = extra("peft", "text")
    settings = peft.LoraConfig(
        task_type="SEQ_CLS",
        r=int(rank),
        lora_alpha=scale * rank,
        lora_dropout=dropout,
        target_modules=None if targets is None else list(targets),
    )
    with warnings.catch_warnings():
        # Of layers whose weights are the other way round, as in GPT-2; peft turns them itself.
        warnings.filterwarnings("ignore", "fan_in_fan_out")
        return peft.get_peft_model(model, settings)

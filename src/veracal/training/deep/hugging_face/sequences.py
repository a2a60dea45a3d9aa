"""Models of Hugging Face, called so that every layer has one row for each example."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from veracal.training.deep.checks import copied

NAMES = ("input_ids", "attention_mask", "token_type_ids")
_CLOSE = 1e-4  # of the spread of logits, by which another form of the mask may move them


class Sequences(nn.Module):
    """A classifier of sequences, from tokens and masks to logits.

    Models look positions up once for all examples, and drop a mask of two axes if no example
    of a batch is padded. Both make one example's gradient hard to tell, or a computation
    depend on the company. Here a table gives every example rows of its own, and masks have
    four axes, which are taken as they are, by encoders and decoders.

    Parameters
    ----------
    model : transformers.PreTrainedModel or peft.PeftModel
        Whose parameters are those of this module, under their names behind ``model.``.

    Attributes
    ----------
    wide : bool
        Whether masks of four axes are given; see :meth:`settle`.
    causal : bool
        Whether these hide from each token what comes after it, as decoders have it.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.wide = self.causal = False

    def forward(self, **inputs: Tensor) -> Tensor:
        """Logits of shape (n, classes)."""
        mask = inputs.get("attention_mask")
        if self.wide and mask is not None:
            inputs = {**inputs, "attention_mask": _wide(mask, self.causal)}
        with _rows_of_their_own(self.model, len(inputs["input_ids"])):
            made: Tensor = self.model(**inputs).logits
        return made

    def settle(self, inputs: Mapping[str, Tensor]) -> None:
        """Give masks of four axes if the model makes the same of them, on made-up examples."""
        trial = copied(self).eval()
        with torch.no_grad():
            for one in trial.parameters():  # a head of zeros would make all the same
                if one.requires_grad:  # others are shared, and stay as they are
                    one.add_(0.1 * torch.randn_like(one))
        for causal in (False, True):
            self.wide, self.causal = trial._same(inputs, causal=causal), causal
            if self.wide:
                return
        self.causal = False

    def _same(self, inputs: Mapping[str, Tensor], *, causal: bool) -> bool:
        """Whether a model makes of wide masks what it makes of narrow ones."""
        made = []
        try:
            with torch.no_grad():
                for wide in (False, True):
                    self.wide, self.causal = wide, causal
                    made.append(self(**inputs))
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
            return False
        plain, other = made
        gap = float((other - plain).abs().max())
        return gap <= _CLOSE * max(1e-6, float(plain.std(0).max()))


def _wide(mask: Tensor, causal: bool) -> Tensor:
    """A mask of shape (n, t) as what is added to attention, of shape (n, 1, t, t)."""
    t, least = mask.shape[1], torch.finfo(torch.float32).min
    hidden = ((1.0 - mask.to(torch.float32)) * least)[:, None, None, :].expand(-1, 1, t, -1)
    if not causal:
        return hidden
    # The lesser of the two, as their sum would be infinite.
    return torch.minimum(hidden, torch.full((t, t), least).triu(1))


@contextmanager
def _rows_of_their_own(model: nn.Module, examples: int) -> Iterator[None]:
    """While it lasts, tables look up for each example what is the same for all."""

    def repeat(table: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        rows = inputs[0]
        if rows.ndim < 2 or len(rows) != 1:
            return inputs
        return (rows.expand(examples, *rows.shape[1:]), *inputs[1:])

    tables = [one for one in model.modules() if isinstance(one, nn.Embedding)]
    hooks = [table.register_forward_pre_hook(repeat) for table in tables]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def taken_by(model: nn.Module) -> tuple[str, ...]:
    """Names of what a model takes, also where adapters are around it."""
    inner: Any = getattr(model, "get_base_model", lambda: model)()
    return tuple(inspect.signature(inner.forward).parameters)


def made_up_texts(
    names: tuple[str, ...], length: int, n: int, config: Any
) -> dict[str, Tensor]:
    """Meaningless texts in the form of the records: the first unpadded, others shorter."""
    rng = np.random.default_rng(0)
    ends = rng.integers(1, length + 1, n)
    ends[0] = length
    mask = np.arange(length) < ends[:, None]
    pad = getattr(config, "pad_token_id", None) or 0
    words = rng.integers(0, config.vocab_size, mask.shape)
    words[words == pad] = (pad + 1) % config.vocab_size
    made = {
        "input_ids": np.where(mask, words, pad),
        "attention_mask": mask.astype(np.int64),
        "token_type_ids": np.zeros(mask.shape, np.int64),
    }
    return {name: torch.from_numpy(made[name]) for name in names}

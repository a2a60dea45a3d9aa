"""A network for texts whose last layers are trained, on top of frozen ones."""

from typing import Any

import torch
from torch import Tensor, nn

from veracal import _checks
from veracal.data.features.networks import minilm_encoder

_WIDTH = 384  # of MiniLM's vectors
_SCALE = (
    500.0  # with it, the rate at which the last layer learns is also one for a head of zeros
)


def pooled(hidden: Tensor, here: Tensor, head: nn.Module, scale: float) -> Tensor:
    r"""Logits of texts, by the mean of the states of their tokens, scaled to length 1.

    .. math:: s \left( W \frac{\bar h}{\lVert \bar h \rVert} + b \right)

    Parameters
    ----------
    hidden : tensor of shape (n, tokens, width)
    here : tensor of shape (n, tokens)
        Where there is a token, and not padding.
    head : torch.nn.Module
        With W and b.
    scale : float
        The factor s. The head learns as much faster, and its gradients are as much longer.
    """
    weight = here.to(hidden.dtype)[..., None]
    mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1.0)
    logits: Tensor = scale * head(nn.functional.normalize(mean, dim=1))
    return logits


def head_of_zeros(width: int, classes: int) -> nn.Linear:
    """A head that tells nothing apart yet: first steps are not spent on forgetting chance."""
    head = nn.Linear(width, classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


class MiniLMTexts(nn.Module):
    """All-MiniLM-L6-v2 with a linear head on the mean of the token vectors (:func:`pooled`).

    MiniLM was trained in public to put what a sentence means into that mean, so that a head on
    it begins where frozen features end. Everything but the last layers and the head is frozen,
    and there is no dropout.

    Parameters
    ----------
    classes : int
    layers : int from 0 to 6
        Of the encoder, the last ones, that are trained; each has 1.77 million parameters.
    """

    def __init__(self, classes: int, layers: int = 1) -> None:
        super().__init__()
        self.encoder: Any = minilm_encoder()
        self.encoder.requires_grad_(False)
        blocks = self.encoder.encoder.layer
        for block in blocks[len(blocks) - layers :]:
            block.requires_grad_(True)
        self.head = head_of_zeros(_WIDTH, classes)

    def forward(self, rows: Tensor) -> Tensor:
        """Logits of texts as numbers of tokens, of shape (n, tokens), padded with zeros."""
        most = self.encoder.config.vocab_size - 1
        tokens = rows.round().clamp(0, most).long()
        mask = (tokens != 0).to(torch.float32)
        # Of four axes: one of two is dropped when no text of the batch is padded, and the
        # choice of kernel would depend on the company.
        attend = mask.bool()[:, None, None, :].expand(-1, 1, mask.shape[1], -1)
        kinds = torch.zeros_like(tokens)
        hidden = self.encoder(
            input_ids=tokens, token_type_ids=kinds, attention_mask=attend
        ).last_hidden_state
        return pooled(hidden, mask, self.head, _SCALE)


def minilm_texts(classes: int, *, layers: int = 1) -> MiniLMTexts:
    """All-MiniLM-L6-v2 for texts as rows of tokens, its last layers trained.

    Rows come from :class:`~veracal.data.features.MiniLMTokens`.

    Parameters
    ----------
    classes : int
    layers : int from 0 to 6
        Layers of the encoder that are trained, beside the head.
    """
    _checks.whole(least=2, classes=classes)
    _checks.whole(least=0, layers=layers)
    if layers > 6:
        raise ValueError(f"Expected at most 6 layers, got layers={layers!r}.")
    return MiniLMTexts(classes, layers)

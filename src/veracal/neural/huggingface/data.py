"""Tokenized texts of one declared length, and records of a trainer as arrays.

It also wraps Hugging Face models so that every layer has one row for each example.
"""

import inspect
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from veracal import _checks
from veracal._checks import extra
from veracal._types import Array, Ints
from veracal.accounting import Unit
from veracal.errors import DataError
from veracal.neural.examples import IndexedRecords
from veracal.neural.module_checks import copy_module
from veracal.neural.pretrained import four_axis_mask

NAMES = ("input_ids", "attention_mask", "token_type_ids")
LABELS = ("labels", "label", "label_ids")
_TOLERANCE = 1e-4  # of the spread of logits, between the two mask shapes
_TYPES = {"input_ids": np.int32, "attention_mask": np.int8, "token_type_ids": np.int8}


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds records
class Tokens:
    """Tokenized texts of one length: rows for a trainer, and arrays for other uses.

    Attributes
    ----------
    arrays : mapping of str to array of ints, of shape (n, length)
        By the names of Hugging Face's model inputs, including ``input_ids``.
    labels : array of ints, of shape (n,), optional
    declared : bool
        Whether the length was declared, and is not that of the longest text.
    """

    arrays: Mapping[str, Array]
    labels: Ints | None = None
    declared: bool = False

    def __post_init__(self) -> None:
        shape = self.arrays["input_ids"].shape
        for name, one in self.arrays.items():
            if one.ndim != 2 or one.shape != shape or one.dtype.kind not in "iu":
                raise DataError(
                    name,
                    f"whole numbers of shape (n, length), as input_ids of shape {shape}",
                    f"{one.dtype} of shape {one.shape}",
                    "Tokenize with veracal.neural.tokenize.",
                )
        if self.labels is not None and (
            self.labels.shape != shape[:1] or self.labels.dtype.kind not in "iu"
        ):
            raise DataError(
                "labels",
                "one whole number for each text",
                f"{self.labels.dtype}, or another number of them",
                "Pass class indices, in the order of the texts.",
            )

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> "Tokens":
        """Create from a mapping of names to arrays, with or without labels."""
        named = [name for name in LABELS if name in mapping]
        labels = np.asarray(mapping[named[0]]) if named else None
        arrays = {name: np.asarray(one) for name, one in mapping.items() if name in _TYPES}
        other = set(mapping) - set(arrays) - set(LABELS)
        if other:
            raise DataError(
                ", ".join(sorted(other)),
                f"arrays named {', '.join(_TYPES)} and labels",
                "other names",
                "Remove them: the model computes positions.",
            )
        return cls(arrays, labels)

    @property
    def length(self) -> int:
        """Number of tokens of every text."""
        return int(self.arrays["input_ids"].shape[1])

    def __len__(self) -> int:
        return len(self.arrays["input_ids"])

    def __getitem__(self, row: int) -> dict[str, Any]:
        item: dict[str, Any] = {
            name: array[row].astype(np.int64) for name, array in self.arrays.items()
        }
        if self.labels is not None:
            item["labels"] = int(self.labels[row])
        return item


def tokenize(
    texts: Sequence[str] | Sequence[Sequence[str]] | Array,
    tokenizer: Any,
    *,
    max_length: int,
    labels: Any = None,
) -> Tokens:
    """Tokenize texts, each independently, padded to one length.

    Parameters
    ----------
    texts : sequence of str, or of pairs of str; or an array of them of shape (n, 1) or (n, 2)
    tokenizer : transformers.PreTrainedTokenizerFast
        As from :func:`load_tokenizer`.
    max_length : int
        Tokens of every text. Longer texts are truncated, the longer half of a pair first.
    labels : sequence of int, optional

    Guarantees
    ----------
    The tokens of a text depend on that text alone.
    """
    _checks.whole(max_length=max_length, least=4)
    given = texts.tolist() if isinstance(texts, np.ndarray) else texts
    rows = [(text,) if isinstance(text, str) else tuple(text) for text in given]
    if any(len(row) not in (1, 2) or not all(isinstance(x, str) for x in row) for row in rows):
        raise DataError(
            "texts",
            "a text or a pair of texts in each row",
            "another type",
            "Pass strings or pairs of strings.",
        )
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is None:
        raise ValueError(
            "Expected a fast tokenizer of transformers, as from load_tokenizer, got "
            f"{type(tokenizer).__name__}."
        )
    backend = extra("tokenizers", "text").Tokenizer.from_str(inner.to_str())
    backend.enable_truncation(int(max_length), strategy="longest_first")
    backend.no_padding()
    shape = len(rows), int(max_length)
    arrays: dict[str, Array] = {name: np.zeros(shape, kind) for name, kind in _TYPES.items()}
    arrays["input_ids"][:] = getattr(tokenizer, "pad_token_id", None) or 0
    for i, row in enumerate(rows):
        # One at a time: a batch would start threads, which are not safe with a later fork.
        text = backend.encode(*row)
        end = len(text.ids)
        arrays["input_ids"][i, :end] = text.ids
        arrays["attention_mask"][i, :end] = text.attention_mask
        arrays["token_type_ids"][i, :end] = text.type_ids
    return Tokens(arrays, None if labels is None else np.asarray(labels), declared=True)


class SequenceClassifierModule(nn.Module):
    """A sequence classifier, from tokens and masks to logits.

    Models look positions up once for all examples, and drop a two-axis mask if no example of a
    batch is padded. The first prevents per-example gradients; the second makes a computation
    depend on the other examples. Here embedding tables look up separate rows for every example,
    and masks have four axes, which encoders and decoders use unchanged.

    Parameters
    ----------
    model : transformers.PreTrainedModel or peft.PeftModel
        Its parameters are those of this module, with the prefix ``model.``.

    Attributes
    ----------
    four_axes : bool
        Whether masks have four axes; see :meth:`choose_mask_shape`.
    causal : bool
        Whether masks hide later tokens, as for decoders.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.four_axes = self.causal = False

    def forward(self, **inputs: Tensor) -> Tensor:
        """Logits of shape (n, classes)."""
        examples, mask = len(inputs["input_ids"]), inputs.get("attention_mask")
        if self.four_axes and mask is not None:
            # Zero, or very negative where a token is hidden.
            t, least = mask.shape[1], torch.finfo(torch.float32).min
            hidden = four_axis_mask((1.0 - mask.to(torch.float32)) * least)
            if self.causal:  # the minimum, since the sum would be infinite
                hidden = torch.minimum(hidden, torch.full((t, t), least).triu(1))
            inputs = {**inputs, "attention_mask": hidden}

        def repeat(table: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
            """Repeat a lookup that all examples share for every example."""
            rows = given[0]
            if rows.ndim < 2 or len(rows) != 1:
                return given
            return (rows.expand(examples, *rows.shape[1:]), *given[1:])

        tables = [one for one in self.model.modules() if isinstance(one, nn.Embedding)]
        hooks = [table.register_forward_pre_hook(repeat) for table in tables]
        try:
            outputs: Tensor = self.model(**inputs).logits
        finally:
            for hook in hooks:
                hook.remove()
        return outputs

    def choose_mask_shape(self, inputs: Mapping[str, Tensor]) -> None:
        """Use four-axis masks if they give the same logits for synthetic examples."""
        trial = copy_module(self).eval()
        self.four_axes = self.causal = False
        with torch.no_grad():
            for one in trial.parameters():  # a zero head would hide differences
                if one.requires_grad:  # frozen parameters are shared with the model
                    one.add_(0.1 * torch.randn_like(one))
            for causal in (False, True):
                try:
                    trial.four_axes = False
                    two_axis = trial(**inputs)
                    trial.four_axes, trial.causal = True, causal
                    gap = float((trial(**inputs) - two_axis).abs().max())
                except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
                    continue
                if gap <= _TOLERANCE * max(1e-6, float(two_axis.std(0).max())):
                    self.four_axes, self.causal = True, causal
                    return


def synthetic_texts(
    names: tuple[str, ...], length: int, n: int, config: Any
) -> dict[str, Tensor]:
    """Random texts in the format of the records: the first unpadded, others shorter."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, length + 1, n)
    lengths[0] = length
    mask = np.arange(length) < lengths[:, None]
    pad = getattr(config, "pad_token_id", None) or 0
    token_ids = rng.integers(0, config.vocab_size, mask.shape)
    token_ids[token_ids == pad] = (pad + 1) % config.vocab_size
    arrays = {
        "input_ids": np.where(mask, token_ids, pad),
        "attention_mask": mask.astype(np.int64),
        "token_type_ids": np.zeros(mask.shape, np.int64),
    }
    return {name: torch.from_numpy(arrays[name]) for name in names}


@dataclass(frozen=True)
class TextFormat:
    """Public format of the texts of a training."""

    names: tuple[str, ...]  # inputs of the model
    length: int  # tokens of every text
    vocabulary: int  # number of tokens
    classes: int
    pad: int  # padding token


def as_dataset(mapping: Any) -> Any:
    """Wrap a mapping of arrays as a data set with rows by index."""
    if isinstance(mapping, Mapping) and "input_ids" in mapping:
        return Tokens.of(mapping)
    return mapping


def text_format(
    dataset: Any, model: nn.Module, max_length: int | None, pad: int | None
) -> TextFormat:
    """Format of the records, from public information; no record is read.

    The length must be declared, except for :class:`Tokens`, which have one length. ``pad`` is
    the padding token of the tokenizer, if there is one.
    """
    if dataset is None:
        raise ValueError("Expected a train_dataset, got None.")
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
        raise ValueError(
            "Expected a train_dataset with a length and indices, so that records can be drawn "
            f"independently, got {type(dataset).__name__}."
        )
    config: Any = model.config
    inner: Any = getattr(model, "get_base_model", lambda: model)()  # behind adapters
    accepted = set(inspect.signature(inner.forward).parameters)
    if int(getattr(config, "type_vocab_size", 0) or 0) < 1:
        accepted -= {"token_type_ids"}  # for some models type 0 would have a meaning
    if max_length is None and not (isinstance(dataset, Tokens) and dataset.declared):
        arrays = "arrays may be as long as the longest text, which"
        subject = arrays if isinstance(dataset, Tokens) else "the length of the records"
        raise ValueError(
            f"Expected a declared max_length, got None: {subject} is private. Pass "
            "PrivacyArguments(max_length=...), or tokenize with veracal.neural.tokenize."
        )
    names = tuple(name for name in NAMES if name in accepted)
    if isinstance(dataset, Tokens):
        if dataset.labels is None:
            raise ValueError(
                "Expected arrays with labels to train on, got none named 'labels'."
            )
        if "attention_mask" in accepted and "attention_mask" not in dataset.arrays:
            raise ValueError(
                "Expected an array 'attention_mask', which marks padding, got none."
            )
        names = tuple(name for name in names if name in dataset.arrays)
    length = dataset.length if max_length is None else int(max_length)
    max_positions = getattr(config, "max_position_embeddings", None)
    if max_positions is not None and length > max_positions:
        raise ValueError(
            f"Expected max_length of at most {max_positions}, the positions of the model, got "
            f"{length}."
        )
    if getattr(config, "pad_token_id", 0) is None:
        # Decoders classify by the last token that is not padding.
        raise ValueError(
            "Expected a model with a padding token, got config.pad_token_id=None. Set "
            "model.config.pad_token_id to that of the tokenizer."
        )
    padding = getattr(config, "pad_token_id", None) if pad is None else pad
    return TextFormat(
        names, length, int(config.vocab_size), int(config.num_labels), padding or 0
    )


def load_records(
    dataset: Any, text_form: TextFormat, unit: Unit | None = None, column: str | None = None
) -> IndexedRecords:
    """Read all records, and exclude those that do not match the declaration.

    Excluded are records with tokens or labels out of range, that cannot be read as integers, or
    without an id in the column of units, and all rows of a unit after the first
    ``unit.max_contributions``. They contribute nothing, as if they were absent: an error would
    reveal, after the charge, that such a record exists.

    Guarantees
    ----------
    No error depends on a record. Whether a record is kept depends on that record alone, or on
    the rows of its unit alone.
    """
    if isinstance(dataset, Tokens):
        assert dataset.labels is not None
        shape, width = (len(dataset), text_form.length), min(text_form.length, dataset.length)
        arrays = {name: np.zeros(shape, np.int64) for name in text_form.names}
        arrays["input_ids"][:] = text_form.pad
        for name, array in arrays.items():
            array[:, :width] = dataset.arrays[name][:, :width]
        labels: Ints = np.asarray(dataset.labels, np.int64)
        valid = np.ones(len(labels), dtype=bool)
    else:
        arrays, labels, valid = _gather_rows(dataset, text_form)
    valid &= _in_range(arrays["input_ids"], text_form.vocabulary).all(axis=1)
    valid &= _in_range(labels, text_form.classes)
    if column is not None:
        valid &= _within_unit_limit(dataset, unit or Unit(), column)
    return IndexedRecords(
        {name: arrays[name][valid] for name in text_form.names}, labels[valid]
    )


def check_columns(dataset: Any, column: str | None) -> None:
    """Reject a table without the required columns, by its public names, and unnamed units."""
    if isinstance(dataset, Tokens):
        if column is not None:
            raise ValueError(
                f"Expected rows with the unit column {column!r}, got arrays of tokens, which "
                "have no such column. Pass rows, each a mapping with input_ids, labels and "
                f"{column!r}."
            )
        return
    names = getattr(dataset, "column_names", None)
    if not isinstance(names, list | tuple):
        return
    for allowed in [("input_ids",), LABELS, *([] if column is None else [(column,)])]:
        if not set(allowed) & set(names):
            raise ValueError(
                "Expected a train_dataset with a column "
                f"{' or '.join(map(repr, allowed))}, got {', '.join(map(repr, names))}."
            )


def _within_unit_limit(dataset: Any, unit: Unit, column: str) -> Array:
    """Mark the rows that are among the first ``unit.max_contributions`` of their unit."""
    seen, kept = Counter[Any](), np.zeros(len(dataset), dtype=bool)
    for i in range(len(dataset)):
        try:
            unit_id = np.asarray(dataset[i][column]).item()
            if unit_id is not None and unit_id == unit_id:  # None and NaN are missing ids
                seen[unit_id] += 1
                kept[i] = seen[unit_id] <= unit.max_contributions
        except Exception:  # without a unit id
            kept[i] = False
    return kept


def _gather_rows(dataset: Any, text_form: TextFormat) -> tuple[dict[str, Array], Ints, Array]:
    """Read rows one by one, truncated and padded, and mark those that could be read."""
    shape = len(dataset), text_form.length
    arrays = {name: np.zeros(shape, np.int64) for name in text_form.names}
    arrays["input_ids"][:] = text_form.pad
    labels, readable = np.zeros(len(dataset), np.int64), np.ones(len(dataset), dtype=bool)
    for i in range(len(dataset)):
        try:
            row = dataset[i]
            tokens = len(np.asarray(row["input_ids"]).reshape(-1)[: text_form.length])
            for name in text_form.names:
                if name == "attention_mask" and name not in row:
                    arrays[name][i, :tokens] = 1
                elif name in row:
                    values = np.asarray(row[name]).reshape(-1)[: text_form.length]
                    arrays[name][i, :tokens] = values
            label = next(row[name] for name in LABELS if name in row)
            labels[i] = operator.index(np.asarray(label).item())
        except Exception:  # the error may contain record values
            readable[i] = False
    return arrays, labels, readable


def _in_range(values: Array, end: int) -> Array:
    """Mark integers from 0 to ``end - 1``."""
    in_range: Array = (values >= 0) & (values < end)
    return in_range

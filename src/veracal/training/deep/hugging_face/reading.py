"""Records of a trainer as arrays of one declared form."""

import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from veracal._types import Array, Ints
from veracal.privacy import Unit
from veracal.training.deep.hugging_face.sequences import NAMES, taken_by
from veracal.training.deep.hugging_face.tokens import LABELS, Tokens
from veracal.training.deep.records import Records

TYPES = "token_type_ids"


@dataclass(frozen=True)
class Form:
    """What is public about the texts of a training.

    Attributes
    ----------
    names : tuple of str
        What the model is given.
    length : int
        Tokens of every text.
    vocabulary, classes : int
        How many tokens and labels there are.
    pad : int
        The token that fills a text up.
    """

    names: tuple[str, ...]
    length: int
    vocabulary: int
    classes: int
    pad: int


def as_dataset(given: Any) -> Any:
    """A mapping of arrays as a data set that a trainer can take row by row."""
    if isinstance(given, Mapping) and "input_ids" in given:
        return Tokens.of(given)
    return given


def form_of(dataset: Any, model: nn.Module, max_length: int | None, pad: int | None) -> Form:
    """The form of the records, of which none is read.

    Parameters
    ----------
    dataset : Tokens, or anything with a length and rows by number
    model : torch.nn.Module
    max_length : int, optional
        Declared; needed for anything but :class:`Tokens`, which have one length.
    pad : int, optional
        The token of the tokenizer that fills texts up.

    Raises
    ------
    ValueError
        If nothing, or nothing of a known length, is there to be read.
    """
    if dataset is None:
        raise ValueError("Expected a train_dataset, got None.")
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
        raise ValueError(
            "Expected a train_dataset whose records have numbers, so that each can enter a "
            f"batch by its own coin, got {type(dataset).__name__}."
        )
    config: Any = model.config
    taken = tuple(name for name in taken_by(model) if name != TYPES or _has_types(config))
    if isinstance(dataset, Tokens):
        names, length = _of_tokens(dataset, taken, max_length)
    elif max_length is None:
        raise ValueError(
            "Expected a declared max_length, got None: how long the records are is private. "
            "Give PrivacyArguments(max_length=...), or tokenize with "
            "veracal.training.deep.hugging_face.tokenized."
        )
    else:
        names, length = tuple(name for name in NAMES if name in taken), int(max_length)
    most = getattr(config, "max_position_embeddings", None)
    if most is not None and length > most:
        raise ValueError(
            f"Expected max_length of at most {most}, the positions of the model, got {length}."
        )
    if getattr(config, "pad_token_id", 0) is None:
        # Decoders classify by the last token that is none of these, and take no batch without.
        raise ValueError(
            "Expected a model that knows which token fills a text up, got "
            "config.pad_token_id=None. Set model.config.pad_token_id, to the one of the "
            "tokenizer."
        )
    filler = getattr(config, "pad_token_id", None) if pad is None else pad
    return Form(names, length, int(config.vocab_size), int(config.num_labels), filler or 0)


def _has_types(config: Any) -> bool:
    """Whether a model tells kinds of tokens apart; for some, kind 0 would mean something."""
    return int(getattr(config, "type_vocab_size", 0) or 0) >= 1


def _of_tokens(
    tokens: Tokens, taken: tuple[str, ...], max_length: int | None
) -> tuple[tuple[str, ...], int]:
    """Names and length of tokens."""
    if max_length is None and not tokens.declared:
        raise ValueError(
            "Expected a declared max_length, got None: arrays may be as long as the longest "
            "text, which is private. Give PrivacyArguments(max_length=...), or tokenize with "
            "veracal.training.deep.hugging_face.tokenized."
        )
    if tokens.labels is None:
        raise ValueError("Expected arrays with labels to train on, got none named 'labels'.")
    if "attention_mask" in taken and "attention_mask" not in tokens.arrays:
        raise ValueError(
            "Expected an array 'attention_mask' that tells tokens from padding, got none."
        )
    names = tuple(name for name in NAMES if name in tokens.arrays and name in taken)
    return names, tokens.length if max_length is None else int(max_length)


def records_of(
    dataset: Any, form: Form, unit: Unit | None = None, column: str | None = None
) -> Records:
    """Read all records, and leave out those that are not as declared.

    Left out is a record with a token or a label that there is not, one that cannot be read as
    whole numbers, one that does not say whose it is, and of every unit all rows after the first
    ``unit.at_most``. It contributes nothing, as if it were not there: an error would reveal,
    after the charge, that somebody has such a record.

    Parameters
    ----------
    dataset : Tokens, or anything with a length and rows by number
    form : Form
    unit : Unit, optional
    column : str, optional
        Name under which every row says to which unit it belongs.

    Guarantees
    ----------
    No error depends on a record. Whether a record is kept depends on that record alone, or on
    the rows of its unit alone.
    """
    if isinstance(dataset, Tokens):
        assert dataset.labels is not None
        arrays = {name: _cut(dataset.arrays[name], form, name) for name in form.names}
        labels: Ints = np.asarray(dataset.labels, np.int64)
        fits = np.ones(len(labels), dtype=bool)
    else:
        arrays, labels, fits = _gathered(dataset, form)
    fits &= _in_range(arrays["input_ids"], form.vocabulary).all(axis=1)
    fits &= _in_range(labels, form.classes)
    if column is not None:
        fits &= _within_limit(dataset, unit or Unit(), column)
    return Records({name: arrays[name][fits] for name in form.names}, labels[fits])


def check_column(dataset: Any, column: str | None) -> None:
    """Refuse arrays where rows are to say whose they are, by the form of the records alone."""
    if column is not None and isinstance(dataset, Tokens):
        raise ValueError(
            f"Expected rows with {column!r}, which says whose they are, got arrays of tokens, "
            "which have no such column. Give rows, each a mapping with input_ids, labels and "
            f"{column!r}."
        )


def check_names(dataset: Any, column: str | None) -> None:
    """Refuse a table without the columns that are read, by its public names alone."""
    names = getattr(dataset, "column_names", None)
    if isinstance(dataset, Tokens) or not isinstance(names, list | tuple):
        return
    wanted = [("input_ids",), LABELS, *([] if column is None else [(column,)])]
    for allowed in wanted:
        if not set(allowed) & set(names):
            raise ValueError(
                "Expected a train_dataset with a column "
                f"{' or '.join(map(repr, allowed))}, got {', '.join(map(repr, names))}."
            )


def _within_limit(dataset: Any, unit: Unit, column: str) -> Array:
    """Which rows are among the first that their unit may have."""
    seen, kept = Counter[Any](), np.zeros(len(dataset), dtype=bool)
    for i in range(len(dataset)):
        try:
            one = _id(dataset[i][column])
            seen[one] += 1
            kept[i] = seen[one] <= unit.at_most
        except Exception:  # it does not say whose it is
            kept[i] = False
    return kept


def _id(value: Any) -> Any:
    """An id that equals itself: None and NaN, which does not, stand for a missing one."""
    found = np.asarray(value).item()
    if found is None or found != found:
        raise ValueError
    return found


def _cut(array: Array, form: Form, name: str) -> Array:
    """An array cut or filled up to the declared length."""
    found = np.full((len(array), form.length), form.pad if name == "input_ids" else 0, np.int64)
    width = min(form.length, array.shape[1])
    found[:, :width] = array[:, :width]
    return found


def _gathered(dataset: Any, form: Form) -> tuple[dict[str, Array], Ints, Array]:
    """Rows that are asked for one by one, cut and padded, and which of them could be read."""
    shape = len(dataset), form.length
    arrays = {name: np.zeros(shape, np.int64) for name in form.names}
    arrays["input_ids"][:] = form.pad
    labels, fits = np.zeros(len(dataset), np.int64), np.ones(len(dataset), dtype=bool)
    for i in range(len(dataset)):
        try:
            row = dataset[i]
            _gather(row, i, arrays, form)
            labels[i] = operator.index(np.asarray(_label(row)).item())
        except Exception:  # whatever it says may be of the record
            fits[i] = False
    return arrays, labels, fits


def _gather(row: Mapping[str, Any], i: int, arrays: Mapping[str, Array], form: Form) -> None:
    """Put one row in its place."""
    tokens = len(np.asarray(row["input_ids"]).reshape(-1)[: form.length])
    for name in form.names:
        if name == "attention_mask" and name not in row:
            arrays[name][i, :tokens] = 1
        elif name in row:
            arrays[name][i, :tokens] = np.asarray(row[name]).reshape(-1)[: form.length]


def _label(row: Mapping[str, Any]) -> Any:
    """The label of a row, by whichever name it has."""
    for name in LABELS:
        if name in row:
            return row[name]
    raise KeyError("labels")


def _in_range(values: Array, end: int) -> Array:
    """Which whole numbers stand for something."""
    found: Array = (values >= 0) & (values < end)
    return found

"""Tokenized texts of one declared length with a disk cache, and records of a trainer as arrays.

It also wraps Hugging Face models so that every layer has one row for each example.
"""

import hashlib
import inspect
import json
import operator
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from veracal import _checks
from veracal._checks import extra
from veracal._types import Array, Ints
from veracal.accounting import Unit
from veracal.data import (
    atomic_file,
    cache_folder,
    cache_secret,
    private_folder,
    translate_os_errors,
)
from veracal.errors import DataError
from veracal.neural.examples import IndexedRecords
from veracal.neural.module_checks import copy_module

LABELS = ("labels", "label", "label_ids")
_TYPES = {"input_ids": np.int32, "attention_mask": np.int8, "token_type_ids": np.int8}
_FORMAT = 1  # increase when this file computes different tokens


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

    def with_labels(self, labels: Any) -> "Tokens":
        """The same texts with labels."""
        return Tokens(self.arrays, np.asarray(labels), self.declared)


def tokenize(
    texts: Sequence[str] | Sequence[Sequence[str]] | Array,
    tokenizer: Any,
    *,
    max_length: int,
    labels: Any = None,
    cache: bool = False,
    folder: str | os.PathLike[str] | None = None,
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
    cache : bool
        Whether to store the tokens on disk and load them for the same texts the next time. The
        texts can be recovered from the file: it is readable by its owner only, and must be
        protected like the records.
    folder : path, optional
        Cache folder; by default ``$VERACAL_CACHE``, else the cache of the user.

    Guarantees
    ----------
    The tokens of a text depend on that text alone. Tokens from disk were written there under
    the same tokenizer, settings and texts, and are complete; otherwise they are computed again.
    Nothing is pickled.
    """
    _checks.whole(max_length=max_length, least=4)
    rows = [
        _text_pair(text)
        for text in (texts.tolist() if isinstance(texts, np.ndarray) else texts)
    ]
    backend = _configure_tokenizer(tokenizer, int(max_length))
    if not cache:
        arrays = _encode_texts(rows, backend, int(max_length), tokenizer)
    else:
        root = cache_folder(None if folder is None else Path(folder))
        secret = cache_secret(root)
        token_folder = private_folder(root / "tokens")
        key = _cache_key(rows, backend, int(max_length), tokenizer, secret)
        path = token_folder / f"{key}.npz"
        cached = _load_cached(path, len(rows), int(max_length))
        if cached is None:
            cached = _encode_texts(rows, backend, int(max_length), tokenizer)
            key_bytes = np.frombuffer(bytes.fromhex(key), np.uint8)
            content: dict[str, Any] = {"key": key_bytes, **cached}
            with atomic_file(path, force=True) as file:
                np.savez_compressed(file, **content)
        arrays = cached
    label_array = None if labels is None else np.asarray(labels)
    return Tokens(arrays, label_array, declared=True)


def _text_pair(text: Any) -> tuple[str, ...]:
    """A text or a pair, as a tuple."""
    pair = (text,) if isinstance(text, str) else tuple(text)
    if len(pair) not in (1, 2) or not all(isinstance(one, str) for one in pair):
        raise DataError(
            "texts",
            "a text or a pair of texts in each row",
            "another type",
            "Pass strings or pairs of strings.",
        )
    return pair


def _configure_tokenizer(tokenizer: Any, max_length: int) -> Any:
    """Copy of the tokenizer's backend, with truncation and without padding."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is None:
        raise ValueError(
            "Expected a fast tokenizer of transformers, as from load_tokenizer, got "
            f"{type(tokenizer).__name__}."
        )
    backend = extra("tokenizers", "text").Tokenizer.from_str(inner.to_str())
    backend.enable_truncation(max_length, strategy="longest_first")
    backend.no_padding()
    return backend


def _encode_texts(
    rows: list[tuple[str, ...]], backend: Any, max_length: int, tokenizer: Any
) -> dict[str, Array]:
    """Tokens, masks and token types of all texts."""
    shape = len(rows), max_length
    arrays: dict[str, Array] = {name: np.zeros(shape, kind) for name, kind in _TYPES.items()}
    arrays["input_ids"][:] = _pad_token(tokenizer)
    for i, row in enumerate(rows):
        # One at a time: a batch would start threads, which are not safe with a later fork.
        text = backend.encode(*row)
        end = len(text.ids)
        arrays["input_ids"][i, :end] = text.ids
        arrays["attention_mask"][i, :end] = text.attention_mask
        arrays["token_type_ids"][i, :end] = text.type_ids
    return arrays


def _pad_token(tokenizer: Any) -> int:
    """Id of the padding token."""
    pad = getattr(tokenizer, "pad_token_id", None)
    return 0 if pad is None else int(pad)


def _cache_key(
    rows: list[tuple[str, ...]], backend: Any, max_length: int, tokenizer: Any, secret: bytes
) -> str:
    """Hash of everything that the tokens depend on, keyed by the cache's secret."""
    settings = {
        "form": _FORMAT,
        "max_length": max_length,
        "pad": _pad_token(tokenizer),
        "tokenizers": str(extra("tokenizers", "text").__version__),
    }
    written = json.dumps(settings, sort_keys=True).encode()
    digest = hashlib.blake2b(written, key=secret, digest_size=32)

    def update(part: bytes) -> None:
        # With its length, so that no two lists of texts give the same bytes.
        digest.update(len(part).to_bytes(8, "little") + part)

    update(backend.to_str().encode())
    for row in rows:
        update(len(row).to_bytes(1, "little"))
        for text in row:
            update(text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _load_cached(path: Path, n: int, max_length: int) -> dict[str, Array] | None:
    """Load tokens from disk; None if they are missing, different or incomplete."""
    if not path.exists():
        return None
    try:
        with (
            translate_os_errors(path),
            path.open("rb") as file,
            np.load(file, allow_pickle=False) as archive,
        ):
            arrays = {name: np.asarray(archive[name]) for name in _TYPES}
            key = archive["key"].tobytes().hex()
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        return None  # damaged: every array has a checksum
    valid = all(
        one.shape == (n, max_length) and one.dtype == _TYPES[name]
        for name, one in arrays.items()
    )
    return arrays if valid and key == path.stem else None


NAMES = ("input_ids", "attention_mask", "token_type_ids")
_TOLERANCE = 1e-4  # of the spread of logits, between the two mask shapes


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
        mask = inputs.get("attention_mask")
        if self.four_axes and mask is not None:
            inputs = {**inputs, "attention_mask": _four_axis_mask(mask, self.causal)}
        with _expand_lookups(self.model, len(inputs["input_ids"])):
            outputs: Tensor = self.model(**inputs).logits
        return outputs

    def choose_mask_shape(self, inputs: Mapping[str, Tensor]) -> None:
        """Use four-axis masks if they give the same logits for synthetic examples."""
        trial = copy_module(self).eval()
        with torch.no_grad():
            for one in trial.parameters():  # a zero head would hide differences
                if one.requires_grad:  # frozen parameters are shared with the model
                    one.add_(0.1 * torch.randn_like(one))
        for causal in (False, True):
            self.four_axes, self.causal = trial._accepts_mask(inputs, causal=causal), causal
            if self.four_axes:
                return
        self.causal = False

    def _accepts_mask(self, inputs: Mapping[str, Tensor], *, causal: bool) -> bool:
        """Return whether four-axis masks give the same logits as two-axis masks."""
        outputs = []
        try:
            with torch.no_grad():
                for four_axes in (False, True):
                    self.four_axes, self.causal = four_axes, causal
                    outputs.append(self(**inputs))
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
            return False
        two_axis, four_axis = outputs
        gap = float((four_axis - two_axis).abs().max())
        return gap <= _TOLERANCE * max(1e-6, float(two_axis.std(0).max()))


def _four_axis_mask(mask: Tensor, causal: bool) -> Tensor:
    """Convert a mask of shape (n, t) to an additive mask of shape (n, 1, t, t)."""
    t, least = mask.shape[1], torch.finfo(torch.float32).min
    hidden = ((1.0 - mask.to(torch.float32)) * least)[:, None, None, :].expand(-1, 1, t, -1)
    if not causal:
        return hidden
    # The minimum, since the sum would be infinite.
    return torch.minimum(hidden, torch.full((t, t), least).triu(1))


@contextmanager
def _expand_lookups(model: nn.Module, examples: int) -> Iterator[None]:
    """Inside the block, embedding tables repeat shared lookups for every example."""

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


def forward_arguments(model: nn.Module) -> tuple[str, ...]:
    """Names of a model's inputs, also behind adapters."""
    inner: Any = getattr(model, "get_base_model", lambda: model)()
    return tuple(inspect.signature(inner.forward).parameters)


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


TYPES = "token_type_ids"


@dataclass(frozen=True)
class TextFormat:
    """Public format of the texts of a training.

    Attributes
    ----------
    names : tuple of str
        Inputs of the model.
    length : int
        Tokens of every text.
    vocabulary, classes : int
        Numbers of tokens and labels.
    pad : int
        Padding token.
    """

    names: tuple[str, ...]
    length: int
    vocabulary: int
    classes: int
    pad: int


def as_dataset(mapping: Any) -> Any:
    """Wrap a mapping of arrays as a data set with rows by index."""
    if isinstance(mapping, Mapping) and "input_ids" in mapping:
        return Tokens.of(mapping)
    return mapping


def text_format(
    dataset: Any, model: nn.Module, max_length: int | None, pad: int | None
) -> TextFormat:
    """Format of the records, from public information; no record is read.

    Parameters
    ----------
    dataset : Tokens, or any indexable data set with a length
    model : torch.nn.Module
    max_length : int, optional
        Declared length; required except for :class:`Tokens`, which have one length.
    pad : int, optional
        Padding token of the tokenizer.

    Raises
    ------
    ValueError
        If the data set has no length, or the length of its texts is not declared.
    """
    if dataset is None:
        raise ValueError("Expected a train_dataset, got None.")
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
        raise ValueError(
            "Expected a train_dataset with a length and indices, so that records can be drawn "
            f"independently, got {type(dataset).__name__}."
        )
    config: Any = model.config
    # For some models without token types, type 0 would have a meaning.
    has_types = int(getattr(config, "type_vocab_size", 0) or 0) >= 1
    accepted = tuple(name for name in forward_arguments(model) if name != TYPES or has_types)
    if isinstance(dataset, Tokens):
        names, length = _tokens_format(dataset, accepted, max_length)
    elif max_length is None:
        raise ValueError(
            "Expected a declared max_length, got None: the length of the records is private. "
            "Pass PrivacyArguments(max_length=...), or tokenize with "
            "veracal.neural.tokenize."
        )
    else:
        names, length = tuple(name for name in NAMES if name in accepted), int(max_length)
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


def _tokens_format(
    tokens: Tokens, accepted: tuple[str, ...], max_length: int | None
) -> tuple[tuple[str, ...], int]:
    """Names and length of tokens."""
    if max_length is None and not tokens.declared:
        raise ValueError(
            "Expected a declared max_length, got None: arrays may be as long as the longest "
            "text, which is private. Pass PrivacyArguments(max_length=...), or tokenize with "
            "veracal.neural.tokenize."
        )
    if tokens.labels is None:
        raise ValueError("Expected arrays with labels to train on, got none named 'labels'.")
    if "attention_mask" in accepted and "attention_mask" not in tokens.arrays:
        raise ValueError("Expected an array 'attention_mask', which marks padding, got none.")
    names = tuple(name for name in NAMES if name in tokens.arrays and name in accepted)
    return names, tokens.length if max_length is None else int(max_length)


def load_records(
    dataset: Any, text_form: TextFormat, unit: Unit | None = None, column: str | None = None
) -> IndexedRecords:
    """Read all records, and exclude those that do not match the declaration.

    Excluded are records with tokens or labels out of range, that cannot be read as integers, or
    without a unit id, and all rows of a unit after the first ``unit.at_most``. They contribute
    nothing, as if they were absent: an error would reveal, after the charge, that such a record
    exists.

    Parameters
    ----------
    dataset : Tokens, or any indexable data set with a length
    text_form : TextFormat
    unit : Unit, optional
    column : str, optional
        Name of the field with the unit id.

    Guarantees
    ----------
    No error depends on a record. Whether a record is kept depends on that record alone, or on
    the rows of its unit alone.
    """
    if isinstance(dataset, Tokens):
        assert dataset.labels is not None
        arrays = {
            name: _fit_length(dataset.arrays[name], text_form, name) for name in text_form.names
        }
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


def check_unit_column(dataset: Any, column: str | None) -> None:
    """Reject a unit column with arrays, which have no such field."""
    if column is not None and isinstance(dataset, Tokens):
        raise ValueError(
            f"Expected rows with the unit column {column!r}, got arrays of tokens, which have "
            f"no such column. Pass rows, each a mapping with input_ids, labels and {column!r}."
        )


def check_column_names(dataset: Any, column: str | None) -> None:
    """Reject a table without the required columns, by its public column names."""
    names = getattr(dataset, "column_names", None)
    if isinstance(dataset, Tokens) or not isinstance(names, list | tuple):
        return
    required = [("input_ids",), LABELS, *([] if column is None else [(column,)])]
    for allowed in required:
        if not set(allowed) & set(names):
            raise ValueError(
                "Expected a train_dataset with a column "
                f"{' or '.join(map(repr, allowed))}, got {', '.join(map(repr, names))}."
            )


def _within_unit_limit(dataset: Any, unit: Unit, column: str) -> Array:
    """Mark the rows that are among the first ``unit.at_most`` of their unit."""
    seen, kept = Counter[Any](), np.zeros(len(dataset), dtype=bool)
    for i in range(len(dataset)):
        try:
            unit_id = _unit_id(dataset[i][column])
            seen[unit_id] += 1
            kept[i] = seen[unit_id] <= unit.at_most
        except Exception:  # without a unit id
            kept[i] = False
    return kept


def _unit_id(value: Any) -> Any:
    """Return an id; None and NaN are missing ids."""
    unit_id = np.asarray(value).item()
    if unit_id is None or unit_id != unit_id:
        raise ValueError
    return unit_id


def _fit_length(array: Array, text_form: TextFormat, name: str) -> Array:
    """Truncate or pad an array to the declared length."""
    fitted = np.full(
        (len(array), text_form.length), text_form.pad if name == "input_ids" else 0, np.int64
    )
    width = min(text_form.length, array.shape[1])
    fitted[:, :width] = array[:, :width]
    return fitted


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

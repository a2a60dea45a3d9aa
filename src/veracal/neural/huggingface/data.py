"""Texts as tokens of one declared length, kept on disk for the next time.

Models of Hugging Face, called so that every layer has one row for each example.

Records of a trainer as arrays of one declared form.
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
from veracal.data import cache_folder, cache_secret, no_surprises, placed, private_folder
from veracal.errors import DataError
from veracal.neural.module_checks import copy_module
from veracal.neural.synthetic_inputs import IndexedRecords

LABELS = ("labels", "label", "label_ids")
_TYPES = {"input_ids": np.int32, "attention_mask": np.int8, "token_type_ids": np.int8}
_FORM = 1  # raise whenever the same texts would get other tokens from this file


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds records
class Tokens:
    """Tokenized texts of one length: rows for a trainer, and arrays for everything else.

    Attributes
    ----------
    arrays : mapping of str to array of ints, of shape (n, length)
        Under the names that models of Hugging Face give them, ``input_ids`` among them.
    labels : array of ints, of shape (n,), optional
    declared : bool
        Whether the length is a declared one, and not that of the longest text.
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
                "Give positions among the classes, in the order of the texts.",
            )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Tokens":
        """From a mapping of names to arrays, labels among them or not."""
        named = [name for name in LABELS if name in given]
        labels = np.asarray(given[named[0]]) if named else None
        arrays = {name: np.asarray(one) for name, one in given.items() if name in _TYPES}
        other = set(given) - set(arrays) - set(LABELS)
        if other:
            raise DataError(
                ", ".join(sorted(other)),
                f"arrays named {', '.join(_TYPES)} and labels",
                "others",
                "Leave them out: positions are those of the model.",
            )
        return cls(arrays, labels)

    @property
    def length(self) -> int:
        """Tokens of every text."""
        return int(self.arrays["input_ids"].shape[1])

    def __len__(self) -> int:
        return len(self.arrays["input_ids"])

    def __getitem__(self, row: int) -> dict[str, Any]:
        found: dict[str, Any] = {
            name: one[row].astype(np.int64) for name, one in self.arrays.items()
        }
        if self.labels is not None:
            found["labels"] = int(self.labels[row])
        return found

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
    """Split texts into tokens, each by itself, padded to one length.

    Parameters
    ----------
    texts : sequence of str, or of pairs of str; or an array of them of shape (n, 1) or (n, 2)
    tokenizer : transformers.PreTrainedTokenizerFast
        As from :func:`load_tokenizer`.
    max_length : int
        Tokens of every text. Longer texts are cut, the longer half of a pair first.
    labels : sequence of int, optional
    cache : bool
        Whether to keep the tokens on disk, and take them from there the next time the same
        texts are asked for. The file can be turned back into the texts: it is for its owner's
        eyes only, and is to be kept as the records are.
    folder : path, optional
        Where files are kept; by default ``$VERACAL_CACHE``, else the cache of the user.

    Guarantees
    ----------
    The tokens of a text depend on that text alone. What comes from the disk was written there
    under the same tokenizer, settings and texts, and is whole; otherwise it is made anew.
    Nothing is pickled.
    """
    _checks.whole(max_length=max_length, least=4)
    rows = [
        _text_pair(text)
        for text in (texts.tolist() if isinstance(texts, np.ndarray) else texts)
    ]
    words = _configure_tokenizer(tokenizer, int(max_length))
    if not cache:
        arrays = _encode_texts(rows, words, int(max_length), tokenizer)
    else:
        place = cache_folder(None if folder is None else Path(folder))
        secret = cache_secret(place)
        kept = private_folder(place / "tokens")
        path = kept / f"{_cache_key(rows, words, int(max_length), tokenizer, secret)}.npz"
        found = _load_cached(path, len(rows), int(max_length))
        arrays = (
            _encode_texts(rows, words, int(max_length), tokenizer) if found is None else found
        )
        if found is None:
            _save_cached(path, arrays)
    told = None if labels is None else np.asarray(labels)
    return Tokens(arrays, told, declared=True)


def _text_pair(text: Any) -> tuple[str, ...]:
    """A text or a pair, as a tuple."""
    row = (text,) if isinstance(text, str) else tuple(text)
    if len(row) not in (1, 2) or not all(isinstance(one, str) for one in row):
        raise DataError(
            "texts",
            "a text or a pair of texts in each row",
            "something else",
            "Name the texts.",
        )
    return row


def _configure_tokenizer(tokenizer: Any, max_length: int) -> Any:
    """The tokenizer's own engine, cutting texts and padding none; a copy."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is None:
        raise ValueError(
            "Expected a fast tokenizer of transformers, as load_tokenizer gives, got "
            f"{type(tokenizer).__name__}."
        )
    words = extra("tokenizers", "text").Tokenizer.from_str(inner.to_str())
    words.enable_truncation(max_length, strategy="longest_first")
    words.no_padding()
    return words


def _encode_texts(
    rows: list[tuple[str, ...]], words: Any, max_length: int, tokenizer: Any
) -> dict[str, Array]:
    """Tokens, masks and kinds of all texts."""
    shape = len(rows), max_length
    arrays: dict[str, Array] = {name: np.zeros(shape, kind) for name, kind in _TYPES.items()}
    arrays["input_ids"][:] = _pad_token(tokenizer)
    for i, row in enumerate(rows):
        # One at a time: a batch would start threads that a later fork trips over.
        text = words.encode(*row)
        end = len(text.ids)
        arrays["input_ids"][i, :end] = text.ids
        arrays["attention_mask"][i, :end] = text.attention_mask
        arrays["token_type_ids"][i, :end] = text.type_ids
    return arrays


def _pad_token(tokenizer: Any) -> int:
    """The token that fills a text up."""
    pad = getattr(tokenizer, "pad_token_id", None)
    return 0 if pad is None else int(pad)


def _cache_key(
    rows: list[tuple[str, ...]], words: Any, max_length: int, tokenizer: Any, secret: bytes
) -> str:
    """Hash everything that the tokens depend on into a file name, under the cache's key."""
    settings = {
        "form": _FORM,
        "max_length": max_length,
        "pad": _pad_token(tokenizer),
        "tokenizers": str(extra("tokenizers", "text").__version__),
    }
    written = json.dumps(settings, sort_keys=True).encode()
    digest = hashlib.blake2b(written, key=secret, digest_size=32)
    for part in _key_parts(rows, words):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _key_parts(rows: list[tuple[str, ...]], words: Any) -> Iterator[bytes]:
    """The tokenizer and all texts, none of which runs into the next."""
    yield words.to_str().encode()
    for row in rows:
        yield len(row).to_bytes(1, "little")
        for text in row:
            yield text.encode("utf-8", "surrogatepass")


def _load_cached(path: Path, n: int, max_length: int) -> dict[str, Array] | None:
    """Tokens from the disk; None where there are none, or not these, or not whole."""
    if not path.exists():
        return None
    try:
        with (
            no_surprises(path),
            path.open("rb") as file,
            np.load(file, allow_pickle=False) as found,
        ):
            arrays = {name: np.asarray(found[name]) for name in _TYPES}
            key = found["key"].tobytes().hex()
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        return None  # damaged: every array in it has a checksum
    good = all(
        one.shape == (n, max_length) and one.dtype == _TYPES[name]
        for name, one in arrays.items()
    )
    return arrays if good and key == path.stem else None


def _save_cached(path: Path, arrays: Mapping[str, Array]) -> None:
    """Put tokens on the disk, whole or not at all."""
    named: dict[str, Any] = {"key": np.frombuffer(bytes.fromhex(path.stem), np.uint8), **arrays}
    with placed(path, force=True) as file:
        np.savez_compressed(file, **named)


NAMES = ("input_ids", "attention_mask", "token_type_ids")
_CLOSE = 1e-4  # of the spread of logits, by which another form of the mask may move them


class SequenceClassifierModule(nn.Module):
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
            inputs = {**inputs, "attention_mask": _four_axis_mask(mask, self.causal)}
        with _expand_lookups(self.model, len(inputs["input_ids"])):
            made: Tensor = self.model(**inputs).logits
        return made

    def settle(self, inputs: Mapping[str, Tensor]) -> None:
        """Give masks of four axes if the model makes the same of them, on made-up examples."""
        trial = copy_module(self).eval()
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


def _four_axis_mask(mask: Tensor, causal: bool) -> Tensor:
    """A mask of shape (n, t) as what is added to attention, of shape (n, 1, t, t)."""
    t, least = mask.shape[1], torch.finfo(torch.float32).min
    hidden = ((1.0 - mask.to(torch.float32)) * least)[:, None, None, :].expand(-1, 1, t, -1)
    if not causal:
        return hidden
    # The lesser of the two, as their sum would be infinite.
    return torch.minimum(hidden, torch.full((t, t), least).triu(1))


@contextmanager
def _expand_lookups(model: nn.Module, examples: int) -> Iterator[None]:
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


def forward_arguments(model: nn.Module) -> tuple[str, ...]:
    """Names of what a model takes, also where adapters are around it."""
    inner: Any = getattr(model, "get_base_model", lambda: model)()
    return tuple(inspect.signature(inner.forward).parameters)


def synthetic_texts(
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


TYPES = "token_type_ids"


@dataclass(frozen=True)
class TextFormat:
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


def text_format(
    dataset: Any, model: nn.Module, max_length: int | None, pad: int | None
) -> TextFormat:
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
    taken = tuple(
        name for name in forward_arguments(model) if name != TYPES or _uses_token_types(config)
    )
    if isinstance(dataset, Tokens):
        names, length = _tokens_format(dataset, taken, max_length)
    elif max_length is None:
        raise ValueError(
            "Expected a declared max_length, got None: how long the records are is private. "
            "Give PrivacyArguments(max_length=...), or tokenize with "
            "veracal.neural.tokenize."
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
    return TextFormat(
        names, length, int(config.vocab_size), int(config.num_labels), filler or 0
    )


def _uses_token_types(config: Any) -> bool:
    """Whether a model tells kinds of tokens apart; for some, kind 0 would mean something."""
    return int(getattr(config, "type_vocab_size", 0) or 0) >= 1


def _tokens_format(
    tokens: Tokens, taken: tuple[str, ...], max_length: int | None
) -> tuple[tuple[str, ...], int]:
    """Names and length of tokens."""
    if max_length is None and not tokens.declared:
        raise ValueError(
            "Expected a declared max_length, got None: arrays may be as long as the longest "
            "text, which is private. Give PrivacyArguments(max_length=...), or tokenize with "
            "veracal.neural.tokenize."
        )
    if tokens.labels is None:
        raise ValueError("Expected arrays with labels to train on, got none named 'labels'.")
    if "attention_mask" in taken and "attention_mask" not in tokens.arrays:
        raise ValueError(
            "Expected an array 'attention_mask' that tells tokens from padding, got none."
        )
    names = tuple(name for name in NAMES if name in tokens.arrays and name in taken)
    return names, tokens.length if max_length is None else int(max_length)


def load_records(
    dataset: Any, form: TextFormat, unit: Unit | None = None, column: str | None = None
) -> IndexedRecords:
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
        arrays = {name: _fit_length(dataset.arrays[name], form, name) for name in form.names}
        labels: Ints = np.asarray(dataset.labels, np.int64)
        fits = np.ones(len(labels), dtype=bool)
    else:
        arrays, labels, fits = _gather_rows(dataset, form)
    fits &= _in_range(arrays["input_ids"], form.vocabulary).all(axis=1)
    fits &= _in_range(labels, form.classes)
    if column is not None:
        fits &= _within_unit_limit(dataset, unit or Unit(), column)
    return IndexedRecords({name: arrays[name][fits] for name in form.names}, labels[fits])


def check_unit_column(dataset: Any, column: str | None) -> None:
    """Refuse arrays where rows are to say whose they are, by the form of the records alone."""
    if column is not None and isinstance(dataset, Tokens):
        raise ValueError(
            f"Expected rows with {column!r}, which says whose they are, got arrays of tokens, "
            "which have no such column. Give rows, each a mapping with input_ids, labels and "
            f"{column!r}."
        )


def check_column_names(dataset: Any, column: str | None) -> None:
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


def _within_unit_limit(dataset: Any, unit: Unit, column: str) -> Array:
    """Which rows are among the first that their unit may have."""
    seen, kept = Counter[Any](), np.zeros(len(dataset), dtype=bool)
    for i in range(len(dataset)):
        try:
            one = _unit_id(dataset[i][column])
            seen[one] += 1
            kept[i] = seen[one] <= unit.at_most
        except Exception:  # it does not say whose it is
            kept[i] = False
    return kept


def _unit_id(value: Any) -> Any:
    """An id that equals itself: None and NaN, which does not, stand for a missing one."""
    found = np.asarray(value).item()
    if found is None or found != found:
        raise ValueError
    return found


def _fit_length(array: Array, form: TextFormat, name: str) -> Array:
    """An array cut or filled up to the declared length."""
    found = np.full((len(array), form.length), form.pad if name == "input_ids" else 0, np.int64)
    width = min(form.length, array.shape[1])
    found[:, :width] = array[:, :width]
    return found


def _gather_rows(dataset: Any, form: TextFormat) -> tuple[dict[str, Array], Ints, Array]:
    """Rows that are asked for one by one, cut and padded, and which of them could be read."""
    shape = len(dataset), form.length
    arrays = {name: np.zeros(shape, np.int64) for name in form.names}
    arrays["input_ids"][:] = form.pad
    labels, fits = np.zeros(len(dataset), np.int64), np.ones(len(dataset), dtype=bool)
    for i in range(len(dataset)):
        try:
            row = dataset[i]
            _copy_row(row, i, arrays, form)
            labels[i] = operator.index(np.asarray(_find_label(row)).item())
        except Exception:  # whatever it says may be of the record
            fits[i] = False
    return arrays, labels, fits


def _copy_row(
    row: Mapping[str, Any], i: int, arrays: Mapping[str, Array], form: TextFormat
) -> None:
    """Put one row in its place."""
    tokens = len(np.asarray(row["input_ids"]).reshape(-1)[: form.length])
    for name in form.names:
        if name == "attention_mask" and name not in row:
            arrays[name][i, :tokens] = 1
        elif name in row:
            arrays[name][i, :tokens] = np.asarray(row[name]).reshape(-1)[: form.length]


def _find_label(row: Mapping[str, Any]) -> Any:
    """The label of a row, by whichever name it has."""
    for name in LABELS:
        if name in row:
            return row[name]
    raise KeyError("labels")


def _in_range(values: Array, end: int) -> Array:
    """Which whole numbers stand for something."""
    found: Array = (values >= 0) & (values < end)
    return found

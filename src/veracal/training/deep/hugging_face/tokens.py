"""Texts as tokens of one declared length, kept on disk for the next time."""

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from veracal import _checks
from veracal._checks import extra
from veracal._types import Array, Ints
from veracal.data.files import placed
from veracal.data.limits import no_surprises
from veracal.data.places import cache_folder, cache_secret, private_folder
from veracal.errors import DataError

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
                    "Tokenize with veracal.training.deep.hugging_face.tokenized.",
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


def tokenized(
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
    rows = [_row(text) for text in (texts.tolist() if isinstance(texts, np.ndarray) else texts)]
    words = _settled(tokenizer, int(max_length))
    if not cache:
        arrays = _encoded(rows, words, int(max_length), tokenizer)
    else:
        place = cache_folder(None if folder is None else Path(folder))
        secret = cache_secret(place)
        kept = private_folder(place / "tokens")
        path = kept / f"{_key(rows, words, int(max_length), tokenizer, secret)}.npz"
        found = _read(path, len(rows), int(max_length))
        arrays = _encoded(rows, words, int(max_length), tokenizer) if found is None else found
        if found is None:
            _write(path, arrays)
    told = None if labels is None else np.asarray(labels)
    return Tokens(arrays, told, declared=True)


def _row(text: Any) -> tuple[str, ...]:
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


def _settled(tokenizer: Any, max_length: int) -> Any:
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


def _encoded(
    rows: list[tuple[str, ...]], words: Any, max_length: int, tokenizer: Any
) -> dict[str, Array]:
    """Tokens, masks and kinds of all texts."""
    shape = len(rows), max_length
    arrays: dict[str, Array] = {name: np.zeros(shape, kind) for name, kind in _TYPES.items()}
    arrays["input_ids"][:] = _pad(tokenizer)
    for i, row in enumerate(rows):
        # One at a time: a batch would start threads that a later fork trips over.
        text = words.encode(*row)
        end = len(text.ids)
        arrays["input_ids"][i, :end] = text.ids
        arrays["attention_mask"][i, :end] = text.attention_mask
        arrays["token_type_ids"][i, :end] = text.type_ids
    return arrays


def _pad(tokenizer: Any) -> int:
    """The token that fills a text up."""
    pad = getattr(tokenizer, "pad_token_id", None)
    return 0 if pad is None else int(pad)


def _key(
    rows: list[tuple[str, ...]], words: Any, max_length: int, tokenizer: Any, secret: bytes
) -> str:
    """Hash everything that the tokens depend on into a file name, under the cache's key."""
    settings = {
        "form": _FORM,
        "max_length": max_length,
        "pad": _pad(tokenizer),
        "tokenizers": str(extra("tokenizers", "text").__version__),
    }
    written = json.dumps(settings, sort_keys=True).encode()
    digest = hashlib.blake2b(written, key=secret, digest_size=32)
    for part in _parts(rows, words):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _parts(rows: list[tuple[str, ...]], words: Any) -> Iterator[bytes]:
    """The tokenizer and all texts, none of which runs into the next."""
    yield words.to_str().encode()
    for row in rows:
        yield len(row).to_bytes(1, "little")
        for text in row:
            yield text.encode("utf-8", "surrogatepass")


def _read(path: Path, n: int, max_length: int) -> dict[str, Array] | None:
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


def _write(path: Path, arrays: Mapping[str, Array]) -> None:
    """Put tokens on the disk, whole or not at all."""
    named: dict[str, Any] = {"key": np.frombuffer(bytes.fromhex(path.stem), np.uint8), **arrays}
    with placed(path, force=True) as file:
        np.savez_compressed(file, **named)

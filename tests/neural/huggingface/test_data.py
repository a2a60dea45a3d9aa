"""Tokens of one length, loaded from disk unchanged or not at all."""

import stat

import numpy as np
import pytest

from veracal.errors import DataError
from veracal.neural import Tokens, minilm_tokenizer, tokenize
from veracal.neural.huggingface import data as module

TEXTS = ["a fine film", "dull", "", "a text that is too long to be read to its very end"]


@pytest.fixture(scope="module")
def tokenizer():
    return minilm_tokenizer()


def kept(folder):
    return list((folder / "tokens").iterdir())


def test_tokens_equal_those_of_the_tokenizer(tokenizer):
    result = tokenize(TEXTS, tokenizer, max_length=8)
    theirs = tokenizer(TEXTS, padding="max_length", truncation=True, max_length=8)
    for name, one in result.arrays.items():
        np.testing.assert_array_equal(one, theirs[name])
    assert len(result) == 4 and result.length == 8 and result.labels is None


def test_pairs_have_two_token_types(tokenizer):
    pairs = np.array([["who?", "me"], ["why so?", "because of this and that and those"]])
    result = tokenize(pairs, tokenizer, max_length=8, labels=[0, 1])
    theirs = tokenizer(
        *pairs.T.tolist(), padding="max_length", truncation="longest_first", max_length=8
    )
    np.testing.assert_array_equal(result.arrays["input_ids"], theirs["input_ids"])
    np.testing.assert_array_equal(result.arrays["token_type_ids"], theirs["token_type_ids"])
    assert result[1]["labels"] == 1 and result[1]["input_ids"].dtype == np.int64


def test_the_same_texts_are_not_tokenized_twice(tokenizer, tmp_path, monkeypatch):
    first = tokenize(TEXTS, tokenizer, max_length=8, cache=True, folder=tmp_path)
    (path,) = kept(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    monkeypatch.setattr(module, "_encode_texts", lambda *_: pytest.fail("tokenized again"))
    again = tokenize(
        TEXTS, tokenizer, max_length=8, cache=True, folder=tmp_path, labels=[0] * 4
    )
    for name, one in first.arrays.items():
        np.testing.assert_array_equal(one, again.arrays[name])
        assert one.dtype == again.arrays[name].dtype


def test_other_texts_lengths_and_tokenizers_have_separate_files(tokenizer, tmp_path):
    def keep(texts, length=8, by=tokenizer):
        tokenize(texts, by, max_length=length, cache=True, folder=tmp_path)
        return len(kept(tmp_path))

    other = minilm_tokenizer()
    other.add_tokens(["film"])
    result = [
        keep(TEXTS),
        keep(TEXTS[::-1]),
        keep(TEXTS, 9),
        keep([("a", "b")]),
        keep(["a", "b"]),
        keep(["ab", ""]),
        keep(TEXTS, by=other),
    ]
    assert result == list(range(1, 8))


@pytest.mark.parametrize("damage", ["cut", "changed", "other", "pickle"])
def test_a_damaged_file_is_replaced(tokenizer, tmp_path, damage):
    first = tokenize(TEXTS, tokenizer, max_length=8, cache=True, folder=tmp_path)
    (path,) = kept(tmp_path)
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "changed":
        path.write_bytes(data[:80] + bytes([data[80] ^ 255]) + data[81:])
    elif damage == "other":  # a whole file that belongs to other texts
        tokenize(TEXTS[::-1], tokenizer, max_length=8, cache=True, folder=tmp_path)
        (other,) = set(kept(tmp_path)) - {path}
        path.write_bytes(other.read_bytes())
    else:
        with path.open("wb") as file:
            np.savez(file, key=np.array([{"a": 1}], dtype=object))
    again = tokenize(TEXTS, tokenizer, max_length=8, cache=True, folder=tmp_path)
    np.testing.assert_array_equal(first.arrays["input_ids"], again.arrays["input_ids"])
    assert path.read_bytes()[:80] == data[:80]


def test_a_failed_write_leaves_no_file(tokenizer, tmp_path, monkeypatch):
    def fails(file, **arrays):
        file.write(b"half")
        raise MemoryError

    monkeypatch.setattr(module.np, "savez_compressed", fails)
    with pytest.raises(MemoryError):
        tokenize(TEXTS, tokenizer, max_length=8, cache=True, folder=tmp_path)
    assert kept(tmp_path) == []


def test_values_that_are_not_texts_are_rejected(tokenizer):
    with pytest.raises(DataError, match="a text or a pair"):
        tokenize([("a", "b", "c")], tokenizer, max_length=8)
    with pytest.raises(ValueError, match="a fast tokenizer"):
        tokenize(TEXTS, object(), max_length=8)


def test_arrays_must_have_matching_shapes():
    ids = np.zeros((3, 4), int)
    with pytest.raises(DataError, match="attention_mask"):
        Tokens.of({"input_ids": ids, "attention_mask": np.zeros((3, 5), int)})
    with pytest.raises(DataError, match="one whole number for each text"):
        Tokens.of({"input_ids": ids, "labels": [1, 2]})
    with pytest.raises(DataError, match="position_ids"):
        Tokens.of({"input_ids": ids, "position_ids": ids})
    assert len(Tokens.of({"input_ids": ids, "labels": [0, 1, 0]})) == 3

"""Tokens of one length, loaded from disk unchanged or not at all."""

import numpy as np
import pytest

from veracal.errors import DataError
from veracal.neural import Tokens, minilm_tokenizer, tokenize

TEXTS = ["a fine film", "dull", "", "a text that is too long to be read to its very end"]


@pytest.fixture(scope="module")
def tokenizer():
    return minilm_tokenizer()


def list_cache(folder):
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

"""One call loads tables, images and sentences, by what was declared of them."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from veracal._types import Frozen
from veracal.data import (
    Dataset,
    Group,
    ImageForm,
    Number,
    Schema,
    Scores,
    Target,
    TextForm,
    load,
)

FORM = ImageForm(
    classes=("a", "b"),
    height=4,
    width=4,
    mode="grey",
    patterns=(r"(?P<part>train|test)/(?P<label>[ab])/.+\.png",),
)


def test_images_load_by_their_form(tmp_path: Path) -> None:
    for part, label in (("train", "a"), ("train", "b"), ("test", "a")):
        (tmp_path / part / label).mkdir(parents=True)
        Image.new("L", (4, 4), 9).save(tmp_path / part / label / "1.png")
    assert load(tmp_path, schema=FORM).X.shape == (3, 4, 4)
    assert len(load(tmp_path, schema=FORM, part="train")) == 2
    with pytest.raises(ValueError, match="no variant"):
        load(tmp_path, schema=FORM, variant="code")


def test_sentences_load_by_their_form(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("s\ty\ngood\t1\nbad\t0\n")
    form = TextForm(text=("s",), label="y", classes=("0", "1"))
    assert load(tmp_path / "t.tsv", schema=form).X[:, 0].tolist() == ["good", "bad"]
    with pytest.raises(ValueError, match="no part"):
        load(tmp_path / "t.tsv", schema=form, part="train")


def test_records_cross_process_boundaries() -> None:
    group = {"g": Group(np.array([0, 1]), ("x", "y"))}
    data = Dataset(np.zeros((2, 1)), np.array([0, 1]), ("a", "b"), groups=group)
    schema = Schema({"x": Number(0, 1), "y": Target((0, 1))})
    scores = Scores.from_logits(np.zeros((2, 2)), groups=group)
    again = pickle.loads(pickle.dumps((data, schema, scores, FORM)))
    assert again[1] == schema and again[3] == FORM
    assert again[0].groups["g"].codes.tolist() == [0, 1]
    assert again[2].groups["g"].names == ("x", "y")


def test_mappings_stay_as_they_are() -> None:
    given = {"a": 1}
    mapping = Frozen(given)
    given["a"] = 2
    assert mapping == {"a": 1} and repr(mapping) == "{'a': 1}" and len(mapping) == 1
    with pytest.raises(TypeError, match="item assignment"):
        mapping["a"] = 2  # type: ignore[index]

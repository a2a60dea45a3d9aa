"""Scores know what they hold, and convert it exactly."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import softmax

from veracal.data import Group, Limits, Scores
from veracal.data.readers.score_files import load_scores, scan_scores
from veracal.errors import DataError, LimitError

LOGITS = np.array([[2.0, 1.0, 0.0], [0.0, 0.0, 3.0], [1.0, 1.0, 1.0]])


def test_logits_become_probabilities_and_stay_logits() -> None:
    scores = Scores.from_logits(LOGITS, [0, 2, 1])
    np.testing.assert_array_equal(scores.logits, LOGITS)
    np.testing.assert_allclose(scores.probabilities, softmax(LOGITS, axis=1), rtol=1e-15)
    np.testing.assert_allclose(
        np.exp(scores.log_probabilities), scores.probabilities, rtol=1e-14
    )
    assert scores.predictions.tolist() == [0, 2, 0]  # the first of equal ones
    assert scores.correct.tolist() == [True, True, False]
    np.testing.assert_allclose(scores.confidence, softmax(LOGITS, axis=1).max(axis=1))


@given(arrays(np.float64, (4, 3), elements=st.floats(1e-300, 1)))
def test_probabilities_survive_the_way_through_logits(raw: np.ndarray) -> None:
    given_ = raw / raw.sum(axis=1, keepdims=True)
    scores = Scores.from_probabilities(given_)
    assert (scores.probabilities == given_).all()
    back = Scores.from_logits(np.maximum(scores.logits, -1e9)).probabilities
    np.testing.assert_allclose(back, given_, rtol=1e-12, atol=1e-300)


def test_certainty_has_a_logit_of_minus_infinity() -> None:
    scores = Scores.from_probabilities([[1.0, 0.0]])
    assert scores.logits.tolist() == [[0, -np.inf]]
    assert scores.confidence.tolist() == [1]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f8", int])
def test_dtypes(dtype: object) -> None:
    scores = Scores.from_logits(LOGITS.astype(dtype))  # type: ignore[arg-type]
    assert scores.values.dtype in (np.float32, np.float64) and scores.values.dtype.isnative
    np.testing.assert_allclose(scores.probabilities, softmax(LOGITS, axis=1), rtol=1e-6)


def test_huge_logits_overflow_nothing() -> None:
    scores = Scores.from_logits(np.array([[3e38, -3e38], [1000, 0]], dtype=np.float32))
    assert scores.probabilities.tolist() == [[1, 0], [1, 0]]


def test_one_column_is_the_second_of_two_classes() -> None:
    logits = Scores.from_logits([1e-17, -1e-17, 0.0], ["b", "a", "a"], classes=["a", "b"])
    assert logits.predictions.tolist() == [1, 0, 0]  # by sign, though all sigmoids round to 1/2
    probabilities = Scores.from_probabilities([0.25], classes=["a", "b"])
    assert probabilities.values.tolist() == [[0.75, 0.25]]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ([[0.5, np.nan]], "nan in record 1"),
        ([[0.5, 0.5], [np.inf, 0]], "inf in record 2"),
        ([[["a"]]], "real numbers"),
        ([["a", "b"]], "real numbers"),
        ([[1 + 1j, 0]], "real numbers"),
        (3.0, "real numbers"),
        ([[1.0], [2.0]], "at least two"),
    ],
)
def test_logits_that_are_none(values: object, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        Scores.from_logits(values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (LOGITS, r"in \[0, 1\].*pass logits as logits"),
        ([[0.5, 0.4]], "sum to 1, found 0.9"),
        ([[0.5, np.nan]], r"in \[0, 1\]"),
        ([[1.1, -0.1]], r"in \[0, 1\]"),
    ],
)
def test_probabilities_that_are_none(values: object, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        Scores.from_probabilities(values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"labels": [0, 1]},
        {"labels": [0, 1, 3]},
        {"labels": [0, 1, -1]},
        {"labels": ["a", "b", "c"]},
        {"classes": ["a", "b"]},
        {"classes": ["a", "b", "b"]},
        {"units": [1]},
        {"groups": {"g": Group(np.array([0]), ("x",))}},
    ],
)
def test_parts_that_do_not_fit(settings: dict[str, object]) -> None:
    with pytest.raises(DataError):
        Scores.from_logits(LOGITS, **settings)  # type: ignore[arg-type]


def test_scores_without_labels_say_so() -> None:
    with pytest.raises(DataError, match="no labels"):
        _ = Scores.from_logits(LOGITS).correct


def test_take_keeps_rows_together() -> None:
    scores = Scores.from_logits(
        LOGITS,
        [0, 2, 1],
        groups={"g": Group(np.array([0, 1, 0]), ("x", "y"))},
        units=["p", "q", "p"],
    )
    part = scores.take(np.array([2, 0]))
    assert part.labels is not None and part.labels.tolist() == [1, 0]
    assert part.groups["g"].codes.tolist() == [0, 0] and part.units is not None
    assert part.units.tolist() == ["p", "p"]
    assert scores.take(np.array([False, True, False])).values.tolist() == [[0, 0, 3]]


INTO = {"yes": ["e"], "no": ["n", "c"]}


def test_merging_logits_and_probabilities_agree() -> None:
    classes = ["e", "n", "c"]
    logits = Scores.from_logits(LOGITS, ["e", "c", "n"], classes=classes)
    probabilities = Scores.from_probabilities(
        logits.probabilities, ["e", "c", "n"], classes=classes
    )
    merged = logits.merge(INTO)
    np.testing.assert_allclose(
        merged.probabilities, probabilities.merge(INTO).values, rtol=1e-14
    )
    assert merged.classes == ("yes", "no") and merged.kind == "logits"
    assert merged.labels is not None and merged.labels.tolist() == [0, 1, 1]
    # The sum of the joined decides, not the larger of them: three equal classes make 1 to 2.
    assert merged.predictions.tolist() == [0, 1, 1]


def test_merging_takes_labels_of_the_new_classes() -> None:
    scores = Scores.from_logits(LOGITS, classes=["e", "n", "c"])
    assert scores.merge(INTO).labels is None
    merged = scores.merge(INTO, labels=["no", "no", "yes"])
    assert merged.labels is not None and merged.labels.tolist() == [1, 1, 0]
    with pytest.raises(DataError, match="expected 3"):
        scores.merge(INTO, labels=["no"])


@pytest.mark.parametrize(
    "into",
    [
        {"a": ["e"], "b": ["n"]},
        {"a": ["e", "n"], "b": ["c", "e"]},
        {"a": ["e", "z"], "b": ["n", "c"]},
    ],
)
def test_merging_wants_every_class_once(into: dict[str, list[str]]) -> None:
    with pytest.raises(DataError, match="exactly once"):
        Scores.from_logits(LOGITS, classes=["e", "n", "c"]).merge(into)  # type: ignore[arg-type]


# Files -----------------------------------------------------------------------------------


def test_files_of_every_form_agree(tmp_path: Path) -> None:
    labels, sex, ids = [0, 2, 1], ["f", "m", "f"], ["p", "p", "q"]
    np.savez(tmp_path / "s.npz", logits=LOGITS, labels=labels, sex=sex, id=ids)
    frame = pl.DataFrame({"logits": LOGITS.tolist(), "labels": labels, "sex": sex, "id": ids})
    frame.write_parquet(tmp_path / "s.parquet")
    frame.write_ipc(tmp_path / "s.arrow")
    spread = {f"logits_{i}": LOGITS[:, i] for i in range(3)}
    pl.DataFrame({**spread, "labels": labels, "sex": sex, "id": ids}).write_csv(
        tmp_path / "s.csv"
    )
    for name in ("s.npz", "s.parquet", "s.arrow", "s.csv"):
        scores = load_scores(tmp_path / name, groups={"sex": ["f", "m"]}, unit="id")
        assert scores.kind == "logits" and scores.values.tolist() == LOGITS.tolist()
        assert scores.known_labels.tolist() == labels
        assert scores.groups["sex"].codes.tolist() == [0, 1, 0]
        assert scores.units is not None and scores.units.tolist() == ids
    assert [len(s) for s in scan_scores(tmp_path / "s.parquet", rows=2)] == [2, 1]


def test_files_that_hold_no_scores(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=LOGITS)
    with pytest.raises(DataError, match="logits or probabilities"):
        load_scores(tmp_path / "s.npz")
    with pytest.raises(DataError, match="ending in '_test'"):
        load_scores(tmp_path / "s.npz", part="test")
    np.savez(tmp_path / "s.npz", logits=LOGITS, labels=[0, 1, 9])
    with pytest.raises(DataError, match="'9' in record 3"):
        load_scores(tmp_path / "s.npz")
    with pytest.raises(DataError, match="a column 'sex'"):
        load_scores(tmp_path / "s.npz", groups={"sex": ["f"]})
    with pytest.raises(LimitError):
        load_scores(tmp_path / "s.npz", limits=Limits(rows=2))
    pl.DataFrame({"logits": [[1.0, 2.0], [1.0]]}).write_parquet(tmp_path / "s.parquet")
    with pytest.raises(DataError, match="lists of one length"):
        load_scores(tmp_path / "s.parquet")
    (tmp_path / "s.csv").write_text("logits_0,logits_1\n1,a\n")
    with pytest.raises(DataError, match="nan in record 1"):
        load_scores(tmp_path / "s.csv")


def test_published_logits(data_folder) -> None:  # type: ignore[no-untyped-def]
    path = data_folder("logits_cifar/densenet40_cifar10.npz")
    scores = load_scores(path, part="test")
    assert len(scores) == 10_000 and scores.n_classes == 10
    assert scores.correct.mean() == pytest.approx(0.9242)
    assert len(load_scores(path, part="val")) == 5_000

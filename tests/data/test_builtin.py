"""Built-in data sets are what scikit-learn and their papers say they are."""

import re
from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

from veracal.data import CATALOG, Dataset, declare, entry, load
from veracal.data.builtin import SCHEMAS
from veracal.errors import DataError


@pytest.mark.parametrize(
    ("name", "source"),
    [("breast-cancer", load_breast_cancer), ("wine", load_wine), ("digits", load_digits)],
)
def test_scikit_learn_sets_keep_their_records(name: str, source: Callable[[], object]) -> None:
    data, bunch = load(name), source()
    assert (data.y == bunch.target).all()  # type: ignore[attr-defined]
    assert np.abs(data.X[:]).max() <= 1
    columns = list(SCHEMAS[name].features.values())
    shift = np.array([c.shift for c in columns])
    scale = np.array([c.scale for c in columns])
    np.testing.assert_allclose(data.X * scale + shift, bunch.data, atol=1e-9)  # type: ignore[attr-defined]
    assert data.classes == SCHEMAS[name].classes and data.size == len(data)


def test_scikit_learn_names_agree() -> None:
    assert load("breast-cancer").feature_names == tuple(load_breast_cancer().feature_names)
    assert load("wine").feature_names == tuple(load_wine().feature_names)


@pytest.mark.parametrize(
    ("name", "variant", "train", "test"),
    [
        ("synthetic-clipping", "text", 10_000, 10_000),
        ("synthetic-clipping", "code", 6_700, 3_300),
        ("synthetic-multiplicity", "text", 2_000, 20_000),
        ("synthetic-multiplicity", "code", 1_000, 19_001),
    ],
)
def test_synthetic_sizes(name: str, variant: str, train: int, test: int) -> None:
    parts = [load(name, variant=variant, part=part) for part in ("train", "test")]
    assert [len(part) for part in parts] == [train, test]
    rows = [set(map(tuple, part.X[:])) for part in parts]
    assert not rows[0] & rows[1]
    again = load(name, variant=variant, part="train")
    assert (again.X == parts[0].X).all()


def test_synthetic_laws() -> None:
    data = load("synthetic-multiplicity", variant="text", part="test")
    for label, center, covariance in ((0, (1, 1), 0.5), (1, (-1, -1), 0.1)):
        X = data.X[data.y == label]
        np.testing.assert_allclose(X.mean(axis=0), center, atol=0.05)
        np.testing.assert_allclose(np.cov(X.T), [[1, covariance], [covariance, 1]], atol=0.06)
    outlier = load("synthetic-multiplicity", variant="code", part="test")
    rest = load("synthetic-multiplicity", variant="code", part="train")
    whole = np.vstack([outlier.X, rest.X])
    assert (whole == [-3, 2]).all(axis=1).sum() == 1
    clipping = load("synthetic-clipping", variant="text")
    means = [clipping.X[clipping.y == c].mean(axis=0) for c in (0, 1)]
    assert np.linalg.norm(means[1] - means[0]) == pytest.approx(3, abs=0.1)
    code = load("synthetic-clipping", variant="code")
    np.testing.assert_allclose(code.X[code.y == 0].mean(axis=0), (0, 1.5), atol=0.1)
    np.testing.assert_allclose(code.X[code.y == 1].mean(axis=0), (1.5, 0), atol=0.1)


def check_declared(loaded: Dataset, declared: Dataset) -> None:
    """Compare the declared facts of a set with its records."""
    assert len(declared) == 0
    assert (declared.X.shape[1:], declared.X.dtype) == (loaded.X.shape[1:], loaded.X.dtype)
    for field in fields(Dataset):
        expected, value = getattr(loaded, field.name), getattr(declared, field.name)
        if field.name in ("units", "slots"):
            assert (value is None) == (expected is None), field.name
        elif field.name not in ("X", "y", "row_digests"):
            assert value == expected, field.name


@pytest.mark.parametrize(
    ("name", "part", "variant", "shape"),
    [
        ("breast-cancer", None, None, (569, 30)),
        ("digits", None, None, (1797, 64)),
        ("wine", None, None, (178, 13)),
        ("synthetic-clipping", None, None, (10_000, 2)),
        ("synthetic-clipping", "test", "code", (3_300, 2)),
        ("synthetic-multiplicity", "train", None, (2_000, 2)),
        ("synthetic-multiplicity", "test", "code", (19_001, 2)),
    ],
)
def test_built_in_sets_are_as_declared(name, part, variant, shape):
    dataset = load(name, part=part, variant=variant)
    assert dataset.X.shape == shape
    check_declared(dataset, entry(name).declare(part=part, variant=variant))


def test_a_synthetic_set_uses_the_given_generator():
    def draw(number):
        return load("synthetic-clipping", rng=np.random.default_rng(number)).X

    assert (draw(1) == draw(1)).all()
    assert (draw(1) != draw(2)).any()


def test_row_digests_of_a_synthetic_set_follow_its_points():
    first = load("synthetic-clipping", row_digests=True)
    assert len(np.unique(first.row_digests)) == len(first)


@pytest.mark.parametrize("known", CATALOG.values(), ids=list(CATALOG))
def test_an_entry_is_complete(known):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", known.name)
    for text in (known.title, known.shape, known.task, known.license, known.note):
        assert text.strip() == text != ""
    if known.schema is not None:
        assert known.schema.name == known.name


def test_an_unknown_name_suggests_similar_ones():
    with pytest.raises(DataError, match=re.escape("Did you mean breast-cancer?")):
        load("brest-cancer")
    with pytest.raises(DataError, match="Did you mean"):
        declare("brest-cancer")
    with pytest.raises(DataError, match=r"'zzz'\. `veracal data list` shows all names"):
        load("zzz")


def test_parts_and_variants_are_those_listed():
    with pytest.raises(DataError, match=r"part: expected one of 'train', 'test', found 'dev'"):
        load("synthetic-clipping", part="dev")
    with pytest.raises(DataError, match=r"variant: expected one of 'text', 'code'"):
        load("synthetic-clipping", variant="both")
    with pytest.raises(DataError, match=r"digits: part: expected no part, found 'train'"):
        load("digits", part="train")
    with pytest.raises(ValueError, match="which has its own"):
        declare("wine", schema=SCHEMAS["wine"])

"""Built-in and published sets are what their papers say they are."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.model_selection import train_test_split

from veracal.data import load
from veracal.data.builtin import SCHEMAS, SYNTHETIC, load_builtin
from veracal.data.sets.tables import load_uci

FILES = {
    "credit": "credit-approval.csv",
    "contraception": "contrac.csv",
    "mammography": "mammo.csv",
    "dermatology": "dermatology.csv",
}


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
    assert load_builtin("breast-cancer").feature_names == tuple(
        load_breast_cancer().feature_names
    )
    assert load_builtin("wine").feature_names == tuple(load_wine().feature_names)


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
    data = SYNTHETIC["synthetic-multiplicity"](variant="text", part="test")
    for label, center, covariance in ((0, (1, 1), 0.5), (1, (-1, -1), 0.1)):
        X = data.X[data.y == label]
        np.testing.assert_allclose(X.mean(axis=0), center, atol=0.05)
        np.testing.assert_allclose(np.cov(X.T), [[1, covariance], [covariance, 1]], atol=0.06)
    outlier = SYNTHETIC["synthetic-multiplicity"](variant="code", part="test")
    rest = SYNTHETIC["synthetic-multiplicity"](variant="code", part="train")
    whole = np.vstack([outlier.X, rest.X])
    assert (whole == [-3, 2]).all(axis=1).sum() == 1
    clipping = SYNTHETIC["synthetic-clipping"](variant="text")
    means = [clipping.X[clipping.y == c].mean(axis=0) for c in (0, 1)]
    assert np.linalg.norm(means[1] - means[0]) == pytest.approx(3, abs=0.1)
    code = SYNTHETIC["synthetic-clipping"](variant="code")
    np.testing.assert_allclose(code.X[code.y == 0].mean(axis=0), (0, 1.5), atol=0.1)
    np.testing.assert_allclose(code.X[code.y == 1].mean(axis=0), (1.5, 0), atol=0.1)


def test_unknown_variants() -> None:
    with pytest.raises(ValueError, match="variant"):
        SYNTHETIC["synthetic-clipping"](variant="paper")
    with pytest.raises(ValueError, match="part"):
        SYNTHETIC["synthetic-clipping"](part="validation")


@pytest.mark.parametrize(
    ("name", "shape", "counts"),
    [
        ("credit", (653, 46), [357, 296]),
        ("contraception", (1473, 9), [629, 333, 511]),
        ("mammography", (830, 5), [427, 403]),
        ("dermatology", (358, 34), [111, 60, 71, 48, 48, 20]),
    ],
)
def test_uci_tables_have_the_published_sizes(
    data_folder: Callable[[str], Path], name: str, shape: tuple[int, int], counts: list[int]
) -> None:
    data = load_uci(name, data_folder("uci4") / FILES[name])
    assert data.X.shape == shape and np.bincount(data.y).tolist() == counts
    assert np.abs(data.X).max() <= 1


@pytest.mark.parametrize(
    ("name", "text", "code", "norm"),
    [
        ("credit", 296, 296, 19.5179),
        ("contraception", 333, 629, 6.9101),
        ("mammography", 403, 403, 6.5101),
        ("dermatology", 60, 111, 11.1683),
    ],
)
def test_uci_variants_of_the_paper(
    data_folder: Callable[[str], Path], name: str, text: int, code: int, norm: float
) -> None:
    """The largest norm of the training rows is a fingerprint of the whole preparation."""
    path = data_folder("uci4") / FILES[name]
    assert load_uci(name, path, variant="text").y.sum() == text
    data = load_uci(name, path, variant="code")
    assert data.y.sum() == code
    train, test = train_test_split(
        np.arange(len(data)), random_state=0, test_size=0.25, stratify=data.y
    )
    published = {"credit": 489, "contraception": 1104, "mammography": 622, "dermatology": 268}
    assert (len(train), len(test)) == (published[name], len(data) - published[name])
    assert np.linalg.norm(data.X[train], axis=1).max() == pytest.approx(norm, abs=1e-4)


def test_uci_age_groups(data_folder: Callable[[str], Path]) -> None:
    data = load("contraception", folder=data_folder("uci4").parent)
    assert data.groups["age"].names == ("[16, 30]", "(30, 40]", "(40, 50]")
    assert np.bincount(data.groups["age"].codes).sum() == 1473

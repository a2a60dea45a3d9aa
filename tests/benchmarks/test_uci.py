"""The four UCI tables have the figures that Kulynych et al. (2023) print."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from benchmarks.datasets import load
from benchmarks.datasets.tables import load_uci

FILES = {
    "credit": "credit-approval.csv",
    "contraception": "contrac.csv",
    "mammography": "mammo.csv",
    "dermatology": "dermatology.csv",
}


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

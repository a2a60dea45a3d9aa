"""The paper's Table 2 with fewer runs."""

import numpy as np
import pytest

from benchmarks.datasets import FetchError, load
from benchmarks.quality.multiplicity import (
    SETTINGS,
    Setting,
    audited,
    differences,
    parts,
    row_of,
)
from benchmarks.quality.table2 import EPSILONS, PUBLISHED, SETS, Row

FEW = 1_000
AS_PRINTED, HELD_OUT = SETTINGS[:2]


def distance(setting: Setting, name: str, epsilon: float) -> dict[str, float]:
    mine = row_of(audited(setting, name, epsilon, FEW))
    return differences(mine, PUBLISHED[name, epsilon], FEW)


@pytest.fixture
def there():
    try:
        load("credit")
    except FetchError as missing:
        pytest.skip(str(missing))


def test_all_rows_were_read():
    assert set(PUBLISHED) == {(name, epsilon) for name in SETS for epsilon in EPSILONS}
    for row in PUBLISHED.values():
        assert row.minimum <= row.median <= row.p90 <= row.p95 <= row.maximum
        assert row.minimum <= row.mean <= row.maximum
    for name in SETS:  # more privacy, more disagreement and less use
        rows = [PUBLISHED[name, epsilon] for epsilon in EPSILONS]
        assert (np.diff([row.mean for row in rows]) <= 0).all()
        assert (np.diff([row.auc for row in rows]) > 0).all()


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    ("name", "train", "test", "features", "norm"),
    [
        ("credit", 489, 164, 46, 19.5179),
        ("contraception", 1104, 369, 9, 6.9101),
        ("mammography", 622, 208, 5, 6.5101),
        ("dermatology", 268, 90, 34, 11.1683),
    ],
)
def test_sizes_are_those_of_table_1(name, train, test, features, norm):
    records, individuals, longest = parts(name)

    assert (len(records), len(individuals), individuals.X.shape[1]) == (train, test, features)
    assert longest == pytest.approx(norm, abs=1e-4)


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("epsilon", [0.5, 2.5])
@pytest.mark.parametrize("name", ["contraception", "mammography"])
def test_crossed_partitions_reproduce_the_table(name, epsilon):
    off = distance(AS_PRINTED, name, epsilon)

    assert abs(off["disagreement"]) < 0.03  # of fewer runs
    assert abs(off["auc"]) < 3 and abs(off["f1"]) < 3


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("name", ["contraception", "mammography"])
def test_held_out_partitions_do_not_reproduce_the_table(name):
    off = distance(HELD_OUT, name, 2.5)

    assert off["auc"] < -5


def test_standard_errors_are_those_of_a_difference():
    mine = Row(60, 3, 50, 0, *[0.5] * 7)
    printed = Row(60.5, 4, 50, 1, *[0.4] * 7)

    off = differences(mine, printed, 5_000)

    assert off["auc"] == pytest.approx(-0.5 / (5 / np.sqrt(5_000)))
    assert off["f1"] == 0
    assert off["disagreement"] == pytest.approx(0.1)

"""Files of packages become the tables that the catalog declares."""

import numpy as np
import pytest

from benchmarks.datasets import CATALOG, DatasetRequest, entry, load
from benchmarks.datasets.packaged_tables import SCHEMAS

ADULT = (
    "39, {}, 77516, Bachelors, 13, Never-married, Sales, Own-child, White, Male, 0, 0, 40, Cuba"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VERACAL_CACHE", str(tmp_path / "cache"))


def convert(name: str, content: str, file: int = 0) -> list[str]:
    """What a fetch makes of a file of a package."""
    converted = entry(name).sources[1].files[file].convert(content.encode())
    return converted.decode().splitlines()


def test_adult_loads_from_the_files_of_uci(tmp_path):
    rows = [f"{ADULT.format('Private')}, <=50K", f"{ADULT.format('?')}, >50K", ""]
    train = convert("adult", "\n".join(rows))
    test = convert(
        "adult", "\n".join(["|1x3 Cross validator", *(f"{row}." for row in rows[:2])]), 1
    )
    assert train == test
    for part in ("train", "test"):
        (tmp_path / f"adult-{part}.csv").write_text("\n".join(train) + "\n")
    dataset = load("adult", part="test", folder=tmp_path)
    assert (dataset.y.tolist(), dataset.size) == ([0, 1], 16_281)
    missing = dataset.feature_names.index("workclass=missing")
    assert dataset.X[:, missing].tolist() == [0, 1]
    assert "fnlwgt" not in dataset.feature_names


def test_other_columns_of_a_table_are_left_out():
    header = ",".join(["id", "name", *SCHEMAS["compas"].columns])
    row = "1,somebody,Male,69,Other,0,0,0,0,F,0"
    assert convert("compas", f"{header}\n{row}\n") == [
        header.partition("name,")[2],
        row.partition("somebody,")[2],
    ]


def test_cover_types_get_their_categories_back():
    numbers = [2596, 51, 3, 258, 0, 510, 221, 232, 148, 6279]
    indicators = np.zeros(44, dtype=int)
    indicators[[2, 4 + 28]] = 1
    header = ",".join(f"c{index}" for index in range(55))
    row = ",".join(map(str, [*numbers, *indicators, 5]))
    assert convert("cover-types", f"{header}\n{row}\n")[1] == ",".join(
        map(str, [*numbers, 3, 29, 5])
    )


@pytest.mark.parametrize("name", SCHEMAS)
def test_declared_shapes_are_those_in_the_list(name):
    declared = entry(name).declare(DatasetRequest())
    assert f"× {declared.X.shape[1]} × {len(declared.classes)}" in CATALOG[name].shape
    assert f"{declared.size:,}" in CATALOG[name].shape

"""A map survives being written down, and nothing else is taken for one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.calibration.maps.sample_maps import maps
from veracal.calibration.maps import (
    CalibrationMap,
    Isotonic,
    Platt,
    Temperature,
    from_json,
    load_map,
    save_map,
)
from veracal.data import Scores
from veracal.errors import DataError, LimitError


@pytest.mark.parametrize("map_", [*maps(2), *maps(3), Platt(1.0, [0, 0], "logits")], ids=repr)
def test_maps_survive(map_: CalibrationMap, tmp_path: Path, rng: np.random.Generator) -> None:
    written = map_.to_json()
    assert from_json(written) == map_ and type(from_json(written)) is type(map_)
    assert json.loads(json.dumps(written, allow_nan=False)) == written
    loaded = load_map(save_map(map_, tmp_path / "map.json"))
    assert loaded == map_
    k = 3 if map_ in maps(3) else 2
    scores = Scores.from_logits(rng.normal(size=(9, k)))
    np.testing.assert_array_equal(
        loaded.transform(scores).values, map_.transform(scores).values
    )


def test_floats_survive_to_the_last_digit(tmp_path: Path) -> None:
    for i, value in enumerate((0.1, 1 / 3, np.nextafter(1, 2), 1e-6, 1e6)):
        loaded = load_map(save_map(Temperature(value), tmp_path / f"{i}.json"))
        assert loaded.to_json()["inverse"] == value


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = save_map(Temperature(2.0), tmp_path / "map.json")
    with pytest.raises(DataError, match="exists"):
        save_map(Temperature(3.0), path)
    assert load_map(path) == Temperature(2.0)


CURVE = Isotonic([[0, 1]], [[0, 1]], "top-label").to_json()
GOOD: dict[str, Any] = {"kind": "temperature", "version": 1, "inverse": 0.5}


@pytest.mark.parametrize(
    "written",
    [
        None,
        [],
        "temperature",
        {},
        {**GOOD, "kind": "warmth"},
        {**GOOD, "kind": ["temperature"]},
        {**GOOD, "kind": None},
        {**GOOD, "kind": "__init__"},
        {**GOOD, "version": 2},
        {**GOOD, "version": True},
        {**GOOD, "version": "1"},
        {**GOOD, "more": 1},
        {"kind": "temperature", "version": 1},
        {"kind": "temperature", "inverse": 0.5},
        {**GOOD, "inverse": float("nan")},
        {**GOOD, "inverse": float("inf")},
        {**GOOD, "inverse": 0},
        {**GOOD, "inverse": "0.5"},
        {**GOOD, "inverse": True},
        {**GOOD, "inverse": None},
        {**GOOD, "inverse": [0.5]},
        {**GOOD, "inverse": {}},
        {**GOOD, "inverse": 10**400},
        {"kind": "platt", "version": 1, "weights": 1.0, "bias": [0.0], "reads": None},
        {"kind": "platt", "version": 1, "weights": 1.0, "bias": [0, 0], "reads": "words"},
        {"kind": "platt", "version": 1, "weights": [[1], [2, 3]], "bias": [0], "reads": None},
        {"kind": "platt", "version": 1, "weights": 1, "bias": [0, None], "reads": None},
        {"kind": "platt", "version": 1, "weights": 1, "bias": [0, True], "reads": None},
        {"kind": "platt", "version": 1, "weights": 1, "bias": [0, "1"], "reads": None},
        {"kind": "binned", "version": 1, "bins": 2, "accuracies": [0.5]},
        {"kind": "binned", "version": 1, "bins": 2.5, "accuracies": [0.5, 0.5]},
        {"kind": "binned", "version": 1, "bins": 10**12, "accuracies": [0.5]},
        {"kind": "binned", "version": 1, "bins": True, "accuracies": [0.5]},
        {**CURVE, "inputs": [[1, 0]], "outputs": [[0, 1]]},
        {**CURVE, "inputs": [[0, True]], "outputs": [[0, 1]]},
        {**CURVE, "inputs": [[[0, 1]]], "outputs": [[[0, 1]]]},
        {**CURVE, "inputs": 1, "outputs": 1},
        {**CURVE, "form": []},
        {"kind": "beta", "version": 1, "a": [-1], "b": [1], "c": [0]},
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_map(written: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        from_json(written)
    path = tmp_path / "map.json"
    path.write_text(json.dumps(written))
    with pytest.raises(DataError, match="map.json"):
        load_map(path)


def test_too_many_numbers() -> None:
    with pytest.raises(DataError, match="at most 4,000,000"):
        from_json(
            {
                "kind": "platt",
                "version": 1,
                "weights": 1,
                "bias": [0] * 4_000_001,
                "reads": None,
            }
        )
    with pytest.raises(ValueError, match="at most 4,000,000"):
        Platt(np.zeros((2_001, 2_001)), np.zeros(2_001))


@pytest.mark.parametrize(
    "text",
    [
        '{"kind": "temperature", "version": 1, "inverse": 0.5, "inverse": 2}',
        '{"kind": "temperature", "version": 1, "inverse": NaN}',
        '{"kind": "temperature", "version": 1, "inverse": 1e999}',
        '{"kind": "temperature", "version": 1, "inverse": 0.5} {}',
        '{"kind": "temperature", "version": 1, "inverse": 0.5',
        "[" * 100_000,
    ],
)
def test_what_is_no_json(text: str, tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text(text)
    with pytest.raises(DataError, match="strict JSON"):
        load_map(path)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_bytes(b'{"kind": "\xff"}')
    with pytest.raises(DataError, match="UTF-8"):
        load_map(path)


def test_files_too_large_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    with path.open("wb") as file:
        file.truncate(2**30)  # holds nothing, and would fill a gigabyte of memory
    with pytest.raises(LimitError, match="file bytes"):
        load_map(path)
    with pytest.raises(DataError, match="nothing at that path"):
        load_map(tmp_path / "none.json")
    path.write_text("")
    with pytest.raises(DataError, match="an empty file"):
        load_map(path)

"""Whatever labeled scores hold, a fit gives a map or a typed error: no NaN, no warning."""

import numpy as np
import pytest
from sklearn.base import clone

from tests.calibration.fitters.sample_scores import FITTERS, logits
from tests.calibration.maps.sample_maps import extreme_scores
from veracal.calibration import BetaCalibration, MapFitter, PlattScaling, from_json
from veracal.data import Scores
from veracal.errors import DataError


def check(fitter: MapFitter, scores: Scores, name: str) -> None:
    """Assert that the map is sound, and that what it gives are probabilities."""
    fitted = clone(fitter).fit(scores)
    p = fitted.transform(scores).probabilities
    assert np.isfinite(p).all() and (p >= 0).all() and (p <= 1).all(), name
    np.testing.assert_allclose(p.sum(axis=1, dtype=np.float64), 1, atol=1e-9, err_msg=name)
    assert from_json(fitted.map_.to_json()) == fitted.map_, name


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("fitter", FITTERS, ids=repr)
def test_strange_scores(fitter: MapFitter, k: int) -> None:
    for name, scores in extreme_scores(k):
        if len(scores):
            check(fitter, scores, name)
        else:
            with pytest.raises(DataError, match="one record or more"):
                clone(fitter).fit(scores)


@pytest.mark.parametrize("fitter", FITTERS, ids=repr)
def test_a_hundred_thousand_classes(fitter: MapFitter) -> None:
    k = 100_000
    z = np.zeros((2, k))
    z[:, 7] = 5
    scores = Scores.from_logits(z, [7, k - 1])
    one_each = getattr(fitter, "form", "") in ("matrix", "one-vs-rest")
    refused = isinstance(fitter, BetaCalibration) or one_each
    if refused:
        with pytest.raises(DataError, match="classes"):
            clone(fitter).fit(scores)
    else:
        check(fitter, scores, "many classes")


@pytest.mark.parametrize("n", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("fitter", FITTERS, ids=repr)
def test_one_label_among_very_many_others(fitter: MapFitter, n: int) -> None:
    z = np.zeros((n, 2), dtype=np.float32)
    z[:, 0] = np.linspace(3, 9, n)
    labels = np.zeros(n, dtype=int)
    labels[5] = 1
    check(fitter, Scores.from_logits(z, labels), "imbalance")
    check(fitter, Scores.from_logits(z, np.zeros(n, dtype=int)), "one class only")


@pytest.mark.parametrize("fitter", FITTERS, ids=repr)
def test_constant_confidence(fitter: MapFitter) -> None:
    for p in (0.0, 0.5, 1.0):
        scores = Scores.from_probabilities(np.full(40, p), [0, 1, 1, 1] * 10)
        check(fitter, scores, f"confidence {p}")


@pytest.mark.parametrize("fitter", FITTERS, ids=repr)
def test_precision_and_order_of_numbers_do_not_matter(fitter: MapFitter) -> None:
    z, y = logits(200, 3)
    single = z.astype(np.float32)
    single.flags.writeable = False
    plain = clone(fitter).fit(Scores.from_logits(single, y)).map_
    for same in (single.astype(np.float64), np.asfortranarray(single), single.astype(">f4")):
        scores = Scores.from_logits(same, y)
        other = clone(fitter).fit(scores).map_
        np.testing.assert_allclose(
            other.transform(scores).probabilities,
            plain.transform(scores).probabilities,
            atol=1e-5,
        )
    check(fitter, Scores.from_logits(z.astype(np.float16), y), "half precision")


@pytest.mark.parametrize("scale", [1e-300, 1e-8, 1e8, 1e150, 1e307])
@pytest.mark.parametrize("form", ["scalar", "vector", "matrix"])
def test_platt_takes_logits_of_any_size(form: str, scale: float) -> None:
    z, y = logits(100, 3)
    check(PlattScaling(form), Scores.from_logits(z * scale, y), f"{scale}")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "labels", [[-1, 0], [0, 2], [0.5, 1], ["a", "b"], [True, np.nan], [[0, 1]], [0]]
)
def test_undeclared_labels(labels: object) -> None:
    with pytest.raises(DataError):
        Scores.from_logits(np.eye(2), labels)  # type: ignore[arg-type]

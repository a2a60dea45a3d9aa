"""Whatever numbers scores hold, a map gives scores: never NaN, never a warning."""

import numpy as np
import pytest

from tests.calibration.maps.sample_maps import extreme_scores, maps
from veracal.calibration import (
    Binned,
    CalibrationMap,
    Identity,
    Isotonic,
    Platt,
    Temperature,
    TwoTemperatures,
)
from veracal.data import Scores


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("which", range(len(maps(2))), ids=[repr(m) for m in maps(2)])
def test_strange_scores(k: int, which: int) -> None:
    map_ = maps(k)[which]
    for name, scores in extreme_scores(k):
        check(map_, scores, name)


def test_a_hundred_thousand_classes() -> None:
    k = 100_000
    logits = Scores.from_logits(np.stack([np.zeros(k), np.arange(k)]), [0, k - 1])
    sure = np.zeros((1, k))
    sure[0, -1] = 1
    for map_ in maps(k):
        check(map_, logits, "many classes")
        check(map_, Scores.from_probabilities(sure, [0]), "many classes, sure")


def check(map_: CalibrationMap, scores: Scores, name: str) -> None:
    """Assert that the map of scores are scores, with rows that sum to one closely."""
    mapped = map_.transform(scores)
    p = mapped.probabilities
    assert p.shape == scores.values.shape and np.isfinite(p).all(), name
    np.testing.assert_allclose(p.sum(axis=1, dtype=np.float64), 1, atol=1e-9, err_msg=name)
    keeps = isinstance(map_, Identity | Temperature | TwoTemperatures)
    if keeps or isinstance(map_, Platt):
        assert mapped.kind == scores.kind
    else:
        assert mapped.kind == "probabilities"
    if keeps:
        np.testing.assert_array_equal(mapped.predictions, scores.predictions, err_msg=name)
    if isinstance(map_, Binned | Isotonic):
        assert (p >= 0).all() and (p <= 1).all()


def test_one_class_is_no_classifier() -> None:
    with pytest.raises(ValueError, match="at least two"):
        Scores.from_logits([[1.0]])
    with pytest.raises(ValueError, match="k >= 2"):
        Platt(1.0, [0.0])


def test_single_precision_and_double_agree(rng: np.random.Generator) -> None:
    z = rng.normal(size=(50, 3)).astype(np.float32)
    for map_ in maps(3):
        single = map_.transform(Scores.from_logits(z))
        double = map_.transform(Scores.from_logits(z.astype(np.float64)))
        np.testing.assert_array_equal(single.probabilities, double.probabilities)


def test_order_in_memory_and_of_bytes_does_not_matter(rng: np.random.Generator) -> None:
    z = rng.normal(size=(50, 3))
    z.flags.writeable = False
    for map_ in maps(3):
        plain = map_.transform(Scores.from_logits(z)).probabilities
        for same in (np.asfortranarray(z), z.astype(">f8"), np.repeat(z, 2, axis=0)[::2]):
            mapped = map_.transform(Scores.from_logits(same)).probabilities
            np.testing.assert_allclose(mapped, plain, rtol=1e-14, atol=1e-300)

"""Areas under curves are exact, whether scores are equal, nearly equal or not."""

import numpy as np
import pytest

from veracal.multiplicity.runs import auc_scores


def slowly(scores, labels):
    """Share of pairs that are in the right order, of which equal ones count half."""
    ahead = scores[:, labels][:, :, None] - scores[:, ~labels][:, None, :]
    return ((ahead > 0) + 0.5 * (ahead == 0)).mean(axis=(1, 2))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("alike", [0, 5])
@pytest.mark.parametrize("bits", [1, 3])
def test_auc_equals_the_share_of_ordered_pairs(sign, alike, bits, rng):
    for _ in range(30):
        scores = rng.normal(size=(20, 30)) if alike == 0 else rng.integers(1, 6, (20, 30)) * 1.0
        scores[10:, 15:] = scores[10:, :15]  # individuals who are alike
        scores += rng.integers(0, bits, scores.shape) * np.spacing(scores)
        labels = rng.permutation(np.arange(30) < 11)
        result = auc_scores(sign * scores, labels)
        np.testing.assert_allclose(result, slowly(sign * scores, labels), rtol=1e-13)


def test_auc_respects_the_last_bit():
    one = np.array([[1.0, np.nextafter(1.0, 2.0), 0.5, 0.5]])
    for labels in ([1, 0, 1, 0], [0, 1, 0, 1], [0, 1, 1, 0]):
        marks = np.array(labels, dtype=bool)
        assert auc_scores(one, marks)[0] == slowly(one, marks)[0]
    assert auc_scores(one, np.array([0, 1, 0, 1], dtype=bool))[0] == 0.625  # 0.5 if it did not

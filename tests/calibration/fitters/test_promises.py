"""Every fitter keeps the loss from increasing, and scikit-learn's conventions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from tests.calibration.fitters.sample_scores import (
    FITTERS,
    LIKELIHOOD,
    SQUARES,
    both_kinds,
    brier,
    logits,
    nll,
    top_label_brier,
)
from veracal.calibration import (
    HistogramBinning,
    Identity,
    IsotonicCalibration,
    MapFitter,
    PlattScaling,
)
from veracal.data import Scores
from veracal.errors import DataError

ROUNDING = 1e-12


@st.composite
def small_scores(draw: st.DrawFn) -> Scores:
    """A few records of two or three classes, of both kinds, ties and certainty among them."""
    n, k = draw(st.integers(1, 8)), draw(st.integers(2, 3))
    labels = draw(arrays(np.int64, n, elements=st.integers(0, k - 1)))
    if draw(st.booleans()):
        steps = st.sampled_from([-800.0, -30.0, -1.0, 0.0, 0.5, 1.0, 40.0])
        return Scores.from_logits(draw(arrays(np.float64, (n, k), elements=steps)), labels)
    parts = st.sampled_from([0.0, 1e-300, 1e-9, 0.3, 0.5, 1.0])
    raw = draw(arrays(np.float64, (n, k), elements=parts))
    raw[:, 0] += raw.sum(axis=1) == 0
    return Scores.from_probabilities(raw / raw.sum(axis=1, keepdims=True), labels)


@pytest.mark.parametrize("fitter", LIKELIHOOD, ids=repr)
@settings(max_examples=40)
@given(scores=small_scores())
def test_likelihood_never_falls_on_the_records_of_the_fit(
    fitter: MapFitter, scores: Scores
) -> None:
    mapped = clone(fitter).fit_transform(scores)
    with np.errstate(divide="ignore"):
        before = nll(scores)
        assert nll(mapped) <= before + ROUNDING * max(1, before)


@pytest.mark.parametrize("fitter", SQUARES, ids=repr)
@settings(max_examples=40)
@given(scores=small_scores())
def test_squared_error_never_rises_on_the_records_of_the_fit(
    fitter: MapFitter, scores: Scores
) -> None:
    mapped = clone(fitter).fit_transform(scores)
    if getattr(fitter, "form", "top-label") == "top-label":
        assert top_label_brier(mapped, scores) <= top_label_brier(scores, scores) + ROUNDING
    else:
        assert brier(mapped) <= brier(scores) + ROUNDING


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("fitter", FITTERS, ids=repr)
def test_other_records_gain_from_it(fitter: MapFitter, k: int) -> None:
    seen, _ = both_kinds(*logits(3_000, k))
    unseen, _ = both_kinds(*logits(3_000, k, seed=1))
    fitter = clone(fitter).fit(seen)
    mapped = fitter.transform(unseen)
    if fitter.kept_:
        assert top_label_brier(mapped, unseen) < top_label_brier(unseen, unseen) - 0.01
    else:  # one bin for all says less than confidences do
        assert fitter.bins == 1 and mapped is unseen


@pytest.mark.parametrize("fitter", FITTERS, ids=repr)
def test_logits_and_probabilities_are_not_confused(fitter: MapFitter) -> None:
    as_logits, as_probabilities = both_kinds(*logits(300, 3))
    one = clone(fitter).fit_transform(as_logits).probabilities
    other = clone(fitter).fit_transform(as_probabilities).probabilities
    if isinstance(fitter, PlattScaling) and fitter.form != "scalar":
        # Probabilities have lost the constant of each row, which these forms use.
        assert np.abs(one - other).max() > 1e-3
    else:
        np.testing.assert_allclose(one, other, atol=1e-5)
    # Numbers that could be either are what they were said to be.
    z = np.array([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    said = clone(fitter).fit_transform(Scores.from_logits(z, [0, 1, 1, 0])).probabilities
    taken = clone(fitter).fit_transform(Scores.from_probabilities(z, [0, 1, 1, 0]))
    if isinstance(fitter, IsotonicCalibration):
        np.testing.assert_allclose(said, taken.probabilities)  # sees nothing but the order
    else:
        inputs = Scores.from_logits(z).probabilities, z
        gain = said - inputs[0], taken.probabilities - inputs[1]
        assert np.abs(gain[0] - gain[1]).max() > 1e-3


@pytest.mark.parametrize("fitter", FITTERS, ids=repr)
def test_fitters_keep_scikit_learns_manner(fitter: MapFitter) -> None:
    scores, _ = both_kinds(*logits(50, 3))
    fresh = clone(fitter)
    before = fresh.get_params()
    with pytest.raises(NotFittedError):
        fresh.transform(scores)
    assert fresh.fit(scores) is fresh
    assert fresh.get_params() == before
    assert fresh.private_ is False and "not private" in (type(fitter).__doc__ or "")
    assert fresh.transform(scores).probabilities.shape == (50, 3)
    assert type(fitter).__name__ in fresh._repr_html_()  # and no warning
    # Nothing of the records stays but the map and whether it was kept.
    assert set(vars(fresh)) - set(before) == {"map_", "kept_"}
    again = clone(fitter).fit(scores.take(np.arange(50)[::-1]))
    mapped = again.transform(scores).probabilities
    np.testing.assert_allclose(mapped, fresh.transform(scores).probabilities, atol=1e-5)


@pytest.mark.parametrize("fitter", FITTERS, ids=repr)
def test_what_cannot_be_fitted_to(fitter: MapFitter) -> None:
    with pytest.raises(DataError, match="labeled scores"):
        clone(fitter).fit(Scores.from_logits([[1.0, 0.0]]))
    with pytest.raises(DataError, match="one record or more"):
        clone(fitter).fit(Scores.from_logits(np.zeros((0, 2)), []))
    with pytest.raises(ValueError, match="Expected Scores, got ndarray"):
        clone(fitter).fit(np.eye(2))  # type: ignore[arg-type]


def test_the_identity_is_kept_where_a_fit_would_do_harm() -> None:
    # Two bins' worth of knowledge in one bin: the mean accuracy says less.
    scores = Scores.from_probabilities([0.6, 0.6, 0.99, 0.99], [0, 1, 1, 1])
    fitter = HistogramBinning(2).fit(scores)
    assert fitter.map_ == Identity() and fitter.kept_ is False
    assert HistogramBinning(4).fit(scores).kept_ is True

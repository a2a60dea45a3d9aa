"""A saved classifier knows the distribution of its noise, and what follows from it."""

import json
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from sklearn.base import clone

from tests.artifact.examples import changed
from veracal.accounting import NotPrivate
from veracal.artifact import PrivateClassifier
from veracal.artifact.weights import LinearWeights, NoiseModel
from veracal.calibration import Beta, Binned, Platt, PrivateCalibratedClassifier
from veracal.calibration.bins import Bins
from veracal.data import Dataset
from veracal.errors import DataError
from veracal.training import (
    ObjectivePerturbation,
    OutputPerturbation,
    PrivateLogisticRegression,
)
from veracal.training.arbitrariness import objective_certificate
from veracal.training.search import PrivateSearch
from veracal.training.weight_noise import (
    GammaNoise,
    GaussianNoise,
    gaussian_disagreement,
    output_arbitrariness,
)

RNG = np.random.default_rng(0)
MODELS = {
    "gaussian": OutputPerturbation(4.0, 1e-5, C=0.1, norm=1.0),
    "gamma": OutputPerturbation(4.0, C=0.1, norm=1.0),
    "objective": ObjectivePerturbation(4.0, C=0.02, norm=1.0),
    "no intercept": OutputPerturbation(4.0, 1e-5, C=0.1, norm=1.0, fit_intercept=False),
}


LINES = np.array([[3.0, -2.0, 1.0], [-2.0, 3.0, 1.0], [-1.0, -1.0, -3.0]])


def records(classes=2, n=300):
    """Rows in a ball, and labels that follow lines."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, 3))
    X /= np.maximum(np.linalg.norm(X, axis=1), 1.0)[:, None]
    y = (X @ LINES[:classes].T).argmax(axis=1)
    return Dataset(X, y, classes=tuple(range(classes)), size=n, name="made up")


@cache
def fitted(name, classes=2):
    return clone(MODELS[name]).fit_records(records(classes))


def saved(name, folder, classes=2):
    PrivateClassifier.of(fitted(name, classes)).save(folder)
    return PrivateClassifier.load(folder)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("classes", [2, 3])
def test_arbitrariness_equals_the_free_functions(name, classes, tmp_path):
    model, kept = fitted(name, classes), saved(name, tmp_path / "a", classes)
    X = np.vstack([RNG.normal(size=(40, 3)), np.zeros((1, 3))])
    rows, w = X, model.coef_
    if model.fit_intercept:
        rows = np.hstack([X, np.ones((41, 1))])
        w = np.hstack([w, model.intercept_[:, None]])
    d = rows.shape[1]
    if name == "objective":
        expected = objective_certificate(
            w,
            rows,
            penalty=model.lambda_total_,
            noise_scale=model.noise_scale_,
            residual=1e-5 * model.norm_bound_,
        )
    else:
        off = math.sqrt(d) * model.grid_step_ / 2
        distribution = (
            GammaNoise(model.noise_scale_, d, rounding=off)
            if name == "gamma"
            else GaussianNoise(model.noise_std_, d, rounding=off)
        )
        plain = output_arbitrariness(w, rows, replace(distribution, rounding=0.0))
        expected = output_arbitrariness(w, rows, distribution)
        np.testing.assert_allclose(plain.high, expected.high, atol=1e-5)
        assert (plain.high <= expected.high + 1e-12).all()
        assert (plain.low >= expected.low - 1e-12).all()
    result = kept.arbitrariness(X)
    np.testing.assert_array_equal(result.low, expected.low)
    np.testing.assert_array_equal(result.high, expected.high)
    assert (result.flip is None) == (expected.flip is None)
    assert (result.level, result.holds_for) == (0.95, "all individuals at once")
    assert result.caveats == expected.caveats and len(result.caveats) >= 4
    if model.fit_intercept:  # the noise of the intercept reaches a row of zeros
        assert result.high[-1] > 0
    else:
        assert result.high[-1] == 0.0
    named = kept.arbitrariness(X, individuals=1, level=0.8)
    assert (named.high <= result.high).all() and named.level == 0.8


def test_the_stored_noise_is_public_and_complete(tmp_path):
    saved("objective", tmp_path / "a")
    content = json.loads((tmp_path / "a" / "model.json").read_text())["model"]
    model = fitted("objective")
    assert content["noise"] == {
        "mechanism": "objective",
        "distribution": "gamma",
        "scale": model.noise_scale_,
        "dimension": 4,
        "intercept": True,
        "penalty": model.lambda_total_,
        "residual": 1e-5 * model.norm_bound_,
        "step": 0.0,
    }
    again = MODELS["objective"].perturbation(1.0)  # of settings, and of no record
    assert (again.noise_scale, again.lambda_total) == (model.noise_scale_, model.lambda_total_)


def test_a_calibrated_classifier_stores_the_noise_of_its_model(tmp_path):
    whole = PrivateCalibratedClassifier(
        ObjectivePerturbation(norm=1.0, C=0.02), epsilon=4.0, delta=1e-5, share=0.1
    ).fit_records(records())
    PrivateClassifier.of(whole).save(tmp_path / "a")
    kept = PrivateClassifier.load(tmp_path / "a")
    assert kept.noise is not None and kept.noise.scale == whole.estimator_.noise_scale_
    alone = PrivateClassifier.of(whole.estimator_)  # which has no separate guarantee
    assert alone.noise is None and not alone.private_


class Quieter(OutputPerturbation):
    """A user's own subclass."""


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (OutputPerturbation(4.0, 1e-5, C=0.1), "not private"),  # the norm comes from the rows
        (OutputPerturbation(4.0, 1e-5, norm=1.0, random_state=0), "not private"),
        (ObjectivePerturbation(4.0, norm=1.0, rule="diffprivlib-0.6.2"), "not private"),
        (PrivateLogisticRegression(4.0, epochs=1), "DP-SGD"),
        (Quieter(4.0, norm=1.0), "does not hold it"),
    ],
    ids=repr,
)
def test_unusable_noise_is_not_stored(model, said):
    model = clone(model).set_params(classes=(0, 1), size=300)
    kept = PrivateClassifier.of(model.fit(records().X, records().y))
    assert kept.noise is None and "noise" not in kept.manifest.model
    with pytest.raises(DataError, match=f"{said}.*veracal audit"):
        kept.arbitrariness(np.zeros((1, 3)))


def test_the_winner_of_a_search_stores_no_noise():
    search = PrivateSearch(
        ObjectivePerturbation(2.0, norm=1.0), {"C": [0.1, 1.0]}, mean=2.0, score_noise=5.0
    )
    result = search.fit_records(records())
    assert PrivateClassifier.of(result.best_estimator_).noise is None


def test_an_artifact_without_noise_explains_itself(tmp_path):
    saved("gaussian", tmp_path / "a")
    changed(tmp_path / "a", lambda content: content["model"].pop("noise"))
    old = PrivateClassifier.load(tmp_path / "a")
    assert old.predict(np.zeros((1, 3))).shape == (1,)
    with pytest.raises(DataError, match="does not hold it"):
        old.arbitrariness(np.zeros((1, 3)))


def test_rows_are_validated_as_by_predict(tmp_path):
    kept = saved("gamma", tmp_path / "a")
    with pytest.raises(ValueError, match="3 features"):
        kept.arbitrariness(np.zeros((2, 4)))
    with pytest.raises(ValueError, match="NaN"):
        kept.arbitrariness(np.full((2, 3), np.nan))
    with pytest.raises(ValueError, match="level"):
        kept.arbitrariness(np.zeros((2, 3)), level=95)
    assert len(kept.arbitrariness(np.zeros((0, 3))).high) == 0
    X = RNG.normal(size=(300, 3))
    whole = kept.arbitrariness(X)
    parts = [kept.arbitrariness(part).high for part in (X[:7], X[7:])]
    np.testing.assert_array_equal(whole.high, np.concatenate(parts))


@pytest.mark.parametrize(
    ("map_", "shift"), [(Platt(2.0, [0.5, -0.5]), 0.5), (Beta([1.0], [1.0], [-0.5]), 0.5)]
)
@pytest.mark.parametrize("name", ["gaussian", "gamma", "objective"])
def test_a_map_that_moves_the_threshold_moves_the_plane(map_, shift, name):
    plain = PrivateClassifier.of(fitted(name))
    moved = PrivateClassifier(plain.weights, replace(plain.manifest, map=map_))
    X = RNG.normal(size=(50, 3))
    result = moved.arbitrariness(X, individuals=2)
    shifted = type(plain.weights)(plain.weights.coef, plain.weights.intercept - shift, True)
    other = PrivateClassifier(shifted, plain.manifest).arbitrariness(X)
    np.testing.assert_allclose(result.high, other.high, atol=1e-3)
    np.testing.assert_allclose(result.low, other.low, atol=1e-9)
    assert result.holds_for == "all individuals at once"  # the map was fitted to these weights
    assert any("counts as fixed" in caveat for caveat in result.caveats)


def test_other_maps_are_rejected_or_never_arbitrary():
    plain = PrivateClassifier.of(fitted("gaussian"))
    binned = Binned(Bins(2), [0.0, 0.4])
    folded = PrivateClassifier(plain.weights, replace(plain.manifest, map=binned))
    with pytest.raises(DataError, match="a binned map"):
        folded.arbitrariness(np.zeros((1, 3)))
    platt = Platt(0.0, [0.0, 1.0])
    constant = PrivateClassifier(plain.weights, replace(plain.manifest, map=platt))
    assert constant.arbitrariness(np.ones((2, 3))).high.tolist() == [0.0, 0.0]


# ---------------------------------------------------------------- re-training


def test_intervals_cover_over_real_releases():
    """Fresh noise in every fit: of 100 releases, at most a tenth may miss an individual."""
    dataset, level, missed = records(), 0.9, 0
    rows = np.hstack([dataset.X, np.ones((300, 1))])
    exact = OutputPerturbation(1e9, C=0.1, norm=1.0).fit_records(dataset)  # next to no noise
    center = np.r_[exact.coef_[0], exact.intercept_]
    shares = []
    for _ in range(100):
        model = clone(MODELS["gaussian"]).fit_records(dataset)
        truth = gaussian_disagreement(center, rows, model.noise_std_)
        kept, options = NoiseModel.of(model, model), {"level": level, "individuals": None}
        result = kept.arbitrariness(
            LinearWeights.of(model), dataset.X, threshold=0.0, **options
        )
        missed += bool(((truth < result.low - 1e-6) | (truth > result.high + 1e-6)).any())
        shares.append(result.informative_share)
    assert missed / 100 <= 0.1 + 5 * np.sqrt(0.09 / 100) and np.mean(shares) > 0.1


@pytest.mark.long
@pytest.mark.parametrize("classes", [2, 3])
def test_certificates_cover_over_real_releases(classes):
    dataset = records(classes, n=600)
    kind = ObjectivePerturbation(8.0, C=0.01, norm=1.0)
    models = [clone(kind).fit_records(dataset) for _ in range(500)]
    decisions = np.stack([model.predict(dataset.X) for model in models])
    shares = np.stack([(decisions == c).mean(axis=0) for c in range(classes)])
    truth = classes / (classes - 1) * (1 - (shares**2).sum(axis=0))
    missed, content = 0, []
    for model in models[:300]:
        kept, options = NoiseModel.of(model, model), {"level": 0.95, "individuals": None}
        result = kept.arbitrariness(
            LinearWeights.of(model), dataset.X, threshold=0.0, **options
        )
        missed += bool((truth > result.high + 0.06).any())
        content.append(result.informative_share)
    assert missed / 300 <= 0.05 and np.mean(content) > 0.2


# ---------------------------------------------------------------- strangers


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(noise=None),
        lambda m: m.update(noise=[]),
        lambda m: m.update(noise={}),
        lambda m: m["noise"].pop("scale"),
        lambda m: m["noise"].pop("step"),
        lambda m: m["noise"].update(other_files=1),
        lambda m: m["noise"].update(mechanism="dp-sgd"),
        lambda m: m["noise"].update(mechanism=["output"]),
        lambda m: m["noise"].update(distribution="laplace"),
        lambda m: m["noise"].update(distribution={}),
        lambda m: m["noise"].update(
            distribution="gaussian"
        ),  # which no perturbed objective has
        lambda m: m["noise"].update(scale=0),
        lambda m: m["noise"].update(scale=-1.0),
        lambda m: m["noise"].update(scale=1e-200),
        lambda m: m["noise"].update(scale=1e200),
        lambda m: m["noise"].update(scale=10**400),
        lambda m: m["noise"].update(scale="1.0"),
        lambda m: m["noise"].update(scale=True),
        lambda m: m["noise"].update(scale=None),
        lambda m: m["noise"].update(scale=[1.0]),
        lambda m: m["noise"].update(penalty=None),
        lambda m: m["noise"].update(penalty=-1.0),
        lambda m: m["noise"].update(penalty=1e300),
        lambda m: m["noise"].update(step=2.0**-40),  # of an objective
        lambda m: m["noise"].update(step="0"),
        lambda m: m["noise"].update(step=None),
        lambda m: m["noise"].update(residual=None),
        lambda m: m["noise"].update(residual=-1e-5),
        lambda m: m["noise"].update(dimension=5),
        lambda m: m["noise"].update(dimension=3),
        lambda m: m["noise"].update(dimension=4.0),
        lambda m: m["noise"].update(dimension=10**9),
        lambda m: m["noise"].update(intercept=False),
        lambda m: m["noise"].update(intercept=False, dimension=3),
        lambda m: m["noise"].update(intercept=1),
        lambda m: m["noise"].update(mechanism="output"),  # with a penalty
        lambda m: m.update(one_vs_rest=False),
    ],
    ids=range(37),
)
def test_invalid_noise_is_rejected(change, tmp_path):
    saved("objective", tmp_path / "a")
    changed(tmp_path / "a", lambda content: change(content["model"]))
    with pytest.raises(DataError, match="noise|linear"):
        PrivateClassifier.load(tmp_path / "a")


def test_noise_of_a_non_private_classifier_is_rejected(tmp_path):
    saved("objective", tmp_path / "a")
    changed(tmp_path / "a", lambda content: content.update(guarantee=NotPrivate(()).to_json()))
    with pytest.raises(DataError, match="not private"):
        PrivateClassifier.load(tmp_path / "a")


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e999", "-0.0"])
def test_invalid_numbers_are_rejected(text, tmp_path):
    saved("gamma", tmp_path / "a")
    path = tmp_path / "a" / "model.json"
    scale = json.dumps(json.loads(path.read_text())["model"]["noise"]["scale"])
    path.write_text(path.read_text().replace(f'"scale": {scale}', f'"scale": {text}'))
    with pytest.raises(DataError):
        PrivateClassifier.load(tmp_path / "a")


def test_noise_beyond_the_range_of_floats_is_not_stored():
    model = clone(MODELS["gamma"]).fit_records(records())
    model.noise_scale_ = 1e150
    assert NoiseModel.of(model, model) is None

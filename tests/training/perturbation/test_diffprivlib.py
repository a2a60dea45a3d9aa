"""The compatibility rule has the distribution of diffprivlib 0.6.2, measured by running it."""

import json
import math
import os
import runpy
from pathlib import Path

import numpy as np
import pytest

from veracal.mechanisms.rounded_noise import SphericalNoise
from veracal.training import ObjectivePerturbation
from veracal.training.newton import minimize
from veracal.training.output_perturbation import spherical_gamma
from veracal.training.perturbation import clip_rows, one_vs_rest_signs

HERE = Path(__file__).parent
PEER = runpy.run_path(str(HERE / "diffprivlib_quantiles.py"))
STORED = json.loads((HERE / "diffprivlib_quantiles.json").read_text(encoding="utf-8"))
NAMES = [f"{s['epsilon']}-{s['norm']}-{s['k']}" for s in STORED["settings"]]
RULE = "diffprivlib-0.6.2"
DRAWS = 14_000


def model_of(setting, **more):
    return ObjectivePerturbation(
        setting["epsilon"], C=setting["C"], norm=setting["norm"], rule=RULE, **more
    )


def drawn(setting, used, draws, *, rng):
    """Many releases with some penalty and noise, of shape (draws, weights of all models)."""
    rows, labels = map(np.array, PEER["table"](setting["k"]))
    X = clip_rows(rows, setting["norm"], fit_intercept=True)
    penalty = np.array([used["features"], used["features"], used["intercept"]])
    parts = []
    for signs in one_vs_rest_signs(labels, setting["k"]):
        noise = spherical_gamma(3, used["scale"], rng=rng, size=draws)
        parts.append(minimize(X, signs, noise, penalty=penalty))
    return np.hstack(parts)


def used_by(setting, more_noise=1.0):
    """Penalty and noise of the compatibility rule."""
    used = model_of(setting).perturbation(setting["norm"], setting["k"])
    return {
        "features": used.lambda_total,
        "intercept": used.intercept_penalty,
        "scale": more_noise * used.noise_scale,
    }


def used_by_066(setting):
    """The formula of 0.6.6, converted from a mean of losses to a sum."""
    epsilon = setting["epsilon"] / (setting["k"] if setting["k"] > 2 else 1)
    alpha, R = 1 / setting["C"], math.hypot(setting["norm"], 1)
    left, more = epsilon - 2 * math.log(1 + R / 4 / alpha), 0.0
    if left <= 0:
        more, left = R / 4 / (math.exp(epsilon / 4) - 1) - alpha, epsilon / 2
    return {"features": alpha + more, "intercept": max(more, 1e-6), "scale": 2 * R / left}


def gap(weights, setting):
    """Maximum difference between a level and the share of our weights below its quantile."""
    columns = zip(weights.T, np.array(setting["quantiles"]), strict=True)
    below = [(column[:, None] < known).mean(axis=0) for column, known in columns]
    return float(np.abs(np.array(below) - STORED["levels"]).max())


def band(draws, fits=STORED["fits"]):
    """Kolmogorov-Smirnov bound for two samples of one distribution, at a level of 1e-4."""
    return 2.23 * math.sqrt(1 / draws + 1 / fits)


@pytest.mark.parametrize("setting", STORED["settings"], ids=NAMES)
def test_the_distribution_is_that_of_diffprivlib(setting, rng):
    assert gap(drawn(setting, used_by(setting), DRAWS, rng=rng), setting) < band(DRAWS)


@pytest.mark.parametrize("number", [2, 6])
def test_the_test_detects_a_tenth_more_noise(number, rng):
    setting = STORED["settings"][number]
    louder = drawn(setting, used_by(setting, 1.1), DRAWS, rng=rng)
    assert gap(louder, setting) > band(DRAWS)


@pytest.mark.parametrize("number", [0, 4, 5])
def test_the_test_detects_the_newer_formula(number, rng):
    setting = STORED["settings"][number]
    newer = drawn(setting, used_by_066(setting), DRAWS, rng=rng)
    assert gap(newer, setting) > band(DRAWS)


@pytest.mark.parametrize("k", [2, 3])
def test_the_classifier_has_the_same_distribution(k):
    setting = next(s for s in STORED["settings"] if s["k"] == k)
    rows, labels = map(np.array, PEER["table"](k))
    model = model_of(setting, random_state=5).fit(rows, labels)
    rng = np.random.default_rng(5)
    used = used_by(setting)
    penalty = np.array([used["features"], used["features"], used["intercept"]])
    signs = one_vs_rest_signs(labels, k)
    drawn = [SphericalNoise(used["scale"], 3, rng=rng).intervals() for _ in signs]
    noise = np.array(drawn, dtype=float).mean(axis=2)
    X = clip_rows(rows, setting["norm"], fit_intercept=True)
    expected = minimize(X, signs, noise, penalty=penalty)
    result, step = np.c_[model.coef_, model.intercept_], model.grid_step_
    np.testing.assert_array_equal(result, np.rint(expected / step) * step)
    np.testing.assert_allclose(result, expected, atol=1e-5)
    assert not model.private_ and model.event_ is None


def test_the_stored_quantiles_are_of_that_version():
    assert STORED["versions"] == {"diffprivlib": "0.6.2", "scikit-learn": "1.2.0"}
    assert STORED["fits"] >= 20_000
    kept = [{k: v for k, v in s.items() if k != "quantiles"} for s in STORED["settings"]]
    assert kept == PEER["SETTINGS"]


@pytest.mark.long
@pytest.mark.may_skip
def test_diffprivlib_still_gives_the_stored_quantiles():
    """Needs VERACAL_DIFFPRIVLIB, the path of a Python that has diffprivlib 0.6.2."""
    python = os.environ.get("VERACAL_DIFFPRIVLIB")
    if not python:
        pytest.skip("VERACAL_DIFFPRIVLIB names no Python with diffprivlib 0.6.2")
    fresh = PEER["ask"](python, 1_000)
    assert fresh["versions"] == STORED["versions"]
    for now, then in zip(fresh["settings"], STORED["settings"], strict=True):
        levels = np.array(STORED["levels"])
        for new, old in zip(now["quantiles"], then["quantiles"], strict=True):
            reached = np.interp(new, old, levels)  # share of the stored fits below
            inner = slice(1, -1)  # the stored quantiles do not cover the tails
            assert np.abs(reached - levels)[inner].max() < band(1_000)

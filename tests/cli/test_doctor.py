"""`veracal doctor` tells a machine that is well from one whose noise is almost right."""

import json
import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from veracal.cli import _checkup
from veracal.mechanisms.discrete_noise import add_discrete_gaussian, add_discrete_laplace
from veracal.testing import mechanisms as noise


@pytest.fixture
def few_draws(monkeypatch):
    """Noise that is quickly drawn, where its law is not the question."""
    monkeypatch.setattr(noise, "DRAWS", 2_000)


def test_a_machine_that_is_well(run, tmp_path):
    code, out, err = run("doctor", "--json")
    found = json.loads(out)
    assert code == 0 and found["well"] and not err
    names = {check["name"] for check in (*found["environment"], *found["tests"])}
    assert {"Python", "numpy", "SQLite", "threads", "disk of the cache"} <= names
    assert {"discrete Laplace noise", "secret generator", "a ledger here"} <= names
    assert list(tmp_path.iterdir()) == []
    code, out, _ = run("doctor")
    assert code == 0 and "All is well" in out


@pytest.mark.parametrize("add", [add_discrete_laplace, add_discrete_gaussian])
def test_noise_of_a_tenth_too_little_is_told(add):
    test = noise.laplace_pvalue if add is add_discrete_laplace else noise.gaussian_pvalue
    draws = add(np.zeros(noise.DRAWS, dtype=np.int64), noise.SCALE)
    assert test(draws, noise.SCALE) > 1e-6
    assert test(draws, 1.1 * noise.SCALE) < _checkup.LEAST_PVALUE
    less = add(np.zeros(noise.DRAWS, dtype=np.int64), 0.9 * noise.SCALE)
    assert test(less, noise.SCALE) < _checkup.LEAST_PVALUE


def test_the_two_laws_are_told_apart():
    zeros = np.zeros(noise.DRAWS, dtype=np.int64)
    laplace = add_discrete_laplace(zeros, 4.0)
    assert noise.gaussian_pvalue(laplace, float(laplace.std())) < _checkup.LEAST_PVALUE


def test_pvalues_are_uniform_where_the_law_is_right():
    rng = np.random.default_rng(0)
    k = np.arange(-noise.CUTOFF, noise.CUTOFF + 1)
    weights = np.exp(-np.abs(k) / 4.0)
    found = [
        noise.laplace_pvalue(rng.choice(k, size=5_000, p=weights / weights.sum()), 4.0)
        for _ in range(300)
    ]
    assert noise.stats.kstest(found, "uniform").pvalue > 0.001


def test_normal_noise_a_tenth_too_small_is_told():
    draws = np.random.default_rng(0).normal(0, 1, noise.DRAWS)
    assert noise.normal_pvalue(draws, 1.0) > 1e-3
    assert noise.normal_pvalue(draws, 1.1) < _checkup.LEAST_PVALUE


@pytest.mark.parametrize(
    ("patched", "value", "said"),
    [
        ("veracal.testing.mechanisms.add_discrete_laplace", lambda x, s: x, "discrete Laplace"),
        ("veracal._random.secret_generator", lambda: np.random.default_rng(0), "secret gen"),
        ("veracal.ledger.open_ledger", mock.Mock(side_effect=OSError("full")), "full"),
        ("veracal.cli._checkup._LIBRARIES", ("no-such-library",), "pip install no-such"),
    ],
)
def test_what_is_wrong_is_told_and_the_code_is_1(run, few_draws, patched, value, said):
    with mock.patch(patched, value):
        code, out, err = run("doctor")
    assert code == 1 and said in err and "WRONG" in out and "All is well" not in out


def test_a_missing_extra_is_no_fault(run, few_draws):
    with mock.patch.dict(_checkup._EXTRAS, {"report": ("no_such_module",)}):
        code, out, _ = run("doctor")
    assert code == 0 and 'pip install "veracal[report]"' in out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.may_skip
def test_a_folder_that_cannot_be_written_to(run, tmp_path):
    Path(tmp_path).chmod(0o500)
    code, _, err = run("doctor")
    assert code == 1 and "a ledger here" in err

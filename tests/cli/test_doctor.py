"""`veracal doctor` distinguishes a correct machine from one whose noise is slightly wrong."""

import json
import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from veracal.cli import doctor
from veracal.mechanisms.discrete_noise import add_discrete_gaussian, add_discrete_laplace
from veracal.testing import mechanisms as noise


@pytest.fixture
def few_draws(monkeypatch):
    """Fewer draws, for tests of something else."""
    monkeypatch.setattr(noise, "DRAWS", 2_000)


def test_a_correct_machine_passes(run, tmp_path):
    code, out, err = run("doctor", "--json")
    checkup = json.loads(out)
    assert code == 0 and checkup["passed"] and not err
    names = {check["name"] for check in (*checkup["environment"], *checkup["tests"])}
    assert {"Python", "numpy", "SQLite", "threads", "cache disk"} <= names
    assert {"discrete Laplace noise", "secret generator", "a ledger here"} <= names
    assert list(tmp_path.iterdir()) == []
    code, out, _ = run("doctor")
    assert code == 0 and "All checks passed" in out


@pytest.mark.parametrize("add", [add_discrete_laplace, add_discrete_gaussian])
def test_noise_that_is_a_tenth_too_small_is_detected(add):
    test = noise.laplace_pvalue if add is add_discrete_laplace else noise.gaussian_pvalue
    draws = add(np.zeros(noise.DRAWS, dtype=np.int64), noise.SCALE)
    assert test(draws, noise.SCALE) > 1e-6
    assert test(draws, 1.1 * noise.SCALE) < doctor.MIN_PVALUE
    less = add(np.zeros(noise.DRAWS, dtype=np.int64), 0.9 * noise.SCALE)
    assert test(less, noise.SCALE) < doctor.MIN_PVALUE


def test_the_two_distributions_are_distinguished():
    zeros = np.zeros(noise.DRAWS, dtype=np.int64)
    laplace = add_discrete_laplace(zeros, 4.0)
    assert noise.gaussian_pvalue(laplace, float(laplace.std())) < doctor.MIN_PVALUE


def test_pvalues_are_uniform_for_the_right_distribution():
    rng = np.random.default_rng(0)
    k = np.arange(-noise.CUTOFF, noise.CUTOFF + 1)
    weights = np.exp(-np.abs(k) / 4.0)
    pvalues = [
        noise.laplace_pvalue(rng.choice(k, size=5_000, p=weights / weights.sum()), 4.0)
        for _ in range(300)
    ]
    assert noise.stats.kstest(pvalues, "uniform").pvalue > 0.001


def test_normal_noise_that_is_a_tenth_too_small_is_detected():
    draws = np.random.default_rng(0).normal(0, 1, noise.DRAWS)
    assert noise.normal_pvalue(draws, 1.0) > 1e-3
    assert noise.normal_pvalue(draws, 1.1) < doctor.MIN_PVALUE


@pytest.mark.parametrize(
    ("patched", "value", "said"),
    [
        ("veracal.testing.mechanisms.add_discrete_laplace", lambda x, s: x, "discrete Laplace"),
        ("veracal._random.secret_generator", lambda: np.random.default_rng(0), "secret gen"),
        ("veracal.ledger.open_ledger", mock.Mock(side_effect=OSError("full")), "full"),
        ("veracal.cli.doctor._LIBRARIES", ("no-such-library",), "pip install no-such"),
    ],
)
def test_a_failed_check_is_reported_with_exit_code_1(run, few_draws, patched, value, said):
    with mock.patch(patched, value):
        code, out, err = run("doctor")
    assert code == 1 and said in err and "FAILED" in out and "All checks passed" not in out


def test_a_missing_extra_is_not_a_failure(run, few_draws):
    with mock.patch.dict(doctor._EXTRAS, {"report": ("no_such_module",)}):
        code, out, _ = run("doctor")
    assert code == 0 and 'pip install "veracal[report]"' in out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.may_skip
def test_a_folder_that_cannot_be_written_to(run, tmp_path):
    Path(tmp_path).chmod(0o500)
    code, _, err = run("doctor")
    assert code == 1 and "a ledger here" in err

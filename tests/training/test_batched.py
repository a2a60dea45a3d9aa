"""Batched fits equal sequential fits."""

from contextlib import nullcontext
from functools import partial
from itertools import product
from unittest import mock

import numpy as np
import pytest
from scipy import stats

from tests.training.closed_form import clipped_gradient_sum
from veracal.data import Dataset
from veracal.data.rows import MappedRows
from veracal.mechanisms import (
    SGD,
    Adam,
    Automatic,
    Exponential,
    Flat,
    GlobalAdapt,
    GlobalV1,
    GlobalV2,
    Langevin,
    Momentum,
)
from veracal.mechanisms.dp_sgd import PrefetchedNoise
from veracal.mechanisms.sampling import Poisson
from veracal.training import PrivateLogisticRegression
from veracal.training import batched as many_batches
from veracal.training import batched as many_descents
from veracal.training.batched import (
    Batch,
    clipped_sums,
    independent_batches,
    poisson_rows,
    prepare_fits,
    shared_batches,
    standard_normals,
    train_batched,
)

N, D, STEPS, MODELS = 50, 4, 8, 3
CLOSE = {"float32": 1e-5, "float64": 1e-10}
CLIPS = [Flat(0.7), Automatic(0.7), GlobalV1(0.7, 2.0), GlobalV2(1.5)]
UPDATES = [SGD(0.8), Momentum(0.3), Adam(0.1, weight_decay=0.2), Langevin(0.5, 0.002)]
usual = {"epsilon": None, "delta": 1e-4, "steps": STEPS, "sampling_rate": 0.3}
Regression = partial(PrivateLogisticRegression, **usual)


def table(k=2, seed=0, dtype=np.float64, n=N):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)).astype(dtype) * 2
    return Dataset(X, rng.integers(k, size=n), tuple(range(k)), size=60)


def noisy(optimizer):
    return None if isinstance(optimizer, Langevin) else 1.5


def drawn(fits, own, seed=0, models=MODELS):
    """Recorded batches and noise of all steps."""
    draws, noise = np.random.default_rng(seed).spawn(2)
    batches = (
        independent_batches(fits, models, rng=draws) if own else shared_batches(fits, rng=draws)
    )
    return list(batches), [one.copy() for one in standard_normals(fits, models, rng=noise)]


def rows_of(batch, model, n=N):
    """The rows in one model's batch."""
    if batch.members is not None:
        return np.flatnonzero(batch.members[model])
    if isinstance(batch.rows, slice):
        return np.arange(n)
    rows = batch.rows[model] if batch.rows.ndim == 2 else batch.rows
    return rows[rows < n]


def replayed(model, data, batches, noise, number):
    """The weights of one fit with the batches and the noise of one model."""
    coming, normal = iter(batches), iter(noise)

    def batch(self, n, rng):
        return rows_of(next(coming), number)

    def noisy(self, total, std):
        return total + std * next(normal)[number]

    with (
        mock.patch.object(Poisson, "batch", batch),
        mock.patch.object(PrefetchedNoise, "add_to", noisy),
    ):
        fitted = model.fit_records(data)
    assert next(normal, None) is None
    parts = [fitted.coef_, fitted.intercept_[:, None]]
    return np.hstack(parts if model.fit_intercept else parts[:1])


def check_replay(model, data, own=True):
    fits = prepare_fits(model, data)
    batches, noise = drawn(fits, own)
    result = train_batched(fits, MODELS, batches, (one.copy() for one in noise))
    for number in (0, MODELS - 1):
        single = replayed(model, data, batches, noise, number)
        assert result[number].dtype == single.dtype
        close = CLOSE[single.dtype.name] * max(1, np.abs(single).max())
        np.testing.assert_allclose(result[number], single, rtol=0, atol=close)
    return result


@pytest.fixture(autouse=True)
def _no_search_for_libraries():
    """Looking up BLAS libraries would take longer than a fit here."""
    with mock.patch(
        "veracal.training.gradient_sums.threadpool_limits", return_value=nullcontext()
    ):
        yield


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("optimizer", UPDATES, ids=repr)
@pytest.mark.parametrize("clip", CLIPS, ids=repr)
def test_each_model_is_a_fit_with_the_same_batches_and_noise(clip, optimizer, k):
    """Every optimizer with and without average and decay; both kinds of batches."""
    for number, (dtype, average, decay) in enumerate(product(CLOSE, (0.0, 0.4), (0.0, 0.3))):
        model = Regression(
            clip=clip,
            optimizer=optimizer,
            noise_multiplier=noisy(optimizer),
            average=average,
            weight_decay=decay,
            dtype=dtype,
        )
        check_replay(model, table(k), own=number % 3 > 0)


SETTINGS = {
    "Nesterov's momentum": {"optimizer": Momentum(0.3, nesterov=True)},
    "a rate that changes": {"optimizer": SGD(Exponential(1.0, 0.1))},
    "a sampler of the posterior": {
        "optimizer": Langevin(0.01, 0.01, mode="langevin", records=N),
        "noise_multiplier": None,
    },
    "all rows": {"sampling_rate": 1.0},
    "masked rows": {"sampling_rate": 0.8},
    "empty batches": {"sampling_rate": 0.01},
    "no intercept": {"fit_intercept": False},
    "somewhere to start": {"initial": (np.full((3, D), 0.2), np.arange(3.0))},
    "replace-one": {"relation": "replace-one", "size": N},
    "noise that changes": {"noise_multiplier": Exponential(2.0, 0.1)},
    "classes in another order": {"classes": [2, 0, 1]},
}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_all_supported_settings_match_single_fits(settings, dtype, own):
    data = table(3)
    check_replay(Regression(**{"noise_multiplier": 1.5, "dtype": dtype, **settings}), data, own)


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("clip", [Flat(0.7), GlobalV1(0.7, 2.0)], ids=repr)
@pytest.mark.filterwarnings("error")
def test_rows_excluded_by_a_fit_are_excluded(clip, dtype):
    data = table(3)
    odd = np.array(data.X)
    odd[3] *= 1e300
    odd[4] *= 1e25
    odd = Dataset(odd, data.y, data.classes, size=60)
    model = Regression(noise_multiplier=1.5, clip=clip, dtype=dtype)
    far = np.abs(check_replay(model, odd) - check_replay(model, data)).max()
    assert far > 1e-3  # these rows matter otherwise
    tiny = Dataset(np.array(data.X) * 1e-300, data.y, data.classes, size=60)
    model = Regression(noise_multiplier=1.5, clip=clip, dtype=dtype, fit_intercept=False)
    check_replay(model, tiny)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("clip", CLIPS, ids=repr)
def test_sums_are_those_of_each_model_alone(clip, k):
    data = table(k)
    fits = prepare_fits(Regression(noise_multiplier=1.0, clip=clip), data)
    rng = np.random.default_rng(1)
    weights = rng.normal(size=(MODELS, *fits.start.shape))
    rows = np.array([[4, 7, 9], [1, 2, N], [N, N, N]])
    members = rng.random((MODELS, N)) < 0.6
    for batch in (Batch(rows[0]), Batch(rows), Batch(slice(N), members), Batch(slice(N))):
        result = clipped_sums(fits, weights, batch)
        for number in range(MODELS):
            taken = rows_of(batch, number)
            slow = clipped_gradient_sum(weights[number], data.X[taken], data.y[taken], clip)
            np.testing.assert_allclose(result[number], slow.total, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", CLOSE)
def test_logits_of_any_size_have_their_residuals(dtype, monkeypatch):
    """Small logits need no subtraction of the maximum, and give the same residuals."""
    data = table(3)
    fits = prepare_fits(Regression(noise_multiplier=1.0, dtype=dtype), data)
    weights = np.random.default_rng(1).normal(size=(MODELS, *fits.start.shape)).astype(dtype)
    for scale in (0.01, 1.0, 2.5, 100.0):
        result = clipped_sums(fits, scale * weights, Batch(slice(N)))
        with monkeypatch.context() as patch:
            patch.setattr(many_descents, "_MAX_LOGIT", dict.fromkeys(CLOSE, -1.0))
            careful = clipped_sums(fits, scale * weights, Batch(slice(N)))
        np.testing.assert_allclose(result, careful, rtol=0, atol=20 * CLOSE[dtype])
        for one, total in zip(weights, result, strict=True):
            wide = scale * one.astype(np.float64)
            slow = clipped_gradient_sum(wide, data.X, data.y, fits.dp_sgd.clip).total
            np.testing.assert_allclose(total, (1 - fits.slack) * slow, rtol=1e-4, atol=1e-3)


def test_overflow_in_one_model_does_not_affect_others():
    data = table(3)
    fits = prepare_fits(Regression(noise_multiplier=1.0), data)
    weights = np.random.default_rng(1).normal(size=(MODELS, *fits.start.shape))
    rows = np.tile(np.arange(5), (MODELS, 1))
    with np.errstate(all="ignore"):
        alone = clipped_sums(fits, weights, Batch(rows))
        weights[1] = np.nan
        result = clipped_sums(fits, weights, Batch(rows))
    np.testing.assert_allclose(result[[0, 2]], alone[[0, 2]], rtol=1e-12)
    assert not result[1].any()


def test_without_noise_shared_batches_make_all_models_the_same():
    for own in (False, True):
        fits = prepare_fits(Regression(noise_multiplier=1.0), table(3))
        batches, noise = drawn(fits, own)
        result = train_batched(fits, MODELS, batches, (0 * one for one in noise))
        assert (np.ptp(result, axis=0).max() < 1e-12) is not own


# ---------------------------------------------------------------- what is drawn


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.7, 0.9])
@pytest.mark.parametrize("gathered", [True, False])
def test_each_record_enters_each_batch_independently(rate, gathered, monkeypatch):
    monkeypatch.setattr(many_batches, "uses_masks", lambda fits: not gathered)
    n, models, steps = 30, 20, 300
    fits = prepare_fits(
        Regression(noise_multiplier=1.0, sampling_rate=rate, steps=steps), table(n=n)
    )
    drawn = list(independent_batches(fits, models, rng=np.random.default_rng(2)))
    assert all((batch.members is None) is gathered for batch in drawn)
    members = np.zeros((steps, models, n))
    for batch, taken in zip(drawn, members, strict=True):
        for number in range(models):
            taken[number, rows_of(batch, number, n)] += 1
    assert members.max() == 1

    counts = members.sum(axis=2).ravel()  # sizes of batches are binomial
    assert (
        distribution_pvalue(counts, stats.binom(n, rate))
        > 1e-3
        > distribution_pvalue(counts, stats.binom(n, rate * 1.1))
    )
    each = members.sum(axis=(0, 1))  # all records have the same rate
    assert stats.chisquare(each).pvalue > 1e-3
    pairs = np.corrcoef(members.reshape(-1, n).T) - np.eye(n)  # and are independent
    assert np.abs(pairs).max() < 5 / np.sqrt(steps * models)
    models_pairs = np.corrcoef(members.transpose(1, 0, 2).reshape(models, -1)) - np.eye(models)
    assert np.abs(models_pairs).max() < 5 / np.sqrt(steps * n)


def distribution_pvalue(counts, expected):
    """P-value of counts against a distribution, with rare values merged into cells."""
    many = 10 / len(counts)
    values = np.arange(1, counts.max() + 2)
    cuts = values[(expected.cdf(values - 1) > many) & (expected.sf(values - 1) > many)]
    probabilities = np.diff(expected.cdf(cuts - 1), prepend=0.0, append=1.0)
    seen = np.bincount(np.searchsorted(cuts, counts, side="right"), minlength=len(cuts) + 1)
    return stats.chisquare(seen, probabilities * len(counts)).pvalue


def test_batches_are_gathered_at_low_rates_and_masked_at_high_rates():
    for k, rates in {2: (0.3, 0.7), 9: (0.4, 0.85)}.items():
        model = [Regression(noise_multiplier=1.0, sampling_rate=rate) for rate in (*rates, 1.0)]
        result = [many_batches.uses_masks(prepare_fits(one, table(k))) for one in model]
        assert result == [False, True, False]


def test_a_batch_that_needs_more_draws_gets_them(monkeypatch):
    """If the first draw is too short, further draws have the same distribution."""
    n, rate = 40, 0.5
    rng = np.random.default_rng(0)
    monkeypatch.setattr(many_batches.math, "sqrt", lambda _: -3.0)  # one draw at a time
    rows = poisson_rows(n, rate, 2_000, rng=rng)
    counts = (rows < n).sum(axis=1)
    assert counts.max() == rows.shape[1] and (np.diff(rows, axis=1)[rows[:, 1:] < n] > 0).all()
    assert distribution_pvalue(counts, stats.binom(n, rate)) > 1e-3


def test_batches_of_no_records_are_empty():
    assert poisson_rows(0, 0.3, 4, rng=np.random.default_rng(0)).shape == (4, 0)


def test_noise_is_standard_normal_and_independent():
    fits = prepare_fits(Regression(noise_multiplier=1.0, steps=400), table(3))
    rng = np.random.default_rng(3)
    noise = np.array([one.copy() for one in standard_normals(fits, 6, rng=rng)])
    assert stats.kstest(noise.ravel(), "norm").pvalue > 0.01
    assert stats.kstest(noise.ravel(), stats.norm(scale=1.05).cdf).pvalue < 1e-3
    flat = noise.transpose(1, 0, 2, 3).reshape(6, -1)
    assert np.abs(np.corrcoef(flat) - np.eye(6)).max() < 5 / np.sqrt(flat.shape[1])
    steps = noise.reshape(400, -1)
    assert np.abs(np.corrcoef(steps) - np.eye(400)).max() < 6 / np.sqrt(steps.shape[1])


# ---------------------------------------------------------------- what is refused


class Mine:
    def start(self, weights):
        return None

    def step(self, weights, gradient, state, t):
        return weights - gradient / np.linalg.norm(gradient), None


REFUSED = {
    "custom optimizer": {"optimizer": Mine()},
    "noise before the clip": {"optimizer": Langevin(0.1, 0.1, pre_noise=0.1)},
    "adaptive clip": {"clip": GlobalAdapt(1.0)},
    "hook": {"on_step": lambda model, step: None},
    "not_private": {"not_private": "clipping only"},
}


@pytest.mark.parametrize("what", REFUSED)
def test_unsupported_settings_are_rejected(what):
    settings = {"noise_multiplier": 1.0, **REFUSED[what]}
    if isinstance(settings.get("optimizer"), Langevin):
        settings["noise_multiplier"] = None
    with pytest.raises(ValueError, match=f"{what}.*RetrainEngine"):
        prepare_fits(Regression(**settings), table())


def test_rows_on_disk_are_rejected(tmp_path):
    data = table()
    np.save(tmp_path / "rows.npy", data.X)
    X = MappedRows.of(np.load(tmp_path / "rows.npy", mmap_mode="r"))
    with pytest.raises(ValueError, match="rows on disk.*RetrainEngine"):
        prepare_fits(Regression(noise_multiplier=1.0), Dataset(X, data.y, data.classes, size=N))

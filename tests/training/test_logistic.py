"""Private logistic regression equals its definition for all clip rules and optimizers."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, softmax
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import check_estimator

from veracal import _random
from veracal.accounting import clt_epsilon_not_a_bound, epsilon_for
from veracal.mechanisms import (
    DPSGD,
    SGD,
    Adam,
    Automatic,
    Exponential,
    Flat,
    GlobalAdapt,
    GlobalV1,
    Langevin,
    Linear,
    Momentum,
    Poisson,
    StepProgress,
)
from veracal.training import PrivateLogisticRegression

N, D = 400, 4
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (N, D))
TWO = (X[:, 0] - X[:, 1] + 0.3 * RNG.standard_normal(N) > 0).astype(int)
FOUR = (X[:, :2] > 0) @ [1, 2]
LANGEVIN = Langevin(Exponential(0.005, 0.028, every=5), 6.08, pre_noise=0.046)


def model(**changes) -> PrivateLogisticRegression:
    settings = {"epochs": 5, "sampling_rate": 0.2, "size": N, "average": 0.0}
    return PrivateLogisticRegression(**{**settings, **changes})


@pytest.mark.parametrize(
    "estimator",
    [
        PrivateLogisticRegression(),
        PrivateLogisticRegression(
            relation="replace-one", sampling_rate=1.0, dtype="float32", fit_intercept=False
        ),
        PrivateLogisticRegression(
            epsilon=None, steps=10, optimizer=LANGEVIN, clip=Automatic(1.0)
        ),
        PrivateLogisticRegression(not_private="neither", steps=10, optimizer=Adam(0.1)),
    ],
    ids=repr,
)
def test_scikit_learn_contract(estimator) -> None:
    check_estimator(estimator, on_skip=None)  # one check needs another array library


@pytest.mark.parametrize("labels", [TWO, FOUR], ids=["two classes", "four"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_a_fit_equals_its_definition(labels, intercept, rate) -> None:
    """DP-SGD written out, one example at a time, with the same draws."""
    fitted = model(
        clip=0.4, optimizer=0.7, fit_intercept=intercept, random_state=7, sampling_rate=rate
    ).fit(X, labels)
    rng = np.random.default_rng(7)
    rng.spawn(1)
    draws, noise = rng.spawn(2)
    k = labels.max() + 1
    wide = np.hstack([X, np.ones((N, 1))]) if intercept else X
    weights = np.zeros((1 if k == 2 else k, wide.shape[1]))
    for multiplier in fitted.noise_multipliers_:
        total = noise.normal(0, multiplier * 0.4, weights.shape)
        rows = Poisson(rate).batch(N, draws) if rate < 1 else range(N)
        for x, y in zip(wide[rows], labels[rows], strict=True):
            p = expit(weights @ x) - y if k == 2 else softmax(weights @ x) - np.eye(k)[y]
            gradient = np.outer(p, x)
            total += gradient * min(1, 0.4 / np.linalg.norm(gradient))
        weights = weights - 0.7 * total / (rate * N)
    result = np.hstack([fitted.coef_, fitted.intercept_[:, None]])
    np.testing.assert_allclose(result[:, : weights.shape[1]], weights, rtol=1e-4, atol=1e-5)


def test_with_negligible_noise_the_fit_is_the_minimizer() -> None:
    """Without clipping and noise, the fit converges to scikit-learn's minimum."""
    fitted = model(
        not_private="neither",
        sampling_rate=1.0,
        epochs=3_000,
        optimizer=4.0,
        weight_decay=1 / N,
    ).fit(X, TWO)
    wide = np.hstack([X, np.ones((N, 1))])
    usual = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10).fit(wide, TWO)
    result = np.append(fitted.coef_, fitted.intercept_)
    np.testing.assert_allclose(result, usual.coef_[0], rtol=1e-4)


def test_the_noise_on_the_weights_has_the_stated_standard_deviation() -> None:
    """After one full step over rows of zeros the weights are pure noise."""
    empty = np.zeros((50, 8_000))
    fitted = model(
        epsilon=None, noise_multiplier=3.0, clip=0.5, optimizer=2.0, steps=1, epochs=None,
        sampling_rate=1.0, size=50,
    ).fit(empty, np.arange(50) % 2)  # fmt: skip
    std = 2.0 * 3.0 * 0.5 / 50
    assert stats.kstest(fitted.coef_[0], stats.norm(0, std).cdf).pvalue > 1e-6
    assert stats.kstest(fitted.coef_[0], stats.norm(0, 1.15 * std).cdf).pvalue < 1e-6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("labels", [TWO, FOUR], ids=["two classes", "four"])
@pytest.mark.parametrize(
    "optimizer",
    [
        0.5,
        SGD(Linear(1.0, 0.0, 25)),
        Momentum(0.2, nesterov=True),
        Adam(0.1, weight_decay=0.01),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
@pytest.mark.parametrize(
    "clip",
    [1.0, Automatic(0.5), GlobalV1(0.5, 3.0), GlobalAdapt(0.5, 3.0)],
    ids=lambda clip: type(clip).__name__,
)
def test_every_clip_rule_works_with_every_optimizer(dtype, labels, optimizer, clip) -> None:
    fitted = model(
        epsilon=20.0, classes=range(labels.max() + 1), clip=clip, optimizer=optimizer, dtype=dtype,
        weight_decay=0.001, sampling_rate=0.5, epochs=25,
    ).fit(X, labels)  # fmt: skip
    assert fitted.private_
    assert fitted.coef_.dtype == dtype
    assert fitted.score(X, labels) > 0.75
    assert epsilon_for(fitted.event_, 1e-5) <= 20.0


@pytest.mark.parametrize("mode", ["mean", "sum", "langevin"])
def test_dp_sgld_draws_the_noise_of_its_mode(mode) -> None:
    optimizer = replace(LANGEVIN, mode=mode, pre_noise=0.0)
    subject = model(epsilon=None, optimizer=optimizer, clip=0.5, epochs=2)
    rates = optimizer.learning_rate.values(10)
    expected = {
        "mean": 0.2 * N * np.sqrt(2 * rates * 6.08),
        "sum": np.sqrt(2 * rates * 6.08),
        "langevin": 0.2 * N * np.sqrt(2 * 6.08 / rates) / 0.5,
    }[mode]
    fitted = subject.fit(X, TWO, classes=[0, 1])
    np.testing.assert_allclose(fitted.noise_multipliers_, expected)
    assert fitted.private_
    assert fitted.event_ == subject.event()
    assert (np.diff(fitted.noise_multipliers_)[4] > 0) == (mode == "langevin")


def test_dp_sgld_trains_until_its_budget_is_spent() -> None:
    subject = model(epsilon=0.6, epochs=None, optimizer=LANGEVIN, clip=0.5, classes=[0, 1])
    fitted = subject.fit(X, TWO)
    assert fitted.private_ and fitted.n_iter_ == len(fitted.noise_multipliers_) > 10
    assert 0.5 < epsilon_for(fitted.event_, 1e-5) <= 0.6
    # The paper's accountant underestimates the cost, and is never used for statements.
    assert clt_epsilon_not_a_bound(fitted.event_, 1e-5) < epsilon_for(fitted.event_, 1e-5)
    assert fitted.statement_.epsilon == epsilon_for(fitted.event_, 1e-5)


def test_pre_noise_does_not_lower_the_cost() -> None:
    with_it = model(epsilon=None, optimizer=LANGEVIN, steps=5, epochs=None).event()
    without = model(
        epsilon=None, optimizer=replace(LANGEVIN, pre_noise=0.0), steps=5, epochs=None
    ).event()
    assert with_it == without


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_iterates_are_averaged_over_the_last_share(share) -> None:
    seen: list[np.ndarray] = []
    fitted = model(
        average=share, random_state=0, on_step=lambda m, s: seen.append(s.weights)
    ).fit(X, FOUR)
    last = max(1, int(np.ceil(share * 25)))
    np.testing.assert_allclose(
        fitted.coef_, np.mean(seen[-last:], axis=0)[:, :-1], rtol=1e-6, atol=1e-12
    )


def test_averaging_brings_dp_sgld_nearer_to_the_posterior_mean() -> None:
    minimum = LogisticRegression(C=np.inf, tol=1e-8).fit(X, TWO).coef_[0]
    gaps = {}
    for share in (0.0, 0.5):
        optimizer = Langevin(0.2, 2e-3, mode="langevin")
        result = [
            model(
                epsilon=None, optimizer=optimizer, average=share, sampling_rate=1.0, epochs=3_000,
                clip=3.0, random_state=seed,
            ).fit(X, TWO).coef_[0]
            for seed in range(3)
        ]  # fmt: skip
        gaps[share] = np.linalg.norm(np.array(result) - minimum, axis=1).mean()
    assert gaps[0.5] < gaps[0.0]


def test_progress_reports_step_counts_only() -> None:
    counts = []

    def note(*shown):
        counts.append(shown)
        return True  # it does not end the run

    fitted = model(epochs=None, steps=5, on_step=StepProgress(note), classes=[0, 1]).fit(X, TWO)
    assert counts == [(done, 5) for done in range(1, 6)] and fitted.n_iter_ == 5
    with pytest.raises(TypeError, match="not called with weights"):
        StepProgress(note)(fitted, None)
    with pytest.raises(TypeError, match="cannot be subclassed"):
        type("Sneaky", (StepProgress,), {})
    with pytest.raises(ValueError, match="callable"):
        StepProgress(None)
    assert copy.deepcopy(fitted).on_step is fitted.on_step


def test_a_hook_sees_the_current_model_and_may_end_the_run() -> None:
    curve = []

    def watch(subject, step):
        curve.append((step.number, subject.score(X, TWO)))
        return np.bool_(step.number == 7)

    fitted = model(epsilon=30.0, on_step=watch, classes=[0, 1]).fit(X, TWO)
    assert [number for number, _ in curve] == list(range(8))
    assert curve[-1][1] == fitted.score(X, TWO)
    assert fitted.n_iter_ == 8
    assert not fitted.private_ and "ended by a hook" in fitted.not_private_because_[0]
    assert fitted.event_ == model(epsilon=30.0).event()  # the charge is unchanged
    curve.clear()
    assert model(on_step=lambda *_: None, classes=[0, 1]).fit(X, TWO).private_


def test_training_starts_from_the_initial_weights() -> None:
    coef, intercept = np.arange(16.0).reshape(4, 4), np.arange(4.0)
    seen = []
    fitted = model(
        initial=(coef, intercept), optimizer=1e-12, steps=1, epochs=None,
        on_step=lambda m, s: seen.append(m.coef_),
    ).fit(X, FOUR)  # fmt: skip
    np.testing.assert_allclose(fitted.coef_, coef, atol=1e-6)
    np.testing.assert_allclose(fitted.intercept_, intercept, atol=1e-6)
    with pytest.raises(ValueError, match="initial coefficients of shape"):
        model(initial=(coef, intercept)).fit(X, TWO)


def test_private_fits_differ() -> None:
    ends = [model().fit(X, TWO).coef_ for _ in range(2)]
    assert not np.isin(*ends).any()
    assert _random.is_secret(_random.generator(model().random_state))


def test_ablations_keep_the_stated_part_of_the_protection() -> None:
    ends = {}
    for ablation in (None, "clipping only", "noise only", "neither"):
        # Long rows: clipping matters. One class: the exact gradient is known.
        fitted = model(
            epsilon=None, noise_multiplier=1e-9, not_private=ablation, clip=0.01, optimizer=1.0,
            steps=1, epochs=None, sampling_rate=1.0, fit_intercept=False, classes=[0, 1],
        ).fit(X, np.ones(N))  # fmt: skip
        ends[ablation] = np.linalg.norm(fitted.coef_)
    assert ends[None] == pytest.approx(ends["clipping only"], rel=1e-6)
    assert ends["noise only"] == pytest.approx(ends["neither"], rel=1e-6)
    assert ends["neither"] > 5 * ends["clipping only"]
    loud = model(
        epsilon=None, noise_multiplier=1e4, not_private="clipping only", classes=[0, 1]
    ).fit(X, TWO)
    assert np.abs(loud.coef_).max() < 50  # unclipped noise would be in the thousands


def test_a_step_with_an_empty_batch_adds_noise() -> None:
    fitted = model(sampling_rate=1e-4, steps=30, epochs=None, size=10_000).fit(X, TWO)
    assert fitted.n_iter_ == 30 and np.abs(fitted.coef_).min() > 0


def test_probabilities_are_those_of_the_logits() -> None:
    for labels in (TWO, FOUR):
        fitted = model().fit(X, labels)
        probabilities = fitted.predict_proba(X)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1)
        np.testing.assert_allclose(softmax(fitted.logits(X), axis=1), probabilities)
        np.testing.assert_allclose(np.exp(fitted.predict_log_proba(X)), probabilities)
        assert np.array_equal(fitted.classes_[probabilities.argmax(axis=1)], fitted.predict(X))


def test_the_score_of_a_row_does_not_depend_on_other_rows() -> None:
    digits, labels = load_digits(return_X_y=True)
    fitted = model(size=len(digits), dtype="float32").fit(digits.astype(np.float32), labels)
    alone = np.vstack([fitted.decision_function(row[None]) for row in digits[:40]])
    assert np.array_equal(alone, fitted.decision_function(digits)[:40])


def test_digits_are_learned_at_a_typical_budget() -> None:
    digits, labels = load_digits(return_X_y=True)
    rows = digits / 8 - 1
    train = np.arange(len(rows)) % 4 > 0
    fitted = PrivateLogisticRegression(epsilon=3.0, classes=range(10), size=1_350).fit(
        rows[train], labels[train]
    )
    assert fitted.private_ and fitted.score(rows[~train], labels[~train]) > 0.85


def test_a_private_fit_draws_from_a_secret_generator(monkeypatch) -> None:
    """A fit without a seed draws from one secret generator."""
    instance = []
    monkeypatch.setattr(
        DPSGD,
        "run",
        lambda self, *args, rng, **more: instance.append(_random.is_secret(rng)) or _stop(),
    )
    with pytest.raises(InterruptedError):
        model(classes=[0, 1]).fit(X, TWO)
    assert instance == [True]


def _stop():
    raise InterruptedError


def test_numbers_stand_for_flat_clipping_and_sgd() -> None:
    assert model(clip=0.3)._spec().clip == Flat(0.3)
    assert model(optimizer=0.3)._spec().optimizer == SGD(0.3)

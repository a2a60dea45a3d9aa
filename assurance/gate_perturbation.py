"""Perturbed logistic regression keeps its epsilon on the worst known neighbors.

Two tests relate a fitted model to its privacy. The density of the release of objective
perturbation is known in closed form, so its privacy loss between neighbors can be maximized: in
two dimensions, with common rows whose gradient is along the record in question (in one
dimension, half the noise would pass unnoticed). And the noise can be *recovered*: a released w
is the exact minimizer for one noise vector only, which must have the stated distribution and be
the same for neighbors that are fitted with the same generator.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats
from scipy.special import expit

from assurance import perturbations as mutants
from veracal._types import Floats
from veracal.accounting import Gaussian, Pure
from veracal.data import Dataset
from veracal.training import ObjectivePerturbation, OutputPerturbation
from veracal.training.newton import MAX_RESIDUAL
from veracal.training.perturbation import Perturbation, norm_bound

NAME = "perturbation"
RELATIONS: tuple[Any, ...] = ("add-remove", "replace-one")
SETTINGS = ((0.5, 1.0, 10.0), (1.0, 1.0, 1.0), (2.5, 0.1, 6.0), (4.0, 100.0, 3.0))
ALPHA = 1e-4


def derivatives(
    w: Floats, rows: Floats, penalty: Floats, times: Floats | float = 1.0
) -> tuple[Floats, Floats]:
    """Gradient and Hessian of the objective without noise.

    Rows are multiplied by their signs; each may occur several times.
    """
    chances = expit(-(rows @ w))
    bends = chances * (1 - chances) * times
    return penalty * w - (chances * times) @ rows, (rows.T * bends) @ rows + np.diag(penalty)


@dataclass(frozen=True)
class Neighbors:
    """Weights, rows shared by neighbors (with multiplicities), and rows that differ."""

    w: Floats
    common: Floats
    times: float
    one: Floats
    other: Floats

    def loss(self, penalty: Floats, scale: float) -> float:
        """Log ratio of the densities of w for the two data sets."""
        shared_g, shared_H = derivatives(self.w, self.common, penalty, self.times)
        parts = [derivatives(self.w, rows, 0 * penalty) for rows in (self.one, self.other)]
        (gap, bend), (other_gap, other_bend) = (
            (np.linalg.norm(shared_g + g) / scale, np.linalg.slogdet(shared_H + H)[1])
            for g, H in parts
        )
        return float(other_gap - gap + bend - other_bend)


def attack(R: float, penalty: float, relation: str) -> Iterator[Neighbors]:
    """Neighbors in two dimensions that are as different as possible.

    The weights point along the second axis and are long, so that rows almost along the first
    may have any margin. Many common rows on the wrong side pull along the first axis and do
    not bend. The record has the margin where pull and bend together weigh most; the one that
    replaces it pulls the other way and does not bend.
    """
    long = 1e5 / R
    times = 1e4 * (1 + penalty * long / R)  # so that the penalty's gradient is small
    flat = (
        math.log(times * R * R / penalty) + 10
    )  # a margin at which the curvature of all these rows is negligible
    w = np.array([0.0, long])

    def row(margin: float, along: float) -> Floats:
        """A row times its sign: its norm is R, and it points along or against the axis."""
        slope = margin / (R * long)
        return R * np.array([[along * math.sqrt(1 - slope**2), slope]])

    common, opposite = row(-flat, -1.0), row(-30.0, -1.0)
    for margin in np.linspace(-4, 4, 33):
        for along in (1.0, -1.0):
            other = opposite if relation == "replace-one" else np.zeros((0, 2))
            yield Neighbors(w, common, times, row(margin, along), other)


def worst_loss(used: Perturbation, R: float, relation: str) -> float:
    """The largest privacy loss of one binary model on the neighbors, in either direction."""
    penalty = np.full(2, used.lambda_total)
    losses = [
        pair.loss(penalty, used.noise_scale) for pair in attack(R, used.lambda_total, relation)
    ]
    # Almost no records: one row with its intercept, at weights near zero.
    penalty = np.array([used.lambda_total, used.intercept_penalty])
    lone, none = np.array([[math.sqrt(max(R * R - 1, 0.0)), 1.0]]), np.zeros((0, 2))
    for w in np.array([[0.0, 0.0], [0.1, -0.1], [-0.2, 0.3]]):
        for row in (lone, -lone, lone * [0.0, 1.0]):
            losses.append(Neighbors(w, none, 1.0, row, none).loss(penalty, used.noise_scale))
    return float(np.abs(losses).max())


@dataclass(frozen=True)
class Subject:
    """The two classifiers."""

    objective: type[ObjectivePerturbation] = ObjectivePerturbation
    output: type[OutputPerturbation] = OutputPerturbation


CORRECT = Subject()
MUTANTS = {
    "half the noise": Subject(mutants.HalfScale),
    "half the noise drawn": Subject(mutants.HalfDrawn),
    "R for R squared": Subject(mutants.NotSquared),
    "intercept not penalized": Subject(mutants.FreeIntercept),
    "noise of add-remove under replace-one": Subject(mutants.ReplacedAsRemoved),
    "epsilon not split over classes": Subject(mutants.NotSplit),
    "rows not clipped": Subject(mutants.RawRows),
    "norm read from the data": Subject(mutants.BoundFromData),
    "classes read from the data": Subject(mutants.ClassesFromData),
    "direction from a cube": Subject(mutants.Cornered),
    "solved as far as scikit-learn does": Subject(mutants.Inexact),
    "penalty by the real number of records": Subject(mutants.PerRecord),
    "output: half the noise": Subject(output=mutants.OutputHalf),
    "output: sensitivity of add-remove under replace-one": Subject(
        output=mutants.OutputReplaced
    ),
    "output: intercept not penalized": Subject(output=mutants.OutputFree),
    "output: nothing split over classes": Subject(output=mutants.OutputNotSplit),
    "output: solved as far as scikit-learn does": Subject(output=mutants.OutputInexact),
}


def run(subject: Subject, *, long: bool) -> str:
    """Maximize densities, recover noise, replay neighbors."""
    tightest = max(densities(subject))
    replays = recovered_noise(subject, 40 if long else 4)
    moved = moved_weights(subject, 200 if long else 4)
    return (
        f"losses up to {tightest:.3f} of epsilon; {replays} noise vectors recovered; "
        f"weights move up to {moved:.3f} of what the noise covers"
    )


def densities(subject: Subject) -> Iterator[float]:
    """Share of epsilon that the worst neighbors use, under all settings."""
    for epsilon, C, norm in SETTINGS:
        for relation in RELATIONS:
            for fit_intercept in (True, False):
                for k in (2, 3):
                    model = subject.objective(
                        epsilon, C=C, relation=relation, fit_intercept=fit_intercept
                    )
                    assert model.event() == Pure(epsilon, relation), "the event is another"
                    used = model.perturbation(norm, k)
                    R = norm_bound(norm, fit_intercept=fit_intercept)
                    result = worst_loss(used, R, relation) * (k if k > 2 else 1)
                    assert result <= epsilon, (
                        f"{relation}, R={R:.3g}, {k} classes: the privacy loss reaches "
                        f"{result:.4f}, and {epsilon} is claimed"
                    )
                    yield result / epsilon


def neighbors(rng: np.random.Generator, relation: str) -> tuple[Dataset, Dataset]:
    """Two data sets of three columns that differ in one row, some rows far too long."""
    n = int(rng.integers(1, 40))
    X = rng.standard_normal((n, 3)) * 10.0 ** rng.uniform(-2, 2, (n, 1))
    y = rng.integers(0, int(rng.integers(1, 4)), n)
    if relation == "add-remove":
        return table(X, y, n), table(X[:-1], y[:-1], n)
    other_X, other_y = X.copy(), y.copy()
    other_X[-1], other_y[-1] = -X[-1] * 10.0 ** rng.uniform(-1, 2), (y[-1] + 1) % 3
    return table(X, y, n), table(other_X, other_y, n)


def table(X: Floats, y: Any, size: int) -> Dataset:
    """A data set with a declared size."""
    return Dataset(X, y, ("a", "b", "c"), size=size)


def slow_rows(X: Any, norm: float) -> Floats:
    """Clipped rows with a one appended."""
    longer = np.maximum(1.0, np.linalg.norm(X, axis=1, keepdims=True) / norm)
    return np.hstack([X / longer, np.ones((len(X), 1))])


def noise_of(model: Any, data: Dataset, norm: float) -> Floats:
    """The noise for which a fitted model is the exact minimizer, one row per class."""
    rows = slow_rows(data.X, norm)
    weights = np.hstack([model.coef_, model.intercept_[:, None]])
    penalty = np.full(rows.shape[1], model.lambda_total_)
    assert len(weights) == 3, f"{len(weights)} models for 3 declared classes"
    result = []
    for c, w in enumerate(weights):
        signed = rows * np.where(data.y == c, 1, -1)[:, None]
        result.append(-derivatives(w, signed, penalty)[0])
    return np.array(result)


def recovered_noise(subject: Subject, rounds: int) -> int:
    """Recover the noise of many fits, and test its distribution on neighbors."""
    rng = np.random.default_rng(1)
    seen = 0
    for relation in RELATIONS:
        scale = expected_scale(0.5, 3.0, math.sqrt(5.0), relation)
        drawn = []
        for seed in range(rounds * 25):
            pair = neighbors(rng, relation)
            model = subject.objective(
                1.5, norm=2.0, C=3.0, relation=relation, random_state=seed
            )
            drawn.append(fitted_noise(model, pair[0]))
            if seed % 4 == 0:
                gap = float(np.abs(drawn[-1] - fitted_noise(model, pair[1])).max())
                most = 1e-8 + rounding(max(map(len, pair)), 0.5, 3.0, math.sqrt(5.0))
                assert gap < most, f"neighbors have noise that differs by {gap:.1e}"
        vectors = np.concatenate(drawn)
        check_distribution(np.linalg.norm(vectors, axis=1) / scale, stats.gamma(4), relation)
        check_directions(vectors)
        seen += len(vectors)
    return seen


def rounding(n: int, epsilon: float, C: float, R: float) -> float:
    """Error of the recovered noise from the rounding of two released weight vectors.

    Each by a gradient of at most 2^-21 R, times the ratio of the largest and the least
    curvature.
    """
    penalty = max(1 / C, R * R / 4 / math.expm1(epsilon / 2))
    return (1 + n * R * R / 4 / penalty) * R * 2.0**-20


def expected_scale(epsilon: float, C: float, R: float, relation: str) -> float:
    """Scale of the noise of one model, by the formula."""
    penalty = max(1 / C, R * R / 4 / math.expm1(epsilon / 2))
    left = epsilon - math.log1p(R * R / 4 / penalty)
    return (1 if relation == "add-remove" else 2) * R / left


def fitted_noise(model: Any, data: Dataset) -> Floats:
    """Fit, and recover the noise."""
    mutants.RAW[0] = np.hstack([data.X, np.ones((len(data), 1))])
    return noise_of(model.fit_records(data), data, 2.0)


def check_distribution(lengths: Floats, law: Any, relation: str) -> None:
    """Lengths of the noise have the stated distribution."""
    result = stats.kstest(lengths, law.cdf).pvalue
    assert result > ALPHA, f"{relation}: the noise has another length, p = {result:.1e}"


def check_directions(vectors: Floats) -> None:
    """Directions are those of normal vectors, by their distance from the axes."""

    def peaked(points: Floats) -> Floats:
        return (points**4).sum(axis=1) / (points**2).sum(axis=1) ** 2

    normal = np.random.default_rng(3).standard_normal((20_000, vectors.shape[1]))
    result = stats.ks_2samp(peaked(vectors), peaked(normal)).pvalue
    assert result > ALPHA, f"the noise prefers some directions, p = {result:.1e}"


def moved_weights(subject: Subject, rounds: int) -> float:
    """Share of the stated sensitivity that neighbors of output perturbation use."""
    rng = np.random.default_rng(2)
    worst = 0.0
    for relation in RELATIONS:
        pairs = [neighbors(rng, relation) for _ in range(rounds)]
        for delta in (0.0, 1e-5):
            model = subject.output(1.0, delta, norm=2.0, C=0.01, relation=relation)
            for pair in [distant_neighbors(relation), *pairs]:
                worst = max(worst, share_used(model, pair))
            check_recovered_noise(model, relation)
    return worst


def distant_neighbors(relation: str) -> tuple[Dataset, Dataset]:
    """Neighbors whose minimizers are far apart.

    A crowd of one class makes the weights long along the second feature. A row beyond it on
    the wrong side pulls along the first feature, where nothing bends, nearly with all it has.
    """
    crowd = np.tile([0.0, 2.0, 0.0], (8_000, 1))
    row = np.array([[1.67, 1.1, 0.0]])
    y = np.ones(len(crowd), dtype=int)
    one = table(np.vstack([crowd, row]), np.append(y, 0), len(y) + 1)
    if relation == "add-remove":
        return one, table(crowd, y, len(y) + 1)
    return one, table(np.vstack([crowd, row * [-1, 1, 1]]), np.append(y, 0), len(y) + 1)


def share_used(model: Any, pair: tuple[Dataset, Dataset]) -> float:
    """Change of the weights by a row, relative to the sensitivity of the event."""
    noise = recover_noise(model, 0)
    exact = []
    for data in pair:
        weights = weights_of(model.set_params(random_state=0).fit_records(data)) - noise
        check_minimizer(weights, data, model)
        exact.append(weights)
    lengths = np.linalg.norm(exact[0] - exact[1], axis=1)
    event = model.event()
    if isinstance(event, Gaussian):
        moved = float(np.linalg.norm(lengths)) / model.noise_std_
        allowed = event.sensitivity / event.noise
    else:
        moved, allowed = float(lengths.sum()) / model.noise_scale_, event.epsilon
    assert moved <= allowed, (
        f"output, {event}: a row moves the weights by {moved:.4f} of the noise, and "
        f"{allowed:.4f} is accounted for"
    )
    return moved / allowed


def recover_noise(model: Any, seed: int) -> Floats:
    """The release for one record minus the minimizer by plain Newton steps."""
    data = table(np.array([[0.5, -0.5, 1.0]]), np.array([0]), 1)
    released = weights_of(model.set_params(random_state=seed).fit_records(data))
    rows, penalty = slow_rows(data.X, 2.0), np.full(4, 1 / model.C)
    exact = np.zeros_like(released)
    for w, sign in zip(exact, (1, -1, -1), strict=True):
        for _ in range(8):
            g, H = derivatives(w, sign * rows, penalty)
            w -= np.linalg.solve(H, g)
    return released - exact


def check_minimizer(weights: Floats, data: Dataset, model: Any) -> None:
    """The final gradient is within the bound that the sensitivity assumes."""
    rows = slow_rows(data.X, 2.0)
    penalty = np.full(rows.shape[1], 1 / model.C)
    for c, w in enumerate(weights):
        signed = rows * np.where(data.y == c, 1, -1)[:, None]
        left = float(np.linalg.norm(derivatives(w, signed, penalty)[0]))
        assert left <= MAX_RESIDUAL * math.sqrt(5.0), (
            f"output: a gradient of {left:.1e} is left"
        )


def check_recovered_noise(model: Any, relation: str) -> None:
    """The drawn noise has the stated distribution."""
    drawn = np.concatenate([recover_noise(model, seed) for seed in range(60)])
    lengths = np.linalg.norm(drawn, axis=1)
    if model.noise_std_ is None:
        check_distribution(lengths / model.noise_scale_, stats.gamma(4), relation)
    else:
        check_distribution(lengths / model.noise_std_, stats.chi(4), relation)
    check_directions(drawn)


def weights_of(model: Any) -> Floats:
    """Released weights, the intercept last."""
    return np.hstack([model.coef_, model.intercept_[:, None]])

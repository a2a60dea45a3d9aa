"""Clip rules that jump see no other record in the gradients of linear models.

The attack of ``network_jumps``, on linear models: a threshold lies between two norms that a
record's gradient has in two places. One more record changes the place of all its copies: as
another row of a wide matrix, whose sums ``einsum`` cuts by the number of rows, or as a row for
which a function of the user's in front of the model raises, so that all rows are turned one by
one. There is no tolerance.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.preprocessing import FunctionTransformer

from assurance.linear import Patches, patched
from veracal.data import Dataset
from veracal.mechanisms import ClipRule, GlobalAdapt, GlobalV1, GlobalV2, Step
from veracal.mechanisms.clipping import _target_norm
from veracal.training import PrivateLogisticRegression, make_private_pipeline
from veracal.training.base import row_norms
from veracal.training.gradient_sums import GradientSums, blocks_for, gradient_norms, residuals

NAME = "linear_jumps"
WIDE, COPIES, RAISES = 20_000, 40, 777.0
RNG = np.random.default_rng(0)
WEIGHTS = RNG.standard_normal((1, WIDE + 1)) / 100
PROJECTION = RNG.standard_normal((50, 7))


def together(weights: Any, X: Any, *, intercept: bool) -> Any:
    """Logits of all rows by one call, as the first code had them."""
    sums = np.einsum("nd,kd->nk", X, weights[:, : X.shape[1]], optimize=False)
    return sums + weights[:, -1] if intercept else sums


def norms_together(rows: Any) -> Any:
    """Norms of all rows by one call."""
    return np.sqrt(np.einsum("ij,ij->i", rows, rows))


def as_a_column(X: Any) -> Any:
    """A product that rounds a row by how many there are, on every machine."""
    if (X[:, 0] == RAISES).any():
        raise ValueError("Expected another row.")
    return (X @ PROJECTION) * (1 + 2.0**-40 * (len(X) > 1))


CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "the first code: all rows by one call": {
        "veracal.training.gradient_sums.logits_one_by_one": together,
        "veracal.training.base._norms": norms_together,
    },
    "norms of all rows by one call": {"veracal.training.base._norms": norms_together},
    "rows turned together before a rule that jumps": {
        "veracal.training.pipeline._jumps": lambda step: False
    },
}


def rules(low: float, high: float) -> tuple[ClipRule, ...]:
    """Rules that jump between two norms."""
    middle = (low + high) / 2
    return (
        GlobalV2(middle / _target_norm(1.0)),
        GlobalV1(middle, middle),
        GlobalAdapt(middle, middle),
    )


def run(subject: Patches, *, long: bool) -> str:
    """Attack."""
    with patched(subject):
        figures = [wide_rows(), turned_rows()]
    return f"sums move by {max(figures):.6f} of what is declared"


def wide_rows() -> float:
    """A copy of the only row of a wide matrix comes."""
    worst = 0.0
    for seed in range(8):
        row = np.random.default_rng(seed).standard_normal((1, WIDE)) / 100
        both = [norms_of(np.repeat(row, n, 0))[0] for n in (1, 2)]
        for clip in rules(*sorted(both)):
            one, other = (summed(np.repeat(row, n, 0), clip) for n in (1, 2))
            worst = max(worst, apart(one.total - other.total, clip))
            worst = max(worst, abs(one.exceeding - other.exceeding))
            assert worst <= 1, f"a copy moves the sum by {worst:.6f} of what is declared"
    return worst


def norms_of(X: Any) -> Any:
    """Norms of gradients as the first code had them."""
    residual = residuals(together(WEIGHTS, X, intercept=False), np.zeros(len(X), int))
    return gradient_norms(residual, norms_together(X))


def summed(X: Any, clip: ClipRule) -> Any:
    """The clipped sum of all rows."""
    blocks = blocks_for(10.0, np.float64)
    norms, codes = row_norms(X), np.zeros(len(X), int)
    sums = GradientSums(X, codes, norms, blocks, rng=np.random.default_rng(0), intercept=False)
    return sums(WEIGHTS[:, :-1], np.arange(len(X)), clip)


def apart(difference: Any, clip: ClipRule) -> float:
    """How long a difference of sums is, in units of the bound."""
    return float(np.linalg.norm(difference) / clip.bound)


def turned_rows() -> float:
    """A row comes for which a function in front of the model raises."""
    row = np.random.default_rng(1).standard_normal((1, 50))
    X = np.concatenate([np.full((1, 50), RAISES), np.repeat(row, COPIES, 0)])
    features = [as_a_column(np.repeat(row, n, 0))[:1] for n in (1, 2)]
    # At weights of zero, all of three classes have the same probability.
    norms = [float(np.linalg.norm(one)) * np.sqrt(2 / 3) for one in features]
    worst = 0.0
    for clip in rules(*sorted(norms)):
        sums = [first_sum(X[first:], clip, as_a_column) for first in (0, 1)]
        worst = max(worst, apart(sums[0] - sums[1], clip))
        assert worst <= 1, f"a row that raises moves the sum by {worst:.6f} of the bound"
    return worst


def first_sum(X: Any, clip: ClipRule, function: Callable[[Any], Any]) -> Any:
    """The first noisy sum of a pipeline; the noise is the same each time."""
    steps: list[Step] = []

    def watch(model: Any, step: Step) -> None:
        steps.append(step)

    model = PrivateLogisticRegression(
        None,
        1e-9,
        noise_multiplier=1.0,
        steps=1,
        sampling_rate=1.0,
        clip=clip,
        average=0.0,
        fit_intercept=False,
        on_step=watch,
        random_state=0,
    )
    pipeline = make_private_pipeline(FunctionTransformer(function), model)
    pipeline.fit_records(Dataset(X, np.zeros(len(X), int), (0, 1, 2), size=COPIES))
    return steps[0].noisy_sum

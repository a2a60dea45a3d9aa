"""NumPy's settings for overflow and underflow do not affect an answer.

Under ``np.errstate(all="raise")``, or where warnings are errors, arithmetic on an extreme
record ends in an error. Where that comes after the charge, the answer is an error on one data
set and a number on its neighbor: pure information about one record. The former code raised for
mapped scores and for gradients (108 of 352 cases tried). Every question is put to extreme
records in every context, and the answer must be the same number.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np

from assurance import ledgers
from veracal.accounting.events import Budget
from veracal.calibration import (
    AbsoluteGaps,
    BinnedGap,
    BrierGain,
    ConfidenceWeightedGaps,
    ConfidenceWeightedSlopes,
    CorrectWrong,
    Gap,
    LossAt,
    ParameterGrid,
    Platt,
    PlattCurvature,
    PlattEquations,
    PlattGradient,
    Temperature,
    TemperatureGradient,
    TwoTemperatures,
)
from veracal.calibration.queries.scalars import on_mapped_scores
from veracal.data import Scores
from veracal.ledger import Ledger, open_ledger
from veracal.queries import curator as holder
from veracal.queries.curator import Curator

NAME = "calibration_contexts"
CLASSES = 3
LOGITS = (
    (1e308, -1e308, 0.0),
    (1.7e308, 1.7e308, -1.7e308),
    (1e-320, 0.0, 0.0),
    (700.0, -700.0, 0.0),
    (0.0, 0.0, 0.0),
)
PROBABILITIES = (
    (1.0, 0.0, 0.0),
    (1e-320, 1 - 1e-16, 1e-16),
    (0.2, 0.3, 0.5),
)
Evaluate = Callable[[Any, Any], Any]


# ---------------------------------------------------------------- mutants


def in_any_context(query: Any, records: Any) -> Any:
    """The former code: evaluate under whatever the caller has set."""
    return query.evaluate(records)


def without_overflow_alone(query: Any, records: Any) -> Any:
    """Ignore overflow and invalid operations, and leave underflow to the caller."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return query.evaluate(records)


CORRECT: Evaluate = holder.evaluate_query
MUTANTS: dict[str, Evaluate] = {
    "the caller's context": in_any_context,
    "underflow as the caller wants": without_overflow_alone,
}


# ---------------------------------------------------------------- the gate


def run(subject: Evaluate, *, long: bool) -> str:
    """Make every query in every context."""
    failed, tried = [], 0
    for scores in records():
        for query in queries():
            usual = subject(query, scores)
            for mode in ("raise", "warn"):
                tried += 1
                with np.errstate(all=mode), warnings.catch_warnings():
                    warnings.simplefilter("error")
                    try:
                        assert np.array_equal(subject(query, scores), usual), "another answer"
                    except (ArithmeticError, RuntimeWarning) as error:
                        failed.append(f"{query.name}: {error}")
    assert not failed, f"{len(failed)} of {tried} answers were errors, such as {failed[0]!r}"
    charged(subject)
    return f"the same answer in {tried} contexts, and one that was charged is an answer"


def records() -> Iterator[Scores]:
    """Extreme records."""
    for values, make in (
        (LOGITS, Scores.from_logits),
        (PROBABILITIES, Scores.from_probabilities),
    ):
        for dtype in (np.float64, np.float32):
            limits = np.finfo(dtype)
            with np.errstate(all="ignore"):
                rows = np.clip(np.array(values), limits.min, limits.max).astype(dtype)
            yield make(rows, np.arange(len(rows)) % CLASSES)


def queries() -> Iterator[Any]:
    """Questions of every kind, about records and about mapped ones."""
    k, grid = CLASSES, ParameterGrid()
    matrix = np.random.default_rng(0).normal(size=(k, k)) * 1e3
    affine = tuple(Platt(w, np.ones(k)) for w in (1e3, np.full(k, 1e3), matrix))
    two = TwoTemperatures(0.7, 3.0)
    yield from (Gap(), Gap(0.7, k), LossAt(0.7), TemperatureGradient(0.3), AbsoluteGaps())
    yield from (
        BinnedGap(),
        CorrectWrong(),
        ConfidenceWeightedGaps(two),
        ConfidenceWeightedSlopes(two),
    )
    yield from (PlattCurvature(0.5, k), PlattEquations(grid.nearest(np.eye(k), np.ones(k))))
    yield from (PlattGradient(map_) for map_ in affine)
    for map_ in (*affine, Temperature(0.7), Temperature(1e6), two):
        yield BrierGain(map_)
        for query in (BinnedGap(), CorrectWrong(), AbsoluteGaps(), LossAt()):
            yield on_mapped_scores(query, map_)


def charged(subject: Evaluate) -> None:
    """An answer that was charged in a strict context is an answer."""
    query = on_mapped_scores(BinnedGap(), Temperature(0.7))
    with ExitStack() as stack:
        folder = stack.enter_context(ledgers.patched({}))
        stack.enter_context(mock.patch.object(holder, "evaluate_query", subject))
        stack.enter_context(np.errstate(all="raise"))
        open_ledger(folder / "one.ledger", Budget(1.0))
        held = Curator(
            Scores.from_logits(LOGITS, [0, 1, 2, 0, 1]), Ledger(folder / "one.ledger")
        )
        held.answer(query, micro_epsilon=100_000)

"""The contract of audit engines."""

import json

import numpy as np
from scipy import stats

from veracal._types import Floats
from veracal.multiplicity import AuditEngine
from veracal.multiplicity.engines.base import Seed

SEED = Seed.from_random_state(5)
LEVEL = 1e-4  # of the test that compares runs alone with runs together


def check_engine(
    engine: AuditEngine, *, other: AuditEngine | None = None, runs: int = 3
) -> None:
    """Check form, repetition and settings of an engine.

    Parameters
    ----------
    engine : Engine
        Whose runs differ, as they do with any noise.
    other : Engine, optional
        One with other records, individuals or parameters: its settings must differ.
    runs : int
        Number to request at once; at least 2 if the engine allows it.
    """
    count = min(runs, engine.runs_per_call)
    check_form(engine, count)
    check_repetition(engine, count)
    check_stream(engine, count)
    check_settings(engine, other)


def check_form(engine: AuditEngine, count: int) -> None:
    """Shape and range of scores, of one run and of some."""
    k = len(engine.classes)
    assert isinstance(engine.name, str) and engine.name
    assert isinstance(engine.classes, tuple) and k >= 2
    assert engine.individuals >= 1 and engine.runs_per_call >= 1
    assert engine.kind in {"logit", "probability"}
    for options in {1, count}:
        result = engine.scores(options, SEED.streams(0))
        shape = (options, engine.individuals) if k == 2 else (options, engine.individuals, k)
        assert result.shape == shape, f"scores of {options} runs: {result.shape}, not {shape}"
        assert result.dtype == np.float64
        assert np.isfinite(result).all(), "a score is not finite"
        if engine.kind == "probability":
            assert result.min() >= 0 and result.max() <= 1
            sums = result.sum(axis=2) if k > 2 else np.ones(1)
            np.testing.assert_allclose(sums, 1.0, atol=1e-9)


def check_repetition(engine: AuditEngine, count: int) -> None:
    """The same streams give the same bits, whatever came between; other ones other runs."""
    first = engine.scores(count, SEED.streams(0))
    kept = first.copy()
    later = engine.scores(count, SEED.streams(count))
    engine.scores(1, Seed.from_random_state(6).streams(0))
    again = engine.scores(count, SEED.streams(0))
    assert np.array_equal(first, kept), "a later call wrote into earlier scores"
    assert np.array_equal(again, kept), "the same streams gave other scores"
    elsewhere = engine.scores(count, Seed.from_random_state(6).streams(0))
    alike = len(np.unique(np.concatenate([kept, later, elsewhere]), axis=0))
    assert alike == 3 * count, f"{3 * count} runs, and only {alike} of them differ"


def check_stream(engine: AuditEngine, count: int) -> None:
    """A stream gives each pending chunk once, with the scores it would have alone."""
    pending = [range(0, count), range(count, count + 1), range(7 * count, 8 * count)]
    result = {runs.start: scores for runs, scores in engine.stream(iter(pending), SEED)}
    assert sorted(result) == sorted(runs.start for runs in pending)
    for runs in pending:
        alone = engine.scores(len(runs), SEED.streams(runs.start))
        assert np.array_equal(result[runs.start], alone), "a stream gives other scores"


def check_settings(engine: AuditEngine, other: AuditEngine | None) -> None:
    """Settings survive JSON, stay as they are, and are others for another engine."""
    reported = json.dumps(engine.settings(), allow_nan=False)
    assert json.loads(reported) == engine.settings(), (
        "settings change on their way through JSON"
    )
    engine.scores(1, SEED.streams(3))
    assert json.dumps(engine.settings()) == reported, "settings change with what is run"
    if other is not None:
        assert json.dumps(other.settings()) != reported, "other data, and the same settings"


def check_alone_and_together(engine: AuditEngine, runs: int, *, count: int) -> None:
    """Runs requested one by one have the distribution of runs requested together.

    Two-sample Kolmogorov-Smirnov tests of the scores of some individuals, and of the spread of
    each run over individuals.
    """
    count = min(count, engine.runs_per_call)
    alone = [engine.scores(1, SEED.streams(run)) for run in range(runs)]
    starts = range(runs, 2 * runs, count)
    some = [engine.scores(count, SEED.streams(start)) for start in starts]
    a, b = np.concatenate(alone)[:runs], np.concatenate(some)[:runs]
    assert same_distribution(a.reshape(runs, -1), b.reshape(runs, -1)) > LEVEL


def same_distribution(a: Floats, b: Floats, individuals: int = 8) -> float:
    """Smallest p-value, times the number of tests, that two samples of runs are equal in law.

    Runs are independent and individuals are not, hence a test for each of some individuals.

    Parameters
    ----------
    a, b : arrays of shape (runs, individuals)
    """
    chosen = np.unique(np.linspace(0, a.shape[1] - 1, individuals).astype(int))
    seen = [(a[:, individual], b[:, individual]) for individual in chosen]
    seen.append((np.ptp(a, axis=1), np.ptp(b, axis=1)))
    return len(seen) * min(stats.ks_2samp(*pair).pvalue for pair in seen)

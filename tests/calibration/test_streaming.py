"""What is measured in one pass is what the whole would show."""

import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from tests.calibration.metrics.sample_scores import scores, tied
from veracal.calibration import metrics
from veracal.calibration.measurement import StreamTotals, curve, stream_totals
from veracal.data import Scores
from veracal.data.score_files import scan_scores

FIGURES = [
    "accuracy", "brier", "confidence_gap", "ece", "mce", "nll", "over_confidence",
    "top_label_brier", "under_confidence",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
@pytest.mark.parametrize("size", [1, 7, 1_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_stream_equals_the_whole(kind, size, dtype):
    built = scores(400, 5, kind=kind, dtype=dtype)
    blocks = (built.take(np.arange(i, min(i + size, 400))) for i in range(0, 400, size))
    result = stream_totals(blocks)
    for name in FIGURES:
        whole = getattr(metrics, name)(built)
        assert getattr(result, name) == pytest.approx(whole, abs=1e-12, rel=0), name
    assert result.n == 400
    assert result.curve().counts == curve(built).counts


def test_a_long_stream_loses_no_digits():
    result = tied(300)
    part = StreamTotals.of(result)
    total = part
    for _ in range(12):  # two to the twelfth copies
        total = total + total
    for _ in range(2_000):
        total = total + part
    for name in FIGURES:
        if name != "nll":  # infinite here
            assert getattr(total, name) == pytest.approx(getattr(part, name), abs=1e-13), name
    assert total.n == 300 * (2**12 + 2_000)


def test_an_impossible_label_makes_an_infinite_likelihood_and_nothing_else():
    fine, wrong = Scores.from_probabilities([0.5], [1]), Scores.from_probabilities([0.0], [1])
    for order in ([fine, wrong, fine, wrong], [wrong, fine], [wrong, wrong]):
        result = stream_totals(order)
        assert result.nll == np.inf and np.isfinite(result.brier)


def test_files_are_streamed(tmp_path):
    built = scores(500, 3, dtype=np.float32)
    columns = {f"probabilities_{j}": built.values[:, j] for j in range(3)}
    frame = pl.DataFrame({**columns, "labels": built.labels})
    frame.write_parquet(tmp_path / "p.parquet", row_group_size=100)
    result = stream_totals(scan_scores(tmp_path / "p.parquet", rows=64))
    assert result.ece == pytest.approx(metrics.ece(built), abs=1e-12)


def test_nothing_to_measure_is_said():
    with pytest.raises(ValueError, match="expected at least one block, found none"):
        stream_totals([])
    empty = stream_totals([Scores.from_probabilities(np.zeros((0, 2)), [])])
    for name in FIGURES:
        with pytest.raises(ValueError, match="expected at least one record, found none"):
            getattr(empty, name)
    with pytest.raises(ValueError, match="expected at least one record, found none"):
        empty.curve()
    with pytest.raises(ValueError, match="expected labeled scores"):
        stream_totals([Scores.from_probabilities([0.5])])


def test_empty_blocks_change_nothing():
    result = scores(50, 3)
    none = result.take(np.zeros(0, dtype=int))
    assert stream_totals([none, result, none]).ece == stream_totals([result]).ece


def test_blocks_of_another_sort_are_refused():
    result = scores(5, 3)
    for other in (scores(5, 4), scores(5, 3, kind="logits")):
        with pytest.raises(ValueError, match="in every block"):
            stream_totals([result, other])
    with pytest.raises(ValueError, match="Expected totals over"):
        StreamTotals.of(result, 10) + StreamTotals.of(result, 15)


PEAK = """
import sys
from veracal.calibration.measurement import stream_totals
from veracal.data.score_files import scan_scores

def peak():
    line = next(x for x in open("/proc/self/status") if x.startswith("VmHWM"))
    return int(line.split()[1]) // 1024

stream_totals(scan_scores(sys.argv[1] + "/short.parquet"))
before = peak()
print(stream_totals(scan_scores(sys.argv[1] + "/long.parquet")).n, before, peak())
"""


def test_memory_does_not_grow_with_the_file(tmp_path, rng):
    n = 1_500_000
    p = rng.random(n, dtype=np.float32)
    frame = pl.DataFrame({"probabilities": p, "labels": (rng.random(n) < p).astype(np.int8)})
    frame.head(100_000).write_parquet(tmp_path / "short.parquet", row_group_size=50_000)
    frame.write_parquet(tmp_path / "long.parquet", row_group_size=50_000)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    rows, before, after = map(int, done.stdout.split())
    assert rows == n and after < before + 40, f"{before} MB, then {after} MB"
    assert after < 300

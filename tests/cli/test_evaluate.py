"""`veracal evaluate` measures any predictions, and states what may be published."""

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from veracal import calibration
from veracal.accounting import Budget, Unit
from veracal.calibration import plan_measurement
from veracal.calibration.measurement import curve, figure_names
from veracal.cli import COMMANDS, _figures
from veracal.cli import _figures as _curve
from veracal.data import Scores, load_scores, scan_scores
from veracal.ledger import Ledger, default_ledger_path, open_ledger
from veracal.queries import Curator
from veracal.report import drawable

N = 900
QUICK = ["--replicates", "2"]


def create(n=N, k=3, factor=2.0, seed=0):
    """Logits that are ``factor`` times too large, and labels."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * 2
    return factor * logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


@pytest.fixture(scope="module")
def scores():
    logits, labels = create()
    return Scores.from_logits(logits, labels)


@pytest.fixture
def predictions(scores):
    sexes = np.array(["f", "m"])[np.arange(N) % 3 // 2]
    np.savez("p.npz", logits=scores.values, labels=scores.labels, sex=sexes)
    return "p.npz"


@pytest.fixture
def measured(run, predictions):
    def command(*words, code=0):
        actual, out, err = run("evaluate", predictions, *words, "--json")
        assert actual == code, err
        return json.loads(out)

    return command


def slow_ece(scores, bins):
    """The definition, record by record: bins (l, u], the first with 0."""
    total = 0.0
    for b in range(bins):
        inside = [
            (float(right), float(said))
            for right, said in zip(scores.correct, scores.confidence, strict=True)
            if b / bins < said <= (b + 1) / bins or (b == 0 and said == 0)
        ]
        total += abs(sum(right - said for right, said in inside))
    return total / len(scores)


# ---------------------------------------------------------------- as the records are


def test_figures_are_those_of_the_library_and_of_the_definition(measured, scores):
    actual = measured(*QUICK)["internal"]
    assert set(actual["figures"]) == set(figure_names(3))
    for name, estimate in actual["figures"].items():
        assert estimate["value"] == pytest.approx(getattr(calibration, name)(scores), abs=1e-12)
        assert estimate["low"] is not None and estimate["n"] == N
    assert actual["figures"]["ece"]["value"] == pytest.approx(slow_ece(scores, 15), abs=1e-9)
    assert actual["ece_10_bins"]["value"] == pytest.approx(slow_ece(scores, 10), abs=1e-9)
    assert slow_ece(scores, 10) != pytest.approx(slow_ece(scores, 15), abs=1e-9)
    assert sum(each["n"] for each in actual["curve"]["bins"]) == N


def test_every_file_format_gives_the_same_figures(run, scores):
    p = scores.probabilities
    frame = pl.DataFrame({"labels": scores.labels})
    columns = {f"probabilities_{i}": p[:, i] for i in range(3)}
    frame.with_columns(**columns).write_csv("p.csv")
    frame.with_columns(probabilities=pl.Series(p)).write_parquet("p.parquet")
    np.savez("p.npz", logits_test=scores.values, labels_test=scores.labels)
    actual = []
    for words in (["p.csv"], ["p.parquet"], ["p.npz", "--part", "test"]):
        code, out, _ = run("evaluate", *words, "--replicates", "0", "--json")
        assert code == 0
        actual.append(json.loads(out)["internal"]["figures"]["ece"]["value"])
    assert actual == pytest.approx([calibration.ece(scores)] * 3, abs=1e-9)


def test_column_names_distinguish_logits_from_probabilities(run):
    p = np.full((4, 2), 0.5)
    np.savez("logits.npz", logits=p, labels=[0, 1, 0, 1])
    np.savez("both.npz", logits=p, probabilities=p, labels=[0, 1, 0, 1])
    np.savez("neither.npz", scores=p, labels=[0, 1, 0, 1])
    assert json.loads(run("evaluate", "logits.npz", *QUICK, "--json")[1])["kind"] == "logits"
    assert "found both" in run("evaluate", "both.npz")[2]
    code, out, err = run("evaluate", "neither.npz")
    assert code == 1 and not out and "expected logits or probabilities, found only" in err


def test_the_table_contains_each_figure_once(run, predictions):
    code, out, err = run("evaluate", predictions, *QUICK)
    assert code == 0 and not err
    for name in figure_names(3):
        assert len(re.findall(rf"^ {name} ", out, re.MULTILINE)) == 1
    assert "ece, 10 bins" in out and "if calibrated" in out
    assert "internal: exact figures of the records; do not publish them" in out
    assert "●" in out and "confidence" in out and "records" in out
    assert max(map(len, out.splitlines())) <= 100


def test_ten_bins_are_not_printed_twice(run, predictions):
    assert "10 bins" in run("evaluate", predictions, "--replicates", "0")[1]
    out = run("evaluate", predictions, "--bins", "10", "--replicates", "0")[1]
    assert "ece, 10 bins" not in out


def test_two_classes_have_figures_of_their_own(run):
    logits, labels = create(k=2)
    words = np.array(["well", "ill"])[labels]
    pl.DataFrame({"logits": logits[:, 1] - logits[:, 0], "labels": words}).write_csv("b.csv")
    code, out, _ = run("evaluate", "b.csv", "--classes", "well,ill", *QUICK)
    assert code == 0 and all(f" {name} " in out for name in figure_names(2))
    code, out, err = run("evaluate", "b.csv", *QUICK)
    assert code == 1 and not out and "expected one of 0, 1, found" in err


def test_every_figure_has_a_description():
    assert set(_figures.WORDS) == set(figure_names(2))


def test_groups_are_measured_separately(measured, run, predictions, scores):
    actual = measured("--group", "sex=f,m,x", *QUICK)["internal"]
    women = scores.take(np.arange(N) % 3 < 2)
    assert actual["groups"]["sex"]["f"]["n"] == len(women)
    value = actual["groups"]["sex"]["f"]["figures"]["ece"]["value"]
    assert value == pytest.approx(slow_ece(women, 15), abs=1e-9)
    assert actual["groups"]["sex"]["x"] is None
    men = actual["groups"]["sex"]["m"]["figures"]["ece"]["value"]
    assert actual["gaps"]["sex"]["value"] == pytest.approx(abs(value - men), abs=1e-9)
    out = run("evaluate", predictions, "--group", "sex=f,m,x", *QUICK)[1]
    assert "by sex" in out and "Largest difference of ece" in out


def test_the_bootstrap_resamples_whole_units(run):
    """Every record five times over: five times as many rows say nothing more."""
    logits, labels = create(200)
    repeated = {"logits": np.repeat(logits, 5, axis=0), "labels": np.repeat(labels, 5)}
    np.savez("u.npz", **repeated, who=np.repeat(np.arange(200), 5))
    wide = {}
    for words in ([], ["--unit", "who"]):
        out = run("evaluate", "u.npz", *words, "--replicates", "25", "--json")[1]
        accuracy = json.loads(out)["internal"]["figures"]["accuracy"]
        wide[bool(words)] = accuracy["high"] - accuracy["low"]
    assert wide[True] > 1.5 * wide[False]  # the square root of 5 is 2.2


def test_intervals_are_the_same_in_every_run(measured):
    assert measured(*QUICK) == measured(*QUICK)


# ---------------------------------------------------------------- streams


def test_a_stream_gives_the_same_figures(measured, monkeypatch, predictions, run):
    whole = measured("--group", "sex=f,m", "--replicates", "0")["internal"]
    monkeypatch.setattr("veracal.data.load_scores", None)  # the whole is never loaded
    blocks = partial(scan_scores, rows=64)  # and several blocks of it are
    monkeypatch.setattr("veracal.data.scan_scores", blocks)
    actual = measured("--group", "sex=f,m", "--stream")["internal"]
    assert {"accuracy", "ece", "brier", "nll"} < set(actual["figures"])
    for name, estimate in actual["figures"].items():
        assert estimate["value"] == pytest.approx(whole["figures"][name]["value"], abs=1e-12)
    for side in ("f", "m"):
        one, other = (each["groups"]["sex"][side] for each in (actual, whole))
        assert one["n"] == other["n"]
        assert one["figures"]["ece"]["value"] == pytest.approx(
            other["figures"]["ece"]["value"], abs=1e-12
        )
    assert actual["ece_10_bins"]["value"] == pytest.approx(
        whole["ece_10_bins"]["value"], abs=1e-12
    )
    assert [b["n"] for b in actual["curve"]["bins"]] == [b["n"] for b in whole["curve"]["bins"]]
    out = run("evaluate", predictions, "--stream")[1]
    assert "interval" not in out.partition("●")[0] and "internal:" in out


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize(("limit", "code"), [("0.5", 0), ("0.001", 1)])
def test_a_figure_above_its_limit_fails(run, predictions, limit, code):
    actual, out, err = run("evaluate", predictions, *QUICK, "--fail-above", f"ece={limit}")
    assert actual == code and "ece" in out  # the figures are shown all the same
    assert ("above 0.001" in err) == bool(code)


def test_a_figure_at_its_limit_passes(run, predictions, scores):
    exact = calibration.ece(scores)
    for limit, code in ((exact, 0), (np.nextafter(exact, 0), 1)):
        words = ["--replicates", "0", "--fail-above", f"ece={float(limit)!r}"]
        assert run("evaluate", predictions, *words)[0] == code


def test_a_missing_figure_fails(run, predictions):
    code, _, err = run("evaluate", predictions, *QUICK, "--fail-above", "binary_ece=1")
    assert code == 1 and "binary_ece is not known" in err


# ---------------------------------------------------------------- privately


def test_an_unknown_partition_is_wrong_usage(run, predictions):
    ledger = open_ledger("study.ledger", Budget(30.0))
    choices = ["--epsilon", "1", "--ledger", "study.ledger", "--partition", "other"]
    code, out, err = run("evaluate", predictions, *choices)
    assert code == 2 and not out and "--partition" in err and "'other'" in err
    assert ledger.entries() == ()


def test_a_private_measurement_is_near_the_truth_and_charged(measured, scores):
    ledger = open_ledger("study.ledger", Budget(30.0))
    actual = measured("--epsilon", "20", "--ledger", "study.ledger")
    assert actual["private"] and "internal" not in actual
    assert actual["overall"]["count"]["value"] == pytest.approx(N, abs=40)
    assert actual["overall"]["ece"]["value"] == pytest.approx(calibration.ece(scores), abs=0.03)
    assert actual["overall"]["brier"]["value"] == pytest.approx(
        calibration.brier(scores), abs=0.05
    )
    assert ledger.spent().epsilon == pytest.approx(20, abs=1e-5)
    assert actual["ledger"]["left"]["epsilon"] == ledger.remaining().epsilon
    assert actual["statement"]["epsilon"] == pytest.approx(20, abs=1e-5)


def test_figures_have_noise(measured, scores):
    actual = measured("--epsilon", "0.2")["overall"]
    exact = {
        "count": N,
        "accuracy": calibration.accuracy(scores),
        "ece": calibration.ece(scores),
    }
    off = [abs(actual[name]["value"] - value) > 1e-5 for name, value in exact.items()]
    assert sum(off) >= 2  # each of them is right by chance once in a hundred times
    assert actual["ece"]["low"] < actual["ece"]["high"]


def test_a_repeated_measurement_costs_nothing_and_is_equal(measured):
    words = ["--epsilon", "1", "--curve", "--group", "sex=f,m"]
    first = measured(*words)
    assert measured(*words) == first
    assert set(first["groups"]) == {"f", "m"} and first["overall"]["curve"]
    assert Ledger(default_ledger_path("p.npz")).spent().epsilon <= 1


def test_paid_queries_are_not_charged_again(measured, predictions):
    """A ledger that has answered the first question pays for the others alone."""
    ledger = open_ledger("study.ledger", Budget(0.9))
    plan = plan_measurement(epsilon=0.9)
    next(iter(plan.queries.values())).ask(Curator(load_scores(predictions), ledger))
    assert 0 < ledger.remaining().epsilon < 0.9 and len(ledger.entries()) == 1
    measured("--epsilon", "0.9", "--ledger", "study.ledger")
    assert len(ledger.entries()) == len(plan.queries)


def test_an_insufficient_budget_is_not_charged(run, predictions):
    """Not even the first of several questions, which alone would fit."""
    ledger = open_ledger("study.ledger", Budget(0.5))
    words = ["--epsilon", "0.6", "--ledger", "study.ledger"]
    code, out, err = run("evaluate", predictions, *words)
    assert code == 1 and not out and "needs epsilon=0.6" in err
    assert ledger.entries() == ()


def test_a_raised_cap_is_reported(run, measured, predictions):
    ledger = open_ledger("study.ledger", Budget(1.0))
    words = ["--epsilon", "0.5", "--ledger", "study.ledger"]
    total = measured(*words)["statement"]["ledger_total"]
    assert total.endswith("costs at most epsilon = 1.")
    ledger.extend(epsilon=1.0)
    raised = "costs at most epsilon = 2 (cap raised after releases)."
    assert measured(*words)["statement"]["ledger_total"].endswith(raised)
    assert raised in " ".join(run("evaluate", predictions, *words)[1].split())


def test_the_output_contains_the_guarantee(run, predictions):
    code, out, err = run("evaluate", predictions, "--epsilon", "2", "--curve")
    assert code == 0 and str(default_ledger_path("p.npz")) in err
    assert "differentially private for one record: epsilon = 2" in out
    assert "released with noise" in out and "internal" not in out and "●" in out
    assert "is left in the ledger of p.npz" in out


def test_a_private_figure_can_fail_too(run, predictions):
    words = ["--epsilon", "50", "--fail-above", "ece=0.01"]
    code, out, err = run("evaluate", predictions, *words)
    assert code == 1 and "ece" in out and "above 0.01" in err


def test_patients_need_a_ledger_that_protects_them(run):
    logits, labels = create(60)
    np.savez("u.npz", logits=logits, labels=labels, who=np.arange(60) // 2)
    words = ["evaluate", "u.npz", "--unit", "who", "--epsilon", "1"]
    code, out, err = run(*words)
    assert code == 2 and not out and "--max-contributions 3" in err
    assert not default_ledger_path("u.npz").exists()
    open_ledger("one.ledger", Budget(1.0, unit=Unit("patient", max_contributions=1)))
    code, out, err = run(*words, "--ledger", "one.ledger")
    assert code == 1 and "up to 2" in err and Ledger("one.ledger").entries() == ()
    open_ledger("two.ledger", Budget(1.0, unit=Unit("patient", max_contributions=2)))
    code, out, _ = run(*words, "--ledger", "two.ledger", "--json")
    assert code == 0 and json.loads(out)["statement"]["max_contributions"] == 2


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--level", "1"], "--level"),
        (["--bins", "0"], "--bins"),
        (["--epsilon", "-1"], "--epsilon"),
        (["--epsilon", "nan"], "--epsilon"),
        (["--epsilon", "1e-9"], "--epsilon"),
        (["--epsilon", "1", "--group", "a=1,2", "--group", "b=1,2"], "--group"),
        (["--epsilon", "1", "--replicates", "5"], "--replicates"),
        (["--epsilon", "1", "--stream"], "--stream"),
        (["--epsilon", "1", "--fail-above", "mce=1"], "--fail-above"),
        (["--stream", "--unit", "who"], "--stream"),
        (["--ledger", "study.ledger"], "--ledger"),
        (["--curve"], "--curve"),
        (["--group", "sex"], "--group"),
        (["--group", "sex=f,f"], "--group"),
        (["--classes", "a,,b"], "--classes"),
        (["--classes", 'a,"b'], "--classes"),
        (["--fail-above", "ece"], "--fail-above"),
        (["--fail-above", "ece=much"], "--fail-above"),
        (["--fail-above", "ece=nan"], "--fail-above"),
        (["--fail-above", "eec=0.1"], "--fail-above"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_rejected_before_a_file_is_read(run, words, said):
    code, out, err = run("evaluate", "no-such-file.npz", *words)
    assert code == 2 and not out and said in err


@pytest.mark.parametrize("words", [[], ["--stream"], ["--epsilon", "1"]], ids=str)
def test_an_invalid_file_is_rejected_and_leaves_nothing(run, tmp_path, words):
    p = np.array([[0.5, 0.5], [0.7, 0.3]])
    files = {
        "nan.npz": {"logits": [[0.0, np.nan], [1, 2]], "labels": [0, 1]},
        "sums.npz": {"probabilities": p * 0.9, "labels": [0, 1]},
        "labels.npz": {"probabilities": p, "labels": [0, 2]},
        "none.npz": {"probabilities": p},
        "y.npz": {"probabilities": p, "y": [0, 1]},
    }
    for name, arrays in files.items():
        np.savez(name, **arrays)
    pl.DataFrame({"logits_0": [], "logits_1": [], "labels": []}).write_csv("empty.csv")
    np.savez("empty.npz", logits=np.zeros((0, 2)), labels=np.zeros(0, dtype=int))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "nan.npz").read_bytes()[:200])
    before = sorted(tmp_path.iterdir())
    for name in (*files, "empty.csv", "empty.npz", "cut.npz", "no-such-file.npz", "", "."):
        code, out, err = run("evaluate", name, *words)
        assert code == 1 and not out and len(err.splitlines()) == 1, name
        assert "expected" in err and "found" in err
    assert sorted(tmp_path.iterdir()) == before


def test_one_record_with_infinite_loss_is_printed(run):
    np.savez("p.npz", probabilities=[[1.0, 0.0]], labels=[1])
    code, out, _ = run("evaluate", "p.npz")
    assert code == 0 and re.search(r"nll +infinite", out)
    code, out, _ = run("evaluate", "p.npz", "--json")
    assert json.loads(out)["internal"]["figures"]["nll"]["value"] == "inf"
    assert "NaN" not in out and "Infinity" not in out


def test_file_names_are_escaped(run):
    np.savez("p\x1b[2J.npz", probabilities=[[0.4, 0.6]] * 3, labels=[1, 1, 0])
    code, out, _ = run("evaluate", "p\x1b[2J.npz", "--replicates", "0")
    assert code == 0 and "\x1b" not in out and r"p\u001b[2J.npz" in out


# ---------------------------------------------------------------- the command, the drawing


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_of_itself(run, name):
    code, printed, _ = run(name, "--help")
    assert code == 0 and f"veracal {name}" in printed.partition("Example:")[2]
    assert "completion" not in printed


def test_nothing_heavy_is_imported_for_help():
    code = (
        "import sys\nfrom veracal.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'scipy', 'sklearn', 'polars', 'matplotlib'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or None)"
    )
    for name in COMMANDS:
        command = [sys.executable, "-c", code, name, "--help"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_points_are_drawn_at_their_accuracy(scores):
    actual = drawable(curve(scores, 10))
    lines = _curve.draw_curve(actual).splitlines()[1:12]
    assert len(lines) == 11 and lines[0].startswith(" 1.0 ┤")
    for b, each in enumerate(actual.bins):
        column = [line[6:].ljust(40)[4 * b : 4 * b + 4].strip() for line in lines][::-1]
        accuracy = each.accuracy.value
        if accuracy is None:
            assert "●" not in column and column.count("·") == 1
        else:
            assert column.index("●") == round(10 * accuracy)
            if abs(each.confidence - accuracy) > 0.1:
                assert column.index("·") == round(10 * each.confidence)


@pytest.mark.parametrize("bins", [1, 2, 7, 15, 60, 90])
def test_a_drawing_fits_the_width(scores, bins):
    lines = _curve.draw_curve(drawable(curve(scores, bins))).splitlines()
    assert max(map(len, lines)) <= 110 and len(lines) == 15
    marked = lines[-1][6:].partition("records")[0].rstrip()
    assert marked.endswith(("▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"))


def test_too_many_bins_are_not_drawn(scores):
    assert "too many to draw" in _curve.draw_curve(drawable(curve(scores, 91)))


def test_the_drawing_is_ascii_for_an_ascii_terminal(scores, monkeypatch):
    assert _curve.draw_curve(drawable(curve(scores)), _curve.ASCII).isascii()

    class Old:
        encoding = "ascii"

    monkeypatch.setattr(sys, "stdout", Old())
    assert _curve.choose_characters() == _curve.ASCII


# ---------------------------------------------------------------- who listens


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_write_error_is_reported_in_one_line(words):
    np.savez("p.npz", logits=create(50)[0], labels=create(50)[1])
    line = ["evaluate", "p.npz", "--replicates", "0", *words]
    command = [sys.executable, "-c", "from veracal.cli import main; main()", *line]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: the result could not be written: No space left on device.\n"


def test_a_closed_stdout_is_not_an_error(run, monkeypatch):
    np.savez("p.npz", logits=create(50)[0], labels=create(50)[1])
    monkeypatch.setattr(sys, "stdout", None)
    code, _, err = run("evaluate", "p.npz", "--replicates", "0")
    sys.stdout.close()
    assert (code, err) == (0, "")


def test_parts_of_one_file_are_separate_queries(run):
    (sure, y), (unsure, z) = create(), create(factor=0.5, seed=1)
    np.savez("p.npz", logits_a=sure, labels_a=y, logits_b=unsure, labels_b=z)
    open_ledger("two.ledger", Budget(40.0))
    words = ["recalibrate", "p.npz", "--epsilon", "20", "--ledger", "two.ledger", "--json"]
    actual = [json.loads(run(*words, "--part", part)[1])["map"]["inverse"] for part in "ab"]
    assert actual[0] < 0.7 < 1.5 < actual[1]
    assert Ledger("two.ledger").spent().epsilon == 40.0


@pytest.mark.parametrize("command", ["evaluate", "recalibrate"])
def test_another_class_order_is_another_query(run, command):
    logits, labels = create()
    np.savez("p.npz", logits=logits, labels=np.array(["a", "b", "c"])[labels])
    open_ledger("two.ledger", Budget(40.0))
    words = [command, "p.npz", "--epsilon", "20", "--ledger", "two.ledger", "--json"]
    for order, spent in (("c,b,a", 20), ("a,b,c", 40), ("c,b,a", 40)):
        assert run(*words, "--classes", order)[0] == 0
        assert Ledger("two.ledger").spent().epsilon == pytest.approx(spent, abs=1e-5)

"""`veracal recalibrate` fits a map, paid for first, and writes whole files or none."""

import json
from dataclasses import fields
from inspect import signature
from pathlib import Path

import numpy as np
import pytest

from veracal import calibration
from veracal.accounting import Budget, Unit
from veracal.calibration import (
    Identity,
    PrivateTemperature,
    Temperature,
    TemperatureScaling,
    load_map,
    plan_recalibration,
)
from veracal.cli.recalibrate import NAMED_ELSEWHERE, FitOptions
from veracal.data import load_scores
from veracal.ledger import Ledger, default_ledger_path, open_ledger
from veracal.queries import Curator

N = 1_200
LEDGER = ["--ledger", "study.ledger"]
QUICK = ["--replicates", "0"]


def make_logits(factor, n=N, k=3, seed=0):
    """Logits that are ``factor`` times too large, and labels."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * 2
    return factor * logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


@pytest.fixture
def predictions():
    logits, labels = make_logits(2.0)
    sexes = np.array(["f", "m"])[np.arange(N) % 2]
    np.savez("p.npz", logits=logits, labels=labels, sex=sexes)
    return "p.npz"


@pytest.fixture
def scores(predictions):
    return load_scores(predictions)


@pytest.fixture
def fitted(run, predictions):
    def command(*words, code=0):
        result, out, err = run("recalibrate", predictions, *words, "--json")
        assert result == code, err
        return json.loads(out) if out else err

    return command


# ---------------------------------------------------------------- the private map


def test_a_private_map_is_near_the_open_one_and_charged(fitted, scores):
    ledger = open_ledger("study.ledger", Budget(30.0))
    result = fitted("--epsilon", "20", *LEDGER, "--map-out", "m.json", "--out", "c.npz")
    best = TemperatureScaling().fit(scores).map_
    written = load_map("m.json")
    assert result["private"] and result["map"] == written.to_json()
    assert written.value == pytest.approx(best.value, rel=0.15) and best.value > 1.7
    assert ledger.spent().epsilon == pytest.approx(20, abs=1e-5)
    assert result["epsilon"] == {"map": 20, "guard": 0, "measure": 0}
    assert result["statement"]["epsilon"] == pytest.approx(20)
    assert result["temperatures"]["temperature"]["low"] < written.value
    assert written.value < result["temperatures"]["temperature"]["high"]
    mapped = load_scores("c.npz")
    assert np.array_equal(mapped.values, written.transform(scores).values)
    assert calibration.ece(mapped) < calibration.ece(scores) / 3
    assert np.array_equal(mapped.predictions, scores.predictions)


def test_asked_again_it_is_the_same_map_for_nothing(fitted):
    words = ["--epsilon", "0.5", "--guard", "0.1", "--measure", "0.2"]
    first = fitted(*words)
    entries = Ledger(default_ledger_path("p.npz")).entries()
    assert fitted(*words) == first and Ledger(default_ledger_path("p.npz")).entries() == entries
    assert Ledger(default_ledger_path("p.npz")).spent().epsilon == pytest.approx(0.8, abs=2e-5)


def test_whoever_asks_for_more_gets_the_same_map_and_pays_for_the_rest(fitted):
    ledger = open_ledger("study.ledger", Budget(1.0))
    first = fitted("--epsilon", "0.2", *LEDGER)
    spent = []
    for words in (["--guard", "0.1"], ["--guard", "0.15"], ["--measure", "0.2"]):
        fitted("--epsilon", "0.2", *LEDGER, *words)
        spent.append(ledger.spent().epsilon)
    assert spent == pytest.approx([0.3, 0.45, 0.65], abs=2e-5)
    assert fitted("--epsilon", "0.2", *LEDGER)["map"] == first["map"]
    assert ledger.spent().epsilon == spent[-1]


def test_another_question_is_paid_anew(fitted):
    open_ledger("study.ledger", Budget(1.0))
    one = fitted("--epsilon", "0.2", *LEDGER)
    other = fitted("--epsilon", "0.2", *LEDGER, "--version", "2")
    assert Ledger("study.ledger").spent().epsilon == pytest.approx(0.4, abs=1e-5)
    assert one["map"] != other["map"]


@pytest.mark.parametrize("extra", [[], ["--guard", "0.1"], ["--measure", "0.1"]], ids=str)
def test_without_a_budget_nothing_is_charged_at_all(fitted, extra):
    """Not even the first of several questions, which alone would fit."""
    ledger = open_ledger("study.ledger", Budget(0.35 if extra else 0.25))
    said = fitted("--epsilon", "0.3", *LEDGER, *extra, "--out", "c.npz", code=1)
    assert "no record was read" in said and ledger.entries() == ()
    assert not Path("c.npz").exists()


def test_a_fit_that_was_interrupted_goes_on_where_it_stopped(fitted, run, monkeypatch):
    ledger = open_ledger("study.ledger", Budget(0.3))
    answer, queried = Curator.answer, []

    def interrupted(self, *args, **kwargs):
        queried.append(1)
        if len(queried) == 3:
            raise KeyboardInterrupt
        return answer(self, *args, **kwargs)

    monkeypatch.setattr(Curator, "answer", interrupted)
    code, out, _ = run("recalibrate", "p.npz", "--epsilon", "0.3", *LEDGER, "--out", "c.npz")
    assert code and not out and len(ledger.entries()) == 2 and not Path("c.npz").exists()
    monkeypatch.setattr(Curator, "answer", answer)
    assert fitted("--epsilon", "0.3", *LEDGER)["private"]
    assert len(ledger.entries()) == 4 and ledger.spent().epsilon <= 0.3


def test_figures_before_and_after_are_released_with_noise(fitted):
    result = fitted("--epsilon", "20", "--measure", "40")
    before, after = (result[side] for side in ("before", "after"))
    assert result["internal"] is None and result["private"]
    assert before["ece"]["value"] > 0.1 > after["ece"]["value"]  # not the same answer twice
    assert before["accuracy"]["value"] == pytest.approx(after["accuracy"]["value"], abs=0.03)
    assert Ledger(default_ledger_path("p.npz")).spent().epsilon == pytest.approx(60, abs=1e-4)


def test_plain_figures_are_shown_only_on_demand_and_as_internal(run, fitted, scores):
    assert fitted("--epsilon", "1")["internal"] is None
    result = fitted("--epsilon", "1", "--internal", "--replicates", "2")["internal"]
    assert "do not publish" in result["note"]
    assert result["before"]["figures"]["ece"]["value"] == pytest.approx(calibration.ece(scores))
    assert result["before"]["figures"]["ece"]["low"] is not None
    code, out, err = run("recalibrate", "p.npz", "--epsilon", "1")
    assert code == 0 and "internal" not in out and "--measure" in err
    code, out, _ = run("recalibrate", "p.npz", "--epsilon", "1", "--internal", *QUICK)
    assert "do not publish" in out and out.count("● accuracy") == 2


def test_a_map_that_helps_is_kept(fitted):
    result = fitted("--epsilon", "5", "--guard", "5")
    assert result["guard"]["kept"] and result["map"]["kind"] == "temperature"


def test_a_map_that_does_harm_is_not_kept(run, predictions, monkeypatch):
    """The fit is forced to return a map without confidence; the guard is the real one."""
    fit = PrivateTemperature._fit
    monkeypatch.setattr(
        PrivateTemperature,
        "_fit",
        lambda self, session, queries: fit(self, session, queries) and Temperature(1e-3),
    )
    words = ["--epsilon", "1", "--guard", "2", "--map-out", "m.json", "--out", "c.npz"]
    code, out, _ = run("recalibrate", predictions, *words)
    assert code == 0 and "not kept" in out and "scores are not changed" in out
    assert load_map("m.json") == Identity()
    assert np.array_equal(load_scores("c.npz").values, load_scores(predictions).values)


def test_a_cap_that_was_raised_is_said(run, fitted, predictions):
    ledger = open_ledger("study.ledger", Budget(1.0))
    words = ["--epsilon", "0.5", *LEDGER]
    total = fitted(*words)["statement"]["ledger_total"]
    assert total.endswith("costs at most epsilon = 1.")
    ledger.extend(epsilon=1.0)
    raised = "costs at most epsilon = 2 (cap raised after releases)."
    assert fitted(*words)["statement"]["ledger_total"].endswith(raised)
    for more in ([], ["--statement"]):
        said = " ".join(run("recalibrate", predictions, *words, *more)[1].split())
        assert raised in said


def test_the_output_says_the_map_its_cost_and_the_promise(run, predictions):
    words = ["--epsilon", "10", "--guard", "5", "--measure", "5"]  # the guard surely keeps it
    code, out, err = run("recalibrate", predictions, *words)
    assert (
        code == 0
        and f"Opened {default_ledger_path('p.npz')} with a budget of epsilon 20" in err
    )
    assert "temperature" in out and "(logits are divided by it)" in out
    assert "epsilon 20 in total: 10 for the map, 5 for the guard, 5 for figures" in out
    assert "differentially private for one record: epsilon = 20." in out
    assert "whether it was kept" not in out
    assert "the guard's decision" in run("recalibrate", predictions, *words, "--statement")[1]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["--method", "binning"], "binned"),
        (["--method", "two-temperatures"], "two temperatures"),
        (["--method", "descent", "--delta", "1e-5", "--size", str(N)], "temperature"),
        (["--method", "platt", "--delta", "1e-5", "--size", str(N)], "platt"),
    ],
    ids=["binning", "two temperatures", "descent", "platt"],
)
def test_every_private_method(fitted, scores, words, kind):
    result = fitted("--epsilon", "8", *words, "--out", "c.parquet", "--map-out", "m.json")
    assert result["map"]["kind"] == kind and result["private"]
    assert calibration.ece(load_scores("c.parquet")) < calibration.ece(scores)
    assert load_map("m.json").to_json() == result["map"]
    assert result["statement"]["delta"] == (1e-5 if len(words) > 2 else 0)
    assert result["statement"]["epsilon"] <= result["ledger"]["spent"]["epsilon"] + 1e-6


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["--epsilon", "1"], "temperature"),  # of the number of records nothing is declared
        (["--epsilon", "1", "--size", "1499"], "temperature"),
        (["--epsilon", "1", "--size", "1500"], "two temperatures"),
        (["--epsilon", "0.5", "--size", "1500"], "temperature"),
        (["--not-private", *QUICK], "temperature"),  # there are 1,200
    ],
)
def test_the_best_map_is_chosen_by_what_is_declared(fitted, run, words, kind):
    result = fitted(*words)
    assert result["map"]["kind"] == kind
    assert result["method"] == kind.replace(" ", "-")
    names = {"temperature": {"temperature"}, "two temperatures": {"unsure", "sure"}}[kind]
    assert set(result["temperatures"]) == (names if result["private"] else set())
    if kind == "two temperatures" and result["private"]:
        out = run("recalibrate", "p.npz", *words)[1]
        assert "fitted temperature, unsure" in out and "(high confidence)" in out


def test_curves_are_drawn_where_they_are_paid_for(fitted, run):
    words = ["--epsilon", "1", "--measure", "9", "--curve"]
    result = fitted(*words)
    for side in ("before", "after"):
        assert result[side]["curve"]["bins"] == 15
    out = run("recalibrate", "p.npz", *words)[1]
    assert out.count("● accuracy") + out.count("o accuracy") == 2
    assert "before\n" in out and "after\n" in out
    assert "--measure" in fitted("--epsilon", "1", "--curve", code=2)
    without = fitted("--epsilon", "1", "--measure", "9", "--ledger", "other.ledger")
    assert without["before"]["curve"] is None


def test_noise_for_figures_beside_gaussian_steps_is_in_the_total(fitted):
    """Which the accountant may put above the sum of both: a new ledger has room for that."""
    words = ["--method", "platt", "--delta", "1e-5", "--size", str(N), "--measure", "0.2"]
    result = fitted("--epsilon", "1", *words)
    assert 1.2 < result["statement"]["epsilon"] < 1.4
    assert result["ledger"]["spent"]["epsilon"] >= result["statement"]["epsilon"] - 1e-9


def test_the_ledger_says_whom_to_protect(run):
    logits, labels = make_logits(2.0)
    np.savez("u.npz", logits=logits, labels=labels, who=np.arange(N) // 3)
    words = ["recalibrate", "u.npz", "--unit", "who", "--epsilon", "5"]
    code, out, _ = run(*words)
    assert code == 2 and not out and not default_ledger_path("u.npz").exists()
    budget = Budget(5.0, relation="replace-one", unit=Unit("patient", max_contributions=3))
    open_ledger("study.ledger", budget)
    code, out, _ = run(*words, *LEDGER, "--out", "c.csv", "--json")
    result = json.loads(out)["statement"]
    assert code == 0 and (result["relation"], result["max_contributions"]) == ("replace-one", 3)
    assert result["epsilon"] == pytest.approx(5)
    assert load_scores("c.csv", unit="who").units is not None


def test_the_best_map_is_chosen_for_whom_the_ledger_protects(fitted):
    words = ["--epsilon", "1", "--size", "2000", *LEDGER]
    open_ledger("study.ledger", Budget(1.0, relation="replace-one"))
    assert fitted(*words)["map"]["kind"] == "temperature"


def test_a_part_pays_for_itself(fitted):
    open_ledger("study.ledger", Budget(1.0), partitions=("train", "test"))
    fitted("--epsilon", "0.7", *LEDGER, "--partition", "test")
    assert Ledger("study.ledger").remaining("train").epsilon == 1.0
    assert Ledger("study.ledger").remaining("test").epsilon == pytest.approx(0.3, abs=1e-5)


def test_a_pure_ledger_pays_for_no_gaussian_noise(fitted):
    ledger = open_ledger("study.ledger", Budget(5.0))
    words = ["--method", "descent", "--delta", "1e-5", "--size", str(N)]
    said = fitted("--epsilon", "8", *LEDGER, *words, code=2)
    assert "pure" in said and ledger.entries() == ()


GAUSSIAN = ["--method", "descent", "--delta", "1e-5", "--size", str(N)]


def refuse_to_read(monkeypatch):
    """From now on no command may read predictions."""

    def read(*_, **__):
        raise AssertionError("predictions were read")

    monkeypatch.setattr("veracal.data.load_scores", read)


def test_a_recalibration_with_a_delta_is_one_run_of_an_open_ledger(fitted, run):
    first = fitted("--epsilon", "2", *GAUSSIAN, "--measure", "0.2")
    ledger = Ledger(default_ledger_path("p.npz"))
    assert ledger.opening.rule.to_json() == {"kind": "open", "composition": "addition"}
    (only,) = ledger.runs()
    assert only.name == "recalibration" and ledger.spent().epsilon == only.epsilons["records"]
    assert ledger.spent().delta <= ledger.budget.delta == 1e-5
    head = ledger.head
    assert fitted("--epsilon", "2", *GAUSSIAN, "--measure", "0.2") == first
    assert ledger.head == head  # the same map at no cost
    assert run("ledger", "extend", "p.npz", "--epsilon", "1", "--delta", "1e-5")[0] == 0
    second = fitted("--epsilon", "1", *GAUSSIAN)
    assert second["map"] != first["map"] and [one.filter for one in ledger.runs()] == [1, 2]
    assert run("ledger", "extend", "p.npz", "--epsilon", "1")[0] == 0
    assert run("evaluate", "p.npz", "--epsilon", "1")[0] == 0  # other questions are answered
    assert ledger.verify() == ledger.head


def test_a_second_recalibration_fits_within_caps_that_leave_room(fitted, run, predictions):
    words = [
        "--data",
        predictions,
        "--epsilon",
        "2",
        "--delta",
        "2e-5",
        "--partition",
        "records",
    ]
    assert run("ledger", "open", *words)[0] == 0
    result = [fitted("--epsilon", "1", *GAUSSIAN, "--version", mark) for mark in ("1", "2")]
    assert result[0]["map"] != result[1]["map"]
    assert len(Ledger(default_ledger_path(predictions)).runs()) == 2


@pytest.mark.parametrize(
    ("extension", "words"),
    [
        ([], ["--epsilon", "1", *GAUSSIAN]),
        (["--epsilon", "1", "--delta", "0"], ["--epsilon", "1", *GAUSSIAN]),
        (["--epsilon", "0.9", "--delta", "1e-5"], ["--epsilon", "1", *GAUSSIAN]),
        ([], ["--epsilon", "1"]),
    ],
    ids=["both caps", "delta", "epsilon", "pure"],
)
def test_past_a_cap_it_is_refused_before_predictions_are_read(
    fitted, run, monkeypatch, extension, words
):
    fitted("--epsilon", "2", *GAUSSIAN)
    ledger = Ledger(default_ledger_path("p.npz"))
    if extension:
        assert run("ledger", "extend", "p.npz", *extension)[0] == 0
    head = ledger.head
    refuse_to_read(monkeypatch)
    assert "veracal ledger extend" in fitted(*words, code=1)
    assert ledger.head == head


def test_figures_on_top_of_a_map_that_was_paid_for_are_charged_alone(fitted, run):
    first = fitted("--epsilon", "2", *GAUSSIAN)
    words = ["--epsilon", "2", *GAUSSIAN, "--measure", "0.5"]
    assert "veracal ledger extend" in fitted(*words, code=1)
    assert run("ledger", "extend", "p.npz", "--epsilon", "0.5")[0] == 0
    result = fitted(*words)
    assert result["map"] == first["map"] and result["private"]
    ledger = Ledger(default_ledger_path("p.npz"))
    assert [one.epsilons["records"] for one in ledger.runs()] == pytest.approx(
        [2, 0.5], abs=0.01
    )
    head = ledger.head
    again = fitted(*words)
    assert [again[side] for side in ("before", "after")] == [
        result[side] for side in ("before", "after")
    ]
    assert ledger.head == head


def test_an_abandoned_recalibration_says_what_to_type(fitted, run, monkeypatch):
    words = ["--epsilon", "2", *GAUSSIAN]
    fitted(*words)
    assert run("ledger", "abandon", "p.npz", "--run", "1")[0] == 0
    assert run("ledger", "extend", "p.npz", "--epsilon", "2", "--delta", "1e-5")[0] == 0
    with monkeypatch.context() as patch:
        refuse_to_read(patch)
        said = fitted(*words, code=1)
    assert "abandoned" in said and "--version" in said
    assert fitted(*words, "--version", "2")["private"]


# ---------------------------------------------------------------- not private


@pytest.mark.parametrize(
    "method", ["temperature", "two-temperatures", "platt", "binning", "isotonic", "beta"]
)
def test_every_open_method(fitted, run, scores, method):
    words = ["--not-private", "--method", method, *QUICK]
    result = fitted(*words, "--out", "c.npz")
    assert (
        result["private"] is False and result["statement"] is None and result["ledger"] is None
    )
    assert "do not publish" in result["internal"]["note"]
    assert calibration.brier(load_scores("c.npz")) < calibration.brier(scores)
    assert not list(Path().glob("*.ledger"))
    out = run("recalibrate", "p.npz", *words)[1]
    assert "NOT private" in out and "differentially" not in out


def test_privacy_is_chosen_and_never_assumed(run, predictions):
    code, out, err = run("recalibrate", predictions)
    assert code == 2 and not out and "--not-private" in err


# ---------------------------------------------------------------- files


def test_a_group_that_cannot_be_written_is_refused_before_anything_is_charged(run):
    np.savez("p.npz", logits=[[0.0, 1], [1, 0]], labels=[0, 1])
    words = ["--group", "labels=0,1", "--epsilon", "1", "--out", "c.npz"]
    code, out, err = run("recalibrate", "p.npz", *words)
    assert code == 1 and not out and "distinct names" in err
    assert [path.name for path in Path().iterdir()] == ["p.npz"]


def test_groups_and_their_names_come_along(run, predictions):
    words = ["--group", "sex=f,m", "--not-private", *QUICK, "--out", "c.csv"]
    assert run("recalibrate", predictions, *words)[0] == 0
    result = load_scores("c.csv", groups={"sex": ["f", "m"]}).groups["sex"]
    assert result.codes[:3].tolist() == [0, 1, 0]


@pytest.mark.parametrize("option", ["--out", "--map-out"])
def test_nothing_is_overwritten_unless_told_to(fitted, option):
    place = Path("there.npz")
    place.write_text("mine")
    said = fitted("--epsilon", "1", option, str(place), code=1)
    assert "one that exists" in said and place.read_text() == "mine"
    assert not default_ledger_path("p.npz").exists()
    fitted("--epsilon", "1", option, str(place), "--force")
    assert place.read_bytes() != b"mine" and not list(Path().glob(".there*"))


@pytest.mark.parametrize(
    "words",
    [
        ["--out", "p.npz", "--force"],
        ["--out", "./p.npz", "--force"],
        ["--map-out", "p.npz", "--force"],
        ["--out", "one.ledger", "--ledger", "one.ledger"],
        ["--out", "same.npz", "--map-out", "same.npz"],
    ],
    ids=" ".join,
)
def test_files_of_one_command_are_different(run, predictions, words):
    before = Path(predictions).read_bytes()
    code, out, err = run("recalibrate", predictions, "--epsilon", "1", *words)
    assert code == 2 and not out and "already another file" in " ".join(err.split())
    assert Path(predictions).read_bytes() == before and len(list(Path().iterdir())) == 1


def test_force_replaces_a_map_whole_or_not_at_all(fitted, monkeypatch):
    Path("m.json").write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    words = ["--not-private", *QUICK, "--map-out", "m.json", "--force"]
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        assert "No space left" in fitted(*words, code=1)
    assert Path("m.json").read_text() == "old" and len(list(Path().iterdir())) == 2
    fitted(*words)
    assert load_map("m.json").kind == "temperature"


def test_a_link_is_not_followed_by_force(fitted):
    Path("target").write_text("mine")
    Path("m.json").symlink_to("target")
    said = fitted("--epsilon", "1", "--map-out", "m.json", "--force", code=1)
    assert "one that exists" in said and Path("target").read_text() == "mine"


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--epsilon", "0"], "--epsilon"),
        (["--epsilon", "nan"], "--epsilon"),
        (["--epsilon", "1", "--guard", "-1"], "--guard"),
        (["--epsilon", "1", "--measure", "inf"], "--measure"),
        (["--epsilon", "1", "--not-private"], "--not-private"),
        (["--not-private", "--ledger", "x"], "--not-private"),
        (["--not-private", "--guard", "1"], "--not-private"),
        (["--epsilon", "1", "--method", "isotonic"], "--method"),
        (["--not-private", "--method", "descent"], "--method"),
        (["--epsilon", "1", "--method", "platt"], "--method"),
        (["--epsilon", "1", "--method", "platt", "--delta", "1e-5"], "--method"),
        (["--epsilon", "1", "--delta", "1e-5"], "--method"),
        (["--epsilon", "1", "--method", "temperature", "--size", "5"], "--method"),
        (["--epsilon", "1", "--delta", "2"], "--delta"),
        (["--not-private", "--method", "platt", "--form", "cubic"], "--form"),
        (["--epsilon", "1", "--temperatures", "3,1"], "lower one"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_refused_before_a_file_is_read(run, words, said):
    code, out, err = run("recalibrate", "no-such-file.npz", *words)
    assert code == 2 and not out and said in err


def test_a_bad_file_or_place_leaves_nothing_behind(run, tmp_path):
    p = np.array([[0.5, 0.5], [0.7, 0.3]])
    np.savez("nan.npz", logits=[[0.0, np.nan], [1, 2]], labels=[0, 1])
    np.savez("none.npz", probabilities=p)
    np.savez("good.npz", probabilities=p, labels=[0, 1])
    Path("loop").symlink_to("loop")
    before = sorted(tmp_path.iterdir())
    for words in (
        ["", "--out", "c.npz"],
        [".", "--out", "c.npz"],
        ["good.npz", "--out", "loop"],
        ["nan.npz", "--out", "c.npz"],
        ["none.npz", "--out", "c.npz"],
        ["no-such-file.npz", "--out", "c.npz"],
        ["good.npz", "--out", "c.txt"],
        ["good.npz", "--out", "c"],
        ["good.npz", "--out", "no-such-folder/c.npz"],
        ["good.npz", "--map-out", "no-such-folder/m.json"],
    ):
        code, out, err = run("recalibrate", *words, "--epsilon", "1")
        assert code == 1 and not out and "expected" in err and "found" in err, words
        assert sorted(tmp_path.iterdir()) == before


def test_every_option_of_the_fit_is_an_argument_of_the_plan_and_in_the_id_of_the_run():
    """With an option that the id lacked, an earlier run would be taken for the present one."""
    options = FitOptions("auto", "vector", 15, None, None, None, 0.0, False, False, None)
    settings = options.fitter_settings()
    assert {each.name for each in fields(FitOptions)} == {*settings, *NAMED_ELSEWHERE}
    assert settings.keys() <= signature(plan_recalibration).parameters.keys()

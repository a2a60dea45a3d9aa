"""`veracal recalibrate --sources-by`: the institutions of one file answer for themselves."""

import json

import numpy as np
import polars as pl
import pytest

from veracal import calibration
from veracal.accounting import Budget, Gaussian, Unit
from veracal.calibration import load_map
from veracal.calibration.methods import METHODS
from veracal.data import load_scores
from veracal.ledger import Item, Ledger, default_ledger_path, open_ledger

N = 900
NAMES = ("north", "south", "west/1")
WORDS = ["recalibrate", "p.csv", "--sources-by", "hospital"]


@pytest.fixture(autouse=True)
def table():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(N, 3)) * 2
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    columns = {f"logits_{i}": 3 * logits[:, i] for i in range(3)}
    hospital = np.array(NAMES)[rng.permutation(N) % 3]
    pl.DataFrame({**columns, "labels": labels, "hospital": hospital}).write_csv("p.csv")


def test_each_institution_pays_from_its_own_ledger(run, tmp_path):
    words = [*WORDS, "--epsilon", "8", "--guard", "2", "--measure", "20", "--json"]
    code, out, err = run(*words, "--map-out", "m.json", "--out", "c.npz")
    result = json.loads(out)
    assert code == 0 and "3 institutions in column 'hospital'" in err
    ledgers = sorted(path.name for path in (tmp_path / "p.csv.ledgers").glob("*.ledger"))
    assert ledgers == ["north.ledger", "south.ledger", "west%2F1.ledger"]
    assert [one["name"] for one in result["institutions"]] == list(NAMES)
    for name, one in zip(ledgers, result["institutions"], strict=True):
        paid = Ledger(tmp_path / "p.csv.ledgers" / name).spent().epsilon
        assert one["dropout"] is None and one["ledger"]["spent"]["epsilon"] == paid
        assert paid == pytest.approx(result["statement"]["epsilon"], abs=1e-6) and paid <= 30
    assert result["private"] and result["guard"]["kept"]
    assert result["map"] == load_map("m.json").to_json()
    assert result["before"]["ece"]["value"] > result["after"]["ece"]["value"]
    assert result["before"]["count"]["value"] == pytest.approx(N, abs=60)
    mapped, before = load_scores("c.npz"), load_scores("p.csv")
    assert calibration.ece(mapped) < calibration.ece(before) / 2
    again = json.loads(run(*words, "--force", "--map-out", "m.json", "--out", "c.npz")[1])
    assert again == result  # from the ledgers, at no cost


def test_whoever_is_silent_is_named(run):
    open_ledger("south.ledger", Budget(0.1))
    words = [*WORDS, "--epsilon", "5", "--ledger", ".", "--temperatures", "0.5,6"]
    code, out, err = run(*words)
    assert code == 1 and not out and err.splitlines()[-1].startswith("error: south: ")
    assert "--min-sources" in err and "no record was read" in err
    assert Ledger("north.ledger").spent().epsilon == 0
    code, out, err = run(*words, "--min-sources", "2")
    assert (
        code == 0
        and "its budget cannot pay for all queries" in out
        and "answered every query" in out
    )
    assert Ledger("south.ledger").spent().epsilon == 0
    assert Ledger("north.ledger").spent().epsilon == pytest.approx(5, abs=1e-5)


def test_the_ledger_of_the_file_pays_too(run, tmp_path):
    whole = ["recalibrate", "p.csv", "--epsilon", "1", "--method", "binning"]
    assert run(*whole)[0] == 0
    ledger, folder = Ledger(default_ledger_path("p.csv")), tmp_path / "p.csv.ledgers"
    assert ledger.spent().epsilon == 1
    code, out, err = run(*WORDS, "--epsilon", "1", "--method", "binning")
    assert code == 1 and not out and "no record was read" in err
    assert ledger.spent().epsilon == 1 and not folder.exists()  # no source was queried
    ledger.extend(epsilon=1.0)
    words = [*WORDS, "--epsilon", "1", "--method", "binning", "--json"]
    first = json.loads(run(*words)[1])
    assert ledger.spent().epsilon == 2 == first["ledger"]["spent"]["epsilon"]
    assert json.loads(run(*words)[1]) == first and ledger.spent().epsilon == 2
    (folder / "north.ledger").unlink()  # it would answer with new noise
    code, out, err = run(*words)
    assert code == 1 and not out and ledger.spent().epsilon == 2


def test_the_ledger_of_the_file_is_opened_by_institutions(run):
    words = [*WORDS, "--epsilon", "1", "--method", "binning"]
    code, out, err = run(*words, "--ledger", "here")
    ledger = Ledger(default_ledger_path("p.csv"))
    assert code == 0 and "the ledger of p.csv" in out and ledger.path.name in err
    assert ledger.budget == Budget(1.0) and ledger.remaining().epsilon == 0
    assert run(*words, "--ledger", "here")[0] == 0
    code, out, err = run(*words, "--ledger", "elsewhere")
    assert code == 1 and not out and "no record was read" in err
    code, out, err = run("recalibrate", "p.csv", "--epsilon", "1")
    assert code == 1 and not out and "no record was read" in err


def test_the_ledger_of_the_file_pays_deltas_too(run):
    words = [*WORDS, "--epsilon", "2", "--delta", "1e-5", "--method", "platt", "--size", "900"]
    first = run(*words)
    ledger = Ledger(default_ledger_path("p.csv"))
    assert first[0] == 0 and ledger.budget == Budget(2.0, 1e-5)
    assert ledger.spent().delta == pytest.approx(1e-5) and ledger.spent().epsilon <= 2
    assert run(*words)[1] == first[1] and len(ledger.entries()) == 1


def test_the_ledger_of_the_file_pays_for_units_at_each_institution(run):
    table = pl.read_csv("p.csv")  # three rows of each patient, wherever they are
    table.with_columns(patient=pl.int_range(N) % (N // 3)).write_csv("p.csv")
    for name in ("north", "south", "west%2F1"):
        open_ledger(f"{name}.ledger", Budget(1.0, unit=Unit("patient", 3)))
    words = [*WORDS, "--unit", "patient", "--ledger", ".", "--method", "binning"]
    code, _, err = run(*words, "--epsilon", "0.7", "--at-sources", "2")
    ledger = Ledger(default_ledger_path("p.csv"))
    assert code == 0 and ledger.budget == Budget(1.4, unit=Unit("patient", 3)), err
    assert ledger.spent().epsilon == 1.4 and ledger.remaining().epsilon == 0


def test_a_plan_for_other_questions_does_not_pay(run):
    plan = [Item("training", Gaussian(1.0))]
    open_ledger(default_ledger_path("p.csv"), Budget(9.0, 1e-5), kind="plan", plan=plan)
    code, out, err = run(*WORDS, "--epsilon", "0.1")
    assert code == 1 and not out and "plan" in err


def test_a_recalibration_of_the_whole_file_leaves_nothing_for_institutions(run):
    settings = ["--epsilon", "2", "--delta", "1e-5", "--method", "platt", "--size", "900"]
    assert run("recalibrate", "p.csv", *settings)[0] == 0
    code, out, err = run(*WORDS, "--epsilon", "0.1")
    assert code == 1 and not out and "veracal ledger extend" in " ".join(err.split())


def test_the_ledger_of_the_file_protects_whom_institutions_protect(run):
    open_ledger(default_ledger_path("p.csv"), Budget(9.0, unit=Unit("patient", 3)))
    code, out, err = run(*WORDS, "--epsilon", "1")
    assert code == 1 and not out and "with the same unit and relation" in " ".join(err.split())


def test_people_at_two_institutions_pay_twice(run):
    words = [*WORDS, "--epsilon", "1", "--method", "binning", "--statement"]
    once, twice = run(*words)[1], run(*words, "--at-sources", "2")[1]
    assert "epsilon = 1." in once and "records at one source only" in once
    assert "epsilon = 2." in twice and "records at one source only" not in twice


def test_declared_institutions_are_all_there_is(run):
    declared = ["recalibrate", "p.csv", "--sources-by", "hospital=north,south"]
    code, out, err = run(*declared, "--epsilon", "1")
    assert code == 1 and not out and "west" in err
    code, out, err = run("recalibrate", "p.csv", "--sources-by", "clinic", "--epsilon", "1")
    assert code == 1 and not out and "clinic" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--min-sources", "2"], "--min-sources"),
        (["--at-sources", "2"], "--at-sources"),
        (["--sources-by", "hospital", "--curve", "--measure", "1"], "--curve"),
        (["--sources-by", "hospital", "--partition", "a"], "--partition"),
        (["--sources-by", "hospital", "--min-sources", "4"], "at most 3"),
        (["--temperatures", "3,1"], "--temperatures"),
        (["--temperatures", "3"], "--temperatures"),
        (["--temperatures", "1,3", "--method", "binning"], "--temperatures"),
        (["--method", "magic"], "two-temperatures"),
    ],
    ids=" ".join,
)
def test_wrong_usage(run, words, said):
    code, out, err = run("recalibrate", "p.csv", "--epsilon", "1", *words)
    assert code == 2 and not out and said in err


def test_the_help_names_every_method(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = run("recalibrate", "--help")
    words = " ".join(out.replace("│", " ").split())
    assert code == 0 and "--sources-by" in words and "--at-sources" in words
    for name in METHODS:
        assert name in words

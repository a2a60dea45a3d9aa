"""`veracal evaluate MODEL --remeasure` uses the reserved budget, and the report shows it."""

import json
from pathlib import Path

import pytest

from tests.cli.sample_tables import write, write_model
from veracal.ledger import Ledger
from veracal.report.results import Results

REMEASURE = ("evaluate", "model", "--remeasure", "--ledger", "model.ledger")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    write_model(folder)
    return folder


def test_a_model_is_remeasured_until_no_budget_is_left(run, home, monkeypatch):
    monkeypatch.chdir(home)
    code, out, err = run(*REMEASURE)
    assert code == 0, err
    results = Results.from_bytes(Path("model/results.json").read_bytes())
    assert [one.when for one in results.measured] == ["before", "after", "later 1"]
    for one in results.measured:
        assert f"{one.overall.ece.value:.4f}" in out
    assert "1 measurement left" in out and "later 1" in Path("model/report.html").read_text()

    # as a gate for releases: the figure is printed, and the exit code is 1
    code, out, err = run(*REMEASURE, "--json", "--fail-above", "ece=-1")
    result = json.loads(out)
    assert code == 1 and "ece is" in err and "above -1" in err
    assert result["when"] == "later 2" and result["left"] == 0 and len(result["measured"]) == 4

    head, before = Ledger("model.ledger").head, Path("model/results.json").read_bytes()
    code, out, err = run(*REMEASURE)
    assert (
        code == 1
        and not out
        and len(err.splitlines()) == 1
        and "reserved measurements were made" in err
    )
    assert (Ledger("model.ledger").head, Path("model/results.json").read_bytes()) == (
        head,
        before,
    )


@pytest.mark.parametrize(
    "words",
    [("--epsilon", "1"), ("--bins", "5"), ("--group", "sex"), ("--stream",), ("--curve",)],
)
def test_settings_of_the_run_cannot_be_changed(run, home, monkeypatch, words):
    monkeypatch.chdir(home)
    head = Ledger("model.ledger").head
    code, out, err = run(*REMEASURE, *words)
    assert code == 2 and not out and "Leave it out with --remeasure" in err
    assert Ledger("model.ledger").head == head


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ledger", "no.ledger"), "no.ledger"),
        (("--data", "no.csv"), "no.csv"),
        (("--fail-above", "mce=1"), "--fail-above"),
    ],
)
def test_a_missing_file_costs_nothing(run, home, monkeypatch, words, said):
    monkeypatch.chdir(home)
    head = Ledger("model.ledger").head
    code, out, err = run(*REMEASURE, *words)
    assert code in (1, 2) and not out and said in err
    assert Ledger("model.ledger").head == head and not Path("no.ledger").exists()


def test_a_file_of_predictions_cannot_be_remeasured(run):
    code, out, err = run("evaluate", "predictions.npz", "--remeasure")
    assert code == 1 and not out and len(err.splitlines()) == 1


def test_a_moved_ledger_can_be_named(run, tmp_path, monkeypatch):
    write_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    for ending in ("", ".partitions", ".partitions.key"):
        Path(f"model.ledger{ending}").rename(f"paid.ledger{ending}")
    code, out, err = run("evaluate", "model", "--remeasure")
    assert code == 1 and not out and "with --ledger" in err and len(err.splitlines()) == 1
    assert not Path("model.ledger").exists()
    code, out, err = run("evaluate", "model", "--remeasure", "--ledger", "paid.ledger")
    assert code == 0 and "later 1" in out, err


def test_the_default_ledger_is_found_and_new_rows_are_left_out(run, tmp_path):
    write(tmp_path)
    words = ("fit", "visits.csv", "--schema", "visits.toml", "--epsilon", "8", "--out", "model")
    assert run(*words)[0] == 0
    with Path("visits.csv").open("a") as file:
        file.write("50,a,f,3,no\n")
    code, out, err = run("evaluate", "model", "--remeasure")
    assert code == 0 and "later 1" in out, err
    assert "For the data holder only: 1 row" in err and "in no partition" not in out
    assert b"in no partition" not in Path("model/report.html").read_bytes()

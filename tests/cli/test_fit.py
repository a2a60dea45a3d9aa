"""`veracal fit` makes a model, or says in a line what to do, and leaves nothing half done."""

import json
import re
import shlex
import shutil
from pathlib import Path
from unittest import mock

import polars as pl
import pytest

from tests.cli.sample_tables import SCHEMA, write
from veracal.artifact import PrivateClassifier
from veracal.ledger import Ledger
from veracal.report.results import Results
from veracal.workflow import Config

QUICK = """\
format = 1
[data]
source = 'visits.csv'
schema = 'visits.toml'
[privacy]
epsilon = 3
[model]
epochs = 5.0
"""
NETWORK = """\
format = 1
[data]
source = 'digits'
[privacy]
epsilon = 8
[model]
kind = 'mlp'
epochs = 0.2
hidden = [8]
[recalibration]
method = 'none'
"""
FIT = ("fit", "visits.csv", "--schema", "visits.toml", "--config", "quick.toml")
PAID = ("--out", "model", "--ledger", "model.ledger")


@pytest.fixture
def visits(tmp_path):
    write(tmp_path)
    (tmp_path / "quick.toml").write_text(QUICK)
    (tmp_path / "open.toml").write_text(QUICK.replace("[privacy]\nepsilon = 3\n", ""))
    return tmp_path


def list_files(folder):
    """Names of what is in a folder."""
    return sorted(path.name for path in folder.iterdir())


def state(folder):
    """What a run leaves."""
    return (folder / "model" / "model.json").read_bytes(), Ledger("model.ledger").head


def test_fit_writes_a_model_and_prints_its_guarantee(run, visits):
    words = ("--target", "back", "--epsilon", "8", *PAID)
    code, out, err = run(*FIT, *words)
    assert code == 0, err
    results = Results.from_bytes((visits / "model" / "results.json").read_bytes())
    assert "differentially private for one record" in out
    assert "one record, add-remove" in out and "model.ledger" in out
    for when in ("before", "after"):
        figures = results.when(when).overall
        for name in ("accuracy", "ece"):
            figure = getattr(figures, name)
            assert f"{figure.value:.4f}" in out
            assert f"{figure.low:.4f} to {figure.high:.4f}" in out
    assert "Opened the ledger of visits.csv with caps epsilon 8" in err
    assert "model.ledger" in err and "veracal predict model" in err
    assert PrivateClassifier.load("model").private_

    # again: refused without --force; with it the same model, at no cost
    before = state(visits)
    code, out, err = run(*FIT, *words)
    assert code == 1 and not out and "--force" in err and len(err.splitlines()) == 1
    code, out, err = run(*FIT, *words, "--force", "--json")
    assert code == 0 and "Opened" not in err
    actual = json.loads(out)
    assert actual["results"]["guarantee"] == json.loads(results.to_bytes())["guarantee"]
    assert before == state(visits)

    # other settings on the same ledger are refused, and nothing is lost
    code, out, err = run(*FIT, *words, "--force", "--bins", "3")
    assert code == 1 and not out and "veracal ledger extend" in err
    code, out, err = run(*FIT, *words, "--force", "--split-key", "another")
    assert code == 1 and not out and "in two partitions" in err  # no extension would help
    code, out, err = run(*FIT, "--epsilon", "7", *PAID, "--force")
    assert code == 1 and not out and "veracal ledger extend" in err
    assert before == state(visits)

    # an error before anything is charged says nothing of a payment
    code, out, err = run(*FIT, *words, "--force", "--group", "race")
    assert code == 1 and "'race'" in err and "paid for" not in err and before == state(visits)


def test_the_internal_report_is_beside_the_model(run, visits):
    code, out, err = run(*FIT, "--out", "model", "--internal", "--group", "sex")
    assert code == 0, err
    assert "by sex, after the map" in out
    page = Path("model.internal/report-internal.html")
    assert str(page) in out and "do not publish it" in out
    assert "internal" in page.read_text().lower()
    assert not list(Path("model").glob("*internal*"))
    again = ("--out", "model", "--internal", "--group", "sex", "--force", "--json")
    code, out, _ = run(*FIT, *again)
    assert code == 0 and json.loads(out)["internal"] == str(page)


def test_without_a_schema_the_printed_command_drafts_one(run, tmp_path):
    write(tmp_path)
    (tmp_path / "visits.toml").unlink()
    (tmp_path / "visits.csv").rename(tmp_path / "my visits.csv")
    before = list_files(tmp_path)
    code, out, err = run("fit", "my visits.csv", "--target", "back", "--epsilon", "3")
    assert code == 2 and not out and list_files(tmp_path) == before
    sentences = err.splitlines()[0]
    assert sentences.count(". ") == 2 and "public knowledge" in sentences
    assert run(*shlex.split(err.splitlines()[1])[1:])[0] == 0
    drafted = (tmp_path / "my visits.toml").read_text()
    assert "draft = true" in drafted and 'kind = "target"' in drafted
    code, _, err = run("fit", "my visits.csv", "--target", "back", "--epsilon", "3")
    assert code == 2 and "--schema 'my visits.toml'" in err
    assert "--out 'my visits-schema.toml'" in err


def test_a_draft_prints_the_next_command(run, tmp_path):
    write(tmp_path)
    code, _, err = run("schema", "draft", "visits.csv", "--target", "back", "--out", "s.toml")
    assert code == 0 and "size = " in err
    assert "veracal fit visits.csv --schema s.toml" in err


def test_options_override_the_config(run, visits):
    with mock.patch("veracal.workflow.run", side_effect=KeyboardInterrupt) as requested:
        run(*FIT, "--epsilon", "2", "--delta", "1e-7", "--test", "0.5", "--split-key", "s",
            "--version", "v", "--model", "logistic", "--method", "none", "--group", "sex",
            "--bins", "4", "--reserve", "0")  # fmt: skip
        run(*FIT)
    (typed,), (filed,) = (call.args[:1] for call in requested.call_args_list)
    assert filed == Config.load("quick.toml")
    assert (typed.privacy.epsilon, typed.privacy.delta) == (2.0, 1e-7)
    assert (typed.data.test, typed.data.split_key, typed.data.version) == (0.5, "s", "v")
    assert (typed.recalibration.method, typed.measurement.group) == ("none", "sex")
    assert (typed.measurement.bins, typed.measurement.reserve) == (4, 0)
    assert typed.model == filed.model and typed.model.epochs == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fit", "breast-cancer"), "--epsilon"),
        (("fit", "--epsilon", "1"), "DATA"),
        ((*FIT, "--target", "age"), "'back', not 'age'"),
        ((*FIT, "--epsilon", "-1"), "--epsilon"),
        ((*FIT, "--epsilon", "nan"), "--epsilon"),
        ((*FIT, "--delta", "2"), "--delta"),
        ((*FIT, "--test", "1"), "--test"),
        ((*FIT, "--model", "tree"), "--model"),
        ((*FIT, "--method", "magic"), "--method"),
        ((*FIT, "--bins", "0"), "--bins"),
        ((*FIT, "--epsilon", "0.00001"), "at least 0.0004 for 4"),
        (("fit", "breast-cancer", "--epsilon", "1", "--schema", "visits.toml"), "has its own"),
        ((*FIT, "--model", "mlp", "--norm", "3"), "no norm for the model 'mlp'"),
        ((*FIT, "--norm", "3"), "no norm for the model 'logistic'"),
        ((*FIT, "--model", "banana"), "Invalid value for '--model': Expected one of logistic"),
    ],
)
def test_wrong_usage_exits_with_2_and_writes_nothing(run, visits, words, said):
    before = list_files(visits)
    code, out, err = run(*words)
    assert code == 2 and not out and said in re.sub(r"\s*│\s*", " ", err)
    assert list_files(visits) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fit", "no.csv", "--epsilon", "1"), "nothing at that path"),
        (("fit", "brest-cancer", "--epsilon", "1"), "breast-cancer"),
        (("fit", "visits.csv", "--epsilon", "1", "--schema", "no.toml"), "nothing at"),
        ((*FIT, "--config", "no.toml"), "nothing at"),
        ((*FIT, "--model", "output"), "norm = "),
        (("fit", "--config", "open.toml"), "'privacy' to be declared"),
        ((*FIT, "--group", "race"), "'race'"),
        ((*FIT, "--out", "no/such/folder"), "no such folder"),
    ],
)
def test_foreseen_errors_exit_with_1_and_one_line(run, visits, words, said):
    before = list_files(visits)
    code, out, err = run(*words)
    assert code == 1 and not out and said in err and len(err.splitlines()) == 1
    assert err.startswith("error: ") and list_files(visits) == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("size", "size = "),
        ("draft", "draft = true"),
        ("text", "a number"),
        ("target", "a column 'back'"),
        ("one class", "class"),
    ],
)
def test_undeclared_values_are_an_error(run, visits, change, said):
    table = pl.read_csv("visits.csv")
    if change == "size":
        Path("visits.toml").write_text(SCHEMA.replace("size = 600\n", ""))
    elif change == "draft":
        Path("visits.toml").write_text("draft = true\n" + SCHEMA)
    elif change == "text":
        table.with_columns(age=pl.lit("old")).write_csv("visits.csv")
    elif change == "target":
        table.drop("back").write_csv("visits.csv")
    else:
        Path("visits.toml").write_text(SCHEMA.replace('["no", "yes"]', '["no"]'))
    before = list_files(visits)
    code, out, err = run(*FIT)
    assert code == 1 and not out and said in err and len(err.splitlines()) == 1
    assert list_files(visits) == before


def test_other_commands_read_a_network(run, tmp_path):
    pytest.importorskip("torch")
    Path("network.toml").write_text(NETWORK)
    code, out, err = run("fit", "--config", "network.toml", *PAID)
    assert code == 0, err
    assert re.search(r"model +mlp", out) and "differentially private for one record" in out
    assert PrivateClassifier.load("model").private_
    outcomes = [e.outcome for e in Ledger("model.ledger").entries() if e.partition == "train"]
    assert outcomes == ["run", "reserved", "answered"]
    for words in (
        ("predict", "model", "digits", "--out", "predictions.csv"),
        ("evaluate", "model", "--data", "digits"),
        ("report", "model", "--out", "report.html"),
    ):
        code, _, err = run(*words)
        assert code == 0, (words, err)
    assert pl.read_csv("predictions.csv").height == 1797
    assert "mlp" in Path("report.html").read_text()


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        ("hidden = [8]", "norm = 3.0", 2, "no norm for the model 'mlp'"),
        ("hidden = [8]", "strength = 2.0", 2, "no strength for the model 'mlp'"),
        ("'mlp'", "'cnn'", 2, "no hidden for the model 'cnn'"),
        ("'mlp'", "'text'", 2, "no hidden for the model 'text'"),
        ("hidden = [8]", "weight_decay = 'much'", 2, "weight_decay between"),
        ("kind = 'mlp'\nepochs = 0.2\nhidden = [8]", "kind = 'text'", 1, "text"),
        ("[8]", "8", 1, "hidden to be a list of integers"),
        ("[8]", "[0]", 1, "hidden >= 1"),
        ("0.2", "'many'", 1, "finite epochs > 0"),
    ],
)
def test_a_network_that_cannot_be_trained_leaves_nothing(run, tmp_path, old, new, code, said):
    pytest.importorskip("torch")
    Path("network.toml").write_text(NETWORK.replace(old, new))
    actual, out, err = run("fit", "--config", "network.toml", "--out", "model")
    assert actual == code and not out and said in re.sub(r"\s*│\s*", " ", err)
    assert list_files(tmp_path) == ["network.toml"]  # no model, and no ledger that was charged


def test_a_stopped_fit_leaves_no_model_and_resumes(run, visits):
    with mock.patch(
        "veracal.workflow.planning.measurement_plan", side_effect=KeyboardInterrupt
    ):
        code, out, err = run(*FIT, *PAID)
    assert code == 1 and not out and "Repeat the command" in err and not Path("model").exists()
    with mock.patch("veracal.workflow.planning.RunPlan.measure", side_effect=KeyboardInterrupt):
        code, out, err = run(*FIT, *PAID)
    assert code == 1 and not Path("model").exists()
    paid = Ledger("model.ledger").entries()
    assert [e.outcome for e in paid] == ["run", "run", "reserved", "answered"]
    code, _, err = run(*FIT, *PAID)
    assert code == 0, err
    assert Ledger("model.ledger").entries()[: len(paid)] == paid


def examples(run, name):
    """The commands that its help shows."""
    printed = run(name, "--help")[1].split("Example:")[1:]
    return [shlex.split(" ".join(each.split()))[1:] for each in printed]


def test_the_examples_in_help_texts_work(run, tmp_path, monkeypatch):
    for name in ("fit", "predict", "report", "doctor"):
        for command in examples(run, name):
            code, _, err = run(*command)
            assert code == 0, (name, err)
    assert pl.read_csv("predictions.csv").height == 569
    monkeypatch.setenv("VERACAL_LEDGERS", str(tmp_path / "others"))  # of another table
    saved, result = examples(run, "compare")
    for place in saved[1:]:
        shutil.copytree("model", place)
    for command in (saved, result):
        code, out, err = run(*command)
        assert code == 0 and "Comparable" in out, err


def test_a_unit_without_a_bound_is_an_error(run, visits):
    pl.read_csv("visits.csv").with_row_index("who").write_csv("visits.csv")
    declared = SCHEMA.replace("[columns.age]", '[columns.who]\nkind = "unit"\n\n[columns.age]')
    Path("visits.toml").write_text(declared)
    before = list_files(visits)
    code, out, err = run(*FIT, "--out", "model")
    assert code == 1 and not out and "max_contributions = … under [columns.who]" in err
    assert len(err.splitlines()) == 1 and list_files(visits) == before


@pytest.mark.parametrize("what", ["run", "reservation"])
def test_an_abandoned_run_names_the_next_command(run, visits, what):
    """Request ids are no option of a fit, so no message may send the user to one."""
    with mock.patch("veracal.queries.Curator._fit_charged", side_effect=KeyboardInterrupt):
        assert run(*FIT, *PAID)[0] == 1
    (pending,) = Ledger("model.ledger").pending()
    words = ["--run", "1", *(["--request", pending.request] if what == "reservation" else [])]
    assert run("ledger", "abandon", "model.ledger", *words)[0] == 0
    code, _, said = run(*FIT, *PAID)
    said = " ".join(said.split())
    assert code == 1 and "another --version" in said and "under another" not in said
    extension = ["--epsilon", "3", "--delta", "1e-3"]
    assert run("ledger", "extend", "model.ledger", *extension)[0] == 0
    assert run(*FIT, *PAID, "--version", "2")[0] == 0

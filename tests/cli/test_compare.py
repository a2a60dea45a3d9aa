"""`veracal compare` concludes no more than was released; `report` and `evaluate` of a model."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.sample_tables import write_model
from veracal import calibration
from veracal.artifact import PrivateClassifier
from veracal.cli._artifacts import labeled_scores
from veracal.data import Estimate, load
from veracal.ledger import Ledger, default_ledger_path
from veracal.report.results import Results


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    write_model(folder)
    return folder


def saved(home, name, **changes):
    """The model again, with other results."""
    results = Results.from_bytes((home / "model" / "results.json").read_bytes())
    result = replace(results, **{key: change(results) for key, change in changes.items()})
    model = PrivateClassifier.load(home / "model")
    model.save(Path(name), other_files={"results.json": result.to_bytes()})
    return name


def measured(low, high):
    """A change after which the calibration error lies between these."""

    def change(results):
        figure = Estimate(low, low, high, 0.95, 100)
        after = results.when("after")
        overall = replace(after.overall, ece=figure, accuracy=figure)
        return (results.when("before"), replace(after, overall=overall))

    return change


def test_overlapping_intervals_give_no_verdict(run, home):
    one = saved(home, "one", measured=measured(0.1, 0.2))
    two = saved(home, "two", measured=measured(0.2, 0.3))
    far = saved(home, "far", measured=measured(0.21, 0.3))
    actual = json.loads(run("compare", one, two, "--json")[1])
    assert actual["comparable"] and actual["better"]["ece"] == "no significant difference"
    for pair in ((one, far), (far, one)):
        actual = json.loads(run("compare", *pair, "--json")[1])
        assert actual["better"]["ece"] == "one"  # the lower, and of the accuracy the higher
        assert actual["better"]["accuracy"] == "far"
    code, out, _ = run("compare", one, far)
    assert code == 0 and "ece: one is better" in out and "0.1000 (0.1000 to 0.2000)" in out


def test_costs_add_up_unless_they_protect_differently(run, home):
    one, two = saved(home, "one"), saved(home, "two")
    each = json.loads((home / "model" / "results.json").read_text())["guarantee"]
    actual = json.loads(run("compare", one, two, "--json")[1])["together"]
    assert actual == {"epsilon": 2 * each["epsilon"], "delta": 2 * each["delta"]}
    other = saved(home, "other", guarantee=lambda r: replace(r.guarantee, unit="patient"))
    assert json.loads(run("compare", one, other, "--json")[1])["together"] is None
    assert "cannot be added" in run("compare", one, other)[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data": lambda r: replace(r.data, name="other")}, "other data"),
        ({"data": lambda r: replace(r.data, test=0.5)}, "share for testing"),
        (
            {"settings": lambda r: {**r.settings, "measurement": {"bins": 5}}},
            "other bins",
        ),
    ],
)
def test_differences_that_prevent_a_comparison_are_named(run, home, change, said):
    one, two = saved(home, "one"), saved(home, "two", **change)
    code, out, _ = run("compare", one, two)
    assert code == 0 and "Not comparable" in out and said in out and "better" not in out
    actual = json.loads(run("compare", one, two, "--json")[1])
    assert not actual["comparable"] and actual["better"] == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.update(guarantee={}),
        lambda r: r["guarantee"].update(epsilon="a lot"),
        lambda r: r.update(settings={}),
        lambda r: r.update(map={"kind": "magic"}),
        lambda r: r["data"].update(classes=3),
        lambda r: r["measured"][1]["overall"]["ece"].update(value="nan", high=True),
    ],
)
def test_invalid_results_are_rejected_in_one_line(run, home, change):
    one, content = saved(home, "one"), json.loads((home / "model" / "results.json").read_text())
    change(content)
    model = PrivateClassifier.load(home / "model")
    model.save(Path("odd"), other_files={"results.json": json.dumps(content).encode()})
    code, out, err = run("compare", one, "odd")
    assert code == 1 and not out and len(err.splitlines()) == 1 and err.startswith("error: odd")


def test_two_different_models_are_needed(run, home):
    one = saved(home, "one")
    assert run("compare", one, one)[0] == 2
    assert run("compare", one, "no-model")[0] == 1
    PrivateClassifier.load(home / "model").save(Path("bare"))
    code, _, err = run("compare", one, "bare")
    assert code == 1 and "results.json" in err and "veracal evaluate" in err
    shutil.copytree(one, "changed")
    Path("changed/results.json").write_text("{}")
    assert run("compare", one, "changed")[0] == 1


# ---------------------------------------------------------------- evaluate, of a model


def test_a_model_is_measured_like_its_scores(run, home):
    model, data = str(home / "model"), str(home / "visits.csv")
    words = ("evaluate", model, "--data", data, "--replicates", "0", "--json")
    code, out, err = run(*words)
    assert code == 0 and "optimistic" in err
    classifier = PrivateClassifier.load(model)
    scores = classifier.scores(load(data, schema=classifier.schema))
    actual = json.loads(out)["internal"]
    assert actual["figures"]["ece"]["value"] == calibration.ece(scores, bins=15)
    assert set(actual["groups"]["sex"]) == {"f", "m"} and "internal" in actual["note"]
    code, _, err = run(*words, "--fail-above", "ece=0")
    assert code == 1 and "above 0" in err


def test_the_ledger_of_the_table_pays_for_private_figures(run, home):
    shutil.copy(home / "visits.csv", "visits.csv")
    words = (
        "evaluate",
        str(home / "model"),
        "--data",
        "visits.csv",
        "--epsilon",
        "1",
        "--json",
    )
    heads = Ledger(home / "model.ledger").head
    first, again = (json.loads(run(*words, "--group", "sex")[1]) for _ in range(2))
    assert first["overall"] == again["overall"] and set(first["groups"]) == {"f", "m"}
    assert first["ledger"]["path"] == str(default_ledger_path("visits.csv"))
    assert first["ledger"]["left"]["epsilon"] == pytest.approx(0, abs=1e-5)
    assert Ledger(home / "model.ledger").head == heads


def test_figures_of_one_model_do_not_answer_for_another(home):
    write_model(home, "second", split_key="another")
    models = [PrivateClassifier.load(home / name) for name in ("model", "second")]
    names = {labeled_scores(model, str(home / "visits.csv")).name for model in models}
    assert len(names) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--data"),
        (("--data", "v.csv", "--classes", "a,b"), "schema"),
        (("--data", "v.csv", "--stream"), "schema"),
        (("--data", "v.csv", "--group", "race"), "sex"),
    ],
)
def test_wrong_usage_with_a_model(run, home, words, said):
    code, out, err = run("evaluate", str(home / "model"), *words)
    assert code == 2 and not out and said in err


# ---------------------------------------------------------------- report


def test_the_report_is_that_of_the_results(run, home):
    report = pytest.importorskip("veracal.report")
    if not hasattr(report, "render"):
        pytest.skip("the report page is not there yet")
    model = home / "model"
    code, out, _ = run("report", str(model))
    assert code == 0 and out == "model-report.html\n"
    expected = report.render(Results.from_bytes((model / "results.json").read_bytes()))
    assert Path("model-report.html").read_text() == expected
    code, _, err = run("report", str(model))
    assert code == 1 and "exists" in err
    assert run("report", str(model), "--force", "--out", "r.html", "--json")[0] == 0


def test_several_methods_within_one_budget(run, home, monkeypatch):
    monkeypatch.chdir(home)
    table = ("compare", "visits.csv", "--schema", "visits.toml", "--norm", "2")
    methods = "logistic/none,objective,output/none"
    words = (*table, "--epsilon", "9", "--methods", methods, "--out", "all", "--ledger",
             "all.ledger")  # fmt: skip
    code, out, err = run(*words)
    assert code == 0 and "Each of 3 methods has epsilon 3; all together 9." in err, err
    assert "all figures together cost at most epsilon" in out
    ledger = Ledger("all.ledger", run=1)
    assert ledger.budget.epsilon == 9 and all(i.times == n for i, n in ledger.planned())
    for name in ("logistic-none", "objective", "output-none"):
        assert f"all/{name}" in out and PrivateClassifier.load(f"all/{name}").private_

    # again: refused without --force; with it the same, at no cost
    code, _, err = run(*words)
    assert code == 1 and "--force" in err
    code, out, _ = run(*words, "--force", "--json")
    actual = json.loads(out)
    assert code == 0 and Ledger("all.ledger").head == ledger.head
    assert actual["together"]["epsilon"] <= 9
    assert [each["folder"] for each in actual["models"]] == [
        "all/logistic-none", "all/objective", "all/output-none",
    ]  # fmt: skip

    # the folders can be compared like any others, and more than two of them
    code, out, _ = run("compare", "all/logistic-none", "all/objective", "all/output-none")
    assert code == 0 and "after the map" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("model",), "two or more"),
        (("model", "./model"), "twice"),
        (("model", "other", "--epsilon", "1"), "--methods"),
        (("model", "other", "--force"), "--methods"),
        (("a", "b", "--methods", "logistic,output", "--epsilon", "1"), "one table"),
        (("digits", "--methods", "logistic", "--epsilon", "1"), "two or more"),
        (("digits", "--methods", "logistic,logistic", "--epsilon", "1"), "different"),
        (("digits", "--methods", "logistic,tree", "--epsilon", "1"), "tree"),
        (("digits", "--methods", "logistic,logistic/none"), "--epsilon"),
        (
            ("digits", "--methods", "mlp,logistic", "--epsilon", "1", "--norm", "3"),
            "no norm for the model 'mlp' or 'logistic'",
        ),
    ],
)
def test_invalid_comparisons_are_rejected(run, words, said):
    code, out, err = run("compare", *words)
    assert code == 2 and not out and said in " ".join(err.replace("│", " ").split())
    assert list(Path().iterdir()) == []

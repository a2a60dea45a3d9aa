"""`veracal audit` tells how far runs disagree; terminal, JSON, CSV and page say the same."""

import csv
import json
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.cli.made import table, write, write_model
from veracal.artifact import PrivateClassifier
from veracal.cli import _auditing
from veracal.cli.audit import repeated
from veracal.data import load, scan_rows
from veracal.errors import DataError, MissingExtraError
from veracal.multiplicity import audit_predictions, disagreement, normalized, plan_audit
from veracal.workflow import Config
from veracal.workflow.config import DataConfig, PrivacyConfig
from veracal.workflow.records import load_records

AUDIT = ["audit", "breast-cancer", "--model", "output", "--norm", "2", "--runs", "50"]
VISITS = ["audit", "visits.csv", "--schema", "visits.toml", "--model", "output", "--norm", "2"]
FIXED = ["--random-state", "1"]
INTERNAL = "internal: every run looked at the records again"


def found(run, *words):
    """What a command says to programs."""
    code, out, err = run(*words, "--json")
    assert code == 0, err
    return json.loads(out)


def parts(source, schema=None, **choices):
    """Records as a run deals them."""
    return load_records(Config(DataConfig(source, schema, **choices), PrivacyConfig(1.0)))


# ---------------------------------------------------------------- what is told


def test_the_line_of_the_issue_works(run):
    """Several budgets after one option, a number of runs that ends by itself, a group."""
    write(Path())
    line = "--epsilon 0.5 1 2 --runs auto --error 0.3 --most 400 --groups sex"
    told = found(run, *VISITS, *line.split(), *FIXED)
    assert [each["epsilon"] for each in told["audits"]] == [0.5, 1, 2]
    for each in told["audits"]:
        assert each["lasting"] and each["reached"] and 2 <= each["runs"] <= 400
        assert set(each["groups"]) == {"sex"}


@pytest.mark.parametrize(
    "words",
    [
        ["--epsilon", "0.5", "1", "2"],
        ["--epsilon", "0.5,1,2"],
        ["--epsilon", "0.5", "--epsilon=1", "2"],
        ["--epsilon=0.5, 1,2"],
    ],
)
def test_budgets_are_read_however_they_are_written(words):
    assert repeated([*words, "a.csv"], ["--epsilon"]) == [
        "--epsilon=0.5",
        "--epsilon=1",
        "--epsilon=2",
        "a.csv",
    ]


def test_terminal_json_and_people_agree(run):
    write(Path())
    words = [*VISITS, "--runs", "60", "--epsilon", "2", "8", "--groups", "sex", *FIXED]
    told = found(run, *words, "--out", "a")
    assert told["out"] == "a" and json.loads(Path("a/audit.json").read_text()) == {
        name: value for name, value in told.items() if name != "out"
    }
    code, out, _ = run(*words)
    assert code == 0
    assert out.count(INTERNAL) == len(re.findall("─{20,}", out)) == 4  # below every table
    lines = Path("a/people.csv").read_text().splitlines()
    people = list(csv.DictReader(lines))
    n, page = len(told["rows"]), Path("a/audit.html").read_text()
    assert len(people) == 2 * n
    for place, each in enumerate(told["audits"]):
        persons, mine = each["persons"], people[place * n : (place + 1) * n]
        row = f"{each['epsilon']:g} +60 +{each['mean']['value']:.3f} +"
        row += f"{each['mean']['low']:.3f} to {each['mean']['high']:.3f}"
        assert re.search(row, out)
        mean = each["mean"]
        cell = f"{mean['value']:.3f} ({mean['low']:.3f} to {mean['high']:.3f})"
        assert f'<td data-head="mean">{cell}</td>' in page
        assert [int(one["row"]) for one in mine] == told["rows"]
        for name in ("disagreement", "low", "high", "viable_range", "deviation"):
            assert [float(one[name]) for one in mine] == persons[name]
        assert [int(one["runs for yes"]) for one in mine] == [c[1] for c in persons["counts"]]
        review = [at for at, one in enumerate(mine) if one["review"] == "yes"]
        assert sorted(each["review"]) == review
        # Each figure by its definition.
        counts = np.array(persons["counts"])
        np.testing.assert_allclose(persons["disagreement"], disagreement(counts[:, 1], 60))
        assert each["mean"]["value"] == pytest.approx(np.mean(persons["disagreement"]))
        for group, value in each["groups"]["sex"]["values"].items():
            assert f"{value['value']:.3f} ({value['low']:.3f} to {value['high']:.3f})" in out, (
                group
            )


def test_people_are_told_by_their_number_in_the_table(run):
    """Rows that the schema drops are counted, too."""
    write(Path())
    frame = table().with_columns(
        stay=pl.when(pl.int_range(pl.len()) % 7 == 3).then(None).otherwise(pl.col("stay"))
    )
    frame.write_csv("visits.csv")
    told = found(run, *VISITS, "--runs", "40", "--epsilon", "8", "--threshold", "0.5", *FIXED)
    rows = np.array(told["rows"])
    assert len(rows) > 50 and (np.diff(rows) > 0).all() and ((rows - 1) % 7 != 3).all()
    people = parts("visits.csv", "visits.toml").test
    (kept,) = [found for _, found in scan_rows("visits.csv", "visits.toml")]
    places = np.searchsorted(kept.numbers, rows - 1)
    np.testing.assert_array_equal(kept.numbers[places] + 1, rows)
    np.testing.assert_array_equal(kept.X[places], people.X)


def test_the_people_are_those_whom_fit_measures_on(run):
    rows = found(run, *AUDIT, "--epsilon", "1", "--split-key", "k", "--test", "0.3")["rows"]
    whole, test = load("breast-cancer"), parts("breast-cancer", test=0.3, split_key="k").test
    np.testing.assert_array_equal(whole.X[np.array(rows) - 1], test.X)
    np.testing.assert_array_equal(whole.y[np.array(rows) - 1], test.y)


def test_more_privacy_is_more_arbitrary(run):
    told = found(run, *AUDIT, "--epsilon", "1", "100", *FIXED)
    little, much = (each["mean"]["value"] for each in told["audits"])
    assert little > much + 0.3


def test_everything_that_can_be_asked_for(run):
    words = ["--accuracy-levels", "0.2", "0.99", "--map", "mean area", "mean texture"]
    words += ["--recalibrate", "platt", "--review-above", "0.9", "--varied", "noise"]
    told = found(run, *AUDIT, "--epsilon", "5", *words, *FIXED)
    (each,) = told["audits"]
    assert [level["accuracy"] for level in each["at_levels"]] == [0.2, 0.99]
    assert each["plane"]["names"] == ["mean area", "mean texture"]
    assert each["recalibrated"]["before"]["value"] == each["mean"]["value"]
    assert each["recalibrated"]["difference"]["value"] != 0  # platt moves the boundary
    assert each["review_above"] == 0.9
    assert any("who are not audited" in note for note in told["notes"])
    _, out, _ = run(*AUDIT, "--epsilon", "5", *words, *FIXED)
    assert "among the more accurate runs" in out and "PlattScaling" in out
    assert out.count(INTERNAL) == 5


def test_the_model_of_fit_is_run_many_at_a_time(run):
    """Noisy descent, which is what nobody names; workers are not needed, and that is told."""
    words = ["audit", "breast-cancer", "--epsilon", "2", "--runs", "20", "--jobs", "2"]
    code, out, err = run(*words, *FIXED, "--json")
    (each,) = json.loads(out)["audits"]
    assert code == 0 and each["about"]["model"] == "PrivateLogisticRegression"
    assert "Without workers: by batched descent" in err


def test_three_classes(run):
    words = ["audit", "wine", "--model", "objective", "--norm", "2", "--runs", "30"]
    (each,) = found(run, *words, "--epsilon", "9", *FIXED)["audits"]
    counts = np.array(each["persons"]["counts"])
    assert counts.shape[1] == 3
    np.testing.assert_allclose(each["persons"]["disagreement"], normalized(counts, 30))


# ---------------------------------------------------------------- against a model, by a config


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    write_model(folder)
    return folder


@pytest.fixture
def model(made, tmp_path):
    """A model of the visits, and their table."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return "model"


def test_a_saved_model_brings_its_settings(run, model):
    """Its split, its table and, where nothing else is said, its budget and what a map costs."""
    words = ["audit", "--against", model, "--model", "output", "--norm", "2", "--runs", "40"]
    told = found(run, *words, *FIXED)
    (each,) = told["audits"]
    assert each["epsilon"] == 8.0 and told["name"] == "visits"
    assert each["about"]["parameters"]["epsilon"] < 8  # the map's share is not training's
    counts, flips = np.array(each["persons"]["counts"]), np.array(each["persons"]["flip"])
    whole = load("visits.csv", schema="visits.toml")
    said = PrivateClassifier.load(model).predict(whole.X[np.array(told["rows"]) - 1])
    chosen = [each["classes"].index(label) for label in said.tolist()]
    np.testing.assert_allclose(flips, 1 - counts[np.arange(len(counts)), chosen] / 40)
    _, out, _ = run(*words, *FIXED)
    assert f" {flips.mean():.3f} \n" in out.partition("flip")[2]
    people = list(csv.DictReader((run_out(run, words) / "people.csv").read_text().splitlines()))
    assert [float(one["flip"]) for one in people] == flips.tolist()


def run_out(run, words):
    """The folder that a command writes."""
    code, _, err = run(*words, *FIXED, "--out", "there")
    assert code == 0, err
    return Path("there")


def test_a_model_of_another_schema_is_refused(run, model):
    text = Path("visits.toml").read_text().replace("upper = 100", "upper = 120")
    Path("other.toml").write_text(text)
    words = ["--model", "output", "--norm", "2", "--runs", "40", "--against", model]
    for data in (["visits.csv", "--schema", "other.toml"], ["breast-cancer"]):
        code, out, err = run("audit", *data, *words)
        assert code == 1 and "another schema" in err and not out


def test_a_config_of_fit_is_taken(run):
    write(Path())
    Path("run.toml").write_text(
        'format = 1\n[data]\nsource = "visits.csv"\nschema = "visits.toml"\n'
        '[privacy]\nepsilon = 4\n[model]\nkind = "output"\nnorm = 2\nstrength = 0.25\n'
        '[recalibration]\nmethod = "none"\n'
    )
    (each,) = found(run, "audit", "--config", "run.toml", "--runs", "30")["audits"]
    assert each["epsilon"] == 4 and each["about"]["parameters"]["C"] == 0.25
    told = found(run, "audit", "--config", "run.toml", "--runs", "30", "--epsilon", "1", "2")
    assert [one["epsilon"] for one in told["audits"]] == [1, 2]


# ---------------------------------------------------------------- anybody's models


def test_predictions_of_anybody(run):
    rng = np.random.default_rng(0)
    labels = np.array(["ham", "spam"])[rng.integers(0, 2, 30)]
    decisions = (rng.random((80, 30)) < np.linspace(0, 1, 30)).astype(np.int64)
    np.savez(
        "runs.npz",
        decisions=decisions,
        labels=labels,
        classes=np.array(["ham", "spam"]),
        deployed=labels,
        rows=np.arange(30) + 1000,
        **{"group:age": np.repeat(["old", "young"], 15), "group:sex": np.tile([1, 2], 15)},
    )
    told = found(run, "audit", "--predictions", "runs.npz")
    (each,) = told["audits"]
    expected = audit_predictions(decisions)
    assert each["persons"]["disagreement"] == expected.persons.disagreement.tolist()
    assert set(each["groups"]) == {"age", "sex"} and each["classes"] == ["ham", "spam"]
    assert told["rows"][:2] == [1000, 1001] and each["epsilon"] is None
    right = (decisions == (labels == "spam")).mean(axis=1)
    assert each["figures"]["accuracy"]["mean"] == pytest.approx(right.mean())
    (crossed,) = found(run, "audit", "--predictions", "runs.npz", "--groups", "age & sex")[
        "audits"
    ]
    assert len(crossed["groups"]["age & sex"]["values"]) == 4
    code, out, _ = run("audit", "--predictions", "runs.npz", "--out", "a")
    assert code == 0 and out.count(INTERNAL) == 5 and "epsilon" not in out


def test_scores_are_what_their_array_says(run):
    logits = np.random.default_rng(0).normal(size=(40, 9))
    np.savez("logits.npz", logits=logits)
    np.savez("shares.npz", probabilities=1 / (1 + np.exp(-logits)))
    one, other = (
        found(run, "audit", "--predictions", name)["audits"][0]
        for name in ("logits.npz", "shares.npz")
    )
    assert one["persons"]["counts"] == other["persons"]["counts"]
    np.testing.assert_allclose(one["persons"]["deviation"], other["persons"]["deviation"])


D = np.tile([0, 1], (4, 2))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"decisions": D[:1]}, "two or more runs"),
        ({"decisions": D.astype(float)}, "float64 of shape"),
        ({"decisions": np.zeros(4, dtype=int)}, "of shape (4,)"),
        ({"decisions": D - 1}, "0 to"),
        ({"logits": np.full((4, 4), np.nan)}, "NaN"),
        ({"scores": np.full((4, 4), 1.5)}, "between 0 and 1"),
        ({"labels": np.zeros(4, dtype=int)}, "one array of decisions"),
        ({"decisions": D, "logits": D * 1.0}, "'decisions', 'logits'"),
        ({"decisions": D, "lables": D}, "'lables'"),
        ({"decisions": D, "labels": np.zeros(3, dtype=int)}, "4 values"),
        ({"decisions": D, "labels": np.full(4, 7)}, "0 to 1"),
        ({"decisions": D, "labels": np.array(["x"] * 4)}, "labels"),
        ({"decisions": D, "classes": np.array(["only"])}, "two or more"),
        ({"decisions": D, "deployed": np.full(4, -1)}, "0 to 1"),
        ({"decisions": D, "group:age": np.zeros(4)}, "group:age"),
        ({"decisions": D, "group:a&b": np.zeros(4, dtype=int)}, "without '&'"),
        ({"decisions": D, "rows": np.zeros(4)}, "rows"),
        ({"decisions": np.array([["a", "b"]] * 3)}, "shape"),
        ({"decisions": np.array([[None, 1]] * 3, dtype=object)}, "runs.npz"),
    ],
)
def test_predictions_that_are_none(run, arrays, message):
    np.savez("runs.npz", allow_pickle=True, **arrays)
    code, out, err = run("audit", "--predictions", "runs.npz")
    assert code == 1 and message in err and not out and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("option", "value"), [("--accuracy-levels", "0.5"), ("--threshold", "0.3")]
)
def test_what_predictions_cannot_be_asked_is_wrong_usage(run, option, value):
    np.savez("runs.npz", decisions=D)
    code, out, err = run("audit", "--predictions", "runs.npz", option, value)
    assert code == 2 and "Expected" in err and "Traceback" not in err and not out


def test_constant_predictions_and_lonely_groups_are_stated(run):
    np.savez(
        "runs.npz",
        decisions=np.ones((200, 4), dtype=int),
        labels=np.ones(4, dtype=int),
        **{"group:age": np.array(["old", "young", "young", "young"])},
    )
    code, out, _ = run("audit", "--predictions", "runs.npz")
    words = " ".join(out.split())
    assert code == 0 and "All 200 runs decide alike about everybody" in words
    assert "age: one person alone is in old" in words


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([*AUDIT[:-1], "1", "--epsilon", "1"], 2, "runs >= 2"),
        ([*AUDIT[:-1], "many", "--epsilon", "1"], 2, "--runs"),
        ([*AUDIT, "--epsilon", "0"], 2, "--epsilon"),
        ([*AUDIT, "--epsilon", "one"], 2, "not a valid float"),
        (AUDIT, 2, "--epsilon"),
        (["audit", "--epsilon", "1"], 2, "DATA"),
        (["audit", "--predictions", "none.npz"], 1, "nothing at that path"),
        (["audit", "nowhere.csv", "--epsilon", "1"], 1, "nothing at that path"),
        (["audit", "digits", "--predictions", "a.npz"], 2, "DATA"),
        (["audit", "--predictions", "a.npz", "--epsilon", "1"], 2, "--epsilon"),
        (["audit", "--predictions", "a.npz", "--runs", "9"], 2, "--runs"),
        (["audit", "--predictions", "a.npz", "--norm", "9"], 2, "--norm"),
        (["audit", "--predictions", "a.npz", "--varied", "noise"], 2, "--varied"),
        (["audit", "--predictions", "a.npz", "--most", "9"], 2, "--most"),
        (["audit", "--predictions", "a.npz", "--random-state", "9"], 2, "--random-state"),
        ([*AUDIT[:-1], "²", "--epsilon", "1"], 2, "--runs"),
        ([*AUDIT, "--epsilon", "1", "--groups", "age"], 1, "attributes of the people"),
        ([*AUDIT, "--epsilon", "1", "--map", "mean area", "nix"], 1, "'nix'"),
        ([*AUDIT, "--epsilon", "1", "--map", "mean area", "mean area"], 2, "two different"),
        ([*AUDIT, "--epsilon", "1", "--recalibrate", "magic"], 2, "--recalibrate"),
        ([*AUDIT, "--epsilon", "1", "--backend", "magic"], 2, "--backend"),
        ([*AUDIT, "--epsilon", "1", "--varied", "moods"], 2, "varied"),
        ([*AUDIT, "--epsilon", "1", "--level", "1"], 2, "level"),
        ([*AUDIT, "--epsilon", "1", "--review-above", "2"], 2, "review_above"),
        ([*AUDIT, "--epsilon", "1", "--threshold", "1"], 2, "threshold"),
        ([*AUDIT, "--epsilon", "1", "--accuracy-levels", "7"], 2, "level"),
        ([*AUDIT, "--epsilon", "1", "--against", "nowhere"], 1, "nowhere"),
        ([*AUDIT, "--epsilon", "1", "--keep", "no/such/folder.npz"], 1, "a place to write"),
    ],
)
def test_wrong_usage_is_explained(run, words, code, message):
    got, out, err = run(*words)
    assert (got, out) == (code, "") and message in " ".join(err.split())


def test_figures_are_not_released(run):
    code, out, err = run(*AUDIT, "--epsilon", "1", "--release")
    assert code == 1 and not out
    assert "1/n is not the sensitivity" in err and "predict MODEL DATA --arbitrariness" in err


# ---------------------------------------------------------------- files


def test_files_are_for_their_owner(run):
    code, _, err = run(*AUDIT, "--epsilon", "1", "--out", "a")
    assert code == 0 and "treat it as the records" in err
    assert stat.S_IMODE(Path("a").stat().st_mode) == 0o700
    assert {p.name for p in Path("a").iterdir()} == {"audit.html", "audit.json", "people.csv"}
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in Path("a").iterdir())


def test_without_the_extra_that_draws_there_is_no_page(run, monkeypatch):
    def missing(_):
        raise MissingExtraError("This needs vl_convert.")

    monkeypatch.setattr(_auditing, "render_audit", missing)
    code, _, err = run(*AUDIT, "--epsilon", "1", "--out", "a")
    assert code == 0 and "Without audit.html: This needs vl_convert." in err
    assert {p.name for p in Path("a").iterdir()} == {"audit.json", "people.csv"}


def test_what_cannot_be_written_is_told_nevertheless(run, monkeypatch):
    """A disk that filled up meanwhile costs no result."""

    def full(*_, **__):
        raise DataError("a", "a place to write", "a full disk", "Name another place.")

    monkeypatch.setattr(_auditing, "write_folder", full)
    code, out, err = run(*AUDIT, "--epsilon", "1", "--out", "a")
    assert code == 1 and "a full disk" in err and INTERNAL in out


def test_what_is_there_is_kept_unless_that_is_wanted(run, model):
    words = [*AUDIT, "--epsilon", "1", "--out"]
    assert run(*words, "a")[0] == 0
    before = Path("a/audit.json").read_bytes()
    code, _, err = run(*words, "a")
    assert code == 1 and "--force" in err and Path("a/audit.json").read_bytes() == before
    assert run(*words, "a", "--force")[0] == 0
    assert Path("a/audit.json").read_bytes() != before
    code, _, err = run(*words, model, "--force")
    assert code == 2 and "is a model" in err
    Path("a/mine.txt").write_text("")
    code, _, err = run(*words, "a", "--force")
    assert code == 1 and "'mine.txt'" in err and Path("a/mine.txt").exists()
    assert run(*words, "no/such")[0] == 1 and not Path("no").exists()


def test_an_audit_goes_on_where_it_broke_off(run):
    words = [*AUDIT[:-2], "--epsilon", "2", "--keep", "runs.npz"]
    (first,) = found(run, *words, "--runs", "40", *FIXED)["audits"]
    (more,) = found(run, *words, "--runs", "100")["audits"]
    (at_once,) = found(run, *words[:-2], "--runs", "100", *FIXED)["audits"]
    assert (first["resumed"], more["resumed"], more["runs"]) == (0, 40, 100)
    sums = np.array(more["persons"]["counts"]).sum(axis=1)
    assert (sums == 100).all() and at_once["runs"] == 100
    assert (np.array(more["persons"]["counts"]) >= np.array(first["persons"]["counts"])).all()
    _, out, _ = run(*words, "--runs", "100")
    assert "100 of the runs came from the file of --keep" in out


def test_several_budgets_are_kept_apart(run):
    words = [*AUDIT, "--epsilon", "1", "2", "--keep", "runs.npz"]
    assert run(*words)[0] == 0
    assert {p.name for p in Path().glob("*.npz")} == {
        "runs-epsilon-1.npz",
        "runs-epsilon-2.npz",
    }
    assert [each["resumed"] for each in found(run, *words)["audits"]] == [50, 50]


def test_a_file_of_other_settings_or_of_something_else(run):
    words = [*AUDIT, "--keep", "runs.npz", "--epsilon"]
    assert run(*words, "1")[0] == 0
    before = Path("runs.npz").read_bytes()
    code, out, err = run(*words, "2")
    assert code == 1 and "epsilon" in err and "name another file" in err and not out
    code, _, err = run(*words, "1", "--test", "0.3")
    assert code == 1 and "people" in err
    assert Path("runs.npz").read_bytes() == before
    Path("runs.npz").write_text("no audit")
    code, _, err = run(*words, "1")
    assert code == 1 and "a file that an audit keeps" in err
    assert Path("runs.npz").read_text() == "no audit"


def test_control_c_keeps_what_was_counted(run):
    """The real signal: a line, no folder, and the same command goes on."""
    words = ["audit", "breast-cancer", "--model", "objective", "--norm", "1", "--epsilon", "1"]
    words += ["--keep", "runs.npz", "--runs"]
    main = "from veracal.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", main, *words, "100000000", "--out", "a"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 240
    while not Path("runs.npz").exists() and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 1 and not out and not Path("a").exists()
    assert "counts none twice" in err and "runs.npz" in err and len(err.splitlines()) == 1
    told = json.loads(np.load("runs.npz")["head"].item())
    done = sum(stop - start for start, stop in told["done"])
    (each,) = found(run, *words, str(done + 10))["audits"]
    assert (each["resumed"], each["runs"]) == (done, done + 10)
    assert (np.array(each["persons"]["counts"]).sum(axis=1) == done + 10).all()


# ---------------------------------------------------------------- help and plans


def test_the_example_of_the_help_works(run):
    shown = run("audit", "--help")[1].partition("Example:")[2].partition("What can")[0]
    code, out, err = run(*shlex.split(" ".join(shown.split()))[1:])
    assert code == 0 and INTERNAL in out, err
    code, out, _ = run("audit", "--help")
    assert "move everybody's disagreement at once" in " ".join(out.split()).replace("│ │ ", "")


def test_a_plan_of_runs_by_both_bounds(run):
    told = found(run, "plan", "audit", "--people", "369", "--error", "0.08")
    assert told == vars(plan_audit(369, 0.08)) and told["paper_runs"] == 12_502
    back = found(run, "plan", "audit", "--people", "369", "--runs", str(told["runs"]))
    assert back["error"] <= 0.08 < back["paper_error"]
    _, out, _ = run("plan", "audit", "--people", "369", "--error", "0.08")
    assert f"{told['runs']:,}" in out and "12,502" in out
    for words in (["--error", "1"], ["--runs", "1"], ["--error", "0.1", "--runs", "9"]):
        assert run("plan", "audit", *words)[0] == 2

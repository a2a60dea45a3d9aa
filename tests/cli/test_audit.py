"""`veracal audit`: terminal, JSON, CSV and page show the same disagreement."""

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

from tests.cli.sample_tables import table, write, write_model
from veracal.artifact import PrivateClassifier
from veracal.cli.audit import expand_lists
from veracal.data import load, scan_rows
from veracal.errors import DataError, MissingExtraError
from veracal.multiplicity import (
    audit_predictions,
    disagreement,
    normalized_disagreement,
    plan_audit,
)
from veracal.workflow import Config
from veracal.workflow.config import DataConfig, PrivacyConfig
from veracal.workflow.records import load_records

AUDIT = ["audit", "breast-cancer", "--model", "output", "--norm", "2", "--runs", "50"]
VISITS = ["audit", "visits.csv", "--schema", "visits.toml", "--model", "output", "--norm", "2"]
FIXED = ["--random-state", "1"]
INTERNAL = "internal: every run reads the records again"


def json_of(run, *words):
    """JSON output of a command."""
    code, out, err = run(*words, "--json")
    assert code == 0, err
    return json.loads(out)


def parts(source, schema=None, **choices):
    """Records as a run splits them."""
    return load_records(Config(DataConfig(source, schema, **choices), PrivacyConfig(1.0)))


# ---------------------------------------------------------------- results


def test_several_budgets_run_automatically_by_group(run):
    """Several budgets after one option, an automatic number of runs, and a group."""
    write(Path())
    line = "--epsilon 0.5 1 2 --runs auto --error 0.3 --max-runs 400 --group sex"
    result = json_of(run, *VISITS, *line.split(), *FIXED)
    assert [each["epsilon"] for each in result["audits"]] == [0.5, 1, 2]
    for each in result["audits"]:
        assert each["anytime_valid"] and each["error_reached"] and 2 <= each["runs"] <= 400
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
def test_budgets_accept_every_list_notation(words):
    assert expand_lists([*words, "a.csv"], ["--epsilon"]) == [
        "--epsilon=0.5",
        "--epsilon=1",
        "--epsilon=2",
        "a.csv",
    ]


def test_terminal_json_and_csv_agree(run):
    write(Path())
    words = [*VISITS, "--runs", "60", "--epsilon", "2", "8", "--group", "sex", *FIXED]
    result = json_of(run, *words, "--out", "a")
    assert result["out"] == "a" and json.loads(Path("a/audit.json").read_text()) == {
        name: value for name, value in result.items() if name != "out"
    }
    code, out, _ = run(*words)
    assert code == 0
    assert out.count(INTERNAL) == len(re.findall("─{20,}", out)) == 4  # below every table
    lines = Path("a/individuals.csv").read_text().splitlines()
    individuals = list(csv.DictReader(lines))
    n, page = len(result["rows"]), Path("a/audit.html").read_text()
    assert len(individuals) == 2 * n
    for place, each in enumerate(result["audits"]):
        individuals_, lines_ = each["individuals"], individuals[place * n : (place + 1) * n]
        row = f"{each['epsilon']:g} +60 +{each['mean']['value']:.3f} +"
        row += rf"\({each['mean']['low']:.3f} to {each['mean']['high']:.3f}\)"
        assert re.search(row, out)
        mean = each["mean"]
        cell = f"{mean['value']:.3f} ({mean['low']:.3f} to {mean['high']:.3f})"
        assert f'<td data-head="mean">{cell}</td>' in page
        assert [int(one["row"]) for one in lines_] == result["rows"]
        for name in ("disagreement", "low", "high", "viable_range", "deviation"):
            assert [float(one[name]) for one in lines_] == individuals_[name]
        assert [int(one["runs for yes"]) for one in lines_] == [
            c[1] for c in individuals_["counts"]
        ]
        review = [at for at, one in enumerate(lines_) if one["review"] == "yes"]
        assert sorted(each["review"]) == review
        # Each figure by its definition.
        counts = np.array(individuals_["counts"])
        np.testing.assert_allclose(individuals_["disagreement"], disagreement(counts[:, 1], 60))
        assert each["mean"]["value"] == pytest.approx(np.mean(individuals_["disagreement"]))
        for group, value in each["groups"]["sex"]["values"].items():
            assert f"{value['value']:.3f} ({value['low']:.3f} to {value['high']:.3f})" in out, (
                group
            )


def test_individuals_are_identified_by_their_table_row(run):
    """Rows that the schema drops count as well."""
    write(Path())
    frame = table().with_columns(
        stay=pl.when(pl.int_range(pl.len()) % 7 == 3).then(None).otherwise(pl.col("stay"))
    )
    frame.write_csv("visits.csv")
    result = json_of(
        run, *VISITS, "--runs", "40", "--epsilon", "8", "--threshold", "0.5", *FIXED
    )
    rows = np.array(result["rows"])
    assert len(rows) > 50 and (np.diff(rows) > 0).all() and ((rows - 1) % 7 != 3).all()
    individuals = parts("visits.csv", "visits.toml").test
    (kept,) = [json_of for _, json_of in scan_rows("visits.csv", "visits.toml")]
    places = np.searchsorted(kept.numbers, rows - 1)
    np.testing.assert_array_equal(kept.numbers[places] + 1, rows)
    np.testing.assert_array_equal(kept.X[places], individuals.X)


def test_the_audited_individuals_are_the_test_partition_of_fit(run):
    rows = json_of(run, *AUDIT, "--epsilon", "1", "--split-key", "k", "--test", "0.3")["rows"]
    whole, test = load("breast-cancer"), parts("breast-cancer", test=0.3, split_key="k").test
    np.testing.assert_array_equal(whole.X[np.array(rows) - 1], test.X)
    np.testing.assert_array_equal(whole.y[np.array(rows) - 1], test.y)


def test_more_privacy_means_more_disagreement(run):
    result = json_of(run, *AUDIT, "--epsilon", "1", "100", *FIXED)
    little, much = (each["mean"]["value"] for each in result["audits"])
    assert little > much + 0.3


def test_all_options_together(run):
    words = ["--accuracy-levels", "0.2", "0.99", "--plane", "mean area", "mean texture"]
    words += ["--recalibrate", "platt", "--review-above", "0.9", "--varied", "noise"]
    result = json_of(run, *AUDIT, "--epsilon", "5", *words, *FIXED)
    (each,) = result["audits"]
    assert [level["accuracy"] for level in each["by_accuracy"]] == [0.2, 0.99]
    assert each["plane"]["names"] == ["mean area", "mean texture"]
    assert each["recalibrated"]["before"]["value"] == each["mean"]["value"]
    assert each["recalibrated"]["difference"]["value"] != 0  # platt moves the boundary
    assert each["review_above"] == 0.9
    assert any("which are not audited" in note for note in result["notes"])
    _, out, _ = run(*AUDIT, "--epsilon", "5", *words, *FIXED)
    assert "runs of higher accuracy" in out and "PlattScaling" in out
    assert out.count(INTERNAL) == 5


def test_the_default_model_runs_in_batches(run):
    """The default model is DP-SGD; a message says that no workers are needed."""
    words = ["audit", "breast-cancer", "--epsilon", "2", "--runs", "20", "--jobs", "2"]
    code, out, err = run(*words, *FIXED, "--json")
    (each,) = json.loads(out)["audits"]
    assert code == 0 and each["engine_settings"]["model"] == "PrivateLogisticRegression"
    assert "No workers needed: batched DP-SGD" in err


def test_three_classes(run):
    words = ["audit", "wine", "--model", "objective", "--norm", "2", "--runs", "30"]
    (each,) = json_of(run, *words, "--epsilon", "9", *FIXED)["audits"]
    counts = np.array(each["individuals"]["counts"])
    assert counts.shape[1] == 3
    np.testing.assert_allclose(
        each["individuals"]["disagreement"], normalized_disagreement(counts, 30)
    )


# ---------------------------------------------------------------- against a model, by a config


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    write_model(folder)
    return folder


@pytest.fixture
def model(model_folder, tmp_path):
    """A model of the visits, and its table."""
    shutil.copytree(model_folder, tmp_path, dirs_exist_ok=True)
    return "model"


def test_against_uses_the_settings_of_the_model(run, model):
    """Its split and table, and by default its budget and the cost of its map."""
    words = ["audit", "--against", model, "--model", "output", "--norm", "2", "--runs", "40"]
    result = json_of(run, *words, *FIXED)
    (each,) = result["audits"]
    assert each["epsilon"] == 8.0 and result["name"] == "visits"
    assert (
        each["engine_settings"]["parameters"]["epsilon"] < 8
    )  # part of the budget is the map's
    counts, flips = (
        np.array(each["individuals"]["counts"]),
        np.array(each["individuals"]["flip"]),
    )
    whole = load("visits.csv", schema="visits.toml")
    decisions = PrivateClassifier.load(model).predict(whole.X[np.array(result["rows"]) - 1])
    chosen = [each["classes"].index(label) for label in decisions.tolist()]
    np.testing.assert_allclose(flips, 1 - counts[np.arange(len(counts)), chosen] / 40)
    _, out, _ = run(*words, *FIXED)
    assert f" {flips.mean():.3f} \n" in out.partition("flip")[2]
    individuals = list(
        csv.DictReader((run_out(run, words) / "individuals.csv").read_text().splitlines())
    )
    assert [float(one["flip"]) for one in individuals] == flips.tolist()


def run_out(run, words):
    """Output folder of a command."""
    code, _, err = run(*words, *FIXED, "--out", "there")
    assert code == 0, err
    return Path("there")


def test_a_model_with_another_schema_is_rejected(run, model):
    text = Path("visits.toml").read_text().replace("upper = 100", "upper = 120")
    Path("other.toml").write_text(text)
    words = ["--model", "output", "--norm", "2", "--runs", "40", "--against", model]
    for data in (["visits.csv", "--schema", "other.toml"], ["breast-cancer"]):
        code, out, err = run("audit", *data, *words)
        assert code == 1 and "another schema" in err and not out


def test_a_config_of_fit_is_accepted(run):
    write(Path())
    Path("run.toml").write_text(
        'format = 1\n[data]\nsource = "visits.csv"\nschema = "visits.toml"\n'
        '[privacy]\nepsilon = 4\n[model]\nkind = "output"\nnorm = 2\nstrength = 0.25\n'
        '[recalibration]\nmethod = "none"\n'
    )
    (each,) = json_of(run, "audit", "--config", "run.toml", "--runs", "30")["audits"]
    assert each["epsilon"] == 4 and each["engine_settings"]["parameters"]["C"] == 0.25
    result = json_of(
        run, "audit", "--config", "run.toml", "--runs", "30", "--epsilon", "1", "2"
    )
    assert [one["epsilon"] for one in result["audits"]] == [1, 2]


# ---------------------------------------------------------------- stored predictions


def test_predictions_from_a_file(run):
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
    result = json_of(run, "audit", "--predictions", "runs.npz")
    (each,) = result["audits"]
    expected = audit_predictions(decisions)
    assert each["individuals"]["disagreement"] == expected.individuals.disagreement.tolist()
    assert set(each["groups"]) == {"age", "sex"} and each["classes"] == ["ham", "spam"]
    assert result["rows"][:2] == [1000, 1001] and each["epsilon"] is None
    right = (decisions == (labels == "spam")).mean(axis=1)
    assert each["figures"]["accuracy"]["mean"] == pytest.approx(right.mean())
    (crossed,) = json_of(run, "audit", "--predictions", "runs.npz", "--group", "age & sex")[
        "audits"
    ]
    assert len(crossed["groups"]["age & sex"]["values"]) == 4
    code, out, _ = run("audit", "--predictions", "runs.npz", "--out", "a")
    assert code == 0 and out.count(INTERNAL) == 5 and "epsilon" not in out


def test_the_array_name_decides_the_kind_of_scores(run):
    logits = np.random.default_rng(0).normal(size=(40, 9))
    np.savez("logits.npz", logits=logits)
    np.savez("shares.npz", probabilities=1 / (1 + np.exp(-logits)))
    one, other = (
        json_of(run, "audit", "--predictions", name)["audits"][0]
        for name in ("logits.npz", "shares.npz")
    )
    assert one["individuals"]["counts"] == other["individuals"]["counts"]
    np.testing.assert_allclose(
        one["individuals"]["deviation"], other["individuals"]["deviation"]
    )


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
def test_invalid_predictions_are_rejected(run, arrays, message):
    np.savez("runs.npz", allow_pickle=True, **arrays)
    code, out, err = run("audit", "--predictions", "runs.npz")
    assert code == 1 and message in err and not out and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("option", "value"), [("--accuracy-levels", "0.5"), ("--threshold", "0.3")]
)
def test_options_that_predictions_do_not_support_are_usage_errors(run, option, value):
    np.savez("runs.npz", decisions=D)
    code, out, err = run("audit", "--predictions", "runs.npz", option, value)
    assert code == 2 and "Expected" in err and "Traceback" not in err and not out


def test_constant_predictions_and_singleton_groups_get_notes(run):
    np.savez(
        "runs.npz",
        decisions=np.ones((200, 4), dtype=int),
        labels=np.ones(4, dtype=int),
        **{"group:age": np.array(["old", "young", "young", "young"])},
    )
    code, out, _ = run("audit", "--predictions", "runs.npz")
    words = " ".join(out.split())
    assert code == 0 and "All 200 runs agree about every individual" in words
    assert "age: old has one individual" in words


# ---------------------------------------------------------------- errors


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
        (["audit", "--predictions", "a.npz", "--max-runs", "9"], 2, "--max-runs"),
        (["audit", "--predictions", "a.npz", "--random-state", "9"], 2, "--random-state"),
        ([*AUDIT[:-1], "²", "--epsilon", "1"], 2, "--runs"),
        ([*AUDIT, "--epsilon", "1", "--group", "age"], 1, "declared groups"),
        ([*AUDIT, "--epsilon", "1", "--plane", "mean area", "nix"], 1, "'nix'"),
        ([*AUDIT, "--epsilon", "1", "--plane", "mean area", "mean area"], 2, "two different"),
        ([*AUDIT, "--epsilon", "1", "--recalibrate", "magic"], 2, "--recalibrate"),
        ([*AUDIT, "--epsilon", "1", "--backend", "magic"], 2, "--backend"),
        ([*AUDIT, "--epsilon", "1", "--varied", "moods"], 2, "varied"),
        ([*AUDIT, "--epsilon", "1", "--level", "1"], 2, "level"),
        ([*AUDIT, "--epsilon", "1", "--review-above", "2"], 2, "--review-above"),
        ([*AUDIT, "--epsilon", "1", "--threshold", "1"], 2, "threshold"),
        ([*AUDIT, "--epsilon", "1", "--accuracy-levels", "7"], 2, "level"),
        ([*AUDIT, "--epsilon", "1", "--against", "nowhere"], 1, "nowhere"),
        ([*AUDIT, "--epsilon", "1", "--keep", "no/such/folder.npz"], 1, "a writable folder"),
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


def test_files_are_readable_only_by_their_owner(run):
    code, _, err = run(*AUDIT, "--epsilon", "1", "--out", "a")
    assert code == 0 and "protect it like the records" in err
    assert stat.S_IMODE(Path("a").stat().st_mode) == 0o700
    assert {p.name for p in Path("a").iterdir()} == {
        "audit.html",
        "audit.json",
        "individuals.csv",
    }
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in Path("a").iterdir())


def test_without_the_report_extra_there_is_no_page(run, monkeypatch):
    def missing(_):
        raise MissingExtraError("This needs vl_convert.")

    monkeypatch.setattr("veracal.report.render_audit", missing)
    code, _, err = run(*AUDIT, "--epsilon", "1", "--out", "a")
    assert code == 0 and "Without audit.html: This needs vl_convert." in err
    assert {p.name for p in Path("a").iterdir()} == {"audit.json", "individuals.csv"}


def test_results_are_printed_if_writing_fails(run, monkeypatch):
    """A full disk loses no result."""

    def full(*_, **__):
        raise DataError("a", "a writable folder", "a full disk", "Name another place.")

    monkeypatch.setattr("veracal.artifact.write_folder", full)
    code, out, err = run(*AUDIT, "--epsilon", "1", "--out", "a")
    assert code == 1 and "a full disk" in err and INTERNAL in out


def test_existing_output_is_only_replaced_with_force(run, model):
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


def test_an_audit_resumes_from_its_checkpoint(run):
    words = [*AUDIT[:-2], "--epsilon", "2", "--keep", "runs.npz"]
    (first,) = json_of(run, *words, "--runs", "40", *FIXED)["audits"]
    (more,) = json_of(run, *words, "--runs", "100")["audits"]
    (at_once,) = json_of(run, *words[:-2], "--runs", "100", *FIXED)["audits"]
    assert (first["resumed"], more["resumed"], more["runs"]) == (0, 40, 100)
    sums = np.array(more["individuals"]["counts"]).sum(axis=1)
    assert (sums == 100).all() and at_once["runs"] == 100
    assert (
        np.array(more["individuals"]["counts"]) >= np.array(first["individuals"]["counts"])
    ).all()
    _, out, _ = run(*words, "--runs", "100")
    assert "100 of the runs came from the checkpoint" in out


def test_each_budget_has_its_own_checkpoint(run):
    words = [*AUDIT, "--epsilon", "1", "2", "--keep", "runs.npz"]
    assert run(*words)[0] == 0
    assert {p.name for p in Path().glob("*.npz")} == {
        "runs-epsilon-1.npz",
        "runs-epsilon-2.npz",
    }
    assert [each["resumed"] for each in json_of(run, *words)["audits"]] == [50, 50]


def test_a_checkpoint_of_another_audit_is_rejected(run):
    words = [*AUDIT, "--keep", "runs.npz", "--epsilon"]
    assert run(*words, "1")[0] == 0
    before = Path("runs.npz").read_bytes()
    code, out, err = run(*words, "2")
    assert code == 1 and "epsilon" in err and "choose another file" in err and not out
    code, _, err = run(*words, "1", "--test", "0.3")
    assert code == 1 and "individuals" in err
    assert Path("runs.npz").read_bytes() == before
    Path("runs.npz").write_text("no audit")
    code, _, err = run(*words, "1")
    assert code == 1 and "a checkpoint of an audit" in err
    assert Path("runs.npz").read_text() == "no audit"


def test_ctrl_c_keeps_the_counted_runs(run):
    """A real signal: one line, no folder, and the same command resumes."""
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
    result = json.loads(np.load("runs.npz")["head"].item())
    done = sum(stop - start for start, stop in result["completed"])
    (each,) = json_of(run, *words, str(done + 10))["audits"]
    assert (each["resumed"], each["runs"]) == (done, done + 10)
    assert (np.array(each["individuals"]["counts"]).sum(axis=1) == done + 10).all()


# ---------------------------------------------------------------- help and plans


def test_the_example_of_the_help_works(run):
    example = (
        run("audit", "--help")[1].partition("Example:")[2].partition("The arbitrariness")[0]
    )
    code, out, err = run(*shlex.split(" ".join(example.split()))[1:])
    assert code == 0 and INTERNAL in out, err
    code, out, _ = run("audit", "--help")
    assert "change every individual's disagreement at once" in " ".join(out.split()).replace(
        "│ │ ", ""
    )


def test_plan_audit_by_both_bounds(run):
    result = json_of(run, "plan", "audit", "--individuals", "369", "--error", "0.08")
    assert result == vars(plan_audit(369, 0.08)) and result["paper_runs"] == 12_502
    back = json_of(run, "plan", "audit", "--individuals", "369", "--runs", str(result["runs"]))
    assert back["error"] <= 0.08 < back["paper_error"]
    _, out, _ = run("plan", "audit", "--individuals", "369", "--error", "0.08")
    assert f"{result['runs']:,}" in out and "12,502" in out
    for words in (["--error", "1"], ["--runs", "1"], ["--error", "0.1", "--runs", "9"]):
        assert run("plan", "audit", *words)[0] == 2

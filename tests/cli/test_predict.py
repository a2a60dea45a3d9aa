"""`veracal predict` says of every row what the model says, with or without labels."""

import json
from pathlib import Path
from unittest import mock

import numpy as np
import polars as pl
import pytest

from tests.cli.sample_tables import table, write_model
from veracal.artifact import PrivateClassifier
from veracal.data import Schema, load, scan_rows
from veracal.data.builtin import SCHEMAS


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    write_model(folder)
    return folder


@pytest.fixture
def model(home):
    return str(home / "model")


@pytest.fixture
def expected(home):
    """Probabilities of every class, by the library."""
    classifier = PrivateClassifier.load(home / "model")
    rows = load(home / "visits.csv", schema=classifier.schema).X
    return classifier.classes_.tolist(), classifier.predict_proba(rows)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize("labeled", [True, False])
def test_files_contain_the_predictions_of_the_library(run, model, expected, suffix, labeled):
    rows = table() if labeled else table().drop("back")
    rows.write_csv("new.csv")
    code, out, err = run("predict", model, "new.csv", "--out", f"p{suffix}")
    assert code == 0 and not out and "Treat the file like the records" in err
    assert Path(f"p{suffix}").stat().st_mode & 0o077 == 0
    names, shares = expected
    if suffix == ".npz":
        with np.load(f"p{suffix}") as actual:
            number, label, got = actual["row"], actual["prediction"], actual["probabilities"]
            assert actual["classes"].tolist() == names
    else:
        read = pl.read_csv if suffix == ".csv" else pl.read_parquet
        actual = read(f"p{suffix}")
        assert actual.columns == ["row", "prediction", *(f"probability_{c}" for c in names)]
        number, label = actual["row"].to_numpy(), actual["prediction"].to_numpy()
        got = actual.drop("row", "prediction").to_numpy()
    np.testing.assert_array_equal(number, np.arange(1, 601))
    np.testing.assert_array_equal(label, np.array(names)[shares.argmax(axis=1)])
    np.testing.assert_array_equal(got, shares)


def test_stdout_and_json_agree(run, model, expected):
    table().drop("back").write_parquet("new.parquet")
    code, out, err = run("predict", model, "new.parquet")
    assert code == 0 and not err
    printed = pl.read_csv(out.encode())
    code, out, _ = run("predict", model, "new.parquet", "--json")
    actual = json.loads(out)
    assert code == 0 and actual["rows"] == 600 and actual["dropped"] == 0
    names, shares = expected
    assert actual["classes"] == names
    assert [one["row"] for one in actual["predictions"]] == printed["row"].to_list()
    assert [one["prediction"] for one in actual["predictions"]] == printed[
        "prediction"
    ].to_list()
    reported = [[one["probabilities"][name] for name in names] for one in actual["predictions"]]
    np.testing.assert_array_equal(reported, shares)


def test_dropped_rows_are_reported_by_number(run, model, expected):
    rows = table().with_columns(pl.col("stay").cast(pl.String), back=pl.lit("nobody knows"))
    rows[4, "stay"] = rows[598, "stay"] = ""
    rows.write_csv("new.csv")
    code, out, err = run("predict", model, "new.csv", "--out", "p.csv", "--json")
    assert code == 0 and "2 rows" in err and "5, 599" in err
    facts = json.loads(out)
    assert (facts["rows"], facts["dropped"], facts["first_dropped"]) == (598, 2, [5, 599])
    kept = np.setdiff1d(np.arange(600), [4, 598])
    actual = pl.read_csv("p.csv")
    np.testing.assert_array_equal(actual["row"], kept + 1)
    np.testing.assert_array_equal(actual.to_numpy()[:, 2:].astype(float), expected[1][kept])


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_results_do_not_depend_on_the_block_size(run, model, suffix):
    from veracal.data import loading as scanning

    rows = table().with_columns(pl.col("stay").cast(pl.String))
    rows[70, "stay"] = ""
    rows.write_csv("new.csv")
    assert run("predict", model, "new.csv", "--out", f"whole{suffix}")[0] == 0
    with mock.patch.object(scanning.scan_rows, "__kwdefaults__",
                           {**scanning.scan_rows.__kwdefaults__, "rows": 64}):  # fmt: skip
        code, _, err = run("predict", model, "new.csv", "--out", f"blocks{suffix}")
    assert code == 0 and "1 row" in err and "71." in err
    if suffix == ".npz":
        with np.load("whole.npz") as one, np.load("blocks.npz") as two:
            assert all(np.array_equal(one[name], two[name]) for name in one.files)
    else:
        read = pl.read_csv if suffix == ".csv" else pl.read_parquet
        assert read(f"whole{suffix}").equals(read(f"blocks{suffix}"))


def test_a_file_without_a_header_may_lack_the_target(home):
    text = Schema.load(home / "visits.toml").to_toml()
    bare = Schema.from_toml(text.replace("format = 1", "format = 1\nheader = false"))
    table().write_csv("all.csv", include_header=False)
    table().drop("back").write_csv("most.csv", include_header=False)
    ((_, one),), ((_, two),) = (
        list(scan_rows("all.csv", bare)),
        list(scan_rows("most.csv", bare)),
    )
    np.testing.assert_array_equal(one.X, two.X)
    assert one.y is None and two.y is None and set(one.groups) == {"sex"}
    np.testing.assert_array_equal(one.X, load("all.csv", schema=bare).X)


def test_an_invalid_late_row_leaves_no_output(run, model, tmp_path):
    rows = table().drop("back")
    rows[599, "age"] = 101
    rows.write_csv("new.csv")
    for words in ((), ("--json",), ("--out", "p.csv"), ("--out", "p.npz")):
        code, out, err = run("predict", model, "new.csv", *words)
        assert code == 1 and not out and "record 600" in err and len(err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


def test_a_set_with_other_bounds_is_rejected(run, model, home):
    code, out, err = run("predict", model, "breast-cancer")
    assert code == 1 and not out and "another schema" in err
    assert PrivateClassifier.load(model).schema != SCHEMAS["breast-cancer"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("no-model", "new.csv"), 1, "no folder"),
        ((".", "new.csv"), 1, "model.json"),
        (("MODEL", "no.csv"), 1, "nothing at that path"),
        (("MODEL", "new.csv", "--out", "p.txt"), 1, ".parquet"),
        (("MODEL", "new.csv", "--out", "there.csv"), 1, "--force"),
        (("MODEL", "few.csv"), 1, "a column 'stay'"),
        (("MODEL", "more.csv"), 1, "'extra'"),
        (("MODEL", "new.csv", "--out", "new.csv", "--force"), 2, "is DATA"),
        (("MODEL", "new.csv", "--out", "MODEL/p.csv"), 2, "is in MODEL"),
    ],
)
def test_invalid_arguments_are_rejected(run, model, words, code, said):
    table().write_csv("new.csv")
    table().drop("back", "stay").write_csv("few.csv")
    table().with_columns(extra=1).write_csv("more.csv")
    Path("there.csv").write_text("mine")
    actual, out, err = run("predict", *(word.replace("MODEL", model) for word in words))
    reported = " ".join(err.replace("│", " ").split())  # where lines end depends on the path
    assert actual == code and not out and said in reported
    assert Path("there.csv").read_text() == "mine"


def test_a_file_is_replaced_only_with_force(run, model):
    table().write_csv("new.csv")
    Path("p.csv").write_text("old")
    assert run("predict", model, "new.csv", "--out", "p.csv", "--force")[0] == 0
    assert Path("p.csv").read_text().startswith("row,prediction")

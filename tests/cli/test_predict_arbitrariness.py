"""`veracal predict --arbitrariness` says what the library says, in every form of output."""

import json

import numpy as np
import polars as pl
import pytest

from tests.cli.sample_tables import table, write
from veracal.artifact import PrivateClassifier
from veracal.data import Dataset, Schema, load
from veracal.training import (
    ObjectivePerturbation,
    OutputPerturbation,
    PrivateLogisticRegression,
)

FLAGS = ("--arbitrariness", "--review-above", "0.3", "--abstain-above", "0.6")
NAMES = ["disagreement_low", "disagreement_high", "flip", "review", "abstained"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model of visits whose weights have Gaussian noise, and one with classes of numbers."""
    folder = tmp_path_factory.mktemp("home")
    write(folder)
    schema = Schema.load(folder / "visits.toml")
    records = load(folder / "visits.csv", schema=schema)
    given = {"C": 0.1, "norm": 2.0}
    gaussian = OutputPerturbation(8.0, 1e-4, **given).fit_records(records)
    PrivateClassifier.of(gaussian, schema=schema).save(folder / "model")
    numbers = Schema.from_toml(schema.to_toml().replace('["no", "yes"]', "[0, 1]"))
    coded = Dataset(records.X, records.y, classes=(0, 1), size=600)
    objective = ObjectivePerturbation(8.0, C=0.01, norm=2.0).fit_records(coded)
    PrivateClassifier.of(objective, schema=numbers).save(folder / "objective")
    return folder


@pytest.fixture
def expected(home):
    classifier = PrivateClassifier.load(home / "model")
    rows = load(home / "visits.csv", schema=classifier.schema).X
    return classifier.predict(rows), classifier.arbitrariness(rows)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_files_contain_the_predictions_of_the_library(run, home, expected, suffix):
    table().write_csv("new.csv")
    code, out, _err = run(
        "predict", str(home / "model"), "new.csv", *FLAGS, "--out", f"p{suffix}"
    )
    labels, arbitrariness = expected
    assert code == 0 and not out
    if suffix == ".npz":
        with np.load(f"p{suffix}") as actual:
            got = {name: actual[name] for name in actual.files}
        decisions = [
            None if gone else label
            for label, gone in zip(got["prediction"], got["abstained"], strict=True)
        ]
        assert set(got["prediction"][got["abstained"]]) == {""}
    else:
        read = pl.read_csv if suffix == ".csv" else pl.read_parquet
        frame = read(f"p{suffix}")
        assert frame.columns[-5:] == NAMES
        got = {name: frame[name].to_numpy() for name in NAMES}
        if suffix == ".csv":
            assert set(got["review"]) == {"yes", "no"}
            got |= {name: got[name] == "yes" for name in ("review", "abstained")}
        decisions = frame["prediction"].to_list()
    np.testing.assert_array_equal(got["disagreement_low"], arbitrariness.low)
    np.testing.assert_array_equal(got["disagreement_high"], arbitrariness.high)
    np.testing.assert_array_equal(got["flip"], arbitrariness.flip)
    np.testing.assert_array_equal(got["review"], arbitrariness.high > 0.3)
    gone = arbitrariness.high > 0.6
    np.testing.assert_array_equal(got["abstained"], gone)
    assert 0 < gone.mean() < 1  # so that both are tested
    assert decisions == [None if x else label for x, label in zip(gone, labels, strict=True)]


def test_json_agrees_and_caveats_are_printed_once(run, home, expected):
    table().write_csv("new.csv")
    code, out, err = run("predict", str(home / "model"), "new.csv", *FLAGS, "--json")
    actual, (_labels, arbitrariness) = json.loads(out), expected
    assert code == 0
    one = actual["predictions"][0]
    assert list(one)[-5:] == NAMES and isinstance(one["review"], bool)
    gone = [each["abstained"] for each in actual["predictions"]]
    assert [each["prediction"] is None for each in actual["predictions"]] == gone
    reported = actual["arbitrariness"]
    assert reported["level"] == 0.95 and reported["holds_for"] == "all individuals at once"
    assert reported["informative"] == round(arbitrariness.informative_share * 600) and reported[
        "abstained"
    ] == sum(gone)
    assert reported["caveats"] == list(arbitrariness.caveats)
    for caveat in arbitrariness.caveats:
        assert err.count(caveat) == 1
    code, out, _ = run(
        "predict", str(home / "model"), "new.csv", *FLAGS, "--json", "--out", "p.csv"
    )
    assert code == 0 and json.loads(out)["arbitrariness"] == reported


def test_stdout_is_a_table_at_the_requested_level(run, home, expected):
    table().write_csv("new.csv")
    code, out, _ = run(
        "predict", str(home / "model"), "new.csv", "--arbitrariness", "--level", "0.5"
    )
    frame = pl.read_csv(out.encode())
    assert code == 0 and frame.columns[-3:] == NAMES[:3]
    assert (frame["disagreement_high"].to_numpy() <= expected[1].high).all()
    assert (frame["disagreement_high"].to_numpy() < expected[1].high).any()


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_results_do_not_depend_on_the_block_size(run, home, suffix, monkeypatch):
    from veracal.data import loading as scanning

    table().write_csv("new.csv")
    words = ("predict", str(home / "objective"), "new.csv", *FLAGS)
    assert run(*words, "--out", f"whole{suffix}")[0] == 0
    few = {**scanning.scan_rows.__kwdefaults__, "rows": 64}
    monkeypatch.setattr(scanning.scan_rows, "__kwdefaults__", few)
    assert run(*words, "--out", f"blocks{suffix}")[0] == 0
    if suffix == ".npz":
        with np.load("whole.npz") as one, np.load("blocks.npz") as two:
            assert all(np.array_equal(one[name], two[name]) for name in one.files)
            gone = one["abstained"]
            least = np.iinfo(np.int64).min
            assert (one["prediction"][gone] == least).all() and set(
                one["prediction"][~gone]
            ) <= {0, 1}
            assert "flip" not in one.files
    else:
        read = pl.read_csv if suffix == ".csv" else pl.read_parquet
        assert read(f"whole{suffix}").equals(read(f"blocks{suffix}"))


def test_a_table_without_rows_has_its_columns(run, home):
    table().clear().write_csv("none.csv")
    for suffix in (".csv", ".parquet", ".npz"):
        out = f"p{suffix}"
        code, _, err = run("predict", str(home / "model"), "none.csv", *FLAGS, "--out", out)
        if code:
            assert "row" in err or "record" in err  # an empty table may be refused as such
            continue
        if suffix == ".npz":
            with np.load(out) as actual:
                assert set(NAMES) <= set(actual.files) and len(actual["abstained"]) == 0
        else:
            frame = (pl.read_csv if suffix == ".csv" else pl.read_parquet)(out)
            assert frame.columns[-5:] == NAMES and len(frame) == 0


def test_a_model_without_a_noise_model_explains_why(run, home, tmp_path):
    write(tmp_path)
    schema = Schema.load("visits.toml")
    steps = PrivateLogisticRegression(8.0, 1e-5, epochs=1, sampling_rate=0.5)
    steps.fit_records(load("visits.csv", schema=schema))
    PrivateClassifier.of(steps, schema=schema).save("steps")
    for words in ((), ("--json",), ("--out", "p.csv")):
        code, out, err = run("predict", "steps", "visits.csv", "--arbitrariness", *words)
        assert code == 1 and not out
        assert "noise of many steps" in err and "DP-SGD" in err
        assert "veracal audit" in err and len(err.splitlines()) == 1
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--review-above", "0.5"), "--arbitrariness"),
        (("--abstain-above", "0.5"), "--arbitrariness"),
        (("--arbitrariness", "--level", "0"), "Expected a number between 0 and 1"),
        (("--arbitrariness", "--level", "95"), "Expected a number between 0 and 1"),
        (("--arbitrariness", "--level", "nan"), "Expected a number between 0 and 1"),
        (("--arbitrariness", "--review-above", "1.5"), "from 0 to 1"),
        (("--arbitrariness", "--abstain-above", "nan"), "from 0 to 1"),
    ],
)
def test_wrong_usage(run, home, words, said):
    table().write_csv("new.csv")
    code, out, err = run("predict", str(home / "model"), "new.csv", *words)
    assert code == 2 and not out and said in err

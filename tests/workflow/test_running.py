"""The whole way: charged once, the same when run again, and nothing half done."""

import json
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tests.workflow.own_ledgers import remeasure, run
from veracal import workflow as pipeline
from veracal.accounting import Budget, NotPrivate, Repeated, epsilon_for
from veracal.artifact import PrivateClassifier
from veracal.artifact.storage import KNOWN_FILES
from veracal.data import Schema, load
from veracal.data.builtin import SCHEMAS
from veracal.errors import AnswerError, BudgetError, DataError, LedgerError
from veracal.ledger import Ledger, default_ledger_path
from veracal.ledger.locations import read_data_path
from veracal.ledger.partitions import AssignmentNotice
from veracal.mechanisms.sampling import Poisson
from veracal.report.results import Results
from veracal.workflow import Config
from veracal.workflow.charging import open_data_ledger
from veracal.workflow.config import (
    DataConfig,
    MeasurementConfig,
    ModelConfig,
    PrivacyConfig,
    RecalibrationConfig,
)
from veracal.workflow.planning import RunPlan
from veracal.workflow.records import load_records
from veracal.workflow.results import result_files

# Of a run: one for each partition; a reservation and its model; five questions twice.
ENTRIES = 2 + 2 + 2 * 5
QUICK = Config(DataConfig("breast-cancer"), PrivacyConfig(3.0), model=ModelConfig(epochs=5))


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run(QUICK, tmp_path_factory.mktemp("run") / "model")


def test_run_writes_a_classifier_and_its_results(result):
    loaded = PrivateClassifier.load(result.folder)
    rows = load("breast-cancer").X
    np.testing.assert_array_equal(
        loaded.predict_proba(rows), result.classifier.predict_proba(rows)
    )
    assert loaded.private_ and loaded.schema == SCHEMAS["breast-cancer"]
    actual = Results.from_bytes((result.folder / "results.json").read_bytes())
    assert actual.to_bytes() == result.results.to_bytes()
    assert [one.when for one in actual.measured] == ["before", "after"]


def test_both_partitions_together_cost_the_stated_epsilon(result):
    promise = result.results.guarantee
    assert promise.epsilon <= 3.0 and promise.delta == 1 / 5_690
    for part in ("train", "test"):
        items = [i for i, _ in result.ledger.planned() if i.partition == part]
        assert items
        cost = sum(epsilon_for(i.event, 0.0) * i.times for i in items if part == "test")
        assert cost <= 3.0 + 1e-9
    used = {(i.purpose, i.partition): n for i, n in result.ledger.planned()}
    assert used["training and map", "train"] == 1
    assert result.ledger.verify() == result.results.ledger.head


def test_results_contain_only_declared_and_charged_facts(result):
    """Under add-remove the number of records is neither, nor is any plain figure."""
    text = result.results.to_bytes().decode()
    whole = load("breast-cancer")
    reported = json.loads(text)
    assert reported["data"]["size"] == SCHEMAS["breast-cancer"].size
    assert all(one["micro_epsilon"] > 0 for one in reported["measured"])
    test = result.classifier.scores(whole)
    assert repr(float(test.correct.mean())) not in text


def test_repeating_a_run_gives_the_same_result_at_no_cost(result):
    again = run(QUICK, result.folder, force=True)
    np.testing.assert_array_equal(again.classifier.weights.coef, result.classifier.weights.coef)
    assert again.results.measured == result.results.measured
    assert again.ledger.head == result.ledger.head


def test_two_runs_share_the_split_but_not_batches_or_noise(tmp_path):
    """Batches that could be foretold would void the amplification that is counted on."""
    batch, drawn, seen = Poisson.batch, [], []

    def noted(self, n, rng):
        drawn.append(batch(self, n, rng))
        return drawn[-1]

    def begun(config, records, on_step=None):
        seen.append(records)
        return RunPlan.of(config, records, on_step)

    with (
        mock.patch.object(Poisson, "batch", noted),
        mock.patch("veracal.workflow.running.RunPlan", mock.Mock(of=begun)),
    ):
        one, other = (run(QUICK, tmp_path / name) for name in ("one", "other"))
    for part in ("train", "test"):
        first, second = (getattr(records, part) for records in seen)
        np.testing.assert_array_equal(first.X, second.X)
    half = len(drawn) // 2
    assert half == 50 and not any(map(np.array_equal, drawn[:half], drawn[half:]))
    assert (other.classifier.weights.coef != one.classifier.weights.coef).all()
    assert other.results.measured != one.results.measured


def test_another_split_key_gives_another_split():
    first, other = (
        load_records(replace(QUICK, data=DataConfig("breast-cancer", split_key=s)))
        for s in "ab"
    )
    assert len(first.train) + len(first.test) == len(other.train) + len(other.test)
    shared = {row.tobytes() for row in first.test.X} & {row.tobytes() for row in other.test.X}
    assert 0 < len(shared) < len(first.test) / 2


@pytest.mark.parametrize(
    "step", ["training", "measuring before", "measuring after", "reporting"]
)
def test_an_interrupted_run_resumes(step, tmp_path):
    def stop(reported, done, total):
        if reported == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(QUICK, tmp_path / "model", on_progress=stop)
    assert not (tmp_path / "model").exists()
    before = Ledger(tmp_path / "model.ledger").entries()
    result = run(QUICK, tmp_path / "model")
    entries = result.ledger.entries()
    assert entries[: len(before)] == before
    assert len(entries) == ENTRIES


def test_interrupted_training_is_repeated_under_its_reservation(tmp_path):
    with (
        mock.patch(
            "veracal.calibration.private_classifier.PrivateCalibratedClassifier.fit_records",
            side_effect=KeyboardInterrupt,
        ),
        pytest.raises(KeyboardInterrupt),
    ):
        run(QUICK, tmp_path / "model")
    ledger = Ledger(tmp_path / "model.ledger")
    spent, (pending,) = ledger.spent(), ledger.pending()
    assert pending.outcome == "reserved" and spent.epsilon > 2.9
    result = run(QUICK, tmp_path / "model")
    assert result.classifier.private_ and not ledger.pending()
    assert ledger.spent() == spent and len(ledger.entries()) == ENTRIES


@pytest.mark.parametrize("internal", [False, True])
def test_a_failed_training_remains_the_answer(tmp_path, internal):
    with (
        mock.patch(
            "veracal.calibration.private_classifier.PrivateCalibratedClassifier.fit_records",
            side_effect=ValueError("about a record"),
        ),
        pytest.raises(AnswerError) as reported,
    ):
        run(QUICK, tmp_path / "model", internal=internal)
    assert "about a record" not in str(reported.value)
    with pytest.raises(AnswerError):
        run(QUICK, tmp_path / "model", internal=internal)


def test_interrupted_training_with_a_curve_is_repeated_at_no_cost(tmp_path):
    """What the internal report notes stays in the process until the model is recorded."""

    def stop(step, done, total):
        if step == "training" and done == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(QUICK, tmp_path / "model", internal=True, on_progress=stop)
    result = run(QUICK, tmp_path / "model", internal=True)
    assert len(result.ledger.entries()) == ENTRIES and result.internal is not None


@pytest.mark.parametrize(
    "other",
    [
        replace(QUICK, privacy=PrivacyConfig(epsilon=1.0)),
        replace(QUICK, model=replace(QUICK.model, learning_rate=0.5)),  # the same cost
        replace(QUICK, data=replace(QUICK.data, version="2")),
    ],
    ids=["epsilon", "learning rate", "version"],
)
def test_a_run_that_exceeds_the_caps_is_rejected(other, result, tmp_path):
    head = result.ledger.head
    with pytest.raises(BudgetError, match="veracal ledger extend"):
        run(other, tmp_path / "model", ledger=result.ledger.path)
    assert not (tmp_path / "model").exists() and result.ledger.head == head


def test_runs_with_different_outputs_share_the_budget_of_their_data(tmp_path):
    """Eight runs with eight outputs once spent eight budgets on one table."""
    first = pipeline.run(QUICK, tmp_path / "one")
    for i in range(3):
        other = replace(QUICK, model=replace(QUICK.model, learning_rate=0.1 + i))
        with pytest.raises(BudgetError):
            pipeline.run(other, tmp_path / f"more {i}")
    assert first.ledger.path == default_ledger_path("breast-cancer")
    assert first.ledger.path.stat().st_mode & 0o077 == 0
    assert first.ledger.spent().epsilon <= 3.0 and len(first.ledger.runs()) == 1


def test_after_an_extension_every_statement_says_so(tmp_path):
    config = replace(QUICK, privacy=PrivacyConfig(1.0, 1e-5))
    first = run(config, tmp_path / "one", ledger=tmp_path / "all.ledger")
    assert "costs at most epsilon = 1, delta = 0.00001." in first.results.guarantee.text()
    Ledger(tmp_path / "all.ledger").extend(epsilon=2.0, delta=1e-5)
    config = replace(QUICK, privacy=PrivacyConfig(2.0, 1e-5))
    second = run(config, tmp_path / "two", ledger=tmp_path / "all.ledger")
    total = "epsilon = 3, delta = 0.00002 (cap raised after releases)"
    assert total in second.results.guarantee.text()
    assert second.results.guarantee.epsilon <= 2.0
    for name in ("MODEL_CARD.md", "report.html"):
        assert "cap raised after releases" in (second.folder / name).read_text()
    assert second.results.ledger.runs == 2
    second.ledger.verify()


def test_no_record_is_read_if_the_declared_cost_exceeds_the_budget(visits, tmp_path):
    run(visits, tmp_path / "model")
    (tmp_path / "visits.csv").write_text("not a table at all")
    other = replace(visits, model=replace(visits.model, learning_rate=0.5))
    with pytest.raises(BudgetError, match="nothing was charged"):
        run(other, tmp_path / "other", ledger=tmp_path / "model.ledger")


@pytest.mark.parametrize("change", ["split_key", "test"])
def test_a_run_with_another_split_is_rejected(change, tmp_path):
    place = tmp_path / "all.ledger"
    run(replace(QUICK, privacy=PrivacyConfig(1.0, 1e-5)), tmp_path / "one", ledger=place)
    Ledger(place).extend(epsilon=5.0, delta=1e-4)
    data = DataConfig("breast-cancer", **{change: {"split_key": "other", "test": 0.5}[change]})
    with pytest.raises(LedgerError, match="in two partitions"):
        run(replace(QUICK, data=data, privacy=PrivacyConfig(2.0, 1e-5)), tmp_path / "two",
            ledger=place)  # fmt: skip


def test_a_missing_ledger_of_an_existing_artifact_is_an_error(tmp_path):
    run(QUICK, tmp_path / "model")
    (tmp_path / "model.ledger").unlink()
    with pytest.raises(LedgerError, match="no ledger is at this path"):
        run(QUICK, tmp_path / "model", force=True)
    with pytest.raises(DataError, match="found no file at that path"):
        remeasure(tmp_path / "model")
    run(QUICK, tmp_path / "other")  # opens another
    (tmp_path / "other.ledger").rename(tmp_path / "model.ledger")
    with pytest.raises(LedgerError, match="the ledger at this path has no such entry"):
        run(QUICK, tmp_path / "model", force=True)


def write_again(folder, results, **changes):
    """Write an artifact again with other results, and a changed manifest, as its maker could."""
    classifier = PrivateClassifier.load(folder)
    kept = {name: (folder / name).read_bytes() for name in ("model.json", "model.safetensors")}
    others = {
        path.name: path.read_bytes() for path in folder.iterdir() if path.name not in kept
    }
    others["results.json"] = json.dumps(results).encode()
    manifest = replace(classifier.manifest, **changes)
    PrivateClassifier(classifier.weights, manifest).save(folder, other_files=others, force=True)


@pytest.mark.parametrize("odd", [{"unknown": 1}, {"epochs": -1}, {"epochs": 10**400}], ids=repr)
def test_settings_that_cannot_be_read_do_not_hide_a_missing_ledger(odd, tmp_path):
    folder = tmp_path / "model"
    written = run(QUICK, folder).results.to_json()
    written["settings"]["model"] |= odd
    write_again(folder, written)
    (tmp_path / "model.ledger").unlink()
    with pytest.raises(LedgerError, match="no ledger is at this path"):
        run(QUICK, folder, force=True)
    with pytest.raises(DataError, match="settings"):
        remeasure(folder)


def test_an_artifact_without_a_guarantee_is_not_remeasured(tmp_path):
    folder = tmp_path / "model"
    result = run(QUICK, folder)
    write_again(folder, result.results.to_json(), guarantee=NotPrivate(("edited",)))
    before = result.ledger.spent()
    with pytest.raises(DataError, match="without a guarantee"):
        remeasure(folder)
    assert result.ledger.spent() == before


def test_classes_may_be_integers_of_64_bits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    classes = [-(2**63), 11_687_481_000_119_104]  # as long as codes of diseases
    rows = "".join(f"{i % 97},{classes[i % 2]}\n" for i in range(300))
    Path("codes.csv").write_text(f"x,code\n{rows}")
    Path("codes.toml").write_text(
        'format = 1\nname = "codes"\nsize = 300\n[columns.x]\nkind = "number"\nlower = 0\n'
        f'upper = 97\n[columns.code]\nkind = "target"\nclasses = {classes}\n'
    )
    data = DataConfig("codes.csv", schema="codes.toml")
    result = run(replace(QUICK, data=data), tmp_path / "model")
    assert list(PrivateClassifier.load(tmp_path / "model").classes_) == classes
    assert list(Results.from_json(result.results.to_json()).data.classes) == classes


def test_a_missing_ledger_is_an_error_if_its_partitions_were_used(tmp_path):
    result = run(QUICK, tmp_path / "model")
    content = result.ledger.path.read_bytes()
    result.ledger.path.unlink()
    with (
        mock.patch("veracal.workflow.running.load_records", side_effect=AssertionError("read")),
        pytest.raises(LedgerError, match="restore the ledger"),
    ):
        run(QUICK, tmp_path / "other", ledger=result.ledger.path)
    with pytest.raises(LedgerError, match="would be forgotten"):
        open_data_ledger(result.ledger.path, Budget(3.0, 1e-6), "breast-cancer")
    result.ledger.path.write_bytes(content)
    again = run(QUICK, tmp_path / "other", ledger=result.ledger.path)
    assert again.results.measured == result.results.measured


def test_missing_partitions_are_not_drawn_again(tmp_path):
    result = run(QUICK, tmp_path / "model")
    (tmp_path / "model.ledger.partitions").unlink()
    with pytest.raises(LedgerError, match="expected the partition assignment"):
        remeasure(tmp_path / "model")
    assert not (tmp_path / "model.ledger.partitions").exists()
    result.ledger.verify()


def test_corrected_and_new_rows_are_in_no_partition_and_only_the_holder_is_notified(
    visits, tmp_path
):
    result = run(visits, tmp_path / "model")
    rows = TABLE.splitlines(keepends=True)
    rows[1] = rows[1].replace("20,", "21,")
    (tmp_path / "visits.csv").write_text("".join([*rows, "97,f,1\n"]))
    again = remeasure(tmp_path / "model")
    assert result.notice is None and again.notice == AssignmentNotice("row", 399, 2, 1, 2)
    assert "left_out" not in again.results.to_bytes().decode()
    assert all(b"left" not in path.read_bytes() for path in result.folder.glob("*.json"))


def test_an_existing_folder_is_rejected_before_any_charge(tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(DataError, match="a new folder"):
        run(QUICK, tmp_path / "model")
    assert not (tmp_path / "model.ledger").exists()


@pytest.mark.parametrize(
    "config",
    [
        replace(QUICK, model=ModelConfig("objective", norm=6.0)),
        replace(QUICK, model=ModelConfig("output", norm=6.0, strength=0.01)),
        replace(QUICK, recalibration=RecalibrationConfig("none")),
        replace(QUICK, recalibration=RecalibrationConfig("two-temperatures", 0.2)),
        replace(QUICK, data=DataConfig("digits", test=0.5)),
        replace(QUICK, measurement=MeasurementConfig(reserve=0, bins=3)),
    ],
    ids=["objective", "output", "no map", "two", "digits", "nothing reserved"],
)
def test_every_kind_of_run_works(config, tmp_path):
    result = run(config, tmp_path / "model")
    assert result.classifier.private_
    assert result.results.guarantee.epsilon <= config.privacy.epsilon
    assert result.results.guarantee.relation == config.privacy.relation


TABLE = "age,sex,ill\n" + "".join(
    f"{20 + i % 60},{'fm'[i % 2]},{int(i % 60 > 30)}\n" for i in range(400)
)
SCHEMA = """format = 1
size = 400
name = "visits"
[columns.age]
kind = "number"
lower = 0
upper = 100
[columns.sex]
kind = "category"
values = ["f", "m"]
[columns.ill]
kind = "target"
classes = [0, 1]
[groups.sex]
column = "sex"
"""


@pytest.fixture
def visits(tmp_path):
    (tmp_path / "visits.csv").write_text(TABLE)
    (tmp_path / "visits.toml").write_text(SCHEMA)
    data = DataConfig(str(tmp_path / "visits.csv"), str(tmp_path / "visits.toml"))
    return replace(QUICK, data=data, measurement=MeasurementConfig(group="sex"))


def test_a_table_through_its_schema_with_groups(visits, tmp_path):
    result = run(visits, tmp_path / "model")
    assert set(result.results.measured[1].groups) == {"f", "m"}
    assert PrivateClassifier.load(result.folder).schema.classes == (0, 1)


def test_replace_one_needs_slot_ids(visits, tmp_path):
    config = replace(visits, privacy=PrivacyConfig(8.0, 1e-5, "replace-one"))
    with pytest.raises(DataError, match="slot"):
        run(config, tmp_path / "model")
    assert not (tmp_path / "model.ledger").exists()
    columns = '[columns.bed]\nkind = "slot"\n[columns.age]'
    (tmp_path / "visits.toml").write_text(SCHEMA.replace("[columns.age]", columns))
    head, *rows = TABLE.splitlines()
    beds = [f"{i},{row}" for i, row in enumerate(rows)]
    (tmp_path / "visits.csv").write_text("\n".join([f"bed,{head}", *beds]))
    result = run(config, tmp_path / "model")
    assert result.results.guarantee.relation == "replace-one"
    assert result.results.guarantee.epsilon <= 8.0
    # sorted otherwise, and with somebody else in a bed, the partitions are the same
    beds[3] = "3,99,m,0"
    (tmp_path / "visits.csv").write_text("\n".join([f"bed,{head}", *reversed(beds)]))
    again = remeasure(tmp_path / "model")
    assert again.notice is None and again.results.measured[-1].when == "later 1"


def test_a_size_must_be_declared(visits, tmp_path):
    path = tmp_path / "visits.toml"
    path.write_text(SCHEMA.replace("size = 400\n", ""))
    with pytest.raises(DataError, match="Write size"):
        run(visits, tmp_path / "model")
    assert not (tmp_path / "model.ledger").exists()


def test_a_group_must_be_declared(visits, tmp_path):
    config = replace(visits, measurement=MeasurementConfig(group="age"))
    with pytest.raises(DataError, match="declared group 'age'"):
        run(config, tmp_path / "model")
    assert not (tmp_path / "model.ledger").exists()


def read(results):
    """Results as they come back from a file, with lists in place of tuples."""
    return Results.from_bytes(results.to_bytes())


def test_a_model_is_remeasured_until_no_budget_is_left(tmp_path):
    result = run(QUICK, tmp_path / "model")
    weights = (tmp_path / "model" / "model.safetensors").read_bytes()
    for i in (1, 2):
        again = remeasure(tmp_path / "model")
        assert [one.when for one in again.results.measured][-1] == f"later {i}"
        assert again.results.measured[:2] == read(result.results).measured
    figures = [one.overall for one in again.results.measured[1:]]
    assert len(set(map(repr, figures))) == 3  # new noise each time
    with pytest.raises(BudgetError):
        remeasure(tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == weights
    kept = Results.from_bytes((tmp_path / "model" / "results.json").read_bytes())
    assert len(kept.measured) == 4
    assert {line.used for line in kept.ledger.planned if line.partition == "test"} == {4}


def test_another_ledger_cannot_pay_for_a_measurement(result, tmp_path):
    other = run(QUICK, tmp_path / "model")
    with pytest.raises(DataError, match="was charged to"):
        remeasure(tmp_path / "model", ledger=result.ledger.path)
    assert len(other.ledger.entries()) == ENTRIES


PATIENTS = SCHEMA.split("[groups")[0].replace(
    'kind = "category"\nvalues = ["f", "m"]', 'kind = "unit"\nmax_contributions = 2'
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # rows of one patient would be in training and in test
        ('kind = "unit"\nmax_contributions = 2', 'kind = "ignore"'),
        ("upper = 100", "upper = 1000"),
        ("classes = [0, 1]", "classes = [1, 0]"),
    ],
    ids=["unit", "bounds", "classes"],
)
def test_a_changed_schema_is_rejected(visits, before, after, tmp_path):
    path = tmp_path / "visits.toml"
    path.write_text(PATIENTS)
    rows = "".join(f"{20 + i % 60},p{i // 2},{int(i % 60 > 30)}\n" for i in range(400))
    (tmp_path / "visits.csv").write_text(f"age,sex,ill\n{rows}")
    result = run(replace(visits, measurement=MeasurementConfig()), tmp_path / "model")
    path.write_text("nothing that anybody reads: the artifact has the schema")
    assert remeasure(tmp_path / "model").results.measured[-1].when == "later 1"
    model, files = PrivateClassifier.load(result.folder), {}
    for name in ("results.json", "MODEL_CARD.md", "report.html"):
        files[name] = (result.folder / name).read_bytes()
    kept = Schema.from_toml(PATIENTS)
    changed = Schema.from_toml(PATIENTS.replace(before, after))
    assert kept.to_toml() == model.manifest.schema != changed.to_toml()
    manifest = replace(model.manifest, schema=changed.to_toml())
    PrivateClassifier(model.weights, manifest).save(
        result.folder, other_files=files, force=True
    )
    head = Ledger(result.ledger.path).head
    with pytest.raises((DataError, LedgerError)):
        remeasure(tmp_path / "model")
    assert Ledger(result.ledger.path).head == head


def test_another_split_than_that_of_training_is_rejected(tmp_path):
    """With another key, trained individuals would be measured, too."""
    result = run(QUICK, tmp_path / "model")
    settings = replace(QUICK, data=replace(QUICK.data, split_key="other")).to_json()
    other = replace(result.results, settings=settings)
    result.classifier.save(result.folder, other_files=result_files(other), force=True)
    with pytest.raises(LedgerError, match="in two partitions"):
        remeasure(tmp_path / "model")
    assert Ledger(result.ledger.path).head == result.ledger.head


def test_changed_results_are_rejected(tmp_path):
    result = run(QUICK, tmp_path / "model")
    path = tmp_path / "model" / "results.json"
    path.write_text(path.read_text().replace('"relation"', '"rElation"'))
    with pytest.raises(DataError, match="an altered or truncated file"):
        remeasure(tmp_path / "model")
    assert Ledger(result.ledger.path).head == result.ledger.head


def test_a_raised_cap_is_stated_when_a_model_is_written_again(tmp_path):
    result = run(QUICK, tmp_path / "model")
    Ledger(result.ledger.path).extend(epsilon=1.0)
    for rewritten in (remeasure(tmp_path / "model"), run(QUICK, result.folder, force=True)):
        total = "costs at most epsilon = 4, delta"
        for name in ("MODEL_CARD.md", "report.html", "model.json", "results.json"):
            text = (rewritten.folder / name).read_text()
            assert "(cap raised after releases)" in text and total in text, name
            assert "costs at most epsilon = 3, delta" not in text, name
        same = replace(rewritten.results.guarantee, ledger_total=None)
        assert same == replace(result.results.guarantee, ledger_total=None)


def test_moved_records_can_be_remeasured(visits, tmp_path):
    path = tmp_path / "visits.toml"
    path.write_text(SCHEMA.replace('name = "visits"\n', ""))  # called after its file
    run(visits, tmp_path / "model")
    (tmp_path / "visits.csv").rename(tmp_path / "moved.csv")
    again = remeasure(tmp_path / "model", source=str(tmp_path / "moved.csv"))
    assert again.results.measured[-1].when == "later 1"


def test_remeasuring_keeps_other_files_of_the_folder(tmp_path):
    result = run(QUICK, tmp_path / "model")
    (tmp_path / "model" / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"'notes\.txt' in it"):
        remeasure(tmp_path / "model")
    assert (tmp_path / "model" / "notes.txt").read_text() == "mine"
    assert Ledger(result.ledger.path).head == result.ledger.head


@pytest.mark.parametrize("inside", ["model/run.ledger", "link/run.ledger", "model"])
def test_a_ledger_in_the_artifact_folder_is_rejected(inside, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "model")
    with pytest.raises(DataError, match="replaced as a whole"):
        run(QUICK, tmp_path / "model", ledger=tmp_path / inside, force=True)
    assert list((tmp_path / "model").iterdir()) == []


def test_everything_in_an_artifact_is_declared_or_charged(visits, tmp_path):
    """Of entirely other records the same answers of the ledger give the same bytes."""
    result = run(visits, tmp_path / "model")
    before = {path.name: path.read_bytes() for path in result.folder.iterdir()}
    assert set(before) == KNOWN_FILES - {"report-internal.html"}
    rows = "".join(f"{99 - i % 7},{'mf'[i % 5 == 0]},{i % 2}\n" for i in range(91))
    (tmp_path / "visits.csv").write_text(f"age,sex,ill\n{rows}")
    run(visits, tmp_path / "model", force=True)
    assert {path.name: path.read_bytes() for path in result.folder.iterdir()} == before


def test_a_repeated_run_keeps_later_measurements(tmp_path):
    run(QUICK, tmp_path / "model")
    with mock.patch("veracal.workflow.planning.today", return_value="2031-01-02"):
        again = remeasure(tmp_path / "model")
    repeated = run(QUICK, tmp_path / "model", force=True)
    assert read(repeated.results).measured == read(again.results).measured
    assert [one.when for one in repeated.results.measured] == ["before", "after", "later 1"]
    assert repeated.results.measured[2].date == "2031-01-02"
    assert repeated.ledger.head == again.ledger.head


def test_the_same_records_at_another_path_are_the_same_run(visits, tmp_path, monkeypatch):
    result = run(visits, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    data = replace(visits.data, source="visits.csv", schema="visits.toml")
    again = run(replace(visits, data=data), tmp_path / "model", force=True)
    assert again.ledger.head == result.ledger.head
    assert again.classifier.weights.to_bytes() == result.classifier.weights.to_bytes()


def test_the_artifact_names_its_ledger_and_versions(result):
    manifest = PrivateClassifier.load(result.folder).manifest
    assert manifest.ledger == {"name": "breast-cancer", "head": result.ledger.head}
    assert manifest.versions == result.results.versions


def test_a_model_that_cannot_be_trained_opens_no_ledger(tmp_path):
    config = replace(QUICK, model=ModelConfig("objective"))  # no norm is declared
    with pytest.raises((DataError, ValueError), match="norm"):
        run(config, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_each_planned_item_states_its_largest_cost(result):
    lines = result.results.ledger.planned
    for line, (item, _) in zip(lines, result.ledger.planned(), strict=True):
        event = Repeated(item.event, item.times)
        assert line.epsilon >= epsilon_for(event, line.delta) * (1 - 1e-12)
        assert line.delta in (0.0, result.results.guarantee.delta)


def test_progress_reports_each_training_step(tmp_path):
    reported = []
    run(QUICK, tmp_path / "model", on_progress=lambda *each: reported.append(each))
    steps = [each for each in reported if each[0] == "training" and each[2] is not None]
    assert steps == [("training", i, 50) for i in range(1, 51)]
    assert list(dict.fromkeys(step for step, _, _ in reported)) == [
        "planning", "loading", "charging", "training",
        "measuring before", "measuring after", "reporting",
    ]  # fmt: skip


def test_an_artifact_contains_no_paths(visits, tmp_path):
    result = run(visits, tmp_path / "model")
    for path in result.folder.iterdir():
        assert str(tmp_path).encode() not in path.read_bytes(), path.name
    assert result.results.settings["data"]["source"] == "visits.csv"


def test_the_table_is_located_beside_the_artifact_or_named(visits, tmp_path, monkeypatch):
    run(visits, tmp_path / "model")
    (tmp_path / "visits.toml").unlink()  # the artifact has the schema
    assert len(remeasure(tmp_path / "model").results.measured) == 3
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "visits.csv").rename(tmp_path / "elsewhere" / "moved.csv")
    with pytest.raises(DataError, match="--data"):
        remeasure(tmp_path / "model")
    moved = str(tmp_path / "elsewhere" / "moved.csv")
    assert len(remeasure(tmp_path / "model", source=moved).results.measured) == 4


def test_without_a_map_one_measurement_has_the_whole_share(tmp_path):
    config = replace(QUICK, recalibration=RecalibrationConfig("none"))
    result = run(config, tmp_path / "model")
    assert [one.when for one in result.results.measured] == ["after"]
    assert result.results.measured[0].micro_epsilon == 999_999  # of 3,000,000, thrice
    page = (result.folder / "report.html").read_text().split("<script")[0]
    assert "efore the repair" not in page and "<fieldset>" not in page
    again = remeasure(tmp_path / "model")
    assert [one.when for one in again.results.measured] == ["after", "later 1"]


def test_dates_of_another_model_are_not_used(visits, tmp_path):
    with mock.patch("veracal.workflow.planning.today", return_value="2019-01-02"):
        run(QUICK, tmp_path / "model")
    result = run(visits, tmp_path / "model", ledger=tmp_path / "new.ledger", force=True)
    assert all(one.date > "2019-01-02" for one in result.results.measured)


def test_respelled_ids_are_in_no_partition_of_a_later_measurement(visits, tmp_path):
    """As new ids they would draw again, and trained individuals would be tested."""
    (tmp_path / "visits.toml").write_text(PATIENTS)
    lines = [f"{20 + i % 60},{i // 2},{int(i % 60 > 30)}" for i in range(400)]
    (tmp_path / "visits.csv").write_text("\n".join(["age,sex,ill", *lines]))
    run(replace(visits, measurement=MeasurementConfig()), tmp_path / "model")
    lines = [f"{20 + i % 60},{i // 2}.0,{int(i % 60 > 30)}" for i in range(400)]
    (tmp_path / "visits.csv").write_text("\n".join(["age,sex,ill", *lines]))
    reported = []
    again = remeasure(tmp_path / "model", on_notice=reported.append)
    assert reported == [again.notice] == [AssignmentNotice("unit", 0, 200, 200, 400)]


def test_another_schema_of_the_same_file_is_rejected(visits, tmp_path):
    """By other columns an individual would have another id, and another partition."""
    place = tmp_path / "model.ledger"
    run(replace(visits, measurement=MeasurementConfig()), tmp_path / "model")
    Ledger(place).extend(epsilon=5.0, delta=1e-3)
    other = SCHEMA.split("[groups")[0].replace('"category"\nvalues = ["f", "m"]', '"ignore"')
    (tmp_path / "visits.toml").write_text(other)
    changed = replace(visits, measurement=MeasurementConfig())
    with pytest.raises(LedgerError, match="in two partitions"):
        run(changed, tmp_path / "other", ledger=place)


def test_a_ledger_opened_for_a_data_set_can_pay_for_a_run(tmp_path):
    ledger = open_data_ledger(tmp_path / "l", Budget(3.0), "breast-cancer")
    with pytest.raises(BudgetError, match="delta"):
        run(QUICK, tmp_path / "model", ledger=ledger.path)
    ledger.extend(epsilon=3.0, delta=2e-4)
    assert run(QUICK, tmp_path / "model", ledger=ledger.path).classifier.private_


def test_the_data_holder_is_notified_of_omitted_rows_before_any_charge(visits, tmp_path):
    """A table that was saved with other spellings would be trained on nothing, at full cost."""
    place, reported = tmp_path / "model.ledger", []
    run(visits, tmp_path / "model")
    Ledger(place).extend(epsilon=5.0, delta=1e-3)
    spent = Ledger(place).spent()
    (tmp_path / "visits.csv").write_text(TABLE.replace(",f,", ".0,f,"))

    def stop(notice):
        reported.append(notice.left_out)
        raise KeyboardInterrupt

    other = replace(visits, data=replace(visits.data, version="2"))
    with pytest.raises(KeyboardInterrupt):
        run(other, tmp_path / "other", ledger=place, on_notice=stop)
    assert reported == [200] and Ledger(place).spent() == spent


def test_the_next_run_restores_the_note_of_the_data_path(visits, tmp_path):
    """A process that is killed between two files leaves one of them."""
    result = run(visits, tmp_path / "model")
    noted = tmp_path / "model.ledger.data.json"
    noted.unlink()
    run(visits, tmp_path / "model", force=True)
    assert read_data_path(result.ledger.path) == str(tmp_path / "visits.csv")

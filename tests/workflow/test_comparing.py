"""Several ways for one budget: charged once, gone on with, and each with its own artifact."""

from dataclasses import replace

import pytest

from tests.workflow.own_ledgers import compare
from veracal.accounting import Composed, Repeated, epsilon_for
from veracal.errors import BudgetError, DataError
from veracal.ledger import Ledger
from veracal.report.results import Results
from veracal.workflow import Config, Configuration
from veracal.workflow.config import DataConfig, ModelConfig, PrivacyConfig
from veracal.workflow.planning import RunPlan, merge_items
from veracal.workflow.records import load_records
from veracal.workflow.running import share_config

CONFIG = Config(
    DataConfig("breast-cancer"), PrivacyConfig(8.0), "bc", ModelConfig(epochs=3, norm=3.0)
)
# Two of the run, a reservation and a model of each way, five questions of each measurement.
ENTRIES = 2 + 2 * 3 + (1 + 2 + 1) * 5
WAYS = (
    Configuration("logistic", "none"),
    Configuration("logistic", "temperature"),
    Configuration("output", "none"),
)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return compare(CONFIG, WAYS, tmp_path_factory.mktemp("run") / "all")


def test_each_artifact_states_the_guarantee_of_all(result):
    assert [one.folder.name for one in result] == [
        "logistic-none", "logistic-temperature", "output-none",
    ]  # fmt: skip
    assert len({one.results.guarantee.epsilon for one in result}) == 1
    for one in result:
        actual = Results.from_bytes((one.folder / "results.json").read_bytes())
        assert "other models of this comparison of 3" in actual.guarantee.text()
        assert one.classifier.private_


@pytest.mark.parametrize("part", ["train", "test"])
def test_all_models_together_are_within_the_budget(result, part):
    ledger = result[0].ledger
    items = [item for item, _ in ledger.planned() if item.partition == part]
    whole = Composed(tuple(Repeated(item.event, item.times) for item in items))
    assert epsilon_for(whole, ledger.budget.delta) <= 8.0
    assert ledger.budget.epsilon == 8.0
    assert result[0].results.guarantee.epsilon >= epsilon_for(whole, ledger.budget.delta)


def test_exactly_the_planned_items_are_used(result):
    assert all(item.times == used for item, used in result[0].ledger.planned())
    assert len(result[0].ledger.entries()) == ENTRIES


def test_each_configuration_has_an_equal_share_of_epsilon_and_delta():
    actual = share_config(CONFIG, WAYS[1], 4, 1e-4)
    assert (actual.privacy.epsilon, actual.privacy.delta) == (2.0, 2.5e-5)
    assert actual.measurement.reserve == 0 and actual.recalibration.method == "temperature"


def test_equal_items_are_merged():
    records = load_records(CONFIG)
    jobs = [RunPlan.of(share_config(CONFIG, way, 2, 1e-4), records) for way in WAYS[:1] * 2]
    items = merge_items(item for job in jobs for item in job.items)
    assert (items[0].partition, items[0].times) == ("train", 2)
    assert {item.times for item in items if item.partition == "test"} == {2}


def test_an_interrupted_comparison_resumes(tmp_path):
    def stop(step, done, total):
        if step == "output/none: training":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(CONFIG, WAYS, tmp_path / "all", on_progress=stop)
    before = Ledger(tmp_path / "all.ledger").entries()
    assert len(before) == 2 + 2 * 2 + (1 + 2) * 5
    result = compare(CONFIG, WAYS, tmp_path / "all")
    assert result[0].ledger.entries()[: len(before)] == before
    assert len(result[0].ledger.entries()) == ENTRIES
    with pytest.raises(DataError, match="one that exists"):  # it is finished now
        compare(CONFIG, WAYS, tmp_path / "all")


@pytest.mark.parametrize("force", [False, True])
def test_a_foreign_folder_is_kept(force, tmp_path):
    """Without force any other file is a reason to stop, with it only one in a way's folder."""
    other = tmp_path / "all" / ("output-none" if force else "") / "thesis.txt"
    other.parent.mkdir(parents=True)
    other.write_text("mine")
    with pytest.raises(DataError, match="thesis" if force else "one that exists"):
        compare(CONFIG, WAYS, tmp_path / "all", force=force)
    assert other.read_text() == "mine" and not (tmp_path / "all.ledger").exists()


def test_a_ledger_of_other_configurations_is_rejected(result, tmp_path):
    with pytest.raises(BudgetError, match="veracal ledger extend"):
        compare(CONFIG, WAYS[:2], tmp_path / "all", ledger=result[0].ledger.path)


@pytest.mark.parametrize("ways", [(), WAYS[:1], (WAYS[0], WAYS[0], WAYS[1])])
def test_configurations_must_be_two_or_more_and_different(ways, tmp_path):
    with pytest.raises(ValueError, match="two or more different"):
        compare(CONFIG, ways, tmp_path / "all")
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_that_cannot_be_trained_leaves_nothing(tmp_path):
    config = replace(CONFIG, model=ModelConfig())  # no norm
    with pytest.raises((DataError, ValueError), match="norm"):
        compare(config, WAYS, tmp_path / "all")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "tree", "logistic/", "logistic/magic", "none", "a/b/c"])
def test_unknown_configurations_are_rejected(text):
    with pytest.raises(ValueError, match="Expected one of logistic"):
        Configuration.parse(text)


def test_configurations_round_trip_through_text():
    for text in ("logistic", "objective/none", "output/two-temperatures"):
        assert str(Configuration.parse(text)) == text
    assert Configuration.parse(" logistic/auto ") == Configuration("logistic")

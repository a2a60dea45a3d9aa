"""Several ways for one budget: charged once, gone on with, and each with its own artifact."""

from dataclasses import replace

import pytest

from tests.workflow.own_ledgers import compare
from veracal.accounting import Composed, Repeated, epsilon_for
from veracal.errors import BudgetError, DataError
from veracal.ledger import Ledger
from veracal.report.results import Results
from veracal.workflow import Config, Configuration
from veracal.workflow.comparing import share_config
from veracal.workflow.config import DataConfig, ModelConfig, PrivacyConfig
from veracal.workflow.planning import RunPlan
from veracal.workflow.records import load_records, merge_items

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
def made(tmp_path_factory):
    return compare(CONFIG, WAYS, tmp_path_factory.mktemp("run") / "all")


def test_each_way_has_an_artifact_that_promises_for_all_of_them(made):
    assert [one.folder.name for one in made] == [
        "logistic-none", "logistic-temperature", "output-none",
    ]  # fmt: skip
    assert len({one.results.guarantee["epsilon"] for one in made}) == 1
    for one in made:
        found = Results.from_bytes((one.folder / "results.json").read_bytes())
        assert "other models of this comparison of 3" in found.guarantee["text"]
        assert one.classifier.private_


@pytest.mark.parametrize("part", ["train", "test"])
def test_all_of_it_together_is_within_the_budget(made, part):
    ledger = made[0].ledger
    items = [item for item, _ in ledger.planned() if item.part == part]
    whole = Composed(tuple(Repeated(item.event, item.times) for item in items))
    assert epsilon_for(whole, ledger.budget.delta) <= 8.0
    assert ledger.budget.epsilon == 8.0
    assert made[0].results.guarantee["epsilon"] >= epsilon_for(whole, ledger.budget.delta)


def test_everything_that_was_planned_is_used_and_nothing_else(made):
    assert all(item.times == used for item, used in made[0].ledger.planned())
    assert len(made[0].ledger.entries()) == ENTRIES


def test_a_way_has_an_equal_share_of_epsilon_and_delta():
    found = share_config(CONFIG, WAYS[1], 4, 1e-4)
    assert (found.privacy.epsilon, found.privacy.delta) == (2.0, 2.5e-5)
    assert found.measurement.reserve == 0 and found.recalibration.method == "temperature"


def test_what_is_alike_is_planned_once_with_its_number_of_times():
    records = load_records(CONFIG)
    jobs = [RunPlan.of(share_config(CONFIG, way, 2, 1e-4), records) for way in WAYS[:1] * 2]
    items = merge_items(item for job in jobs for item in job.items)
    assert (items[0].part, items[0].times) == ("train", 2)
    assert {item.times for item in items if item.part == "test"} == {2}


def test_it_goes_on_where_it_was_interrupted(tmp_path):
    def stop(step, done, total):
        if step == "output/none: training":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(CONFIG, WAYS, tmp_path / "all", on_progress=stop)
    before = Ledger(tmp_path / "all.ledger").entries()
    assert len(before) == 2 + 2 * 2 + (1 + 2) * 5
    made = compare(CONFIG, WAYS, tmp_path / "all")
    assert made[0].ledger.entries()[: len(before)] == before
    assert len(made[0].ledger.entries()) == ENTRIES
    with pytest.raises(DataError, match="one that exists"):  # it is finished now
        compare(CONFIG, WAYS, tmp_path / "all")


@pytest.mark.parametrize("force", [False, True])
def test_what_is_somebody_elses_stays(force, tmp_path):
    """Without force any other file is a reason to stop, with it only one in a way's folder."""
    other = tmp_path / "all" / ("output-none" if force else "") / "thesis.txt"
    other.parent.mkdir(parents=True)
    other.write_text("mine")
    with pytest.raises(DataError, match="thesis" if force else "one that exists"):
        compare(CONFIG, WAYS, tmp_path / "all", force=force)
    assert other.read_text() == "mine" and not (tmp_path / "all.ledger").exists()


def test_a_ledger_of_other_ways_is_refused(made, tmp_path):
    with pytest.raises(BudgetError, match="veracal ledger extend"):
        compare(CONFIG, WAYS[:2], tmp_path / "all", ledger=made[0].ledger.path)


@pytest.mark.parametrize("ways", [(), WAYS[:1], (WAYS[0], WAYS[0], WAYS[1])])
def test_ways_are_two_or_more_and_different(ways, tmp_path):
    with pytest.raises(ValueError, match="two or more different"):
        compare(CONFIG, ways, tmp_path / "all")
    assert list(tmp_path.iterdir()) == []


def test_a_way_that_cannot_be_made_leaves_nothing(tmp_path):
    config = replace(CONFIG, model=ModelConfig())  # no norm
    with pytest.raises((DataError, ValueError), match="norm"):
        compare(config, WAYS, tmp_path / "all")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "tree", "logistic/", "logistic/magic", "none", "a/b/c"])
def test_what_is_no_way(text):
    with pytest.raises(ValueError, match="Expected one of logistic"):
        Configuration.parse(text)


def test_ways_are_written_as_they_are_read():
    for text in ("logistic", "objective/none", "output/two-temperatures"):
        assert str(Configuration.parse(text)) == text
    assert Configuration.parse(" logistic/auto ") == Configuration("logistic")

"""The calibrator's side against real sources: folders, ledgers, desks."""

import pytest

from tests.federation.calibrator.standing import CALIBRATOR, scores
from veracal.accounting import Budget
from veracal.calibration import recalibrate
from veracal.calibration.bins import Bins
from veracal.calibration.queries import CorrectWrong, Gap
from veracal.federation.coordinator.federated import RemotePool
from veracal.federation.coordinator.remote import Remote
from veracal.federation.protocol.questions import KINDS
from veracal.federation.source.enrolling import Declaration, enroll
from veracal.federation.source.folder import create_source
from veracal.federation.source.serving import open_source
from veracal.federation.transports.base import LocalTransport
from veracal.testing import check_source


def desk(folder, name, records, **changed):
    """A source with one enrolment."""
    told = {"epsilon": 20.0, "most_records": 1_000, "deadline": 1.0, **changed}
    if "delta" not in told:
        told["kinds"] = tuple(name for name, kind in KINDS.items() if not kind.gaussian)
    budget = Budget(max(20.0, told["epsilon"]), told.get("delta", 0.0))
    create_source(folder / name, name, budget)
    declared = Declaration(CALIBRATOR.public, "b" * 64, **{"kinds": tuple(KINDS), **told})
    enroll(folder / name, records, declared)
    return open_source(folder / name)


def test_a_source_elsewhere_keeps_the_contract_of_sources(tmp_path):
    made = iter(range(100))

    def make(micro_epsilon):
        one = desk(tmp_path, f"s{next(made)}", scores(20), epsilon=micro_epsilon / 1e6)
        return Remote(one.terms, CALIBRATOR, one.reply)

    check_source(make, CorrectWrong(Bins(1)), local=False)
    check_source(make, Gap(0.5, 2), local=False)


def test_three_institutions_recalibrate_and_pay_what_the_plan_says(tmp_path):
    desks = [desk(tmp_path, name, scores(seed=i)) for i, name in enumerate("abc")]
    transport = LocalTransport({one.terms.source: one.reply for one in desks})
    asked = RemotePool([one.terms for one in desks], CALIBRATOR, transport)
    found = recalibrate(asked, epsilon=2.0, measure=0.2)
    assert 2.0 < found.temperature.value < 5.0
    assert found.silences == (None, None, None)
    assert found.statement.epsilon == pytest.approx(2.0)
    for one in asked.sources:
        assert one.account.privacy(one.charges())[0] == pytest.approx(2.0)
        assert one.book.head(one.terms.source).index == 5


@pytest.mark.parametrize("method", ["platt"])
def test_gaussian_noise_too(tmp_path, method):
    desks = [desk(tmp_path, name, scores(seed=i), delta=1e-5) for i, name in enumerate("ab")]
    transport = LocalTransport({one.terms.source: one.reply for one in desks})
    asked = RemotePool([one.terms for one in desks], CALIBRATOR, transport)
    found = recalibrate(asked, method, epsilon=4.0, delta=1e-5, size=800)
    assert found.silences == (None, None)
    assert found.map.kind == "platt" or not found.guarded.kept


def test_a_calibrator_that_lost_its_book_gets_the_same_answers(tmp_path):
    one = desk(tmp_path, "a", scores())
    counts = CorrectWrong(Bins(1))
    first = Remote(one.terms, CALIBRATOR, one.reply).answer(counts, micro_epsilon=10)
    assert Remote(one.terms, CALIBRATOR, one.reply).answer(counts, micro_epsilon=10) == first

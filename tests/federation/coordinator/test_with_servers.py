"""The coordinator's side against real sources: folders, ledgers, servers."""

import pytest

from tests.federation.coordinator.stand_in import COORDINATOR, scores
from veracal.accounting import Budget
from veracal.calibration import CorrectWrong, Gap, recalibrate
from veracal.calibration.bins import Bins
from veracal.federation.coordinator.pool import RemotePool
from veracal.federation.coordinator.remote import Remote
from veracal.federation.protocol.queries import KINDS
from veracal.federation.source.enrolling import Declaration, enroll
from veracal.federation.source.folder import create_source
from veracal.federation.source.serving import open_source
from veracal.federation.transports import LocalTransport
from veracal.testing import check_source


def server(folder, name, records, **changed):
    """A source with one enrollment."""
    fields = {"epsilon": 20.0, "max_records": 1_000, "deadline": 1.0, **changed}
    if "delta" not in fields:
        fields["kinds"] = tuple(name for name, kind in KINDS.items() if not kind.gaussian)
    budget = Budget(max(20.0, fields["epsilon"]), fields.get("delta", 0.0))
    create_source(folder / name, name, budget)
    declared = Declaration(COORDINATOR.public, "b" * 64, **{"kinds": tuple(KINDS), **fields})
    enroll(folder / name, records, declared)
    return open_source(folder / name)


def test_a_remote_server_fulfills_the_source_contract(tmp_path):
    created = iter(range(100))

    def make(micro_epsilon):
        one = server(tmp_path, f"s{next(created)}", scores(20), epsilon=micro_epsilon / 1e6)
        return Remote(one.terms, COORDINATOR, one.reply)

    check_source(make, CorrectWrong(Bins(1)), local=False)
    check_source(make, Gap(0.5, 2), local=False)


def test_three_institutions_are_charged_what_the_plan_says(tmp_path):
    servers = [server(tmp_path, name, scores(seed=i)) for i, name in enumerate("abc")]
    transport = LocalTransport({one.terms.source: one.reply for one in servers})
    pool = RemotePool([one.terms for one in servers], COORDINATOR, transport)
    result = recalibrate(pool, epsilon=2.0, measure=0.2)
    assert 2.0 < result.temperature.value < 5.0
    assert result.dropouts == (None, None, None)
    assert result.statement.epsilon == pytest.approx(2.0)
    for one in pool.sources:
        assert one.account.privacy(one.charges())[0] == pytest.approx(2.0)
        assert one.history.head(one.terms.source).index == 5


@pytest.mark.parametrize("method", ["platt"])
def test_methods_with_gaussian_noise_run(tmp_path, method):
    servers = [
        server(tmp_path, name, scores(seed=i), delta=1e-5) for i, name in enumerate("ab")
    ]
    transport = LocalTransport({one.terms.source: one.reply for one in servers})
    pool = RemotePool([one.terms for one in servers], COORDINATOR, transport)
    result = recalibrate(pool, method, epsilon=4.0, delta=1e-5, size=800)
    assert result.dropouts == (None, None)
    assert result.map.kind == "platt" or not result.guarded.kept


def test_a_coordinator_without_history_gets_the_same_answers(tmp_path):
    one = server(tmp_path, "a", scores())
    counts = CorrectWrong(Bins(1))
    first = Remote(one.terms, COORDINATOR, one.reply).answer(counts, micro_epsilon=10)
    assert Remote(one.terms, COORDINATOR, one.reply).answer(counts, micro_epsilon=10) == first

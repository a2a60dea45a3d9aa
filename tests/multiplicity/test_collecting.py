"""Each run is counted once, also after an interruption, and audits are never mixed."""

import json
import signal
import subprocess
import sys
import textwrap
import time
from itertools import pairwise

import numpy as np
import pytest

from tests.multiplicity.known_shares import KnownShares
from veracal.errors import DataError
from veracal.multiplicity.collecting import RunConsumer, collect, merge_ranges, pending_ranges
from veracal.multiplicity.engines.base import Seed
from veracal.multiplicity.runs import Runs

SHARES = np.linspace(0, 1, 6)


def collect_runs(engine, number, keep=None, random_state=3, runs=None, **more):
    runs = Runs(engine.individuals) if runs is None else runs
    consumers = {"individuals": RunConsumer(runs, lambda scores: (scores, engine.kind))}
    seed = Seed.from_random_state(random_state)
    collection = collect(
        engine, consumers, number, random_state=random_state, seed=seed, keep=keep, **more
    )
    return runs, collection


def same(one, other):
    for name, array in one.state().items():
        np.testing.assert_allclose(other.state()[name], array, atol=1e-12, err_msg=name)


def test_a_resumed_audit_equals_an_uninterrupted_one(tmp_path):
    uninterrupted, _ = collect_runs(KnownShares(SHARES), 100)
    keep = tmp_path / "runs.npz"
    with pytest.raises(RuntimeError, match="stopped on purpose"):
        collect_runs(KnownShares(SHARES, fail_after=40), 100, keep)
    engine = KnownShares(SHARES)
    again, collection = collect_runs(engine, 100, keep)
    assert (collection.runs, collection.resumed, engine.runs_made) == (
        100,
        35,
        65,
    )  # 35: five times seven
    same(uninterrupted, again)
    finished = KnownShares(SHARES)
    collect_runs(finished, 100, keep)
    assert finished.runs_made == 0


def test_an_audit_can_be_extended_without_counting_twice(tmp_path):
    keep = tmp_path / "runs.npz"
    collect_runs(KnownShares(SHARES), 10, keep)
    engine = KnownShares(SHARES)
    runs, collection = collect_runs(
        engine, 50, keep, random_state=None
    )  # the file holds its seed
    assert runs.runs == collection.runs == 50 and engine.runs_made == 40
    fewer, collection = collect_runs(KnownShares(SHARES), 20, keep)
    assert fewer.runs == collection.runs == 50  # counted runs stay


KILLED = """
import time
from tests.multiplicity.known_shares import KnownShares
from tests.multiplicity.test_collecting import SHARES, collect_runs

class Slow(KnownShares):
    def scores(self, count, streams):
        time.sleep(0.06)
        return super().scores(count, streams)

collect_runs(Slow(SHARES), 7_000_000, {keep!r})
"""


def test_a_killed_process_loses_at_most_a_second_and_counts_nothing_twice(tmp_path):
    keep = tmp_path / "runs.npz"
    code = textwrap.dedent(KILLED.format(keep=str(keep)))
    worker = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 240
    while not keep.exists() and time.monotonic() < deadline and worker.poll() is None:
        time.sleep(0.02)
    with pytest.raises(DataError, match="another"):  # while the other process runs
        collect_runs(KnownShares(SHARES), 700, keep)
    worker.send_signal(signal.SIGKILL)
    assert worker.wait() == -signal.SIGKILL
    engine = KnownShares(SHARES)
    runs, collection = collect_runs(engine, 700, keep)
    assert (
        0 < collection.resumed < 7_000_000
        and collection.resumed + engine.runs_made == collection.runs >= 700
    )
    same(collect_runs(KnownShares(SHARES), collection.runs)[0], runs)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".runs.npz.lock", "runs.npz"]


@pytest.mark.parametrize(
    ("engine", "more", "message"),
    [
        (KnownShares(SHARES[::-1]), {}, "different engine.shares"),
        (KnownShares(SHARES), {"identity": {"threshold": 0.3}}, "different threshold"),
        (KnownShares(SHARES), {"random_state": 4}, "random_state=4"),
    ],
)
def test_a_checkpoint_of_another_audit_is_rejected(tmp_path, engine, more, message):
    keep = tmp_path / "runs.npz"
    collect_runs(KnownShares(SHARES), 10, keep)
    before = keep.read_bytes()
    with pytest.raises(DataError, match=message):
        collect_runs(engine, 20, keep, **more)
    assert keep.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x05\x06" + bytes(18)])
def test_a_foreign_file_is_rejected_and_left_unchanged(tmp_path, content):
    keep = tmp_path / "runs.npz"
    keep.write_bytes(content)
    with pytest.raises(DataError, match="a checkpoint of an audit"):
        collect_runs(KnownShares(SHARES), 10, keep)
    assert keep.read_bytes() == content


@pytest.mark.parametrize(
    ("head", "arrays"),
    [
        ({"identity": None}, {}),
        ({"completed": "some"}, {}),
        ({"completed": [[0, 6], [5, 10]]}, {}),
        ({"completed": [[0, 9]]}, {}),  # one run less than was counted
        ({"entropy": "much"}, {}),
        ({"entropy": "-3"}, {}),
        ({}, {"individuals:mean": None}),
        ({}, {"individuals:mean": np.zeros(3)}),
    ],
)
def test_an_altered_checkpoint_is_rejected_and_left_unchanged(tmp_path, head, arrays):
    keep = tmp_path / "runs.npz"
    collect_runs(KnownShares(SHARES), 10, keep)
    held = dict(np.load(keep)) | arrays
    changed = json.loads(str(held["head"])) | head
    changed = {name: value for name, value in changed.items() if value is not None}
    held["head"] = np.array(json.dumps(changed))
    np.savez(keep, **{name: array for name, array in held.items() if array is not None})
    before = keep.read_bytes()
    with pytest.raises(DataError):
        collect_runs(KnownShares(SHARES), 20, keep, random_state=None)
    assert keep.read_bytes() == before


def test_a_number_of_runs_counts_as_fixed_only_if_it_never_changed(tmp_path):
    keep, other = tmp_path / "runs.npz", tmp_path / "other.npz"
    with pytest.raises(RuntimeError, match="stopped on purpose"):
        collect_runs(KnownShares(SHARES, fail_after=40), 100, keep)
    assert collect_runs(KnownShares(SHARES), 100, keep)[1].fixed  # interrupted and resumed
    assert not collect_runs(KnownShares(SHARES), 200, keep)[1].fixed
    assert not collect_runs(KnownShares(SHARES), 200, keep)[1].fixed  # and never again
    assert not collect_runs(KnownShares(SHARES), 200, other, stopping_rule=lambda: 50)[1].fixed
    assert not collect_runs(KnownShares(SHARES), 200, other)[1].fixed


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("head", lambda head: head.pop("identity")),
        ("head", lambda head: head.pop("completed")),
        ("head", lambda head: head.update(completed=5)),
        ("head", lambda head: head.update(completed=[["a", "b"]])),
        ("head", lambda head: head.update(completed=[[0, 6], [4, 10]])),
        (
            "head",
            lambda head: head.update(completed=[[0, 4]]),
        ),  # six runs would be counted twice
        ("head", lambda head: head.update(entropy="x")),
        ("individuals:counts_by_block", None),
        ("individuals:counts_by_block", np.zeros_like),
        ("individuals:counts_by_block", np.negative),
        ("individuals:runs_by_block", lambda held: held + 1),
    ],
)
def test_inconsistent_counts_are_rejected_and_left_unchanged(tmp_path, name, change):
    keep = tmp_path / "runs.npz"
    collect_runs(KnownShares(SHARES), 10, keep)
    with np.load(keep) as held:
        arrays = dict(held)
    if change is None:
        del arrays[name]
    elif name == "head":
        head = json.loads(str(arrays[name]))
        change(head)
        arrays[name] = np.array(json.dumps(head))
    else:
        arrays[name] = change(arrays[name])
    np.savez(keep, **arrays)
    before, engine = keep.read_bytes(), KnownShares(SHARES)
    with pytest.raises(DataError, match=r"a checkpoint of an audit|one decision per run"):
        collect_runs(engine, 20, keep, random_state=None)
    assert keep.read_bytes() == before and engine.runs_made == 0


def test_a_pickle_in_the_checkpoint_is_not_loaded(tmp_path):
    keep = tmp_path / "runs.npz"
    np.savez(keep, head=np.array([{"format": 1}], dtype=object))
    with pytest.raises(DataError, match="a checkpoint of an audit"):
        collect_runs(KnownShares(SHARES), 10, keep)


def test_an_unwritable_path_is_reported_before_the_first_run(tmp_path):
    engine = KnownShares(SHARES)
    with pytest.raises(DataError, match="a writable folder"):
        collect_runs(engine, 10, tmp_path / "absent" / "runs.npz")
    assert engine.runs_made == 0


def test_invalid_scores_stop_the_audit_and_keep_the_last_whole_state(tmp_path):
    class Broken(KnownShares):
        def scores(self, count, streams):
            result = super().scores(count, streams)
            return np.full_like(result, np.nan) if self.runs_made > 20 else result

    keep = tmp_path / "runs.npz"
    with pytest.raises(DataError, match="NaN"):
        collect_runs(Broken(SHARES), 100, keep)
    # Counting failed, so that the last saved state remains: here, none.
    runs, collection = collect_runs(KnownShares(SHARES), 100, keep)
    same(collect_runs(KnownShares(SHARES), 100)[0], runs)
    assert collection.runs == 100


def test_collection_stops_by_the_rule_and_reports_progress():
    reported = []
    runs = Runs(len(SHARES))
    _, collection = collect_runs(
        KnownShares(SHARES),
        1000,
        runs=runs,
        stopping_rule=lambda: 60,
        on_progress=lambda *given: reported.append(given),
    )
    assert collection.runs == 63  # the first multiple of seven
    assert reported[0] == (0, 1000) and reported[-1] == (63, 63)
    assert all(before[0] <= after[0] for before, after in pairwise(reported))


@pytest.mark.parametrize("number", [1, 0, -1, 2.5])
def test_fewer_than_two_runs_are_rejected(number):
    with pytest.raises(ValueError, match="runs"):
        collect_runs(KnownShares(SHARES), number)


def test_ranges_merge_and_pending_ranges_fill_the_gaps():
    collection = merge_ranges([range(10, 14), range(0, 3), range(3, 5)])
    assert collection == [range(0, 5), range(10, 14)]
    left = [n for some in pending_ranges(collection, 17, 4) for n in some]
    assert left == [5, 6, 7, 8, 9, 14, 15, 16]
    assert all(len(some) <= 4 for some in pending_ranges(collection, 17, 4))
    with pytest.raises(ValueError, match="twice"):
        merge_ranges([range(0, 3), range(2, 4)])


def test_the_checkpoint_holds_no_code_and_is_readable_only_by_its_owner(tmp_path):
    keep = tmp_path / "runs.npz"
    collect_runs(KnownShares(SHARES), 10, keep)
    assert keep.stat().st_mode & 0o077 == 0
    with np.load(keep, allow_pickle=False) as held:
        assert json.loads(str(held["head"]))["completed"] == [[0, 10]]

"""Runs are counted once each, whatever breaks off, and nothing of another audit is mixed in."""

import json
import signal
import subprocess
import sys
import textwrap
import time
from itertools import pairwise

import numpy as np
import pytest

from tests.multiplicity.coins import Coins
from veracal.errors import DataError
from veracal.multiplicity.collecting import RunConsumer, collect, joined, missing
from veracal.multiplicity.engines.base import Seed
from veracal.multiplicity.runs import Runs

SHARES = np.linspace(0, 1, 6)


def collected(engine, number, keep=None, random_state=3, runs=None, **more):
    runs = Runs(engine.people) if runs is None else runs
    sinks = {"people": RunConsumer(runs, lambda scores: (scores, engine.kind))}
    seed = Seed.of(random_state)
    done = collect(
        engine, sinks, number, random_state=random_state, seed=seed, keep=keep, **more
    )
    return runs, done


def same(one, other):
    for name, array in one.state().items():
        np.testing.assert_allclose(other.state()[name], array, atol=1e-12, err_msg=name)


def test_an_audit_that_broke_off_goes_on_and_ends_as_if_it_had_not(tmp_path):
    whole, _ = collected(Coins(SHARES), 100)
    keep = tmp_path / "runs.npz"
    with pytest.raises(RuntimeError, match="tired"):
        collected(Coins(SHARES, tired_after=40), 100, keep)
    engine = Coins(SHARES)
    again, done = collected(engine, 100, keep)
    assert (done.runs, done.resumed, engine.made) == (100, 35, 65)  # 35: five times seven
    same(whole, again)
    nothing_left = Coins(SHARES)
    collected(nothing_left, 100, keep)
    assert nothing_left.made == 0


def test_more_runs_may_be_asked_for_later_and_none_is_counted_twice(tmp_path):
    keep = tmp_path / "runs.npz"
    collected(Coins(SHARES), 10, keep)
    engine = Coins(SHARES)
    runs, done = collected(engine, 50, keep, random_state=None)  # the file knows its seed
    assert runs.runs == done.runs == 50 and engine.made == 40
    fewer, done = collected(Coins(SHARES), 20, keep)
    assert fewer.runs == done.runs == 50  # what is there stays


KILLED = """
import time
from tests.multiplicity.coins import Coins
from tests.multiplicity.test_collecting import SHARES, collected

class Slow(Coins):
    def scores(self, count, streams):
        time.sleep(0.06)
        return super().scores(count, streams)

collected(Slow(SHARES), 7_000_000, {keep!r})
"""


def test_a_process_that_is_killed_loses_a_second_and_doubles_nothing(tmp_path):
    keep = tmp_path / "runs.npz"
    code = textwrap.dedent(KILLED.format(keep=str(keep)))
    worker = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 240
    while not keep.exists() and time.monotonic() < deadline and worker.poll() is None:
        time.sleep(0.02)
    with pytest.raises(DataError, match="another"):  # while it is at it
        collected(Coins(SHARES), 700, keep)
    worker.send_signal(signal.SIGKILL)
    assert worker.wait() == -signal.SIGKILL
    engine = Coins(SHARES)
    runs, done = collected(engine, 700, keep)
    assert 0 < done.resumed < 7_000_000 and done.resumed + engine.made == done.runs >= 700
    same(collected(Coins(SHARES), done.runs)[0], runs)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".runs.npz.lock", "runs.npz"]


@pytest.mark.parametrize(
    ("engine", "more", "said"),
    [
        (Coins(SHARES[::-1]), {}, "another engine.shares"),
        (Coins(SHARES), {"about": {"threshold": 0.3}}, "another threshold"),
        (Coins(SHARES), {"random_state": 4}, "random_state=4"),
    ],
)
def test_an_audit_of_something_else_is_not_gone_on_with(tmp_path, engine, more, said):
    keep = tmp_path / "runs.npz"
    collected(Coins(SHARES), 10, keep)
    before = keep.read_bytes()
    with pytest.raises(DataError, match=said):
        collected(engine, 20, keep, **more)
    assert keep.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x05\x06" + bytes(18)])
def test_a_file_that_no_audit_wrote_is_refused_and_stays(tmp_path, content):
    keep = tmp_path / "runs.npz"
    keep.write_bytes(content)
    with pytest.raises(DataError, match="a file that an audit keeps"):
        collected(Coins(SHARES), 10, keep)
    assert keep.read_bytes() == content


@pytest.mark.parametrize(
    ("head", "arrays"),
    [
        ({"about": None}, {}),
        ({"done": "some"}, {}),
        ({"done": [[0, 6], [5, 10]]}, {}),
        ({"done": [[0, 9]]}, {}),  # one run less than was counted
        ({"entropy": "much"}, {}),
        ({"entropy": "-3"}, {}),
        ({}, {"people:mean": None}),
        ({}, {"people:mean": np.zeros(3)}),
    ],
)
def test_a_file_that_somebody_changed_is_refused_and_stays(tmp_path, head, arrays):
    keep = tmp_path / "runs.npz"
    collected(Coins(SHARES), 10, keep)
    held = dict(np.load(keep)) | arrays
    changed = json.loads(str(held["head"])) | head
    changed = {name: value for name, value in changed.items() if value is not None}
    held["head"] = np.array(json.dumps(changed))
    np.savez(keep, **{name: array for name, array in held.items() if array is not None})
    before = keep.read_bytes()
    with pytest.raises(DataError):
        collected(Coins(SHARES), 20, keep, random_state=None)
    assert keep.read_bytes() == before


def test_a_number_of_runs_is_fixed_only_if_it_never_changed(tmp_path):
    keep, other = tmp_path / "runs.npz", tmp_path / "other.npz"
    with pytest.raises(RuntimeError, match="tired"):
        collected(Coins(SHARES, tired_after=40), 100, keep)
    assert collected(Coins(SHARES), 100, keep)[1].fixed  # broken off, and gone on with
    assert not collected(Coins(SHARES), 200, keep)[1].fixed
    assert not collected(Coins(SHARES), 200, keep)[1].fixed  # nor ever again
    assert not collected(Coins(SHARES), 200, other, enough=lambda: 50)[1].fixed
    assert not collected(Coins(SHARES), 200, other)[1].fixed


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("head", lambda head: head.pop("about")),
        ("head", lambda head: head.pop("done")),
        ("head", lambda head: head.update(done=5)),
        ("head", lambda head: head.update(done=[["a", "b"]])),
        ("head", lambda head: head.update(done=[[0, 6], [4, 10]])),
        ("head", lambda head: head.update(done=[[0, 4]])),  # six would be counted twice
        ("head", lambda head: head.update(entropy="x")),
        ("people:counts_by_block", None),
        ("people:counts_by_block", np.zeros_like),
        ("people:counts_by_block", np.negative),
        ("people:runs_by_block", lambda held: held + 1),
    ],
)
def test_a_file_whose_counts_do_not_add_up_is_refused_and_stays(tmp_path, name, change):
    keep = tmp_path / "runs.npz"
    collected(Coins(SHARES), 10, keep)
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
    before, engine = keep.read_bytes(), Coins(SHARES)
    with pytest.raises(DataError, match=r"a file that an audit keeps|a decision of every run"):
        collected(engine, 20, keep, random_state=None)
    assert keep.read_bytes() == before and engine.made == 0


def test_a_pickle_in_the_file_is_not_opened(tmp_path):
    keep = tmp_path / "runs.npz"
    np.savez(keep, head=np.array([{"format": 1}], dtype=object))
    with pytest.raises(DataError, match="a file that an audit keeps"):
        collected(Coins(SHARES), 10, keep)


def test_a_place_that_cannot_be_written_to_is_told_before_the_first_run(tmp_path):
    engine = Coins(SHARES)
    with pytest.raises(DataError, match="a place to write"):
        collected(engine, 10, tmp_path / "nowhere" / "runs.npz")
    assert engine.made == 0


def test_scores_that_are_none_end_the_audit_and_what_was_counted_is_kept(tmp_path):
    class Broken(Coins):
        def scores(self, count, streams):
            found = super().scores(count, streams)
            return np.full_like(found, np.nan) if self.made > 20 else found

    keep = tmp_path / "runs.npz"
    with pytest.raises(DataError, match="NaN"):
        collected(Broken(SHARES), 100, keep)
    # Counting broke off, so that the last thing known to be whole stays: here, nothing.
    runs, done = collected(Coins(SHARES), 100, keep)
    same(collected(Coins(SHARES), 100)[0], runs)
    assert done.runs == 100


def test_it_stops_once_there_are_enough_and_tells_how_far_it_is():
    told = []
    runs = Runs(len(SHARES))
    _, done = collected(
        Coins(SHARES),
        1000,
        runs=runs,
        enough=lambda: 60,
        on_progress=lambda *given: told.append(given),
    )
    assert done.runs == 63  # the first multiple of seven
    assert told[0] == (0, 1000) and told[-1] == (63, 63)
    assert all(before[0] <= after[0] for before, after in pairwise(told))


@pytest.mark.parametrize("number", [1, 0, -1, 2.5])
def test_less_than_two_runs_are_no_audit(number):
    with pytest.raises(ValueError, match="runs"):
        collected(Coins(SHARES), number)


def test_ranges_are_joined_and_the_gaps_are_found():
    done = joined([range(10, 14), range(0, 3), range(3, 5)])
    assert done == [range(0, 5), range(10, 14)]
    left = [n for some in missing(done, 17, 4) for n in some]
    assert left == [5, 6, 7, 8, 9, 14, 15, 16]
    assert all(len(some) <= 4 for some in missing(done, 17, 4))
    with pytest.raises(ValueError, match="twice"):
        joined([range(0, 3), range(2, 4)])


def test_the_file_holds_no_code_and_is_its_owners_alone(tmp_path):
    keep = tmp_path / "runs.npz"
    collected(Coins(SHARES), 10, keep)
    assert keep.stat().st_mode & 0o077 == 0
    with np.load(keep, allow_pickle=False) as held:
        assert json.loads(str(held["head"]))["done"] == [[0, 10]]

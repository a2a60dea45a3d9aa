"""Two ranks train like one process: the same sums, one noise, one charge."""

import json
import queue
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch.distributed as dist

from tests.neural import two_ranks
from veracal.accounting import Unit
from veracal.data import Dataset, split
from veracal.errors import WorkerError
from veracal.neural import Ranks
from veracal.neural.distributed import (
    RankConnection,
    RankFacts,
    agree_on_fit,
    check_same_settings,
    check_same_split,
    check_totals,
)
from veracal.neural.gradient_sums import NetworkSums

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Reports of two processes that are connected by gloo."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(two_ranks.__file__)
    running = [
        subprocess.Popen(
            [sys.executable, script, str(rank), folder],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [one.communicate(timeout=900)[1] for one in running]
    finally:
        for one in running:
            one.kill()
    assert [one.returncode for one in running] == [0, 0], errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture
def scene(reports, request):
    """Results of both ranks in the scene that a test names."""
    return [one[request.param] for one in reports]


def of(name):
    return pytest.mark.parametrize("scene", [name], indirect=True, ids=[""])


# ---------------------------------------------------------------- the same as one process


@of("exact")
@pytest.mark.parametrize("name", two_ranks.EXACT)
def test_two_ranks_without_noise_equal_one_process_with_all_records(scene, name):
    settings = {"not_private": "clipping only", "sampling_rate": 1.0, "across": None}
    alone = two_ranks.model(**settings, **two_ranks.EXACT[name])
    alone.fit_records(Dataset(two_ranks.X, two_ranks.Y, (0, 1)))
    np.testing.assert_allclose(scene[0][name], two_ranks.weights(alone), atol=1e-6)
    assert scene[0][name] == scene[1][name]
    # What was counted is that of all on rank 0, and its own on rank 1.
    assert scene[0][f"{name} tally"] == [alone.internal_.examples, alone.internal_.clipped]
    assert scene[1][f"{name} tally"][0] == 4 * 15
    begin = two_ranks.network(0)
    moved = two_ranks.weights(alone) - np.concatenate(
        [one.detach().ravel() for one in begin.parameters()]
    )
    assert np.linalg.norm(moved) > 0.01


@of("noise")
def test_noise_is_added_once(scene):
    """Its variance over 14,002 weights is that of one draw, and neither none nor two.

    The estimate is off by more than 0.1 once in 1e16 times (8 standard deviations), and 60
    clipped records move it by at most 60 / (100 * 14,002 ** 0.5) of a standard deviation.
    """
    moved = np.array(scene[0]["moved"])
    assert len(moved) == 7 * two_ranks.WIDE + 2
    assert 0.9 < np.mean((moved / two_ranks.NOISE) ** 2) < 1.1
    assert scene[0] == scene[1]
    assert scene[0]["private"]


@of("draws")
def test_ranks_sample_independently_at_the_declared_rate(scene):
    """Shares of 12,000 draws: off by 0.035 (7.7 standard deviations) once in 1e13 times."""
    shape = two_ranks.STEPS, two_ranks.MANY
    taken = np.zeros((2, *shape), dtype=bool)
    for rank, one in enumerate(scene):
        assert len(one["seen"]) == two_ranks.STEPS
        for step, rows in enumerate(one["seen"]):
            taken[rank, step, rows] = True
    rate = two_ranks.RATE
    np.testing.assert_allclose(taken.mean(axis=(1, 2)), rate, atol=0.035)
    agree = rate**2 + (1 - rate) ** 2
    assert abs(np.mean(taken[0] == taken[1]) - agree) < 0.035
    assert scene[0]["tally"] == taken.sum()
    assert scene[1]["tally"] == taken[1].sum()


# ---------------------------------------------------------------- one ledger


@of("ledger_of_rank_0")
def test_rank_0_pays_once_before_any_rank_reads_a_record(scene):
    alone = two_ranks.model(noise_multiplier=4.0, across=None)
    assert scene[0]["entries"] == 1
    assert scene[1]["after the charge"] == [True]
    for one in scene:
        assert one["event"] == repr(alone.event())
    for what in ("weights", "event", "statement", "steps", "check"):
        assert scene[0][what] == scene[1][what]
    assert "epsilon" in scene[0]["statement"]


@of("refused_by_the_ledger")
def test_a_rejected_charge_stops_all_ranks(scene):
    assert scene[0]["error"] == "BudgetError"
    assert scene[1]["error"] == "WorkerError"
    assert scene[0]["text"] in scene[1]["text"]


@of("checkpoint")
def test_an_interrupted_run_resumes_on_all_ranks_for_one_charge(scene):
    assert scene[0]["entries"] == 1
    assert scene[0]["taken"] == [0, 1, 2, 3, 4, 3, 4, 5, 6, 7]
    (first, *later), (other, *others) = scene[0]["found"], scene[1]["found"]
    assert (first, other) == ("RuntimeError", "WorkerError")
    assert later[0] == later[1] == others[0] == others[1]


# ---------------------------------------------------------------- refusals and failures


@of("other_settings")
def test_different_settings_are_rejected_on_all_ranks(scene):
    expected = "got another clip on rank 1: Flat(bound=2.0), where rank 0 has Flat(bound=1.0)"
    assert expected in scene[0]["text"]
    assert expected in scene[1]["text"]


@pytest.mark.parametrize(
    ("scene", "errors", "words"),
    [
        ("other_classes", ("WorkerError", "DataError"), ("Rank 1 cannot", "'no', 'yes'")),
        ("other_unit", ("ValueError", "WorkerError"), ("Unit(name='record'",) * 2),
        ("rank_1_fails", ("WorkerError", "MemoryError"), ("Rank 1 has failed", "too little")),
        ("rank_1_cannot_read", ("WorkerError", "OSError"), ("Rank 1 has failed", "gone")),
        ("rank_0_fails", ("KeyError", "WorkerError"), ("hook", "KeyError: 'hook'")),
    ],
    indirect=["scene"],
)
def test_a_failure_on_one_rank_stops_both(scene, errors, words):
    for one, error, word in zip(scene, errors, words, strict=True):
        assert one["error"] == error
        assert word in one["text"]


def test_a_rank_that_dies_stops_the_other(reports):
    assert reports[0]["rank_1_dies"]["error"] == "WorkerError"
    assert "Rank 1 does not answer" in reports[0]["rank_1_dies"]["text"]
    assert "rank_1_dies" not in reports[1]


@of("ended_by_a_hook")
def test_a_hook_that_ends_the_run_ends_it_everywhere(scene):
    assert scene == [{"steps": 2, "private": False}] * 2


@of("replaced")
def test_records_of_all_ranks_add_up_to_the_size_under_replace_one(scene):
    assert "Expected size=60" in scene[0]["text"]
    assert [one["private"] for one in scene] == [True, True]


@of("units")
def test_rows_of_a_unit_add_up_over_ranks_unless_units_are_disjoint(scene):
    assert "got up to 4" in scene[0]["text"]
    assert [one["private"] for one in scene] == [True, True]


@of("split_by_themselves")
def test_ranks_with_separate_splits_are_rejected_before_a_charge(scene, reports):
    for one in scene:
        assert "records of one split on all ranks, got records on rank 1" in one["text"]
    assert [one["error"] for one in scene] == ["ValueError", "WorkerError"]


@of("split_by_one_of_them")
@pytest.mark.parametrize("how", ["key", "seed", "handed on"])
def test_ranks_with_one_split_train_on_disjoint_records(scene, how):
    first, second = ({tuple(row) for row in one[how]} for one in scene)
    assert first
    assert second
    assert not first & second


@of("ledger_elsewhere")
def test_unsupported_distributed_fits_are_rejected(scene):
    words = (
        "the ledger on rank 0, got one on rank 1",
        "whose records are all in this process",
        "fit_records(dataset) in a distributed fit",
        "random_state=None in a distributed fit",
        "a declared size in a distributed fit",
        "across to be Ranks",
    )
    for text, word in zip(scene[1]["texts"], words, strict=True):
        assert word in text


def test_a_process_group_is_required():
    with pytest.raises(ValueError, match="init_process_group"):
        two_ranks.model().fit_records(two_ranks.share(0))


def test_a_single_rank_can_train():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        fitted = two_ranks.model().fit_records(two_ranks.share(0))
    finally:
        dist.destroy_process_group()
    assert fitted.private_


class Wires(RankConnection):
    """A connection to other threads; as in gloo, sending blocks until the receipt."""

    def __init__(self, rank, wires):
        self.here, self.wires = rank, wires
        self.pending, self.over = set(), False
        self.started = self.sum_requested = False

    rank = property(lambda self: self.here)
    world = property(lambda self: 3)

    def send(self, tensor, to=0):
        taken = threading.Event()
        self.wires[self.here, to].put((tensor.clone(), taken))
        if not taken.wait(240):
            raise WorkerError(f"{to} takes nothing from {self.here}")

    def receive(self, tensor, of=0):
        result, taken = self.wires[of, self.here].get(timeout=240)
        taken.set()
        return tensor.copy_(result)


def three_ranks(work):
    """Results of ``work(connection)`` on each of three ranks, in threads."""
    wires = {(a, b): queue.Queue() for a in range(3) for b in range(3)}

    def tried(rank):
        try:
            return work(Wires(rank, wires))
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(tried, range(3)))


def test_a_third_rank_stops_if_another_cannot_take_part():
    def work(link):
        def check():
            if link.rank == 1:
                raise ValueError("not here")
            return RankFacts({}, None, None)

        agree_on_fit(link, check, Unit(), Ranks(), 5)

    first, second, third = three_ranks(work)
    assert first == "WorkerError: Rank 1 cannot take part. See its own error message."
    assert second == "ValueError: not here"
    assert third == f"WorkerError: Rank 0 has stopped all ranks: {first}"


def test_a_third_rank_stops_if_another_fails():
    original = NetworkSums.__call__

    def broken(sums, weights, rows, clip):
        if len(sums.records) == 1:
            raise MemoryError("too little")
        return original(sums, weights, rows, clip)

    def work(link):
        fit = two_ranks.model()
        fit._connection = link
        n = (2, 1, 3)[link.rank]
        fit.fit_records(Dataset(two_ranks.X[:n], two_ranks.Y[:n], (0, 1)))

    with mock.patch.object(NetworkSums, "__call__", broken):
        first, second, third = three_ranks(work)
    assert first == "WorkerError: Rank 1 has failed. See its own error message."
    assert second == "MemoryError: too little"
    assert third == f"WorkerError: Rank 0 has stopped all ranks: {first}"


def test_rank_facts_are_compared_by_name():
    every = [
        RankFacts({"a": 1, "b": (2,)}, None, None),
        RankFacts({"a": 1, "b": [2]}, None, None),
    ]
    check_same_settings(every)
    with pytest.raises(ValueError, match="another c on rank 2: 3, where rank 0 has None"):
        check_same_settings([*every, RankFacts({"a": 1, "b": [2], "c": 3}, None, None)])
    check_totals(
        [RankFacts({}, None, 1), RankFacts({}, None, 2)], Unit("patient", 3), Ranks(), 5
    )
    some = [RankFacts({}, None, 3), RankFacts({}, None, None)]
    with pytest.raises(ValueError, match="on all ranks or on none"):
        check_totals(some, Unit("patient", 3), Ranks(), 5)
    check_totals(some, Unit("patient", 3), Ranks(units_disjoint=True), 5)


def test_split_marks_are_compared():
    one = Dataset(two_ranks.X, two_ranks.Y, (0, 1))
    first, again, other = split(one), split(one, key="a"), split(one, key="b")

    def reports(dataset):
        return RankFacts({}, None, None, (*dataset.split_keys, *dataset.split_draws))

    check_same_split([reports(first.train)] * 3)
    check_same_split([reports(again.train), reports(split(one, key="a").train)])
    for mine, theirs in (
        (first.train, split(one).train),
        (first.train, first.test),
        (first.train, one),
        (again.train, other.train),
        (again.train, first.train),
    ):
        with pytest.raises(ValueError, match="on rank 1 that were split in another way"):
            check_same_split([reports(mine), reports(theirs)])


def test_units_disjoint_must_be_a_bool():
    with pytest.raises(ValueError, match="True or False"):
        Ranks(units_disjoint="yes")

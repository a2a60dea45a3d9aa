"""Runs on real workers: the same scores on every backend, and nothing left behind."""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import partial

import joblib
import numpy as np
import psutil
import pytest
from joblib.externals.loky import get_reusable_executor
from sklearn.tree import DecisionTreeClassifier
from threadpoolctl import threadpool_info

from veracal.data import Dataset
from veracal.errors import DataError, MissingExtraError, RunError, WorkerError
from veracal.multiplicity.engines import workers as clusters
from veracal.multiplicity.engines.base import Seed
from veracal.multiplicity.engines.retraining import RetrainEngine
from veracal.multiplicity.engines.workers import one_core

pytestmark = pytest.mark.full

SEED = Seed.from_random_state(3)
TREE = DecisionTreeClassifier(splitter="random", max_features=1, min_samples_leaf=5)
RUNS = [range(n, n + 1) for n in range(12)]


@pytest.fixture(scope="module")
def train():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (60, 3))
    return Dataset(X, (X[:, 0] + rng.uniform(-1, 1, 60) > 0).astype(int), ("no", "yes"))


@pytest.fixture(scope="module", autouse=True)
def workers_end_with_the_module():
    """However busy the machine, no worker gives up waiting for work between two tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clusters, "_IDLE", 3600)
        yield
    get_reusable_executor().shutdown(wait=True, kill_workers=True)


def collected(engine, pending=RUNS):
    """Scores by number; each number once."""
    result = {}
    for runs, scores in engine.stream(iter(pending), SEED):
        assert len(runs) == 1 and runs.start not in result
        result[runs.start] = scores
    return result


def assert_same(result, expected):
    assert sorted(result) == sorted(expected)
    assert all(np.array_equal(result[number], expected[number]) for number in expected)


def started_here(but=frozenset()):
    """Processes that this one started, and theirs, without Python's trackers."""
    result = []
    for child in psutil.Process().children():
        if child in but:
            continue
        with suppress(psutil.NoSuchProcess):  # it may end during the check
            for one in (child, *child.children(recursive=True)):
                command = " ".join(one.cmdline())
                if command and "resource_tracker" not in command:
                    result.append(one)
    return result


@pytest.fixture
def workers():
    """Processes that a test starts: workers of earlier tests are ended before it.

    Others stay, as the browser that the tests of reports share.
    """
    get_reusable_executor().shutdown(wait=True, kill_workers=True)
    before = set(psutil.Process().children())
    return lambda: started_here(but=before)


def collected_here(model, train):
    """Likewise, in this process, one after the other."""
    return collected(RetrainEngine(model, train, train.X, jobs=1))


def wait_for(condition, seconds=120):
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.fixture(scope="module")
def expected(train):
    return collected_here(TREE, train)


# ---------------------------------------------------------------- training functions


def noise(run):
    return run.streams.noise.random(len(run.individuals))


def late_first(run):
    time.sleep(0.3 if run.number == 0 else 0)
    return noise(run)


def first_after_third(folder, run):
    """The first run waits for the begin of the third, which another worker gets to."""
    (folder / str(run.number)).touch()
    if run.number == 0:
        assert wait_for((folder / "2").exists)
    return noise(run)


def marked(folder, slow_from, run):
    (folder / str(run.number)).touch()
    time.sleep(3600 if run.number >= slow_from else 0)
    return noise(run)


def four_at_once(folder, run):
    """Four runs end at once, whichever they are; others wait until the file "go" is there."""
    (folder / f"begun {run.number}").touch()
    for slot in range(4):
        with suppress(FileExistsError):
            (folder / f"slot {slot}").touch(exist_ok=False)
            return noise(run)
    assert wait_for((folder / "go").exists)
    return noise(run)


def ending(how, run):
    if run.number == 5:
        how()
    return noise(run)


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def crashed():
    os.kill(os.getpid(), signal.SIGABRT)


def exit_worker():
    os._exit(4)


class NoisyCounts:
    """A training function that notes each process that unpickles it."""

    def __init__(self, folder):
        self.folder = folder

    def __setstate__(self, state):
        self.__dict__.update(state)
        with (self.folder / "opened").open("a") as notes:
            notes.write(f"{os.getpid()}\n")

    def __call__(self, run):
        return noise(run)


class TwoPartError(Exception):
    """Cannot be unpickled: it needs two arguments, and keeps one."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def broken(run):
    if run.number == 3:
        raise TwoPartError("one", "two")
    return noise(run)


def with_nan(run):
    return np.where(run.number == 3, np.nan, noise(run))


class Unloadable:
    """Cannot be unpickled, like a module that workers do not have."""

    def __reduce__(self):
        return __import__, ("nobody_has_this",)

    def __call__(self, run):
        return noise(run)


# ---------------------------------------------------------------- one machine
# Workers are slow to start. The first of these tests share theirs; others end them.


@pytest.mark.parametrize("jobs", [2, pytest.param(3, marks=pytest.mark.long)])
def test_worker_processes_give_the_scores_of_this_process(train, expected, jobs):
    assert_same(collected(RetrainEngine(TREE, train, train.X, jobs=jobs)), expected)


def test_the_order_of_arrival_does_not_matter(train, tmp_path):
    # The worker of the third run has sent the second, while the first is still waiting.
    late = partial(first_after_third, tmp_path)
    result = collected(RetrainEngine(late, train, train.X, jobs=2))
    assert list(result) != sorted(result)
    assert_same(result, collected_here(noise, train))


def test_lambdas_can_be_sent_to_workers(train):
    shift = 0.5
    result = collected(RetrainEngine(lambda run: noise(run) * shift, train, train.X, jobs=2))
    assert_same(result, {n: scores / 2 for n, scores in collected_here(noise, train).items()})


def test_records_travel_once_to_each_worker(train, tmp_path):
    engine = RetrainEngine(NoisyCounts(tmp_path), train, train.X, jobs=2)
    assert len(collected(engine)) == len(RUNS)
    notes = (tmp_path / "opened").read_text().split()
    assert 1 <= len(notes) <= 2 and len(set(notes)) == len(notes)


def test_a_stopped_audit_leaves_no_process_and_resumes_the_missing_runs(
    train, tmp_path, workers
):
    slow = RetrainEngine(partial(marked, tmp_path, 6), train, train.X, jobs=2)
    stream = slow.stream(iter(RUNS), SEED)
    kept = {runs.start: scores for runs, scores in (next(stream) for _ in range(5))}
    assert len(workers()) == 2
    stream.close()
    assert wait_for(lambda: workers() == [])
    begun = {int(path.name) for path in tmp_path.iterdir()}
    assert set(kept) <= set(range(6)) and set(kept) <= begun and len(begun) <= 6 + 2

    missing = [runs for runs in RUNS if runs.start not in kept]
    assert len(missing) == 7
    later = collected(RetrainEngine(noise, train, train.X, jobs=1), missing)
    assert_same(kept | later, collected_here(noise, train))


def test_a_killed_worker_is_reported_and_finished_runs_are_kept(train, workers):
    stream = RetrainEngine(partial(ending, killed), train, train.X, jobs=2).stream(RUNS, SEED)
    got = {}
    with pytest.raises(
        WorkerError, match="killed .SIGKILL.*memory.*With keep, finished runs are saved"
    ):
        got.update((runs.start, scores) for runs, scores in stream)
    assert 5 not in got
    missing = [runs for runs in RUNS if runs.start not in got]
    again = collected(RetrainEngine(noise, train, train.X, jobs=1), missing)
    assert_same(got | again, collected_here(noise, train))
    assert wait_for(lambda: workers() == [])


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "reported"),
    [(exit_worker, "ended its process .exit code 4."), (crashed, "crashed .SIGABRT.")],
)
def test_the_end_of_a_worker_is_explained(train, how, reported):
    engine = RetrainEngine(partial(ending, how), train, train.X, jobs=2)
    with pytest.raises(WorkerError, match=f"{reported}.*With keep, finished runs are saved"):
        collected(engine)


@pytest.mark.long
def test_errors_of_a_run_are_raised_from_worker_processes(train):
    with pytest.raises(RunError, match="Run 3 could not .*: TwoPartError: one and two"):
        collected(RetrainEngine(broken, train, train.X, jobs=2))
    with pytest.raises(DataError, match="run 3: expected .* found NaN for individual 0"):
        collected(RetrainEngine(with_nan, train, train.X, jobs=2))


PROGRAM = """
import sys, time
import numpy as np
from veracal.data import Dataset
from veracal.multiplicity.engines.retraining import RetrainEngine
from veracal.multiplicity.engines.base import Seed
from veracal.multiplicity.engines.workers import one_core

def slow(run):
    time.sleep(0 if run.number < 2 else 3600)
    return np.zeros(len(run.individuals))

if __name__ == "__main__":
    train = Dataset(np.eye(4), np.array([0, 1, 0, 1]), ("no", "yes"))
    engine = RetrainEngine(slow, train, train.X, jobs=2)
    for runs, _ in engine.stream([range(9)], Seed.from_random_state(0)):
        print(runs.start, flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_is_stopped_leaves_no_process(tmp_path, how):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    program = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with program.stdout as reported:
        assert {int(reported.readline()), int(reported.readline())} == {0, 1}
        below = psutil.Process(program.pid).children(recursive=True)
        assert len(below) >= 2
        program.send_signal(how)
        assert program.wait(timeout=120) != 0
    assert psutil.wait_procs(below, timeout=120)[1] == []


def test_nothing_pending_starts_no_process(train, workers):
    assert collected(RetrainEngine(TREE, train, train.X, jobs=2), []) == {}
    assert workers() == []


def test_unpicklable_models_are_reported_before_a_worker_starts(train, workers):
    lock = threading.Lock()

    def locked(run):
        return noise(run) * lock.locked()

    with pytest.raises(WorkerError, match="cannot be sent to workers: .*lock.* jobs=1"):
        collected(RetrainEngine(locked, train, train.X, jobs=2))
    assert workers() == []
    assert len(collected_here(locked, train)) == len(RUNS)


def test_the_active_joblib_configuration_is_used_and_kept(train, expected, workers):
    with joblib.parallel_config(backend="threading", n_jobs=2):
        stream = RetrainEngine(TREE, train, train.X).stream(iter(RUNS), SEED)
        before = joblib.parallel.get_active_backend()
        result = [next(stream)]
        assert joblib.parallel.get_active_backend() == before
        result += stream
    assert_same({runs.start: scores for runs, scores in result}, expected)
    assert workers() == []


def test_a_run_uses_one_core():
    with one_core(1):
        assert {pool["num_threads"] for pool in threadpool_info()} == {1}
        assert joblib.effective_n_jobs(4) == 1
    assert joblib.effective_n_jobs(4) == 4


# ---------------------------------------------------------------- Dask


@pytest.fixture(scope="module")
def dask():
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        processes=True, n_workers=2, threads_per_worker=1, dashboard_address=":0"
    )
    client = distributed.Client(cluster)
    yield cluster
    client.close()
    cluster.close()


def held():
    """How much a worker holds, by the module as the worker has it."""
    from veracal.multiplicity.engines import workers

    return len(workers._COMMON)


def test_dask_gives_the_same_scores_and_releases_the_records(train, expected, dask):
    assert_same(collected(RetrainEngine(TREE, train, train.X, backend="dask")), expected)
    by_address = RetrainEngine(
        TREE, train, train.X, backend="dask", address=dask.scheduler_address
    )
    assert_same(collected(by_address), expected)
    with joblib.parallel_config(backend="dask"):
        assert_same(collected(RetrainEngine(TREE, train, train.X)), expected)
    import distributed

    assert set(distributed.get_client().run(held).values()) == {0}


def at_work(dask_worker):
    """How much a worker is working on or has been given to do."""
    state = dask_worker.state
    return len(state.all_running_tasks) + len(state.ready) + len(state.constrained)


def test_an_early_end_drops_what_is_pending_on_dask(train, dask, tmp_path):
    import distributed

    client = distributed.get_client()
    engine = RetrainEngine(partial(four_at_once, tmp_path), train, train.X, backend="dask")
    stream = engine.stream(iter(RUNS), SEED)
    got = {next(stream)[0].start for _ in range(4)}
    stream.close()
    (tmp_path / "go").touch()
    assert wait_for(lambda: not any(client.run(at_work).values()))
    begun = {int(path.name.split()[1]) for path in tmp_path.glob("begun *")}
    assert got <= begun and len(begun - got) <= 2  # those that the two workers had begun


def test_errors_of_any_class_are_raised_from_workers(train, dask):
    with pytest.raises(RunError, match="Run 3 could not .*: TwoPartError: one and two") as got:
        collected(RetrainEngine(broken, train, train.X, backend="dask"))
    assert got.value.run == 3
    assert any("in broken" in note for note in got.value.__notes__)  # where it was raised
    with pytest.raises(DataError, match="run 3: expected .* found NaN for individual 0"):
        collected(RetrainEngine(with_nan, train, train.X, backend="dask"))


def test_models_that_workers_cannot_load_are_reported(train, dask):
    with pytest.raises(WorkerError, match="cannot load the model: ModuleNotFound.*nobody_has"):
        collected(RetrainEngine(Unloadable(), train, train.X, backend="dask"))


def test_pending_runs_are_drawn_by_this_thread_within_the_limit(train, dask):
    options = []

    def endless():
        for number in itertools.count():
            options.append(threading.current_thread())
            yield range(number, number + 1)

    stream = RetrainEngine(noise, train, train.X, backend="dask").stream(endless(), SEED)
    for _ in range(3):
        next(stream)
    stream.close()
    assert set(options) == {threading.current_thread()} and len(options) <= 64 * 2


@pytest.mark.long
def test_dask_survives_one_lost_worker_and_reports_the_loss_of_all(train):
    import distributed

    with (
        distributed.LocalCluster(
            processes=True, n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        place = {"backend": "dask", "address": cluster.scheduler_address}
        result = {}
        for runs, scores in RetrainEngine(late_first, train, train.X, **place).stream(
            RUNS, SEED
        ):
            result[runs.start] = scores
            if len(result) == 2:
                os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        assert_same(result, collected_here(late_first, train))
        client.wait_for_workers(2, timeout=60)
        with pytest.raises(WorkerError, match="Workers of Dask died.*finished runs are saved"):
            collected(RetrainEngine(partial(ending, exit_worker), train, train.X, **place))


# ---------------------------------------------------------------- clusters that are not there


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_an_unreachable_cluster_is_reported_within_seconds(train, backend, monkeypatch):
    waited = []

    def refuse(place, timeout):
        waited.append(timeout)
        raise TimeoutError("timed out")

    monkeypatch.setattr(clusters.socket, "create_connection", refuse)
    address = {"dask": "tcp://127.0.0.1:1", "ray": "127.0.0.1:1"}[backend]
    engine = RetrainEngine(TREE, train, train.X, backend=backend, address=address)
    with pytest.raises(WorkerError, match=f"Nothing answers at {address} .*Start the cluster"):
        collected(engine)
    assert len(waited) == 1 and waited[0] <= 5


def test_ray_not_being_started_is_reported(train):
    with pytest.raises(WorkerError, match=r"No Ray cluster: connect .* ray.init\(\)\.$"):
        collected(RetrainEngine(TREE, train, train.X, backend="ray"))


def test_dask_without_a_client_is_reported(train, monkeypatch):
    import distributed

    def none(timeout):
        raise ValueError("No clients found")  # as before the first one

    monkeypatch.setattr(distributed, "get_client", none)
    with pytest.raises(WorkerError, match=r"No Dask cluster: connect .*Client\(\)\.$"):
        collected(RetrainEngine(TREE, train, train.X, backend="dask"))


@pytest.mark.parametrize(("backend", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_a_cluster_that_is_not_installed_names_the_extra(train, monkeypatch, backend, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r'needs .* pip install "veracal\[cluster\]"'):
        collected(RetrainEngine(TREE, train, train.X, backend=backend))


# ---------------------------------------------------------------- Ray


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    # Sockets have short names: pytest's folder would be too long for them.
    with tempfile.TemporaryDirectory(prefix="r") as folder:
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            _temp_dir=folder,
            logging_level="error",
            log_to_driver=False,
            object_store_memory=80 * 2**20,
        )
        yield ray
        ray.shutdown()


@pytest.mark.long
# Ray leaves files and processes to the garbage collector.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_ray_gives_the_same_scores_and_reports_a_dead_worker(train, expected, ray):
    assert_same(collected(RetrainEngine(TREE, train, train.X, backend="ray")), expected)
    # More jobs than cores would wait for cores forever.
    assert_same(collected(RetrainEngine(TREE, train, train.X, backend="ray", jobs=9)), expected)
    with pytest.raises(RunError, match="Run 3 could not be trained: TwoPartError: one and two"):
        collected(RetrainEngine(broken, train, train.X, backend="ray"))
    with pytest.raises(
        WorkerError, match="A worker of Ray died.*With keep, finished runs are saved"
    ):
        collected(RetrainEngine(partial(ending, exit_worker), train, train.X, backend="ray"))

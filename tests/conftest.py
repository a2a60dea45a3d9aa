"""What every test shares: a generator, folders of data, and the refusal of hidden skips."""

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

_TESTS = itertools.count()
NO_SKIPS = os.environ.get("VERACAL_NO_SKIPS") == "1"


@pytest.fixture(autouse=True, scope="session")
def session_ledgers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No fixture sees the user's default ledgers."""
    folder = tmp_path_factory.mktemp("ledgers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERACAL_LEDGERS", str(folder / "session"))
        yield folder


@pytest.fixture(autouse=True, scope="session")
def quick_rehearsals() -> Iterator[None]:
    """However busy the machine, no question seems to take longer than a deadline allows."""
    stopped = SimpleNamespace(perf_counter=lambda: 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("veracal.federation.source.enrolling.time", stopped)
        patch.setattr("veracal.federation.source.enrolling.time", stopped)
        yield


@pytest.fixture(autouse=True)
def own_ledgers(session_ledgers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the default ledgers of another."""
    # Not made here: most tests need none, and a folder for each of 10,000 takes its time.
    monkeypatch.setenv("VERACAL_LEDGERS", str(session_ledgers / str(next(_TESTS))))


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """A command that runs in this process may leave signals ignored; no test inherits that."""
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator that starts at the same place in every test."""
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder $VERACAL_DATA, where the data sets too large for the repository live."""
    named = os.environ.get("VERACAL_DATA")
    if not named:
        pytest.skip("VERACAL_DATA names no folder of data sets")
    folder = Path(named)
    if not folder.is_dir():
        pytest.skip(f"VERACAL_DATA={named} is not a folder")
    return folder


@pytest.fixture(scope="session")
def data_folder(shared_data) -> Callable[[str], Path]:
    """A function from a name to the path below $VERACAL_DATA, which must exist."""

    def find(name: str) -> Path:
        path = shared_data / name
        if not path.exists():
            pytest.skip(f"VERACAL_DATA has no {name}")
        return path

    return find


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave tests with a browser to the full suite."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.full)


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a report of a skip into one of a failure that gives the skip's reason."""
    # For a skip, pytest keeps (file, line, reason).
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid} may not be skipped (VERACAL_NO_SKIPS=1): {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Refuse skipped tests, except those marked may_skip and expected failures."""
    report = yield
    excused = item.get_closest_marker("may_skip") or hasattr(report, "wasxfail")
    if NO_SKIPS and report.skipped and not excused:
        refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Refuse modules that skip themselves as a whole."""
    report = yield
    if NO_SKIPS and report.skipped:
        refuse_skip(report)
    return report

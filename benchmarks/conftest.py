"""Ledgers for benchmarks, and tables that are printed after the last one."""

from collections.abc import Iterator

import pytest

TABLES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session", autouse=True)
def temporary_ledgers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep default ledgers in a temporary folder, and the user's as they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERACAL_LEDGERS", str(tmp_path_factory.mktemp("ledgers")))
        yield


@pytest.fixture(scope="session")
def tables(pytestconfig: pytest.Config) -> list[str]:
    """Where a benchmark puts the text it wants printed at the end."""
    return pytestconfig.stash.setdefault(TABLES, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print them."""
    for table in terminalreporter.config.stash.get(TABLES, []):
        terminalreporter.write_line("")
        terminalreporter.write_line(table)

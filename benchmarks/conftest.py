"""Tables that benchmarks print once all of them have run."""

import pytest

TABLES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def tables(pytestconfig: pytest.Config) -> list[str]:
    """Where a benchmark puts the text it wants printed at the end."""
    return pytestconfig.stash.setdefault(TABLES, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print them."""
    for table in terminalreporter.config.stash.get(TABLES, []):
        terminalreporter.write_line("")
        terminalreporter.write_line(table)

"""The command line of the tests of commands."""

from tests.cli.conftest import own_folders, run

__all__ = ["own_folders", "run"]

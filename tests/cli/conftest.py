"""A command line that runs in an empty folder."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from veracal.cli import main


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's cache or data, and each starts in an empty folder."""
    monkeypatch.setenv("VERACAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VERACAL_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """A function that runs a command line and returns its exit code, stdout and stderr."""

    def command(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["veracal", *words])
        # A command may leave signals ignored, since its process is about to end.
        before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            with pytest.raises(SystemExit) as left:
                main()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return command

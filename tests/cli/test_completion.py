"""The shell completes commands, options and words, quickly enough to be of use."""

import os
import subprocess
import sys

import pytest

from veracal.cli import _options
from veracal.workflow import config


def completed(line: str) -> list[str]:
    """What bash offers at the end of a line."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    requested = {**os.environ, **words, "_VERACAL_COMPLETE": "complete_bash"}
    command = [sys.executable, "-c", "from veracal.cli import main; main()"]
    done = subprocess.run(command, env=requested, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("veracal e", ["evaluate"]),
        ("veracal ledger ver", ["verify"]),
        ("veracal fit --eps", ["--epsilon"]),
        ("veracal fit digits --method te", ["temperature"]),
        ("veracal fit digits --model o", ["objective", "output"]),
        ("veracal compare --meth", ["--methods"]),
    ],
)
def test_option_values_are_completed(line, offered):
    assert completed(line) == offered


def test_completions_are_the_known_values():
    assert (_options.MODELS, _options.METHODS) == (config.MODELS, config.METHODS)


def test_completion_imports_no_heavy_library():
    code = (
        "import sys, veracal.cli.fit, veracal.cli.compare, veracal.cli.evaluate; "
        "print(sorted({'numpy', 'torch', 'sklearn', 'polars'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

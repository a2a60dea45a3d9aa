"""How long does `veracal --help` take, compared with importing its toolkit alone?"""

import subprocess
import sys

import pytest

HELP = "import sys; sys.argv = ['veracal', '--help']; from veracal.cli import main; main()"
COMMANDS = {"veracal --help": HELP, "import typer": "import typer; print('Usage')"}


@pytest.mark.benchmark(group="start-up")
@pytest.mark.parametrize("name", COMMANDS)
def test_startup(benchmark, name):
    command = [sys.executable, "-c", COMMANDS[name]]

    done = benchmark.pedantic(
        subprocess.run,
        (command,),
        {"capture_output": True, "text": True, "check": True},
        rounds=5,
        warmup_rounds=1,
    )

    assert "Usage" in done.stdout

"""The command line: parse, call one library function, print."""

import importlib
import signal
import sys
import threading
from collections.abc import Mapping
from types import FrameType, MappingProxyType
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from veracal import __version__
from veracal.cli._output import drop_stdout, prepare_streams, status
from veracal.errors import VeracalError

# Groups of commands and the modules that hold them. A module is imported when it is asked
# for, and imports the library when one of its commands runs.
GROUPS: Mapping[str, str] = MappingProxyType(
    {
        "data": "veracal.cli.data",
        "schema": "veracal.cli.schema",
        "plan": "veracal.cli.plan",
        "ledger": "veracal.cli.ledger",
        "source": "veracal.cli.source",
        "federation": "veracal.cli.federation",
    }
)
# Commands of their own.
COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "fit": "veracal.cli.fit",
        "predict": "veracal.cli.predict",
        "evaluate": "veracal.cli.evaluate",
        "recalibrate": "veracal.cli.recalibrate",
        "compare": "veracal.cli.compare",
        "audit": "veracal.cli.audit",
        "report": "veracal.cli.report",
        "doctor": "veracal.cli.doctor",
    }
)


class _LateGroups(TyperGroup):
    """Finds a command, or a group of them, only when it is named or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name every command, in the order of a day's work."""
        return [*super().list_commands(ctx), *GROUPS, *COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command."""
        module = GROUPS.get(cmd_name) or COMMANDS.get(cmd_name)
        if module is None:
            return super().get_command(ctx, cmd_name)
        command = typer.main.get_command(importlib.import_module(module).app)
        command.name = cmd_name
        return command


# Typer's own tracebacks print local variables, and those may be records.
app = typer.Typer(
    cls=_LateGroups,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        typer.echo(f"veracal {__version__}")
        raise typer.Exit


@app.callback()
def veracal(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version and leave.",
        ),
    ] = False,
) -> None:
    """Private classifiers whose confidence can be believed.

    Start with:  veracal data show breast-cancer
    """


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Stop, on Ctrl-C, once no module is being imported.

    Compiled modules turn an exception that meets their import into an error of their own, or
    lose it, and the command would go on. Who presses it a second time does not wait.
    """
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            signal.signal(signal.SIGALRM, _interrupted)  # to be called again soon
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            return
        frame = frame.f_back
    signal.signal(signal.SIGINT, _interrupted)
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line: 0 done, 1 an error we foresaw, 2 wrong usage."""
    prepare_streams()
    # Where there are alarms, that is, not on Windows.
    ours = threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGALRM")
    if ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    try:
        app(prog_name="veracal")
    except KeyboardInterrupt:  # outside of the command, which has an answer of its own
        sys.exit(130)
    except VeracalError as error:
        status("error: " + " ".join(str(error).split()))
        sys.exit(1)
    except OSError as error:  # of stdout; files have errors of ours
        drop_stdout()
        status(f"error: the result could not be written: {error.strerror or error}.")
        sys.exit(1)

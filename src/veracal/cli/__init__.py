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
from veracal.cli._output import drop_stdout, prepare_streams, print_status
from veracal.errors import VeracalError

# Groups of commands and their modules. A module is imported when its command is named, and
# imports the library when the command runs.
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
# Single commands.
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


class _LazyGroup(TyperGroup):
    """Imports a command, or a group of commands, only when it is named or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in the order of a typical workflow."""
        return [*super().list_commands(ctx), *GROUPS, *COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command."""
        module = GROUPS.get(cmd_name) or COMMANDS.get(cmd_name)
        if module is None:
            return super().get_command(ctx, cmd_name)
        command = typer.main.get_command(importlib.import_module(module).app)
        command.name = cmd_name
        return command


# Tracebacks of Typer print local variables, which may contain records.
app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(show: bool) -> None:
    """Print the version and exit."""
    if show:
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
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Private classifiers with calibrated probabilities and audited decisions.

    Start with:  veracal data show breast-cancer
    """


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt on Ctrl-C, but not while a module is being imported.

    An exception during the import of a compiled module may become another error or be lost,
    and the command would continue. A second Ctrl-C does not wait.
    """
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            signal.signal(signal.SIGALRM, _interrupt)  # try again soon
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            return
        frame = frame.f_back
    signal.signal(signal.SIGINT, _interrupt)
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line. Exit codes: 0 success, 1 a foreseen error, 2 wrong usage."""
    prepare_streams()
    # Alarms do not exist on Windows.
    can_defer = threading.current_thread() is threading.main_thread() and hasattr(
        signal, "SIGALRM"
    )
    if can_defer and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        app(prog_name="veracal")
    except KeyboardInterrupt:  # outside of the command, which handles it itself
        sys.exit(130)
    except VeracalError as error:
        print_status("error: " + " ".join(str(error).split()))
        sys.exit(1)
    except OSError as error:  # of stdout; errors of files are VeracalErrors
        drop_stdout()
        print_status(f"error: the result could not be written: {error.strerror or error}.")
        sys.exit(1)

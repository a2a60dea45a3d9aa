"""The command line: parse, call one library function, print."""

import codecs
import importlib
import io
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from veracal import __version__
from veracal.cli._output import escape_character, print_status
from veracal.errors import VeracalError

# Groups of commands, and single commands. A module is imported when its command is named, and
# imports the library when the command runs.
GROUPS = {
    name: f"veracal.cli.{name}"
    for name in ("data", "schema", "plan", "ledger", "source", "federation")
}
COMMANDS = {
    name: f"veracal.cli.{name}"
    for name in (
        "fit", "predict", "evaluate", "recalibrate", "compare", "audit", "report", "doctor",
    )
}  # fmt: skip


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
    # A closed stream discards its output; characters that an encoding lacks are escaped.
    codecs.register_error("veracal-escape", _escape_unencodable)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="veracal-escape")
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
        with suppress(OSError, ValueError):  # flushing at exit must not fail again
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, sys.stdout.fileno())
            os.close(devnull)
        print_status(f"error: the result could not be written: {error.strerror or error}.")
        sys.exit(1)


def _escape_unencodable(error: UnicodeError) -> tuple[str, int]:
    """Escape the characters that could not be encoded."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(escape_character, error.object[error.start : error.end])), error.end

"""What a command shows of institutions elsewhere: the plan, each round, the result."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from veracal.calibration.recalibration.result import Recalibration
from veracal.cli import _show
from veracal.cli._federating import map_lines
from veracal.cli._figures import plain
from veracal.cli._released import figures_of
from veracal.cli._repair_show import sides_table
from veracal.federation.calibrator.federated import Heard
from veracal.federation.calibrator.running import Charged, SourcePlan
from veracal.privacy.costs.statement import rounded_down, rounded_up

if TYPE_CHECKING:
    from rich.console import Group

ON_THEIRS = "the institutions' records"
Watch = Callable[[Heard], None]


def show_plan(plan: Sequence[SourcePlan], method: str) -> None:
    """Say, before anybody is asked, what each will be asked and what it pays."""
    from rich.console import Console

    rows = [
        (
            one.name,
            f"{one.answers}" + (f" ({one.known} known)" if one.known else ""),
            _cost(one.epsilon, one.delta),
            rounded_down(one.left, 6),
            "yes" if one.why is None else f"no: {one.why}",
        )
        for one in plan
    ]
    heads = ("institution", "answers", "cost in all", "left before", "can pay")
    table = _show.table(f"The plan ({method})", heads, rows, right=heads[1:4])
    width = None if sys.stderr.isatty() else 100
    Console(stderr=True, width=width, highlight=False).print(table)


class Board:
    """What is known of every institution while rounds go on.

    Parameters
    ----------
    names : sequence of str
    rounds : int
        How many there will be, at most.
    """

    def __init__(self, names: Sequence[str], rounds: int) -> None:
        self._names, self._rounds = list(names), rounds
        self._last: list[Heard | None] = [None] * len(self._names)
        self._answers = [0] * len(self._names)

    def note(self, heard: Heard) -> str:
        """Take note of something; the line that says it."""
        self._last[heard.source] = heard
        if heard.fate == "answered":  # and so did it in every round before
            self._answers[heard.source] = heard.round
        who, why = self._names[heard.source], f": {heard.why}" if heard.why else ""
        where = f"round {heard.round} of {max(self._rounds, heard.round)}, {heard.question}"
        return f"{where}: {who} {heard.fate}{why}"

    def table(self) -> "Group":
        """All of them, as they are now."""
        rows = [
            (name, *self._row(last), f"{answers} of {self._rounds}")
            for name, last, answers in zip(self._names, self._last, self._answers, strict=True)
        ]
        heads = ("institution", "round", "question", "", "answers")
        return _show.table("Asking", heads, rows, right=("round", "answers"))

    def _row(self, last: Heard | None) -> tuple[str, str, str]:
        """Round, question and fate of one of them."""
        if last is None:
            return "", "", "not asked yet"
        why = f": {last.why}" if last.why else ""
        return f"{last.round}", last.question, f"{last.fate}{why}"


@contextmanager
def watching(names: Sequence[str], rounds: int) -> Iterator[Watch]:
    """Show every institution's progress on stderr: a table that changes, or lines of a log."""
    board = Board(names, rounds)
    if not sys.stderr.isatty():
        yield lambda heard: _show.status(board.note(heard))
        return
    from rich.console import Console
    from rich.live import Live

    with Live(board.table(), console=Console(stderr=True), transient=True) as live:

        def watch(heard: Heard) -> None:
            board.note(heard)
            live.update(board.table())

        yield watch


def facts(
    found: Recalibration, plan: Sequence[SourcePlan], each: Sequence[Charged]
) -> dict[str, Any]:
    """Everything as what JSON can hold."""
    written = found.to_json()
    written["temperatures"] = {name: plain(one) for name, one in found.temperatures.items()}
    return {
        **written,
        "figures_on": ON_THEIRS,
        "plan": [asdict(one) for one in plan],
        "institutions": [asdict(one) for one in each],
    }


def show(title: str, found: Recalibration, each: Sequence[Charged]) -> None:
    """Print the map, who answered and at which cost, and figures of both sides."""
    console = _show.console()
    console.print(_show.table(f"{title}: the map", ("", ""), list(map_lines(found))))
    rows = [
        (
            one.name,
            one.why or "answered everything",
            _cost(one.epsilon, one.delta),
            one.unit if one.at_most == 1 else f"{one.unit} (up to {one.at_most})",
            "" if one.head is None else f"{one.head['index']}",
        )
        for one in each
    ]
    heads = ("institution", "", "charged", "for each", "last entry signed")
    note = "Charged as its own ledger counts, whether or not its answers were used."
    console.print(
        _show.table("who was asked", heads, rows, right=("charged", heads[-1]), note=note)
    )
    if found.before is not None and found.after is not None:
        sides = figures_of(found.before), figures_of(found.after)
        note = f"Released with noise, on {ON_THEIRS}: without a map, and with this one."
        console.print(sides_table("before and after", *sides, note=note))


def _cost(epsilon: float, delta: float) -> str:
    """Epsilon, and delta where there is one."""
    at = f", delta {rounded_up(delta)}" if delta else ""
    return f"{rounded_up(epsilon, 6)}{at}"

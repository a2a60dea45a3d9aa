"""Saved classifiers side by side, by what was released of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer

from veracal.accounting import rounded_up
from veracal.cli import _artifacts
from veracal.cli import _output as _show
from veracal.cli._figures import plain
from veracal.data import Estimate

# What must be the same for figures to be comparable, and how to say it.
_SAME = {
    "data": "other data",
    "version": "another version of the records",
    "classes": "other classes",
    "test": "another share for testing",
    "seed": "another split",
    "bins": "other bins",
}
_LOWER_IS_BETTER = {"accuracy": False, "ece": True, "brier": True}


@dataclass(frozen=True)
class ArtifactComparison:
    """Facts of two or more artifacts.

    Attributes
    ----------
    names : tuple of str
    sides : tuple of mapping
        As :func:`veracal.cli._artifacts.facts` gives them.
    one_ledger : bool
        Whether one ledger paid for all of them, so that each promise is that of all.
    """

    names: tuple[str, ...]
    sides: tuple[Mapping[str, Any], ...]
    one_ledger: bool = False

    @property
    def reasons(self) -> list[str]:
        """Why the figures cannot be compared; none if they can."""
        first, *rest = self.sides
        return [
            words
            for name, words in _SAME.items()
            if any(side[name] != first[name] for side in rest)
        ]

    def last(self, side: int) -> Mapping[str, Estimate]:
        """Figures of the finished model."""
        measured = self.sides[side]["measured"]
        return measured.get("after") or next(reversed(measured.values()), {})

    def verdicts(self) -> dict[str, str]:
        """For each figure, which is better than all others, where no interval meets its own."""
        sides = [self.last(i) for i in range(len(self.sides))]
        if self.reasons:
            return {}
        return {
            name: self._verdict(name, [side[name] for side in sides])
            for name in sides[0]
            if all(name in side for side in sides)
        }

    def _verdict(self, name: str, found: Sequence[Estimate]) -> str:
        """The best of some estimates, if their intervals leave one."""
        sign = 1 if _LOWER_IS_BETTER[name] else -1
        for i, one in enumerate(found):
            if all(_below(one, other, sign) for j, other in enumerate(found) if j != i):
                return self.names[i]
        return "cannot be told apart"

    def together(self) -> tuple[float, float] | None:
        """Most that all releases cost whoever is in all; None if they protect differently.

        Epsilons and deltas add up (Dwork and Roth 2014, Theorem 3.16), unless one ledger paid
        for all of them, and each statement is that of the whole.
        """
        first, *rest = self.sides
        if any(side[n] != first[n] for side in rest for n in ("unit", "at_most", "relation")):
            return None
        total = max if self.one_ledger else sum
        return total(s["epsilon"] for s in self.sides), total(s["delta"] for s in self.sides)

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
        total = self.together()
        return {
            "models": [
                {**side, "folder": name, "measured": _plain(side["measured"])}
                for name, side in zip(self.names, self.sides, strict=True)
            ],
            "comparable": not self.reasons,
            "differ": self.reasons,
            "better": self.verdicts(),
            "together": None if total is None else {"epsilon": total[0], "delta": total[1]},
        }


def compared(folders: Sequence[Path], *, one_ledger: bool = False) -> ArtifactComparison:
    """Read some artifacts."""
    sides = [_artifacts.facts(_artifacts.read_results(p), str(p)) for p in folders]
    return ArtifactComparison(tuple(map(str, folders)), tuple(sides), one_ledger)


def _below(one: Estimate, other: Estimate, sign: int) -> bool:
    """Whether an interval lies below another; above it for a sign of -1."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.high < other.low if sign > 0 else one.low > other.high


def show(found: ArtifactComparison) -> None:
    """Print all of them, and what may be concluded."""
    tables = [_in_columns(found)] if len(found.names) == 2 else _in_rows(found)
    for table in tables:
        _show.console().print(table)
    if found.reasons:
        typer.echo(f"\nNot comparable: {', '.join(found.reasons)}.")
    else:
        typer.echo("\nComparable: the same data, split and bins, as far as they tell.")
        for name, better in found.verdicts().items():
            _show.say(f"  {name}: {_verdict(better, found)}")
    _show.say(_cost(found))


def _verdict(better: str, found: ArtifactComparison) -> str:
    """Which is better, and what that rests on."""
    if better not in found.names:
        return f"{better} (intervals meet)"
    return f"{better} is {'better' if len(found.names) == 2 else 'best'} (no interval meets it)"


def _cost(found: ArtifactComparison) -> str:
    """What all of them cost together."""
    total = found.together()
    if total is None:
        return "They protect differently, so that their costs cannot be added."
    most = f"at most epsilon {rounded_up(total[0])} and delta {rounded_up(total[1], 3)}"
    if found.one_ledger:
        return f"All of it together, every model and every figure, costs {most}."
    return (
        "If they were made of the same people's records, each on a ledger of its own, they "
        f"cost them {most} together."
    )


def _in_columns(found: ArtifactComparison) -> object:
    """Two models beside each other, everything of them below."""

    def line(head: str, words: Callable[[Mapping[str, Any]], str]) -> tuple[str, ...]:
        return head, *(words(side) for side in found.sides)

    rows = [
        line("data", lambda side: side["data"]),
        line("protects", _artifacts.protected),
        line("cost", _artifacts.cost),
        line("model", lambda side: side["model"]),
        line("map", lambda side: side["map"]),
        line("test share, bins", lambda side: f"{side['test']:.0%}, {side['bins']}"),
    ]
    rows += [
        line(f"{name} {when}", partial(_figure, when, name))
        for when in ("before", "after")
        for name in _artifacts.FIGURES
    ]
    return _show.table("side by side", ("", *found.names), rows)


def _in_rows(found: ArtifactComparison) -> list[object]:
    """Many models below each other: what they are, and figures after the map."""
    named = list(zip(found.names, found.sides, strict=True))
    what = [
        (name, side["model"], side["map"], _artifacts.protected(side), _artifacts.cost(side))
        for name, side in named
    ]
    figures = [
        (name, *(_figure("after", each, side) for each in _artifacts.FIGURES))
        for name, side in named
    ]
    heads = ("", "model", "map", "protects", "cost")
    note = "Released with noise, on records that nobody trained on; intervals count the noise."
    return [
        _show.table("side by side", heads, what),
        _show.table("after the map", ("", *_artifacts.FIGURES), figures, note=note),
    ]


def _figure(when: str, name: str, side: Mapping[str, Any]) -> str:
    """A figure of one side, with its interval."""
    return _artifacts.shown(side["measured"].get(when, {}).get(name))


def _plain(measured: Mapping[str, Mapping[str, Estimate]]) -> dict[str, Any]:
    """Figures as what JSON can hold."""
    return {w: {name: plain(one) for name, one in e.items()} for w, e in measured.items()}

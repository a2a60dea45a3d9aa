"""Two saved classifiers side by side, by what was released of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from veracal.cli import _artifacts, _show
from veracal.cli._figures import plain
from veracal.data import Estimate
from veracal.privacy.costs.statement import rounded_up

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
class Compared:
    """Facts of two artifacts.

    Attributes
    ----------
    names : pair of str
    sides : pair of mapping
        As :func:`veracal.cli._artifacts.facts` gives them.
    """

    names: tuple[str, str]
    sides: tuple[Mapping[str, Any], Mapping[str, Any]]

    @property
    def reasons(self) -> list[str]:
        """Why the figures cannot be compared; none if they can."""
        one, two = self.sides
        return [words for name, words in _SAME.items() if one[name] != two[name]]

    def last(self, side: int) -> Mapping[str, Estimate]:
        """Figures of the finished model."""
        measured = self.sides[side]["measured"]
        return measured.get("after") or next(reversed(measured.values()), {})

    def verdicts(self) -> dict[str, str]:
        """For each figure, which of the two is better, where intervals do not meet."""
        one, two = self.last(0), self.last(1)
        return {
            name: self._verdict(name, one[name], two[name])
            for name in one
            if name in two and not self.reasons
        }

    def _verdict(self, name: str, one: Estimate, two: Estimate) -> str:
        """The better of two estimates, if their intervals leave one."""
        ends = (one.low, one.high, two.low, two.high)
        if None in ends or (one.low <= two.high and two.low <= one.high):  # type: ignore[operator]
            return "cannot be told apart"
        first_is_lower = one.high < two.low  # type: ignore[operator]
        return self.names[0 if first_is_lower is _LOWER_IS_BETTER[name] else 1]

    def together(self) -> tuple[float, float] | None:
        """Most that both releases cost whoever is in both; None if they protect differently.

        Epsilons and deltas add up (Dwork and Roth 2014, Theorem 3.16).
        """
        one, two = self.sides
        if any(one[name] != two[name] for name in ("unit", "at_most", "relation")):
            return None
        return one["epsilon"] + two["epsilon"], one["delta"] + two["delta"]

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


def compared(first: Path, second: Path) -> Compared:
    """Read two artifacts."""
    read = [_artifacts.facts(_artifacts.read_results(p), str(p)) for p in (first, second)]
    return Compared((str(first), str(second)), (read[0], read[1]))


def show(found: Compared) -> None:
    """Print both, and what may be concluded."""
    heads = ("", *found.names) if len(set(found.names)) > 1 else ("", "A", "B")
    _show.console().print(_show.table("side by side", heads, list(_rows(found))))
    if found.reasons:
        typer.echo(f"\nNot comparable: {', '.join(found.reasons)}.")
    else:
        typer.echo("\nComparable: the same data, split and bins, as far as both tell.")
        for name, better in found.verdicts().items():
            told = better if better not in found.names else f"{better} is better"
            _show.say(f"  {name}: {told}" + _why(better, found))
    _show.say(_cost(found))


def _why(better: str, found: Compared) -> str:
    """What a verdict rests on."""
    return " (intervals do not meet)" if better in found.names else " (intervals meet)"


def _cost(found: Compared) -> str:
    """What both cost together."""
    total = found.together()
    if total is None:
        return "They protect differently, so that their costs cannot be added."
    return (
        "If both were made of the same people's records, each on a ledger of its own, they "
        f"cost them at most epsilon {rounded_up(total[0])} and delta "
        f"{rounded_up(total[1], 3)} together."
    )


def _rows(found: Compared) -> Iterator[tuple[str, str, str]]:
    """Lines of the table."""

    def line(head: str, words: Any) -> tuple[str, str, str]:
        return head, words(found.sides[0]), words(found.sides[1])

    yield line("data", lambda side: side["data"])
    yield line("protects", _artifacts.protected)
    yield line("cost", _artifacts.cost)
    yield line("model", lambda side: side["model"])
    yield line("map", lambda side: side["map"])
    yield line("test share, bins", lambda side: f"{side['test']:.0%}, {side['bins']}")
    for when in ("before", "after"):
        for name in _artifacts.FIGURES:
            sides = [side["measured"].get(when, {}).get(name) for side in found.sides]
            yield f"{name} {when}", _artifacts.shown(sides[0]), _artifacts.shown(sides[1])


def _plain(measured: Mapping[str, Mapping[str, Estimate]]) -> dict[str, Any]:
    """Figures as what JSON can hold."""
    return {w: {name: plain(one) for name, one in e.items()} for w, e in measured.items()}

"""Saved classifiers side by side, from their released results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer

from veracal.accounting import format_up
from veracal.cli import _artifacts, _output
from veracal.cli._figures import estimate_to_json
from veracal.data import Estimate

# Settings that must agree for figures to be comparable, and how to say that they differ.
_SAME = {
    "data": "other data",
    "version": "another version of the records",
    "classes": "other classes",
    "test": "another share for testing",
    "split_key": "another split",
    "bins": "other bins",
}
_LOWER_IS_BETTER = {"accuracy": False, "ece": True, "brier": True}
_NO_DIFFERENCE = "no significant difference"


@dataclass(frozen=True)
class ArtifactComparison:
    """Two or more artifacts side by side.

    Attributes
    ----------
    names : tuple of str
    artifacts : tuple of mapping
        As :func:`veracal.cli._artifacts.facts` returns them.
    one_ledger : bool
        Whether one ledger paid for all of them, so that each statement covers all.
    """

    names: tuple[str, ...]
    artifacts: tuple[Mapping[str, Any], ...]
    one_ledger: bool = False

    @property
    def reasons(self) -> list[str]:
        """Reasons why the figures cannot be compared; none if they can."""
        first, *rest = self.artifacts
        return [
            words
            for name, words in _SAME.items()
            if any(other[name] != first[name] for other in rest)
        ]

    def final_figures(self, i: int) -> Mapping[str, Estimate]:
        """Figures of a finished model."""
        measured = self.artifacts[i]["measured"]
        return measured.get("after") or next(reversed(measured.values()), {})

    def verdicts(self) -> dict[str, str]:
        """For each figure, the model whose interval lies beyond those of all others."""
        figures = [self.final_figures(i) for i in range(len(self.artifacts))]
        if self.reasons:
            return {}
        return {
            name: self._best(name, [each[name] for each in figures])
            for name in figures[0]
            if all(name in each for each in figures)
        }

    def _best(self, name: str, estimates: Sequence[Estimate]) -> str:
        """The best of several estimates, if the intervals determine it."""
        sign = 1 if _LOWER_IS_BETTER[name] else -1
        for i, one in enumerate(estimates):
            if all(_is_beyond(one, other, sign) for j, other in enumerate(estimates) if j != i):
                return self.names[i]
        return _NO_DIFFERENCE

    def total_cost(self) -> tuple[float, float] | None:
        """Epsilon and delta of all releases for an individual in all data sets.

        Epsilons and deltas add up (Dwork and Roth 2014, Theorem 3.16), unless one ledger paid
        for all of them, where each statement covers the whole. None if the models protect
        different units.
        """
        first, *rest = self.artifacts
        if any(other[n] != first[n] for other in rest for n in ("unit", "at_most", "relation")):
            return None
        total = max if self.one_ledger else sum
        return (
            total(each["epsilon"] for each in self.artifacts),
            total(each["delta"] for each in self.artifacts),
        )

    def to_json(self) -> dict[str, Any]:
        """The comparison as values that JSON can hold."""
        total = self.total_cost()
        return {
            "models": [
                {
                    **each,
                    "folder": name,
                    "measured": {
                        when: {figure: estimate_to_json(one) for figure, one in figures.items()}
                        for when, figures in each["measured"].items()
                    },
                }
                for name, each in zip(self.names, self.artifacts, strict=True)
            ],
            "comparable": not self.reasons,
            "differ": self.reasons,
            "better": self.verdicts(),
            "together": None if total is None else {"epsilon": total[0], "delta": total[1]},
        }


def load_comparison(folders: Sequence[Path], *, one_ledger: bool = False) -> ArtifactComparison:
    """Read the artifacts to compare."""
    artifacts = [_artifacts.facts(_artifacts.read_results(p), str(p)) for p in folders]
    return ArtifactComparison(tuple(map(str, folders)), tuple(artifacts), one_ledger)


def _is_beyond(one: Estimate, other: Estimate, sign: int) -> bool:
    """Whether an interval lies below another (``sign`` 1), or above it (-1)."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.high < other.low if sign > 0 else one.low > other.high


def show(comparison: ArtifactComparison) -> None:
    """Print all artifacts, and the conclusions."""
    names = comparison.names
    tables = [_columns(comparison)] if len(names) == 2 else _rows(comparison)
    for table in tables:
        _output.console().print(table)
    if comparison.reasons:
        typer.echo(f"\nNot comparable: {', '.join(comparison.reasons)}.")
    else:
        typer.echo("\nComparable: they report the same data, split and bins.")
        word = "better" if len(names) == 2 else "best"
        for name, best in comparison.verdicts().items():
            verdict = (
                f"{best} is {word} (its interval overlaps no other)"
                if best in names
                else f"{best} (intervals overlap)"
            )
            _output.print_line(f"  {name}: {verdict}")
    total = comparison.total_cost()
    if total is None:
        _output.print_line("They protect different units, so their costs cannot be added.")
        return
    most = f"at most epsilon {format_up(total[0])} and delta {format_up(total[1], 3)}"
    if comparison.one_ledger:
        _output.print_line(f"All models and all figures together cost {most}.")
    else:
        _output.print_line(
            "If they were trained on records of the same individuals, each on a ledger of its "
            f"own, they cost {most} together."
        )


def _columns(comparison: ArtifactComparison) -> object:
    """Two models in columns."""

    def line(head: str, words: Callable[[Mapping[str, Any]], str]) -> tuple[str, ...]:
        return head, *(words(each) for each in comparison.artifacts)

    rows = [
        line("data", lambda each: each["data"]),
        line("protects", _artifacts.protected),
        line("cost", _artifacts.cost),
        line("model", lambda each: each["model"]),
        line("map", lambda each: each["map"]),
        line("test share, bins", lambda each: f"{each['test']:.0%}, {each['bins']}"),
    ]
    rows += [
        line(f"{name} {when}", partial(_figure, when, name))
        for when in ("before", "after")
        for name in _artifacts.FIGURES
    ]
    return _output.table("side by side", ("", *comparison.names), rows)


def _rows(comparison: ArtifactComparison) -> list[object]:
    """Many models in rows: their settings, and their figures after the map."""
    named = list(zip(comparison.names, comparison.artifacts, strict=True))
    settings = [
        (name, each["model"], each["map"], _artifacts.protected(each), _artifacts.cost(each))
        for name, each in named
    ]
    figures = [
        (name, *(_figure("after", figure, each) for figure in _artifacts.FIGURES))
        for name, each in named
    ]
    heads = ("", "model", "map", "protects", "cost")
    return [
        _output.table("side by side", heads, settings),
        _output.table(
            "after the map", ("", *_artifacts.FIGURES), figures, note=_artifacts.NOISY_NOTE
        ),
    ]


def _figure(when: str, name: str, artifact: Mapping[str, Any]) -> str:
    """A figure of one artifact, with its interval."""
    return _artifacts.format_estimate(artifact["measured"].get(when, {}).get(name))

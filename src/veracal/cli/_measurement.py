"""Measurements of commands: private figures with noise, and internal figures without."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import typer

from veracal.calibration import (
    MeasurementPlan,
    PrivateFigures,
    PrivateMeasurement,
    ReliabilityCurve,
    StreamTotals,
    ece,
    measure,
    plan_measurement,
)
from veracal.cli import _output, _predictions
from veracal.cli._figures import (
    BY_GROUP,
    WORDS,
    Groups,
    choose_characters,
    draw_curve,
    estimate_to_json,
    figure_table,
    group_tables,
)
from veracal.data import Estimate, Scores, by_group
from veracal.errors import DataError, VeracalError
from veracal.report import drawable

FIGURES = ("accuracy", "ece", "brier")


def plan_queries(settings: Mapping[str, Any], hint: str) -> MeasurementPlan:
    """Plan the queries of a measurement; an error names the option ``hint``."""
    try:
        return plan_measurement(**settings)
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from error


def one_group(groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Settings for the group of a private measurement, which has one at most."""
    if len(groups) > 1:
        raise typer.BadParameter(
            "Name at most one, because figures are released with noise.", param_hint="--group"
        )
    name, names = next(iter(groups.items()), (None, ()))
    return {"group": name, "group_names": names}


def figures_of(figures: PrivateFigures) -> dict[str, Estimate]:
    """The figures that were measured, by name."""
    estimates = {name: getattr(figures, name) for name in ("count", *FIGURES)}
    return {name: estimate for name, estimate in estimates.items() if estimate is not None}


def show(title: str, measured: PrivateMeasurement) -> None:
    """Print the released figures, overall and by group, and the curve if there is one."""
    console, overall = _output.console(), measured.overall
    note = "Intervals account for the noise and for sampling."
    if overall.ece_floor is not None:
        note += f"\nA calibrated classifier shows an ece of {overall.ece_floor:.4f} at most."
    words = {**WORDS, "count": "records"}
    console.print(figure_table(title, figures_of(overall), words=words, note=note))
    if measured.plan.groups is not None:
        groups: Groups = {
            name: (each.count.n, figures_of(each)) for name, each in measured.groups.items()
        }
        for table in group_tables({measured.plan.groups.name: groups}, {}, note=""):
            console.print(table)
    if overall.curve is not None:
        typer.echo("\n" + draw_curve(drawable(overall.curve), choose_characters()))


PAPER_BINS = 10  # of Zhang et al. 2022, shown beside the usual 15
_WORK = 20_000_000  # resampled numbers before replicates become fewer
_REPLICATES, _MIN_REPLICATES = 100, 20  # replicates
_STREAMED = (
    "accuracy", "nll", "brier", "top_label_brier", "ece", "mce",
    "over_confidence", "under_confidence", "confidence_gap",
)  # fmt: skip


@dataclass(frozen=True)
class InternalMeasurement:
    """Exact figures of a file.

    Attributes
    ----------
    kind : 'logits' or 'probabilities'
    n, n_classes, bins : int
    figures, floors : mapping of str to Estimate
    paper : Estimate
        The calibration error over ten bins.
    curve : ReliabilityCurve
    groups : mapping of attribute to Groups
    gaps : mapping of attribute to Estimate
        Largest difference of the calibration error between groups.
    """

    kind: str
    n: int
    n_classes: int
    bins: int
    figures: Mapping[str, Estimate]
    paper: Estimate
    curve: ReliabilityCurve
    floors: Mapping[str, Estimate] = field(default_factory=dict)
    groups: Mapping[str, Groups] = field(default_factory=dict)
    gaps: Mapping[str, Estimate] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The figures as values that JSON can hold, with a note that they are internal."""
        return {
            "note": _predictions.INTERNAL,
            "n": self.n,
            "n_classes": self.n_classes,
            "bins": self.bins,
            "figures": _plain(self.figures),
            f"ece_{PAPER_BINS}_bins": estimate_to_json(self.paper),
            "floors": _plain(self.floors),
            "curve": self.curve.to_json(),
            "groups": {
                name: {value: {"n": n, **_plain(group)} for value, (n, group) in each.items()}
                for name, each in self.groups.items()
            },
            "gaps": _plain(self.gaps),
        }

    def show(self, file: str) -> None:
        """Print tables, and the curve below them."""
        records = f"{self.kind} of {self.n:,} records for {self.n_classes:,} classes"
        title = f"{file}: {records}, {self.bins} bins"
        figures: dict[str, Estimate] = {}
        for name, estimate in self.figures.items():
            figures[name] = estimate
            if name == "ece" and self.bins != PAPER_BINS:
                figures[f"ece, {PAPER_BINS} bins"] = self.paper
        console = _output.console()
        console.print(figure_table(title, figures, self.floors))
        for one in group_tables(self.groups, self.gaps):
            console.print(one)
        typer.echo("\n" + draw_curve(drawable(self.curve), choose_characters()))


def measure_scores(
    scores: Scores, bins: int, level: float, replicates: int
) -> InternalMeasurement:
    """Measure all figures of scores."""
    # A fixed seed: nothing is released, so the randomness need not be secret.
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {"level": level, "replicates": replicates, "rng": rng}
    result = measure(scores, bins=bins, **given)
    gaps = {}
    if replicates:
        of_bins = partial(ece, bins=bins)
        gaps = {name: by_group(of_bins, scores, name, **given).gap() for name in scores.groups}
    return InternalMeasurement(
        scores.kind,
        len(scores),
        scores.n_classes,
        bins,
        result.figures,
        measure(scores, figures=["ece"], bins=PAPER_BINS, **given)["ece"],
        result.curve,
        result.floors,
        {name: _groups(scores, name, bins, given) for name in scores.groups},
        gaps,
    )


def _groups(scores: Scores, name: str, bins: int, given: Mapping[str, Any]) -> Groups:
    """Figures of each group; none for an empty group."""
    attribute, groups = scores.groups[name], {}
    for code, value in enumerate(attribute.names):
        rows = scores.take(attribute.codes == code)
        figures: Mapping[str, Estimate] = {}
        if len(rows):
            figures = measure(rows, figures=BY_GROUP, bins=bins, **given).figures
        groups[value] = len(rows), figures
    return groups


def measure_stream(
    path: Path, about: Mapping[str, Any], bins: int, level: float
) -> InternalMeasurement:
    """Measure the figures that one pass can compute, keeping no records."""
    totals: dict[tuple[str, ...], StreamTotals] = {}
    for block in _predictions.scan(path, about):
        for key, rows, count in _slices(block, bins):
            part = StreamTotals.of(rows, count)
            totals[key] = totals[key] + part if key in totals else part
    if not totals or not totals[()].n:
        raise DataError(str(path), "at least one record", "none", "Name a file with records.")
    groups: dict[str, dict[str, tuple[int, Mapping[str, Estimate]]]] = {}
    for key, part in totals.items():
        if len(key) == 2:
            groups.setdefault(key[0], {})[key[1]] = part.n, _stream_figures(part, level)
    whole = totals[()]
    return InternalMeasurement(
        whole.kind,
        whole.n,
        len(whole.classes),
        bins,
        _stream_figures(whole, level),
        _stream_figures(totals[_PAPER], level)["ece"],
        whole.curve(level=level),
        groups=groups,
    )


_PAPER = ("paper",)


def _slices(block: Scores, bins: int) -> Iterator[tuple[tuple[str, ...], Scores, int]]:
    """The parts of a block to total separately: all, with the paper's bins, and each group."""
    yield (), block, bins
    yield _PAPER, block, PAPER_BINS
    for name, attribute in block.groups.items():
        for code, value in enumerate(attribute.names):
            yield (name, value), block.take(attribute.codes == code), bins


def _stream_figures(totals: StreamTotals, level: float) -> dict[str, Estimate]:
    """Figures of a stream, which have no intervals; none without records."""
    if not totals.n:
        return {}
    return {
        name: Estimate(getattr(totals, name), None, None, level, totals.n) for name in _STREAMED
    }


def replicates_for(scores: Scores) -> int:
    """Default number of bootstrap replicates, smaller for many records."""
    replicates = min(_REPLICATES, _WORK // max(1, scores.values.size))
    if replicates >= _MIN_REPLICATES:
        return replicates
    _output.print_status(
        "Without intervals, which would take long; --replicates 20 computes them."
    )
    return 0


def _plain(figures: Mapping[str, Estimate]) -> dict[str, Any]:
    """Figures as values that JSON can hold."""
    return {name: estimate_to_json(estimate) for name, estimate in figures.items()}

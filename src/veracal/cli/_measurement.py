"""Figures released with noise: charged, then shown.

Figures of records as they are: measured at once or in one pass, shown as internal.
"""

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
from veracal.cli import _output as _show
from veracal.cli import _predictions
from veracal.cli._figures import (
    BY_GROUP,
    WORDS,
    Groups,
    drawn,
    figure_table,
    group_tables,
    marks,
    plain,
)
from veracal.data import Estimate, Scores, by_group
from veracal.errors import DataError, VeracalError
from veracal.report import drawable

FIGURES = ("accuracy", "ece", "brier")


def planned(given: Mapping[str, Any], hint: str) -> MeasurementPlan:
    """Questions of a measurement, or an error about the option that was wrong."""
    try:
        return plan_measurement(**given)
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from error


def one_group(groups: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The group to tell apart, of which a private measurement has one at most."""
    if len(groups) > 1:
        raise typer.BadParameter(
            "name one at most where figures are released with noise.", param_hint="--group"
        )
    name, names = next(iter(groups.items()), (None, ()))
    return {"group": name, "group_names": names}


def figures_of(found: PrivateFigures) -> dict[str, Estimate]:
    """Figures that were asked for, by name."""
    each = {name: getattr(found, name) for name in ("count", *FIGURES)}
    return {name: estimate for name, estimate in each.items() if estimate is not None}


def show(title: str, measured: PrivateMeasurement) -> None:
    """Print what was released, overall and by group, and the curve if there is one."""
    console, overall = _show.console(), measured.overall
    note = "Intervals count the noise, and the chance of which records there are."
    if overall.ece_floor is not None:
        note += f"\nA calibrated classifier shows an ece of {overall.ece_floor:.4f} at most."
    words = {**WORDS, "count": "records"}
    console.print(figure_table(title, figures_of(overall), words=words, note=note))
    if measured.plan.groups is not None:
        groups: Groups = {
            name: (found.count.n, figures_of(found)) for name, found in measured.groups.items()
        }
        for table in group_tables({measured.plan.groups.name: groups}, {}, note=""):
            console.print(table)
    if overall.curve is not None:
        typer.echo("\n" + drawn(drawable(overall.curve), marks()))


PAPER_BINS = 10  # of Zhang et al. 2022, shown beside the usual 15
_WORK = 20_000_000  # numbers that are drawn again before replicates become fewer
_USUAL, _FEWEST = 100, 20  # replicates
_STREAMED = (
    "accuracy", "nll", "brier", "top_label_brier", "ece", "mce",
    "over_confidence", "under_confidence", "confidence_gap",
)  # fmt: skip


@dataclass(frozen=True)
class InternalMeasurement:
    """What was measured of a file.

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
        """Everything as what JSON can hold, under a note that it is internal."""
        return {
            "note": _predictions.INTERNAL,
            "n": self.n,
            "n_classes": self.n_classes,
            "bins": self.bins,
            "figures": _plain(self.figures),
            f"ece_{PAPER_BINS}_bins": plain(self.paper),
            "floors": _plain(self.floors),
            "curve": self.curve.to_json(),
            "groups": {
                name: {value: {"n": n, **_plain(found)} for value, (n, found) in each.items()}
                for name, each in self.groups.items()
            },
            "gaps": _plain(self.gaps),
        }

    def show(self, name: str) -> None:
        """Print tables, and the curve below them."""
        records = f"{self.kind} of {self.n:,} records for {self.n_classes:,} classes"
        title = f"{name}: {records}, {self.bins} bins"
        shown: dict[str, Estimate] = {}
        for figure, found in self.figures.items():
            shown[figure] = found
            if figure == "ece" and self.bins != PAPER_BINS:
                shown[f"ece, {PAPER_BINS} bins"] = self.paper
        console = _show.console()
        console.print(figure_table(title, shown, self.floors))
        for one in group_tables(self.groups, self.gaps):
            console.print(one)
        typer.echo("\n" + drawn(drawable(self.curve), marks()))


def measured_scores(
    scores: Scores, bins: int, level: float, replicates: int
) -> InternalMeasurement:
    """Measure all figures of scores."""
    # The same intervals in every run: nothing is released, so nothing needs a secret.
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
    """Some figures of every group; of one that nobody is in, none."""
    attribute, found = scores.groups[name], {}
    for code, value in enumerate(attribute.names):
        rows = scores.take(attribute.codes == code)
        figures: Mapping[str, Estimate] = {}
        if len(rows):
            figures = measure(rows, figures=BY_GROUP, bins=bins, **given).figures
        found[value] = len(rows), figures
    return found


def streamed(
    path: Path, told: Mapping[str, Any], bins: int, level: float
) -> InternalMeasurement:
    """Measure what one pass can tell, keeping no records."""
    totals: dict[tuple[str, ...], StreamTotals] = {}
    for block in _predictions.scan(path, told):
        for key, rows, count in _slices(block, bins):
            part = StreamTotals.of(rows, count)
            totals[key] = totals[key] + part if key in totals else part
    if not totals or not totals[()].n:
        raise DataError(str(path), "at least one record", "none", "Name a file with records.")
    groups: dict[str, dict[str, tuple[int, Mapping[str, Estimate]]]] = {}
    for key, found in totals.items():
        if len(key) == 2:
            groups.setdefault(key[0], {})[key[1]] = found.n, _of_stream(found, level)
    whole = totals[()]
    return InternalMeasurement(
        whole.kind,
        whole.n,
        len(whole.classes),
        bins,
        _of_stream(whole, level),
        _of_stream(totals[_PAPER], level)["ece"],
        whole.curve(level=level),
        groups=groups,
    )


_PAPER = ("paper",)


def _slices(block: Scores, bins: int) -> Iterator[tuple[tuple[str, ...], Scores, int]]:
    """A block whole, with the paper's bins, and by group: what is counted apart."""
    yield (), block, bins
    yield _PAPER, block, PAPER_BINS
    for name, attribute in block.groups.items():
        for code, value in enumerate(attribute.names):
            yield (name, value), block.take(attribute.codes == code), bins


def _of_stream(totals: StreamTotals, level: float) -> dict[str, Estimate]:
    """Figures of a stream, which have no intervals; of nobody, none."""
    if not totals.n:
        return {}
    return {
        name: Estimate(getattr(totals, name), None, None, level, totals.n) for name in _STREAMED
    }


def replicates_for(scores: Scores) -> int:
    """How often records are drawn again, where nobody says: less often if they are many."""
    turns = min(_USUAL, _WORK // max(1, scores.values.size))
    if turns >= _FEWEST:
        return turns
    _show.status("Without intervals, which would take long: ask for them with --replicates 20.")
    return 0


def _plain(figures: Mapping[str, Estimate]) -> dict[str, Any]:
    """Figures as what JSON can hold."""
    return {name: plain(found) for name, found in figures.items()}

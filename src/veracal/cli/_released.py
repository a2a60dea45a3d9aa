"""Figures released with noise: charged, then shown."""

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from veracal.calibration.private import (
    MeasurementPlan,
    PrivateFigures,
    PrivateMeasurement,
    plan_measurement,
)
from veracal.cli import _show
from veracal.cli._curve import drawn, marks
from veracal.cli._figures import WORDS, Groups, figure_table, group_tables
from veracal.data import Estimate
from veracal.errors import VeracalError
from veracal.report.drawable import drawable

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

"""Fitters by the names they have on the command line, and their maps in words.

Files of a command that writes a map and mapped predictions.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import typer

from veracal.accounting import MICRO, Budget
from veracal.calibration import (
    AUTO,
    FORMS,
    METHODS,
    NONE,
    PRIVATE,
    Binned,
    CalibrationMap,
    Identity,
    MapFitter,
    Platt,
    PrivateFitter,
    Settings,
    Temperature,
    TwoTemperatures,
    UniformMixing,
    auto,
    temperatures_of,
)
from veracal.cli import _output as _show
from veracal.cli._output import check_new
from veracal.data import (
    Estimate,
    Scores,
    check_names,
    check_place,
    placed,
    save_scores,
    writer_for,
)
from veracal.queries import Public

_PRIVATE = tuple(name for name in PRIVATE if name != NONE)
# What needs a delta is not fitted without privacy, unless it has a form of its own for that.
_OPEN = (AUTO, *(m.name for m in METHODS.values() if m.openly is not None or not m.needs))
_SHOWN = 8  # numbers of a map that are printed


def check_method(method: str, form: str, *, private: bool) -> None:
    """Refuse names that nothing has, before a file is read."""
    known = _PRIVATE if private else _OPEN
    if method not in known:
        raise typer.BadParameter(
            f"expected one of {', '.join(known)}, got {method!r}.", param_hint="--method"
        )
    if form not in FORMS:
        raise typer.BadParameter(
            f"expected one of {', '.join(FORMS)}, got {form!r}.", param_hint="--form"
        )


def is_gaussian(method: str) -> bool:
    """Whether a method adds Gaussian noise, and so needs a delta."""
    return method != AUTO and "delta" in METHODS[method].needs


def sized() -> list[str]:
    """Names of the methods that make use of a declared number of records."""
    return [AUTO, *(method.name for method in METHODS.values() if method.sized)]


def chosen(method: str, size: int | None, budget: Budget) -> str:
    """The method that 'auto' stands for, by what is declared; others as they are.

    Parameters
    ----------
    method : str
    size : int or None
        Declared number of records.
    budget : Budget
        What the map may cost, and whom that protects.
    """
    if method != AUTO:
        return method
    told = Settings(round(budget.epsilon * MICRO), size=size)
    return auto(told, budget.relation, budget.unit)


def private_fitter(method: str, scores: Scores, settings: Settings) -> PrivateFitter:
    """A fitter that asks a ledger first."""
    return METHODS[method].fitter(settings_for(scores, settings))


def settings_for(scores: Scores, settings: Settings) -> Settings:
    """Settings with what is public about scores: their classes, and what they are."""
    return replace(settings, classes=scores.n_classes, reads=scores.kind)


def temperatures(fitter: PrivateFitter) -> dict[str, Estimate]:
    """Temperatures that were fitted, with intervals; none of other maps."""
    return temperatures_of(fitter)


def open_fitter(method: str, *, form: str, bins: int) -> MapFitter:
    """A fitter that is not private."""
    made = METHODS[method].openly
    assert made is not None
    return made(Settings(MICRO, form=form, bins=bins))  # type: ignore[arg-type]


def open_map(method: str, scores: Scores, settings: Settings) -> CalibrationMap:
    """A map that is not private: fitted to scores as they are, or by exact answers."""
    if METHODS[method].openly is not None and settings.temperatures is None:
        return open_fitter(method, form=settings.form, bins=settings.bins).fit(scores).map_
    fitter: Any = private_fitter(method, scores, settings)
    found: CalibrationMap = fitter.fit(Public(scores)).map_
    return found


def words(map_: CalibrationMap) -> str:
    """A map, as far as it fits on a line."""
    match map_:
        case Identity():
            return "none: scores stay as they are"
        case Temperature():
            return f"temperature {map_.value:.5g} (logits are divided by it)"
        case UniformMixing():
            return f"temperature {map_.value:.5g}, and doubt {map_.doubt:.3g}"
        case TwoTemperatures():
            ends = f"{1 / map_.unsure:.5g} for the unsure, {1 / map_.sure:.5g} for the sure"
            return f"temperatures {ends} (logits are divided by one between them)"
        case Platt():
            return f"weights {_some(map_.weights)}; bias {_some(map_.bias)}"
        case Binned():
            return f"accuracy by bin {_some(map_.accuracies)}"
        case _:
            return map_.kind


def _some(numbers: Any) -> str:
    """The first numbers of an array."""
    flat = np.asarray(numbers, dtype=np.float64).ravel().tolist()
    more = f", … ({len(flat)} numbers)" if len(flat) > _SHOWN else ""
    return _listed(flat[:_SHOWN]) + more


def _listed(numbers: Iterable[float]) -> str:
    """Numbers, shortly."""
    return ", ".join(f"{number:.3g}" for number in numbers)


@dataclass(frozen=True)
class RecalibrationFiles:
    """What a command reads and writes.

    Attributes
    ----------
    predictions, ledger : path
    out, map_out : path or None
        For the mapped predictions and for the map, where they are wanted.
    unit : str
        Column for the ids of units.
    force : bool
        Whether files that are there may be replaced.
    """

    predictions: Path
    ledger: Path
    out: Path | None
    map_out: Path | None
    unit: str = "unit"
    force: bool = False

    def check(self) -> None:
        """Refuse places to write to, before the work and before anything is charged."""
        taken = [os.path.realpath(self.predictions), os.path.realpath(self.ledger)]
        for hint, path in (("--out", self.out), ("--map-out", self.map_out)):
            if path is None:
                continue
            if os.path.realpath(path) in taken:
                raise typer.BadParameter(
                    f"{path} is another file of this command.", param_hint=hint
                )
            taken.append(os.path.realpath(path))
            check_new(path, force=self.force, option=hint)
            check_place(path, force=self.force)
        if self.out is not None:
            writer_for(self.out)

    def check_scores(self, scores: Scores) -> None:
        """Refuse scores that could not be written, before anything is charged."""
        if self.out is not None:
            check_names(scores, self.unit)

    def write(self, map_: CalibrationMap, scores: Scores) -> None:
        """Write what was asked for."""
        if self.map_out is not None:
            save_map(map_, self.map_out, force=self.force)
        if self.out is not None:
            save_scores(map_.transform(scores), self.out, unit=self.unit, force=self.force)
            _show.status(f"Wrote {self.out}; treat it as the records.")

    def written(self) -> dict[str, str | None]:
        """Names of the files that were written, for programs."""
        files = {"out": self.out, "map_out": self.map_out}
        return {name: None if path is None else str(path) for name, path in files.items()}


def save_map(map_: CalibrationMap, path: Path, *, force: bool = False) -> None:
    """Write a map as :func:`veracal.calibration.save_map` does."""
    with placed(path, force=force) as file:
        file.write((json.dumps(map_.to_json(), allow_nan=False) + "\n").encode())

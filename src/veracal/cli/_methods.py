"""Calibration methods and maps on the command line, and the files of a recalibration."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer

from veracal.calibration import (
    AUTO,
    FORMS,
    METHODS,
    NONE,
    Binned,
    CalibrationMap,
    Identity,
    Platt,
    Temperature,
    TwoTemperatures,
    UniformMixing,
    method_names,
)
from veracal.cli import _output as _show
from veracal.cli._output import check_new
from veracal.data import (
    Scores,
    atomic_file,
    check_output_path,
    check_score_columns,
    check_score_suffix,
    save_scores,
)

_MAX_PRINTED = 8  # numbers of a map that are printed


def method_choices(*, private: bool) -> tuple[str, ...]:
    """Methods that ``veracal recalibrate`` accepts, from the registry.

    Without privacy, methods that need a delta are offered only if they have a public fitter.
    """
    if private:
        return tuple(name for name in method_names() if name != NONE)
    return (AUTO, *(m.name for m in METHODS.values() if m.public is not None or not m.requires))


def check_method(method: str, form: str, *, private: bool) -> None:
    """Reject unknown methods and forms before a file is read."""
    choices = method_choices(private=private)
    if method not in choices:
        raise typer.BadParameter(
            f"expected one of {', '.join(choices)}, got {method!r}.", param_hint="--method"
        )
    if form not in FORMS:
        raise typer.BadParameter(
            f"expected one of {', '.join(FORMS)}, got {form!r}.", param_hint="--form"
        )


def needs_delta(method: str) -> bool:
    """Whether a method adds Gaussian noise and needs a delta."""
    return method != AUTO and "delta" in METHODS[method].requires


def methods_with_size() -> list[str]:
    """Names of the methods that use a declared number of records."""
    return [AUTO, *(method.name for method in METHODS.values() if method.uses_size)]


def map_summary(map_: CalibrationMap) -> str:
    """A calibration map in one line."""
    match map_:
        case Identity():
            return "none: the scores are not changed"
        case Temperature():
            return f"temperature {map_.value:.5g} (logits are divided by it)"
        case UniformMixing():
            return (
                f"temperature {map_.value:.5g}, and {map_.uniform_weight:.3g} of the uniform "
                "distribution"
            )
        case TwoTemperatures():
            return (
                f"temperatures {1 / map_.unsure:.5g} (low confidence) to {1 / map_.sure:.5g} "
                "(high confidence)"
            )
        case Platt():
            return f"weights {_first_numbers(map_.weights)}; bias {_first_numbers(map_.bias)}"
        case Binned():
            return f"accuracy by bin {_first_numbers(map_.accuracies)}"
        case _:
            return map_.kind


def _first_numbers(numbers: Any) -> str:
    """The first numbers of an array as text."""
    flat = np.asarray(numbers, dtype=np.float64).ravel().tolist()
    more = f", … ({len(flat)} numbers)" if len(flat) > _MAX_PRINTED else ""
    return ", ".join(f"{number:.3g}" for number in flat[:_MAX_PRINTED]) + more


@dataclass(frozen=True)
class RecalibrationFiles:
    """Input and output files of a recalibration.

    Attributes
    ----------
    predictions, ledger : path
    out, map_out : path or None
        Output files of the mapped predictions and of the map; None: not written.
    unit : str
        Name of the column of unit ids.
    force : bool
        Whether existing files may be replaced.
    """

    predictions: Path
    ledger: Path
    out: Path | None
    map_out: Path | None
    unit: str = "unit"
    force: bool = False

    def check(self) -> None:
        """Reject output paths that cannot be written before anything is charged."""
        used = [os.path.realpath(self.predictions), os.path.realpath(self.ledger)]
        for hint, path in (("--out", self.out), ("--map-out", self.map_out)):
            if path is None:
                continue
            if os.path.realpath(path) in used:
                raise typer.BadParameter(
                    f"{path} is already another file of this command.", param_hint=hint
                )
            used.append(os.path.realpath(path))
            check_new(path, force=self.force, option=hint)
            check_output_path(path, force=self.force)
        if self.out is not None:
            check_score_suffix(self.out)

    def check_scores(self, scores: Scores) -> None:
        """Reject scores that cannot be written, before anything is charged."""
        if self.out is not None:
            check_score_columns(scores, self.unit)

    def write(self, map_: CalibrationMap, scores: Scores) -> None:
        """Write the output files."""
        if self.map_out is not None:
            save_map(map_, self.map_out, force=self.force)
        if self.out is not None:
            save_scores(map_.transform(scores), self.out, unit=self.unit, force=self.force)
            _show.print_status(f"Wrote {self.out}; protect it like the records.")

    def to_json(self) -> dict[str, str | None]:
        """Paths of the output files as JSON values."""
        files = {"out": self.out, "map_out": self.map_out}
        return {name: None if path is None else str(path) for name, path in files.items()}


def save_map(map_: CalibrationMap, path: Path, *, force: bool = False) -> None:
    """Write a map like :func:`veracal.calibration.save_map`; ``force`` replaces a file."""
    with atomic_file(path, force=force) as file:
        file.write((json.dumps(map_.to_json(), allow_nan=False) + "\n").encode())

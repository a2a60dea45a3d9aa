"""Files of a command that writes a map and mapped predictions."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import typer

from veracal.calibration.maps import Map
from veracal.cli import _show
from veracal.cli._places import check_new
from veracal.data import Scores, save_scores
from veracal.data.files import check_place, placed
from veracal.data.saving_scores import check_names, writer_for


@dataclass(frozen=True)
class Files:
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

    def write(self, map_: Map, scores: Scores) -> None:
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


def save_map(map_: Map, path: Path, *, force: bool = False) -> None:
    """Write a map as :func:`veracal.calibration.maps.save_map` does."""
    with placed(path, force=force) as file:
        file.write((json.dumps(map_.to_json(), allow_nan=False) + "\n").encode())

"""What the institutions of one file answer, charged to the ledger of that file as well.

A map fitted by several institutions whose predictions lie in one file.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import typer

from veracal.accounting import MICRO, Approximate, Budget, Pure, Unit, rounded_down, rounded_up
from veracal.calibration import BudgetDivision as Division
from veracal.calibration import (
    Identity,
    Recalibration,
    RecalibrationSteps,
    SourceProfile,
    check_affordable,
    choose_method,
    plan_steps,
    run_steps,
)
from veracal.cli import _methods, _predictions
from veracal.cli import _output as _show
from veracal.cli import _payment as _paying
from veracal.cli._figures import plain
from veracal.cli._measurement import figures_of
from veracal.cli._methods import RecalibrationFiles
from veracal.cli._output import is_there
from veracal.cli._recalibrate_local import (
    FITTED_ON,
    LocalBudget,
    Sides,
    internal_facts,
    internal_sides,
    show_internal,
    sides_table,
)
from veracal.data import Scores, load_scores
from veracal.errors import BudgetError, DataError, LedgerError, VeracalError
from veracal.ledger import Ledger, open_for_data, restore_data_note
from veracal.queries import Curator, Pool

if TYPE_CHECKING:
    from veracal.cli.recalibrate import Fit


PURPOSE = "recalibration by institutions"


@dataclass(frozen=True)
class DataCharge:
    """What one unit pays for a map, in the ledger of the file that the records are in.

    Each record is at one institution, and pays there. A unit with several rows pays at each of
    the institutions where it has some.

    Attributes
    ----------
    place : Path
        The default ledger of the file. If there is none, :meth:`charge` opens it.
    data : Path
        The file.
    micro_epsilon : int
        What one unit pays at one institution.
    delta : float
    at_sources : int
        Number of institutions at which one unit may have rows.
    """

    place: Path
    data: Path
    micro_epsilon: int
    delta: float
    at_sources: int

    def require(self, protects: Budget) -> None:
        """Raise what a charge that was not made before would raise, and write nothing."""
        if is_there(self.place):
            ledger = Ledger(self.place)
            ledger.require(self._event(ledger, protects), PURPOSE)

    def charge(self, question: Mapping[str, Any], ledgers: Sequence[Ledger]) -> Ledger:
        """Charge what is about to be asked, unless the same ledgers were asked it before.

        Parameters
        ----------
        question : mapping
            Everything that tells this question from another.
        ledgers : sequence of Ledger
            Of the institutions. A ledger that was made anew answers with new noise, so the
            charge is made again.

        Returns
        -------
        Ledger
            Of the data set.

        Raises
        ------
        BudgetError
            If it does not fit into what is left; nothing is charged.
        LedgerError
            If it protects others than the institutions' ledgers do.
        """
        if not is_there(self.place):
            self._open(ledgers[0].budget)
        ledger = Ledger(self.place)
        restore_data_note(ledger, self.data)
        events = [self._event(ledger, one.budget) for one in ledgers]
        asked = {
            **question,
            "ledgers": sorted(one.opening.nonce for one in ledgers),
            "epsilon": events[0].epsilon,
            "delta": self.delta,
        }
        written = json.dumps(asked, sort_keys=True, default=repr)
        request = f"institutions {hashlib.sha256(written.encode()).hexdigest()}"
        ledger.charge(events[0], PURPOSE, request=request)
        return ledger

    def _total(self, protects: Budget) -> float:
        """What one unit pays at all institutions where it has rows."""
        return min(self.at_sources, protects.unit.at_most) * self.micro_epsilon / MICRO

    def _open(self, protects: Budget) -> None:
        """Make a ledger for what is about to be asked, and nothing else."""
        budget = Budget(self._total(protects), self.delta, protects.relation, protects.unit)
        kind = {"kind": "open", "composition": "addition"} if self.delta else {}
        open_for_data(self.place, budget, self.data, **kind)
        _paying.say_opened(self.place, budget.epsilon, budget.delta)

    def _event(self, ledger: Ledger, protects: Budget) -> Pure | Approximate:
        """The cost as that of one row, which is what a ledger takes it for."""
        kept, rows = ledger.budget, protects.unit.at_most
        if (kept.relation, kept.unit) != (protects.relation, protects.unit):
            raise LedgerError(
                f"{ledger.path}: the ledger protects {kept.unit} under {kept.relation}, and an "
                f"institution's {protects.unit} under {protects.relation}. Costs of the two "
                "do not add: open the institutions' ledgers with the same unit and relation."
            )
        epsilon = self._total(protects)
        if not self.delta:
            # Rounded down: the ledger multiplies by the rows, and rounds up to a millionth.
            row = epsilon if rows == 1 else math.nextafter(epsilon / rows, 0.0)
            return Pure(row, kept.relation)
        if rows > 1:
            raise LedgerError(
                f"{ledger.path}: a map with a delta, for units of several rows, cannot be "
                "charged to the ledger of a file. Use a method that needs no --delta."
            )
        return Approximate(epsilon, self.delta, kept.relation)


@dataclass(frozen=True)
class Federation:
    """Whose records are whose, and how many must answer, as it was typed."""

    column: str
    least: int | None
    at_sources: int
    version: str


def federated(
    files: RecalibrationFiles,
    told: Mapping[str, Any],
    fit: "Fit",
    spending: LocalBudget,
    whom: Federation,
    *,
    whole: bool,
    json: bool,
) -> None:
    """Let every institution of a file answer for itself; write and print what comes of it."""
    files.check()
    column, names = _institutions(files.predictions, told, whom.column)
    groups = {**told["groups"], column: names}
    scores = _predictions.load(files.predictions, {**told, "groups": groups})
    files.check_scores(scores)
    _check_place(files.ledger, whom.least, len(names))
    try:
        steps = _steps(scores, fit, spending, files.ledger, len(names))
        data = DataCharge(
            _paying.ledger_place(files.predictions, None),
            files.predictions,
            steps.spending.total,
            steps.delta,
            whom.at_sources,
        )
        if not all(place.exists() for place in _ledgers(files.ledger, names)):
            data.require(_protected(files.ledger))  # before a ledger is opened for nothing
        holders = _holders(scores, column, names, files.ledger, steps, whom.version)
        pool = Pool(holders, least=whom.least, most_records=fit.size)
        if whom.least is None:
            _check_all(dict(zip(names, holders, strict=True)), steps)
        question = _question(scores, column, fit, spending, steps, whom.version)
        paid = data.charge(question, [holder.ledger for holder in holders])
        with _show.progress_bar("Fitting the map"):
            found = run_steps(pool, steps, at_sources=whom.at_sources)
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    files.write(found.map, scores)
    inside = (
        internal_sides(scores, found.map, fit.bins, fit.replicates) if fit.internal else None
    )
    if json:
        _show.print_json(_facts(files, found, names, holders, paid, inside))
        return
    _print(files.predictions.name, found, names, holders, paid, inside)
    typer.echo("\n" + _paying.promise(found.statement, whole=whole))


def _check_place(folder: Path, least: int | None, sources: int) -> None:
    """Refuse what cannot be meant before a ledger is opened, whose budget never changes."""
    if folder.exists() and not folder.is_dir():
        raise typer.BadParameter(
            f"expected a folder, with a ledger for each institution, got the file {folder}.",
            param_hint="--ledger",
        )
    if least is not None and least > sources:
        raise typer.BadParameter(
            f"expected at most {sources}, the number of institutions, got {least}.",
            param_hint="--least",
        )


def _institutions(
    predictions: Path, told: Mapping[str, Any], text: str
) -> tuple[str, tuple[str, ...]]:
    """The column, and who there is: as declared, or as the file says."""
    column, sign, _ = text.partition("=")
    if sign:
        column, values = _predictions.pair(text, "--sources-by", "hospital=north,south")
        return column, tuple(_predictions.listed(values, "--sources-by"))
    if not column:
        raise typer.BadParameter(
            "expected the name of a column, as in hospital.", param_hint="--sources-by"
        )
    alone = {**told, "groups": {}, "unit": column}
    units = load_scores(predictions, **alone).units
    names = tuple(sorted({str(unit) for unit in units})) if units is not None else ()
    if not names:
        raise DataError(
            str(predictions), "one institution or more", "none", "Pass some predictions."
        )
    _show.status(
        f"{len(names)} institutions in column {column!r}; that they take part is public."
    )
    return column, names


def _steps(
    scores: Scores, fit: "Fit", spending: LocalBudget, folder: Path, sources: int
) -> RecalibrationSteps:
    """Everything that will be asked, planned before any ledger is opened."""
    budget = _protected(folder)
    about = SourceProfile(sources, budget.relation, budget.unit, sums_only=True, exact=False)
    settings = _methods.settings_for(scores, fit.settings(spending))
    division = Division(spending.fit, spending.guard, spending.measure)
    settings = replace(settings, sources=sources)
    known = choose_method(fit.method, settings, about)
    steps = plan_steps(known, settings, division, about)
    # Without a question of its own the guard goes by the answers that led to the map.
    return replace(steps, infers=known.infers and not spending.guard)


def _protected(folder: Path) -> Budget:
    """Whom the institutions' ledgers protect: as the first says, if there is one."""
    there = sorted(folder.glob("*.ledger")) if folder.is_dir() else []
    return Ledger(there[0]).budget if there else Budget(1.0)


def _ledgers(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """Where each institution's ledger is, or will be."""
    return [folder / f"{quote(name, safe=' ')}.ledger" for name in names]


def _question(
    scores: Scores,
    column: str,
    fit: "Fit",
    spending: LocalBudget,
    steps: RecalibrationSteps,
    version: str,
) -> dict[str, Any]:
    """Everything that tells what is asked of institutions from another question."""
    return {
        "records": scores.name,
        "classes": list(scores.classes),
        "column": column,
        "method": fit.method,
        "settings": repr(_methods.settings_for(scores, fit.settings(spending))),
        "spending": [steps.spending.map, steps.spending.guard, steps.spending.measure],
        "version": version,
    }


def _holders(
    scores: Scores,
    column: str,
    names: tuple[str, ...],
    folder: Path,
    steps: RecalibrationSteps,
    version: str,
) -> list[Curator]:
    """Each institution's records behind its own ledger, which is opened if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    codes = scores.groups[column].codes
    return [
        _paying.paying(
            place,
            scores.take(np.flatnonzero(codes == i)).renamed(f"{scores.name}, {name}"),
            steps.items("add-remove", Unit()),
            epsilon=steps.spending.total / 1e6,
            delta=steps.delta,
            version=version,
        )
        for i, (name, place) in enumerate(zip(names, _ledgers(folder, names), strict=True))
    ]


def _check_all(holders: Mapping[str, Curator], steps: RecalibrationSteps) -> None:
    """Refuse what one of them cannot pay for, and name it, before anybody is charged."""
    for name, holder in holders.items():
        try:
            check_affordable(holder, steps.items)
        except BudgetError as error:
            raise BudgetError(
                f"{name}: {error} Or say with --least how many are enough."
            ) from error


def _facts(
    files: RecalibrationFiles,
    found: Recalibration,
    names: tuple[str, ...],
    holders: list[Curator],
    paid: Ledger,
    inside: Sides | None,
) -> dict[str, Any]:
    """Everything as what JSON can hold."""
    written = found.to_json()
    written["temperatures"] = {name: plain(one) for name, one in found.temperatures.items()}
    return {
        "file": str(files.predictions),
        **written,
        "figures_on": FITTED_ON,
        "internal": None if inside is None else internal_facts(inside),
        "institutions": [
            {"name": name, "silent": why, "ledger": _paying.left(holder.ledger, None)}
            for name, why, holder in zip(names, found.silences, holders, strict=True)
        ],
        "ledger": _paying.left(paid, None),
        **files.written(),
    }


def _print(
    name: str,
    found: Recalibration,
    names: tuple[str, ...],
    holders: list[Curator],
    paid: Ledger,
    inside: Sides | None,
) -> None:
    """Print the map, who answered, and figures of both sides."""
    console = _show.console()
    console.print(_show.table(f"{name}: the map", ("", ""), list(map_lines(found))))
    rows = [
        (who, _show.visible(why or "answered everything"), *_account(holder.ledger))
        for who, why, holder in zip(names, found.silences, holders, strict=True)
    ]
    rows.append((_show.visible(_paying.called(paid)), "pays as well", *_account(paid)))
    heads = ("institution", "", "spent", "left")
    console.print(_show.table("who was asked", heads, rows, right=heads[2:]))
    if found.before is not None and found.after is not None:
        sides = figures_of(found.before), figures_of(found.after)
        note = f"Released with noise, on {FITTED_ON}."
        console.print(sides_table("before and after", *sides, note=note))
    if inside is not None:
        show_internal(inside)


def map_lines(found: Recalibration) -> Iterator[tuple[str, str]]:
    """What there is to say of a map."""
    yield "method", found.method
    yield "map", _methods.words(found.map)
    for name, one in found.temperatures.items():
        ends = f"{one.level:.0%} interval {one.low:.4g} to {one.high:.4g}"
        yield f"{name} found", f"{one.value:.5g}, {ends}"
        yield "", f"the interval counts {found.counted}"
    if found.guarded is not None:
        yield "guard", found.guarded.text()
    yield "budget", f"at each institution {found.spending.text()}"
    if found.map == Identity() and found.before is not None:
        yield "figures", "the same before and after: nothing is mapped"


def _account(ledger: Ledger) -> tuple[str, str]:
    """What a ledger has paid, and what is left."""
    account = _paying.left(ledger, None)
    return (
        rounded_up(account["spent"]["epsilon"], 6),
        rounded_down(account["left"]["epsilon"], 6),
    )

"""Enrolling on the command line: what is typed, what is shown before and after."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from veracal.calibration.private.golden_grid import TemperatureGrid
from veracal.calibration.queries import ParameterGrid
from veracal.cli import _show
from veracal.cli._places import check_new
from veracal.cli._source_records import Places, Records, read_records
from veracal.cli._source_serve import NODE_KEY
from veracal.cli._source_words import allowed
from veracal.data.files import new_file, placed
from veracal.errors import DataError
from veracal.federation.calibrator.methods import ASKS
from veracal.federation.protocol.questions import KINDS, USUAL
from veracal.federation.source.enrolling import (
    Declaration,
    Proposal,
    accept,
    data_event,
    propose,
)
from veracal.federation.source.enrolment import TERMS
from veracal.federation.source.folder import (
    ENROLLED,
    SourceFolder,
    read_source,
    share_event,
)
from veracal.pipeline.charging import open_data_ledger
from veracal.privacy.ledger.book import Amount, Ledger

_NAMED: dict[str, tuple[str, ...]] = {
    "usual": USUAL,
    "all": tuple(kind for kind in KINDS if not KINDS[kind].gaussian),
    **ASKS,
}


@dataclass(frozen=True)
class Outs:
    """Files to hand over, as they were typed: terms, and the public key of a node."""

    terms: Path
    node_key: Path | None

    def check(self) -> None:
        """Refuse places to write to, before the work and not after it."""
        for path, option in ((self.terms, "--out"), (self.node_key, "--node-key-out")):
            if path is not None:
                check_new(path, force=False, option=option)
                new_file(path)

    @property
    def words(self) -> str:
        """What to hand over."""
        return str(self.terms) if self.node_key is None else f"{self.terms} and {self.node_key}"


def declaration(**told: Any) -> Declaration:
    """A declaration of options as they were typed."""
    kinds = [kind.strip() for kind in told.pop("kinds").split(",")]
    low, high = _numbers(told.pop("temperatures"), 2, float, "--temperatures")
    grid = _numbers(told.pop("parameters"), 3, int, "--parameters")
    return Declaration(
        kinds=tuple(dict.fromkeys(one for kind in kinds for one in _NAMED.get(kind, (kind,)))),
        temperatures=TemperatureGrid(low, high),
        parameters=ParameterGrid(*grid),
        **told,
    )


def run(
    folder: Path,
    places: Places,
    declared: Callable[[str], Declaration],
    outs: Outs,
    *,
    yes: bool,
    json: bool,
) -> None:
    """Check everything, show what it allows, and write it if that is wanted."""
    source = read_source(folder)
    budget = declared("0" * 64).budget(source)  # of what was typed
    outs.check()
    places.check()
    place = places.ledger_place()
    # What cannot be paid is refused before a record is read.
    if os.path.lexists(place):
        ledger = Ledger(place)
        places.check_partition(ledger.opening.parts)
        ledger.require(data_event(budget, ledger), "enrolment", part=places.partition)
    source.shares.require(share_event(budget), "enrolment")
    records = read_records(places, source.budget.relation, source.marks)
    _show.status("Trying every question once; the answers are thrown away.")
    proposal = propose(folder, records.scores, declared(records.model))
    if not json:
        _tell(proposal, "What you are about to allow", before=True)
        _show.say("")
        _show.say(_about(records))
    if not (yes or typer.confirm("\nAllow this?", err=True)):
        _show.status("Nothing was written, and nothing is allowed.")
        raise typer.Exit(1)
    if records.seal is not None:
        records.seal()
    terms = accept(
        proposal,
        records.scores,
        data=records.data,
        model=records.model_place,
        ledger=_ledger(source, place, places.records),
        part=places.partition,
    )
    _hand_over(source.path / ENROLLED / terms.source / TERMS, outs.terms)
    if outs.node_key is not None:
        _hand_over(_node_key(source.path), outs.node_key)
    if json:
        told = {"enrolment": terms.source, "out": str(outs.terms), "terms": terms.to_json()}
        _show.print_json(told)
    else:
        _afterwards(proposal, folder, outs)


def _ledger(source: SourceFolder, place: Path, records: str) -> Ledger:
    """The ledger of the data set, opened with the source's whole budget if there is none."""
    if os.path.lexists(place):
        return Ledger(place)
    ledger = open_data_ledger(place, source.budget, records)
    _show.status(
        f"Opened the ledger of {records} with the source's whole budget as caps: {place}. "
        "Further runs and enrolments of the same records are charged to it, too."
    )
    return ledger


def _node_key(folder: Path) -> Path:
    """The public half of the key of a source's node, which is made when first asked for."""
    from veracal.federation.flower.node_keys import make_node_key

    public = folder / f"{NODE_KEY}.pub"
    return public if public.exists() else make_node_key(folder / NODE_KEY)


def _hand_over(kept: Path, out: Path) -> None:
    """Copy a file to where it is wanted."""
    try:
        with placed(out) as file:
            file.write(kept.read_bytes())
    except DataError as cause:
        raise DataError(
            str(out),
            "a place to write",
            cause.found,
            f"The enrolment stands all the same: copy {kept} yourself.",
        ) from cause


def _afterwards(proposal: Proposal, folder: Path, outs: Outs) -> None:
    """The same words again, and what to do next."""
    terms = proposal.terms
    _tell(proposal, "What you have allowed", before=False)
    _show.say("")
    _show.say(f"Enrolment   {terms.source}")
    _show.say(f"Your key    {terms.key.fingerprint}")
    _show.say("")
    _show.say(f"Hand over {outs.words}, and read the calibrator 'Your key' by telephone. Then:")
    way = "--inbox IN --outbox OUT" if outs.node_key is None else "--flower HOST:PORT --ca FILE"
    _show.say(f"  veracal source serve {folder} {way}    answer requests")
    _show.say(f"  veracal source log {folder}    see what was asked, and what left")
    _show.say(f"  veracal source revoke {folder} {terms.source[:8]}    end it")


def _tell(proposal: Proposal, title: str, *, before: bool) -> None:
    """Say in plain words what an enrolment allows."""
    from rich.text import Text

    _show.console().print(Text(f"\n{title}\n", style="bold"))
    for line in allowed(proposal.terms, _left(proposal, before=before), before=before):
        _show.say(line)


def _left(proposal: Proposal, *, before: bool) -> Amount:
    """What other calibrators may still be granted, after this one."""
    left = proposal.folder.shares.remaining()
    if not before:
        return left
    share = proposal.terms.budget
    return Amount(round(left.epsilon - share.epsilon, 9), left.delta - share.delta)


def _about(records: Records) -> str:
    """What is enrolled, for its owner alone."""
    scores = records.scores
    where = "" if records.data is None else f" from {records.data.path}"
    return (
        f"On your side: {_show.counted(len(scores), 'record')}{where}, classes "
        f"{_show.listed(scores.classes)}. They are copied into the source's folder."
    )


def _numbers(text: str, many: int, kind: Callable[[str], Any], hint: str) -> list[Any]:
    """So many numbers between commas."""
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) != many:
        raise typer.BadParameter(
            f"expected {many} numbers between commas, got {text!r}.", param_hint=hint
        )
    return found

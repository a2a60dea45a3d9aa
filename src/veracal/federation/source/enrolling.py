"""How records are enrolled for one calibrator: checked, rehearsed, charged, written."""

import datetime
import math
import secrets
import shutil
import tempfile
import time
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from veracal._types import Frozen
from veracal.artifact.folder import sync_folder
from veracal.calibration.private.golden_grid import TemperatureGrid
from veracal.calibration.queries import ParameterGrid
from veracal.data import Scores, save_scores
from veracal.data.files import placed
from veracal.data.limits import no_surprises
from veracal.errors import LedgerError
from veracal.federation.protocol.heads import Head
from veracal.federation.protocol.keys import PublicKey
from veracal.federation.protocol.questions import KINDS, USUAL
from veracal.federation.protocol.terms import MARK, Terms, micro_of
from veracal.federation.source.checking import check_records, wrong
from veracal.federation.source.enrolment import (
    PRIVATE,
    RECORDS,
    REVOKED,
    SPENT,
    TERMS,
    UNIT,
    Enrolment,
    Origin,
    Private,
)
from veracal.federation.source.folder import (
    BUILDING,
    ENROLLED,
    HEADS,
    SourceFolder,
    read_source,
    share_event,
)
from veracal.federation.source.rehearsal import check_deadline, rehearse
from veracal.federation.source.signed_heads import start_file
from veracal.privacy import Budget, Event, Pure
from veracal.privacy.costs.pure import MICRO
from veracal.privacy.ledger.book import Ledger, open_ledger
from veracal.privacy.ledger.units import as_written


@dataclass(frozen=True)
class Declaration:
    """What a source decides for one calibrator, all by itself.

    Attributes
    ----------
    calibrator : PublicKey
    model : str
        Hash of the model that the records were scored by
        (:func:`veracal.federation.models.model_hash`).
    epsilon : float
        All that this calibrator may ever spend.
    most_each : float or None
        Most that one answer may cost; None for all of it.
    delta : float
        0 unless answers with Gaussian noise are allowed.
    kinds, temperatures, bins, clamp, parameters, least_records, most_records, deadline, expires
        As of :class:`~veracal.federation.protocol.terms.Terms`.
    """

    calibrator: PublicKey
    model: str
    epsilon: float
    most_each: float | None = None
    delta: float = 0.0
    kinds: tuple[str, ...] = USUAL
    temperatures: TemperatureGrid = field(default_factory=lambda: TemperatureGrid(0.5, 6.0))
    bins: int = 15
    clamp: float = 10.0
    parameters: ParameterGrid = field(default_factory=ParameterGrid)
    least_records: int = 1
    most_records: int = 1_000_000
    deadline: float = 10.0
    expires: str | None = None

    def __post_init__(self) -> None:
        odd = [kind for kind in self.kinds if kind not in KINDS]
        if odd or not self.kinds or len(set(self.kinds)) < len(self.kinds):
            raise ValueError(
                f"Expected different kinds among {', '.join(KINDS)}, got {self.kinds!r}."
            )
        noisy = [kind for kind in self.kinds if KINDS[kind].gaussian]
        if noisy and not self.delta:
            raise ValueError(
                f"Expected a delta above 0 for {', '.join(noisy)}, whose answers carry "
                "Gaussian noise, got delta=0. Declare a delta, or leave them out."
            )

    def budget(self, source: SourceFolder) -> Budget:
        """All that this calibrator may ever spend, for whom the source protects."""
        return replace(source.budget, epsilon=micro_of(self.epsilon) / MICRO, delta=self.delta)

    def terms(self, source: SourceFolder, scores: Scores) -> Terms:
        """The terms of a new enrolment."""
        budget = source.budget
        most_each = self.epsilon if self.most_each is None else self.most_each
        return Terms(
            source=secrets.token_hex(MARK // 2),
            name=source.name,
            key=source.public,
            calibrator=self.calibrator,
            model=self.model,
            data=secrets.token_hex(MARK // 2),
            classes=scores.n_classes,
            reads=scores.kind,
            relation=budget.relation,
            unit=budget.unit,
            micro_epsilon=micro_of(self.epsilon),
            delta=self.delta,
            most_each=micro_of(most_each),
            kinds=self.kinds,
            temperatures=self.temperatures,
            bins=self.bins,
            clamp=self.clamp,
            parameters=self.parameters,
            least_records=self.least_records,
            most_records=self.most_records,
            deadline=self.deadline,
            expires=self.expires,
        )


@dataclass(frozen=True)
class Proposal:
    """An enrolment that was checked, and of which nothing is written yet.

    Attributes
    ----------
    folder : SourceFolder
    terms : Terms
    seconds : float
        What the slowest question took.
    """

    folder: SourceFolder
    terms: Terms
    seconds: float


def propose(folder: str | Path, scores: Scores, declaration: Declaration) -> Proposal:
    """Check records and a declaration, try every question, and write nothing.

    Raises
    ------
    DataError
        If the records are not as declared, or a question cannot be answered in time.
    BudgetError
        If the institution's budget has no such share left.
    SetBackError
        If the institution's ledger is an older copy.
    """
    source = read_source(folder)
    terms = declaration.terms(source, scores)
    if terms.is_expired(datetime.date.fromisoformat(_today())):
        raise ValueError(f"Expected a last day that is still to come, got {terms.expires}.")
    source.signed_heads(source.id, source.path).check(source.shares)
    source.shares.require(share_event(terms.budget), _purpose(terms))
    check_records(scores, terms)
    seconds = rehearse(scores, terms)
    check_deadline(seconds, terms, scores.name)
    return Proposal(source, terms, seconds)


def enroll(
    folder: str | Path,
    scores: Scores,
    declaration: Declaration,
    *,
    data: str | Path | None = None,
    model: str | Path | None = None,
    ledger: Ledger | None = None,
    part: str | None = None,
) -> Terms:
    """Enroll records for one calibrator.

    Parameters
    ----------
    folder : path
        Of the source.
    scores : Scores
        With labels; with units unless each row is one. They are copied: later changes of
        their file have to be enrolled again.
    declaration : Declaration
    data, model : path, optional
        Where they come from. If the file of the data changes, nothing more is answered.
    ledger, part
        As of :func:`accept`. None: whatever else is released about the same individuals is
        not counted.

    Returns
    -------
    Terms
        To be handed to the calibrator, signed, from :func:`sealed_terms`.

    Raises
    ------
    DataError, BudgetError, LedgerError
        As of :func:`propose`; nothing is charged and nothing left behind.
    """
    origin = None if data is None else Origin.of(Path(data), read_source(folder).marks)
    proposal = propose(folder, scores, declaration)
    return accept(proposal, scores, data=origin, model=model, ledger=ledger, part=part)


def accept(
    proposal: Proposal,
    scores: Scores,
    *,
    data: Origin | None = None,
    model: str | Path | None = None,
    ledger: Ledger | None = None,
    part: str | None = None,
) -> Terms:
    """Charge the share and write the enrolment, whole or not at all.

    Parameters
    ----------
    proposal : Proposal
    scores : Scores
    data, model
        As of :func:`enroll`.
    ledger : Ledger, optional
        Of the data set that the records come from. The whole budget of the enrolment is
        charged to it, once and for good, as to the institution's own.
    part : str, optional
        Partition of the ledger that the records are; by default all of them.
    """
    source, terms = proposal.folder, proposal.terms
    place = source.path / ENROLLED
    with no_surprises(place):
        building = Path(tempfile.mkdtemp(dir=place, prefix=BUILDING))
        try:
            _fill(building, source, terms, scores)
            _describe(building, proposal, scores, data, model)
            if ledger is not None:
                event = data_event(terms.budget, ledger)
                ledger.charge(event, _purpose(terms), part=part, request=terms.source)
            _take_share(source, terms)
            building.rename(place / terms.source)
            sync_folder(place)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return terms


def data_event(budget: Budget, ledger: Ledger) -> Event:
    """What an enrolment takes from the ledger of a data set: its whole budget.

    The budget is for a unit with all of its rows, while the ledger takes an event to be that of
    one row: a pure epsilon is divided among them.

    Raises
    ------
    LedgerError
        If the ledger protects others than the source does.
    """
    kept = ledger.budget
    if (kept.relation, kept.unit) != (budget.relation, budget.unit):
        raise LedgerError(
            f"{ledger.path}: the ledger protects {kept.unit} under {kept.relation}, and the "
            f"source {budget.unit} under {budget.relation}. Costs of the two do not add: make "
            "a source with the ledger's unit and relation."
        )
    rows = budget.unit.at_most
    if rows == 1:
        return share_event(budget)
    if not budget.pure:
        raise LedgerError(
            f"{ledger.path}: an enrolment with a delta, for units of several rows, cannot be "
            "charged to a data set's ledger. Leave out --delta and the questions that need it."
        )
    each = budget.epsilon / rows
    while rows * Fraction(each) > as_written(budget.epsilon):  # or it costs a millionth more
        each = math.nextafter(each, 0.0)
    return Pure(each, budget.relation)


def revoke(source: SourceFolder, enrolment: Enrolment) -> None:
    """Answer this calibrator no more; what it was granted is not given back."""
    if not enrolment.is_revoked:
        source.signed_heads(enrolment.terms.source, enrolment.path).end(source.key)
        with placed(enrolment.path / REVOKED) as file:
            file.write(_today().encode() + b"\n")


def _fill(folder: Path, source: SourceFolder, terms: Terms, scores: Scores) -> None:
    """Write what the calibrator gets, the records, and a ledger with nothing in it."""
    with placed(folder / TERMS) as file:
        file.write(terms.sealed(source.key))
    kept = Scores(
        scores.values, scores.kind, scores.classes, scores.labels, Frozen(), scores.units
    )
    save_scores(kept, folder / RECORDS, unit=UNIT)
    budget = terms.budget
    open_ledger(folder / SPENT, budget, kind="pure" if budget.pure else "open")
    start_file(folder / HEADS)


def _describe(
    folder: Path,
    proposal: Proposal,
    scores: Scores,
    data: Origin | None,
    model: str | Path | None,
) -> None:
    """Write what the owner alone knows, once the records could be read again in time."""
    marks = proposal.folder.marks
    described = Private(
        classes=scores.classes,
        records=marks.of_file(folder / RECORDS),
        has_units=scores.units is not None,
        data=data,
        model=None if model is None else str(Path(model).absolute()),
        enrolled=_today(),
        seconds=proposal.seconds,
    )
    start = time.perf_counter()
    again = Enrolment(folder, proposal.terms, described, marks).records()
    seconds = proposal.seconds + time.perf_counter() - start
    if not _same(again, scores):
        raise wrong(
            scores, "records", "records that can be kept", "others", "Save them as npz first."
        )
    check_deadline(seconds, proposal.terms, scores.name)
    Private(**{**vars(described), "seconds": seconds}).save(folder / PRIVATE)


def _take_share(source: SourceFolder, terms: Terms) -> None:
    """Charge the whole budget of an enrolment, once and for good, and sign that it was."""
    entry = source.shares.charge(
        share_event(terms.budget), _purpose(terms), request=terms.source
    )
    heads = source.signed_heads(source.id, source.path)
    heads.add(Head.signed(source.id, entry.index, entry.hash, entry.previous, source.key))


def _same(kept: Scores, given: Scores) -> bool:
    """Whether scores came back as they were."""
    return (
        kept.kind == given.kind
        and np.array_equal(kept.values, given.values)
        and np.array_equal(kept.known_labels, given.known_labels)
    )


def _purpose(terms: Terms) -> str:
    """What a share is for."""
    return f"enrolment for calibrator {terms.calibrator.text[:16]}"


def _today() -> str:
    """Day, in UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()

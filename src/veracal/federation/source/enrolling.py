"""Enrollment of records for one coordinator: check, time every query, charge, write.

Records are compared with their declaration at enrollment and never later, so a reply cannot
depend on the comparison. Each declared query is evaluated once and its answer discarded: this
proves that every query can be answered, and measures the slowest one, so that neither a failure
nor a running time becomes an answer that was not charged.
"""

import datetime
import math
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from veracal._types import Frozen
from veracal.accounting import MICRO, Budget, Event, Pure, Unit, to_micro
from veracal.artifact import sync_folder
from veracal.calibration import Form, ParameterGrid, TemperatureGrid, weight_shape
from veracal.data import Scores, atomic_file, save_scores, translate_os_errors
from veracal.errors import DataError, LedgerError
from veracal.federation.protocol.envelopes import MAX_REQUEST_BYTES, PublicKey
from veracal.federation.protocol.messages import MAX_ENTRIES, Head
from veracal.federation.protocol.queries import (
    ACCURACY_BITS,
    DEFAULT_KINDS,
    KINDS,
    SCALE_BITS,
    build_query,
    inverse_units,
)
from veracal.federation.protocol.terms import ID_DIGITS, Terms
from veracal.federation.source.enrollment import (
    PRIVATE,
    RECORDS,
    REVOKED,
    SPENT,
    TERMS,
    UNIT,
    Enrollment,
    OwnerSettings,
    RecordFile,
)
from veracal.federation.source.folder import (
    ENROLLED,
    HEADS,
    TEMPORARY_PREFIX,
    SourceFolder,
    create_heads_file,
    read_source,
    share_event,
)
from veracal.ledger import Ledger, canonical, decimal_fraction, open_ledger
from veracal.mechanisms import add_discrete_laplace
from veracal.queries import check_units, evaluate_query


def check_records(scores: Scores, terms: Terms) -> None:
    """Refuse records that do not match their declaration.

    Raises
    ------
    DataError
        The message is for the owner of the records and may contain their number.
    """
    n = len(scores)
    if scores.labels is None:
        raise records_error(scores, "labels", "a label for every record", "none", "Add labels.")
    if not terms.min_records <= n <= terms.max_records:
        raise records_error(
            scores,
            "records",
            f"from {terms.min_records:,} to {terms.max_records:,}, as declared",
            f"{n:,}",
            "Declare other bounds, in round numbers: the coordinator reads them.",
        )
    _check_units(scores, terms.unit)


def _check_units(scores: Scores, unit: Unit) -> None:
    """Refuse records in which a unit has more rows than the budget covers."""
    if unit.name != "record" and scores.units is None:
        raise records_error(
            scores,
            "units",
            f"the {unit.name} that each row belongs to",
            "no ids",
            f"Give the name of the column with the {unit.name} ids.",
        )
    if unit.name == "record" and scores.units is not None:
        raise records_error(
            scores,
            "units",
            "no unit ids, because this source protects single records",
            "unit ids",
            "Create a source that protects units (init --unit patient --max-contributions 3), "
            "or omit the column if single records are to be protected.",
        )
    check_units(scores, unit)


def records_error(
    scores: Scores, what: str, expected: str, actual: str, remedy: str
) -> DataError:
    """Error for records that do not match their declaration."""
    return DataError(f"{scores.name}: {what}", expected, actual, remedy)


DEADLINE_FACTOR = 4  # the deadline is at least this multiple of the slowest query's time
_NOISE = 1_000.0
_RESERVED_BYTES = 1_000  # of a request, for everything except a map
_FORMS: tuple[Form, ...] = ("scalar", "vector", "matrix")


def time_queries(scores: Scores, terms: Terms) -> float:
    """Evaluate every declared query once and return the seconds of the slowest.

    Raises
    ------
    DataError
        If a query fails. The message names the query and says nothing about the records.
    """
    return max(
        _time_query(scores, terms, kind, argument)
        for kind in terms.kinds
        for argument in example_arguments(kind, terms)
    )


def check_deadline(seconds: float, terms: Terms, where: str | Path) -> None:
    """Refuse a deadline that answers might miss.

    Raises
    ------
    DataError
        The message recommends a sufficient deadline.
    """
    required = DEADLINE_FACTOR * seconds
    if terms.deadline < required:
        raise DataError(
            str(where),
            f"a deadline of at least {DEADLINE_FACTOR} times the time of the slowest query",
            f"{terms.deadline:g} seconds, with a query that takes {seconds:.2g} seconds",
            f"Declare a deadline of {_recommend_deadline(required):g} seconds.",
        )


def example_arguments(kind: str, terms: Terms) -> Iterator[dict[str, Any]]:
    """Arguments of a kind of query, including the largest that fit into a request."""
    if kind in ("counts", "bins", "bins-paper"):
        yield {}
    elif kind == "platt-counts":
        yield from ({"reads": known} for known in (False, True))
    elif kind == "platt-equations":
        whole = 1 << SCALE_BITS
        for map_ in _affine_maps(terms):
            yield {"center": 0, "map": map_, "spread": whole, "step": 0}
    elif kind.startswith("map-"):
        yield from ({"map": map_} for map_ in (*_other_maps(terms), *_affine_maps(terms)))
    else:
        yield {"inverse": _lowest_inverse(terms)}


def _time_query(scores: Scores, terms: Terms, kind: str, argument: dict[str, Any]) -> float:
    """Evaluate one query, add noise, discard the answer, and return the time."""
    query = build_query(kind, argument, terms)
    start = time.perf_counter()
    try:
        exact = evaluate_query(query, scores)
        add_discrete_laplace(exact, _NOISE)
    except Exception as cause:  # its message may contain data of a record
        raise _unanswerable_error(scores, kind) from cause
    if query.entries > MAX_ENTRIES:
        raise _unanswerable_error(scores, kind)
    return time.perf_counter() - start


def _unanswerable_error(scores: Scores, kind: str) -> DataError:
    """Error for a query that cannot be evaluated on these records."""
    return DataError(
        scores.name,
        f"records that can answer {KINDS[kind].description}",
        f"records for which the query {kind!r} fails",
        "Do not declare this kind of query.",
    )


def _lowest_inverse(terms: Terms) -> int:
    """The lowest temperature of the declared range, at which values are largest."""
    grid = terms.temperatures
    return inverse_units(float(grid.inverses([grid.low])[0]), grid)


def _other_maps(terms: Terms) -> Iterator[dict[str, Any]]:
    """One map of each kind that is not affine."""
    yield {"inverse": _lowest_inverse(terms)}
    yield {"inverse": _lowest_inverse(terms), "mixing": 1}
    yield from _if_sendable({"accuracies": [1 << (ACCURACY_BITS - 1)] * terms.bins})


def _affine_maps(terms: Terms) -> Iterator[dict[str, Any]]:
    """An affine map of every form that fits into a request."""
    k, grid = terms.classes, terms.parameters
    for form in _FORMS:
        n_weights = math.prod(weight_shape(form, k))
        if n_weights + k <= MAX_REQUEST_BYTES:
            units = [grid.most_weight << grid.bits] * n_weights + [0] * k
            yield from _if_sendable({"form": form, "reads": True, "units": units})


def _if_sendable(map_: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The map if it fits into a request."""
    if len(canonical(map_)) <= MAX_REQUEST_BYTES - _RESERVED_BYTES:
        yield map_


def _recommend_deadline(seconds: float) -> float:
    """A round number of seconds, at least 1.5 times the required one."""
    steps = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_800, 3_600)
    return next((step for step in steps if step >= 1.5 * seconds), 86_400.0)


@dataclass(frozen=True)
class Declaration:
    """What the owner of a source declares for one coordinator.

    Attributes
    ----------
    coordinator : PublicKey
        Public key of the coordinator.
    model : str
        Hash of the model that scored the records
        (:func:`veracal.federation.protocol.terms.model_hash`).
    epsilon : float
        Total budget of this coordinator.
    max_per_answer : float or None
        Largest cost of one answer; None for the whole budget.
    delta : float
        0 unless answers with Gaussian noise are allowed.
    kinds, temperatures, bins, clamp, parameters, min_records, max_records, deadline, expires
        As of :class:`~veracal.federation.protocol.terms.Terms`.
    """

    coordinator: PublicKey
    model: str
    epsilon: float
    max_per_answer: float | None = None
    delta: float = 0.0
    kinds: tuple[str, ...] = DEFAULT_KINDS
    temperatures: TemperatureGrid = field(default_factory=lambda: TemperatureGrid(0.5, 6.0))
    bins: int = 15
    clamp: float = 10.0
    parameters: ParameterGrid = field(default_factory=ParameterGrid)
    min_records: int = 1
    max_records: int = 1_000_000
    deadline: float = 10.0
    expires: str | None = None

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown or not self.kinds or len(set(self.kinds)) < len(self.kinds):
            raise ValueError(
                f"Expected different kinds among {', '.join(KINDS)}, got {self.kinds!r}."
            )
        gaussian = [kind for kind in self.kinds if KINDS[kind].gaussian]
        if gaussian and not self.delta:
            raise ValueError(
                f"Expected a delta above 0 for {', '.join(gaussian)}, whose answers carry "
                "Gaussian noise, got delta=0. Declare a delta, or omit these kinds."
            )

    def budget(self, source: SourceFolder) -> Budget:
        """Total budget of this coordinator, for the unit that the source protects."""
        return replace(source.budget, epsilon=to_micro(self.epsilon) / MICRO, delta=self.delta)

    def terms(self, source: SourceFolder, scores: Scores) -> Terms:
        """Create the terms of a new enrollment."""
        budget = source.budget
        max_per_answer = self.epsilon if self.max_per_answer is None else self.max_per_answer
        return Terms(
            source=secrets.token_hex(ID_DIGITS // 2),
            name=source.name,
            key=source.public,
            coordinator=self.coordinator,
            model=self.model,
            data=secrets.token_hex(ID_DIGITS // 2),
            classes=scores.n_classes,
            reads=scores.kind,
            relation=budget.relation,
            unit=budget.unit,
            micro_epsilon=to_micro(self.epsilon),
            delta=self.delta,
            max_per_answer=to_micro(max_per_answer),
            kinds=self.kinds,
            temperatures=self.temperatures,
            bins=self.bins,
            clamp=self.clamp,
            parameters=self.parameters,
            min_records=self.min_records,
            max_records=self.max_records,
            deadline=self.deadline,
            expires=self.expires,
        )


@dataclass(frozen=True)
class Proposal:
    """A checked enrollment that is not written yet.

    Attributes
    ----------
    folder : SourceFolder
    terms : Terms
    seconds : float
        Seconds of the slowest query.
    """

    folder: SourceFolder
    terms: Terms
    seconds: float


def propose(folder: str | Path, scores: Scores, declaration: Declaration) -> Proposal:
    """Check records and a declaration and evaluate every query, without writing.

    Raises
    ------
    DataError
        If the records do not match the declaration, or a query cannot be answered in time.
    BudgetError
        If the remaining budget of the institution is too small.
    RollbackError
        If the ledger of the institution is an older copy.
    """
    source = read_source(folder)
    terms = declaration.terms(source, scores)
    if terms.is_expired(datetime.date.fromisoformat(_today())):
        raise ValueError(f"Expected a last day in the future, got {terms.expires}.")
    source.signed_heads(source.id, source.path).check(source.shares)
    source.shares.require(share_event(terms.budget), _purpose(terms))
    check_records(scores, terms)
    seconds = time_queries(scores, terms)
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
    """Enroll records for one coordinator.

    Parameters
    ----------
    folder : path
        Folder of the source.
    scores : Scores
        With labels, and with units unless each row is a unit. They are copied: changes of
        their file need another enrollment.
    declaration : Declaration
    data, model : path, optional
        Files that the scores were computed from. If the data file changes, requests are
        refused.
    ledger, part
        As of :func:`accept`. If None, other releases about the same individuals are not
        counted.

    Returns
    -------
    Terms
        The terms; the enrollment stores them signed, for the coordinator.

    Raises
    ------
    DataError, BudgetError, LedgerError
        As of :func:`propose`. Nothing is charged or written then.
    """
    data_file = None if data is None else RecordFile.read(Path(data), read_source(folder).marks)
    proposal = propose(folder, scores, declaration)
    return accept(proposal, scores, data=data_file, model=model, ledger=ledger, part=part)


def accept(
    proposal: Proposal,
    scores: Scores,
    *,
    data: RecordFile | None = None,
    model: str | Path | None = None,
    ledger: Ledger | None = None,
    part: str | None = None,
) -> Terms:
    """Charge the share and write the enrollment atomically.

    Parameters
    ----------
    proposal : Proposal
    scores : Scores
    data, model
        As of :func:`enroll`.
    ledger : Ledger, optional
        Ledger of the data set that the records come from. The whole budget of the enrollment
        is charged to it once, as to the institution's own ledger. It is never refunded.
    part : str, optional
        Partition of the ledger that the records belong to; by default all partitions pay.
    """
    source, terms = proposal.folder, proposal.terms
    folder = source.path / ENROLLED
    with translate_os_errors(folder):
        temporary = Path(tempfile.mkdtemp(dir=folder, prefix=TEMPORARY_PREFIX))
        try:
            _write_records(temporary, source, terms, scores)
            _write_settings(temporary, proposal, scores, data, model)
            if ledger is not None:
                event = data_event(terms.budget, ledger)
                ledger.charge(event, _purpose(terms), part=part, request=terms.source)
            _charge_share(source, terms)
            temporary.rename(folder / terms.source)
            sync_folder(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return terms


def data_event(budget: Budget, ledger: Ledger) -> Event:
    """Event that charges the whole budget of an enrollment to the ledger of a data set.

    The budget covers a unit with all of its rows, while a ledger counts an event as that of one
    row: a pure epsilon is divided by the number of rows.

    Raises
    ------
    LedgerError
        If the ledger has another unit or relation than the source.
    """
    ledger_budget = ledger.budget
    if (ledger_budget.relation, ledger_budget.unit) != (budget.relation, budget.unit):
        raise LedgerError(
            f"{ledger.path}: the ledger protects {ledger_budget.unit} under "
            f"{ledger_budget.relation}, and the source {budget.unit} under {budget.relation}. "
            "These costs cannot be added: create a source with the ledger's unit and relation."
        )
    rows = budget.unit.at_most
    if rows == 1:
        return share_event(budget)
    if not budget.pure:
        raise LedgerError(
            f"{ledger.path}: an enrollment with a delta, for units of several rows, cannot be "
            "charged to the ledger of a data set. Omit --delta and the queries that need it."
        )
    each = budget.epsilon / rows
    while rows * Fraction(each) > decimal_fraction(budget.epsilon):  # else it costs 1e-6 more
        each = math.nextafter(each, 0.0)
    return Pure(each, budget.relation)


def revoke(source: SourceFolder, enrollment: Enrollment) -> None:
    """Refuse all further requests of this coordinator. Its budget is not refunded."""
    if not enrollment.is_revoked:
        source.signed_heads(enrollment.terms.source, enrollment.path).close(source.key)
        with atomic_file(enrollment.path / REVOKED) as file:
            file.write(_today().encode() + b"\n")


def _write_records(folder: Path, source: SourceFolder, terms: Terms, scores: Scores) -> None:
    """Write the signed terms, the records and an empty ledger."""
    with atomic_file(folder / TERMS) as file:
        file.write(terms.seal(source.key))
    stored = Scores(
        scores.values, scores.kind, scores.classes, scores.labels, Frozen(), scores.units
    )
    save_scores(stored, folder / RECORDS, unit=UNIT)
    budget = terms.budget
    open_ledger(folder / SPENT, budget, kind="pure" if budget.pure else "open")
    create_heads_file(folder / HEADS)


def _write_settings(
    folder: Path,
    proposal: Proposal,
    scores: Scores,
    data: RecordFile | None,
    model: str | Path | None,
) -> None:
    """Write the private settings, after the stored records were read back and timed."""
    marks = proposal.folder.marks
    settings = OwnerSettings(
        classes=scores.classes,
        records=marks.of_file(folder / RECORDS),
        has_units=scores.units is not None,
        data=data,
        model=None if model is None else str(Path(model).absolute()),
        enrolled=_today(),
        seconds=proposal.seconds,
    )
    start = time.perf_counter()
    stored = Enrollment(folder, proposal.terms, settings, marks).records()
    seconds = proposal.seconds + time.perf_counter() - start
    if not _same_scores(stored, scores):
        raise records_error(
            scores,
            "records",
            "records that can be stored without change",
            "records that changed when they were stored",
            "Save them as npz first.",
        )
    check_deadline(seconds, proposal.terms, scores.name)
    replace(settings, seconds=seconds).save(folder / PRIVATE)


def _charge_share(source: SourceFolder, terms: Terms) -> None:
    """Charge the budget of an enrollment to the institution, and sign the entry."""
    entry = source.shares.charge(
        share_event(terms.budget), _purpose(terms), request=terms.source
    )
    heads = source.signed_heads(source.id, source.path)
    heads.add(Head.sign(source.id, entry.index, entry.hash, entry.previous, source.key))


def _same_scores(stored: Scores, given: Scores) -> bool:
    """Whether stored scores equal the given ones."""
    return (
        stored.kind == given.kind
        and np.array_equal(stored.values, given.values)
        and np.array_equal(stored.known_labels, given.known_labels)
    )


def _purpose(terms: Terms) -> str:
    """Purpose of a share in the ledger."""
    return f"enrollment for coordinator {terms.coordinator.text[:16]}"


def _today() -> str:
    """Today's date in UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()

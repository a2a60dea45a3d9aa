"""Enrollment of records for one coordinator: check, time every query, charge, write.

Records are compared with their declaration at enrollment and never later, so a reply cannot
depend on the comparison. Each declared query is evaluated once and its answer discarded: this
proves that every query can be answered, and measures the slowest one, so that neither a failure
nor a running time becomes an answer that was not charged.
"""

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
from veracal.accounting import MICRO, Budget, Event, Pure, to_micro
from veracal.artifact import sync_folder
from veracal.calibration import ParameterGrid, TemperatureGrid, weight_shape
from veracal.data import Scores, atomic_file, save_scores, translate_os_errors
from veracal.errors import DataError, LedgerError
from veracal.federation.protocol.envelopes import MAX_REQUEST_BYTES, PublicKey, is_hexadecimal
from veracal.federation.protocol.messages import MAX_ENTRIES, Head
from veracal.federation.protocol.queries import (
    ACCURACY_BITS,
    DEFAULT_KINDS,
    FORMS,
    KINDS,
    SCALE_BITS,
    build_query,
    inverse_units,
)
from veracal.federation.protocol.terms import HASH_DIGITS, ID_DIGITS, Terms, today
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

    The message is for the owner of the records and may contain their number.
    """
    n, unit = len(scores), terms.unit
    if scores.labels is None:
        raise DataError(
            f"{scores.name}: labels", "a label for every record", "none", "Add labels."
        )
    if not terms.min_records <= n <= terms.max_records:
        raise DataError(
            f"{scores.name}: records",
            f"from {terms.min_records:,} to {terms.max_records:,}, as declared",
            f"{n:,}",
            "Declare other bounds, in round numbers: the coordinator reads them.",
        )
    if unit.name != "record" and scores.units is None:
        raise DataError(
            f"{scores.name}: units",
            f"the {unit.name} that each row belongs to",
            "no ids",
            f"Give the name of the column with the {unit.name} ids.",
        )
    if unit.name == "record" and scores.units is not None:
        raise DataError(
            f"{scores.name}: units",
            "no unit ids, because this source protects single records",
            "unit ids",
            "Create a source that protects units (init --unit patient --max-contributions 3), "
            "or omit the column if single records are to be protected.",
        )
    check_units(scores, unit)


DEADLINE_FACTOR = 4  # the deadline is at least this multiple of the slowest query's time
_RESERVED_BYTES = 1_000  # of a request, for everything except a map
_DEADLINES = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_800, 3_600)


def time_queries(scores: Scores, terms: Terms) -> float:
    """Evaluate every declared query once and return the seconds of the slowest.

    The answers, with noise, are discarded. If a query fails, the message names the query and
    says nothing about the records.
    """
    slowest = 0.0
    for kind in terms.kinds:
        for argument in example_arguments(kind, terms):
            query = build_query(kind, argument, terms)
            start = time.perf_counter()
            cause = None
            try:
                add_discrete_laplace(evaluate_query(query, scores), noise=1_000.0)
            except Exception as error:  # its message may contain data of a record
                cause = error
            if cause is not None or query.entries > MAX_ENTRIES:
                raise DataError(
                    scores.name,
                    f"records that can answer {KINDS[kind].description}",
                    f"records for which the query {kind!r} fails",
                    "Do not declare this kind of query.",
                ) from cause
            slowest = max(slowest, time.perf_counter() - start)
    return slowest


def check_deadline(seconds: float, terms: Terms, where: str | Path) -> None:
    """Refuse a deadline that answers might miss, and recommend a sufficient one."""
    required = DEADLINE_FACTOR * seconds
    if terms.deadline < required:
        recommended = next((s for s in _DEADLINES if s >= 1.5 * required), 86_400.0)
        raise DataError(
            str(where),
            f"a deadline of at least {DEADLINE_FACTOR} times the time of the slowest query",
            f"{terms.deadline:g} seconds, with a query that takes {seconds:.2g} seconds",
            f"Declare a deadline of {recommended:g} seconds.",
        )


def example_arguments(kind: str, terms: Terms) -> Iterator[dict[str, Any]]:
    """Arguments of a kind of query, including the largest that fit into a request."""
    k, grid = terms.classes, terms.parameters
    # The lowest temperature of the declared range, at which values are largest.
    lowest = float(terms.temperatures.inverses([terms.temperatures.low])[0])
    inverse = inverse_units(lowest, terms.temperatures)
    affine: list[dict[str, Any]] = []
    for form in FORMS:
        n_weights = math.prod(weight_shape(form, k))
        if n_weights + k <= MAX_REQUEST_BYTES:
            units = [grid.most_weight << grid.bits] * n_weights + [0] * k
            affine.append({"form": form, "reads": True, "units": units})
    half = {"accuracies": [1 << (ACCURACY_BITS - 1)] * terms.bins}
    others: list[dict[str, Any]] = [{"inverse": inverse}, {"inverse": inverse, "mixing": 1}]
    fields = KINDS[kind].fields
    if "map" in fields:
        scale = {"center": 0, "spread": 1 << SCALE_BITS, "step": 0}
        more = {name: scale[name] for name in fields if name != "map"}
        for map_ in affine if more else [*others, half, *affine]:
            if len(canonical(map_)) <= MAX_REQUEST_BYTES - _RESERVED_BYTES:
                yield {"map": map_, **more}
    elif "inverse" in fields:
        yield {"inverse": inverse}
    elif "reads" in fields:
        yield from ({"reads": known} for known in (False, True))
    else:
        yield {}


@dataclass(frozen=True)
class Declaration:
    """What the owner of a source declares for one coordinator.

    Attributes
    ----------
    coordinator : PublicKey
        Public key of the coordinator.
    model : str
        Hash of the model that scored the records
        (:func:`veracal.federation.model_hash`).
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
        if not is_hexadecimal(self.model, HASH_DIGITS):
            raise ValueError(
                f"Expected model to be {HASH_DIGITS} hexadecimal digits, the hash of the model, "
                f"got {str(self.model)[:80]!r}."
            )
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


@dataclass(frozen=True)
class Proposal:
    """A checked enrollment that is not written yet."""

    folder: SourceFolder
    terms: Terms
    seconds: float  # of the slowest query


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
    budget, declared = declaration.budget(source), dict(vars(declaration))
    epsilon, most = declared.pop("epsilon"), declared.pop("max_per_answer")
    terms = Terms(
        source=secrets.token_hex(ID_DIGITS // 2),
        name=source.name,
        key=source.public,
        data=secrets.token_hex(ID_DIGITS // 2),
        classes=scores.n_classes,
        reads=scores.kind,
        relation=budget.relation,
        unit=budget.unit,
        micro_epsilon=to_micro(epsilon),
        max_per_answer=to_micro(epsilon if most is None else most),
        **declared,
    )
    if terms.is_expired():
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
    partition: str | None = None,
) -> Terms:
    """Enroll records for one coordinator: :func:`propose`, then :func:`accept`.

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
    ledger, partition
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
    data_file = (
        None if data is None else RecordFile.read(Path(data), read_source(folder).digest_key)
    )
    proposal = propose(folder, scores, declaration)
    return accept(
        proposal, scores, data=data_file, model=model, ledger=ledger, partition=partition
    )


def accept(
    proposal: Proposal,
    scores: Scores,
    *,
    data: RecordFile | None = None,
    model: str | Path | None = None,
    ledger: Ledger | None = None,
    partition: str | None = None,
) -> Terms:
    """Charge the share and write the enrollment atomically.

    Parameters
    ----------
    proposal, scores, data, model
        As of :func:`propose` and :func:`enroll`.
    ledger : Ledger, optional
        Ledger of the data set that the records come from. The whole budget of the enrollment
        is charged to it once, as to the institution's own ledger. It is never refunded.
    partition : str, optional
        Partition of the ledger that the records belong to; by default all partitions pay.
    """
    source, terms = proposal.folder, proposal.terms
    folder = source.path / ENROLLED
    with translate_os_errors(folder):
        temporary = Path(tempfile.mkdtemp(dir=folder, prefix=TEMPORARY_PREFIX))
        try:
            _write_enrollment(temporary, proposal, scores, data, model)
            if ledger is not None:
                event = data_event(terms.budget, ledger)
                ledger.charge(event, _purpose(terms), partition=partition, request=terms.source)
            event, heads = (
                share_event(terms.budget),
                source.signed_heads(source.id, source.path),
            )
            entry = source.shares.charge(event, _purpose(terms), request=terms.source)
            heads.add(Head.sign(source.id, entry.index, entry.hash, entry.previous, source.key))
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
    rows = budget.unit.max_contributions
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
            file.write(today().isoformat().encode() + b"\n")


def _write_enrollment(
    folder: Path,
    proposal: Proposal,
    scores: Scores,
    data: RecordFile | None,
    model: str | Path | None,
) -> None:
    """Write all files of an enrollment; the stored records are read back and timed."""
    source, terms = proposal.folder, proposal.terms
    with atomic_file(folder / TERMS) as file:
        file.write(terms.seal(source.key))
    given = Scores(
        scores.values, scores.kind, scores.classes, scores.labels, Frozen(), scores.units
    )
    save_scores(given, folder / RECORDS, unit=UNIT)
    open_ledger(folder / SPENT, terms.budget, kind="pure" if terms.budget.pure else "open")
    create_heads_file(folder / HEADS)
    settings = OwnerSettings(
        classes=scores.classes,
        records=source.digest_key.of_file(folder / RECORDS),
        has_units=scores.units is not None,
        data=data,
        model=None if model is None else str(Path(model).absolute()),
        enrolled=today().isoformat(),
        seconds=proposal.seconds,
    )
    start = time.perf_counter()
    stored = Enrollment(folder, terms, settings, source.digest_key).records()
    seconds = proposal.seconds + time.perf_counter() - start
    if not (
        stored.kind == scores.kind
        and np.array_equal(stored.values, scores.values)
        and np.array_equal(stored.known_labels, scores.known_labels)
    ):
        raise DataError(
            f"{scores.name}: records",
            "records that can be stored without change",
            "records that changed when they were stored",
            "Save them as npz first.",
        )
    check_deadline(seconds, terms, scores.name)
    replace(settings, seconds=seconds).save(folder / PRIVATE)


def _purpose(terms: Terms) -> str:
    """Purpose of a share in the ledger."""
    return f"enrollment for coordinator {terms.coordinator.text[:16]}"

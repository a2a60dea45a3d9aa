"""Whether records are as declared: seen when they are enrolled, never when they are asked.

Every declared query, tried once on the records before anybody may ask it.

What comes out is thrown away. It is only seen that each query can be answered at all, and
how long the slowest takes: whether a query fails, or how long it takes, must not be an
answer that nobody paid for.

How records are enrolled for one coordinator: checked, rehearsed, charged, written.
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
from veracal.accounting import MICRO, Budget, Event, Pure, Unit
from veracal.artifact import sync_folder
from veracal.calibration import Form, ParameterGrid, TemperatureGrid, weight_shape
from veracal.data import Scores, no_surprises, placed, save_scores
from veracal.errors import DataError, LedgerError
from veracal.federation.protocol.envelopes import MAX_REQUEST_BYTES, PublicKey
from veracal.federation.protocol.messages import MAX_ENTRIES, Head
from veracal.federation.protocol.queries import (
    ACCURACY_BITS,
    KINDS,
    SCALE_BITS,
    DEFAULT_KINDS,
    build_query,
    inverse_units,
)
from veracal.federation.protocol.terms import ID_DIGITS, Terms, micro_of
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
    TEMPORARY_PREFIX,
    ENROLLED,
    HEADS,
    SourceFolder,
    read_source,
    share_event,
    create_heads_file,
)
from veracal.ledger import Ledger, as_written, canonical, open_ledger
from veracal.mechanisms import add_discrete_laplace
from veracal.queries import check_units, evaluate_query


def check_records(scores: Scores, terms: Terms) -> None:
    """Refuse records that are not as declared, now and not when they are asked.

    Raises
    ------
    DataError
        It is for the owner of the records, and may say how many there are.
    """
    n = len(scores)
    if scores.labels is None:
        raise records_error(
            scores, "labels", "the right answer of every record", "none", "Add labels."
        )
    if not terms.min_records <= n <= terms.max_records:
        raise records_error(
            scores,
            "records",
            f"from {terms.min_records:,} to {terms.max_records:,}, as declared",
            f"{n:,}",
            "Declare others, in round numbers: the coordinator reads them.",
        )
    _check_units(scores, terms.unit)


def _check_units(scores: Scores, unit: Unit) -> None:
    """Refuse records of which a unit may have more rows than it is protected with."""
    if unit.name != "record" and scores.units is None:
        raise records_error(
            scores,
            "units",
            f"which {unit.name} each row belongs to",
            "no ids",
            f"Name the column with the ids of each {unit.name}.",
        )
    if unit.name == "record" and scores.units is not None:
        raise records_error(
            scores,
            "units",
            "none, since this source protects single records",
            "ids of units",
            "Make a source that protects them (init --unit patient --at-most 3), or leave "
            "the column out if single records are really what is to be protected.",
        )
    check_units(scores, unit)


def records_error(
    scores: Scores, part: str, expected: str, found: str, remedy: str
) -> DataError:
    """Error for records that are not as declared."""
    return DataError(f"{scores.name}: {part}", expected, found, remedy)


FACTOR = 4  # the deadline is at least so many times what the slowest query took
_NOISE = 1_000.0
_ROOM = 1_000  # bytes of a request that are no argument
_FORMS: tuple[Form, ...] = ("scalar", "vector", "matrix")


def time_queries(scores: Scores, terms: Terms) -> float:
    """Try every declared query, and return the seconds that the slowest took.

    Raises
    ------
    DataError
        If one cannot be answered; the words say which, and nothing about the records.
    """
    return max(
        _time_query(scores, terms, kind, argument)
        for kind in terms.kinds
        for argument in example_arguments(kind, terms)
    )


def check_deadline(seconds: float, terms: Terms, where: str | Path) -> None:
    """Refuse a deadline that answers could miss.

    Raises
    ------
    DataError
        Which names one that will do.
    """
    least = FACTOR * seconds
    if terms.deadline < least:
        raise DataError(
            str(where),
            f"a deadline of at least {FACTOR} times what the slowest query takes here",
            f"{terms.deadline:g} seconds, with a query that takes {seconds:.2g}",
            f"Declare a deadline of {_recommend_deadline(least):g} seconds.",
        )


def example_arguments(kind: str, terms: Terms) -> Iterator[dict[str, Any]]:
    """Arguments of a kind, the largest that fit a request among them."""
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
    """Ask one query, forget the answer."""
    query = build_query(kind, argument, terms)
    start = time.perf_counter()
    try:
        exact = evaluate_query(query, scores)
        add_discrete_laplace(exact, _NOISE)
    except Exception as cause:  # whatever it says may be about a record
        raise _unanswerable_error(scores, kind) from cause
    if query.entries > MAX_ENTRIES:
        raise _unanswerable_error(scores, kind)
    return time.perf_counter() - start


def _unanswerable_error(scores: Scores, kind: str) -> DataError:
    """Error for a query that these records cannot be asked."""
    return DataError(
        scores.name,
        f"records that can be asked for {KINDS[kind].words}",
        f"some that cannot ({kind!r})",
        "Leave this kind of query out.",
    )


def _lowest_inverse(terms: Terms) -> int:
    """A temperature of the declared range: the lowest, at which numbers are largest."""
    grid = terms.temperatures
    return inverse_units(float(grid.inverses([grid.low])[0]), grid)


def _other_maps(terms: Terms) -> Iterator[dict[str, Any]]:
    """Maps that are not affine."""
    yield {"inverse": _lowest_inverse(terms)}
    yield {"doubt": 1, "inverse": _lowest_inverse(terms)}
    yield from _if_sendable({"accuracies": [1 << (ACCURACY_BITS - 1)] * terms.bins})


def _affine_maps(terms: Terms) -> Iterator[dict[str, Any]]:
    """Affine maps of every form that fits into a request."""
    k, grid = terms.classes, terms.parameters
    for form in _FORMS:
        many = 1
        for side in weight_shape(form, k):
            many *= side
        if many + k <= MAX_REQUEST_BYTES:
            units = [grid.most_weight << grid.bits] * many + [0] * k
            yield from _if_sendable({"form": form, "reads": True, "units": units})


def _if_sendable(map_: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A map, if a request could carry it."""
    if len(canonical(map_)) <= MAX_REQUEST_BYTES - _ROOM:
        yield map_


def _recommend_deadline(seconds: float) -> float:
    """A round number of seconds with room to spare."""
    steps = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_800, 3_600)
    return next((step for step in steps if step >= 1.5 * seconds), 86_400.0)


@dataclass(frozen=True)
class Declaration:
    """What a source decides for one coordinator, all by itself.

    Attributes
    ----------
    coordinator : PublicKey
    model : str
        Hash of the model that the records were scored by
        (:func:`veracal.federation.models.model_hash`).
    epsilon : float
        All that this coordinator may ever spend.
    max_per_answer : float or None
        Most that one answer may cost; None for all of it.
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
        """All that this coordinator may ever spend, for whom the source protects."""
        return replace(source.budget, epsilon=micro_of(self.epsilon) / MICRO, delta=self.delta)

    def terms(self, source: SourceFolder, scores: Scores) -> Terms:
        """The terms of a new enrollment."""
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
            micro_epsilon=micro_of(self.epsilon),
            delta=self.delta,
            max_per_answer=micro_of(max_per_answer),
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
    """An enrollment that was checked, and of which nothing is written yet.

    Attributes
    ----------
    folder : SourceFolder
    terms : Terms
    seconds : float
        What the slowest query took.
    """

    folder: SourceFolder
    terms: Terms
    seconds: float


def propose(folder: str | Path, scores: Scores, declaration: Declaration) -> Proposal:
    """Check records and a declaration, try every query, and write nothing.

    Raises
    ------
    DataError
        If the records are not as declared, or a query cannot be answered in time.
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
        To be handed to the coordinator, signed, from :func:`sealed_terms`.

    Raises
    ------
    DataError, BudgetError, LedgerError
        As of :func:`propose`; nothing is charged and nothing left behind.
    """
    origin = None if data is None else RecordFile.of(Path(data), read_source(folder).marks)
    proposal = propose(folder, scores, declaration)
    return accept(proposal, scores, data=origin, model=model, ledger=ledger, part=part)


def accept(
    proposal: Proposal,
    scores: Scores,
    *,
    data: RecordFile | None = None,
    model: str | Path | None = None,
    ledger: Ledger | None = None,
    part: str | None = None,
) -> Terms:
    """Charge the share and write the enrollment, whole or not at all.

    Parameters
    ----------
    proposal : Proposal
    scores : Scores
    data, model
        As of :func:`enroll`.
    ledger : Ledger, optional
        Of the data set that the records come from. The whole budget of the enrollment is
        charged to it, once and for good, as to the institution's own.
    part : str, optional
        Partition of the ledger that the records are; by default all of them.
    """
    source, terms = proposal.folder, proposal.terms
    place = source.path / ENROLLED
    with no_surprises(place):
        building = Path(tempfile.mkdtemp(dir=place, prefix=TEMPORARY_PREFIX))
        try:
            _write_records(building, source, terms, scores)
            _write_settings(building, proposal, scores, data, model)
            if ledger is not None:
                event = data_event(terms.budget, ledger)
                ledger.charge(event, _purpose(terms), part=part, request=terms.source)
            _charge_share(source, terms)
            building.rename(place / terms.source)
            sync_folder(place)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return terms


def data_event(budget: Budget, ledger: Ledger) -> Event:
    """What an enrollment takes from the ledger of a data set: its whole budget.

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
            f"{ledger.path}: an enrollment with a delta, for units of several rows, cannot be "
            "charged to a data set's ledger. Leave out --delta and the queries that need it."
        )
    each = budget.epsilon / rows
    while rows * Fraction(each) > as_written(budget.epsilon):  # or it costs a millionth more
        each = math.nextafter(each, 0.0)
    return Pure(each, budget.relation)


def revoke(source: SourceFolder, enrollment: Enrollment) -> None:
    """Answer this coordinator no more; what it was granted is not given back."""
    if not enrollment.is_revoked:
        source.signed_heads(enrollment.terms.source, enrollment.path).end(source.key)
        with placed(enrollment.path / REVOKED) as file:
            file.write(_today().encode() + b"\n")


def _write_records(folder: Path, source: SourceFolder, terms: Terms, scores: Scores) -> None:
    """Write what the coordinator gets, the records, and a ledger with nothing in it."""
    with placed(folder / TERMS) as file:
        file.write(terms.seal(source.key))
    kept = Scores(
        scores.values, scores.kind, scores.classes, scores.labels, Frozen(), scores.units
    )
    save_scores(kept, folder / RECORDS, unit=UNIT)
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
    """Write what the owner alone knows, once the records could be read again in time."""
    marks = proposal.folder.marks
    described = OwnerSettings(
        classes=scores.classes,
        records=marks.of_file(folder / RECORDS),
        has_units=scores.units is not None,
        data=data,
        model=None if model is None else str(Path(model).absolute()),
        enrolled=_today(),
        seconds=proposal.seconds,
    )
    start = time.perf_counter()
    again = Enrollment(folder, proposal.terms, described, marks).records()
    seconds = proposal.seconds + time.perf_counter() - start
    if not _same(again, scores):
        raise records_error(
            scores, "records", "records that can be kept", "others", "Save them as npz first."
        )
    check_deadline(seconds, proposal.terms, scores.name)
    OwnerSettings(**{**vars(described), "seconds": seconds}).save(folder / PRIVATE)


def _charge_share(source: SourceFolder, terms: Terms) -> None:
    """Charge the whole budget of an enrollment, once and for good, and sign that it was."""
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
    return f"enrollment for coordinator {terms.coordinator.text[:16]}"


def _today() -> str:
    """Day, in UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()

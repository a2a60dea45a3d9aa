"""Results built by hand, and results in which every name is one of a list."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from veracal.accounting import Statement
from veracal.artifact import LedgerHead, RecalibrationRecord, SourceCost
from veracal.calibration import (
    Bins,
    CalibrationResult,
    Identity,
    PrivateCurve,
    PrivateFigures,
    ReliabilityBin,
    ReliabilityCurve,
    Temperature,
)
from veracal.data import Estimate
from veracal.ledger import EpsilonDelta
from veracal.report import (
    DataFacts,
    ExactFigures,
    LedgerLine,
    LedgerSummary,
    MeasurementRecord,
    Results,
    UnreleasedFigures,
)

UNKNOWN = Estimate(None, None, None, 0.95, 100)


def guarantee(**changes: Any) -> Statement:
    """A statement, some fields of which matter to a test."""
    fields = {
        "epsilon": 2.0,
        "delta": 1e-5,
        "relation": "add-remove",
        "unit": "record",
        "max_contributions": 1,
        "accountant": "exact",
        "composition": "fixed",
        "sampler": "none",
        "numerics": "exact",
        "renyi_epsilon": 2.5,
        "epsilon_without_poisson": 7.5,
        "advantage": 0.5,
        "curve": ((1e-2, 1.5), (1e-10, 9.5)),
        "covers": ("the model",),
    }
    return Statement(**{**fields, **changes})


def reported(value: float | None, low: float | None, high: float | None) -> Estimate:
    """A figure with its interval."""
    return Estimate(value, low, high, 0.95, 100)


def private_figures(accuracies: Sequence[Estimate] = (), **figures: Estimate) -> PrivateFigures:
    """Figures, with a curve of these accuracies."""
    n = len(accuracies)
    count = reported(50.0, 40.0, 60.0)
    means = tuple((b + 0.5) / n for b in range(n))
    curve = PrivateCurve(Bins(n), (count,) * n, tuple(accuracies), means) if n else None
    return PrivateFigures(reported(500.0, 480.0, 520.0), **figures, curve=curve)


def measurement(when: str, overall: PrivateFigures, **changes: Any) -> MeasurementRecord:
    """A measurement at some cost."""
    return replace(
        MeasurementRecord(when, "2026-01-01", 999_999, {"counts": 500_000}, overall), **changes
    )


def data(**changes: Any) -> DataFacts:
    """Declared facts."""
    facts = DataFacts("d", ("no", "yes"), 3, {"age": ("young",)}, "record", 1, 1000, 0.2)
    return replace(facts, **changes)


def ledger(*lines: LedgerLine) -> LedgerSummary:
    """A ledger with planned lines."""
    return LedgerSummary(
        "d", "ab" * 32, lines, EpsilonDelta(3.0, 1e-5), EpsilonDelta(2.0, 1e-5), 1, None
    )


def example_results(
    top: Estimate | None = None, groups: dict[str, PrivateFigures] | None = None, **changes: Any
) -> Results:
    """Results with a curve of ten bins whose last one is given."""
    after = measurement(
        "after", private_figures([UNKNOWN] * 9 + [top or UNKNOWN]), groups=groups or {}
    )
    results = Results(
        name="m",
        date="2026-01-01",
        data=data(),
        guarantee=guarantee(),
        ledger=ledger(LedgerLine("training", "train", 1, 1, 1.5, 1e-5)),
        map=Identity(),
        measured=(after,),
        settings={"privacy": {"epsilon": 3.0}},
    )
    return replace(results, **changes)


def source_cost(name: str, **changes: Any) -> SourceCost:
    """An institution that answered every query."""
    cost = SourceCost(
        name=name,
        key="2a81 9b1e 10a8 eb05 3a6c 6768 0018 fe66",
        unit="patient",
        max_contributions=3,
        relation="add-remove",
        epsilon=1.2345671,
        delta=1e-5,
        answered=True,
        why=None,
        head=LedgerHead(5, "ab" * 32),
    )
    return replace(cost, **changes)


def recalibration(*sources: SourceCost, **changes: Any) -> RecalibrationRecord:
    """A recalibration by these institutions."""
    side = private_figures(
        accuracy=Estimate(0.8, 0.7, 0.9, 0.95, 900), ece=Estimate(0.1, 0.05, 0.2, 0.95, 900)
    )
    record = RecalibrationRecord(
        study="Heart study",
        made="2026-11-16",
        method="pooled",
        map=Temperature(0.5),
        guard=None,
        temperatures={"temperature": Estimate(2.0, 1.5, 2.5, 0.95, 900)},
        before=side,
        after=side,
        guarantee=guarantee(epsilon=1.2345671, covers=("what was released,", "in full")),
        sources=sources,
    )
    return replace(record, **changes)


def named_results(results: Results, names: Sequence[str]) -> Results:
    """Results in which every name is one of these."""
    overall = results.measured[-1].overall
    named = {name: name for name in names}
    measured = [
        replace(one, groups=dict.fromkeys(names, overall), group=names[6])
        for one in results.measured
    ]
    later = [replace(measured[-1], when=name, date=name) for name in names[:30]]
    lines = [LedgerLine(n, n, 1, 1, 1.0, 0.0) for n in names]
    institutions = [source_cost(n, why=n, unit=n, key=n, answered=False) for n in names]
    institutions.append(source_cost(names[0], head=LedgerHead(1, names[1])))
    return replace(
        results,
        name=names[0],
        date=names[1],
        data=data(
            name=names[2],
            classes=tuple(names[:12]),
            groups={name: (name,) for name in names},
            unit=names[3],
        ),
        guarantee=guarantee(
            unit=names[3],
            accountant=names[7],
            composition=names[8],
            sampler=names[9],
            numerics=names[10],
            covers=tuple(names),
            not_covered=tuple(names),
            ledger_total=names[11],
        ),
        ledger=replace(ledger(*lines), name=names[4], head=names[4], note=names[5]),
        measured=(*measured, *later),
        settings={"measurement": {"group": names[6]}, "names": named},
        versions=named,
        not_measured=tuple(names),
        recalibrations=(
            recalibration(*institutions, study=names[0], made=names[1], method=names[2]),
        ),
    )


def reliability_curve(count: int) -> ReliabilityCurve:
    """A reliability curve without noise, with one empty bin."""
    empty = ReliabilityBin(0.0, 0.5, 0, None, None, None, None)
    full = ReliabilityBin(0.5, 1.0, count, 0.75, 0.7, 0.6, 0.8)
    return ReliabilityCurve("top label", (empty, full), count, 0.75, 0.7, 0.95, "wilson")


def exact_figures(
    count: int, figures: dict[str, Estimate], groups: dict[str, dict[str, Estimate]]
) -> ExactFigures:
    """Exact figures of one stage."""
    curve = reliability_curve(count)
    overall = CalibrationResult("m", count, count, 2, 2, 0.95, 0, figures, {}, curve)
    return ExactFigures(overall, groups)


def named_internal(names: Sequence[str]) -> UnreleasedFigures:
    """Internal figures with such names."""
    counts = {name: i for i, name in enumerate(names)}
    figures = dict.fromkeys(names, reported(0.5, 0.4, 0.6))
    groups = dict.fromkeys(names[:12], figures)
    return UnreleasedFigures(
        counts,
        counts,
        {name: {name: 1} for name in names},
        {"after": exact_figures(5, figures, groups)},
        (1.0, 0.5),
    )


def shortened(results: Results) -> Results:
    """The same with one entry, or two, of all that repeats."""
    first = results.measured[0]
    name, figures = next(iter(first.groups.items()))
    study = results.recalibrations[-1]
    return replace(
        results,
        data=replace(
            results.data, classes=results.data.classes[:2], groups={"age": ("young",)}
        ),
        guarantee=replace(results.guarantee, covers=("all",), not_covered=("none",)),
        ledger=replace(results.ledger, planned=results.ledger.planned[:1]),
        measured=(replace(first, groups={name: figures}),),
        settings={"measurement": {"bins": 10}},
        versions={"veracal": "1"},
        not_measured=results.not_measured[:1],
        recalibrations=(replace(study, sources=study.sources[-1:]),),
    )


def places(written: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to the values of JSON: of a list to its first item, and not into the settings."""
    if path:
        yield path
    if isinstance(written, dict) and path != ("settings",):
        for key, value in written.items():
            yield from places(value, (*path, key))
    if isinstance(written, list) and written:
        yield from places(written[0], (*path, 0))


def value_at(written: Any, path: tuple[Any, ...]) -> Any:
    """The value at a path."""
    for key in path:
        written = written[key]
    return written


def changed(written: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The same JSON with another value at a path."""
    copy = json.loads(json.dumps(written))
    value_at(copy, path[:-1])[path[-1]] = value
    return copy

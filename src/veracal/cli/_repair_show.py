"""A repair as tables for people and as facts for programs."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import typer

from veracal.cli import _methods, _predictions, _show
from veracal.cli._curve import drawn, marks
from veracal.cli._figures import interval, number, plain
from veracal.cli._released import figures_of
from veracal.cli._repairing import FITTED_ON, Repair, Sides
from veracal.data import Estimate
from veracal.privacy.costs.statement import rounded_down, rounded_up
from veracal.report.drawable import drawable

NOT_PRIVATE = "NOT private: the map was fitted to the records as they are"


def facts(made: Repair) -> dict[str, Any]:
    """Everything as what JSON can hold."""
    spent = made.spending
    return {
        "method": made.method,
        "private": made.private,
        "map": made.map.to_json(),
        "temperatures": {name: plain(found) for name, found in made.temperatures.items()},
        "epsilon": None if spent is None else spent.epsilon,
        "delta": None if spent is None else spent.delta,
        "statement": None if made.statement is None else made.statement.to_json(),
        "guard": _guard(made),
        "figures_on": FITTED_ON,
        "released": None
        if made.released is None
        else {
            "before": made.released.before.to_json(),
            "after": made.released.after.to_json(),
        },
        "internal": None if made.internal is None else internal_facts(made.internal),
        "ledger": made.account,
    }


def _guard(made: Repair) -> dict[str, Any] | None:
    """What the guard said."""
    if made.guarded is None:
        return None
    found = made.guarded
    names = ("kept", "gain", "threshold", "beta", "records")
    return {name: getattr(found, name) for name in names}


def internal_facts(sides: Sides) -> dict[str, Any]:
    """Internal figures, under a note that they are."""
    assert sides.curves is not None
    return {
        "note": _predictions.INTERNAL,
        "before": {name: plain(found) for name, found in sides.before.items()},
        "after": {name: plain(found) for name, found in sides.after.items()},
        "curves": {
            "before": sides.curves[0].to_json(),
            "after": sides.curves[1].to_json(),
        },
    }


def show(made: Repair, name: str, ledger: str) -> None:
    """Print the map and what it cost, then figures of both sides."""
    console = _show.console()
    rows = list(_lines(made, ledger))
    console.print(_show.table(f"{name}: the map", ("", ""), rows))
    if made.released is not None:
        sides = (
            figures_of(made.released.before.overall),
            figures_of(made.released.after.overall),
        )
        note = f"Released with noise, on {FITTED_ON}."
        console.print(sides_table("before and after", *sides, note=note))
        released = made.released.before.overall.curve, made.released.after.overall.curve
        _draw(curve for curve in released if curve is not None)
    if made.internal is not None:
        show_internal(made.internal)
    if made.released is None and made.internal is None:
        _show.status(
            "No figures before and after: --measure EPSILON releases private ones, for so much "
            "more (with --curve, drawings, too), and --internal shows plain ones. The map is "
            "the same."
        )


def show_internal(found: Sides) -> None:
    """Print figures of the records as they are."""
    note = f"{_predictions.INTERNAL}\nOn {FITTED_ON}, which flatters a map with many numbers."
    table = sides_table("before and after", found.before, found.after, note=note)
    _show.console().print(table)
    _draw(found.curves or ())


def _draw(curves: Iterable[Any]) -> None:
    """Draw the curves of both sides, if there are any."""
    for when, curve in zip(("before", "after"), curves, strict=False):
        typer.echo(f"\n{when}\n{drawn(drawable(curve), marks())}")


def _lines(made: Repair, ledger: str) -> Iterator[tuple[str, str]]:
    """What there is to say of a map."""
    yield "map", _methods.words(made.map)
    for name, found in made.temperatures.items():
        ends = f"{found.level:.0%} interval {found.low:.4g} to {found.high:.4g}"
        which = name if name == "temperature" else f"temperature, {name}"
        yield f"{which} found", f"{found.value:.5g}, {ends}"
    if made.guarded is not None:
        yield "guard", made.guarded.text()
    if made.spending is None or made.account is None:
        yield "privacy", NOT_PRIVATE
        return
    spent, account = made.spending, made.account
    parts = [f"{rounded_up(spent.fit / 1e6, 6)} for the map"]
    parts += [f"{rounded_up(spent.guard / 1e6, 6)} for the guard"] if spent.guard else []
    measuring = rounded_up(2 * (spent.measure // 2) / 1e6, 6)
    parts += [f"{measuring} for figures"] if spent.measure else []
    delta = f", delta {rounded_up(spent.delta)}" if spent.delta else ""
    assert made.statement is not None
    pure = rounded_up(spent.epsilon, 6)
    total = rounded_up(made.statement.epsilon) if spent.delta else pure
    yield "cost", f"epsilon {total}{delta} in all: {', '.join(parts)}"
    paid = rounded_up(account["spent"]["epsilon"], 6)
    left = rounded_down(account["left"]["epsilon"], 6)
    yield "ledger", f"{ledger}: epsilon {paid} spent, {left} left"


def sides_table(
    title: str, before: Mapping[str, Estimate], after: Mapping[str, Estimate], *, note: str
) -> object:
    """Figures side by side."""
    level = next(iter(before.values())).level
    ends = f"{level:.0%} interval"
    rows = [
        (
            name,
            number(one.value),
            interval(one),
            number(after[name].value),
            interval(after[name]),
        )
        for name, one in before.items()
    ]
    heads = ("figure", "before", ends, "after", f"{ends} ")
    return _show.table(title, heads, rows, right=heads[1:], note=note)

"""What a source allows and has told, in words for people who are no engineers."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from veracal.cli import _methods
from veracal.federation.protocol.maps import map_of
from veracal.federation.protocol.questions import KINDS
from veracal.federation.protocol.terms import Terms
from veracal.federation.source.history import Asked
from veracal.privacy.budget import Budget
from veracal.privacy.costs.pure import MICRO
from veracal.privacy.costs.statement import rounded_down, rounded_up
from veracal.privacy.ledger.book import Amount

_WIDTH = 88
_MANY = 40  # numbers of an answer that are written out


def allowed(terms: Terms, left: Amount, *, before: bool) -> Iterator[str]:
    """Lines that say what an enrolment allows, before and after it is made."""
    would = "would be" if before else "is"
    yield from paragraph(
        f"Whoever holds the key {terms.calibrator.fingerprint} (the calibrator) may ask "
        f"{terms.name} about the predictions of one model on the enrolled records. The answers "
        "are sums and counts over all of the records, with noise. No record leaves this "
        "machine, and nobody else is answered."
    )
    yield ""
    yield from _list("It may learn, each time with noise:", _questions(terms))
    yield from paragraph(
        "A temperature, or a map, is a way to make the model's probabilities more or less "
        "cautious, which the calibrator tries out. It cannot choose anything else."
    )
    yield ""
    yield from paragraph(f"All of its answers together cost at most {_amount(terms.budget)}.")
    yield from paragraph(promise(terms.budget))
    yield from paragraph(
        f"One answer costs at most epsilon {terms.most_each / MICRO:g}. When the budget is "
        "used up, nothing more is answered, ever; the same question asked again gets the same "
        "answer and costs nothing."
    )
    yield from paragraph(
        f"Of this source's whole budget, epsilon {rounded_down(left.epsilon, 6)} {would} left "
        "for other calibrators. What is granted now is never given back, used or not."
    )
    yield ""
    yield from _list("You declare to the calibrator, and nothing else is told:", _facts(terms))
    yield ""
    until = f"until {terms.expires} (UTC), or " if terms.expires else ""
    yield from paragraph(
        f"This holds {until}until you revoke it. Every reply, answer or refusal, leaves "
        f"{terms.deadline:g} seconds after its request, so that the time it takes tells "
        "nothing. If the data file changes, nothing more is answered."
    )


def promise(budget: Budget) -> str:
    """What epsilon means for one person."""
    whom = f"one {budget.unit.name}"
    rows = f", with up to {budget.unit.at_most} rows," if budget.unit.at_most > 1 else ""
    change = "were left out" if budget.relation == "add-remove" else "were another"
    factor = rounded_up(math.exp(min(budget.epsilon, 700.0)), 3)
    slack = f", but for a chance of {rounded_up(budget.delta)}" if budget.delta else ""
    return (
        f"That means: if {whom}{rows} {change}, no possible outcome would become more than "
        f"{factor} times as likely, or as unlikely{slack}. (1 would mean no influence at all.)"
    )


def question(kind: str, argument: Mapping[str, Any], terms: Terms) -> str:
    """What was asked, and where."""
    words = KINDS[kind].words if kind in KINDS else kind
    if "inverse" in argument:
        value = 2.0**terms.temperatures.bits / argument["inverse"]
        return words.replace("at a temperature", f"at temperature {value:.5g}")
    if "map" in argument:
        map_ = map_of(argument["map"], terms)
        return f"{words}; the map: {_methods.words(map_)}"
    return words


def sent(asked: Asked) -> str:
    """The numbers that left."""
    if not asked.values:
        return "nothing: the answer could not be computed"
    numbers = list(asked.values)
    noise = f"noise of about ±{asked.noise_std:.3g} on each"
    if asked.kind in _PAIRS and len(numbers) % 2 == 0:
        first, second = _PAIRS[asked.kind]
        return f"{first} {_numbers(numbers[::2])}; {second} {_numbers(numbers[1::2])}; {noise}"
    return f"{_numbers(numbers)}; {noise}"


def paid(asked: Asked) -> str:
    """What an answer cost, and what is left."""
    return (
        f"epsilon {rounded_up(asked.epsilon, 6)}; in all so far "
        f"{rounded_up(asked.spent.epsilon, 6)}, {rounded_down(asked.left.epsilon, 6)} left"
    )


def indented(label: str, text: str, *, width: int = 10) -> list[str]:
    """A label and text that goes on below itself."""
    start = f"   {label:<{width}}"
    return textwrap.wrap(
        text, _WIDTH, initial_indent=start, subsequent_indent=" " * len(start)
    ) or [start.rstrip()]


def _questions(terms: Terms) -> list[str]:
    """What may be asked."""
    return [KINDS[kind].words for kind in terms.kinds]


def _facts(terms: Terms) -> list[str]:
    """What the terms tell, none of which was read off the records."""
    grid, maps = terms.temperatures, terms.parameters
    return [
        f"your name, your public key, and that you protect {terms.unit}, under "
        f"{terms.relation}",
        f"that there are from {terms.least_records:,} to {terms.most_records:,} records, of "
        f"{terms.classes} classes, scored by the model {terms.model[:12]}… as {terms.reads}",
        f"that temperatures are from {grid.low:g} to {grid.high:g}, confidence is sorted into "
        f"{terms.bins} bins, the loss of one record counts up to {terms.clamp:g}, and "
        f"affine maps have weights up to {maps.most_weight} and biases up to {maps.most_bias}",
        "the questions above, the budget, the day it ends, and the seconds after which replies "
        "leave",
    ]


def _amount(budget: Budget) -> str:
    """A budget in figures."""
    delta = f" and delta {rounded_up(budget.delta)}" if budget.delta else ""
    return f"epsilon {budget.epsilon:g}{delta} for {_whom(budget)}"


def _whom(budget: Budget) -> str:
    """Whom a budget protects."""
    return f"each {budget.unit.name}"


def _numbers(values: Sequence[float]) -> str:
    """Numbers, as many as can be read."""
    shown = ", ".join(_number(value) for value in values[:_MANY])
    return f"{shown}, … ({len(values)} in all)" if len(values) > _MANY else shown


def _number(value: float) -> str:
    """A number as people write it."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def paragraph(text: str) -> list[str]:
    """Lines of readable length."""
    return textwrap.wrap(text, _WIDTH)


def _list(title: str, items: Sequence[str]) -> Iterator[str]:
    """A title and points below it."""
    yield title
    for item in items:
        yield from textwrap.wrap(item, _WIDTH, initial_indent="  - ", subsequent_indent="    ")


_PAIRS = {
    "counts": ("right", "wrong"),
    "bins": ("right, by bin:", "wrong, by bin:"),
    "bins-paper": ("right, by bin:", "all, by bin:"),
    "map-counts": ("right", "wrong"),
    "platt-counts": ("right", "wrong"),
}

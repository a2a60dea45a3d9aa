"""What a source allows and has told, in words for people who are no engineers.

What the commands of a source print: a new source, its status, its log.
"""

import datetime
import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from veracal.accounting import MICRO, Budget, rounded_down, rounded_up
from veracal.cli import _methods
from veracal.cli import _output as _show
from veracal.errors import DataError, VeracalError
from veracal.federation import (
    KINDS,
    AnsweredRequest,
    Enrollment,
    AnswerLog,
    SourceFolder,
    Terms,
    list_enrollments,
    read_answer_log,
    decode_map,
    find_problems,
    read_enrollment,
    read_source,
    find_share_problems,
)
from veracal.federation import revoke as revoke_enrollment
from veracal.ledger import Amount

_WIDTH = 88
_MANY = 40  # numbers of an answer that are written out


def describe_allowance(terms: Terms, left: Amount, *, before: bool) -> Iterator[str]:
    """Lines that say what an enrollment allows, before and after it is made."""
    would = "would be" if before else "is"
    yield from paragraph(
        f"Whoever holds the key {terms.coordinator.fingerprint} (the coordinator) may ask "
        f"{terms.name} about the predictions of one model on the enrolled records. The answers "
        "are sums and counts over all of the records, with noise. No record leaves this "
        "machine, and nobody else is answered."
    )
    yield ""
    yield from _list("It may learn, each time with noise:", _questions(terms))
    yield from paragraph(
        "A temperature, or a map, is a way to make the model's probabilities more or less "
        "cautious, which the coordinator tries out. It cannot choose anything else."
    )
    yield ""
    yield from paragraph(f"All of its answers together cost at most {_amount(terms.budget)}.")
    yield from paragraph(explain_epsilon(terms.budget))
    yield from paragraph(
        f"One answer costs at most epsilon {terms.max_per_answer / MICRO:g}. When the budget is "
        "used up, nothing more is answered, ever; the same query asked again gets the same "
        "answer and costs nothing."
    )
    yield from paragraph(
        f"Of this source's whole budget, epsilon {rounded_down(left.epsilon, 6)} {would} left "
        "for other coordinators. What is granted now is never given back, used or not."
    )
    yield ""
    yield from _list("You declare to the coordinator, and nothing else is told:", _facts(terms))
    yield ""
    until = f"until {terms.expires} (UTC), or " if terms.expires else ""
    yield from paragraph(
        f"This holds {until}until you revoke it. Every reply, answer or refusal, leaves "
        f"{terms.deadline:g} seconds after its request, so that the time it takes tells "
        "nothing. If the data file changes, nothing more is answered."
    )


def explain_epsilon(budget: Budget) -> str:
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


def describe_query(kind: str, argument: Mapping[str, Any], terms: Terms) -> str:
    """What was asked, and where."""
    words = KINDS[kind].words if kind in KINDS else kind
    if "inverse" in argument:
        value = 2.0**terms.temperatures.bits / argument["inverse"]
        return words.replace("at a temperature", f"at temperature {value:.5g}")
    if "map" in argument:
        map_ = decode_map(argument["map"], terms)
        return f"{words}; the map: {_methods.words(map_)}"
    return words


def describe_answer(asked: AnsweredRequest) -> str:
    """The numbers that left."""
    if not asked.values:
        return "nothing: the answer could not be computed"
    numbers = list(asked.values)
    noise = f"noise of about ±{asked.noise_std:.3g} on each"
    if asked.kind in _PAIRS and len(numbers) % 2 == 0:
        first, second = _PAIRS[asked.kind]
        return f"{first} {_numbers(numbers[::2])}; {second} {_numbers(numbers[1::2])}; {noise}"
    return f"{_numbers(numbers)}; {noise}"


def describe_cost(asked: AnsweredRequest) -> str:
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
        f"that there are from {terms.min_records:,} to {terms.max_records:,} records, of "
        f"{terms.classes} classes, scored by the model {terms.model[:12]}… as {terms.reads}",
        f"that temperatures are from {grid.low:g} to {grid.high:g}, confidence is sorted into "
        f"{terms.bins} bins, the loss of one record counts up to {terms.clamp:g}, and "
        f"affine maps have weights up to {maps.most_weight} and biases up to {maps.most_bias}",
        "the queries above, the budget, the day it ends, and the seconds after which replies "
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


_LATEST = 5  # refusals in a status


def show_new(source: SourceFolder, *, json: bool) -> None:
    """Print a source that was just made."""
    budget = source.budget
    if json:
        _show.print_json(
            {
                "folder": str(source.path),
                "name": source.name,
                "public_key": source.public.text,
                "fingerprint": source.public.fingerprint,
                "heads": None if source.heads is None else str(source.heads),
            }
        )
        return
    rows = [
        ("folder", f"{source.path}; for your eyes only"),
        ("your key", source.public.fingerprint),
        ("budget", f"epsilon {budget.epsilon:g}, delta {budget.delta:g}, for good"),
        ("protects", f"{budget.unit}, under {budget.relation}"),
        ("signed heads", "in the folder" if source.heads is None else f"also {source.heads}"),
    ]
    _show.console().print(_show.table(f"{source.name}: a new source", ("", ""), rows))
    _show.say("")
    _say_paragraph(explain_epsilon(budget))
    if source.heads is None:
        _say_paragraph(
            "Nothing outside of the folder would notice that a backup of all of it was put "
            "back. Consider a second file of heads on another disk: init --heads FILE.",
        )
    _show.say("")
    _show.say("Next:  veracal source enroll --help")


def show_status(folder: Path, *, json: bool) -> bool:
    """Print how a source stands; False if something is wrong."""
    source = read_source(folder)
    wrong = list(find_share_problems(source))
    facts = {**_source_facts(source), "problems": wrong}
    facts["enrollments"] = [_status_facts(source, each) for each in list_enrollments(source)]
    if json:
        _show.print_json(facts)
    else:
        _print_source(source, facts)
        for each in facts["enrollments"]:
            _print_enrollment(each)
    return not wrong and not any(each["problems"] for each in facts["enrollments"])


def show_log(folder: Path, enrollment: str | None, last: int | None, *, json: bool) -> bool:
    """Print what was asked and told; False if the books are not sound."""
    source = read_source(folder)
    chosen = _chosen(source, enrollment)
    found = [(each, read_answer_log(source, each)) for each in chosen]
    if json:
        _show.print_json({"enrollments": [_log_facts(each, told) for each, told in found]})
    else:
        for each, told in found:
            _print_log(each, told, last)
    return not any(told.problems for _, told in found)


def revoke(folder: Path, mark: str, *, yes: bool, json: bool) -> None:
    """Revoke an enrollment, once that was confirmed."""
    source = read_source(folder)
    enrollment = read_enrollment(source, mark)
    terms = enrollment.terms
    if json and not yes:
        raise typer.BadParameter("add --yes: nobody is asked here.", param_hint="--json")
    whose = f"{terms.source[:12]} of the coordinator {terms.coordinator.fingerprint}"
    if not (yes or typer.confirm(f"End enrollment {whose}, for good?", err=True)):
        _show.status("Nothing was changed.")
        raise typer.Exit(1)
    revoke_enrollment(source, enrollment)
    if json:
        _show.print_json({"enrollment": terms.source, "revoked": True})
    else:
        _show.say(
            f"Enrollment {terms.source[:12]} is revoked: this coordinator is answered no more. "
            "Its share of the budget is not given back."
        )


def _chosen(source: SourceFolder, enrollment: str | None) -> list[Enrollment]:
    """One enrollment, or all of them."""
    if enrollment is not None:
        return [read_enrollment(source, enrollment)]
    found = list_enrollments(source)
    if not found:
        raise DataError(
            str(source.path), "an enrollment", "none yet", "Enroll: `veracal source enroll`."
        )
    return found


def _source_facts(source: SourceFolder) -> dict[str, Any]:
    """What is shown of a source as a whole."""
    budget = source.budget
    return {
        "folder": str(source.path),
        "name": source.name,
        "created": source.created,
        "fingerprint": source.public.fingerprint,
        "public_key": source.public.text,
        "budget": {
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "relation": budget.relation,
            "unit": {"name": budget.unit.name, "at_most": budget.unit.at_most},
        },
        "granted": asdict(source.shares.spent()),
        "left": asdict(source.shares.remaining()),
        "heads": None if source.heads is None else str(source.heads),
    }


def _status_facts(source: SourceFolder, enrollment: Enrollment) -> dict[str, Any]:
    """What is shown of one enrollment."""
    terms, refusals = enrollment.terms, enrollment.refusals.lines()
    problems = list(find_problems(source, enrollment))
    told: dict[str, Any] = {"spent": None, "left": None, "answers": None}
    try:
        ledger = enrollment.ledger
        told["spent"], told["left"] = asdict(ledger.spent()), asdict(ledger.remaining())
        told["answers"] = dict(Counter(entry.purpose for entry in ledger.entries()))
    except VeracalError:
        pass  # it is among the problems
    return {
        "enrollment": terms.source,
        "coordinator": terms.coordinator.fingerprint,
        "since": enrollment.private.enrolled,
        "state": _state(enrollment, problems),
        "data": None if enrollment.private.data is None else enrollment.private.data.path,
        "budget": {"epsilon": terms.budget.epsilon, "delta": terms.delta},
        **told,
        "refusals": [{"when": when, "why": why} for when, why in refusals],
        "problems": problems,
    }


def _state(enrollment: Enrollment, problems: list[str]) -> str:
    """Whether an enrollment answers, in a few words."""
    if enrollment.is_revoked:
        return "revoked: nothing is answered"
    if enrollment.terms.is_expired(datetime.datetime.now(datetime.UTC).date()):
        return f"over since {enrollment.terms.expires}: nothing is answered"
    if problems:
        return "SOMETHING IS WRONG: nothing is answered"
    until = f" until {enrollment.terms.expires}" if enrollment.terms.expires else ""
    return f"answers{until}"


def _print_source(source: SourceFolder, facts: dict[str, Any]) -> None:
    """Print a source as a whole."""
    budget, left = source.budget, facts["left"]
    many = _show.counted(len(facts["enrollments"]), "enrollment")
    rows = [
        ("since", source.created),
        ("your key", source.public.fingerprint),
        ("protects", f"{budget.unit}, under {budget.relation}"),
        ("budget", f"epsilon {budget.epsilon:g}{_delta(budget.delta)}, of which"),
        ("", f"{rounded_up(facts['granted']['epsilon'], 6)} is granted, to {many}"),
        ("", f"{rounded_down(left['epsilon'], 6)} can still be granted"),
        ("signed heads", "in the folder" if source.heads is None else f"also {source.heads}"),
        *(("PROBLEM", problem) for problem in facts["problems"]),
    ]
    _show.console().print(_show.table(source.name, ("", ""), rows))


def _print_enrollment(facts: dict[str, Any]) -> None:
    """Print one enrollment."""
    rows = [
        ("coordinator", facts["coordinator"]),
        ("state", facts["state"]),
        *(("PROBLEM", problem) for problem in facts["problems"]),
        ("since", facts["since"]),
        ("data", facts["data"] or "given by a program"),
    ]
    if facts["spent"] is not None:
        total, delta = facts["budget"]["epsilon"], _delta(facts["budget"]["delta"])
        spent = rounded_up(facts["spent"]["epsilon"], 6)
        left = rounded_down(facts["left"]["epsilon"], 6)
        many = [f"{count} × {kind}" for kind, count in facts["answers"].items()]
        rows += [
            ("budget", f"epsilon {total:g}{delta}: {spent} spent, {left} left"),
            ("answered", ", ".join(many) or "nothing yet"),
        ]
    refusals = facts["refusals"]
    rows.append(("refused", f"{len(refusals):,} in the log" if refusals else "nothing"))
    rows += [("", f"{one['when']}  {one['why']}") for one in refusals[-_LATEST:]]
    _show.console().print(_show.table(f"Enrollment {facts['enrollment'][:12]}", ("", ""), rows))


def _log_facts(enrollment: Enrollment, told: AnswerLog) -> dict[str, Any]:
    """A log for programs."""
    terms = enrollment.terms
    return {
        "enrollment": terms.source,
        "coordinator": terms.coordinator.text,
        "answers": [
            {**one.to_json(), "asked": describe_query(one.kind, one.argument, terms)}
            for one in told.asked
        ],
        "refusals": [{"when": when, "why": why} for when, why in told.refused],
        "sound": not told.problems,
        "problems": list(told.problems),
    }


def _print_log(enrollment: Enrollment, told: AnswerLog, last: int | None) -> None:
    """Print what was asked and told, in order."""
    from rich.text import Text

    terms = enrollment.terms
    title = f"{terms.name}: what the coordinator {terms.coordinator.fingerprint} was told"
    _show.console().print(Text(f"\n{title}", style="bold"))
    _show.say(f"Enrollment {terms.source[:12]}. Answers are kept in order, without times.")
    asked = told.asked if last is None else told.asked[-last:]
    for one in asked:
        _show.say("")
        _say_indented(f"{one.number}.", describe_query(one.kind, one.argument, terms), width=4)
        _say_indented("    sent", describe_answer(one))
        _say_indented("    cost", describe_cost(one))
    if not told.asked:
        _show.say("Nothing was asked yet.")
    _print_refused(told, last)
    _show.say("")
    for problem in told.problems:
        _say_indented("PROBLEM", problem)
    if not told.problems:
        _show.say(
            "The books are sound: every answer and cost is as it was written, and every signed "
            "head is in the ledger."
        )


def _print_refused(told: AnswerLog, last: int | None) -> None:
    """Print what was refused."""
    refused = told.refused if last is None else told.refused[-last:]
    if not refused:
        return
    _show.say("")
    _show.say("Refused, at no cost unless it says so; whoever asked got the same refusal for")
    _show.say("every reason (times are UTC):")
    for when, why in refused:
        _say_indented(when, why, width=21)


def _say_indented(label: str, text: str, *, width: int = 10) -> None:
    """Print a label and text beside it."""
    for line in indented(label, text, width=width):
        _show.say(line)


def _say_paragraph(text: str) -> None:
    """Print lines of readable length."""
    for line in paragraph(text):
        _show.say(line)


def _delta(delta: float) -> str:
    """A delta, if there is one."""
    return f" and delta {rounded_up(delta)}" if delta else ""

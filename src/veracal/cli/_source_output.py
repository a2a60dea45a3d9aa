"""What the commands of a source print: an allowance in plain English, status and log."""

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from veracal.accounting import MICRO, Budget, format_down, format_up
from veracal.cli import _methods, _output
from veracal.errors import DataError, VeracalError
from veracal.federation import (
    KINDS,
    AnsweredRequest,
    AnswerLog,
    Enrollment,
    SourceFolder,
    Terms,
    decode_map,
    find_problems,
    find_share_problems,
    list_enrollments,
    read_answer_log,
    read_enrollment,
    read_source,
)
from veracal.federation import revoke as revoke_enrollment
from veracal.ledger import EpsilonDelta

_WIDTH = 88
_MAX_NUMBERS = 40  # of an answer that are printed


def describe_allowance(terms: Terms, left: EpsilonDelta, *, before: bool) -> Iterator[str]:
    """Lines that explain what an enrollment allows, before and after it is written."""
    would = "would be" if before else "is"
    yield from paragraph(
        f"The coordinator with the key {terms.coordinator.fingerprint} may query {terms.name} "
        "about the predictions of one model on the enrolled records. The answers are sums and "
        "counts over all records, with noise. No record leaves this machine, and no other "
        "party is answered."
    )
    yield ""
    yield from _list(
        "It may learn, each time with noise:", [KINDS[kind].description for kind in terms.kinds]
    )
    yield from paragraph(
        "A temperature or a map makes the model's probabilities more or less cautious. The "
        "coordinator chooses which ones to try, and nothing else."
    )
    yield ""
    yield from paragraph(f"All answers together cost at most {_budget_text(terms.budget)}.")
    yield from paragraph(explain_epsilon(terms.budget))
    yield from paragraph(
        f"One answer costs at most epsilon {terms.max_per_answer / MICRO:g}. When the budget "
        "is spent, no new query is ever answered. A repeated query gets the same answer "
        "and costs nothing."
    )
    yield from paragraph(
        f"Of this source's total budget, epsilon {format_down(left.epsilon, 6)} {would} left "
        "for other coordinators. A granted budget is never refunded, used or not."
    )
    yield ""
    yield from _list("You declare to the coordinator, and nothing else:", _declarations(terms))
    yield ""
    until = f"until {terms.expires} (UTC), or " if terms.expires else ""
    yield from paragraph(
        f"This holds {until}until you revoke it. Every reply, answer or refusal, is sent "
        f"{terms.deadline:g} seconds after its request, so that its time reveals nothing. If "
        "the data file changes, all requests are refused."
    )


def explain_epsilon(budget: Budget) -> str:
    """What epsilon means for one unit."""
    unit = f"one {budget.unit.name}"
    rows = (
        f", with up to {budget.unit.max_contributions} rows,"
        if budget.unit.max_contributions > 1
        else ""
    )
    change = "were left out" if budget.relation == "add-remove" else "were replaced"
    factor = format_up(math.exp(min(budget.epsilon, 700.0)), 3)
    slack = f", except with probability {format_up(budget.delta)}" if budget.delta else ""
    return (
        f"That means: if {unit}{rows} {change}, no possible outcome would become more than "
        f"{factor} times as likely, or as unlikely{slack}. (A factor of 1 means no influence.)"
    )


def describe_query(kind: str, argument: Mapping[str, Any], terms: Terms) -> str:
    """Describe a query with its argument."""
    text = KINDS[kind].description if kind in KINDS else kind
    if "inverse" in argument:
        value = 2.0**terms.temperatures.bits / argument["inverse"]
        return text.replace("at a temperature", f"at temperature {value:.5g}")
    if "map" in argument:
        map_ = decode_map(argument["map"], terms)
        return f"{text}; the map: {_methods.map_summary(map_)}"
    return text


def describe_answer(answer: AnsweredRequest) -> str:
    """The numbers that were sent."""
    if not answer.values:
        return "nothing: the answer could not be computed"
    numbers = list(answer.values)
    noise = f"noise of about ±{answer.noise_std:.3g} on each"
    if answer.kind in _PAIRS and len(numbers) % 2 == 0:
        first, second = _PAIRS[answer.kind]
        return f"{first} {_numbers(numbers[::2])}; {second} {_numbers(numbers[1::2])}; {noise}"
    return f"{_numbers(numbers)}; {noise}"


def describe_cost(answer: AnsweredRequest) -> str:
    """The cost of an answer and the remaining budget."""
    return (
        f"epsilon {format_up(answer.epsilon, 6)}; in total so far "
        f"{format_up(answer.spent.epsilon, 6)}, {format_down(answer.left.epsilon, 6)} left"
    )


def indented(label: str, text: str, *, width: int = 10) -> list[str]:
    """A label and a text with hanging indent."""
    start = f"   {label:<{width}}"
    return textwrap.wrap(
        text, _WIDTH, initial_indent=start, subsequent_indent=" " * len(start)
    ) or [start.rstrip()]


def _declarations(terms: Terms) -> list[str]:
    """What the terms declare, without values computed from the records."""
    grid, maps = terms.temperatures, terms.parameters
    return [
        f"your name, your public key, and that you protect {terms.unit}, under "
        f"{terms.relation}",
        f"that there are from {terms.min_records:,} to {terms.max_records:,} records, of "
        f"{terms.classes} classes, scored by the model {terms.model[:12]}… as {terms.reads}",
        f"that temperatures are from {grid.low:g} to {grid.high:g}, confidence is grouped into "
        f"{terms.bins} bins, the loss of one record counts up to {terms.clamp:g}, and "
        f"affine maps have weights up to {maps.most_weight} and biases up to {maps.most_bias}",
        "the queries above, the budget, the last day, and the seconds after which replies are "
        "sent",
    ]


def _budget_text(budget: Budget) -> str:
    """A budget as text."""
    delta = f" and delta {format_up(budget.delta)}" if budget.delta else ""
    return f"epsilon {budget.epsilon:g}{delta} for each {budget.unit.name}"


def _numbers(values: Sequence[float]) -> str:
    """Numbers, abbreviated if there are many."""
    text = ", ".join(_number(value) for value in values[:_MAX_NUMBERS])
    return f"{text}, … ({len(values)} in total)" if len(values) > _MAX_NUMBERS else text


def _number(value: float) -> str:
    """A number with thousands separators."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def paragraph(text: str) -> list[str]:
    """Wrap a text."""
    return textwrap.wrap(text, _WIDTH)


def _list(title: str, items: Sequence[str]) -> Iterator[str]:
    """A title and a bulleted list."""
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
    """Print a new source."""
    budget = source.budget
    if json:
        _output.print_json(
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
        ("folder", f"{source.path}; keep it private"),
        ("your key", source.public.fingerprint),
        ("budget", f"epsilon {budget.epsilon:g}, delta {budget.delta:g}, fixed"),
        ("protects", f"{budget.unit}, under {budget.relation}"),
        ("signed heads", "in the folder" if source.heads is None else f"also {source.heads}"),
    ]
    _output.console().print(_output.table(f"{source.name}: a new source", ("", ""), rows))
    _output.print_line("")
    _say_paragraph(explain_epsilon(budget))
    if source.heads is None:
        _say_paragraph(
            "Without a file outside of the folder, a restored backup of the whole folder is "
            "not detected. Consider a second file of heads on another disk: init --heads FILE.",
        )
    _output.print_line("")
    _output.print_line("Next:  veracal source enroll --help")


def show_status(folder: Path, *, json: bool) -> bool:
    """Print the status of a source; return False if there is a problem."""
    source = read_source(folder)
    problems = list(find_share_problems(source))
    facts = {**_source_facts(source), "problems": problems}
    facts["enrollments"] = [_status_facts(source, each) for each in list_enrollments(source)]
    if json:
        _output.print_json(facts)
    else:
        _print_source(source, facts)
        for each in facts["enrollments"]:
            _print_enrollment(each)
    return not problems and not any(each["problems"] for each in facts["enrollments"])


def show_log(folder: Path, enrollment: str | None, last: int | None, *, json: bool) -> bool:
    """Print requests and answers; return False if there is a problem."""
    source = read_source(folder)
    enrollments = _select(source, enrollment)
    logs = [(each, read_answer_log(source, each)) for each in enrollments]
    if json:
        _output.print_json({"enrollments": [_log_facts(each, log) for each, log in logs]})
    else:
        for each, log in logs:
            _print_log(each, log, last)
    return not any(log.problems for _, log in logs)


def revoke(folder: Path, prefix: str, *, yes: bool, json: bool) -> None:
    """Revoke an enrollment after confirmation."""
    source = read_source(folder)
    enrollment = read_enrollment(source, prefix)
    terms = enrollment.terms
    if json and not yes:
        raise typer.BadParameter(
            "add --yes: with --json there is no confirmation prompt.", param_hint="--json"
        )
    which = f"{terms.source[:12]} of the coordinator {terms.coordinator.fingerprint}"
    if not (yes or typer.confirm(f"Permanently revoke enrollment {which}?", err=True)):
        _output.print_status("Nothing was changed.")
        raise typer.Exit(1)
    revoke_enrollment(source, enrollment)
    if json:
        _output.print_json({"enrollment": terms.source, "revoked": True})
    else:
        _output.print_line(
            f"Enrollment {terms.source[:12]} is revoked. All further requests are refused. Its "
            "share of the budget is not refunded."
        )


def _select(source: SourceFolder, enrollment: str | None) -> list[Enrollment]:
    """One enrollment, or all of them."""
    if enrollment is not None:
        return [read_enrollment(source, enrollment)]
    enrollments = list_enrollments(source)
    if not enrollments:
        raise DataError(
            str(source.path),
            "an enrollment",
            "none",
            "Enroll records: `veracal source enroll`.",
        )
    return enrollments


def _source_facts(source: SourceFolder) -> dict[str, Any]:
    """Status of a source as a whole."""
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
            "unit": {"name": budget.unit.name, "at_most": budget.unit.max_contributions},
        },
        "granted": asdict(source.shares.spent()),
        "left": asdict(source.shares.remaining()),
        "heads": None if source.heads is None else str(source.heads),
    }


def _status_facts(source: SourceFolder, enrollment: Enrollment) -> dict[str, Any]:
    """Status of one enrollment."""
    terms, refusals = enrollment.terms, enrollment.refusals.lines()
    problems = list(find_problems(source, enrollment))
    spending: dict[str, Any] = {"spent": None, "left": None, "answers": None}
    try:
        ledger = enrollment.ledger
        spending["spent"], spending["left"] = asdict(ledger.spent()), asdict(ledger.remaining())
        spending["answers"] = dict(Counter(entry.purpose for entry in ledger.entries()))
    except VeracalError:
        pass  # it is one of the problems
    return {
        "enrollment": terms.source,
        "coordinator": terms.coordinator.fingerprint,
        "since": enrollment.settings.enrolled,
        "state": _state(enrollment, problems),
        "data": None if enrollment.settings.data is None else enrollment.settings.data.path,
        "budget": {"epsilon": terms.budget.epsilon, "delta": terms.delta},
        **spending,
        "refusals": [{"when": when, "why": why} for when, why in refusals],
        "problems": problems,
    }


def _state(enrollment: Enrollment, problems: list[str]) -> str:
    """State of an enrollment in a few words."""
    if enrollment.is_revoked:
        return "revoked: all requests are refused"
    if enrollment.terms.is_expired():
        return f"expired on {enrollment.terms.expires}: all requests are refused"
    if problems:
        return "PROBLEM: all requests are refused"
    until = f" until {enrollment.terms.expires}" if enrollment.terms.expires else ""
    return f"open{until}"


def _print_source(source: SourceFolder, facts: dict[str, Any]) -> None:
    """Print a source as a whole."""
    budget, left = source.budget, facts["left"]
    count = _output.format_count(len(facts["enrollments"]), "enrollment")
    rows = [
        ("since", source.created),
        ("your key", source.public.fingerprint),
        ("protects", f"{budget.unit}, under {budget.relation}"),
        ("budget", f"epsilon {budget.epsilon:g}{_delta(budget.delta)}:"),
        ("", f"{format_up(facts['granted']['epsilon'], 6)} is granted, to {count}"),
        ("", f"{format_down(left['epsilon'], 6)} can still be granted"),
        ("signed heads", "in the folder" if source.heads is None else f"also {source.heads}"),
        *(("PROBLEM", problem) for problem in facts["problems"]),
    ]
    _output.console().print(_output.table(source.name, ("", ""), rows))


def _print_enrollment(facts: dict[str, Any]) -> None:
    """Print one enrollment."""
    rows = [
        ("coordinator", facts["coordinator"]),
        ("state", facts["state"]),
        *(("PROBLEM", problem) for problem in facts["problems"]),
        ("since", facts["since"]),
        ("data", facts["data"] or "from a program"),
    ]
    if facts["spent"] is not None:
        total, delta = facts["budget"]["epsilon"], _delta(facts["budget"]["delta"])
        spent = format_up(facts["spent"]["epsilon"], 6)
        left = format_down(facts["left"]["epsilon"], 6)
        answers = [f"{count} × {kind}" for kind, count in facts["answers"].items()]
        rows += [
            ("budget", f"epsilon {total:g}{delta}: {spent} spent, {left} left"),
            ("answered", ", ".join(answers) or "nothing yet"),
        ]
    refusals = facts["refusals"]
    rows.append(("refused", f"{len(refusals):,} in the log" if refusals else "nothing"))
    rows += [("", f"{one['when']}  {one['why']}") for one in refusals[-_LATEST:]]
    _output.console().print(
        _output.table(f"Enrollment {facts['enrollment'][:12]}", ("", ""), rows)
    )


def _log_facts(enrollment: Enrollment, log: AnswerLog) -> dict[str, Any]:
    """The log of an enrollment in JSON types."""
    terms = enrollment.terms
    return {
        "enrollment": terms.source,
        "coordinator": terms.coordinator.text,
        "answers": [
            {**asdict(each), "query": describe_query(each.kind, each.argument, terms)}
            for each in log.answers
        ],
        "refusals": [{"when": when, "why": why} for when, why in log.refusals],
        "valid": not log.problems,
        "problems": list(log.problems),
    }


def _print_log(enrollment: Enrollment, log: AnswerLog, last: int | None) -> None:
    """Print requests and answers in order, and refused requests."""
    from rich.text import Text

    terms = enrollment.terms
    title = f"{terms.name}: answers to the coordinator {terms.coordinator.fingerprint}"
    _output.console().print(Text(f"\n{title}", style="bold"))
    _output.print_line(
        f"Enrollment {terms.source[:12]}. Answers are stored in order, without times."
    )
    for each in log.answers if last is None else log.answers[-last:]:
        _output.print_line("")
        query = describe_query(each.kind, each.argument, terms)
        _say_indented(f"{each.number}.", query, width=4)
        _say_indented("    sent", describe_answer(each))
        _say_indented("    cost", describe_cost(each))
    if not log.answers:
        _output.print_line("No query was answered yet.")
    refusals = log.refusals if last is None else log.refusals[-last:]
    if refusals:
        _output.print_line("")
        _output.print_line(
            "Refused, at no cost unless stated. The sender got the same refusal for every"
        )
        _output.print_line("reason (times are UTC):")
    for when, why in refusals:
        _say_indented(when, why, width=21)
    _output.print_line("")
    for problem in log.problems:
        _say_indented("PROBLEM", problem)
    if not log.problems:
        _output.print_line(
            "The ledger is valid: its hash chain is intact, and it contains every signed head "
            "and answer."
        )


def _say_indented(label: str, text: str, *, width: int = 10) -> None:
    """Print a label and a text with hanging indent."""
    for line in indented(label, text, width=width):
        _output.print_line(line)


def _say_paragraph(text: str) -> None:
    """Print a wrapped text."""
    for line in paragraph(text):
        _output.print_line(line)


def _delta(delta: float) -> str:
    """Text for a delta, empty if it is 0."""
    return f" and delta {format_up(delta)}" if delta else ""

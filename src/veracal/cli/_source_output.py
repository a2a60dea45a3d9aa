"""What the commands of a source print: an allowance in plain English, status and log."""

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from veracal.accounting import MICRO, Budget, format_down, format_up
from veracal.cli import _output
from veracal.cli._artifacts import map_summary
from veracal.errors import DataError, VeracalError
from veracal.federation import (
    KINDS,
    AnswerLog,
    Enrollment,
    Proposal,
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

_WIDTH = 88
_MAX_NUMBERS = 40  # of an answer that are printed
_LATEST = 5  # refusals in a status
_PAIRS = {
    "counts": ("right", "wrong"),
    "bins": ("right, by bin:", "wrong, by bin:"),
    "bins-paper": ("right, by bin:", "all, by bin:"),
    "map-counts": ("right", "wrong"),
    "platt-counts": ("right", "wrong"),
}


def print_allowance(proposal: Proposal, *, before: bool) -> None:
    """Print in plain English what an enrollment allows, before or after it is written."""
    terms, left = proposal.terms, proposal.folder.shares.remaining().epsilon
    if before:
        left = round(left - terms.budget.epsilon, 9)
    would = "would be" if before else "is"
    budget, grid, maps = terms.budget, terms.temperatures, terms.parameters
    _print_title("What you are about to allow" if before else "What you have allowed")
    _output.print_line("")
    _print_wrapped(
        f"The coordinator with the key {terms.coordinator.fingerprint} may query {terms.name} "
        "about the predictions of one model on the enrolled records. The answers are sums and "
        "counts over all records, with noise. No record leaves this machine, and no other "
        "party is answered."
    )
    _output.print_line("")
    _output.print_line("It may learn, each time with noise:")
    for kind in terms.kinds:
        _print_wrapped(KINDS[kind].description, "  - ")
    _print_wrapped(
        "A temperature or a map makes the model's probabilities more or less cautious. The "
        "coordinator chooses which ones to try, and nothing else."
    )
    _output.print_line("")
    delta = _format_delta(budget.delta)
    _print_wrapped(
        f"All answers together cost at most epsilon {budget.epsilon:g}{delta} for each "
        f"{budget.unit.name}."
    )
    _print_wrapped(_explain_epsilon(budget))
    _print_wrapped(
        f"One answer costs at most epsilon {terms.max_per_answer / MICRO:g}. When the budget "
        "is spent, no new query is ever answered. A repeated query gets the same answer "
        "and costs nothing."
    )
    _print_wrapped(
        f"Of this source's total budget, epsilon {format_down(left, 6)} {would} left "
        "for other coordinators. A granted budget is never refunded, used or not."
    )
    _output.print_line("")
    _output.print_line("You declare to the coordinator, and nothing else:")
    for text in (  # no values that are computed from the records
        f"your name, your public key, and that you protect {terms.unit}, under "
        f"{terms.relation}",
        f"that there are from {terms.min_records:,} to {terms.max_records:,} records, of "
        f"{terms.classes} classes, scored by the model {terms.model[:12]}… as {terms.reads}",
        f"that temperatures are from {grid.low:g} to {grid.high:g}, confidence is grouped into "
        f"{terms.bins} bins, the loss of one record counts up to {terms.clamp:g}, and "
        f"affine maps have weights up to {maps.most_weight} and biases up to {maps.most_bias}",
        "the queries above, the budget, the last day, and the seconds after which replies are "
        "sent",
    ):
        _print_wrapped(text, "  - ")
    _output.print_line("")
    until = f"until {terms.expires} (UTC), or " if terms.expires else ""
    _print_wrapped(
        f"This holds {until}until you revoke it. Every reply, answer or refusal, is sent "
        f"{terms.deadline:g} seconds after its request, so that its time reveals nothing. If "
        "the data file changes, all requests are refused."
    )


def print_new(source: SourceFolder, *, json: bool) -> None:
    """Print a new source."""
    budget, heads = source.budget, source.heads
    if json:
        _output.print_json(
            {
                "folder": str(source.path),
                "name": source.name,
                "public_key": source.public.text,
                "fingerprint": source.public.fingerprint,
                "heads": None if heads is None else str(heads),
            }
        )
        return
    rows = [
        ("folder", f"{source.path}; keep it private"),
        ("your key", source.public.fingerprint),
        ("budget", f"epsilon {budget.epsilon:g}, delta {budget.delta:g}, fixed"),
        ("protects", f"{budget.unit}, under {budget.relation}"),
        ("signed heads", "in the folder" if heads is None else f"also {heads}"),
    ]
    _output.print_table(f"{source.name}: a new source", ("", ""), rows)
    _output.print_line("")
    _print_wrapped(_explain_epsilon(budget))
    if heads is None:
        _print_wrapped(
            "Without a file outside of the folder, a restored backup of the whole folder is "
            "not detected. Consider a second file of heads on another disk: init --heads FILE.",
        )
    _output.print_line("")
    _output.print_line("Next:  veracal source enroll --help")


def print_status(folder: Path, *, json: bool) -> None:
    """Print the status of a source; exit 1 if there is a problem."""
    source = read_source(folder)
    budget, heads = source.budget, source.heads
    problems = list(find_share_problems(source))
    enrollments = [_enrollment_facts(source, each) for each in list_enrollments(source)]
    granted, left = source.shares.spent(), source.shares.remaining()
    if json:
        _output.print_json(
            {
                "folder": str(source.path),
                "name": source.name,
                "created": source.created,
                "fingerprint": source.public.fingerprint,
                "public_key": source.public.text,
                "budget": asdict(budget),
                "granted": asdict(granted),
                "left": asdict(left),
                "heads": None if heads is None else str(heads),
                "problems": problems,
                "enrollments": enrollments,
            }
        )
    else:
        count = _output.format_count(len(enrollments), "enrollment")
        rows = [
            ("since", source.created),
            ("your key", source.public.fingerprint),
            ("protects", f"{budget.unit}, under {budget.relation}"),
            ("budget", f"epsilon {budget.epsilon:g}{_format_delta(budget.delta)}:"),
            ("", f"{format_up(granted.epsilon, 6)} is granted, to {count}"),
            ("", f"{format_down(left.epsilon, 6)} can still be granted"),
            ("signed heads", "in the folder" if heads is None else f"also {heads}"),
            *(("PROBLEM", problem) for problem in problems),
        ]
        _output.print_table(source.name, ("", ""), rows)
        for each in enrollments:
            _print_enrollment(each)
    if problems or any(each["problems"] for each in enrollments):
        raise typer.Exit(1)


def _enrollment_facts(source: SourceFolder, enrollment: Enrollment) -> dict[str, Any]:
    """Status of one enrollment."""
    terms, data = enrollment.terms, enrollment.settings.data
    problems = list(find_problems(source, enrollment))
    spending: dict[str, Any] = {"spent": None, "left": None, "answers": None}
    try:
        ledger = enrollment.ledger
        spending["spent"], spending["left"] = asdict(ledger.spent()), asdict(ledger.remaining())
        spending["answers"] = dict(Counter(entry.purpose for entry in ledger.entries()))
    except VeracalError:
        pass  # it is one of the problems
    state = f"open until {terms.expires}" if terms.expires else "open"
    if enrollment.is_revoked:
        state = "revoked: all requests are refused"
    elif terms.is_expired():
        state = f"expired on {terms.expires}: all requests are refused"
    elif problems:
        state = "PROBLEM: all requests are refused"
    return {
        "enrollment": terms.source,
        "coordinator": terms.coordinator.fingerprint,
        "since": enrollment.settings.enrolled,
        "state": state,
        "data": None if data is None else data.path,
        "budget": {"epsilon": terms.budget.epsilon, "delta": terms.delta},
        **spending,
        "refusals": _refusals_to_json(enrollment.refusals.lines()),
        "problems": problems,
    }


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
        total, delta = facts["budget"]["epsilon"], _format_delta(facts["budget"]["delta"])
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
    _output.print_table(f"Enrollment {facts['enrollment'][:12]}", ("", ""), rows)


def print_log(folder: Path, prefix: str | None, last: int | None, *, json: bool) -> None:
    """Print requests and answers, of one enrollment or all; exit 1 if there is a problem."""
    source = read_source(folder)
    one = None if prefix is None else read_enrollment(source, prefix)
    enrollments = list_enrollments(source) if one is None else [one]
    if not enrollments:
        raise DataError(
            str(source.path),
            "an enrollment",
            "none",
            "Enroll records: `veracal source enroll`.",
        )
    logs = [(each.terms, read_answer_log(source, each)) for each in enrollments]
    if json:
        facts = [
            {
                "enrollment": terms.source,
                "coordinator": terms.coordinator.text,
                "answers": [
                    {
                        **asdict(each),
                        "query": _describe_query(each.kind, each.argument, terms),
                    }
                    for each in log.answers
                ],
                "refusals": _refusals_to_json(log.refusals),
                "valid": not log.problems,
                "problems": list(log.problems),
            }
            for terms, log in logs
        ]
        _output.print_json({"enrollments": facts})
    else:
        for terms, log in logs:
            _print_answers(terms, log, last)
    if any(log.problems for _, log in logs):
        raise typer.Exit(1)


def _refusals_to_json(refusals: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Refused requests as JSON values."""
    return [{"when": when, "why": why} for when, why in refusals]


def _print_answers(terms: Terms, log: AnswerLog, last: int | None) -> None:
    """Print requests and answers in order, and refused requests."""
    _print_title(f"{terms.name}: answers to the coordinator {terms.coordinator.fingerprint}")
    _output.print_line(
        f"Enrollment {terms.source[:12]}. Answers are stored in order, without times."
    )
    for each in log.answers if last is None else log.answers[-last:]:
        _output.print_line("")
        query = _describe_query(each.kind, each.argument, terms)
        _print_wrapped(query, f"   {f'{each.number}.':<4}")
        numbers, noise = list(each.values), f"noise of about ±{each.noise_std:.3g} on each"
        if not numbers:
            sent = "nothing: the answer could not be computed"
        elif each.kind in _PAIRS and len(numbers) % 2 == 0:
            first, second = _PAIRS[each.kind]
            right, wrong = _format_numbers(numbers[::2]), _format_numbers(numbers[1::2])
            sent = f"{first} {right}; {second} {wrong}; {noise}"
        else:
            sent = f"{_format_numbers(numbers)}; {noise}"
        _print_wrapped(sent, f"   {'    sent':<10}")
        cost = (
            f"epsilon {format_up(each.epsilon, 6)}; in total so far "
            f"{format_up(each.spent.epsilon, 6)}, {format_down(each.left.epsilon, 6)} left"
        )
        _print_wrapped(cost, f"   {'    cost':<10}")
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
        _print_wrapped(why, f"   {when:<21}")
    _output.print_line("")
    for problem in log.problems:
        _print_wrapped(problem, f"   {'PROBLEM':<10}")
    if not log.problems:
        _output.print_line(
            "The ledger is valid: its hash chain is intact, and it contains every signed head "
            "and answer."
        )


def _describe_query(kind: str, argument: Mapping[str, Any], terms: Terms) -> str:
    """Describe a query with its argument."""
    text = KINDS[kind].description if kind in KINDS else kind
    if "inverse" in argument:
        value = 2.0**terms.temperatures.bits / argument["inverse"]
        return text.replace("at a temperature", f"at temperature {value:.5g}")
    if "map" in argument:
        return f"{text}; the map: {map_summary(decode_map(argument['map'], terms))}"
    return text


def _explain_epsilon(budget: Budget) -> str:
    """What epsilon means for one unit."""
    unit = f"one {budget.unit.name}"
    most = budget.unit.max_contributions
    rows = f", with up to {most} rows," if most > 1 else ""
    change = "were left out" if budget.relation == "add-remove" else "were replaced"
    factor = format_up(math.exp(min(budget.epsilon, 700.0)), 3)
    slack = f", except with probability {format_up(budget.delta)}" if budget.delta else ""
    return (
        f"That means: if {unit}{rows} {change}, no possible outcome would become more than "
        f"{factor} times as likely, or as unlikely{slack}. (A factor of 1 means no influence.)"
    )


def _format_numbers(values: Sequence[float]) -> str:
    """Numbers with thousands separators, abbreviated if there are many."""
    first = values[:_MAX_NUMBERS]
    text = ", ".join(f"{v:,.0f}" if v == int(v) else f"{v:,.4g}" for v in first)
    return f"{text}, … ({len(values)} in total)" if len(values) > len(first) else text


def _format_delta(delta: float) -> str:
    """Text for a delta, empty if it is 0."""
    return f" and delta {format_up(delta)}" if delta else ""


def _print_title(title: str) -> None:
    """Print a heading in bold."""
    from rich.text import Text

    _output.console().print(Text(f"\n{title}", style="bold"))


def _print_wrapped(text: str, label: str = "") -> None:
    """Print a text with a hanging indent after its label."""
    lines = textwrap.wrap(
        text, _WIDTH, initial_indent=label, subsequent_indent=" " * len(label)
    )
    for line in lines or [label.rstrip()]:
        _output.print_line(line)

"""What the commands of a source print: a new source, its status, its log."""

import datetime
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from veracal.cli import _show
from veracal.cli._source_words import indented, paid, paragraph, promise, question, sent
from veracal.errors import DataError, VeracalError
from veracal.federation.source.enrolling import revoke as revoke_enrolment
from veracal.federation.source.enrolment import Enrolment, every_enrolment, read_enrolment
from veracal.federation.source.folder import SourceFolder, read_source
from veracal.federation.source.history import History, history, problems_of, share_problems
from veracal.privacy.costs.statement import rounded_down, rounded_up

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
    _say_paragraph(promise(budget))
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
    wrong = list(share_problems(source))
    facts = {**_source_facts(source), "problems": wrong}
    facts["enrolments"] = [_facts(source, each) for each in every_enrolment(source)]
    if json:
        _show.print_json(facts)
    else:
        _print_source(source, facts)
        for each in facts["enrolments"]:
            _print_enrolment(each)
    return not wrong and not any(each["problems"] for each in facts["enrolments"])


def show_log(folder: Path, enrolment: str | None, last: int | None, *, json: bool) -> bool:
    """Print what was asked and told; False if the books are not sound."""
    source = read_source(folder)
    chosen = _chosen(source, enrolment)
    found = [(each, history(source, each)) for each in chosen]
    if json:
        _show.print_json({"enrolments": [_log_facts(each, told) for each, told in found]})
    else:
        for each, told in found:
            _print_log(each, told, last)
    return not any(told.problems for _, told in found)


def revoke(folder: Path, mark: str, *, yes: bool, json: bool) -> None:
    """Revoke an enrolment, once that was confirmed."""
    source = read_source(folder)
    enrolment = read_enrolment(source, mark)
    terms = enrolment.terms
    if json and not yes:
        raise typer.BadParameter("add --yes: nobody is asked here.", param_hint="--json")
    whose = f"{terms.source[:12]} of the calibrator {terms.calibrator.fingerprint}"
    if not (yes or typer.confirm(f"End enrolment {whose}, for good?", err=True)):
        _show.status("Nothing was changed.")
        raise typer.Exit(1)
    revoke_enrolment(source, enrolment)
    if json:
        _show.print_json({"enrolment": terms.source, "revoked": True})
    else:
        _show.say(
            f"Enrolment {terms.source[:12]} is revoked: this calibrator is answered no more. "
            "Its share of the budget is not given back."
        )


def _chosen(source: SourceFolder, enrolment: str | None) -> list[Enrolment]:
    """One enrolment, or all of them."""
    if enrolment is not None:
        return [read_enrolment(source, enrolment)]
    found = every_enrolment(source)
    if not found:
        raise DataError(
            str(source.path), "an enrolment", "none yet", "Enroll: `veracal source enroll`."
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


def _facts(source: SourceFolder, enrolment: Enrolment) -> dict[str, Any]:
    """What is shown of one enrolment."""
    terms, refusals = enrolment.terms, enrolment.refusals.lines()
    problems = list(problems_of(source, enrolment))
    told: dict[str, Any] = {"spent": None, "left": None, "answers": None}
    try:
        ledger = enrolment.ledger
        told["spent"], told["left"] = asdict(ledger.spent()), asdict(ledger.remaining())
        told["answers"] = dict(Counter(entry.purpose for entry in ledger.entries()))
    except VeracalError:
        pass  # it is among the problems
    return {
        "enrolment": terms.source,
        "calibrator": terms.calibrator.fingerprint,
        "since": enrolment.private.enrolled,
        "state": _state(enrolment, problems),
        "data": None if enrolment.private.data is None else enrolment.private.data.path,
        "budget": {"epsilon": terms.budget.epsilon, "delta": terms.delta},
        **told,
        "refusals": [{"when": when, "why": why} for when, why in refusals],
        "problems": problems,
    }


def _state(enrolment: Enrolment, problems: list[str]) -> str:
    """Whether an enrolment answers, in a few words."""
    if enrolment.is_revoked:
        return "revoked: nothing is answered"
    if enrolment.terms.is_expired(datetime.datetime.now(datetime.UTC).date()):
        return f"over since {enrolment.terms.expires}: nothing is answered"
    if problems:
        return "SOMETHING IS WRONG: nothing is answered"
    until = f" until {enrolment.terms.expires}" if enrolment.terms.expires else ""
    return f"answers{until}"


def _print_source(source: SourceFolder, facts: dict[str, Any]) -> None:
    """Print a source as a whole."""
    budget, left = source.budget, facts["left"]
    many = _show.counted(len(facts["enrolments"]), "enrolment")
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


def _print_enrolment(facts: dict[str, Any]) -> None:
    """Print one enrolment."""
    rows = [
        ("calibrator", facts["calibrator"]),
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
    _show.console().print(_show.table(f"Enrolment {facts['enrolment'][:12]}", ("", ""), rows))


def _log_facts(enrolment: Enrolment, told: History) -> dict[str, Any]:
    """A log for programs."""
    terms = enrolment.terms
    return {
        "enrolment": terms.source,
        "calibrator": terms.calibrator.text,
        "answers": [
            {**one.to_json(), "asked": question(one.kind, one.argument, terms)}
            for one in told.asked
        ],
        "refusals": [{"when": when, "why": why} for when, why in told.refused],
        "sound": not told.problems,
        "problems": list(told.problems),
    }


def _print_log(enrolment: Enrolment, told: History, last: int | None) -> None:
    """Print what was asked and told, in order."""
    from rich.text import Text

    terms = enrolment.terms
    title = f"{terms.name}: what the calibrator {terms.calibrator.fingerprint} was told"
    _show.console().print(Text(f"\n{title}", style="bold"))
    _show.say(f"Enrolment {terms.source[:12]}. Answers are kept in order, without times.")
    asked = told.asked if last is None else told.asked[-last:]
    for one in asked:
        _show.say("")
        _say_indented(f"{one.number}.", question(one.kind, one.argument, terms), width=4)
        _say_indented("    sent", sent(one))
        _say_indented("    cost", paid(one))
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


def _print_refused(told: History, last: int | None) -> None:
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

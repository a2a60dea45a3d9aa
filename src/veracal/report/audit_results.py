"""What audits of one training found, at one budget or at several, for files and pages.

What an audit means, in plain words for people who decide.
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from veracal._types import Ints
from veracal.data import Estimate
from veracal.multiplicity import INTERNAL, Audit, GroupDisagreement
from veracal.report.text import decimals, interval, percent, visible

FORMAT, VERSION = "veracal audit", 1


@dataclass(frozen=True, eq=False)
class AuditResults:
    """Audits of the same people. *Internal*.

    Attributes
    ----------
    name : str
        Of the records, or of the file with predictions.
    made : str
        Date, in ISO form.
    what : str
        What was run again, in words.
    rows : array of ints of shape (people,)
        Where each person stands in the table, counted from 1.
    audits : tuple of Audit
        One for each budget.
    epsilons : tuple of float
        Their budgets; empty where runs were made elsewhere.
    settings : mapping
        Everything else that was chosen.
    notes : tuple of str
        What a reader must know beside what the audits say themselves.
    """

    name: str
    made: str
    what: str
    rows: Ints
    audits: tuple[Audit, ...]
    epsilons: tuple[float, ...]
    settings: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """What each audit is called: its epsilon, or "runs" where that is not known.

        Examples
        --------
        >>> AuditResults("a", "", "", None, (None, None), (0.5, 2.0), {}).labels
        ('0.5', '2')
        """
        return tuple(f"{epsilon:.6g}" for epsilon in self.epsilons) or ("runs",)

    @property
    def told(self) -> tuple[tuple[str, Audit], ...]:
        """The audits with what they are called."""
        return tuple(zip(self.labels, self.audits, strict=True))

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
        epsilons = self.epsilons or (None,) * len(self.audits)
        return {
            "format": FORMAT,
            "version": VERSION,
            "internal": INTERNAL,
            "name": self.name,
            "made": self.made,
            "what": self.what,
            "settings": dict(self.settings),
            "notes": list(self.notes),
            "rows": self.rows.tolist(),
            "audits": [
                {"epsilon": epsilon, **audit.to_json()}
                for epsilon, audit in zip(epsilons, self.audits, strict=True)
            ],
        }

    def to_bytes(self) -> bytes:
        """audit.json."""
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode()

    def individuals(self) -> bytes:
        """people.csv: a line for each person and budget, the row in the table first."""
        held = io.StringIO(newline="")
        writer = csv.writer(held, lineterminator="\n")
        first = self.audits[0]
        columns = ["disagreement", "low", "high", "viable_range", "deviation", "flip"]
        counts = [f"runs for {label}" for label in first.classes]
        writer.writerow(["row", "epsilon", "runs", *counts, *columns, "review"])
        for label, audit in self.labeled_audits:
            writer.writerows(self._lines(label if self.epsilons else "", audit))
        return held.getvalue().encode()

    def _lines(self, label: str, audit: Audit) -> Iterator[list[object]]:
        """Lines of one audit."""
        found, review = audit.individuals, set(audit.review.tolist())
        flips = [""] * len(found) if found.flip is None else found.flip.tolist()
        numbers = zip(
            self.rows.tolist(),
            found.counts.tolist(),
            found.disagreement.tolist(),
            found.low.tolist(),
            found.high.tolist(),
            found.viable_range.tolist(),
            found.deviation.tolist(),
            flips,
            strict=True,
        )
        for place, (row, counts, *figures) in enumerate(numbers):
            said = "yes" if place in review else "no"
            yield [row, label, audit.runs, *counts, *figures, said]


def mean_flip(audit: Audit) -> float | None:
    """Share of runs that contradict the model in use, mean over people; None without one."""
    flips = audit.individuals.flip
    return None if flips is None else float(flips.mean())


VARIED = {
    "noise": "the noise",
    "noise and batches": "the noise and who was in which batch",
    "all": "the noise and whatever else chance decides in training",
}
PUBLISHED = (
    "Nothing of this page. Every run looked at the records again, and none of this is covered "
    "by the model's guarantee.",
    "Noise on the figures would not do either: changing one audited person moves a mean over "
    "n people by 1/n, but changing one training record can move everybody's disagreement at "
    "once.",
    "What can be published at no cost is the arbitrariness that the released model tells by "
    "itself: veracal predict MODEL DATA --arbitrariness.",
)
_MOST = 6  # sentences about groups


def headline(found: AuditResults) -> list[str]:
    """How often two trainings contradict each other, and for whom chance decides."""
    twice = [_hundred(contradicted(audit)) for audit in found.audits]
    start = "Train the model twice on the same records" if found.epsilons else "Take two runs"
    review = [f"{len(audit.review):,}" for audit in found.audits]
    above = found.audits[0].review_above
    return [
        f"{start}, and of 100 people the two decide differently about {_each(found, twice)}.",
        f"Of {len(found.rows):,} people who were audited, {_each(found, review)} should be "
        f"decided by somebody who looks: their disagreement is above {above:g}, whatever the "
        "runs left open.",
        *_flips(found),
        "Disagreement is 0 for a person about whom all runs decide alike, and about 1 for one "
        "whose decision might as well be tossed by a coin.",
    ]


def _flips(found: AuditResults) -> list[str]:
    """How often a new training contradicts the model in use, if there is one."""
    shares = [mean_flip(audit) for audit in found.audits]
    told = [_hundred(share) for share in shares if share is not None]
    if not told:
        return []
    return [
        "Of 100 decisions of the model in use, another training would take back "
        f"{_each(found, told)}."
    ]


def _each(found: AuditResults, said: list[str]) -> str:
    """What is said of each budget, in a row.

    Examples
    --------
    >>> _each(AuditResults("a", "", "", None, (), (1.0, 2.0), {}), ["7", "3"])
    '7 (epsilon 1), 3 (epsilon 2)'
    """
    if len(said) == 1:
        return said[0]
    parts = zip(found.labels, said, strict=True)
    return ", ".join(f"{each} (epsilon {label})" for label, each in parts)


def contradicted(audit: Audit) -> float:
    r"""Probability that two runs decide differently about a person, mean over people.

    Of K classes it is :math:`1-\sum_c p_c^2`, which is :math:`\tfrac{K-1}{K}` of the
    disagreement: half of it for two.
    """
    k = len(audit.classes)
    assert audit.mean.value is not None
    return audit.mean.value * (k - 1) / k


def groups(found: AuditResults) -> list[str]:
    """For whom decisions are most arbitrary, and whether runs can tell."""
    said = []
    for label, audit in found.labeled_audits:
        where = f"At epsilon {label}, by" if len(found.labeled_audits) > 1 else "By"
        for name, told in audit.groups.items():
            sentence = _group(told)
            if sentence:
                said.append(f"{where} {visible(name)}: {sentence}")
    if not said:
        return ["People were not told apart by groups; --groups NAME does that."]
    more = len(said) - _MOST
    return said[:_MOST] + ([f"And {more} more, below."] if more > 0 else [])


def _group(told: GroupDisagreement) -> str:
    """One attribute in a sentence; nothing where there is nothing to compare."""
    known = {
        name: value.value for name, value in told.values.items() if value.value is not None
    }
    if told.gap is None or told.gap.value is None or len(known) < 2:
        return ""
    most, least = max(known, key=lambda name: known[name]), min(known, key=lambda n: known[n])
    verdict = _verdict(told.gap)
    return (
        f"most for {visible(most)} ({decimals(known[most])}), least for {visible(least)} "
        f"({decimals(known[least])}). {verdict}"
    )


def _verdict(gap: Estimate) -> str:
    """Whether a difference can be told from chance."""
    if gap.low is None:
        return "Too few runs to tell whether they differ."
    told = f"{decimals(gap.value)} ({interval(gap)})"
    if gap.low > 0:
        return f"The difference, {told}, is more than the chance of the runs."
    return f"The difference, {told}, may be the chance of the runs."


def can_tell(found: AuditResults) -> list[str]:
    """What so many runs can say."""
    alike: dict[str, list[str]] = {}
    for label, audit in found.labeled_audits:
        alike.setdefault(_precision(audit), []).append(label)
    said = [
        f"{sentence}." if len(alike) == 1 else f"At epsilon {', '.join(labels)}, {sentence}."
        for sentence, labels in alike.items()
    ]
    blind = max(audit.bounds["blind"] for audit in found.audits)
    said.append(
        f"Where all of them agree about a person, the disagreement may still be up to "
        f"{decimals(blind)}. All of it holds with {percent(found.audits[0].level)} confidence."
    )
    return said


def _precision(audit: Audit) -> str:
    """How well everybody's disagreement is known, without a full stop."""
    runs = f"{audit.runs:,} runs"
    if audit.error is None:
        error = decimals(audit.individuals.error if audit.anytime_valid else audit.bounds["all"])
        return f"{runs} tell everybody's disagreement to within {error}, all at once"
    if audit.error_reached:
        return f"{runs} were enough to know everybody's disagreement to within {audit.error:g}"
    return f"{runs} were not enough to know everybody's disagreement to within {audit.error:g}"


def cannot_tell(found: AuditResults) -> list[str]:
    """What no number of runs says."""
    varied = str(found.audits[0].engine_settings.get("varied", "all"))
    stored = not found.epsilons
    return [
        "Whether a decision is right: runs can agree on a mistake.",
        "What other runs were made of: these were made elsewhere."
        if stored
        else f"What other records, tuning or another model would change: between these runs "
        f"{VARIED.get(varied, varied)} differed, and nothing else.",
        "How it is for other people than those who were audited.",
    ]


def all_notes(found: AuditResults) -> list[str]:
    """Notes of all audits, each once."""
    said = list(found.notes)
    for label, audit in found.labeled_audits:
        before = f"Epsilon {label}: " if len(found.labeled_audits) > 1 else ""
        said += [f"{before}{note}" for note in audit.notes]
    return list(dict.fromkeys(said))


def _hundred(share: float) -> str:
    """A share as a number of hundred people."""
    number = 100 * share
    return f"{number:.0f}" if number >= 1 or number == 0 else "fewer than 1"

"""Audits of one training at one or several budgets as a typed result, and their explanation."""

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
    """Audits of the same individuals. *Internal*.

    Attributes
    ----------
    name : str
        Name of the records, or of the file with predictions.
    date : str
        In ISO form.
    what : str
        The repeated training, in words.
    rows : array of ints of shape (individuals,)
        Row of each individual in the table, counted from 1.
    audits : tuple of Audit
        One for each budget.
    epsilons : tuple of float
        Their budgets; empty for runs that were made elsewhere.
    settings : mapping
        All other settings.
    notes : tuple of str
        What a reader must know beside the notes of the audits.
    """

    name: str
    date: str
    what: str
    rows: Ints
    audits: tuple[Audit, ...]
    epsilons: tuple[float, ...]
    settings: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """Label of each audit: its epsilon, or "runs" if that is unknown.

        Examples
        --------
        >>> AuditResults("a", "", "", None, (None, None), (0.5, 2.0), {}).labels
        ('0.5', '2')
        """
        return tuple(f"{epsilon:.6g}" for epsilon in self.epsilons) or ("runs",)

    @property
    def labeled_audits(self) -> tuple[tuple[str, Audit], ...]:
        """The audits with their labels."""
        return tuple(zip(self.labels, self.audits, strict=True))

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        epsilons = self.epsilons or (None,) * len(self.audits)
        return {
            "format": FORMAT,
            "version": VERSION,
            "internal": INTERNAL,
            "name": self.name,
            "date": self.date,
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
        """Content of audit.json."""
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode()

    def individuals_csv(self) -> bytes:
        """Content of individuals.csv: a line for each individual and budget."""
        buffer = io.StringIO(newline="")
        writer = csv.writer(buffer, lineterminator="\n")
        columns = ["disagreement", "low", "high", "viable_range", "deviation", "flip"]
        counts = [f"runs for {label}" for label in self.audits[0].classes]
        writer.writerow(["row", "epsilon", "runs", *counts, *columns, "review"])
        for label, audit in self.labeled_audits:
            writer.writerows(self._lines(label if self.epsilons else "", audit))
        return buffer.getvalue().encode()

    def _lines(self, label: str, audit: Audit) -> Iterator[list[object]]:
        """Lines of one audit."""
        each, review = audit.individuals, set(audit.review.tolist())
        flips = [""] * len(each) if each.flip is None else each.flip.tolist()
        columns = zip(
            self.rows.tolist(),
            each.counts.tolist(),
            each.disagreement.tolist(),
            each.low.tolist(),
            each.high.tolist(),
            each.viable_range.tolist(),
            each.deviation.tolist(),
            flips,
            strict=True,
        )
        for index, (row, counts, *figures) in enumerate(columns):
            listed = "yes" if index in review else "no"
            yield [row, label, audit.runs, *counts, *figures, listed]


def mean_flip(audit: Audit) -> float | None:
    """Share of runs that contradict the deployed model, if there is one."""
    flips = audit.individuals.flip
    return None if flips is None else float(flips.mean())


VARIED = {
    "noise": "the noise",
    "noise and batches": "the noise and the batches",
    "all": "the noise, the batches and the initialization",
}
PUBLISHED = (
    "Nothing on this page. Every run reads the records again, and the model's guarantee covers "
    "none of this.",
    "Noise on the figures would not suffice: one audited individual changes a mean over n "
    "individuals by at most 1/n, but one training record can change every individual's "
    "disagreement at once.",
    "The arbitrariness computed from the released model alone can be published at no cost: "
    "veracal predict MODEL DATA --arbitrariness.",
)
_MAX_GROUPS = 6  # sentences about groups


def headline(results: AuditResults) -> list[str]:
    """How often two trainings disagree, and how many individuals need review."""
    disagreeing = [_per_hundred(pair_disagreement(audit)) for audit in results.audits]
    subject = "Two models trained on the same records" if results.epsilons else "Two runs"
    review = [f"{len(audit.review):,}" for audit in results.audits]
    above = results.audits[0].review_above
    sentences = [
        f"{subject} give different decisions to this many of 100 individuals: "
        f"{_by_budget(results, disagreeing)}.",
        f"Of {len(results.rows):,} audited individuals, this many should be reviewed by a "
        f"person: {_by_budget(results, review)}. Their disagreement exceeds {above:g} with "
        "confidence.",
    ]
    flips = [mean_flip(audit) for audit in results.audits]
    reversed_ = [_per_hundred(share) for share in flips if share is not None]
    if reversed_:
        sentences.append(
            "Of 100 decisions of the deployed model, a retrained model would reverse: "
            f"{_by_budget(results, reversed_)}."
        )
    return [
        *sentences,
        "Disagreement is 0 if all runs agree about an individual, and about 1 if the decision "
        "is as good as a coin toss.",
    ]


def _by_budget(results: AuditResults, values: list[str]) -> str:
    """The values of all budgets in a row.

    Examples
    --------
    >>> _by_budget(AuditResults("a", "", "", None, (), (1.0, 2.0), {}), ["7", "3"])
    '7 (epsilon 1), 3 (epsilon 2)'
    """
    if len(values) == 1:
        return values[0]
    pairs = zip(results.labels, values, strict=True)
    return ", ".join(f"{value} (epsilon {label})" for label, value in pairs)


def pair_disagreement(audit: Audit) -> float:
    r"""Probability that two runs give an individual different decisions, mean over individuals.

    With K classes it is :math:`1-\sum_c p_c^2`, which is :math:`\tfrac{K-1}{K}` of the
    disagreement: half of it for two.
    """
    k = len(audit.classes)
    assert audit.mean.value is not None
    return audit.mean.value * (k - 1) / k


def groups(results: AuditResults) -> list[str]:
    """Which groups have the most arbitrary decisions, and whether they differ."""
    sentences = []
    for label, audit in results.labeled_audits:
        start = f"At epsilon {label}, by" if len(results.audits) > 1 else "By"
        for name, group in audit.groups.items():
            if comparison := _compare_groups(group):
                sentences.append(f"{start} {visible(name)}: {comparison}")
    if not sentences:
        return ["Results were not broken down by group; use --groups NAME."]
    more = len(sentences) - _MAX_GROUPS
    return sentences[:_MAX_GROUPS] + ([f"{more} more are in the tables."] if more > 0 else [])


def _compare_groups(group: GroupDisagreement) -> str:
    """One attribute in a sentence; empty without two groups."""
    known = {name: e.value for name, e in group.values.items() if e.value is not None}
    if group.gap is None or group.gap.value is None or len(known) < 2:
        return ""
    most, least = max(known, key=lambda n: known[n]), min(known, key=lambda n: known[n])
    return (
        f"highest for {visible(most)} ({decimals(known[most])}), lowest for {visible(least)} "
        f"({decimals(known[least])}). {_significance(group.gap)}"
    )


def _significance(gap: Estimate) -> str:
    """Whether a difference exceeds the randomness of the runs."""
    if gap.low is None:
        return "There are too few runs to tell whether they differ."
    difference = f"{decimals(gap.value)} ({interval(gap)})"
    if gap.low > 0:
        return f"The difference, {difference}, exceeds the randomness of the runs."
    return f"The difference, {difference}, may be due to the randomness of the runs."


def precision(results: AuditResults) -> list[str]:
    """How precisely the runs estimate disagreement."""
    labels_by_sentence: dict[str, list[str]] = {}
    for label, audit in results.labeled_audits:
        labels_by_sentence.setdefault(_precision(audit), []).append(label)
    sentences = [
        f"{text}."
        if len(labels_by_sentence) == 1
        else f"At epsilon {', '.join(labels)}, {text}."
        for text, labels in labels_by_sentence.items()
    ]
    hidden = max(audit.bounds["hidden"] for audit in results.audits)
    return [
        *sentences,
        "If all runs agree about an individual, the disagreement may still be up to "
        f"{decimals(hidden)}. These statements hold with {percent(results.audits[0].level)} "
        "confidence.",
    ]


def _precision(audit: Audit) -> str:
    """The error of every individual's disagreement, without a final period."""
    runs = f"{audit.runs:,} runs"
    if audit.error is None:
        valid = audit.individuals.error if audit.anytime_valid else audit.bounds["simultaneous"]
        return (
            f"{runs} estimate every individual's disagreement to within {decimals(valid)}, "
            "simultaneously"
        )
    enough = "were enough" if audit.error_reached else "were not enough"
    return (
        f"{runs} {enough} to estimate every individual's disagreement to within {audit.error:g}"
    )


def limits(results: AuditResults) -> list[str]:
    """What no number of runs measures."""
    varied = str(results.audits[0].engine_settings.get("varied", "all"))
    return [
        "whether a decision is right: all runs can make the same mistake",
        "the effect of other records, hyperparameters or models: only "
        f"{VARIED.get(varied, varied)} varied between these runs"
        if results.epsilons
        else "what varied between these runs, which were made elsewhere",
        "the disagreement about other individuals",
    ]


def all_notes(results: AuditResults) -> list[str]:
    """Notes of all audits, without repetition."""
    notes = list(results.notes)
    for label, audit in results.labeled_audits:
        prefix = f"Epsilon {label}: " if len(results.audits) > 1 else ""
        notes += [f"{prefix}{note}" for note in audit.notes]
    return list(dict.fromkeys(notes))


def _per_hundred(share: float) -> str:
    """A share as a number of 100."""
    number = 100 * share
    return f"{number:.0f}" if number >= 1 or number == 0 else "fewer than 1"

"""Audits of one training at one or several budgets: the result, its sentences, its tables."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from veracal._types import Floats, Ints
from veracal.data import Estimate
from veracal.multiplicity import INTERNAL, Audit
from veracal.report.tables import MOST, Table
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
            each, to_review = audit.individuals, set(audit.review.tolist())
            figures = [
                [""] * len(each) if (values := getattr(each, name)) is None else values.tolist()
                for name in columns
            ]
            lines = zip(self.rows.tolist(), each.counts.tolist(), *figures, strict=True)
            for index, (row, per_class, *rest) in enumerate(lines):
                epsilon = label if self.epsilons else ""
                listed = "yes" if index in to_review else "no"
                writer.writerow([row, epsilon, audit.runs, *per_class, *rest, listed])
        return buffer.getvalue().encode()


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
            known = {n: e.value for n, e in group.values.items() if e.value is not None}
            if (gap := group.gap) is None or gap.value is None or len(known) < 2:
                continue
            most, least = max(known, key=known.__getitem__), min(known, key=known.__getitem__)
            difference = f"The difference, {decimals(gap.value)} ({interval(gap)}),"
            if gap.low is None:
                verdict = "There are too few runs to tell whether they differ."
            elif gap.low > 0:
                verdict = f"{difference} exceeds the randomness of the runs."
            else:
                verdict = f"{difference} may be due to the randomness of the runs."
            sentences.append(
                f"{start} {visible(name)}: highest for {visible(most)} "
                f"({decimals(known[most])}), lowest for {visible(least)} "
                f"({decimals(known[least])}). {verdict}"
            )
    if not sentences:
        return ["Results were not broken down by group; use --group NAME."]
    more = len(sentences) - _MAX_GROUPS
    return sentences[:_MAX_GROUPS] + ([f"{more} more are in the tables."] if more > 0 else [])


def precision(results: AuditResults) -> list[str]:
    """How precisely the runs estimate disagreement."""
    labels_by_sentence: dict[str, list[str]] = {}
    for label, audit in results.labeled_audits:
        if audit.error is None:
            valid = audit.individuals.error
            valid = valid if audit.anytime_valid else audit.bounds["simultaneous"]
            estimate, within = "estimate", f"{decimals(valid)}, simultaneously"
        else:
            enough = "were enough" if audit.error_reached else "were not enough"
            estimate, within = f"{enough} to estimate", f"{audit.error:g}"
        text = (
            f"{audit.runs:,} runs {estimate} every individual's disagreement to within {within}"
        )
        labels_by_sentence.setdefault(text, []).append(label)
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


def audit_notes(results: AuditResults) -> list[str]:
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


_NAMES = {"accuracy": "accuracy", "auc": "AUC", "f1": "F1"}
_BOUNDS = {
    "single": "one individual",
    "simultaneous": "all simultaneously",
    "paper": "by the bound of Kulynych et al.",
    "hidden": "if all runs agree",
}
LISTED = 50  # individuals of a review list; the others are in individuals.csv


def _label_rows(
    results: AuditResults,
    caption: str,
    heads: tuple[str, ...],
    rows_of: Callable[[Audit], Iterable[tuple[str, ...]]],
) -> Table:
    """The rows of every audit, after their epsilon if it is known."""
    if not results.epsilons:
        return Table(caption, heads, tuple(rows_of(results.audits[0])))
    rows = [(label, *row) for label, audit in results.labeled_audits for row in rows_of(audit)]
    return Table(caption, ("epsilon", *heads), tuple(rows))


def summary(results: AuditResults) -> Table:
    """Disagreement over individuals, a row for each budget."""
    heads: tuple[str, ...] = ("runs", "mean", "median", "p90", "p95", "maximum", "to review")
    if mean_flip(results.audits[0]) is not None:
        heads += ("flip",)

    def rows_of(audit: Audit) -> Iterator[tuple[str, ...]]:
        shape, flip = audit.distribution, mean_flip(audit)
        yield (
            f"{audit.runs:,}",
            _cell(audit.mean),
            *map(decimals, (shape.median, shape.p90, shape.p95, shape.maximum)),
            f"{len(audit.review):,}",
            *(() if flip is None else (decimals(flip),)),
        )

    level = percent(results.audits[0].level)
    caption = (
        f"Disagreement over {len(results.rows):,} individuals; {level} intervals of the mean"
    )
    return _label_rows(results, caption, heads, rows_of)


def distribution(results: AuditResults) -> Table:
    """Summary statistics of disagreement, as in the paper's Table 2."""
    kinds = {"individuals": [audit.distribution for audit in results.audits]}
    pooled = [audit.pooled for audit in results.audits if audit.pooled is not None]
    means = [audit.class_average for audit in results.audits if audit.class_average is not None]
    if pooled:
        kinds |= {"individuals and classes": pooled, "class averages": means}
    start = 0 if results.epsilons else 1
    rows = tuple(
        (label, of, *map(decimals, vars(each).values()))[start:]
        for of, all_ in kinds.items()
        for label, each in zip(results.labels, all_, strict=True)
    )
    statistics = ("mean", "deviation", "minimum", "median", "p90", "p95", "maximum")
    heads = ("epsilon", "over", *statistics)[start:]
    return Table("Distribution of disagreement", heads, rows)


def figures_table(results: AuditResults) -> Table:
    """Accuracy, AUC and F1 of the runs."""

    def rows_of(audit: Audit) -> Iterator[tuple[str, ...]]:
        for name in (each for each in _NAMES if each in audit.figures):
            figure = audit.figures[name]
            spread = f"{decimals(figure['mean'])} ± {decimals(figure['deviation'])}"
            quantiles = (decimals(figure[each]) for each in ("p05", "median", "p95"))
            yield (_NAMES[name], spread, *quantiles)

    heads = ("figure", "mean ± deviation", "5th percentile", "median", "95th")
    caption = "Performance of the runs on the audited individuals"
    return _label_rows(results, caption, heads, rows_of)


def by_group_table(results: AuditResults, name: str, *, intervals: bool = True) -> Table:
    """Mean disagreement of each group, with their difference and ratio."""
    groups = [audit.groups[name] for audit in results.audits]

    def cells_of(figures: Iterable[Estimate | None]) -> Iterator[str]:
        return (_cell(each, intervals) for each in figures)

    rows = [
        (group, f"{individuals:,}", *cells_of(each.values[group] for each in groups))
        for group, individuals in groups[0].individuals.items()
    ][:MOST]
    if all(each.gap is not None for each in groups):
        rows.append(("largest minus smallest", "", *cells_of(each.gap for each in groups)))
        rows.append(("smallest over largest", "", *cells_of(each.ratio for each in groups)))
    heads = tuple(f"at epsilon {each}" for each in results.labels)
    heads = heads if results.epsilons else ("mean",)
    caption = "Mean disagreement, with intervals for the randomness of the runs"
    return Table(caption, ("group", "individuals", *heads), tuple(rows))


def review(results: AuditResults, label: str, audit: Audit) -> Table:
    """The least certain individuals, by their rows."""
    persons = audit.individuals
    rows = tuple(
        (
            f"{results.rows[index]}",
            decimals(float(persons.disagreement[index])),
            f"{decimals(float(persons.low[index]))} to {decimals(float(persons.high[index]))}",
            *(f"{count:,}" for count in persons.counts[index].tolist()),
            *(() if persons.flip is None else (decimals(float(persons.flip[index])),)),
        )
        for index in audit.review[:LISTED].tolist()
    )
    heads = [
        *("row in the table", "disagreement", "interval"),
        *(f"runs for {each}" for each in audit.classes),
    ]
    if persons.flip is not None:
        heads.append("share of runs that contradict the deployed model")
    where = f" at epsilon {label}" if results.epsilons else ""
    more = len(audit.review) - len(rows)
    rest = f"; {more:,} more are in individuals.csv" if more > 0 else ""
    return Table(f"To review{where}, the least certain first{rest}", tuple(heads), rows)


def abstention_table(results: AuditResults) -> Table:
    """What remains if the least certain get no automatic decision."""
    heads: tuple[str, ...] = ("without decision", "mean disagreement of the others")
    figures: tuple[str, ...] = ("disagreement",)
    if all("accuracy" in row for audit in results.audits for row in audit.abstention):
        heads, figures = (*heads, "their accuracy"), (*figures, "accuracy")
    return _label_rows(
        results,
        "Without the least certain individuals",
        heads,
        lambda audit: (
            (percent(row["abstained"]), *(decimals(row[name]) for name in figures))
            for row in audit.abstention
        ),
    )


def recalibrated(results: AuditResults) -> Table:
    """Whether recalibration makes decisions more or less arbitrary."""

    def rows_of(audit: Audit) -> Iterator[tuple[str, ...]]:
        if (effect := audit.recalibrated) is not None:
            means = map(_cell, (effect.before, effect.after, effect.difference))
            before, after = map(decimals, (effect.deviation_before, effect.deviation_after))
            yield (effect.method, *means, f"{before}, then {after}")

    heads = ("map", "before", "after", "difference", "deviation of a probability")
    caption = "Mean disagreement before and after recalibrating each run"
    return _label_rows(results, caption, heads, rows_of)


def by_accuracy(results: AuditResults) -> Table:
    """Disagreement among the runs that reach each accuracy."""
    return _label_rows(
        results,
        "Runs that reach an accuracy",
        ("accuracy at least", "runs", "mean disagreement"),
        lambda audit: (
            (
                f"{row.accuracy:g}",
                f"{row.runs:,}",
                "too few runs" if row.mean is None else decimals(row.mean),
            )
            for row in audit.by_accuracy
        ),
    )


def errors_table(results: AuditResults) -> Table:
    """Measured error of estimates beside its bounds."""
    heads = ("runs", "mean error, measured", "largest, measured")
    return _label_rows(
        results,
        "Estimates from some runs against those from the others; bounds are simultaneous",
        (*heads, "bound of exact intervals", "bound of the paper"),
        lambda audit: (
            (f"{row.runs:,}", *map(decimals, (row.mean, row.largest, row.exact, row.paper)))
            for row in audit.errors
        ),
    )


def bounds(results: AuditResults) -> Table:
    """Precision of the estimates for individuals."""
    return _label_rows(
        results,
        "Largest error of an estimate, for a number of runs fixed in advance; and the "
        "disagreement that unanimous runs may hide",
        ("runs", *_BOUNDS.values()),
        lambda audit: [
            (f"{audit.runs:,}", *(decimals(audit.bounds[name]) for name in _BOUNDS))
        ],
    )


def plane_table(results: AuditResults) -> Table | None:
    """Mean disagreement in the nine thirds of the plane."""
    first = results.audits[0].plane
    if first is None:
        return None

    def thirds(values: Floats) -> list[tuple[slice, str]]:
        """Slices of a range in three parts, and their ends."""
        cuts = [round(len(values) * share / 3) for share in range(4)]
        return [
            (slice(low, high), f"{values[low]:.4g} to {values[high - 1]:.4g}")
            for low, high in pairwise(cuts)
        ]

    def rows_of(audit: Audit) -> Iterator[tuple[str, ...]]:
        assert audit.plane is not None
        for ys, up in thirds(first.ys):
            for xs, across in thirds(first.xs):
                mean = float(audit.plane.disagreement[ys, xs].mean())
                yield across, up, decimals(mean)

    heads = (*first.names, "mean disagreement")
    return _label_rows(results, "Mean disagreement by thirds of the map", heads, rows_of)


def _cell(figure: Estimate | None, with_interval: bool = True) -> str:
    """A figure with its interval in brackets."""
    if figure is None or figure.value is None:
        return "empty"
    if not with_interval or figure.low is None or figure.high is None:
        return decimals(figure.value)
    return f"{decimals(figure.value)} ({interval(figure)})"


_MAX_INTERVALS = 3  # budgets whose intervals fit side by side on a terminal


def audit_tables(results: AuditResults) -> list[tuple[str, Table, str]]:
    """Titles, tables and notes for a terminal; all of them are *internal*."""
    first = results.audits[0]
    about = (
        "Disagreement is 0 if all runs agree, and about 1 if the decision is as good as a coin "
        f"toss. To review: individuals above {first.review_above:g} with confidence."
    )
    if first.individuals.flip is not None:
        about += " Flip: share of runs that contradict the deployed model."
    intervals = len(results.audits) <= _MAX_INTERVALS
    tables = [
        (
            f"{results.name}: disagreement over {len(results.rows):,} individuals",
            summary(results),
            about,
        ),
        (
            "performance of the runs",
            figures_table(results),
            "Mean, standard deviation and percentiles over runs.",
        ),
        *(
            (
                f"mean disagreement by {name}",
                by_group_table(results, name, intervals=intervals),
                "",
            )
            for name in first.groups
        ),
        (
            "precision of the estimates",
            bounds(results),
            f"Largest error of an estimate, at {first.level:.0%} confidence, for a number of "
            "runs fixed in advance; and the disagreement that unanimous runs may hide.",
        ),
        (
            "runs of higher accuracy",
            by_accuracy(results),
            "Selecting runs by their accuracy has a privacy cost of its own.",
        ),
        (
            "mean disagreement before and after recalibration",
            recalibrated(results),
            "Deviation: of an individual's probability over runs, mean over individuals.",
        ),
    ]
    return [entry for entry in tables if entry[1].rows]

"""Tables of an audit's page: whatever a chart shows, and what no chart does."""

from itertools import pairwise

from veracal.data import Estimate
from veracal.multiplicity import Audit
from veracal.report.audit_charts import histogram
from veracal.report.audited import Audited
from veracal.report.tables import MOST, Table
from veracal.report.writing import decimals, interval, percent

_SHORT = ("median", "p90", "p95", "maximum")
_NAMES = {"accuracy": "accuracy", "auc": "AUC", "f1": "F1"}
LISTED = 50  # people of a review list; the others are in people.csv


def summary(found: Audited) -> Table:
    """Disagreement over people, a line for each budget."""
    rows = tuple(
        (
            label,
            f"{audit.runs:,}",
            _cell(audit.mean),
            *(decimals(getattr(audit.distribution, name)) for name in _SHORT),
            f"{len(audit.review):,}",
        )
        for label, audit in found.told
    )
    level = percent(found.audits[0].level)
    caption = f"Disagreement over {len(found.rows):,} people; {level} intervals of the mean"
    heads = ("epsilon", "runs", "mean", "median", "p90", "p95", "most", "to review")
    return _apart(found, Table(caption, heads, rows))


def distribution(found: Audited) -> Table:
    """Everything that is told of a distribution over people, as the paper's Table 2 does."""
    kinds = {"people": [audit.distribution for audit in found.audits]}
    pooled = [audit.pooled for audit in found.audits if audit.pooled is not None]
    means = [audit.class_average for audit in found.audits if audit.class_average is not None]
    if pooled:
        kinds |= {"people and classes": pooled, "means of classes": means}
    rows = tuple(
        (label, of, *(decimals(value) for value in vars(each).values()))
        for of, all_ in kinds.items()
        for label, each in zip(found.labels, all_, strict=True)
    )
    heads = ("epsilon", "over", "mean", "deviation", "least", "median", "p90", "p95", "most")
    return _apart(found, Table("Disagreement, its whole distribution", heads, rows))


def figures(found: Audited) -> Table:
    """How good the runs are."""
    rows = []
    for label, audit in found.told:
        for name in (each for each in _NAMES if each in audit.figures):
            figure = audit.figures[name]
            told = (figure[each] for each in ("p05", "median", "p95"))
            spread = f"{decimals(figure['mean'])} ± {decimals(figure['deviation'])}"
            rows.append((label, _NAMES[name], spread, *map(decimals, told)))
    heads = ("epsilon", "figure", "mean ± deviation", "5th percentile", "median", "95th")
    caption = "Of the runs, on the people who were audited"
    return _apart(found, Table(caption, heads, tuple(rows)))


def spread(found: Audited) -> Table:
    """People in each bin of disagreement."""
    bins = [histogram(audit) for audit in found.audits]
    rows = tuple(
        (f"{low:g} to {high:g}", *(f"{each[place][2]:,}" for each in bins))
        for place, (low, high, _) in enumerate(bins[0])
    )
    heads = tuple(f"people at epsilon {each}" for each in found.labels)
    heads = heads if found.epsilons else ("people",)
    return Table("People by their disagreement", ("disagreement", *heads), rows)


def by_group(found: Audited, name: str) -> Table:
    """Mean disagreement of each group, and how far they are apart."""
    told = [audit.groups[name] for audit in found.audits]
    rows = [
        (group, f"{people:,}", *(_cell(each.values[group]) for each in told))
        for group, people in told[0].people.items()
    ][:MOST]
    if all(each.gap is not None for each in told):
        rows.append(("largest minus smallest", "", *(_cell(each.gap) for each in told)))
        rows.append(("smallest over largest", "", *(_cell(each.ratio) for each in told)))
    heads = tuple(f"at epsilon {each}" for each in found.labels)
    heads = heads if found.epsilons else ("mean",)
    caption = "Mean disagreement, with intervals that count the chance of the runs"
    return Table(caption, ("group", "people", *heads), tuple(rows))


def review(found: Audited, label: str, audit: Audit) -> Table:
    """The least certain people, by their rows."""
    persons, some = audit.persons, audit.review[:LISTED].tolist()
    rows = tuple(
        (
            f"{found.rows[at]}",
            decimals(float(persons.disagreement[at])),
            f"{decimals(float(persons.low[at]))} to {decimals(float(persons.high[at]))}",
            *(f"{count:,}" for count in persons.counts[at].tolist()),
            *(() if persons.flip is None else (decimals(float(persons.flip[at])),)),
        )
        for at in some
    )
    counts = tuple(f"runs for {each}" for each in audit.classes)
    heads = ("row in the table", "disagreement", "interval", *counts)
    heads += () if persons.flip is None else ("share that contradicts the model in use",)
    where = f" at epsilon {label}" if found.epsilons else ""
    more = len(audit.review) - len(rows)
    rest = f"; {more:,} more are in people.csv" if more > 0 else ""
    return Table(f"To review{where}, the least certain first{rest}", heads, rows)


def abstention(found: Audited) -> Table:
    """What is left if the least certain get no automatic decision."""
    right = all("accuracy" in row for audit in found.audits for row in audit.abstention)
    rows = tuple(
        (
            label,
            percent(row["abstained"]),
            decimals(row["disagreement"]),
            *((decimals(row["accuracy"]),) if right else ()),
        )
        for label, audit in found.told
        for row in audit.abstention
    )
    heads = (
        "epsilon",
        "left out",
        "mean disagreement of the others",
        *(("share of them that is right",) if right else ()),
    )
    return _apart(found, Table("With the least certain people left out", heads, rows))


def recalibrated(found: Audited) -> Table:
    """Whether repairing confidence makes decisions more or less arbitrary."""
    rows = tuple(
        (
            label,
            done.method,
            _cell(done.before),
            _cell(done.after),
            _cell(done.difference),
            f"{decimals(done.deviation_before)}, then {decimals(done.deviation_after)}",
        )
        for label, audit in found.told
        if (done := audit.recalibrated) is not None
    )
    heads = ("epsilon", "map", "before", "after", "difference", "spread of a probability")
    caption = "Mean disagreement before and after each run's map"
    return _apart(found, Table(caption, heads, rows))


def at_levels(found: Audited) -> Table:
    """Disagreement among the runs that are accurate enough."""
    rows = tuple(
        (
            label,
            f"{row.accuracy:g}",
            f"{row.runs:,}",
            "too few runs" if row.mean is None else decimals(row.mean),
        )
        for label, audit in found.told
        for row in audit.at_levels
    )
    heads = ("epsilon", "accuracy at least", "runs", "mean disagreement")
    return _apart(found, Table("Among the runs that reach an accuracy", heads, rows))


def errors(found: Audited) -> Table:
    """Measured error of estimates beside its bounds."""
    rows = tuple(
        (label, f"{row.runs:,}", *map(decimals, (row.mean, row.largest, row.exact, row.paper)))
        for label, audit in found.told
        for row in audit.errors
    )
    heads = (
        "epsilon",
        "runs",
        "mean error, measured",
        "largest, measured",
        "bound of exact intervals",
        "bound of the paper",
    )
    caption = "Estimates of some runs against those of the others; bounds hold for everybody"
    return _apart(found, Table(caption, heads, rows))


def bounds(found: Audited) -> Table:
    """What so many runs can tell of a person."""
    names = {
        "one": "error of one person",
        "all": "of everybody at once",
        "paper": "by the paper's bound",
        "blind": "disagreement that agreeing runs may hide",
    }
    rows = tuple(
        (label, f"{audit.runs:,}", *(decimals(audit.bounds[name]) for name in names))
        for label, audit in found.told
    )
    heads = ("epsilon", "runs", *names.values())
    return _apart(found, Table("Of so many runs, fixed beforehand", heads, rows))


def plane(found: Audited) -> Table | None:
    """Where in the plane runs disagree most: its nine parts, by their means."""
    first = found.audits[0].plane
    if first is None:
        return None
    rows = []
    for label, audit in found.told:
        assert audit.plane is not None
        for ys in _thirds(len(first.ys)):
            for xs in _thirds(len(first.xs)):
                part = audit.plane.disagreement[ys, xs]
                ends = [f"{first.xs[xs][at]:.4g}" for at in (0, -1)]
                ups = [f"{first.ys[ys][at]:.4g}" for at in (0, -1)]
                rows.append(
                    (label, " to ".join(ends), " to ".join(ups), decimals(float(part.mean())))
                )
    heads = ("epsilon", *first.names, "mean disagreement")
    return _apart(found, Table("Mean disagreement by thirds of the map", heads, tuple(rows)))


def _thirds(n: int) -> list[slice]:
    """A range in three parts."""
    ends = [round(n * share / 3) for share in range(4)]
    return [slice(low, high) for low, high in pairwise(ends)]


def _apart(found: Audited, table: Table) -> Table:
    """The table, without its first column where there is but one audit without a budget."""
    if found.epsilons:
        return table
    return Table(table.caption, table.heads[1:], tuple(row[1:] for row in table.rows))


def _cell(found: Estimate | None) -> str:
    """A figure with its interval in brackets."""
    if found is None or found.value is None:
        return "nobody"
    if found.low is None or found.high is None:
        return decimals(found.value)
    return f"{decimals(found.value)} ({interval(found)})"

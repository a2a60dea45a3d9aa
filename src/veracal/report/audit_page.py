"""Charts of an audit, in the grammar of Vega-Lite.

Tables of an audit's page: whatever a chart shows, and what no chart does.

The page of an audit: one HTML file that loads nothing, watermarked as internal.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from veracal import __version__
from veracal._types import Floats
from veracal.data import Estimate
from veracal.multiplicity import Audit, Plane
from veracal.report import audit_results as words
from veracal.report.audit_results import AuditResults
from veracal.report.charts import AFTER, Spec, ends, interval_tips, tip, whole
from veracal.report.page import written
from veracal.report.tables import MOST, Table, pairs
from veracal.report.text import decimals, interval, listed, percent, visible

_OTHER = "#D55E00"
_DISAGREE = "disagreement"
_UNIT = {
    "scale": {"domain": [0, 1], "nice": False, "padding": 4},
    "axis": {"values": [0, 0.2, 0.4, 0.6, 0.8, 1], "format": ".1f"},
}
_BINS = 20  # of disagreement, from 0 to 1
_RULE = {"type": "rule", "strokeWidth": 2, "opacity": 0.6}
_POINT = {"type": "point", "filled": True, "size": 90, "opacity": 1}
_GROUPS = 40  # that a chart can still show
_CHOSEN = {"filter": "datum.at == show"}
_SERIES = {
    "largest, measured": (AFTER, "circle", [1, 0]),
    "mean, measured": (AFTER, "square", [2, 2]),
    "bound of exact intervals": (_OTHER, "triangle-up", [6, 3]),
    "bound of the paper": ("#777777", "diamond", [6, 3]),
}


def audit_charts(found: AuditResults) -> dict[str, Spec]:
    """Specifications of all charts for which there is something to draw, by name."""
    made = {
        "spread": spread_chart(found),
        "epsilons": by_epsilon(found),
        **{
            group_chart(i): by_group_chart(found, n)
            for i, n in enumerate(found.audits[0].groups)
        },
        "plane": plane_chart(found),
        "abstention": abstention_chart(found, "disagreement", "mean disagreement"),
        "kept": abstention_chart(found, "accuracy", "share that is right"),
        "errors": errors_chart(found),
    }
    return {
        name: {**spec, "description": f"Internal. {spec['description']}"}
        for name, spec in made.items()
        if spec is not None
    }


def group_chart(place: int) -> str:
    """Name of the chart of an attribute, which may be called anything itself."""
    return f"group{place}"


def histogram(audit: Audit) -> list[tuple[float, float, int]]:
    """How many people have so much disagreement, which may exceed 1 by m / (m - 1).

    Returns
    -------
    list of (from, to, people)
    """
    edges = np.linspace(0, 1, _BINS + 1)
    individuals, _ = np.histogram(np.clip(audit.individuals.disagreement, 0, 1), edges)
    low, high = edges[:-1].round(3).tolist(), edges[1:].round(3).tolist()
    return list(zip(low, high, individuals.tolist(), strict=True))


def spread_chart(found: AuditResults) -> Spec | None:
    """People by their disagreement."""
    rows = [
        {"at": label, "from": low, "to": high, "people": individuals, "bin": f"{low:g} to {high:g}"}
        for label, audit in found.labeled_audits
        for low, high, individuals in histogram(audit)
    ]
    across = {"field": "from", "bin": {"binned": True, "step": 1 / _BINS}, "title": _DISAGREE}
    spec = {
        "mark": {"type": "bar", "color": AFTER, "stroke": "#555555", "strokeWidth": 0.5},
        "encoding": {
            "x": {**across, "type": "quantitative", **_UNIT},
            "x2": {"field": "to"},
            "y": {
                "field": "people",
                "type": "quantitative",
                "title": "people",
                "stack": None,
                "axis": {"tickMinStep": 1},
            },
            "tooltip": [tip("bin", "disagreement"), tip("people", "people", ",.0f")],
        },
        "height": 220,
    }
    return _chosen(found, rows, spec, "How many people have how much disagreement.")


def by_epsilon(found: AuditResults) -> Spec | None:
    """Mean disagreement and its 95th percentile, at each budget."""
    if len(found.epsilons) < 2:
        return None
    told = sorted(zip(found.epsilons, found.labeled_audits, strict=True), key=lambda each: each[0])
    rows: list[dict[str, Any]] = []
    for place, (_, (label, audit)) in enumerate(told):
        both = {"epsilon": label, "place": place}
        rows.append({**both, "what": "mean", **ends(audit.mean)})
        high = audit.distribution.p95
        rows.append({**both, "what": "95th percentile", "value": high})
    across = {
        "field": "epsilon",
        "type": "ordinal",
        "sort": {"field": "place"},
        "title": "epsilon (less is more private)",
        "axis": {"labelAngle": 0},
    }
    up: Spec = {"type": "quantitative", "title": _DISAGREE, "scale": {"domain": [0, 1.05]}}
    up["axis"] = {"values": [0, 0.2, 0.4, 0.6, 0.8, 1], "format": ".1f"}
    names = ["mean", "95th percentile"]
    told_apart = {
        "color": _told("what", names, [AFTER, _OTHER]),
        "shape": _told("what", names, ["circle", "square"]),
    }
    tips = [tip("epsilon", "epsilon"), tip("what", "of people"), *interval_tips()]
    common: Spec = {"x": across, "tooltip": tips}
    value = {"field": "value", **up}
    layers = [
        {
            "mark": {"type": "line", "strokeWidth": 1.5},
            "encoding": {**common, "y": value, "color": told_apart["color"]},
        },
        {
            "transform": [{"filter": "datum.what == 'mean'"}],
            "mark": {**_RULE, "color": AFTER},
            "encoding": {**common, "y": {"field": "low", **up}, "y2": {"field": "high"}},
        },
        {"mark": _POINT, "encoding": {**common, "y": value, **told_apart}},
    ]
    return whole(rows, {"layer": layers, "height": 240}, "Disagreement by epsilon.")


def by_group_chart(found: AuditResults, name: str) -> Spec | None:
    """Mean disagreement of each group, with intervals."""
    rows = [
        {"at": label, "group": visible(group), **ends(value)}
        for label, audit in found.labeled_audits
        for group, value in list(audit.groups[name].values.items())[:_GROUPS]
        if value.value is not None
    ]
    names = list(dict.fromkeys(visible(g) for g in found.audits[0].groups[name].values))
    groups = {
        "field": "group",
        "type": "nominal",
        "title": None,
        "axis": {"labelLimit": 160},
        "scale": {"domain": names[:_GROUPS]},
    }
    across: Spec = {
        "type": "quantitative",
        "title": f"mean {_DISAGREE}",
        "scale": {"zero": True},
    }
    common: Spec = {"y": groups, "tooltip": [tip("group", "group"), *interval_tips()]}
    layers = [
        {
            "mark": {**_RULE, "color": AFTER},
            "encoding": {**common, "x": {"field": "low", **across}, "x2": {"field": "high"}},
        },
        {
            "mark": {**_POINT, "color": AFTER},
            "encoding": {**common, "x": {"field": "value", **across}},
        },
    ]
    spec = {"layer": layers, "height": 30 * max(len(names[:_GROUPS]), 2)}
    return _chosen(found, rows, spec, "Mean disagreement of each group, with intervals.")


def plane_chart(found: AuditResults) -> Spec | None:
    """Disagreement over two features, as colors."""
    rows = [
        {"at": label, **cell}
        for label, audit in found.labeled_audits
        if audit.plane is not None
        for cell in cells(audit.plane)
    ]
    first = found.audits[0].plane
    if first is None:
        return None
    one, other = map(visible, first.names)
    axis: Spec = {
        "type": "quantitative",
        "scale": {"nice": False, "zero": False},
        "axis": {"grid": False},
    }
    spec = {
        "mark": {"type": "rect"},
        "encoding": {
            "x": {"field": "x", **axis, "title": one},
            "x2": {"field": "x2"},
            "y": {"field": "y", **axis, "title": other},
            "y2": {"field": "y2"},
            "color": {
                "field": "disagreement",
                "type": "quantitative",
                "scale": {"scheme": "viridis", "domain": [0, 1], "clamp": True},
                "legend": {"title": _DISAGREE, "orient": "top", "gradientLength": 220},
            },
            "tooltip": [
                tip("across", one, ".4g"),
                tip("up", other, ".4g"),
                tip("disagreement", _DISAGREE, ".3f"),
            ],
        },
        "height": 340,
    }
    return _chosen(found, rows, spec, "Disagreement over two features, others at the median.")


def cells(told: Plane) -> list[dict[str, float]]:
    """One cell of color around each point of a plane."""
    xs, ys = _edges(told.xs), _edges(told.ys)
    wide, high = (0.03 * (each[1] - each[0]) for each in (xs, ys))  # so that no seam is seen
    return [
        {
            "x": xs[i],
            "x2": _short(xs[i + 1] + wide),
            "y": ys[j],
            "y2": _short(ys[j + 1] + high),
            "across": _short(told.xs[i]),
            "up": _short(told.ys[j]),
            "disagreement": round(float(told.disagreement[j, i]), 4),
        }
        for j in range(len(told.ys))
        for i in range(len(told.xs))
    ]


def abstention_chart(found: AuditResults, figure: str, title: str) -> Spec | None:
    """What is left if those with most disagreement get no automatic decision."""
    rows = [
        {"at": label, "share": row["abstained"], "value": row[figure]}
        for label, audit in found.labeled_audits
        for row in audit.abstention
        if figure in row
    ]
    spec = {
        "mark": {"type": "line", "color": AFTER, "point": {"color": AFTER, "size": 60}},
        "encoding": {
            "x": {
                "field": "share",
                "type": "quantitative",
                "title": "share of people left to somebody's review",
                "axis": {"format": ".0%", "values": [0, 0.1, 0.2, 0.3, 0.4, 0.5]},
            },
            "y": {
                "field": "value",
                "type": "quantitative",
                "title": title,
                "scale": {"zero": figure == "disagreement"},
                "axis": {"tickCount": 5},
            },
            "tooltip": [tip("share", "left out", ".0%"), tip("value", title, ".3f")],
        },
        "height": 150,
    }
    return _chosen(found, rows, spec, f"With the least certain people left out: {title}.")


def errors_chart(found: AuditResults) -> Spec | None:
    """How far estimates of fewer runs were off, beside the bounds."""
    rows = [
        {"at": label, "runs": row.runs, "what": what, "value": value}
        for label, audit in found.labeled_audits
        for row in audit.errors
        for what, value in zip(
            _SERIES, (row.largest, row.mean, row.exact, row.paper), strict=True
        )
        if value > 0
    ]
    names = list(_SERIES)
    spec = {
        "mark": {"type": "line", "point": {"filled": True, "size": 60}},
        "encoding": {
            "x": {
                "field": "runs",
                "type": "quantitative",
                "title": "runs",
                "scale": {"type": "log", "nice": False, "padding": 12},
                "axis": {"tickCount": 4, "format": ",d"},
            },
            "y": {
                "field": "value",
                "type": "quantitative",
                "title": "error of an estimate",
                "scale": {"type": "log"},
                "axis": {"tickCount": 5, "format": "~g"},
            },
            "color": _told("what", names, [each[0] for each in _SERIES.values()], 2),
            "shape": _told("what", names, [each[1] for each in _SERIES.values()], 2),
            "strokeDash": _told("what", names, [each[2] for each in _SERIES.values()], 2),
            "tooltip": [
                tip("what", "error"),
                tip("runs", "runs", ",.0f"),
                tip("value", "value", ".4f"),
            ],
        },
        "height": 220,
    }
    return _chosen(found, rows, spec, "Error of estimates by number of runs, and its bounds.")


def _chosen(
    found: AuditResults, rows: list[dict[str, Any]], spec: Mapping[str, Any], said: str
) -> Spec | None:
    """A chart of one budget at a time."""
    shown = {"params": [{"name": "show", "value": found.labels[0]}], "transform": [_CHOSEN]}
    return whole(rows, {**shown, **spec}, said)


def _told(field: str, names: Sequence[str], values: Sequence[Any], columns: int = 0) -> Spec:
    """An encoding that tells series apart, with one legend for all of them."""
    legend: dict[str, Any] = {"orient": "top", "symbolOpacity": 1, "labelLimit": 220}
    return {
        "field": field,
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(names), "range": list(values)},
        "legend": {**legend, **({"columns": columns} if columns else {})},
    }


def _edges(values: Floats) -> list[float]:
    """Ends of cells around evenly spaced values."""
    half = (values[1] - values[0]) / 2
    return [_short(each) for each in np.append(values - half, values[-1] + half)]


def _short(value: Any) -> float:
    """A number in few digits: a page has thousands of them."""
    return float(f"{float(value):.5g}")


_SHORT = ("median", "p90", "p95", "maximum")
_NAMES = {"accuracy": "accuracy", "auc": "AUC", "f1": "F1"}
LISTED = 50  # people of a review list; the others are in people.csv


def summary(found: AuditResults) -> Table:
    """Disagreement over people, a line for each budget."""
    rows = tuple(
        (
            label,
            f"{audit.runs:,}",
            _cell(audit.mean),
            *(decimals(getattr(audit.distribution, name)) for name in _SHORT),
            f"{len(audit.review):,}",
        )
        for label, audit in found.labeled_audits
    )
    level = percent(found.audits[0].level)
    caption = f"Disagreement over {len(found.rows):,} people; {level} intervals of the mean"
    heads = ("epsilon", "runs", "mean", "median", "p90", "p95", "most", "to review")
    return _apart(found, Table(caption, heads, rows))


def distribution(found: AuditResults) -> Table:
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


def figures_table(found: AuditResults) -> Table:
    """How good the runs are."""
    rows = []
    for label, audit in found.labeled_audits:
        for name in (each for each in _NAMES if each in audit.figures):
            figure = audit.figures[name]
            told = (figure[each] for each in ("p05", "median", "p95"))
            spread = f"{decimals(figure['mean'])} ± {decimals(figure['deviation'])}"
            rows.append((label, _NAMES[name], spread, *map(decimals, told)))
    heads = ("epsilon", "figure", "mean ± deviation", "5th percentile", "median", "95th")
    caption = "Of the runs, on the people who were audited"
    return _apart(found, Table(caption, heads, tuple(rows)))


def spread_table(found: AuditResults) -> Table:
    """People in each bin of disagreement."""
    bins = [histogram(audit) for audit in found.audits]
    rows = tuple(
        (f"{low:g} to {high:g}", *(f"{each[place][2]:,}" for each in bins))
        for place, (low, high, _) in enumerate(bins[0])
    )
    heads = tuple(f"people at epsilon {each}" for each in found.labels)
    heads = heads if found.epsilons else ("people",)
    return Table("People by their disagreement", ("disagreement", *heads), rows)


def by_group_table(found: AuditResults, name: str) -> Table:
    """Mean disagreement of each group, and how far they are apart."""
    told = [audit.groups[name] for audit in found.audits]
    rows = [
        (group, f"{individuals:,}", *(_cell(each.values[group]) for each in told))
        for group, individuals in told[0].individuals.items()
    ][:MOST]
    if all(each.gap is not None for each in told):
        rows.append(("largest minus smallest", "", *(_cell(each.gap) for each in told)))
        rows.append(("smallest over largest", "", *(_cell(each.ratio) for each in told)))
    heads = tuple(f"at epsilon {each}" for each in found.labels)
    heads = heads if found.epsilons else ("mean",)
    caption = "Mean disagreement, with intervals that count the chance of the runs"
    return Table(caption, ("group", "people", *heads), tuple(rows))


def review(found: AuditResults, label: str, audit: Audit) -> Table:
    """The least certain people, by their rows."""
    persons, some = audit.individuals, audit.review[:LISTED].tolist()
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


def abstention_table(found: AuditResults) -> Table:
    """What is left if the least certain get no automatic decision."""
    right = all("accuracy" in row for audit in found.audits for row in audit.abstention)
    rows = tuple(
        (
            label,
            percent(row["abstained"]),
            decimals(row["disagreement"]),
            *((decimals(row["accuracy"]),) if right else ()),
        )
        for label, audit in found.labeled_audits
        for row in audit.abstention
    )
    heads = (
        "epsilon",
        "left out",
        "mean disagreement of the others",
        *(("share of them that is right",) if right else ()),
    )
    return _apart(found, Table("With the least certain people left out", heads, rows))


def recalibrated(found: AuditResults) -> Table:
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
        for label, audit in found.labeled_audits
        if (done := audit.recalibrated) is not None
    )
    heads = ("epsilon", "map", "before", "after", "difference", "spread of a probability")
    caption = "Mean disagreement before and after each run's map"
    return _apart(found, Table(caption, heads, rows))


def at_levels(found: AuditResults) -> Table:
    """Disagreement among the runs that are accurate enough."""
    rows = tuple(
        (
            label,
            f"{row.accuracy:g}",
            f"{row.runs:,}",
            "too few runs" if row.mean is None else decimals(row.mean),
        )
        for label, audit in found.labeled_audits
        for row in audit.by_accuracy
    )
    heads = ("epsilon", "accuracy at least", "runs", "mean disagreement")
    return _apart(found, Table("Among the runs that reach an accuracy", heads, rows))


def errors_table(found: AuditResults) -> Table:
    """Measured error of estimates beside its bounds."""
    rows = tuple(
        (label, f"{row.runs:,}", *map(decimals, (row.mean, row.largest, row.exact, row.paper)))
        for label, audit in found.labeled_audits
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


def bounds(found: AuditResults) -> Table:
    """What so many runs can tell of a person."""
    names = {
        "one": "error of one person",
        "all": "of everybody at once",
        "paper": "by the paper's bound",
        "blind": "disagreement that agreeing runs may hide",
    }
    rows = tuple(
        (label, f"{audit.runs:,}", *(decimals(audit.bounds[name]) for name in names))
        for label, audit in found.labeled_audits
    )
    heads = ("epsilon", "runs", *names.values())
    return _apart(found, Table("Of so many runs, fixed beforehand", heads, rows))


def plane_table(found: AuditResults) -> Table | None:
    """Where in the plane runs disagree most: its nine parts, by their means."""
    first = found.audits[0].plane
    if first is None:
        return None
    rows = []
    for label, audit in found.labeled_audits:
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


def _apart(found: AuditResults, table: Table) -> Table:
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


SPREAD = (
    "To the left are people about whom runs agree, to the right those whose decision is as "
    "good as tossed."
)
EPSILON = (
    "Of the mean the interval is drawn, too; one person in twenty has more than the 95th "
    "percentile."
)
PLANE = (
    "For somebody with these two features as the model sees them, everything else at the "
    "median. Where it is bright, chance decides."
)
ABSTAIN = (
    "What is left for automatic decisions if the people with most disagreement are decided by "
    "somebody who looks."
)
MAPS = (
    "Every run was repaired by a map of its own, on people who are not audited. Maps of "
    "temperatures change no decision at a threshold of 0.5, but how far confidence varies."
)
LEVELS = (
    "Choosing runs by their accuracy breaks the guarantee of whatever is chosen: for these "
    "eyes only, always."
)
ERRORS = (
    "Estimates of some of the runs were compared with those of all others. At the level of the "
    "intervals nobody's error should exceed the bounds, but for the error of the others."
)


@dataclass(frozen=True)
class ChartPanel:
    """A chart, or several below each other, with their table.

    Attributes
    ----------
    title : str
    charts : tuple of str
        Names of charts; none for a table alone.
    table : Table or None
    said : str
        A sentence below the title.
    choices : bool
        Whether one budget is shown at a time.
    """

    title: str
    charts: tuple[str, ...]
    table: Table | None
    said: str = ""
    choices: bool = True


def render_audit(found: AuditResults) -> str:
    """Write the page of an audit.

    Parameters
    ----------
    found : Audited

    Raises
    ------
    MissingExtraError
        Without the ``report`` extra.

    Guarantees
    ----------
    None: the page is *internal*, and says so at its top, across it, and at every chart.
    """
    drawn = audit_charts(found)
    first = found.audits[0]
    return written(
        "audit.html.j2",
        drawn,
        title_of=found.name,
        made=found.made,
        what=found.what,
        classes=listed(first.classes),
        individuals=len(found.rows),
        labels=found.labels,
        several=len(found.labeled_audits) > 1,
        headline=words.headline(found),
        groups=words.groups(found),
        can_tell=words.can_tell(found),
        cannot_tell=words.cannot_tell(found),
        published=words.PUBLISHED,
        notes=words.all_notes(found),
        summary=summary(found),
        shown=figures(found, drawn),
        reviews=[review(found, label, audit) for label, audit in found.labeled_audits],
        settings=pairs("Everything that was chosen", dict(found.settings)),
        about=pairs("What was run again", dict(first.engine_settings)),
        version=__version__,
    )


def figures(found: AuditResults, drawn: Collection[str]) -> list[ChartPanel]:
    """Everything below the first screen, in the order of the page."""

    def some(*names: str) -> tuple[str, ...]:
        return tuple(name for name in names if name in drawn)

    groups = [
        ChartPanel(f"By {visible(name)}", some(group_chart(at)), by_group_table(found, name))
        for at, name in enumerate(found.audits[0].groups)
    ]
    budgets = ChartPanel("By epsilon", some("epsilons"), summary(found), EPSILON, choices=False)
    made = [
        ChartPanel("Distribution over people", some("spread"), spread_table(found), SPREAD),
        budgets if "epsilons" in drawn else None,
        *groups,
        ChartPanel("CalibrationMap", some("plane"), plane_table(found), PLANE),
        ChartPanel("Abstention", some("abstention", "kept"), abstention_table(found), ABSTAIN),
        ChartPanel("The whole distribution", (), distribution(found)),
        ChartPanel("How good the runs are", (), figures_table(found)),
        ChartPanel("Calibration multiplicity", (), recalibrated(found), MAPS),
        ChartPanel("Among the more accurate runs", (), at_levels(found), LEVELS),
        ChartPanel(
            "MeasurementRecord error and its bounds",
            some("errors"),
            errors_table(found),
            ERRORS,
        ),
        ChartPanel("What so many runs can tell of a person", (), bounds(found)),
    ]
    return [each for each in made if each is not None and each.table and each.table.rows]

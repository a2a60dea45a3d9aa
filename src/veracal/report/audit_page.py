"""The page of an audit: its charts, its tables, and one self-contained HTML file.

The page is watermarked as internal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from veracal._types import Floats
from veracal.multiplicity import Audit, Plane
from veracal.report import audit_results as parts
from veracal.report.audit_results import AuditResults
from veracal.report.charts import AFTER, Spec, ends, interval_tips, mark_internal, tip, whole
from veracal.report.page import Panel, render_page
from veracal.report.tables import Table, pairs
from veracal.report.text import listed, visible

_OTHER = "#D55E00"
_DISAGREE = "disagreement"
_UNIT = {
    "scale": {"domain": [0, 1], "nice": False, "padding": 4},
    "axis": {"values": [0, 0.2, 0.4, 0.6, 0.8, 1], "format": ".1f"},
}
_BINS = 20  # bins of disagreement, from 0 to 1
_RULE = {"type": "rule", "strokeWidth": 2, "opacity": 0.6}
_POINT = {"type": "point", "filled": True, "size": 90, "opacity": 1}
_MAX_GROUPS = 40  # groups that a chart can show
_SELECTED = {"filter": "datum.at == show"}
_SERIES = {
    "largest, measured": (AFTER, "circle", [1, 0]),
    "mean, measured": (AFTER, "square", [2, 2]),
    "bound of exact intervals": (_OTHER, "triangle-up", [6, 3]),
    "bound of the paper": ("#777777", "diamond", [6, 3]),
}


def audit_charts(results: AuditResults) -> dict[str, Spec]:
    """Specifications of all charts that have data, by name."""
    charts = {
        "spread": spread_chart(results),
        "epsilons": by_epsilon(results),
        **{
            group_chart(i): by_group_chart(results, n)
            for i, n in enumerate(results.audits[0].groups)
        },
        "plane": plane_chart(results),
        "abstention": abstention_chart(results, "disagreement", "mean disagreement"),
        "kept": abstention_chart(results, "accuracy", "accuracy"),
        "errors": errors_chart(results),
    }
    return mark_internal(charts)


def group_chart(index: int) -> str:
    """Name of the chart of an attribute, independent of the attribute's own name."""
    return f"group{index}"


def histogram(audit: Audit) -> list[tuple[float, float, int]]:
    """Ends and individuals of each bin of disagreement, which may reach m / (m - 1)."""
    edges = np.linspace(0, 1, _BINS + 1)
    individuals, _ = np.histogram(np.clip(audit.individuals.disagreement, 0, 1), edges)
    low, high = edges[:-1].round(3).tolist(), edges[1:].round(3).tolist()
    return list(zip(low, high, individuals.tolist(), strict=True))


def spread_chart(results: AuditResults) -> Spec | None:
    """Individuals by disagreement."""
    rows = [
        {
            "at": label,
            "from": low,
            "to": high,
            "individuals": individuals,
            "bin": f"{low:g} to {high:g}",
        }
        for label, audit in results.labeled_audits
        for low, high, individuals in histogram(audit)
    ]
    across = {"field": "from", "bin": {"binned": True, "step": 1 / _BINS}, "title": _DISAGREE}
    spec = {
        "mark": {"type": "bar", "color": AFTER, "stroke": "#555555", "strokeWidth": 0.5},
        "encoding": {
            "x": {**across, "type": "quantitative", **_UNIT},
            "x2": {"field": "to"},
            "y": {
                "field": "individuals",
                "type": "quantitative",
                "title": "individuals",
                "stack": None,
                "axis": {"tickMinStep": 1},
            },
            "tooltip": [tip("bin", "disagreement"), tip("individuals", "individuals", ",.0f")],
        },
        "height": 220,
    }
    return _by_audit(results, rows, spec, "Number of individuals by disagreement.")


def by_epsilon(results: AuditResults) -> Spec | None:
    """Mean disagreement and its 95th percentile, at each budget."""
    if len(results.epsilons) < 2:
        return None
    ordered = sorted(
        zip(results.epsilons, results.labeled_audits, strict=True), key=lambda each: each[0]
    )
    rows: list[dict[str, Any]] = []
    for index, (_, (label, audit)) in enumerate(ordered):
        budget = {"epsilon": label, "place": index}
        rows.append({**budget, "what": "mean", **ends(audit.mean)})
        high = audit.distribution.p95
        rows.append({**budget, "what": "95th percentile", "value": high})
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
    series = {
        "color": _series_encoding(names, [AFTER, _OTHER]),
        "shape": _series_encoding(names, ["circle", "square"]),
    }
    tips = [tip("epsilon", "epsilon"), tip("what", "statistic"), *interval_tips()]
    common: Spec = {"x": across, "tooltip": tips}
    value = {"field": "value", **up}
    layers = [
        {
            "mark": {"type": "line", "strokeWidth": 1.5},
            "encoding": {**common, "y": value, "color": series["color"]},
        },
        {
            "transform": [{"filter": "datum.what == 'mean'"}],
            "mark": {**_RULE, "color": AFTER},
            "encoding": {**common, "y": {"field": "low", **up}, "y2": {"field": "high"}},
        },
        {"mark": _POINT, "encoding": {**common, "y": value, **series}},
    ]
    return whole(rows, {"layer": layers, "height": 240}, "Disagreement by epsilon.")


def by_group_chart(results: AuditResults, name: str) -> Spec | None:
    """Mean disagreement of each group, with intervals."""
    rows = [
        {"at": label, "group": visible(group), **ends(value)}
        for label, audit in results.labeled_audits
        for group, value in list(audit.groups[name].values.items())[:_MAX_GROUPS]
        if value.value is not None
    ]
    names = list(dict.fromkeys(visible(g) for g in results.audits[0].groups[name].values))
    groups = {
        "field": "group",
        "type": "nominal",
        "title": None,
        "axis": {"labelLimit": 160},
        "scale": {"domain": names[:_MAX_GROUPS]},
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
    spec = {"layer": layers, "height": 30 * max(len(names[:_MAX_GROUPS]), 2)}
    return _by_audit(results, rows, spec, "Mean disagreement of each group, with intervals.")


def plane_chart(results: AuditResults) -> Spec | None:
    """Disagreement over two features, as colors."""
    rows = [
        {"at": label, **cell}
        for label, audit in results.labeled_audits
        if audit.plane is not None
        for cell in cells(audit.plane)
    ]
    first = results.audits[0].plane
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
    return _by_audit(
        results, rows, spec, "Disagreement over two features, others at the median."
    )


def cells(plane: Plane) -> list[dict[str, float]]:
    """One colored cell around each point of a plane."""
    xs, ys = _edges(plane.xs), _edges(plane.ys)
    wide, high = (0.03 * (each[1] - each[0]) for each in (xs, ys))  # overlap hides the seams
    return [
        {
            "x": xs[i],
            "x2": _round(xs[i + 1] + wide),
            "y": ys[j],
            "y2": _round(ys[j + 1] + high),
            "across": _round(plane.xs[i]),
            "up": _round(plane.ys[j]),
            "disagreement": round(float(plane.disagreement[j, i]), 4),
        }
        for j in range(len(plane.ys))
        for i in range(len(plane.xs))
    ]


def abstention_chart(results: AuditResults, figure: str, title: str) -> Spec | None:
    """What remains if the least certain individuals get no automatic decision."""
    rows = [
        {"at": label, "share": row["abstained"], "value": row[figure]}
        for label, audit in results.labeled_audits
        for row in audit.abstention
        if figure in row
    ]
    spec = {
        "mark": {"type": "line", "color": AFTER, "point": {"color": AFTER, "size": 60}},
        "encoding": {
            "x": {
                "field": "share",
                "type": "quantitative",
                "title": "share of individuals without an automatic decision",
                "axis": {"format": ".0%", "values": [0, 0.1, 0.2, 0.3, 0.4, 0.5]},
            },
            "y": {
                "field": "value",
                "type": "quantitative",
                "title": title,
                "scale": {"zero": figure == "disagreement"},
                "axis": {"tickCount": 5},
            },
            "tooltip": [tip("share", "without decision", ".0%"), tip("value", title, ".3f")],
        },
        "height": 150,
    }
    return _by_audit(results, rows, spec, f"Without the least certain individuals: {title}.")


def errors_chart(results: AuditResults) -> Spec | None:
    """Error of estimates from fewer runs, with its bounds."""
    rows = [
        {"at": label, "runs": row.runs, "what": what, "value": value}
        for label, audit in results.labeled_audits
        for row in audit.errors
        for what, value in zip(
            _SERIES, (row.largest, row.mean, row.exact, row.paper), strict=True
        )
        if value > 0
    ]
    names, (colors, shapes, dashes) = list(_SERIES), zip(*_SERIES.values(), strict=True)
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
            "color": _series_encoding(names, colors, 2),
            "shape": _series_encoding(names, shapes, 2),
            "strokeDash": _series_encoding(names, dashes, 2),
            "tooltip": [
                tip("what", "error"),
                tip("runs", "runs", ",.0f"),
                tip("value", "value", ".4f"),
            ],
        },
        "height": 220,
    }
    return _by_audit(
        results, rows, spec, "Error of estimates by number of runs, and its bounds."
    )


def _by_audit(
    results: AuditResults, rows: list[dict[str, Any]], spec: Mapping[str, Any], description: str
) -> Spec | None:
    """A chart that shows one budget at a time."""
    selection = {
        "params": [{"name": "show", "value": results.labels[0]}],
        "transform": [_SELECTED],
    }
    return whole(rows, {**selection, **spec}, description)


def _series_encoding(names: Sequence[str], values: Sequence[Any], columns: int = 0) -> Spec:
    """An encoding that distinguishes series, with one shared legend."""
    legend: dict[str, Any] = {"orient": "top", "symbolOpacity": 1, "labelLimit": 220}
    return {
        "field": "what",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(names), "range": list(values)},
        "legend": {**legend, **({"columns": columns} if columns else {})},
    }


def _edges(values: Floats) -> list[float]:
    """Edges of cells around evenly spaced values."""
    half = (values[1] - values[0]) / 2
    return [_round(each) for each in np.append(values - half, values[-1] + half)]


def _round(value: Any) -> float:
    """A number with few digits, because a page has thousands of them."""
    return float(f"{float(value):.5g}")


def spread_table(results: AuditResults) -> Table:
    """Individuals in each bin of disagreement."""
    bins = [histogram(audit) for audit in results.audits]
    rows = tuple(
        (f"{low:g} to {high:g}", *(f"{each[place][2]:,}" for each in bins))
        for place, (low, high, _) in enumerate(bins[0])
    )
    heads = tuple(f"individuals at epsilon {each}" for each in results.labels)
    heads = heads if results.epsilons else ("individuals",)
    return Table("Individuals by disagreement", ("disagreement", *heads), rows)


SPREAD = (
    "On the left are individuals about whom the runs agree, on the right those whose decision "
    "is as good as a coin toss."
)
EPSILON = (
    "The mean has an interval; for 5 % of the individuals, disagreement exceeds the 95th "
    "percentile."
)
PLANE = (
    "Disagreement for these values of two features, with all other features at their medians. "
    "Where the color is bright, the decision is arbitrary."
)
ABSTAIN = (
    "What remains if the individuals with the highest disagreement get no automatic decision."
)
MAPS = (
    "Each run was recalibrated by a map of its own, on records that are not audited. "
    "Temperature scaling changes no decision at a threshold of 0.5, but it changes how far "
    "probabilities vary."
)
LEVELS = (
    "Selecting runs by their accuracy voids the guarantee of the selected model: always "
    "internal."
)
ERRORS = (
    "Estimates from some of the runs are compared with those from all others. At the "
    "confidence level, no individual's error should exceed the bounds, apart from the error of "
    "the others."
)


def render_audit(results: AuditResults) -> str:
    """Render the page of an audit.

    Parameters
    ----------
    results : AuditResults

    Raises
    ------
    MissingExtraError
        Without the ``report`` extra.

    Guarantees
    ----------
    None: the page is *internal*, and says so in its title, in a watermark and at every chart.
    """
    first = results.audits[0]
    panels = audit_panels(results)
    return render_page(
        "audit.html.j2",
        {name: spec for panel in panels for name, spec in panel.charts.items()},
        internal=True,
        title_of=results.name,
        date=results.date,
        what=results.what,
        classes=listed(first.classes),
        individuals=len(results.rows),
        labels=results.labels,
        headline=parts.headline(results),
        groups=parts.groups(results),
        precision=parts.precision(results),
        limits=parts.limits(results),
        published=parts.PUBLISHED,
        notes=parts.audit_notes(results),
        summary=parts.summary(results),
        audit_panels=panels,
        reviews=[
            parts.review(results, label, audit) for label, audit in results.labeled_audits
        ],
        settings=pairs("All settings", dict(results.settings)),
        training=pairs("The repeated training", dict(first.engine_settings)),
    )


def audit_panels(results: AuditResults) -> list[Panel]:
    """Everything below the first screen, in the order of the page."""
    specs = audit_charts(results)

    def panel(title: str, names: tuple[str, ...], table: Table | None, note: str = "") -> Panel:
        drawn = {name: specs[name] for name in names if name in specs}
        return Panel(title, table, drawn, has_choices=True, note=note)

    budgets = replace(
        panel("By epsilon", ("epsilons",), parts.summary(results), EPSILON), has_choices=False
    )
    panels = [
        panel("Distribution over individuals", ("spread",), spread_table(results), SPREAD),
        *([budgets] if "epsilons" in specs else []),
        *(
            panel(
                f"By {visible(name)}",
                (group_chart(index),),
                parts.by_group_table(results, name),
            )
            for index, name in enumerate(results.audits[0].groups)
        ),
        panel("Map over two features", ("plane",), parts.plane_table(results), PLANE),
        panel("Abstention", ("abstention", "kept"), parts.abstention_table(results), ABSTAIN),
        panel("Summary statistics", (), parts.distribution(results)),
        panel("Performance of the runs", (), parts.figures_table(results)),
        panel("Effect of recalibration", (), parts.recalibrated(results), MAPS),
        panel("Runs of higher accuracy", (), parts.by_accuracy(results), LEVELS),
        panel(
            "Measured error and its bounds", ("errors",), parts.errors_table(results), ERRORS
        ),
        panel("Precision for individuals", (), parts.bounds(results)),
    ]
    return [each for each in panels if each.table and each.table.rows]
